"""The search and scheduler sections of a spec: what is tried, how, and what is stopped early."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    AS_NUMBER,
    Count,
    Part,
    Positive,
    Text,
    dotted,
    given,
    maybe_number,
    number,
    peek_word,
    seen,
)
from dpsweep.spec.installed import known_name, name_schema
from dpsweep.spec.space.first_points import check_points
from dpsweep.spec.space.parameter import Parameter
from dpsweep.spec.space.parameters import canonical_scalar, canonical_space, parse_space, reachable
from dpsweep.spec.space.schema import SPACE_SCHEMA

EPSILON = "dp/epsilon"
Metric = Literal["validation/accuracy", "validation/loss", "validation/perplexity"]
#: Metric -> the mode that makes no sense for it.
_WORST = {
    "validation/accuracy": "min",
    "validation/loss": "max",
    "validation/perplexity": "max",
}
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _point_value(value: Any) -> Any:
    try:
        return canonical_scalar(value)
    except ValueError as error:
        raise ValueError(error.args[0]) from None


def _seconds(value: Any) -> float:
    """Return a time in seconds: a number, or a text such as ``90s``, ``45m`` or ``2h``."""
    text, unit = value, 1
    if isinstance(value, str) and value.strip()[-1:] in _SECONDS:
        text, unit = value.strip()[:-1].strip(), _SECONDS[value.strip()[-1]]
    try:
        return float(number(number(text) * unit))
    except ValueError:
        raise ValueError(
            f"must be seconds, or a time such as 90s, 45m or 2h, got {seen(value)}"
        ) from None


PointValue = Annotated[Any, BeforeValidator(_point_value)]
Seconds = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(_seconds),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? *[smh]?$"},
            ]
        }
    ),
]


#: Samplers that dpsweep has itself; an installed package may add others (``SAMPLER_GROUP``).
SAMPLERS = ("random", "grid", "tpe", "nsga2", "cmaes", "gp")
#: Those of them that learn nothing from other trials; of others that is not known.
INDEPENDENT_SAMPLERS = ("random", "grid")
SAMPLER_GROUP = "dpsweep.samplers"
SamplerName = Annotated[
    str,
    BeforeValidator(known_name(SAMPLERS, SAMPLER_GROUP)),
    WithJsonSchema(name_schema(SAMPLERS)),
]


class SearchSpec(Part):
    """Search: its space, its sampler, its length and the score that it is by."""

    sampler: SamplerName = Field(
        default="tpe",
        description="How configurations are chosen: random, grid (needs `num` on each range), tpe, "
        "nsga2, cmaes, gp, or the sampler of an installed package. Under select it is random.",
    )
    num_trials: Count = Field(
        default=24,
        le=1_000_000,
        description="How many configurations are trained at most; not for select.",
    )
    max_time: Seconds | None = Field(
        default=None,
        description="Seconds, or 90s, 45m, 2h: no further trial is started after it; running ones "
        "end.",
    )
    metric: Metric = Field(
        default="validation/accuracy",
        description="Score that configurations are compared by; validation/perplexity is for "
        "data.task: causal_lm.",
    )
    mode: Literal["max", "min"] = Field(default="max", description="Whether a high score is good.")
    objectives: tuple[Literal[Metric, "dp/epsilon"], ...] = Field(
        default=(),
        description="[]: the metric alone; [validation/accuracy, dp/epsilon]: the best trade-offs "
        "between the two.",
    )
    max_concurrent: Count | None = Field(
        default=None, description="Most trials at once; null: as many as the resources allow."
    )
    points_to_evaluate: tuple[dict[str, PointValue], ...] = Field(
        default=(), description="Configurations to try first, each a mapping of parameter to value."
    )
    preset: Text | None = Field(
        default=None,
        exclude=True,
        description="In the place of space: the space that is recommended for this method on this "
        "dataset, as `dpsweep init --method` writes it.",
    )
    space: Annotated[
        dict[str, Any], AfterValidator(canonical_space), WithJsonSchema(SPACE_SCHEMA)
    ] = Field(
        description="say what to search, for instance\n"
        "  {method: dp_sgd, optim.lr: {loguniform: [0.1, 8]}}"
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check the space, the first points, and that scores and sampler suit each other."""
        metric, mode = raw.get("metric", "validation/accuracy"), raw.get("mode", "max")
        if isinstance(metric, str) and metric.startswith("test/"):
            yield Mistake(
                "metric",
                f"{metric!r} cannot be searched by: its value for the winner would be too good",
                "use validation/accuracy or validation/loss",
            )
        if isinstance(metric, str) and _WORST.get(metric) == mode:
            yield Mistake(
                "mode",
                f"mode {mode} with {metric} looks for the worst configuration",
                f"use mode: {'min' if mode == 'max' else 'max'}",
            )
        yield from _objective_rules(raw)
        if raw.get("preset") is not None:
            beside = "stands beside space" if "space" in raw else "is known to spec files alone"
            yield Mistake("preset", beside, "give search.space, or a file without it")
        space = raw.get("space")
        if not isinstance(space, Mapping):
            return
        parameters, flaws = parse_space(space)
        yield from (flaw.below("space") for flaw in flaws)
        if not flaws:
            yield from _sampler_rules(peek_word(raw, "sampler", default="tpe"), parameters)
        if raw.get("sampler") == "grid":
            for parameter in reachable(parameters):
                if parameter.is_range and parameter.num is None:
                    yield Mistake(
                        dotted(("space", *parameter.path)),
                        "sampler grid needs to know how many points to take from a range",
                        "add `num: 5` to it, or use a choice",
                    )
        points = raw.get("points_to_evaluate", ())
        if isinstance(points, (list, tuple)) and not flaws:
            yield from (
                flaw.below("points_to_evaluate") for flaw in check_points(parameters, points)
            )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The space as parameters, each after those that its condition names."""
        return parse_space(self.space)[0]


def _objective_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Check that there are two objectives where any are given, and a sampler that can have two."""
    sampler = peek_word(raw, "sampler", default="tpe")
    metric = peek_word(raw, "metric", default="validation/accuracy")
    objectives = raw.get("objectives", ())
    two = f"[{metric or 'validation/accuracy'}, {EPSILON}]"
    if not given(raw, "objectives"):
        if sampler == "nsga2":
            problem = "nsga2 looks for trade-offs between two objectives, and there is one"
            yield Mistake("sampler", problem, f"add objectives: {two}, or use tpe")
        return
    if sampler == "cmaes":
        problem = "cmaes has a single objective, and `objectives` names several"
        yield Mistake("sampler", problem, "use nsga2, tpe or gp; or remove `objectives`")
    words = (*_WORST, EPSILON)
    is_list = isinstance(objectives, (list, tuple))
    if not is_list or any(name not in words for name in objectives):
        return  # pydantic says so
    if metric in words and tuple(objectives) != (metric, EPSILON):
        shown = ", ".join(objectives)
        problem = f"must be the metric and then {EPSILON}, got [{shown}]"
        yield Mistake("objectives", problem, f"write {two}, or [] for the metric alone")


