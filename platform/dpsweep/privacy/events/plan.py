"""Plans: the finite sequence of privacy events that a trial will cause."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.privacy.events.base import PrivacyEvent, class_flaw
from dpsweep.privacy.events.table import EVENTS
from dpsweep.privacy.terms import SAMPLINGS

#: Whose records an event reads. A split that does not depend on the data makes the parts disjoint.
Part = Literal["private", "validation", "rest", "public"]
PARTS: tuple[Part, ...] = ("private", "validation", "rest", "public")
#: The private records that a search on a part of them does not read; ``private`` are then the part.
REST: Part = "rest"
#: The parts whose records are protected; each is charged by the events on itself alone.
CHARGED_PARTS: tuple[Part, ...] = ("private", "validation", "rest")
#: Phase of the steps that a plan begins its training with, at more noise than the rest of it.
PREFIX = "prefix"
#: Phases of training steps.
TRAINING = ("train", PREFIX)
#: Classes of events that are in the table.
_IN_TABLE: set[type[PrivacyEvent]] = set()


def _check_event(event: object) -> None:
    """Refuse what no ledger could be read with again."""
    if not isinstance(event, PrivacyEvent):
        raise BadInputError(f"not a privacy event: {event!r}")
    kind = type(event)
    if kind in _IN_TABLE:
        _check_again(event)
        return
    name = getattr(kind, "name", "")
    if name not in EVENTS or EVENTS[name] is not kind:
        raise BadInputError(
            f"not a privacy event of the table: {event!r}",
            because="a ledger that holds it could not be read",
            fix=f"an entry point of the name {name!r} in the group {EVENTS.group}",
        )
    flaw = class_flaw(kind)
    if flaw:
        raise BadInputError(f"{name} cannot be written to a ledger", because=flaw)
    _IN_TABLE.add(kind)
    _check_again(event)


def _check_again(event: PrivacyEvent) -> None:
    """Refuse an event of another package that JSON does not give back as it was."""
    if event.name not in EVENTS.outside():
        return
    again = type(event).from_json(event.to_json())
    if again != event:
        raise BadInputError(
            f"{event.name} is another event when it is read from a ledger",
            because=f"{event!r} becomes {again!r}",
        )


@dataclass(frozen=True)
class EventRun:
    """The same event ``count`` times in a row.

    Attributes:
        event: What happens at each of the positions.
        count: Number of positions, at least 1.
        phase: Which stage of the method causes it (``train``, ``prefix``, ``normalize``, ...).
        part: Whose records it reads: ``private``, ``validation``, ``rest`` (private ones that a
            search on a part of them leaves to its final run) or ``public`` (free).
    """

    event: PrivacyEvent
    count: int = 1
    phase: str = "train"
    part: Part = "private"

    def __post_init__(self) -> None:
        _check_event(self.event)
        validate.one_of("part", self.part, PARTS)
        object.__setattr__(self, "count", validate.whole("count", self.count, low=1))


@dataclass(frozen=True)
class Plan:
    """A finite sequence of privacy events; position t is the t-th of them.

    >>> from dpsweep.privacy.events import Gaussian, PoissonGaussian
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

    @property
    def prefix_end(self) -> int:
        """Position after the last step of the noisy prefix; 0 where there is none."""
        ends = (end for run, end in zip(self.runs, self._ends) if run.phase == PREFIX)
        return max(ends, default=0)

    def without(self, name: Part) -> Plan:
        """Return the events on all other parts of the records, in their order."""
        return Plan(tuple(run for run in self.runs if run.part != name))

    def moved(self, before: Part, after: Part) -> Plan:
        """Return the same events, those on one part as events on another."""
        return Plan(
            tuple(replace(run, part=after) if run.part == before else run for run in self.runs)
        )

    def labelled(self, part: Part) -> Plan:
        """Return the same events as events on ``part``."""
        return Plan(tuple(replace(run, part=part) for run in self.runs))

    @property
    def sampling(self) -> str:
        """How records enter the events: as all of them say, ``mixed``, or ``none``.

        Events on public records do not count.

        Raises:
            BadInputError: An event has a word that no statement can have.
        """
        kinds = {run.event.sampling for run in self.runs if run.part != "public"} - {"none"}
        for word in sorted(kinds - SAMPLINGS.keys()):
            validate.one_of("sampling of an event", word, tuple(SAMPLINGS))
        if not kinds:
            return "none"
        return kinds.pop() if len(kinds) == 1 else "mixed"

    @property
    def is_private(self) -> bool:
        """False if some event on protected records has no finite epsilon."""
        return all(run.event.is_private for run in self.runs if run.part != "public")

    def to_json(self) -> list[dict[str, Any]]:
        """Return the segments of an events file; floats survive ``json`` exactly."""
        segments = []
        for run in self.runs:
            segment = run.event.to_json()
            segment[run.event.count_key] = run.count
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
                "repeat_and_select", "mean": m, "shape": eta or "poisson", "of": [..]}``,
                ``{"event": "poisson_subset", "rate": p, "of": [..]}`` and ``{"event":
                "non_private", "count": n}``, or what events of installed packages have for keys.
                Counts default to 1; ``"part"`` to ``"private"``.
        Raises:
            BadInputError: With every mistake of every segment, one line each.
        """
        return cls.read(segments)

    @classmethod
    def read(cls, segments: Any, where: str = "") -> Plan:
        """Read segments, ``where`` before each mistake."""
        mistakes: list[str] = []
        if isinstance(segments, (str, bytes, Mapping)) or not isinstance(segments, Sequence):
            place = where or "events: "
            raise BadInputError(f"{place}must be a list of segments, got {segments!r:.60}")
        runs = [
            _run_of(segment, f"{where}segment {index}: ", mistakes)
            for index, segment in enumerate(segments)
        ]
        if mistakes:
            raise BadInputError("\n".join(mistakes))
        return cls(tuple(run for run in runs if run is not None))


def _label(run: EventRun) -> tuple[str, Part]:
    return run.phase, run.part


def _run_of(segment: Any, where: str, mistakes: list[str]) -> EventRun | None:
    """Return one segment as a run, or None after writing down all that is wrong with it."""
    if not isinstance(segment, Mapping):
        mistakes.append(f"{where}must be an object, got {segment!r:.60}")
        return None
    name = segment.get("event")
    if not isinstance(name, str) or name not in EVENTS:
        hint = did_you_mean(name, list(EVENTS)) if isinstance(name, str) else ""
        mistakes.append(
            f"{where}event must be one of {', '.join(EVENTS)}; got {name!r}"
            + (f" ({hint})" if hint else "")
        )
        return None
    num_before = len(mistakes)

    def attempt(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except BadInputError as error:
            mistakes.extend(where + line for line in error.message.splitlines())
            return None

    kind = attempt(lambda: EVENTS[name])
    if kind is None:
        return None
    event = attempt(lambda: kind.from_json(segment))
    key = kind.count_key
    count = attempt(lambda: validate.whole(key, segment.get(key, 1), low=1))
    phase = segment.get("phase", "train")
    if not isinstance(phase, str):
        mistakes.append(f"{where}phase must be a word, got {phase!r}")
    part = attempt(lambda: validate.one_of("part", segment.get("part", "private"), PARTS))
    if len(mistakes) > num_before:
        return None
    run: EventRun | None = attempt(lambda: EventRun(event, count, phase, part))
    return run


#: No event at all: it costs nothing.
NO_PLAN = Plan(())


def nested_plan(name: str, value: Any, owner: str) -> Plan:
    """Return the plan inside an event, whose records are those of the event itself.

    Args:
        name: Field of the event.
        value: Its value.
        owner: Name of the event.
    Raises:
        BadInputError: It is no plan, or names a part.
    """
    if not isinstance(value, Plan):
        raise BadInputError(f"{name} must be a Plan, got {type(value).__name__}")
    if any(run.part != "private" for run in value.runs):
        raise BadInputError(
            f"the events inside {owner} have no part of their own",
            fix=f"give the part of the {owner} itself; one {owner} for each part",
        )
    return value


def to_dp_event(plan: Plan) -> Any:
    """Return the plan as a ``dp_accounting.DpEvent``, the exchange format with other tools.

    Raises:
        BadInputError: The plan is about several parts, which no single event expresses, or an
            event has no such form.
    """
    if len({run.part for run in plan.runs}) > 1:
        raise BadInputError(
            "a DpEvent is about one part of the records", fix="convert plan.part(..) of each part"
        )
    import dp_accounting

    events = []
    for run in plan.runs:
        form = run.event.dp_event()
        if form is None:
            raise BadInputError(f"{run.event.name} has no form in dp_accounting")
        events.append(dp_accounting.SelfComposedDpEvent(form, run.count))
    return dp_accounting.ComposedDpEvent(events)
