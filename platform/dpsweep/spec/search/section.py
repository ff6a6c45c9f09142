"""The search section of a spec: what is tried, and by which score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    Count,
    Part,
    Text,
    dotted,
    given,
    number,
    peek_word,
    seen,
)
from dpsweep.spec.installed import known_name, name_schema
from dpsweep.spec.search.on import OnSpec
from dpsweep.spec.search.probe import ProbeSpec
from dpsweep.spec.search.values import PointValue
from dpsweep.spec.space.first_points import check_points
from dpsweep.spec.space.parameter import Parameter
from dpsweep.spec.space.parameters import canonical_space, parse_space, reachable
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

    strategy: Literal["sampler", "probe"] = Field(
        default="sampler",
        description="How a search goes: sampler (trials whose configurations the sampler chooses), "
        "or probe (very noisy runs that cost next to nothing find optim.noise_lr or "
        "optim.noise_scale, then one run gets what is left; needs accounting composed).",
    )
    probe: ProbeSpec = ProbeSpec()
    on: OnSpec | None = Field(
        default=None,
        description="Search on a part of the private records, then run the best configuration "
        "once: on the others after {split: 0.1}, on all after {subset: 0.1}, a secret part; null: "
        "search on all of them.",
    )
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
        description="Seconds, or 90s, 45m, 2h, that the launches of a study run, without pauses "
        "between them: no further trial is started after it; running ones end. With more of it, or "
        "null, the same study goes on.",
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
    def compared_by(self) -> tuple[str, ...]:
        """What trials are compared by: ``objectives``, or the metric alone."""
        return self.objectives or (self.metric,)

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
