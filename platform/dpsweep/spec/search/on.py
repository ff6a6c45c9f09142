"""The records that a search runs on: all private ones, or a fixed part of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import AS_NUMBER, Part, given, peek, peek_mode, peek_word
from dpsweep.spec.search.probe import PROBE
from dpsweep.spec.space.parameters import parse_space, reachable


class OnSpec(Part):
    """A part of the private records that the search runs on; one final run gets the others.

    Guarantees:
        Which records are in the part is decided by their positions and the declared number alone
        (``trainables.data.dataset``). The search stays within (``privacy.study_epsilon``,
        ``privacy.delta``) on the part, the final run on all others; a record is in one of the two,
        so the study costs the larger of both (``SplitComposition``).
    """

    split: Annotated[float, Field(gt=0, lt=1), AS_NUMBER] = Field(
        description="say which share of the private records the search runs on, for instance 0.1"
    )


#: Key of ``search`` -> why it has no meaning on a part of the records, and what to do.
_NOT_ON_A_PART = {
    "objectives": (
        "one final run is delivered, and a trade-off has several",
        "remove them, or leave search.on out",
    ),
}
_ALL = "leave search.on out"


def with_on(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a raw spec whose search has ``on`` for ``true``, as which readers of YAML 1.1 take it.

    >>> with_on({"search": {True: {"split": 0.1}}})
    {'search': {'on': {'split': 0.1}}}
    """
    search = raw.get("search")
    if not isinstance(search, Mapping) or not any(key is True for key in search):
        return raw
    return {**raw, "search": {"on" if k is True else k: value for k, value in search.items()}}


def on_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what a search on a part of the records demands of a whole spec, whatever it holds."""
    if not given(raw, "search", "on"):
        return
    mode = peek_mode(raw, "privacy", "accounting")
    if mode.is_sealed:
        yield Mistake(
            "search.on",
            "is not possible under select yet: the search on the part would have to stay secret",
            "use accounting: composed, or " + _ALL,
        )
    elif mode.name and not mode.is_filtered:
        yield Mistake(
            "search.on",
            "is for accounting composed: the search on a part keeps a study_epsilon of its own",
            "use accounting: composed, or " + _ALL,
        )
    if peek_word(raw, "search", "strategy") == PROBE:
        problem = "is not possible with strategy: probe, which costs next to nothing on all records"
        yield Mistake("search.on", problem, "keep one of the two")
    if peek_word(raw, "scheduler", "type") == "noisy_prefix":
        problem = "is not possible with search.on: the final run would begin with a prefix again"
        yield Mistake("scheduler.type", problem, f"use fifo, or {_ALL}")
    for section in ("episodes", "start"):
        if raw.get(section) is not None:
            yield Mistake(section, "is not possible with search.on", f"remove it, or {_ALL}")
    for key, (problem, fix) in _NOT_ON_A_PART.items():
        if given(raw, "search", key):
            yield Mistake(f"search.{key}", problem, fix)
    space = peek(raw, "search", "space")
    parameters, flaws = parse_space(space) if isinstance(space, Mapping) else ((), ())
    for parameter in () if flaws else reachable(parameters):
        if parameter.name == "train.num_private":
            problem = "has no meaning with search.on, which says how many records there are"
            yield Mistake("search.space.train.num_private", problem, f"remove it, or {_ALL}")