def _sampler_rules(sampler: str, parameters: Sequence[Parameter]) -> Iterator[Mistake]:
    """Refuse samplers that would silently draw at random from all of the space.

    Optuna's CMA-ES models ranges that every configuration has, its Gaussian process also choices;
    both draw everything else at random.
    """
    reached = reachable(parameters)
    fixed = {p.name for p in reached if p.kind == "fixed" and p.by is None}
    always = [p for p in reached if p.kind != "fixed" and fixed.issuperset(p.when)]
    if sampler == "cmaes" and not any(parameter.is_range for parameter in always):
        problem = "cmaes works on ranges, and no range is part of every configuration"
        yield Mistake("sampler", problem, "use tpe, or search over a range without `when`")
    if sampler == "gp" and not always:
        problem = (
            "gp works on parameters of every configuration, and each one here is fixed or has "
        )
        yield Mistake("sampler", f"{problem}a `when`", "use tpe, or search over one without `when`")


def metric_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what the metric demands of the task; ``raw`` is a whole spec and may hold anything."""
    task = peek_word(raw, "data", "task", default="classification")
    if peek_word(raw, "search", "metric") == "validation/perplexity" and task != "causal_lm":
        problem = f"validation/perplexity is a score of language models, and the task is {task}"
        fix = "use validation/loss, or data.task: causal_lm"
        yield Mistake("search.metric", problem, fix)


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
    }

    type: Literal["fifo", "median", "epsilon_halving"] = Field(
        default="fifo",
        description="fifo runs every trial to its end; epsilon_halving keeps the best share of "
        "those that reach a rung; median stops a trial below the median of the earlier ones.",
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
        keys = ("rungs", "rung_unit", "reduction_factor", "variant", "min_trials")
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
