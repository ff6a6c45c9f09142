"""The core loop. A sweep, from its spec to its best configuration:

    spec -> preflight            everything that can be wrong, before anything starts
         -> ClusterTarget        a Ray cluster, joined or started
         -> OptunaSearcher       suggests hyperparameters; each becomes a plan or is infeasible
         -> StudyLedger.reserve  the plan's cost, durably, before launch
         -> DPTrainable          charges, runs, saves, evaluates, reports, segment by segment
         -> TrialPolicy          continue, pause or stop, from reports alone
         -> journal -> Tracker   what happened, durably; the tracking store follows
         -> SweepResult          the best configuration, with what its epsilon depends on

Running the same spec again continues the study: trials that did not end resume from their own
checkpoints, and what they had charged stays charged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ray import tune

from dpsweep import entries
from dpsweep.cluster import TARGETS
from dpsweep.cluster.base import ClusterTarget
from dpsweep.delivery import deliver, log_best_model
from dpsweep.errors import StudyError, SweepError
from dpsweep.preflight import Preflight, preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.ledger import StudyLedger, study_spent, trial_spent
from dpsweep.results import SweepResult
from dpsweep.schedulers import POLICIES
from dpsweep.schedulers.ray_adapter import PolicyScheduler, StopWhen, TuneListener
from dpsweep.searcher import OptunaSearcher, open_optuna_study
from dpsweep.spec import SweepSpec
from dpsweep.study import Observer, Study, StudyFiles, TrialTask
from dpsweep.tracking import open_spool
from dpsweep.trainables.base import DPTrainable
from dpsweep.trainables.data import SweepData, load_dataset
from dpsweep.trainables.execution import ExecutionSettings
from dpsweep.trial import TrialReport, TrialState


def run_sweep(spec: SweepSpec, *, observer: Observer | None = None) -> SweepResult:
    """Run a sweep, or continue it, and return its results.

    Guarantees:
        No private record is read by training before its charge is on disk; no trial passes
        ``privacy.trial_epsilon``. Under ``accounting: unaccounted`` no epsilon covers the search.

    Args:
        spec: A valid spec.
        observer: Who watches.
    Raises:
        SpecError, DataError, ResourceError, StudyError: Bad input; nothing was started.
        SweepError: The study had to stop; running it again continues it.
    """
    observer = observer or Observer()
    checked = preflight(spec)
    TARGETS[spec.cluster.target].refuse_early(spec.cluster, spec.resources)
    data = load_dataset(spec.data)
    study = Study(spec)
    with contextlib.ExitStack() as stack:
        stack.callback(study.close)
        study.check_data(data.content_hash)
        if not 0.9 < len(data.parts["private"][1]) / data.info.num_private < 1.1:
            observer.on_message(
                f"note: data.num_records declares {data.info.num_private} private records, and the "
                "data have over 10% more or fewer; sampling follows the declaration"
            )
        ledger = stack.enter_context(contextlib.closing(StudyLedger(study.files.ledger)))
        run = _Run(checked, study, ledger, data, observer)
        if run.is_complete and study.view.state == "finished":
            observer.on_message(f"study {spec.name!r} has finished already; nothing to run")
            with open_spool(study.files, spec.tracking, observer.on_message) as spool:
                log_best_model(checked, study, spool, data, observer)
                deliver(spool, observer)
            return SweepResult(study.files)
        target = TARGETS[spec.cluster.target](spec.cluster, spec.resources, study.files.path)
        stack.enter_context(target)
        study.write("study_started", **entries.study_started(spec, study.files))
        spool = stack.enter_context(open_spool(study.files, spec.tracking, observer.on_message))
        state = "failed"
        try:
            state = run.execute(target)
            if state == "finished":
                log_best_model(checked, study, spool, data, observer)
        finally:
            study.write("study_ended", **entries.study_ended(study.files, state))
            deliver(spool, observer)
    return SweepResult(study.files)


class _Run:
    """One launch of a study: hands admitted trials to Tune and writes down what Tune tells."""

    def __init__(
        self,
        checked: Preflight,
        study: Study,
        ledger: StudyLedger,
        data: SweepData,
        observer: Observer,
    ) -> None:
        self.checked, self.study, self.ledger = checked, study, ledger
        self.data, self.observer = data, observer
        self.spec = checked.spec
        view = study.view
        self.unfinished = [
            study.files.task(number)
            for number, trial in sorted(view.trials.items())
            if trial.state is TrialState.RUNNING
        ]
        self.num_admitted = len(view.trials)
        study_spent(study.files.ledger, view.charged())  # refuses a study that lost a ledger
        self.live: dict[int, TrialReport] = {}
        self.violation = ""

    @property
    def is_complete(self) -> bool:
        """True when nothing is left to run."""
        return not self.unfinished and self.num_admitted >= self.checked.num_trials

    def execute(self, target: ClusterTarget) -> str:
        """Run every trial to its end; return ``finished`` or ``interrupted``."""
        spec = self.spec
        for task in self.unfinished:
            self.observer.on_message(f"trial {task.trial}: continuing")
            self._write_start(task)
        if self.num_admitted and not self.study.files.optuna.exists():
            raise _lost_optuna(self.study.files)
        slots = min(target.slots(), spec.search.max_concurrent or target.slots())
        searcher = OptunaSearcher(
            spec,
            open_optuna_study(spec, self.study.files.optuna, self.checked.space),
            self.checked.space,
            admit=self._admit,
            on_infeasible=self._refuse,
            unfinished=self.unfinished,
            num_admitted=self.num_admitted,
            max_concurrent=slots,
            directory_of=self.study.files.trial,
        )
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(DPTrainable, settings=self._settings(), data=self.data),
                {"cpu": spec.resources.cpu, "gpu": spec.resources.gpu},
            ),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=PolicyScheduler(POLICIES[spec.scheduler.type]()),
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(self.study.files.path / "ray"),
                verbose=0,
                callbacks=[TuneListener(self)],
                stop=StopWhen(lambda: bool(self.violation)),
                failure_config=tune.FailureConfig(max_failures=spec.resources.max_failures),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        tuner.fit()
        if searcher.failure is not None:
            raise searcher.failure
        if self.violation:
            raise SweepError(
                self.violation,
                fix="nothing more was run; do not trust this study before the cause is known",
            )
        running = self.study.view.count(TrialState.RUNNING)
        return "finished" if searcher.is_exhausted and not running else "interrupted"

    def _settings(self) -> ExecutionSettings:
        spec = self.spec
        validation = spec.data.validation.visibility
        return ExecutionSettings(
            ledger=self.study.files.ledger,
            budget=self.checked.budget,
            accountant=spec.privacy.accountant,
            study_seed=spec.seed,
            metric=spec.search.metric,
            maximize=spec.search.mode == "max",
            report_every=spec.report.every_steps,
            report_points=spec.report.points,
            show_validation=validation == "public"
            or (validation == "exact" and spec.privacy.accounting == "unaccounted"),
            show_test=spec.data.test.visibility == "public",
            device="cuda" if spec.resources.gpu else "cpu",
        )

    def _admit(self, trial: int, values: Mapping[str, Any]) -> TrialTask:
        """Plan a trial, reserve its cost, store its task: in this order, before it can start."""
        if trial in self.study.view.trials:
            raise _lost_optuna(self.study.files)
        task = self.checked.admit(trial, values)
        self.ledger.reserve(trial, task.plan, epsilon=task.planned_epsilon)
        self.study.write_task(task)
        self._write_start(task)
        return task

    def _write_start(self, task: TrialTask) -> None:
        self.study.write("trial_started", **entries.trial_started(self.spec, task))

    def _refuse(self, trial: int, values: Mapping[str, Any], error: SweepError) -> None:
        self.study.write("trial_infeasible", trial=trial, hparams=dict(values), reason=str(error))
        privacy = self.spec.privacy
        self.observer.on_message(
            f"configuration {trial} is infeasible: {error.message} (delta {privacy.delta:g}, "
            f"{self.spec.data.privacy_unit}, {privacy.neighboring_relation}, Poisson sampling, "
            f"{privacy.accountant}, {privacy.accounting})"
        )

    def on_report(self, report: TrialReport) -> None:
        """Write down a report; the last one of a trial is written with its end."""
        self.live[report.trial] = report
        if report.failure.startswith("privacy violation"):
            self.violation = report.failure
        if not report.done:
            self.study.write_report(report)
            self.observer.on_view(self.study.view)

    def on_end(self, trial: int, *, died: bool = False) -> None:
        """Write down how a trial ended."""
        report = self.live.pop(trial, TrialReport(trial, 0, {}, 0.0))
        if died:
            fix = f"its process died more than {self.spec.resources.max_failures} times"
            state, reason = TrialState.FAILED, fix
        elif report.failure:
            state, reason = TrialState.FAILED, report.failure
        elif report.done:
            state, reason = TrialState.FINISHED, report.reason
        else:
            state, reason = TrialState.PRUNED, "stopped by the scheduler"
        self.ledger.settle(trial, state.value)
        report = dataclasses.replace(report, epsilon=self._charged_epsilon(trial))
        self.study.write_end(report, state, reason, entries.artifacts(self.study.files, trial))
        if state is TrialState.FAILED:
            self.observer.on_message(f"trial {trial} failed: {reason}")
        self.observer.on_view(self.study.view)

    def _charged_epsilon(self, trial: int) -> float:
        """Return what the ledger file says, which outlives the trial's process."""
        if not self.study.files.task(trial).is_private:
            return math.inf
        known = self.study.view.trials[trial].charged
        spent = trial_spent(self.study.files.ledger, trial, at_least=known)
        privacy = self.spec.privacy
        return epsilon_of(spent, delta=privacy.delta, accountant=privacy.accountant)


def _lost_optuna(files: StudyFiles) -> StudyError:
    """Describe a study whose trial numbers would be given out a second time."""
    return StudyError(
        f"{files.optuna} does not know all trials of the journal",
        because="it was deleted, or replaced by an older copy",
        fix="restore it, or start a new study under another name",
    )
