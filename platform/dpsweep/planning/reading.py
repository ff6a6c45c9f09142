"""A spec as it is read: its space checked against the methods that it names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dpsweep.foundation.errors import BadInputError, Mistake, SpecError
from dpsweep.planning.input_norm import INPUT_NORM, PUBLIC, public_input_norm
from dpsweep.search_spaces.base import space_check
from dpsweep.search_spaces.recommended import methods_for, recommended
from dpsweep.spec.base import given, peek, peek_word
from dpsweep.spec.document.overrides import override
from dpsweep.spec.document.reading import read_document
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.episodes import EPISODE_HYPERPARAMETERS


def read_spec(
    source: Path | str,
    *,
    overrides: Sequence[str] = (),
    text_name: str = "<text>",
    say: Callable[[str], None] = lambda text: None,
) -> SweepSpec:
    """Read a spec, its space checked against the hyperparameters of the methods it names.

    Args:
        source: Path of a YAML file, or its text.
        overrides: As for ``SweepSpec.from_yaml``.
        text_name: As there.
        say: Hears what a word of the space (``optim.input_norm: public``) stands for.
    Raises:
        SpecError: Every mistake at once.
    """
    overrides = [*overrides, *_space_of_preset(source, overrides, text_name)]
    check = space_check(declared_hyperparameters, TRAINABLES.broken)
    document = override(read_document(source, text_name=text_name), overrides)
    if peek(document.value, "search", "space", INPUT_NORM) == PUBLIC:
        key = f"search.space.{INPUT_NORM}"
        any_norm = [*overrides, f"{key}=1"]
        draft = SweepSpec.from_yaml(
            source, overrides=any_norm, check_space=check, text_name=text_name
        )
        try:
            norm = public_input_norm(draft)
        except BadInputError as error:
            because = f": {error.because}" if error.because else ""
            wrong = Mistake(document.where(key), f"{error.message}{because}", error.fix or "")
            raise SpecError([wrong]) from error
        say(str(norm))
        overrides.append(f"{key}={norm.value:g}")
    return SweepSpec.from_yaml(source, overrides=overrides, check_space=check, text_name=text_name)


def _space_of_preset(source: Path | str, overrides: Sequence[str], text_name: str) -> Sequence[str]:
    """Return overrides that put the recommended space in the place of ``search.preset``.

    What is read, and stored with the study, is that space: it stays when the preset changes.

    Raises:
        SpecError: Nothing is recommended for that method and dataset.
    """
    document = override(read_document(source, text_name=text_name), overrides)
    method = peek(document.value, "search", "preset")
    if not isinstance(method, str) or given(document.value, "search", "space"):
        return []
    dataset = peek_word(document.value, "data", "dataset")
    try:
        space = recommended(method).space(dataset)
        wrong, fix = f"nothing is recommended for {method} on {dataset}", ""
    except BadInputError as error:
        space, wrong, fix = None, error.message, error.fix or ""
    if space is None:
        able = ", ".join(methods_for(dataset)) or "none; write search.space"
        raise SpecError([Mistake(document.where("search.preset"), wrong, fix or f"known: {able}")])
    return [f"search.space={json.dumps(space)}", "search.preset=null"]


def declared_hyperparameters(spec: SweepSpec | None = None) -> dict[str, Sequence[Hyperparameter]]:
    """Return the hyperparameters of every method, with those that a spec adds to all of them.

    A method of a package that does not load is none.
    """
    added = () if spec is None else platform_hyperparameters(spec)
    return {name: method.hyperparameters + added for name, method in TRAINABLES.loadable().items()}


def platform_hyperparameters(spec: SweepSpec) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters that a spec adds to those of every method."""
    return () if spec.episodes is None else EPISODE_HYPERPARAMETERS
