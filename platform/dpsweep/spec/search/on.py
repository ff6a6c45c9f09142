"""The records that a search runs on: all private ones, or a part of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.privacy.modes import Mode
from dpsweep.spec.base import AS_NUMBER, Part, given, peek, peek_mode, peek_word
from dpsweep.spec.search.probe import PROBE
from dpsweep.spec.space.parameters import parse_space, reachable


class OnSpec(Part):
    """A part of the private records that the search runs on, before one final run: one of two.

    Guarantees:
        ``split``: which records are in the part is decided by their positions and the declared
        number alone (``trainables.data.dataset``). The search stays within
        (``privacy.study_epsilon``, ``privacy.delta``) on the part, the final run on all others; a
        record is in one of the two, so the study costs the larger of both (``SplitComposition``).

        ``subset``: each record is in the part with this probability, by a draw that stays secret,
        as all of the search does but the configuration that it finds. The final run is on all
        records, and both together cost at most ``privacy.study_epsilon`` (``SubsetBound``).
    """

    split: Annotated[float, Field(gt=0, lt=1), AS_NUMBER] | None = Field(
        default=None,
        description="Share of the private records that the search runs on, fixed by their "
        "positions; the final run gets the others. Needs accounting composed.",
    )
    subset: Annotated[float, Field(gt=0, lt=1), AS_NUMBER] | None = Field(
        default=None,
        description="Probability that a private record is in the secret part that the search runs "
        "on; the final run gets all. Needs accounting select and a study_epsilon.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check that one of the two is given."""
        named = [key for key in ("split", "subset") if given(raw, key)]
        if len(named) != 1:
            problem = "is given beside split" if named else "is missing, and so is split"
            yield Mistake("subset", problem, "give one of the two, for instance {split: 0.1}")


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
    if given(raw, "search", "on", "subset"):
        if not given(raw, "search", "on", "split"):  # of both that alone is said
            yield from _subset_rules(raw, mode)
    elif mode.is_sealed:
        yield Mistake(
            "search.on.split",
            "is for accounting composed; under select the part of the records is drawn in secret",
            f"use search.on: {{subset: 0.1}} or accounting: composed, or {_ALL}",
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
    if given(raw, "search", "objectives"):
        problem = "one final run is delivered, and a trade-off has several"
        yield Mistake("search.objectives", problem, f"remove them, or {_ALL}")
    space = peek(raw, "search", "space")
    parameters, flaws = parse_space(space) if isinstance(space, Mapping) else ((), ())
    for parameter in () if flaws else reachable(parameters):
        if parameter.name == "train.num_private":
            problem = "has no meaning with search.on, which says how many records there are"
            yield Mistake("search.space.train.num_private", problem, f"remove it, or {_ALL}")


def _subset_rules(raw: Mapping[str, Any], mode: Mode) -> Iterator[Mistake]:
    """Yield what a search on a secret part of the records demands of the section privacy."""
    if mode.name and not mode.is_sealed:
        yield Mistake(
            "search.on.subset",
            "is for accounting select: what a search on a secret part of the records has seen must "
            "stay secret, but for the configuration that it finds",
            "use accounting: select, or search.on: {split: 0.1} with accounting: composed",
        )
    elif mode.is_sealed and not given(raw, "privacy", "study_epsilon"):
        yield Mistake(
            "privacy.study_epsilon",
            "is missing: the search and its final run together keep it, and the final run gets "
            "what the search leaves",
            f"for instance 3, or {_ALL}",
        )
