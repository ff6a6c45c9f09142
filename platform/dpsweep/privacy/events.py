"""The vocabulary of privacy events and the plan: the finite sequence of them a trial will cause."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from dpsweep.foundation import _validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import did_you_mean

Sampling = Literal["poisson", "full_batch", "mixed", "none"]
#: Whose records an event reads. A split that does not depend on the data makes the parts disjoint.
Part = Literal["private", "validation", "public"]
PARTS: tuple[Part, ...] = ("private", "validation", "public")
#: The parts whose records are protected; each is charged by the events on itself alone.
CHARGED_PARTS: tuple[Part, ...] = ("private", "validation")


@dataclass(frozen=True)
class PoissonGaussian:
    """A Gaussian-noised sum over a Poisson sample of the records.

    Attributes:
        noise_multiplier: Noise standard deviation divided by the sensitivity, >= 0 (0 has no
            finite epsilon).
        sample_rate: Probability in [0, 1] that one record enters, independently of the others.
    """

    noise_multiplier: float
    sample_rate: float

    def __post_init__(self) -> None:
        sigma = _validate.non_negative("noise_multiplier", self.noise_multiplier)
        rate = _validate.in_unit_interval("sample_rate", self.sample_rate, zero=True, one=True)
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "sample_rate", rate)


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian-noised sum over all records.

    Attributes:
        noise_multiplier: Noise standard deviation divided by the L2 sensitivity, >= 0.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        sigma = _validate.non_negative("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", sigma)


@dataclass(frozen=True)
class Laplace:
    """A Laplace-noised sum over all records: (1/scale)-DP.

    Attributes:
        scale: Scale of the noise divided by the L1 sensitivity, >= 0.
    """

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _validate.non_negative("scale", self.scale))


def _selection_shape(value: Any) -> float | str:
    if value == "poisson":
        return "poisson"
    if isinstance(value, str):
        raise BadInputError(f"shape must be a number >= 0 or 'poisson', got {value!r}")
    return _validate.non_negative("shape", value)


@dataclass(frozen=True)
class RepeatAndSelect:
    """The best of a random number K of independent runs; only the best is released.

    Papernot and Steinke 2022 (https://arxiv.org/abs/2110.03620). K is truncated negative
    binomial (``shape`` eta >= 0: 0 logarithmic, 1 geometric) or Poisson.

    Attributes:
        mean: E[K], at least 1.
        shape: eta, or "poisson".
        of: Plan of one run; the caller makes it the most expensive one. Its events are about one
            part, named by the run of this event: a selection by validation scores is one event
            for each of the two parts.
    """

    mean: float
    shape: float | Literal["poisson"]
    of: Plan

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _validate.at_least("mean", self.mean, 1))
        object.__setattr__(self, "shape", _selection_shape(self.shape))
        if not isinstance(self.of, Plan):
            raise BadInputError(f"of must be a Plan, got {type(self.of).__name__}")
        if any(run.part != "private" for run in self.of.runs):
            raise BadInputError(
                "the events inside repeat_and_select have no part of their own",
                fix="give the part of the selection itself; one selection for each part",
            )


@dataclass(frozen=True)
class NonPrivate:
    """An access to private records without a finite epsilon."""


PrivacyEvent = PoissonGaussian | Gaussian | Laplace | RepeatAndSelect | NonPrivate
_EVENT_TYPES = (PoissonGaussian, Gaussian, Laplace, RepeatAndSelect, NonPrivate)


@dataclass(frozen=True)
class EventRun:
    """The same event ``count`` times in a row.

    Attributes:
        event: What happens at each of the positions.
        count: Number of positions, at least 1.
        phase: Which stage of the method causes it (``train``, ``normalize``, ...).
        part: Whose records it reads: ``private``, ``validation`` or ``public`` (free).
    """

    event: PrivacyEvent
    count: int = 1
    phase: str = "train"
    part: Part = "private"

    def __post_init__(self) -> None:
        if not isinstance(self.event, _EVENT_TYPES):
            raise BadInputError(f"not a privacy event: {self.event!r}")
        _validate.one_of("part", self.part, PARTS)
        object.__setattr__(self, "count", _validate.whole("count", self.count, low=1))


@dataclass(frozen=True)
class Plan:
    """A finite sequence of privacy events; position t is the t-th of them.

    >>> plan = Plan((EventRun(PoissonGaussian(1.0, 0.01), 500), EventRun(Gaussian(20.0))))
    >>> len(plan), len(plan.slice(499, 501)), plan.at(500)
    (501, 2, Gaussian(noise_multiplier=20.0))
    >>> Plan.from_json(plan.to_json()) == plan
    True

    An empty plan is false. Equality and hash look at the runs: compare ``merged()`` plans to
    compare what happens.

    Attributes:
        runs: Runs of equal events, in order.
    """

    runs: tuple[EventRun, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))
        for run in self.runs:
            if not isinstance(run, EventRun):
                raise BadInputError(f"a plan is made of EventRun, got {run!r}")

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(run.count for run in self.runs))

    def __len__(self) -> int:
        return self._ends[-1] if self.runs else 0

    def __add__(self, other: Plan) -> Plan:
        if not isinstance(other, Plan):
            return NotImplemented
        return Plan(self.runs + other.runs)

    def at(self, position: int) -> PrivacyEvent:
        """Return the event at ``position``, 0 to ``len(plan) - 1``.

        Raises:
            IndexError: There is no such position.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of a plan of {len(self)} events")
        return self.runs[bisect_right(self._ends, position)].event

    def slice(self, start: int, stop: int) -> Plan:
        """Return the events at positions ``start`` to ``stop - 1``.

        Raises:
            IndexError: The range does not lie within the plan.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"positions {start} to {stop} of a plan of {len(self)} events")
        runs = []
        index = bisect_right(self._ends, start)
        position = start
        while position < stop:
            run, end = self.runs[index], min(self._ends[index], stop)
            runs.append(EventRun(run.event, end - position, run.phase, run.part))
            position, index = end, index + 1
        return Plan(tuple(runs))

    def merged(self) -> Plan:
        """Return the same sequence with adjacent equal runs made one."""
        runs: list[EventRun] = []
        for run in self.runs:
            if runs and _label(runs[-1]) == _label(run) and runs[-1].event == run.event:
                run = replace(run, count=runs.pop().count + run.count)
            runs.append(run)
        return Plan(tuple(runs))

    def part(self, name: Part) -> Plan:
        """Return the events on one part of the records, in their order."""
        return Plan(tuple(run for run in self.runs if run.part == name))

    def labelled(self, part: Part) -> Plan:
        """Return the same events as events on ``part``."""
        return Plan(tuple(replace(run, part=part) for run in self.runs))

    @property
    def sampling(self) -> Sampling:
        """How records enter the events: Poisson samples, all of them, both, or nothing known.

        Events on public records do not count.
        """
        kinds: set[str] = set()
        for run in self.runs:
            event = run.event
            if run.part == "public":
                continue
            if isinstance(event, PoissonGaussian):
                kinds.add("poisson" if event.sample_rate < 1 else "full_batch")
            elif isinstance(event, RepeatAndSelect):
                kinds.add(event.of.sampling)
            elif not isinstance(event, NonPrivate):
                kinds.add("full_batch")
        kinds.discard("none")
        if not kinds:
            return "none"
        if kinds == {"poisson"}:
            return "poisson"
        return "full_batch" if kinds == {"full_batch"} else "mixed"

    @property
    def is_private(self) -> bool:
        """False if some event on protected records has no finite epsilon."""
        return not any(
            isinstance(run.event, NonPrivate)
            or (isinstance(run.event, RepeatAndSelect) and not run.event.of.is_private)
            for run in self.runs
            if run.part != "public"
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return the segments of an events file; floats survive ``json`` exactly."""
        segments = []
        for run in self.runs:
            segment = _segment_of(run.event)
            segment["steps" if isinstance(run.event, PoissonGaussian) else "count"] = run.count
            if run.phase != "train":
                segment["phase"] = run.phase
            if run.part != "private":
                segment["part"] = run.part
            segments.append(segment)
        return segments

    @classmethod
    def from_json(cls, segments: Any) -> Plan:
        """Read the segments of an events file.

        Args:
            segments: List of ``{"event": "poisson_gaussian", "noise_multiplier": s,
                "sample_rate": q, "steps": n}``, ``{"event": "gaussian", "noise_multiplier": s,
                "count": n}``, ``{"event": "laplace", "scale": b, "count": n}``, ``{"event":
                "repeat_and_select", "mean": m, "shape": eta or "poisson", "of": [..]}`` and
                ``{"event": "non_private", "count": n}``. Counts default to 1; ``"part"`` to
                ``"private"``.
        Raises:
            BadInputError: With every mistake of every segment, one line each.
        """
        mistakes: list[str] = []
        plan = _plan_of(segments, "", mistakes)
        if mistakes:
            raise BadInputError("\n".join(mistakes))
        return plan


def _label(run: EventRun) -> tuple[str, Part]:
    return run.phase, run.part


def _segment_of(event: PrivacyEvent) -> dict[str, Any]:
    if isinstance(event, PoissonGaussian):
        return {
            "event": "poisson_gaussian",
            "noise_multiplier": event.noise_multiplier,
            "sample_rate": event.sample_rate,
        }
    if isinstance(event, Gaussian):
        return {"event": "gaussian", "noise_multiplier": event.noise_multiplier}
    if isinstance(event, Laplace):
        return {"event": "laplace", "scale": event.scale}
    if isinstance(event, RepeatAndSelect):
        of = event.of.to_json()
        return {"event": "repeat_and_select", "mean": event.mean, "shape": event.shape, "of": of}
    return {"event": "non_private"}


# Event name -> (required keys, key of the number of repetitions).
_FORMS: dict[str, tuple[tuple[str, ...], str]] = {
    "poisson_gaussian": (("noise_multiplier", "sample_rate"), "steps"),
    "gaussian": (("noise_multiplier",), "count"),
    "laplace": (("scale",), "count"),
    "repeat_and_select": (("mean", "shape", "of"), "count"),
    "non_private": ((), "count"),
}
_CHECKS: dict[str, Any] = {
    "noise_multiplier": lambda value: _validate.non_negative("noise_multiplier", value),
    "sample_rate": lambda value: _validate.in_unit_interval(
        "sample_rate", value, zero=True, one=True
    ),
    "scale": lambda value: _validate.non_negative("scale", value),
    "mean": lambda value: _validate.at_least("mean", value, 1),
    "shape": _selection_shape,
}
_TYPES: dict[str, Any] = {
    "poisson_gaussian": PoissonGaussian,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "repeat_and_select": RepeatAndSelect,
    "non_private": NonPrivate,
}


def _plan_of(segments: Any, where: str, mistakes: list[str]) -> Plan:
    if isinstance(segments, (str, bytes, Mapping)) or not isinstance(segments, Sequence):
        mistakes.append(f"{where or 'events: '}must be a list of segments, got {segments!r:.60}")
        return Plan()
    runs = []
    for index, segment in enumerate(segments):
        run = _run_of(segment, f"{where}segment {index}: ", mistakes)
        if run is not None:
            runs.append(run)
    return Plan(tuple(runs))


def _run_of(segment: Any, where: str, mistakes: list[str]) -> EventRun | None:
    """Return one segment as a run, or None after writing down what is wrong with it."""
    known_before = len(mistakes)
    if not isinstance(segment, Mapping):
        mistakes.append(f"{where}must be an object, got {segment!r:.60}")
        return None
    name = segment.get("event")
    if not isinstance(name, str) or name not in _FORMS:
        hint = did_you_mean(name, list(_FORMS)) if isinstance(name, str) else ""
        mistakes.append(
            f"{where}event must be one of {', '.join(_FORMS)}; got {name!r}"
            + (f" ({hint})" if hint else "")
        )
        return None
    required, count_key = _FORMS[name]
    allowed = ["event", *required, count_key, "phase", "part"]
    for key in segment:
        if key not in allowed:
            hint = did_you_mean(str(key), allowed)
            mistakes.append(f"{where}{name} has no key {key!r}" + (f", {hint}" if hint else ""))
    values: dict[str, Any] = {}
    for key in required:
        if key not in segment:
            mistakes.append(f"{where}{name} needs {key}")
        elif key == "of":
            values[key] = _plan_of(segment[key], f"{where}of: ", mistakes)
        else:
            values[key] = _attempt(_CHECKS[key], segment[key], where, mistakes)
    count = _attempt(
        lambda value: _validate.whole(count_key, value, low=1),
        segment.get(count_key, 1),
        where,
        mistakes,
    )
    phase = segment.get("phase", "train")
    if not isinstance(phase, str):
        mistakes.append(f"{where}phase must be a word, got {phase!r}")
    part = _attempt(
        lambda value: _validate.one_of("part", value, PARTS),
        segment.get("part", "private"),
        where,
        mistakes,
    )
    if len(mistakes) > known_before:
        return None
    return _attempt(
        lambda event: EventRun(event(**values), count, phase, part), _TYPES[name], where, mistakes
    )


def _attempt(check: Callable[[Any], Any], value: Any, where: str, mistakes: list[str]) -> Any:
    try:
        return check(value)
    except BadInputError as error:
        mistakes.append(f"{where}{error.message}")
        return None


def to_dp_event(plan: Plan) -> Any:
    """Return the plan as a ``dp_accounting.DpEvent``, the exchange format with other tools.

    Raises:
        BadInputError: The plan is about several parts, which no single event expresses.
    """
    if len({run.part for run in plan.runs}) > 1:
        raise BadInputError(
            "a DpEvent is about one part of the records", fix="convert plan.part(..) of each part"
        )
    import dp_accounting
    from dp_accounting import dp_event

    events = []
    for run in plan.runs:
        event = run.event
        if isinstance(event, PoissonGaussian):
            gaussian = dp_accounting.GaussianDpEvent(event.noise_multiplier)
            converted = dp_accounting.PoissonSampledDpEvent(event.sample_rate, gaussian)
        elif isinstance(event, Gaussian):
            converted = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        elif isinstance(event, Laplace):
            converted = dp_accounting.LaplaceDpEvent(event.scale)
        elif isinstance(event, RepeatAndSelect):
            shape = float("inf") if event.shape == "poisson" else event.shape
            converted = dp_event.RepeatAndSelectDpEvent(to_dp_event(event.of), event.mean, shape)
        else:
            converted = dp_accounting.NonPrivateDpEvent()
        events.append(dp_accounting.SelfComposedDpEvent(converted, run.count))
    return dp_accounting.ComposedDpEvent(events)
