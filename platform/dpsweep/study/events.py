"""Events of a journal: one frozen class for each kind, with the keys of its line.

Whoever writes or reads a journal does it by these classes. A line has more keys than its event:
``seq``, ``time_ms`` and ``crc`` are the journal's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, cast, get_type_hints

from dpsweep.foundation.shapes import check_of, fits
from dpsweep.study.trial import TrialReport, TrialState, Verdict


def _sparse(default: Any = None) -> Any:
    """Return a field that is left out of the line where it has its default."""
    return field(default=default, metadata={"is_sparse": True})


@dataclass(frozen=True)
class Event:
    """The fields that all kinds share.

    Attributes:
        seq: Number of its line, -1 before it is written.
        time_ms: When it was written, in milliseconds since 1970; 0 before.
    """

    kind: ClassVar[str] = ""

    seq: int = field(default=-1, kw_only=True, compare=False)
    time_ms: int = field(default=0, kw_only=True, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return its keys of a line, ``event`` first."""
        line = {"event": self.kind}
        for key in dataclasses.fields(self):
            value = getattr(self, key.name)
            is_left_out = key.metadata.get("is_sparse") and value == key.default
            if key.name not in _OF_THE_LINE and not is_left_out:
                line[key.name] = value
        return line

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Self:
        """Return the event of a line; keys that this version does not know are passed over.

        Raises:
            KeyError: A key is missing that every version has written.
            ValueError: A value is of another type than any version has written.
        """
        values = {}
        for key in _keys_of(cast(Any, cls)):
            if key.is_needed or (
                key.name in line and not (key.is_filled and line[key.name] is None)
            ):
                value = values[key.name] = line[key.name]
                if not key.check(value):
                    raise ValueError(f"{key.name} is {value!r:.40}")
        moment = line.get("time_ms", 0)
        if not fits(moment, int) or moment > _LAST_MS:
            raise ValueError(f"time_ms is {moment!r:.40}")
        return cls(**values)


_OF_THE_LINE = ("seq", "time_ms")
_LAST_MS = 253_402_300_799_000  # the end of the year 9999


class _Key(NamedTuple):
    """A key of a kind of event; one that is filled takes a null for its default."""

    name: str
    is_needed: bool
    is_filled: bool
    check: Callable[[Any], bool]


@cache
def _keys_of(kind: type[Event]) -> Sequence[_Key]:
    """Return the keys of a kind."""
    shapes, keys = get_type_hints(kind), []
    for key in dataclasses.fields(kind):
        is_filled = key.default_factory is not dataclasses.MISSING
        is_needed = key.default is dataclasses.MISSING and not is_filled
        keys.append(_Key(key.name, is_needed, is_filled, check_of(shapes[key.name])))
    return keys


@dataclass(frozen=True)
class StudyStarted(Event):
    """A launch: the spec, what every run inherits, and the privacy card as it stands.

    ``searched`` names the hyperparameters that may differ between trials, ``constants`` holds those
    that do not, ``datasets`` what the spec declares of its records: ``name``, ``context`` and
    ``records``, a declared number.
    """

    kind = "study_started"

    name: str
    spec_yaml: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    card: str | None = None
    searched: Sequence[str] = _sparse(())
    constants: Mapping[str, Any] | None = _sparse()
    datasets: Sequence[Mapping[str, Any]] = _sparse(())


@dataclass(frozen=True)
class Pretrained(Event):
    """Public weights are there; a file's have no ``epochs``, and so no run.

    ``address`` names the weights by what is in them, ``epochs`` holds the scores of each one,
    ``seconds`` is what they took together.
    """

    kind = "pretrained"

    about: str
    params: Mapping[str, Any]
    artifacts: Sequence[str]
    address: str
    sha256: str = ""
    epochs: Sequence[Mapping[str, float]] = field(default_factory=list)
    records: int | None = _sparse()
    holdout_accuracy: float | None = _sparse()
    seconds: float | None = _sparse()


