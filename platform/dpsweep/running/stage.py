"""A stage of a study: hands admitted trials to Ray Tune and writes down what Tune tells.

The order of every write is the order of the privacy law: a trial's cost is reserved and its files
are written before Tune hears of it; its actor charges before it runs; what it reports goes to the
journal first, then the policy's verdict, then what follows from it.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

from dpsweep.cluster.base import ClusterTarget
from dpsweep.foundation.errors import StudyError, SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import check_complete, trial_file, trial_spent
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.composition.base import Composition
from dpsweep.running import entries
from dpsweep.running.ending import charged_epsilon, said_lost
from dpsweep.running.failing import Deaths, FailingSource, refuse_unwritten
from dpsweep.running.giving_up import give_up_aloud
from dpsweep.running.handing_on import HandingOn
from dpsweep.running.recovery import LOST
from dpsweep.running.traces import TRACES, closed
from dpsweep.running.tuner import make_tuner, run_trials, settings_of, share_of
from dpsweep.schedulers.base import TrialPolicy, promotion
from dpsweep.schedulers.hanging import HangWatch
from dpsweep.schedulers.keeping import KeptProcesses
from dpsweep.schedulers.ray_adapter import Ask, PolicyScheduler, TuneListener
from dpsweep.search.searcher import TaskSearcher
from dpsweep.search.sources import TaskSource
from dpsweep.spec import facts
from dpsweep.study.events import StudySpent, TrialInfeasible, TrialJudged, TrialPaused, or_none
from dpsweep.study.recall import Recall
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import Decision, TrialReport, TrialState, TrialTask, Verdict
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.supplies import NO_SUPPLIES, Supplies
from dpsweep.trainables.execution.checkpoint_files import find_resumption
from dpsweep.trainables.execution.settings import NOT_RELEASED, ExecutionSettings

#: Infeasible configurations that a launch names, one message each.
MAX_REFUSALS_TOLD = 5
_NOT_LOGGED = "interrupted: the best model is logged when the same command is run again"


class Stage:
    """Runs the trials of one source to their ends.

    Args:
        checked: The study's checked spec.
        study: Open for writing.
        ledger: The study's ledger.
        composition: What all trials together may spend, or None.
        data: The records that actors may see.
        supplies: What they are handed besides.
        observer: Who watches.
        policy: Stops and pauses trials; it has seen all earlier reports.
        fresh_attempts: True to begin a trial anew whose process died (accounting select).
        hand_on: Hears of ends, and of the process of the last trial, when none is left.
    """

    def __init__(
        self,
        checked: Preflight,
        study: Study,
        ledger: StudyLedger,
        *,
        composition: Composition | None,
        data: SweepData,
        supplies: Supplies = NO_SUPPLIES,
        observer: Observer,
        policy: TrialPolicy,
        fresh_attempts: bool = False,
        hand_on: HandingOn | None = None,
    ) -> None:
        self.checked, self.spec, self.study, self.ledger = checked, checked.spec, study, ledger
        self.composition, self.observer, self.policy = composition, observer, policy
        self.data, self.supplies = data, supplies
        self.fresh_attempts, self._hand_on = fresh_attempts, hand_on
        self.running, self.live = set[int](), dict[int, TrialReport]()
        at = study.spec.privacy.dataset_ledger
        self._dataset = None if at is None else DatasetLedger(at)
        self._notes: set[str] = set()
        self._max_concurrent = self._num_refused = 0
        self._source: TaskSource | None = None
        self._stop_reasons: dict[int, str] = {}
        self._deaths, self.violation = Deaths(self.spec.resources), ""
        self._ended_early: list[tuple[TrialReport, TrialState]] = []
        self.tune_path: FilePath | None = None  # of Tune's traces; None: in the study

    def execute(self, source: TaskSource, target: ClusterTarget) -> str:
        """Run the source's trials; return ``finished`` or ``interrupted``.

        Raises:
            RayLostError: Ray has ended under the trials.
            SweepError: A trial violated its ledger, no configuration is feasible, or what happens
                cannot be written down.
        """
        spec, files, view = self.spec, self.study.files, self.study.view
        self.begin(source)
        source = self._source = FailingSource(source, is_hidden=self.fresh_attempts)
        paused = sorted(n for n, t in view.trials.items() if t.state is TrialState.PAUSED)
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
            share_of=lambda trial: share_of(trial, spec.resources, files),
        )
        scheduler = PolicyScheduler(
            self.policy,
            self,
            may_resume=self._may_resume,
            search_is_done=lambda: searcher.is_done,
            spends_rest=self.composition is not None,
            paused=[self.live[number] for number in paused],
            kept=KeptProcesses.of(spec.resources, self._max_concurrent),
        )
        recall, free = Recall(files.path), functools.partial(self._on_free, searcher)
        tuner = make_tuner(
            spec.resources.max_failures,
            searcher,
            scheduler,
            [TuneListener(self, free, lambda: recall.has_begun), self._watch()],
            storage=closed(self.tune_path or files.path / TRACES),
            settings=dataclasses.replace(self.settings(), recall=recall.word),
            data=self.data,
            must_stop=lambda: bool(self.violation),
            say=self.observer.on_message,
        )
        say = self.observer.on_message
        is_interrupted = run_trials(
            tuner, scheduler, recall, lambda text: say(text if self._is_moving else _NOT_LOGGED)
        )
        if searcher.failure is not None:
            raise searcher.failure
        if self.violation:
            raise SweepError(
                self.violation,
                fix="nothing more was run; do not trust this study before the cause is known",
            )
        is_interrupted |= self._is_moving or not source.is_exhausted
        return "interrupted" if is_interrupted else "finished"

    @property
    def _is_moving(self) -> bool:
        view = self.study.view
        return view.count(TrialState.RUNNING) + view.count(TrialState.PAUSED) > 0

    def _on_free(self, searcher: TaskSearcher, ask: Ask) -> None:
        """Tell of an end, and of the last trial's process, which is asked for the best model."""
        if self._hand_on is not None and not self.violation:
            self._hand_on.expect()
            if not self._is_moving and searcher.is_over():
                self._hand_on.take(ask)

    def _watch(self) -> HangWatch:
        minutes = self.spec.resources.hang_minutes
        return HangWatch(
            None if minutes is None else 60 * minutes,
            lambda trial: self.observer.on_message(self._deaths.note_hang(trial)),
        )

    def begin(self, source: TaskSource) -> None:
        """Tell a source what becomes of trials, those first that ended before it was there."""
        self._source = source
        for report, state in self._ended_early:
            source.on_end(report, state)

    def settings(self) -> ExecutionSettings:
        """Return what the trials of this stage run by."""
        return settings_of(
            self.spec,
            self.checked,
            self.study.files.ledger,
            composition=self.composition,
            fresh_attempts=self.fresh_attempts,
            is_timed=self._is_timed,
            supplies=self.supplies,
        )

    def admit(self, task: TrialTask) -> None:
        """Write a trial's task and its start, once its cost is reserved."""
        if self._dataset is not None and task.records != "public":
            attempt = self.ledger.on_dataset[task.trial]
            self._dataset.note_trial(self.ledger.study_id, task.trial, attempt)
        self.study.write_task(task)
        self.study.write(entries.trial_started(self.spec, task, self.study.view.pretrained))
        self.observer.on_view(self.study.view)

    def refuse(self, trial: int, values: Mapping[str, Any], error: SweepError) -> None:
        """Write that a configuration has no plan within the budget."""
        self.study.write(TrialInfeasible(trial, dict(values), str(error)))
        self._num_refused += 1
        if self._num_refused > MAX_REFUSALS_TOLD:
            return
        reason = facts.with_terms(self.spec, error.message)
        self.observer.on_message(f"configuration {trial} is infeasible: {reason}")
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
            elif verdict.decision is Decision.PAUSE and trial.is_unexplained:
                # The launch died before it was written why it goes on.
                self.on_verdict(self.study.last_report(number), promotion(self.policy, number))

    def end_unreserved(self, trial: int) -> None:
        """End a trial whose reservation was given back by a launch that died right after."""
        self.live[trial] = self.study.last_report(trial)
        self._stop_reasons[trial] = "its reservation had been given back when the driver was killed"
        self.on_end(trial)

    def end_lost(self, trial: int) -> None:
        """End a trial that cannot go on, because its files are lost."""
        self.live[trial] = dataclasses.replace(self.study.last_report(trial), failure=LOST)
        self.on_end(trial)

    def say_continuing(self, trial: int, what: str = "") -> None:
        """Say where a trial goes on, what is damaged, and what ends without notice have lost.

        Raises:
            LedgerError: Its ledger has fewer charges than its checkpoint.
        """
        files = self.study.files
        resumption = find_resumption(files.trial(trial))
        if resumption.found is not None:
            num_charged = len(trial_spent(files.ledger, trial))
            charged = resumption.found.meta["charged"]
            check_complete(trial_file(files.ledger, trial), num_charged, charged)
        self._tell_note(trial, resumption.note)
        lost = said_lost(files.ledger, trial, resumption.step)
        self.observer.on_message(f"trial {trial}: continuing{what} at step {resumption.step}{lost}")

    def _tell_note(self, trial: int, note: str) -> None:
        """Say each line of a note once a trial; of scores that stay in actors, once a study."""
        for line in note.splitlines():
            text = f"trial {trial}: {line}"
            key = line if line.endswith(NOT_RELEASED) else text
            if key not in self._notes:
                self._notes.add(key)
                self.observer.on_message(text)

    def on_report(self, report: TrialReport) -> TrialReport:
        """Write down a report and return it; the last one of a trial is written with its end."""
        refuse_unwritten(report, self.study)
        report = self._screened(report)
        self.live[report.trial] = report
        self._tell_note(report.trial, report.note)
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
        released = self.checked.admission.released_metrics
        shown, delivered = (
            {name: value for name, value in metrics.items() if name in released}
            for metrics in (report.metrics, report.delivered)
        )
        reported = set(report.metrics) | set(report.delivered)
        hidden = sorted(reported - set(shown) - set(delivered))
        if hidden:
            self.downgrade(f"a trial reported {', '.join(hidden)}, which may not leave its actor")
        if not self._is_timed:
            report = dataclasses.replace(report, wall_s=0.0, memory_mb=0.0)
        return dataclasses.replace(report, metrics=shown, delivered=delivered)

    @property
    def _is_timed(self) -> bool:
        """Say whether run times may be shown, which tell of batch sizes.

        The times at which events were written down tell it too, to whoever may read the study or
        its tracking store: timing is not covered.
        """
        return not self.spec.privacy.mode.is_accounted

    def on_verdict(self, report: TrialReport, verdict: Verdict) -> None:
        """Write down why a policy stopped, paused or continued a trial, unless it is written."""
        judged = TrialJudged.of(report, verdict)
        if self.study.view.trials[report.trial].judged != judged:
            self.study.write(judged)
        if verdict.decision is Decision.STOP:
            self._stop_reasons[report.trial] = verdict.reason

    def on_pause(self, trial: int) -> None:
        """Give back what a paused trial has reserved and not charged."""
        self.running.discard(trial)
        report = self.live[trial]
        self.ledger.settle(trial, TrialState.PAUSED.value, at_least=report.charged)
        epsilon = or_none(report.epsilon)
        self.study.write(TrialPaused(trial, report.step, epsilon, "paused by the scheduler"))
        self._account()

    def _may_resume(self, trial: int) -> bool:
        """Take a slot for a paused trial and reserve its cost again, if both can be had."""
        if len(self.running) >= self._max_concurrent:
            return False
        try:
            task = self.study.files.task(trial)
        except StudyError as error:
            self._tell_note(trial, f"{error.message}; it stays paused")
            return False
        if not task.reserve(self.ledger, is_promoted=True):
            return False
        self.running.add(trial)
        self.admit(task)
        return True

    def on_end(self, trial: int, *, died: bool = False) -> None:
        """Write down how a trial ended."""
        self.running.discard(trial)
        report = self.live.pop(trial, TrialReport(trial, 0, {}, 0.0))
        if died:
            state, reason = TrialState.FAILED, self._deaths.reason(trial)
        elif report.failure:
            state, reason = TrialState.FAILED, report.failure
        elif report.done:
            state, reason = TrialState.FINISHED, report.reason
        else:
            state, reason = TrialState.PRUNED, self._stop_reasons.pop(trial, "stopped")
        may_live = died or bool(report.failure)  # then its process may still hold the ledger
        charged = 0 if self.fresh_attempts else report.charged
        report = dataclasses.replace(report, epsilon=charged_epsilon(self.study, trial, charged))
        view = self.study.view.trials[trial]
        released = entries.released_in_the_end(self.spec, view, state, reason, report.step)
        artifacts = entries.artifacts(self.study.files, trial)
        # The journal first: a launch that dies in between leaves the whole reservation held.
        self.study.write_end(report, state, reason, released=released, artifacts=artifacts)
        self.ledger.settle(trial, state.value, died=may_live, at_least=charged)
        if self._source is None:
            self._ended_early.append((report, state))
        else:
            failure = reason if state is TrialState.FAILED else ""
            self._source.on_end(dataclasses.replace(report, failure=failure), state)
        self._account()
        if state is TrialState.FAILED:
            self.observer.on_message(f"trial {trial} failed: {reason}")
        elif report.done and report.unscored:
            self.observer.on_message(f"trial {trial} is trained and kept; {report.unscored}")
        self.observer.on_view(self.study.view)

    def _account(self) -> None:
        """Write down what the study has committed, and a claim that was given up."""
        if self.composition is not None and self.ledger.committed is not None:
            composition, committed = self.composition, self.ledger.committed
            spent = StudySpent(composition.spent_epsilon(committed), composition.share(committed))
            self.study.write(spent)
        if self.ledger.downgraded:
            self.downgrade(self.ledger.downgraded)

    def downgrade(self, reason: str) -> None:
        """Give up the study's claim for good, and say why."""
        if not self.spec.privacy.mode.is_accounted or self.study.view.downgraded:
            return
        give_up_aloud(self.study, self.ledger, reason, self.observer)
