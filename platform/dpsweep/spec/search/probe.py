"""The probe section of a search: very noisy short runs that find one number, then one long run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    AS_WHOLE,
    Part,
    Positive,
    dotted,
    given,
    maybe_number,
    peek,
    peek_mode,
    peek_word,
)
from dpsweep.spec.search.values import PointValue
from dpsweep.spec.space.parameters import parse_space, reachable

#: The strategy that this section belongs to.
PROBE = "probe"
#: What a probe can find: numbers whose best value is nearly the same at every noise multiplier.
NOISE_LR, NOISE_SCALE = "optim.noise_lr", "optim.noise_scale"
#: What a probe may have another value of than the final run: how long it is, and its batch.
OVERRIDABLE = ("train.", "batch.")


class ProbeSpec(Part):
    """How many probes there are, how noisy they are, and what is shorter about them.

    Guarantees:
        Probes, spares and the final run are declared before the first and cost
        ``privacy.study_epsilon`` together (``DeclaredComposition``). Nothing else is covered by it.
    """

    num_probes: Annotated[int, Field(ge=3, le=1000), AS_WHOLE] = Field(
        default=12, description="Points of the range that are probed, from bound to bound."
    )
    epsilon: Positive = Field(
        default=0.05, description="What one probe costs alone; .05 to .1 is enough for a ranking."
    )
    spares: Annotated[int, Field(ge=0, le=100), AS_WHOLE] = Field(
        default=2,
        description="Further probes: beyond a bound that came out best, or in the place of a "
        "neighbour that failed. Declared, and paid for, whether they are used or not.",
    )
    overrides: dict[str, PointValue] = Field(
        default={},
        description="Values of train.* and batch.* that a probe has in the place of the final "
        "run's, to take less time: {train.epochs: 3}. Needs optim.noise_scale.",
    )

    @property
    def most(self) -> int:
        """How many probes there may be, spares included: the number of the final trial."""
        return self.num_probes + self.spares


def with_probe_defaults(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a raw spec with what strategy ``probe`` decides where nothing is said.

    It declares its events, which are priced by pld, its final run may cost whatever is left, and a
    run whose scores cost something releases a single one.
    """
    if peek_word(raw, "search", "strategy") != PROBE:
        return raw
    privacy = {"composition": "declared", "accountant": "pld"}
    cap = peek(raw, "privacy", "study_epsilon")
    if cap is not None:
        privacy["trial_epsilon"] = cap
    raw = _with_defaults(raw, "privacy", privacy)
    is_noisy = peek_word(raw, "data", "validation", "visibility") == "noisy"
    if not is_noisy or given(raw, "report", "every_steps"):
        return raw
    return _with_defaults({"report": {}, **raw}, "report", {"points": 1})


def _with_defaults(
    raw: Mapping[str, Any], section: str, values: Mapping[str, Any]
) -> Mapping[str, Any]:
    part = raw.get(section)
    if isinstance(part, BaseModel):
        left = {key: value for key, value in values.items() if key not in part.model_fields_set}
        return {**raw, section: part.model_copy(update=left)}
    if isinstance(part, Mapping):
        named = {key: value for key, value in part.items() if value is not None}
        return {**raw, section: {**part, **values, **named}}
    return raw


def probe_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what strategy ``probe`` demands of a whole spec; ``raw`` may hold anything."""
    if peek_word(raw, "search", "strategy") != PROBE:
        if given(raw, "search", "probe"):
            problem = "has no meaning without strategy: probe"
            yield Mistake("search.probe", problem, "remove it, or set search.strategy: probe")
        return
    if not peek_mode(raw, "privacy", "accounting").is_filtered:
        yield Mistake(
            "search.strategy",
            "probe keeps its probes and its final run within one study_epsilon together",
            "use accounting: composed, or strategy: sampler",
        )
    if peek_word(raw, "privacy", "composition") == "filter":
        yield Mistake(
            "privacy.composition",
            "a filter would cost more than all the probes do, and probes are declared in any case",
            "use declared, or leave it out",
        )
    for key in ("sampler", "num_trials", "max_time", "points_to_evaluate", "objectives"):
        if given(raw, "search", key):
            problem = "has no meaning for probe, which tries the points of a range"
            yield Mistake(f"search.{key}", problem, "remove it; search.probe says how many")
    if peek_word(raw, "scheduler", "type", default="fifo") != "fifo":
        problem = "probes are compared at their ends, and no run is stopped before"
        yield Mistake("scheduler.type", problem, "remove it, or use strategy: sampler")
    for section in ("episodes", "start"):
        if raw.get(section) is not None:
            problem = "is not possible with strategy: probe"
            yield Mistake(section, problem, "remove it, or use strategy: sampler")
    probed, study = (
        maybe_number(peek(raw, *path))
        for path in (("search", "probe", "epsilon"), ("privacy", "study_epsilon"))
    )
    if study is not None and not (probed or 0.05) < study:
        problem = f"must be smaller than privacy.study_epsilon, got {probed or 0.05:g}"
        yield Mistake("search.probe.epsilon", problem, "a twentieth of it is enough for a ranking")
    yield from _space_rules(raw)


def _space_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Check that one range is searched that probes can find, and that it holds for their plan."""
    space = peek(raw, "search", "space")
    if not isinstance(space, Mapping):
        return
    parameters, flaws = parse_space(space)
    if flaws:
        return  # reported elsewhere
    searched = [parameter for parameter in reachable(parameters) if parameter.kind != "fixed"]
    if not searched:
        problem = "has nothing to search"
        yield Mistake("search.space", problem, f"add {NOISE_SCALE}: {{loguniform: [0.05, 500]}}")
    for parameter in searched:
        where = dotted(("search", "space", *parameter.path))
        if parameter.name not in (NOISE_LR, NOISE_SCALE):
            yield Mistake(where, *_unfit(parameter.name))
        elif parameter.kind != "loguniform":
            problem = "must be a loguniform range for strategy probe, of about four decades"
            yield Mistake(where, problem, f"{parameter.name}: {{loguniform: [0.05, 500]}}")
    yield from _override_rules(raw, {p.name for p in searched})


def _unfit(name: str) -> tuple[str, str]:
    """Return why probes cannot find a parameter, and what to do."""
    if name == "optim.lr":
        problem = "a learning rate is no good at another noise multiplier than it was found at"
        return problem, f"search {NOISE_LR} or {NOISE_SCALE}, from which the rate follows"
    problem = (
        "very noisy runs cannot rank it: what is best depends on how strong the noise is, except "
        f"for {NOISE_LR} and {NOISE_SCALE}"
    )
    return problem, "give it one value, or use strategy: sampler"


def _override_rules(raw: Mapping[str, Any], searched: set[str]) -> Iterator[Mistake]:
    overrides = peek(raw, "search", "probe", "overrides")
    if not isinstance(overrides, Mapping) or not overrides:
        return
    for name in overrides:
        if not str(name).startswith(OVERRIDABLE):
            where = dotted(("search", "probe", "overrides", str(name)))
            problem = "must be the same for probes and final run"
            yield Mistake(where, problem, "only train.* and batch.* may differ")
    if NOISE_LR in searched:
        yield Mistake(
            "search.probe.overrides",
            f"{NOISE_LR} is good for runs of the same length and batch only",
            f"search {NOISE_SCALE}, which carries over, or leave the overrides out",
        )
