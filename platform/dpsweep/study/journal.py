"""What a journal says: the state of a study and of its trials, folded from its events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsweep.study.trial import TrialReport, TrialState

_MOVING = (TrialState.RUNNING, TrialState.PAUSED)


@dataclass
class TrialView:
    """What the journal says of one trial.

    ``was_continued``: it was started again since its last report. ``metrics`` are those of its last
    report, ``delivered`` those of the model that it delivers (``TrialReport.delivered``).
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
    delivered: dict[str, float] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def delivered_step(self) -> int:
        """Step of the model that it delivers: the best checkpoint, or the last without a score."""
        return self.step if self.value is None else self.best_step

    @property
    def is_tested_elsewhere(self) -> bool:
        """Whether its test scores are of its last model, which is not the one it delivers.

        Earlier versions scored the last model, whichever was delivered.
        """
        return _tests(self.metrics) and not _tests(self.delivered)

    @property
    def is_unscored(self) -> bool:
        """Whether it ran to its end and has no score that it could be ranked by."""
        return self.state is TrialState.FINISHED and self.value is None


def on_test_records(metric: str) -> str:
    """Return the name of a validation score on test records.

    >>> on_test_records("validation/loss")
    'test/loss'
    """
    return f"test/{metric.partition('/')[2]}"


def _tests(metrics: Mapping[str, float]) -> bool:
    return any(name.startswith("test/") for name in metrics)


@dataclass
class StudyView:
    """What the journal says of a study.

    ``worked_ms`` is the time from first to last event of each launch, pauses between them left out;
    ``model_uris`` holds the models logged to the tracker, ``pretrained`` the address and SHA-256 of
    the public weights that trials may start from.
    """

    trials: dict[int, TrialView] = field(default_factory=dict)
    state: str = "new"
    first_ms: int = 0
    last_ms: int = 0
    worked_ms: int = 0
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

    def ended(self) -> dict[int, str | None]:
        """Return the state of each trial that has ended, and None for the others."""
        return {
            number: None if trial.state in _MOVING else trial.state.value
            for number, trial in self.trials.items()
        }

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
    event = record["event"]
    view.first_ms = view.first_ms or record["time_ms"]
    if event != "study_started" and view.state == "running":
        view.worked_ms += max(record["time_ms"] - view.last_ms, 0)
    view.last_ms = record["time_ms"]
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
    elif event in (
        "trial_started", "trial_report", "trial_charged", "trial_paused", "trial_ended"
    ):  # fmt: skip
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
    if record["event"] == "trial_charged":
        trial.charged = max(trial.charged, record["charged"])
        if trial.epsilon is not None and record["epsilon"] is not None:
            trial.epsilon = max(trial.epsilon, record["epsilon"])
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
    trial.delivered = _delivered(trial, record)
    if record["event"] == "trial_ended":
        trial.state, trial.reason = TrialState(record["state"]), record["reason"]


def _delivered(trial: TrialView, record: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of the model that a trial delivers, as far as they are known.

    Reports of earlier versions do not say: there it is what was reported at the best step, if the
    best value is among it.
    """
    if "delivered" in record:
        return dict(record["delivered"])
    value, step = record["value"], record["best_step"]
    if value is None:
        return trial.metrics
    points = [*trial.reports, {"step": trial.step, "metrics": record["metrics"]}]
    found = [p["metrics"] for p in points if p["step"] == step and value in p["metrics"].values()]
    return found[-1] if found else {}


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
                skipped=record.get("skipped", 0),
                done=record["event"] == "trial_ended",
                value=record["value"],
                best_step=record["best_step"],
                charged=record["charged"],
            )


def report_payload(report: TrialReport) -> dict[str, Any]:
    """Return the entry of a report."""
    finite = report.epsilon != float("inf")
    known = {"delivered": dict(report.delivered)} if report.delivered else {}
    return {
        "trial": report.trial,
        "step": report.step,
        "epsilon": report.epsilon if finite else None,
        "metrics": dict(report.metrics),
        "value": report.value,
        "best_step": report.best_step,
        **known,
        "charged": report.charged,
        "rung": report.rung,
        "skipped": report.skipped,
        "wall_s": round(report.wall_s, 3) or None,
    }
