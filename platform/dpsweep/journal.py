"""What a journal says: the state of a study and of its trials, folded from its events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsweep.trial import TrialReport, TrialState


@dataclass
class TrialView:
    """What the journal says of one trial.

    ``was_continued``: it was started again since its last report.
    """

    trial: int
    hparams: dict[str, Any] = field(default_factory=dict)
    state: TrialState = TrialState.RUNNING
    reason: str = ""
    was_continued: bool = False
    step: int = 0
    num_steps: int = 0
    rung: int = 0
    epsilon: float | None = 0.0
    charged: int = 0
    sampling: str = "none"
    records: str = "private"
    value: float | None = None
    best_step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class StudyView:
    """What the journal says of a study.

    ``model_uris`` holds the models logged to the tracker, ``pretrained`` the address and SHA-256 of
    the public weights that trials may start from.
    """

    trials: dict[int, TrialView] = field(default_factory=dict)
    state: str = "new"
    first_ms: int = 0
    last_ms: int = 0
    num_infeasible: int = 0
    end_reason: str = ""
    downgraded: str = ""
    spent_share: float = 0.0
    model_uris: dict[int, str] = field(default_factory=dict)
    pretrained: dict[str, str] | None = None

    def count(self, state: TrialState) -> int:
        """Return how many trials are in ``state``."""
        if state is TrialState.INFEASIBLE:
            return self.num_infeasible
        return sum(trial.state is state for trial in self.trials.values())

    def charged(self) -> dict[int, int]:
        """Return the number of events each trial is known to have charged."""
        return {number: trial.charged for number, trial in self.trials.items()}

    def best(self, *, maximize: bool) -> TrialView | None:
        """Return the finished trial with the best score; of equal ones the cheapest, the first."""
        sign = 1.0 if maximize else -1.0

        def rank(trial: TrialView) -> tuple[float, float, int]:
            epsilon = math.inf if trial.epsilon is None else trial.epsilon
            return sign * (trial.value or 0.0), -epsilon, -trial.trial

        return max(self.finished(), key=rank, default=None)

    def finished(self) -> Iterator[TrialView]:
        """Yield the trials that ran to their end and have a score."""
        for trial in self.trials.values():
            if trial.state is TrialState.FINISHED and trial.value is not None:
                yield trial


def fold(records: list[dict[str, Any]]) -> StudyView:
    """Return the state of a study from its journal; a repeated report changes nothing."""
    view = StudyView()
    for record in records:
        fold_one(view, record)
    return view


def fold_one(view: StudyView, record: Mapping[str, Any]) -> None:
    """Bring a view up to date with one more event."""
    view.first_ms = view.first_ms or record["time_ms"]
    view.last_ms = record["time_ms"]
    event = record["event"]
    if event == "study_started":
        view.state = "running"
    elif event == "study_ended":
        view.state, view.end_reason = record["state"], record.get("end_reason", "")
    elif event == "model_logged":
        view.model_uris[record["trial"]] = record["uri"]
    elif event == "pretrained":
        view.pretrained = {key: record[key] for key in ("address", "sha256")}
    elif event == "trial_infeasible":
        view.num_infeasible += 1
    elif event == "study_spent":
        view.spent_share = record["share"]
    elif event == "study_downgraded":
        view.downgraded = view.downgraded or record["reason"]
    elif event in ("trial_started", "trial_report", "trial_paused", "trial_ended"):
        _fold_trial(view, record)


def _fold_trial(view: StudyView, record: Mapping[str, Any]) -> None:
    trial = view.trials.setdefault(record["trial"], TrialView(record["trial"]))
    if record["event"] == "trial_started":
        trial.hparams = record["hparams"]
        trial.num_steps = record["plan"]["steps"]
        trial.sampling = record["tags"]["dp.sampling"]
        trial.records = record["tags"].get("dp.records", "private")
        trial.state, trial.was_continued = TrialState.RUNNING, True
        return
    if record["event"] == "trial_paused":
        trial.state, trial.reason = TrialState.PAUSED, record["reason"]
        return
    trial.was_continued = False
    trial.step, trial.epsilon = record["step"], record["epsilon"]
    trial.rung = record.get("rung", 0)
    trial.value, trial.best_step = record["value"], record["best_step"]
    trial.charged = max(trial.charged, record["charged"])
    if record["metrics"]:
        trial.metrics = record["metrics"]
        if not trial.reports or trial.reports[-1]["step"] < trial.step:
            point = {"step": trial.step, "epsilon": trial.epsilon, "metrics": trial.metrics}
            trial.reports.append(point)
    if record["event"] == "trial_ended":
        trial.state, trial.reason = TrialState(record["state"]), record["reason"]


def replay(records: list[dict[str, Any]]) -> Iterator[TrialReport]:
    """Yield the reports of a journal in their order, for a policy to be rebuilt from."""
    for record in records:
        if record["event"] in ("trial_report", "trial_ended"):
            epsilon = record["epsilon"]
            yield TrialReport(
                trial=record["trial"],
                step=record["step"],
                metrics=record["metrics"],
                epsilon=math.inf if epsilon is None else epsilon,
                rung=record.get("rung", 0),
                done=record["event"] == "trial_ended",
                value=record["value"],
                best_step=record["best_step"],
                charged=record["charged"],
            )


def report_payload(report: TrialReport) -> dict[str, Any]:
    """Return the entry of a report."""
    finite = report.epsilon != float("inf")
    return {
        "trial": report.trial,
        "step": report.step,
        "epsilon": report.epsilon if finite else None,
        "metrics": dict(report.metrics),
        "value": report.value,
        "best_step": report.best_step,
        "charged": report.charged,
        "rung": report.rung,
        "wall_s": round(report.wall_s, 3) or None,
    }
