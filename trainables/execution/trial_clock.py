"""The clock of a trial's training: epsilon by position, and the positions of its rungs."""

from __future__ import annotations

from collections.abc import Callable

from dpsweep.ledgers.admission import is_promoted
from dpsweep.ledgers.trial import TrialLimit
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.privacy.rungs import first_step, num_skipped, rung_epsilons, rung_positions
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.execution.settings import ExecutionSettings


def limit_of(task: TrialTask, settings: ExecutionSettings) -> tuple[TrialLimit | None, int | None]:
    """Return what a trial holds of the study's budget now, and where it waits to be promoted.

    The study's ledger says whether it was promoted; without its word it was not.

    Returns:
        The limit, or None where trials share no budget; the position of the barrier, or None where
        nothing holds the trial back.
    """
    stages = task.stages
    waits = len(stages) > 1 and not is_promoted(settings.ledger, task.trial)
    barrier = task.barrier if waits else None
    if settings.composition is None:
        return None, barrier
    cost = settings.composition.cost(stages[0] if waits else task.full_plan)
    return TrialLimit(settings.composition, cost), barrier


def num_questions(plan: Plan) -> int:
    """Return how many positions on private records stand before others on public ones."""
    runs = plan.runs
    private = [index for index, run in enumerate(runs) if run.part == "private"]
    if not private or private[-1] == len(runs) - 1:
        return 0
    return sum(run.count for run in runs[: private[-1] + 1])


class TrialClock:
    """How much epsilon training has cost at each position, and where the next rungs are reached.

    A trial on public records has the clock it would have on private ones, so that a rung means the
    same length of training in the search and in the final run.

    Args:
        task: The admitted trial.
        settings: What the study's trials share.
        is_private: Whether its method is; one that is not has no epsilon and no rungs.
        position: Where the trial is; nothing is asked of positions before it.
        spent: All events of training that were ever charged to it.
        rungs_before: Number of rungs that it has reached before.

    Attributes:
        rung_positions: Positions of the rungs that are still to be reached, ascending.
    """

    def __init__(
        self,
        task: TrialTask,
        settings: ExecutionSettings,
        *,
        is_private: bool,
        position: int,
        spent: Plan,
        rungs_before: int = 0,
    ) -> None:
        self._plan, self._settings = task.plan, settings
        self._origin, self._rungs_before = position, rungs_before
        self._clock: EpsilonClock | None = None
        self.rung_positions: list[int] = []
        self._num_skipped = 0
        if not is_private:
            return
        spent = task.inherited + spent
        if task.records == "public":
            spent = self._plan.slice(0, position)
        self._clock = self._clock_from(position, spent)
        if task.barrier:  # the only rung, at a position that nothing moves
            self.rung_positions = [task.barrier] if position < task.barrier else []
        if not settings.rungs:
            return
        is_whole = position == 0 and spent == task.inherited
        whole = self._clock if is_whole else self._clock_from(0, task.inherited)
        rungs = rung_epsilons(settings.rungs, settings.rung_unit, whole)
        self._num_skipped = num_skipped(self._plan, rung_positions(whole, rungs))
        positions = rung_positions(self._clock, rungs[rungs_before:])
        self.rung_positions = [position + ahead for ahead in positions]

    def _clock_from(self, position: int, spent: Plan) -> EpsilonClock:
        return EpsilonClock(
            self._plan.slice(position, len(self._plan)),
            delta=self._settings.budget.delta,
            accountant=self._settings.accountant,
            spent=spent,
        )

    def rung(self, position: int) -> int:
        """Return the number of rungs that are reached at a position."""
        return self._rungs_before + sum(rung <= position for rung in self.rung_positions)

    def skipped(self, position: int) -> int:
        """Return the number of rungs that the first training step passes, by plan or by a crash."""
        if not self._settings.rungs:
            return 0
        is_first = position <= first_step(self._plan)
        return max(self._num_skipped, self.rung(position) if is_first else 0)

    def epsilon_at(self, position: int) -> float:
        """Return the epsilon of all of training once a position is reached."""
        assert self._clock is not None
        return self._clock.epsilon_after(position - self._origin)

    def last_allowed(self, epsilon: float) -> int:
        """Return the last position at which training has cost no more than ``epsilon``."""
        assert self._clock is not None
        return self._origin + self._clock.last_allowed(epsilon)


def furthest(start: int, stop: int, fits: Callable[[int], bool]) -> int:
    """Return the last position from ``start`` on that fits, where all before one that fits do.

    >>> furthest(3, 10, lambda position: position <= 7), furthest(3, 10, lambda position: True)
    (7, 10)
    """
    low, high = start, stop
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
