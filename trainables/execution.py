"""The execution of one trial: charge a segment durably, run it, save it, evaluate, report.

Nothing here knows Ray; ``dpsweep.trainables.base`` turns it into a Ray Tune trainable.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.errors import CheckpointError
from dpsweep.privacy.accountants import AccountantName
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.privacy.ledger import TrialLedger, check_complete, trial_file
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.checkpoints import Checkpoint, CheckpointStore
from dpsweep.trainables.method import Method, RunContext
from dpsweep.trial import TrialReport

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data import SweepData


@dataclass(frozen=True)
class ExecutionSettings:
    """What every trial of a study shares.

    Attributes:
        ledger: Directory of the study's ledger files.
        budget: Cap of one trial.
        accountant: Accountant of the cap and of every reported epsilon.
        study_seed: Seed of everything that may be known.
        metric: Name of the score, e.g. ``validation/accuracy``.
        maximize: True when a larger score is better.
        report_every: Steps between reports, or None for ``report_points`` of them.
        report_points: Evenly spaced reports per trial.
        show_validation: True when exact validation scores may leave the actor.
        show_test: True when exact test scores may leave the actor, once, at the end.
        device: ``cpu`` or ``cuda``.
    """

    ledger: Path
    budget: PrivacyBudget
    accountant: AccountantName
    study_seed: int
    metric: str
    maximize: bool
    report_every: int | None
    report_points: int
    show_validation: bool
    show_test: bool
    device: str = "cpu"


class TrialExecution:
    """Runs one trial from report to report, continuing whatever an earlier process left.

    Guarantees:
        No event of a private method runs before its charge is on disk, and none runs that would
        take the trial over its cap: the last allowed position is computed at setup from everything
        ever charged, and the ledger refuses a charge beyond it. After a crash, events between the
        last checkpoint and the crash were charged and are charged again when they are repeated,
        with fresh noise; the trial then ends earlier.

        Not covered: whether a method causes only the events of its plan (conformance tests).

    Args:
        directory: The trial's directory, for checkpoints.
        trial: Trial number.
        method: Name of the method.
        hparams: Its hyperparameters, all of them.
        plan: Its privacy events.
        settings: What the study's trials share.
        data: The dataset, possibly with read-only arrays.
    """

    def __init__(
        self,
        directory: Path,
        *,
        trial: int,
        method: str,
        hparams: Mapping[str, Any],
        plan: Plan,
        settings: ExecutionSettings,
        data: SweepData,
    ) -> None:
        self.trial, self.plan, self.settings = trial, plan, settings
        method_class: type[Method] = TRAINABLES[method]
        self.is_private = method_class.is_private
        cap = settings.budget if self.is_private else None
        self.ledger = TrialLedger(
            trial_file(settings.ledger, trial), budget=cap, accountant=settings.accountant
        )
        try:
            self._started = time.monotonic()
            self._store = CheckpointStore(directory)
            self.method = method_class()
            context = RunContext(settings.study_seed, trial, settings.device)
            self.method.prepare(data, hparams, plan, context)
            self._restore()
            self._set_clock()
        except BaseException:
            self.ledger.close()
            raise

    def _restore(self) -> None:
        last, best = self._store.load("last"), self._store.load("best")
        for saved in (last, best):
            if saved:
                check_complete(self.ledger.path, len(self.ledger), saved.charged)
        self.position = last.step if last else 0
        self.metrics = last.metrics if last else {}
        # The best checkpoint is written before the last one, so it is the newer of the two.
        self.value = best.value if best else None
        self.best_step = best.step if best else 0
        if last:
            self.method.load_state_dict(last.state)

    def _set_clock(self) -> None:
        """Find the last position this trial may reach, given all that was ever charged to it."""
        rest = self.plan.slice(self.position, len(self.plan))
        self._origin = self.position
        self.end = len(self.plan)
        self._clock: EpsilonClock | None = None
        if self.is_private:
            self._clock = EpsilonClock(
                rest,
                delta=self.settings.budget.delta,
                accountant=self.settings.accountant,
                spent=self.ledger.spent,
            )
            allowed = self._clock.last_allowed(self.settings.budget.target_epsilon)
            self.end = self.position + allowed

    def _epsilon_at(self, position: int) -> float:
        if self._clock is None:
            return math.inf
        return self._clock.epsilon_after(position - self._origin)

    def next_report(self) -> int:
        """Return the position of the next report: on the grid of report points, or the end.

        The grid belongs to the whole plan, so a resumed trial reports where it would have.
        """
        every = self.settings.report_every
        every = every or max(1, math.ceil(len(self.plan) / self.settings.report_points))
        return min((self.position // every + 1) * every, self.end)

    def advance(self) -> TrialReport:
        """Run to the next report point and report; call until a report is ``done``."""
        stop = self.next_report()
        if stop > self.position:
            self.ledger.charge(self.position, stop, self.plan.slice(self.position, stop))
            self.method.run(self.position, stop)
            self.position = stop
        self._evaluate()
        return self._report()

    def _evaluate(self) -> None:
        self.metrics = {}
        if self.settings.show_validation:
            self.metrics = _named("validation", self.method.evaluate("validation"))
        score = self.metrics.get(self.settings.metric)
        is_better = score is not None and (
            self.value is None
            or (score > self.value if self.settings.maximize else score < self.value)
        )
        if is_better:
            self.value, self.best_step = score, self.position
        if self.position == self.end and self.settings.show_test:
            self.metrics.update(_named("test", self.method.evaluate("test")))
        snapshot = Checkpoint(
            step=self.position,
            value=self.value,
            best_step=self.best_step,
            charged=len(self.ledger),
            metrics=self.metrics,
            state=self.method.state_dict(),
        )
        if is_better:
            self._store.save("best", snapshot)
        self._store.save("last", snapshot)

    def _report(self) -> TrialReport:
        done = self.position >= self.end
        reason = ""
        if done:
            reason = "plan complete"
            if self.end < len(self.plan):
                reason = (
                    f"stopped at the cap after {self.position} of {len(self.plan)} steps: "
                    f"{len(self.ledger) - self.position} charged steps were lost to crashes"
                )
        return TrialReport(
            trial=self.trial,
            step=self.position,
            metrics=self.metrics,
            epsilon=self._epsilon_at(self.position),
            next_epsilon=None if done else self._epsilon_at(self.next_report()),
            done=done,
            reason=reason,
            wall_s=time.monotonic() - self._started,
            charged=len(self.ledger),
            value=self.value,
            best_step=self.best_step,
        )

    def close(self) -> None:
        """Release the ledger, so that another process may continue the trial."""
        self.ledger.close()


def _named(part: str, values: Mapping[str, float]) -> dict[str, float]:
    """Prefix metrics with their part; values that are not finite numbers are left out."""
    return {f"{part}/{name}": value for name, value in values.items() if math.isfinite(value)}


def export_model(
    directory: Path,
    *,
    method: str,
    hparams: Mapping[str, Any],
    plan: Plan,
    study_seed: int,
    trial: int,
    data: SweepData,
) -> tuple[torch.nn.Module, np.ndarray]:
    """Return a trial's best model on the CPU, and zeros in the shape of its input.

    Guarantees:
        The model is what DP training released; the example input is no record of the data.

    Raises:
        CheckpointError: The trial has no intact best checkpoint.
    """
    saved = CheckpointStore(directory).load("best")
    if saved is None:
        raise CheckpointError(f"{directory} has no best checkpoint", fix="run the study again")
    instance: Method = TRAINABLES[method]()
    instance.prepare(data, hparams, plan, RunContext(study_seed, trial))
    instance.load_state_dict(saved.state)
    return instance.export(), np.zeros((1, *data.info.input_shape), dtype=np.float32)
