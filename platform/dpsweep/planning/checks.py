"""Checks of a spec that need more than the spec alone; each says all that it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpsweep.foundation.errors import DataError, Mistake
from dpsweep.planning.deltas import delta_problems
from dpsweep.planning.networks import weights_problems
from dpsweep.planning.places import place_problems
from dpsweep.planning.pretrain import pretrain_problems
from dpsweep.planning.problems import (
    barrier_problems,
    data_problems,
    sampler_problems,
    sealed_problems,
    space_problems,
    target_problems,
    task_problems,
)
from dpsweep.planning.public_records import public_problems
from dpsweep.planning.reading import declared_hyperparameters
from dpsweep.planning.start import start_problems
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo, info_of_records
from dpsweep.trainables.data.episodes import Episodes
from dpsweep.trainables.data.loading import describe_dataset
from dpsweep.trainables.hooks import CarriesOver
from dpsweep.trainables.method import Method
from dpsweep.trainables.outside import asked


@dataclass(frozen=True)
class Draft:
    """A spec under check.

    Attributes:
        spec: The spec.
        space: Its search space.
        info: Shapes and declared sizes of the data of a trial; None: they cannot be had.
    """

    spec: SweepSpec
    space: SearchSpace
    info: DatasetInfo | None

    @cached_property
    def values(self) -> Mapping[str, Sequence[Any]]:
        """The values that the space can give each hyperparameter."""
        return self.space.values()

    @cached_property
    def methods(self) -> dict[str, type[Method]]:
        """The methods that the space can choose, as far as there are such."""
        loadable = TRAINABLES.loadable()
        return {name: loadable[name] for name in self.values["method"] if name in loadable}


Check = Callable[[Draft], Sequence[Mistake]]


def read_draft(spec: SweepSpec) -> tuple[Draft, list[Mistake]]:
    """Return a spec with its space and its data, and what keeps them from being read."""
    space = SearchSpace.from_spec(spec.space)
    mistakes = list(space.check(declared_hyperparameters(spec), TRAINABLES.broken()))
    info = None
    try:
        info = describe_dataset(spec.data)
    except DataError as error:
        key = "data" if spec.data.path is None else "data.path"
        message = f"{error.message}: {error.because}" if error.because else error.message
        if "data.public" in message:
            key = "data.public"
        elif message.startswith(("data.tokenizer: ", "data.max_length: ")):
            key, message = message.split(": ", 1)
        mistakes.append(Mistake(key, message, error.fix or ""))
    episodes = Episodes.of(spec)
    if info is not None and episodes is not None:
        mistakes += episodes.problems(info)
        info = episodes.describe(info)
    return Draft(spec, space, info), mistakes


def _data(draft: Draft) -> list[Mistake]:
    return [] if draft.info is None else data_problems(draft.spec, draft.info)


def _space(draft: Draft) -> list[Mistake]:
    return space_problems(draft.spec, draft.values, draft.info)


def _weights(draft: Draft) -> list[Mistake]:
    return [] if draft.info is None else weights_problems(draft.spec, draft.space, draft.info)


def _deltas(draft: Draft) -> list[Mistake]:
    if draft.info is None:
        return []
    is_private = any(method.is_private for method in draft.methods.values())
    return list(delta_problems(draft.spec, draft.info, has_private_method=is_private))


#: What can be asked of every spec, in the order in which it is told.
CHECKS: Sequence[Check] = (
    _data,
    _space,
    lambda draft: pretrain_problems(draft.spec, draft.space),
    lambda draft: place_problems(draft.spec),
    lambda draft: sealed_problems(draft.spec),
    lambda draft: target_problems(draft.spec),
    lambda draft: sampler_problems(draft.spec),
    lambda draft: barrier_problems(draft.spec, draft.values),
    _weights,
    _deltas,
)


def _methods(draft: Draft) -> list[Mistake]:
    return list(dict.fromkeys(_of_methods(draft)))


def _of_methods(draft: Draft) -> Iterator[Mistake]:
    spec, info = draft.spec, draft.info
    assert info is not None
    infos = [info]
    if spec.privacy.mode.is_public_search and info.num_public:
        infos.append(replace(info, num_private=info.num_public))  # what the search trains on
    if spec.part_share is not None and info.num_private > 1:
        infos = [info_of_records(info, spec.part_share, "private")]
    for name, method in draft.methods.items():
        if spec.part_share is not None and not issubclass(method, CarriesOver):
            problem = f"{name} has no rule by which a configuration is carried over to more records"
            able = [n for n, m in TRAINABLES.loadable().items() if issubclass(m, CarriesOver)]
            fix = f"use one of {', '.join(sorted(able))}, or leave search.on out"
            yield Mistake("search.space.method", problem, fix)
        for each in infos:
            own = task_problems(name, method, each) or asked(
                method, "preflight", draft.space.values(name), each
            )
            yield from (mistake.below("search.space") for mistake in own)


def _public(draft: Draft) -> list[Mistake]:
    assert draft.info is not None
    return public_problems(draft.spec, draft.methods, draft.values, draft.info)


def _resources(draft: Draft) -> list[Mistake]:
    start = draft.spec.start
    methods = {*draft.methods, *([] if start is None else [start.method])}
    return [
        Mistake(
            f"resources.by_method.{name}",
            f"the study has no trial of {name}",
            f"remove it; there are {', '.join(sorted(methods))}",
        )
        for name in draft.spec.resources.by_method
        if name not in methods
    ]


def _start(draft: Draft) -> list[Mistake]:
    assert draft.info is not None
    return list(start_problems(draft.spec, draft.methods, draft.values, draft.info))


#: What can be asked of a spec whose space and data could be read.
CHECKS_OF_METHODS: Sequence[Check] = (_methods, _public, _resources, _start)
