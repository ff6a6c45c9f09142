"""A rough forecast of a sweep's time, disk and memory, measured on made-up records."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dpsweep.cluster.early import slots_early
from dpsweep.foundation.errors import is_failure
from dpsweep.planning.costs.memory import MemoryFigures, memory_figures
from dpsweep.planning.preflight import Preflight
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialTask, report_interval
from dpsweep.trainables.method import first_training_run

MEASURED = 3
_LIMIT_S = 20.0
_CHECKPOINTS = 3  # of a trial: the last two, and the best
# Of a study on this machine, beside its trials: 16 s from `run` to the first trial, in two runs on
# two busy cores (2026-11), and the best model at the end. A round figure.
_START_S = 20.0
# Of a trial beside its steps and evaluations: Tune starts it in an actor that is there, and each
# report saves a checkpoint and writes to three files that are synced. Medians of the journals of
# tests/golden/old_studies (2026-11), rounded up: 23 trials, 59 reports.
_TRIAL_S = 0.2
_REPORT_S = 0.06
# A second stage, the private run of accounting public or the search after a start, has new actors.
_STAGE_S = 10.0
_BYTES_PER_REPORT = 1000  # of ledger, journal and tracking store together; a round figure
_BYTES_PER_TRIAL = 20_000  # of trial.json, the Optuna rows and Tune's own files
# Of a study beside its trials, seen in small ones (2026-11), round: Optuna's file and Tune's;
# a new MLflow store and the best model in it; page and pictures, in the study and in that store.
_STUDY_BYTES, _STORE_BYTES, _PICTURES_BYTES = 500_000, 1_500_000, 4_500_000


@dataclass(frozen=True)
class Estimate:
    """Rough time and disk of a sweep whose trials all run to their ends.

    Attributes:
        trial_s: Shortest and longest trial of the sample in seconds, or None: not measured.
        slot_s: Seconds that all trials together occupy a slot, and the final run on other records.
        slots: Trials at once on this machine, or None for a cluster not looked at.
        wall_s: ``slot_s`` over the slots that are used.
        final_s: Seconds of that final run, which are in both; 0 without one.
        disk_bytes: Checkpoints (the last two and best of each trial), ledgers and journal; with
            tracking a new store, the best model, page and pictures. Not the features of records.
        fixed_bytes: Those of them that are there however many trials are run.
        checkpoint_bytes: Largest checkpoint that was measured.
        measured: Configurations that were measured.
        start_s: What a study takes to start and to end on a machine like this one, or None for a
            cluster not looked at. A round figure, in none of the others.
        memory: What each measured method needs, and how it is packed.
        reason: Why there is no figure (empty otherwise).
    """

    trial_s: tuple[float, float] | None = None
    slot_s: float | None = None
    slots: int | None = None
    wall_s: float | None = None
    final_s: float = 0.0
    disk_bytes: int | None = None
    fixed_bytes: int | None = None
    checkpoint_bytes: int | None = None
    measured: int = 0
    start_s: float | None = None
    memory: tuple[MemoryFigures, ...] = ()
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep plan --json`` prints (a stable interface)."""
        return {
            "seconds_per_trial": list(self.trial_s) if self.trial_s else None,
            "slot_seconds": self.slot_s,
            "slots": self.slots,
            "wall_seconds": self.wall_s,
            "final_run_seconds": self.final_s or None,
            "disk_bytes": self.disk_bytes,
            "disk_bytes_beside_trials": self.fixed_bytes,
            "checkpoint_bytes": self.checkpoint_bytes,
            "configurations_measured": self.measured,
            "start_seconds": self.start_s,
            "memory": [figures.to_dict() for figures in self.memory],
            "because": self.reason or None,
            "note": "rough: measured on made-up records on this machine; every trial to its end; "
            "without start_seconds, which Ray and the tracking store take",
        }


def expected_batch(task: TrialTask, num_private: int) -> float:
    """Return the expected number of records of a training step; 0 for an empty plan."""
    if not len(task.plan):
        return 0.0
    share = first_training_run(task.plan).event.expected_share()
    num_private = min(task.hparams.get("train.num_private") or num_private, num_private)
    if not task.is_private:  # its plan says nothing about batches; its hyperparameters may
        expected = task.hparams.get("batch.expected", num_private)
        return float(expected)
    return share * num_private


def local_slots(checked: Preflight) -> int | None:
    """Return how many trials run at once, None for a target that does not know."""
    spec = checked.spec
    slots = slots_early(spec.cluster, spec.resources)
    if slots is None:
        return None
    return min(slots, spec.search.max_concurrent or slots)


