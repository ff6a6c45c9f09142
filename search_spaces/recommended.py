"""Recommended spaces by method and dataset, of our own methods and of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import Registry

_SPACES = "dpsweep.search_spaces"

#: Method name -> ``Recommended``.
SPACES = Registry(
    "recommended space",
    {
        "active_learning": f"{_SPACES}.active_learning:RECOMMENDED",
        "adamix": f"{_SPACES}.adamix:RECOMMENDED",
        "bitfit": f"{_SPACES}.bitfit:RECOMMENDED",
        "dp_sgd": f"{_SPACES}.dp_sgd:RECOMMENDED",
        "least_squares": f"{_SPACES}.least_squares:RECOMMENDED",
        "scatternet": f"{_SPACES}.scatternet:RECOMMENDED",
        "sparse": f"{_SPACES}.sparse:RECOMMENDED",
    },
    group="dpsweep.search_spaces",
)


#: Dataset -> the one whose recommendations it shares where it has none of its own.
LIKE: Mapping[str, str] = {
    "mnist": "fashion_mnist",
    **dict.fromkeys(("cifar10", "cifar100", "svhn", "celeba", "image_dataset"), "image_folder"),
}

T = TypeVar("T")


@dataclass(frozen=True)
class Recommended:
    """The spaces that a method's authors recommend, and what a starter spec says around them.

    Attributes:
        spaces: Dataset name -> ``search.space``; ``*`` stands for any other dataset.
        why: Comment on each parameter of the spaces; those without one have none.
        public: Dataset name -> share of all records that is declared public; 0 where absent.
        start: Dataset name -> section ``start``.
        budget: ``trial_epsilon`` and ``study_epsilon``; None: the dataset's.
        scheduler: Section ``scheduler``; ``{rungs}`` stands for the dataset's.
        fixed: Dataset name -> ``search.space`` of one configuration, for one run without a search.
        of_public: Hyperparameters that count public records: on data of one's own no value of
            theirs is larger than there are.
    """

    spaces: Mapping[str, Mapping[str, Any]]
    why: Mapping[str, str] = field(default_factory=dict)
    public: Mapping[str, float] = field(default_factory=dict)
    start: Mapping[str, str] = field(default_factory=dict)
    budget: tuple[str, str] | None = None
    scheduler: str = """\
scheduler:                     # every trial to its end: {{type: fifo}}
  type: epsilon_halving        # compares trials at equal epsilon; or median (with min_trials: 5)
  rungs: {rungs}            # at these epsilons; []: .4 and .65 of trial_epsilon
  rung_unit: epsilon           # share: rungs are shares of what each trial's own plan costs
  reduction_factor: 3          # one in so many goes on from a rung
  variant: stop                # stop ends the others; promote pauses them, and may continue them
"""

    fixed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    of_public: tuple[str, ...] = ()

    def space(self, dataset: str) -> Mapping[str, Any] | None:
        """Return the space for a dataset, or None if there is none."""
        return _of(self.spaces, dataset) or self.spaces.get("*")

    def single(self, dataset: str) -> Mapping[str, Any] | None:
        """Return the configuration that needs no search, or None if there is none."""
        return _of(self.fixed, dataset)

    def public_share(self, dataset: str) -> float:
        """Return the share of all records that a starter declares public."""
        return _of(self.public, dataset) or 0.0

    def start_section(self, dataset: str) -> str:
        """Return the section ``start``, empty where the method has none."""
        return _of(self.start, dataset) or ""


def _of(table: Mapping[str, T], dataset: str) -> T | None:
    """Return a dataset's entry, or that of the one it is like."""
    return table.get(dataset, table.get(LIKE.get(dataset, dataset)))


def recommended(method: str) -> Recommended:
    """Return what is recommended for a method.

    Raises:
        BadInputError: Nothing is, or what a package adds is no ``Recommended``.
    """
    own = SPACES[method]
    if not isinstance(own, Recommended):
        raise BadInputError(
            f"the recommended space of {method} is a {type(own).__name__}, not a Recommended",
            fix="ask the authors of its package",
        )
    return own


def methods_for(dataset: str) -> list[str]:
    """Return the methods that have a recommended space for a dataset; broken packages aside."""
    able = []
    for method in SPACES:
        with suppress(BadInputError):
            if recommended(method).space(dataset) is not None:
                able.append(method)
    return able
