"""The scheduler section of a spec: what is stopped early, and where trials are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import AS_NUMBER, Count, Part, Positive, given, maybe_number, peek_word

#: Schedulers that people know from elsewhere: what to say of them, and what to do.
FOREIGN_SCHEDULERS: Mapping[str, tuple[str, str]] = {
    "asha": (
        "is called epsilon_halving here: successive halving with rungs in epsilon",
        "use epsilon_halving",
    ),
    "hyperband": (
        "is called epsilon_halving here: one bracket, with rungs in epsilon",
        "use epsilon_halving",
    ),
    "pbt": ("copies weights between trials; that is not available", "use epsilon_halving or fifo"),
    "bohb": (
        "is halving with a sampler that learns; here the two are chosen apart",
        "use epsilon_halving with search.sampler: tpe",
    ),
}


class SchedulerSpec(Part):
    """Which trials are stopped early, and at how much spent epsilon they are compared."""

    #: Keys that mean something to each type; the others are refused.
    KEYS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fifo": (),
        "median": ("rungs", "rung_unit", "min_trials"),
        "epsilon_halving": ("rungs", "rung_unit", "reduction_factor", "variant"),
        "noisy_prefix": ("keep",),
    }

    type: Literal["fifo", "median", "epsilon_halving", "noisy_prefix"] = Field(
        default="fifo",
        description="fifo runs every trial to its end; epsilon_halving keeps the best share of "
        "those that reach a rung; median stops a trial below the median of the earlier ones; "
        "noisy_prefix runs the noisy prefix of all trials (noise.prefix_factor), then the best go "
        "on (needs composition: declared).",
    )
    rungs: tuple[Positive, ...] = Field(
        default=(),
        description="Epsilons at which trials are compared, ascending, below trial_epsilon; "
        "[]: .4 and .65 of it.",
    )
    rung_unit: Literal["epsilon", "share"] = Field(
        default="epsilon",
        description="epsilon: rungs are amounts of epsilon; share: shares, below 1, of the epsilon "
        "that the whole plan of a trial costs, for trials of different noise.target_epsilon.",
    )
    reduction_factor: Annotated[float, Field(ge=2), AS_NUMBER] = Field(
        default=3, description="epsilon_halving: one in so many goes on from a rung."
    )
    variant: Literal["stop", "promote"] = Field(
        default="stop",
        description="epsilon_halving: stop ends the others; promote pauses them, and continues "
        "the best when there is room.",
    )
    min_trials: Count = Field(
        default=5, description="median: trials at a rung before the first one is stopped there."
    )

    keep: Count = Field(
        default=1, description="noisy_prefix: how many trials go on from the prefix, the best."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Name what is known by another name, refuse keys of another type, check the rungs."""
        kind = peek_word(raw, "type", default="fifo")
        if kind in FOREIGN_SCHEDULERS:
            problem, fix = FOREIGN_SCHEDULERS[kind]
            yield Mistake("type", f"{kind!r} {problem}", fix)
        for key in cls.unused(kind):
            if given(raw, key):
                owners = " or ".join(name for name, keys in cls.KEYS.items() if key in keys)
                fix = f"remove it, or use type: {owners}"
                yield Mistake(key, f"has no meaning for {kind}", fix)
        if "rungs" in cls.KEYS.get(kind, ()) and isinstance(raw.get("rungs"), (list, tuple)):
            yield from _order_rules([maybe_number(rung) for rung in raw["rungs"]])

    @classmethod
    def unused(cls, kind: str) -> tuple[str, ...]:
        """Return the keys that have no meaning for a type of scheduler."""
        used = cls.KEYS.get(kind)
        keys = ("rungs", "rung_unit", "reduction_factor", "variant", "min_trials", "keep")
        return () if used is None else tuple(key for key in keys if key not in used)


def _order_rules(rungs: Sequence[float | None]) -> Iterator[Mistake]:
    """Check that rungs ascend; None stands for what is no number, which is reported elsewhere."""
    for index, (before, rung) in enumerate(pairwise(rungs), start=1):
        if before is None or rung is None:
            continue
        if before == rung:
            yield Mistake(f"rungs[{index}]", f"stands twice: {rung:g}", "remove one of the two")
        elif before > rung:
            problem = f"must be larger than the rung before it, got {rung:g} after {before:g}"
            yield Mistake(f"rungs[{index}]", problem, "write the rungs in ascending order")