def estimate(
    checked: Preflight,
    tasks: Sequence[TrialTask],
    *,
    num_trials: int,
    limit_s: float = _LIMIT_S,
) -> Estimate:
    """Measure up to three sampled configurations and extrapolate to all trials.

    The cheapest, the median and the dearest by steps times batch are taken, one of each kind of
    model first. The time of a step is taken as proportional to its batch, with the factor of its
    kind. Loads torch.

    Args:
        checked: A checked spec.
        tasks: Feasible configurations drawn from its space.
        num_trials: Trials to extrapolate to.
        limit_s: Seconds after which no further configuration is measured.
    """
    slots = local_slots(checked)
    tasks = [task for task in tasks if len(task.plan)]
    if not tasks:
        return Estimate(slots=slots, reason="no feasible configuration to measure")
    if any(run.part == "public" for task in tasks for run in task.plan.runs):
        reason = "training on public records, after what reads private ones, is not forecast"
        return Estimate(slots=slots, reason=reason)
    from dpsweep.trainables.execution.measure import Measurement, measure

    spec, num_private = checked.spec, checked.info.num_private
    deadline = time.monotonic() + limit_s
    measured: list[tuple[TrialTask, Measurement]] = []
    reason = ""
    for task in _chosen(tasks, num_private):
        if time.monotonic() > deadline:
            reason = f"measuring took over {limit_s:g} s"
            break
        try:
            measurement = measure(
                checked.methods[task.method],
                task.hparams,
                task.plan,
                checked.info,
                threads=spec.resources.of(task.method).threads,
                device=spec.resources.of(task.method).device,
                deadline=deadline,
            )
        except BaseException as error:  # any method may refuse made-up records; it is no need
            if not is_failure(error):
                raise
            reason = f"{task.method} could not be measured: {type(error).__name__}: {error}"
            continue
        measured.append((task, measurement))
    if not measured:
        return Estimate(slots=slots, reason=reason.splitlines()[0])
    seconds = [_trial_s(checked, task, measured) for task in tasks]
    reports = fmean(_num_reports(checked, task) for task in tasks)
    checkpoint = max(m.checkpoint_bytes for _, m in measured)
    per_trial = _CHECKPOINTS * fmean(
        _like(task, measured, lambda m, t: m.checkpoint_bytes) for task in tasks
    )
    per_trial += _BYTES_PER_TRIAL + reports * _BYTES_PER_REPORT
    slot_s = num_trials * fmean(seconds)
    used = None if slots is None else min(slots, num_trials)
    # The last trials leave slots idle: no sweep ends before its longest trial.
    wall_s = None if used is None else max(slot_s / used, max(seconds))
    final_s = 0.0
    if checked.rest is not None:  # one run after them, in batches that grow with its records
        final_s = fmean(seconds) * checked.rest.info.num_private / checked.info.num_private
        slot_s += final_s
        wall_s = None if wall_s is None else wall_s + final_s
    fixed = _beside_trials(spec, checkpoint)
    return Estimate(
        trial_s=(min(seconds), max(seconds)),
        slot_s=slot_s,
        slots=slots,
        wall_s=wall_s,
        final_s=final_s,
        disk_bytes=round(num_trials * per_trial + fixed),
        fixed_bytes=fixed,
        checkpoint_bytes=checkpoint,
        measured=len(measured),
        start_s=None if slots is None else _START_S + _STAGE_S * (_num_stages(checked) - 1),
        memory=memory_figures(checked, [(task.method, m.memory) for task, m in measured], used),
    )


def _beside_trials(spec: SweepSpec, checkpoint_bytes: int) -> int:
    """Return the bytes that a study takes beside its trials."""
    num = _STUDY_BYTES
    if spec.tracking.uri is not None:
        num += _STORE_BYTES + checkpoint_bytes
        num += _PICTURES_BYTES if spec.tracking.pictures else 0
    return num


def _num_stages(checked: Preflight) -> int:
    spec = checked.spec
    return 1 + spec.has_final_run + (spec.start is not None)


def _kind(task: TrialTask) -> tuple[Any, ...]:
    """Return what makes steps of equal batches take different times."""
    return task.method, task.hparams.get("model.name")


def _work(task: TrialTask, num_private: int) -> float:
    return len(task.plan) * expected_batch(task, num_private)


def _chosen(tasks: Sequence[TrialTask], num_private: int) -> list[TrialTask]:
    """Return the median of each kind, the most frequent kinds first, then cheapest and dearest."""
    ordered = sorted(tasks, key=lambda task: (_work(task, num_private), task.trial))
    kinds: dict[tuple[Any, ...], list[TrialTask]] = {}
    for task in ordered:
        kinds.setdefault(_kind(task), []).append(task)
    groups = sorted(kinds.values(), key=len, reverse=True)
    picks = [group[len(group) // 2] for group in groups] + [ordered[0], ordered[-1]]
    return list({task.trial: task for task in picks}.values())[:MEASURED]


def _like(task: TrialTask, found: Sequence[Any], figure: Any) -> float:
    """Return the mean of a figure over what was measured of the task's kind, or over all."""
    kind = [pair for pair in found if _kind(pair[0]) == _kind(task)] or found
    return fmean(figure(measured, other) for other, measured in kind)


def _trial_s(checked: Preflight, task: TrialTask, found: Sequence[Any]) -> float:
    num_private = checked.info.num_private
    per_record = _like(
        task, found, lambda m, other: m.step_s / max(expected_batch(other, num_private), 1.0)
    )
    evaluation = _like(task, found, lambda m, other: m.evaluation_s)
    steps = len(task.plan) * max(expected_batch(task, num_private), 1.0) * per_record
    return _TRIAL_S + steps + _num_reports(checked, task) * (evaluation + _REPORT_S)


def _num_reports(checked: Preflight, task: TrialTask) -> int:
    report: Mapping[str, Any] = checked.spec.report.model_dump()
    every = report_interval(len(task.plan), report["every_steps"], report["points"])
    return -(-len(task.plan) // every) + len(checked.spec.rungs)