@dataclass(frozen=True)
class TrialStarted(Event):
    """A trial begins, or is continued."""

    kind = "trial_started"

    trial: int
    hparams: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialReported(Event):
    """A report of a trial (``TrialReport``); an epsilon of None is infinite.

    ``delivered`` is None where there is none yet, and in lines of earlier versions.
    """

    kind = "trial_report"

    trial: int
    step: int
    epsilon: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    value: float | None = None
    best_step: int | None = None
    delivered: Mapping[str, float] | None = _sparse()
    charged: int = 0
    rung: int = 0
    skipped: int = 0
    wall_s: float | None = None
    memory_mb: float | None = _sparse()

    @classmethod
    def of(cls, report: TrialReport, **more: Any) -> Self:
        """Return the event of a report."""
        return cls(
            report.trial,
            report.step,
            or_none(report.epsilon),
            dict(report.metrics),
            report.value,
            report.best_step,
            dict(report.delivered) or None,
            report.charged,
            report.rung,
            report.skipped,
            round(report.wall_s, 3) or None,
            round(report.memory_mb) or None,
            **more,
        )

    def report(self) -> TrialReport:
        """Return the report, as far as a policy is shown it."""
        return TrialReport(
            trial=self.trial,
            step=self.step,
            metrics=dict(self.metrics),
            epsilon=math.inf if self.epsilon is None else self.epsilon,
            rung=self.rung,
            skipped=self.skipped,
            done=isinstance(self, TrialEnded),
            value=self.value,
            best_step=self.best_step or 0,
            charged=self.charged,
        )


@dataclass(frozen=True)
class TrialEnded(TrialReported):
    """A trial's end, with its last report; ``state`` is a ``TrialState``'s value."""

    kind = "trial_ended"

    state: str = TrialState.FINISHED.value
    reason: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True)
class TrialJudged(Event):
    """A policy's verdict on a report; a line of the decision log."""

    kind = "trial_verdict"

    trial: int
    step: int
    epsilon: float | None
    rung: int | None
    value: float | None
    cutoff: float | None
    verdict: str
    reason: str

    @classmethod
    def of(cls, report: TrialReport, verdict: Verdict) -> TrialJudged:
        """Return the event of a verdict."""
        return cls(
            report.trial,
            report.step,
            or_none(report.epsilon),
            verdict.rung,
            verdict.value,
            verdict.cutoff,
            verdict.decision.value,
            verdict.reason,
        )


@dataclass(frozen=True)
class TrialPaused(Event):
    """A trial waits until the scheduler continues it."""

    kind = "trial_paused"

    trial: int
    step: int
    epsilon: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class TrialCharged(Event):
    """The charge of an unfinished trial beyond what it reported: ``charged`` events.

    ``step`` is that of the model that it goes on from, or of its last report.
    """

    kind = "trial_charged"

    trial: int
    step: int
    charged: int
    epsilon: float | None


@dataclass(frozen=True)
class TrialInfeasible(Event):
    """A configuration that has no plan within the budget."""

    kind = "trial_infeasible"

    trial: int
    hparams: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class ModelLogged(Event):
    """The model of a trial is in the tracking store."""

    kind = "model_logged"

    trial: int
    uri: str
    artifacts: Sequence[str] = _sparse(())


@dataclass(frozen=True)
class StudySpent(Event):
    """The commitment of the study: its epsilon, and its share of the budget."""

    kind = "study_spent"

    epsilon: float
    share: float


@dataclass(frozen=True)
class StudyDowngraded(Event):
    """The study's claim was given up, for good; ``artifacts`` say so in the place of others."""

    kind = "study_downgraded"

    reason: str
    card: str | None = _sparse()
    artifacts: Sequence[str] = _sparse(())


@dataclass(frozen=True)
class CardRenewed(Event):
    """The privacy card of a study that has finished says more: its trials were audited since."""

    kind = "card_renewed"

    card: str
    artifacts: Sequence[str] = _sparse(())


@dataclass(frozen=True)
class StudyEnded(Event):
    """The end of a launch, with its final card and its decision log."""

    kind = "study_ended"

    state: str
    end_reason: str = ""
    card: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Sequence[str] = field(default_factory=list)


#: Kind -> class.
KINDS: Mapping[str, type[Event]] = {
    event.kind: event
    for event in (
        StudyStarted,
        Pretrained,
        TrialStarted,
        TrialReported,
        TrialEnded,
        TrialJudged,
        TrialPaused,
        TrialCharged,
        TrialInfeasible,
        ModelLogged,
        StudySpent,
        StudyDowngraded,
        CardRenewed,
        StudyEnded,
    )
}


def event_of(line: Mapping[str, Any]) -> Event | None:
    """Return the event of a line; None for a kind that only a newer version knows.

    Raises:
        KeyError: A key is missing that every version has written.
    """
    kind = KINDS.get(line["event"])
    return None if kind is None else kind.from_json(line)


def or_none(epsilon: float) -> float | None:
    """Return an epsilon as a line has it: JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else None
