"""A stage of a study: hands admitted trials to Ray Tune and writes down what Tune tells.

The order of every write is the order of the privacy law: a trial's cost is reserved and its files
are written before Tune hears of it; its actor charges before it runs; what it reports goes to the
journal first, then the policy's verdict, then what follows from it.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

from ray import tune

from dpsweep import entries
from dpsweep.cluster.base import ClusterTarget
from dpsweep.errors import SweepError
from dpsweep.preflight import Preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.dataset_ledger import DatasetLedger
from dpsweep.privacy.filter import RenyiFilter
from dpsweep.privacy.ledger import trial_covered
from dpsweep.privacy.study_ledger import StudyLedger
from dpsweep.schedulers.base import TrialPolicy
from dpsweep.schedulers.ray_adapter import PolicyScheduler, StopWhen, TuneListener
from dpsweep.searcher import TaskSearcher
from dpsweep.sources import TaskSource
from dpsweep.study import Observer, Study, TrialTask
from dpsweep.trainables.base import DPTrainable
from dpsweep.trainables.data import SweepData
from dpsweep.trainables.execution import ExecutionSettings
from dpsweep.trial import Decision, TrialReport, TrialState, Verdict

#: Infeasible configurations that a launch names, one message each.
MAX_REFUSALS_TOLD = 5


class Stage:
    """Runs the trials of one source to their ends.

    Args:
        checked: The study's checked spec.
        study: Open for writing.
        ledger: The study's ledger.
        filter: The Renyi filter that bounds the study, or None.
        data: The records that actors may see.
        observer: Who watches.
        policy: Stops and pauses trials; it has seen all earlier reports.
        fresh_attempts: True to begin a trial anew whose process died (accounting select).
    """

    def __init__(
        self,
        checked: Preflight,
        study: Study,
        ledger: StudyLedger,
        *,
        filter: RenyiFilter | None,
        data: SweepData,
        observer: Observer,
        policy: TrialPolicy,
        fresh_attempts: bool = False,
    ) -> None:
        self.checked, self.spec, self.study, self.ledger = checked, checked.spec, study, ledger
        self.filter, self.data, self.observer, self.policy = filter, data, observer, policy
        self.fresh_attempts = fresh_attempts
        self.running: set[int] = set()
        self.live: dict[int, TrialReport] = {}
        self.violation = ""
        self._max_concurrent = self._num_refused = 0
        self._source: TaskSource | None = None
        self._stop_reasons: dict[int, str] = {}
        self._ended_early: list[tuple[TrialReport, TrialState]] = []

    def execute(self, source: TaskSource, target: ClusterTarget) -> str:
        """Run the source's trials; return ``finished`` or ``interrupted``.

        Raises:
            SweepError: A trial violated its ledger, or no configuration is feasible.
        """
        spec, files = self.spec, self.study.files
        self._source = source
        for report, state in self._ended_early:
            source.on_end(report, state)
        trials = self.study.view.trials.values()
        paused = sorted(t.trial for t in trials if t.state is TrialState.PAUSED)
        self.live |= {number: self.study.last_report(number) for number in paused}
        self._max_concurrent = min(target.slots(), spec.search.max_concurrent or target.slots())
        # Tune's own limit is the number of CPUs, however small a trial's share of one is.
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(self._max_concurrent)
        searcher = TaskSearcher(
            source,
            max_concurrent=self._max_concurrent,
            running=self.running,
            paused=paused,
            is_held=lambda: scheduler.is_resuming,
            directory_of=files.trial,
        )
        scheduler = PolicyScheduler(
            self.policy,
            self,
            may_resume=self._may_resume,
            search_is_done=lambda: searcher.is_done,
            spends_rest=self.filter is not None,
            paused=[self.live[number] for number in paused],
        )
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(DPTrainable, settings=self._settings(), data=self.data),
                {"cpu": spec.resources.cpu, "gpu": spec.resources.gpu},
            ),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=scheduler,
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(files.path / "ray"),
                verbose=0,
                callbacks=[TuneListener(self)],
                stop=StopWhen(lambda: bool(self.violation)),
                failure_config=tune.FailureConfig(max_failures=spec.resources.max_failures),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        try:
            tuner.fit()
        except KeyboardInterrupt:  # a second Ctrl-C; after the first one, Tune clears up itself
            scheduler.release_actors()
            raise
        if searcher.failure is not None:
            raise searcher.failure
        if self.violation:
            raise SweepError(
                self.violation,
                fix="nothing more was run; do not trust this study before the cause is known",
            )
        view = self.study.view
        is_moving = view.count(TrialState.RUNNING) + view.count(TrialState.PAUSED) > 0
        return "interrupted" if is_moving or not source.is_exhausted else "finished"

    def _settings(self) -> ExecutionSettings:
        spec, validation = self.spec, self.spec.data.validation
        is_exact = validation.visibility == "public" or (
            validation.visibility == "exact" and spec.privacy.accounting == "unaccounted"
        )
        is_noisy = validation.visibility == "noisy"
        return ExecutionSettings(
            ledger=self.study.files.ledger,
            budget=self.checked.budget,
            accountant=spec.privacy.accountant,
            study_seed=spec.seed,
            metric=spec.search.metric,
            maximize=spec.search.mode == "max",
            report_every=spec.report.every_steps,
            report_points=spec.report.points,
            validation="exact" if is_exact else "noisy" if is_noisy else "hidden",
            validation_noise=self.checked.validation_noise,
            show_test=spec.data.test.visibility == "public",
            rungs=spec.rungs,
            filter=self.filter,
            fresh_attempts=self.fresh_attempts,
            device="cuda" if spec.resources.gpu else "cpu",
        )

    def admit(self, task: TrialTask) -> None:
        """Write a trial's task and its start, once its cost is reserved."""
        self.study.write_task(task)
        started = entries.trial_started(self.spec, task, self.study.view.pretrained)
        self.study.write("trial_started", **started)

    def refuse(self, trial: int, values: Mapping[str, Any], error: SweepError) -> None:
        """Write that a configuration has no plan within the budget."""
        self.study.write("trial_infeasible", trial=trial, hparams=dict(values), reason=str(error))
        self._num_refused += 1
        if self._num_refused > MAX_REFUSALS_TOLD:
            return
        terms = entries.terms(self.spec)
        self.observer.on_message(f"configuration {trial} is infeasible: {error.message} ({terms})")
        if self._num_refused == MAX_REFUSALS_TOLD:
            self.observer.on_message(
                "further infeasible configurations are written to the journal only; `dpsweep plan` "
                "shows their share of the space"
            )

    def replay(self, *, first: int = 0) -> None:
        """Show the policy all earlier reports, and carry out verdicts that a crash cut off.

        Args:
            first: Number of the first trial that the policy decides about.
        """
        verdicts: dict[int, Verdict] = {}
        for report in self.study.reports():
            if report.trial < first:
                continue
            verdicts[report.trial] = self.policy.on_report(report)
        for number, trial in sorted(self.study.view.trials.items()):
            verdict = verdicts.get(number)
            if trial.state is not TrialState.RUNNING or verdict is None:
                continue
            self.live[number] = self.study.last_report(number)
            if verdict.decision is Decision.STOP:
                self.on_verdict(self.live[number], verdict)
                self.on_end(number)
            elif verdict.decision is Decision.PAUSE and not trial.was_continued:
                self.on_verdict(self.live[number], verdict)
                self.on_pause(number)

    def end_unreserved(self, trial: int) -> None:
        """End a trial whose reservation was given back by a launch that died right after."""
        self.live[trial] = self.study.last_report(trial)
        self._stop_reasons[trial] = "its reservation had been given back when the driver was killed"
        self.on_end(trial)

    def on_report(self, report: TrialReport) -> TrialReport:
        """Write down a report and return it; the last one of a trial is written with its end."""
        report = self._screened(report)
        self.live[report.trial] = report
        if report.failure.startswith("privacy violation"):
            self.violation = report.failure
            self.downgrade(f"trial {report.trial}: {report.failure}")
        if self._source is not None:
            self._source.on_report(report)
        if not report.done:
            self.study.write_report(report)
            self.observer.on_view(self.study.view)
        return report

    def _screened(self, report: TrialReport) -> TrialReport:
        """Take out metrics that no actor may report, and give up the claim if there are any."""
        shown = {
            name: value
            for name, value in report.metrics.items()
            if name in self.checked.released_metrics
        }
        hidden = sorted(set(report.metrics) - set(shown))
        if hidden:
            self.downgrade(f"a trial reported {', '.join(hidden)}, which may not leave its actor")
        # Time tells of batch sizes. Dates of events tell it too, less finely: a side channel.
        is_timed = self.spec.privacy.accounting == "unaccounted"
        wall_s = report.wall_s if is_timed else 0.0
        return dataclasses.replace(report, metrics=shown, wall_s=wall_s)

    def on_verdict(self, report: TrialReport, verdict: Verdict) -> None:
        """Write down why a policy stopped, paused or continued a trial."""
        self.study.write("trial_verdict", **entries.verdict(report, verdict))
        if verdict.decision is Decision.STOP:
            self._stop_reasons[report.trial] = verdict.reason

    def on_pause(self, trial: int) -> None:
        """Give back what a paused trial has reserved and not charged."""
        self.running.discard(trial)
        report = self.live[trial]
        self.ledger.settle(trial, TrialState.PAUSED.value, at_least=report.charged)
        self.study.write(
            "trial_paused",
            trial=trial,
            step=report.step,
            epsilon=report.epsilon if math.isfinite(report.epsilon) else None,
            reason="paused by the scheduler",
        )
        self._account()

    def _may_resume(self, trial: int) -> bool:
        """Take a slot for a paused trial and reserve its cost again, if both can be had."""
        if len(self.running) >= self._max_concurrent:
            return False
        task = self.study.files.task(trial)
        if not self.ledger.reserve(trial, task.full_plan, epsilon=task.planned_epsilon):
            return False
        self.running.add(trial)
        self.admit(task)
        return True

    def on_end(self, trial: int, *, died: bool = False) -> None:
        """Write down how a trial ended."""
        self.running.discard(trial)
        report = self.live.pop(trial, TrialReport(trial, 0, {}, 0.0))
        if died:
            fix = f"its process died more than {self.spec.resources.max_failures} times"
            state, reason = TrialState.FAILED, fix
        elif report.failure:
            state, reason = TrialState.FAILED, report.failure
        elif report.done:
            state, reason = TrialState.FINISHED, report.reason
        else:
            state = TrialState.PRUNED
            reason = self._stop_reasons.pop(trial, "stopped")
        may_live = died or bool(report.failure)  # then its process may still hold the ledger
        self.ledger.settle(trial, state.value, died=may_live, at_least=report.charged)
        report = dataclasses.replace(report, epsilon=self._charged_epsilon(trial))
        files = self.study.files
        released = entries.released(self.spec, files.task(trial), state)
        artifacts = entries.artifacts(files, trial)
        self.study.write_end(report, state, reason, released=released, artifacts=artifacts)
        if self._source is None:
            self._ended_early.append((report, state))
        else:
            self._source.on_end(report, state)
        self._account()
        if state is TrialState.FAILED:
            self.observer.on_message(f"trial {trial} failed: {reason}")
        self.observer.on_view(self.study.view)

    def _account(self) -> None:
        """Write down what the study has committed, and a claim that was given up."""
        if self.filter is not None and self.ledger.committed is not None:
            committed = max(self.ledger.committed.values())
            self.study.write(
                "study_spent",
                epsilon=self.filter.epsilon(committed),
                share=committed / self.filter.budget,
            )
        if self.ledger.downgraded:
            self.downgrade(self.ledger.downgraded)

    def downgrade(self, reason: str) -> None:
        """Give up the study's claim for good, and say why."""
        if self.spec.privacy.accounting == "unaccounted" or self.study.view.downgraded:
            return
        give_up_claim(self.study, self.ledger, reason)
        self.observer.on_message(f"downgraded to accounting unaccounted, for good: {reason}")

    def _charged_epsilon(self, trial: int) -> float:
        """Return what the ledger file says, which outlives the trial's process."""
        if not self.study.files.task(trial).is_private:
            return math.inf
        known = 0 if self.fresh_attempts else self.study.view.trials[trial].charged
        inherited = self.study.files.task(trial).inherited
        spent = trial_covered(self.study.files.ledger, trial, inherited, at_least=known)
        privacy = self.spec.privacy
        return epsilon_of(spent, delta=privacy.delta, accountant=privacy.accountant)


def give_up_claim(study: Study, ledger: StudyLedger, reason: str) -> None:
    """Write durably, wherever the study's claim is kept, that it does not hold any more.

    The dataset ledger first: whatever happens to this process then, it admits no other study.
    """
    dataset_ledger = study.spec.privacy.dataset_ledger
    try:
        if dataset_ledger is not None:
            DatasetLedger(dataset_ledger).break_claim(ledger.study_id, reason)
    finally:
        ledger.downgrade(reason)
    study.write("study_downgraded", **entries.study_downgraded(study.files, reason))
