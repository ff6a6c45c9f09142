"""The execution of one trial: charge a segment durably, run it, save it, evaluate, report.

Nothing here knows Ray; ``dpsweep.trainables.execution.actor`` turns it into a Ray Tune trainable.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import LedgerError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.words import counted, were
from dpsweep.ledgers.trial import TrialLedger, check_complete, trial_file
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.study.trial import DIVERGED, TrialReport, TrialTask, report_interval
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.execution.checkpoints import (
    Checkpoint,
    CheckpointStore,
    check_readable,
    is_finite,
)
from dpsweep.trainables.execution.delivered import delivered_scores
from dpsweep.trainables.execution.memory import Usage
from dpsweep.trainables.execution.pace import Leaving, Left, Pace
from dpsweep.trainables.execution.private_report import write_private_report
from dpsweep.trainables.execution.scores import TrialScores
from dpsweep.trainables.execution.settings import ExecutionSettings
from dpsweep.trainables.execution.starts import release_name
from dpsweep.trainables.execution.trial_clock import TrialClock, furthest, limit_of, num_questions
from dpsweep.trainables.execution.trial_data import records_for
from dpsweep.trainables.method import Method, RunContext

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import SweepData


class TrialExecution:
    """Runs one trial from report to report, continuing whatever an earlier process left.

    Guarantees:
        No event of a private method runs before its charge is on disk, and none runs that would
        take the trial over its cap or over its reservation: the last allowed position is found at
        setup from everything ever charged, by asking the ledger that refuses what is beyond it.
        After a crash, events between the last checkpoint and the crash were charged and are
        charged again when they are repeated, with fresh noise; the trial then ends earlier. So are
        those after the latest whole checkpoint, where the last one is damaged. What a crash can
        lose is bounded in time (``pace``), also between reports; who is recalled loses none.
        A noisy score is charged before it is computed, and never more of them than the task's
        ``validation_plan`` holds; exact scores stay here unless ``validation`` is ``exact``. A
        trial on public records (charged, at no cost) is refused private ones, and vice versa.

        Not covered: whether a method causes only the events of its plan (docs/extending.md).

    Args:
        directory: The trial's directory, for checkpoints.
        task: The admitted trial.
        settings: What the study's trials share.
        data: The dataset, possibly with read-only arrays; ``SweepData.for_public_search`` for a
            trial on public records. In a study of episodes, the trial's own is drawn from it.
        pace: How much one charge covers, and when models are kept between reports.
    Raises:
        LedgerError: The ledger is locked or has lost charges, or these are not the task's records.
    """

    def __init__(
        self,
        directory: FilePath,
        task: TrialTask,
        *,
        settings: ExecutionSettings,
        data: SweepData,
        pace: Pace | None = None,
    ) -> None:
        if data.records != task.records:
            raise LedgerError(
                f"trial {task.trial} is to train on {task.records} records and was handed "
                f"{data.records} ones; nothing was run"
            )
        data = records_for(data, task)
        self.task, self.plan, self.settings = task, task.plan, settings
        method_class: type[Method] = TRAINABLES[task.method]
        self.is_private = method_class.is_private
        self._charges, self._num_questions = task.charges, num_questions(task.plan)
        limit, self._barrier = limit_of(task, settings)
        self.ledger = TrialLedger(
            trial_file(settings.ledger, task.trial),
            budget=settings.budget if self.is_private else None,
            accountant=settings.accountant,
            limit=limit,
            fresh=settings.fresh_attempts,
            inherited=task.inherited,
            is_told=settings.is_process_told,
        )
        try:
            self._usage = Usage(settings.device, is_told=settings.is_timed)
            self.leaving = Leaving(directory, settings.recall)
            self._pace, self._note = pace or Pace(), ""
            self._store = CheckpointStore(directory)
            if settings.fresh_attempts:
                self._store.discard()
            self.method = method_class()
            context = RunContext(
                settings.study_seed, task.trial, settings.device, task.seed, settings.supplies
            )
            self.method.prepare(data, task.hparams, self.plan, context)
            self._scores = TrialScores(self.method, data, task, settings, self.ledger)
            rungs_before = self._restore()
            self._set_end()
            self._clock = TrialClock(
                task,
                settings,
                is_private=self.is_private,
                position=self.position,
                spent=self.ledger.spent.part(task.part).labelled("private"),
                rungs_before=rungs_before,
            )
            self._set_releases()
            self._is_unreported |= self._waits
        except BaseException:
            self.ledger.close()
            raise

    def _restore(self) -> int:
        """Go on from the checkpoints; return the number of rungs that were reached before."""
        last, self._resumption = self._store.resume()
        best = self._store.load_best(last, self.settings.metric)
        for saved in (last, best):
            if saved:
                check_complete(self.ledger.path, len(self.ledger), saved.charged)
        self.position = last.step if last else 0
        self.metrics = last.metrics if last else {}
        self._is_evaluated = last is not None and last.is_scored
        # If nothing was charged since the last checkpoint, its report may have been lost.
        self._is_unreported = (
            last is not None
            and last.is_scored
            and not last.paused
            and last.charged == len(self.ledger)
        )
        # The best checkpoint is written before the last one, so it is the newer of the two.
        self.value = best.value if best else None
        self.best_step = best.step if best else 0
        self._is_finite = last is None or is_finite(last.state)
        self.delivered = delivered_scores(last, best)
        if last:
            self.method.load_state_dict(last.state)
        self.method.check_at(self.plan, self.position)
        check_readable(self.method.state_dict(), type(self.method).__name__)
        return last.rung if last else 0

    def _set_end(self) -> None:
        """Find the last position this trial may reach, given all that was ever charged to it."""

        def fits(stop: int) -> bool:
            return self.ledger.affords(self._charges.slice(self.position, stop))

        self.end = furthest(self.position, len(self.plan), fits)
        self._end_if_diverged()

    def _end_if_diverged(self) -> None:
        """Spend no more on parameters that are not finite; training has released what they are."""
        if not self._is_finite and not self.task.releases:
            self.end = self.position

    @property
    def rung(self) -> int:
        """Number of rungs that the trial has reached."""
        return self._clock.rung(self.position)

    def _epsilon_at(self, position: int, *, releases: int = 0) -> float:
        """Return the epsilon once ``position`` is reached and ``releases`` more scores are out."""
        if not self.is_private:
            return math.inf
        training = 0.0
        if self.task.records != "public":
            training = self._clock.epsilon_at(position)
        scores = self.ledger.spent.part("validation")
        if releases:
            scores = scores + self._scores.release(releases)
        if not scores:
            return training
        # The parts are disjoint: a record pays for training or for scores, never for both.
        delta, accountant = self.settings.budget.delta, self.settings.accountant
        return max(training, epsilon_of(scores, delta=delta, accountant=accountant))

    def next_report(self) -> int:
        """Return the position of the next report: a grid point, a rung, a release, or the end.

        The grid belongs to the whole plan, so a resumed trial reports where it would have. A rung
        is reached at the first position whose epsilon (of all ever charged) is at least its own.
        """
        if self._waits:  # a policy that does not wait is stopped by the ledger
            return self.position + 1
        points = (self.settings.report_every, self.settings.report_points)
        every = report_interval(len(self.plan), *points)
        stops = (*self._clock.rung_positions, *self._release_positions.values())
        return min(
            (self.position // every + 1) * every,
            self.end,
            *(position for position in stops if position > self.position),
        )

    def advance(self) -> TrialReport:
        """Run to the next report and make it; call until a report is ``done``.

        The first one may repeat the last report of an earlier process, which was perhaps lost with
        it: a policy hears of every rung at its own epsilon. Where crashes have lost all that a
        model would rest on, the only one is a failure, and nothing is charged or scored.
        """
        if self.leaving.is_due():
            raise Left
        if self._has_lost_all:
            return self._report()
        if self._is_unreported:
            self._is_unreported = False
            return self._report()
        self._run_to(self.next_report())
        if not self._is_evaluated:
            self.metrics = self._scores.now()
            self._is_evaluated = True
        self._keep()
        return self._report()

    def _run_to(self, stop: int) -> None:
        """Charge and run the positions before ``stop``, and keep models on the way.

        What a method asks private records once, before passes over public ones, is charged alone
        and kept at once: nothing would be left to ask it again with.
        """
        while self.position < stop:
            is_question = self.position < self._num_questions
            until = self.position + 1 if is_question else self.position + self._pace.steps
            until = min(until, stop)
            with self._pace.charging():
                self.ledger.charge(self.position, until, self._charges.slice(self.position, until))
            with self._pace.running(until - self.position):
                self.method.run(self.position, until)
            self.position = until
            self._is_evaluated = False
            if until < stop and self.leaving.is_due():  # else the report is due, and is made first
                self._store.save("last", self._snapshot())
                raise Left
            if until < stop and (is_question or self._pace.is_due()):
                self._store.save("last", self._snapshot())
                self._pace.kept()

    @property
    def _waits(self) -> bool:
        """Say whether the trial is at its barrier: it goes on when it is promoted."""
        return self.position == self._barrier and self._is_finite

    @property
    def _is_at_end(self) -> bool:
        return self.position >= self.end and not self._waits

    @property
    def _has_lost_all(self) -> bool:
        """Say whether what is left of the budget pays for no step, or not for all questions."""
        return self.end < min(len(self.plan), max(1, self._num_questions))

    def _keep(self) -> None:
        """Save the model as the last one, and as the best one where its score says so."""
        score = self.metrics.get(self.settings.metric)
        state = self.method.state_dict()
        self._is_finite = is_finite(state)
        self._end_if_diverged()
        sign = 1 if self.settings.maximize else -1
        is_better = self._is_finite and score is not None
        if is_better and self.value is not None:
            is_better = sign * score > sign * self.value  # type: ignore[operator]
        if is_better:
            self.value, self.best_step = score, self.position
        is_delivered = is_better or self.value is None
        self.delivered = dict(self.metrics if is_delivered else self.delivered)
        if self._is_at_end and self.settings.show_test:
            self.delivered |= self._scores.on_test(None if is_delivered else self._store)
        self.metrics = self.delivered if is_delivered else self.metrics
        snapshot = self._snapshot(state)
        if is_better:
            self._store.save("best", snapshot)
        self._make_releases(snapshot)
        self._store.save("last", snapshot)
        self._pace.kept()
        if self._is_at_end and not self.settings.fresh_attempts:
            self._note = write_private_report(self._store.directory, self.method)

    def _snapshot(self, state: dict[str, Any] | None = None) -> Checkpoint:
        return Checkpoint(
            step=self.position,
            value=self.value,
            best_step=self.best_step,
            charged=len(self.ledger),
            metrics=self.metrics,
            state=self.method.state_dict() if state is None else state,
            rung=self.rung,
            is_scored=self._is_evaluated,
            delivered=self.delivered,
        )

    def _set_releases(self) -> None:
        """Find the last position within each release that is still to be made, and end with them.

        What crashes lost was charged, so a release may come earlier than it was planned: at once,
        of the model that is there, where the rest was lost.

        Raises:
            LedgerError: All of it was lost, and there is no model yet.
        """
        self._release_positions: dict[int, int] = {}
        made = self.ledger.releases
        for index, epsilon in enumerate(self.task.releases):
            if index in made:
                continue
            position = self._clock.last_allowed(epsilon)
            if position == 0:
                raise LedgerError(
                    f"no model can be released at epsilon={epsilon:g} any more "
                    f"(delta={self.settings.budget.delta:.12g}, {self.settings.accountant}): "
                    f"{were(self.ledger.position_charges, 'charged step')} lost to crashes",
                    fix="start a new study under another name, with larger start.epsilons",
                )
            self._release_positions[index] = position
        if self.task.releases:
            last = max(self._release_positions.values(), default=self.position)
            self.end = min(self.end, last)
            self._make_releases(self._snapshot())

    def _make_releases(self, snapshot: Checkpoint) -> None:
        """Release the model, if this is a position for it; a release is made once."""
        for index, position in list(self._release_positions.items()):
            if position == self.position:
                digest = self._store.save(release_name(index), snapshot)
                self.ledger.note_release(index, digest)
                del self._release_positions[index]

    def _report(self) -> TrialReport:
        done = self._is_at_end
        next_epsilon = None
        if not done:
            releases = 1 if self._scores.affords_a_noisy_one() else 0
            next_epsilon = self._epsilon_at(self.next_report(), releases=releases)
        reason = self._why_done() if done else ""
        has_failed = self._has_lost_all
        if done and not self._is_finite and not has_failed:
            # A function of what training released, so it costs nothing to say it.
            has_failed, reason = self.value is None, self._how_diverged()
        unscored = "; ".join(
            f"no {part} scores: {why}" for part, why in self._scores.missing.items()
        )
        return TrialReport(
            trial=self.task.trial,
            step=self.position,
            metrics=self.metrics,
            epsilon=self._epsilon_at(self.position),
            next_epsilon=next_epsilon,
            rung=self.rung,
            skipped=self._clock.skipped(self.position),
            done=done,
            reason=f"{reason}; {unscored}" if done and unscored else reason,
            unscored=unscored,
            failure=reason if has_failed else "",
            note="\n".join(filter(None, (self._resumption.note, self._note, self._scores.note))),
            wall_s=self._usage.wall_s,
            memory_mb=self._usage.memory_mb,
            charged=len(self.ledger),
            value=self.value,
            best_step=self.best_step,
            delivered=self.delivered,
        )

    def _how_diverged(self) -> str:
        kept = "" if self.value is None else f"; its best model is of step {self.best_step}"
        return f"{DIVERGED}: parameters are not finite at step {self.position}{kept}"

    def _why_done(self) -> str:
        if self.end == len(self.plan):
            return "plan complete"
        budget, bound = self.settings.budget, "its reservation"
        one_more = self.ledger.spent + self._charges.slice(self.end, self.end + 1)
        accountant = self.settings.accountant
        covered = self.task.inherited + one_more
        epsilon = epsilon_of(covered, delta=budget.delta, accountant=accountant)
        if not epsilon <= budget.target_epsilon:
            bound = "the cap"
        return (
            f"stopped at {bound} after {self.position} of {counted(len(self.plan), 'step')}: "
            f"{were(self.ledger.position_charges - self.position, 'charged step')} lost to crashes"
        )

    def pause(self) -> None:
        """Close the trial after a report that has arrived; whoever continues it runs on at once."""
        if self._is_evaluated:
            self._store.mark_paused()
        self.close()

    def close(self) -> None:
        """Release the ledger, so that another process may continue the trial."""
        self.ledger.close()
