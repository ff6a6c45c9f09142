"""A spec as it is read: its space checked against the methods that it names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpsweep.search_spaces.base import space_check
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.episodes import EPISODE_HYPERPARAMETERS


def read_spec(
    source: Path | str, *, overrides: Sequence[str] = (), text_name: str = "<text>"
) -> SweepSpec:
    """Read a spec, its space checked against the hyperparameters of the methods it names.

    Raises:
        SpecError: Every mistake at once.
    """
    check = space_check(declared_hyperparameters, TRAINABLES.broken)
    return SweepSpec.from_yaml(source, overrides=overrides, check_space=check, text_name=text_name)


def declared_hyperparameters(spec: SweepSpec | None = None) -> dict[str, Sequence[Hyperparameter]]:
    """Return the hyperparameters of every method, with those that a spec adds to all of them.

    A method of a package that does not load is none.
    """
    added = () if spec is None else platform_hyperparameters(spec)
    return {name: method.hyperparameters + added for name, method in TRAINABLES.loadable().items()}


def platform_hyperparameters(spec: SweepSpec) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters that a spec adds to those of every method."""
    return () if spec.episodes is None else EPISODE_HYPERPARAMETERS
