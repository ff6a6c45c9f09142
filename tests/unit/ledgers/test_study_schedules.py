"""Any schedule of trials, prunings, pauses and crashes stays within the budget of the filter.

A machine plays the adversary: whatever the trials' outputs could make a search do, it may do, at
any moment, with up to eight trials at once. What was charged is added up here from the files and
from every accepted charge, by a formula that is not the one under test.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dpsweep.foundation.errors import BudgetExceededError, LedgerError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, TrialLimit, trial_file, trial_spent
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian

ORDER = 8
FILTER = RenyiFilter.at(ORDER, target_epsilon=2.0, delta=1e-5)
CAP = PrivacyBudget(target_epsilon=1.5, delta=1e-5)
MAX_CONCURRENT = 8


def plain_cost(event):
    """Renyi divergence at an integer order, from the binomial formula."""
    sigma = event.noise_multiplier
    if isinstance(event, Gaussian):
        return ORDER / (2 * sigma**2)
    q = event.sample_rate
    moments = [
        math.comb(ORDER, k) * (1 - q) ** (ORDER - k) * q**k * math.exp((k * k - k) / (2 * sigma**2))
        for k in range(ORDER + 1)
    ]
    return math.log(math.fsum(moments)) / (ORDER - 1)


trainings = st.tuples(
    st.sampled_from([0.9, 1.0, 1.2, 1.5, 3.0]), st.sampled_from([0.005, 0.01, 0.04])
)


def training_plan(one_off, phases):
    first = [] if one_off is None else [EventRun(Gaussian(one_off), 1, "normalize")]
    return Plan((*first, *(EventRun(PoissonGaussian(*pair), count) for pair, count in phases)))


training_plans = st.builds(
    training_plan,
    st.sampled_from([None, 8.0, 20.0]),
    st.lists(st.tuples(trainings, st.integers(5, 150)), min_size=1, max_size=3),
)
score_plans = st.builds(
    lambda sigma, count: Plan((EventRun(Gaussian(sigma), count, "score", "validation"),)),
    st.sampled_from([6.0, 15.0]),
    st.integers(1, 6),
)


class Trial:
    def __init__(self, plan, score_plan):
        self.plan, self.score_plan = plan, score_plan
        self.position, self.state, self.ledger = 0, "running", None

    @property
    def full_plan(self):
        return self.plan + self.score_plan


class Schedules(RuleBasedStateMachine):
    limited = True

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.trials: dict[int, Trial] = {}
        self.charged = {part: Counter() for part in ("private", "validation")}
        self.study = None
        self.open_driver()

    def open_driver(self):
        self.study = StudyLedger(self.directory)
        self.study.open_composition(lambda: FILTER)

    def open_trial(self, number):
        trial = self.trials[number]
        limit = TrialLimit(FILTER, FILTER.cost(trial.full_plan)) if self.limited else None
        trial.ledger = TrialLedger(
            trial_file(self.directory, number), budget=CAP, accountant="rdp", limit=limit
        )

    def those(self, *states):
        return sorted(n for n, trial in self.trials.items() if trial.state in states)

    def attempt(self, charge, events):
        """Charge, and note what was accepted: from then on it counts, run or not."""
        try:
            charge(events)
        except BudgetExceededError:
            return False
        for run in events.runs:
            self.charged[run.part][run.event] += run.count
        return True

    @rule(plan=training_plans, score_plan=score_plans, noisy=st.booleans())
    def admit(self, plan, score_plan, noisy):
        if len(self.those("running")) >= MAX_CONCURRENT:
            return
        number = len(self.trials)
        trial = Trial(plan, score_plan if noisy else Plan(()))
        fits = self.study.fits(trial.full_plan)
        assert self.study.reserve(number, trial.full_plan, epsilon=1.0) is fits
        if fits:
            self.trials[number] = trial
            self.open_trial(number)

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def train(self, data):
        trial = self.trials[data.draw(st.sampled_from(self.those("running")))]
        start = trial.position
        stop = min(start + data.draw(st.integers(1, 200)), len(trial.plan))
        events = trial.plan.slice(start, stop)
        afforded = trial.ledger.affords(events)
        if stop > start:
            accepted = self.attempt(lambda e: trial.ledger.charge(start, stop, e), events)
            assert accepted is afforded
            trial.position = stop if accepted else start

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def release_a_score(self, data):
        trial = self.trials[data.draw(st.sampled_from(self.those("running")))]
        if trial.score_plan:
            self.attempt(lambda e: trial.ledger.release(e), trial.score_plan.slice(0, 1))

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def repeat_until_refused(self, data):
        trial = self.trials[data.draw(st.sampled_from(self.those("running")))]
        length = len(trial.plan)
        if data.draw(st.booleans()):
            charge, events = lambda e: trial.ledger.charge(0, length, e), trial.plan
        else:
            charge, events = trial.ledger.release, trial.score_plan
        for _ in range(20):
            if not events or not self.attempt(charge, events):
                break

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def crash_a_trial(self, data):
        """Its process dies and another one goes on from an older checkpoint."""
        number = data.draw(st.sampled_from(self.those("running")))
        trial = self.trials[number]
        trial.ledger.close()
        self.open_trial(number)
        trial.position = data.draw(st.integers(0, trial.position))

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data(), state=st.sampled_from(["pruned", "finished", "failed", "paused"]))
    def end(self, data, state):
        number = data.draw(st.sampled_from(self.those("running")))
        if state != "paused":
            self.trials[number].ledger.close()
        self.study.settle(number, state, died=state == "failed")
        self.trials[number].ledger.close()
        self.trials[number].state = state

    @precondition(lambda self: self.those("running"))
    @rule(data=st.data())
    def lose_a_trial(self, data):
        """Its process is declared dead, and lives."""
        number = data.draw(st.sampled_from(self.those("running")))
        self.study.settle(number, "failed", died=True)
        self.trials[number].state = "zombie"

    @precondition(lambda self: self.those("zombie"))
    @rule(data=st.data())
    def a_lost_trial_goes_on(self, data):
        number = data.draw(st.sampled_from(self.those("zombie")))
        trial = self.trials[number]
        length = len(trial.plan)
        self.attempt(lambda e: trial.ledger.charge(0, length, e), trial.plan)
        if data.draw(st.booleans()):
            trial.ledger.close()
            trial.state = "failed"

    @precondition(lambda self: self.those("paused", "pruned"))
    @rule(data=st.data())
    def continue_a_trial(self, data):
        number = data.draw(st.sampled_from(self.those("paused", "pruned")))
        trial = self.trials[number]
        if trial.state == "pruned":
            with pytest.raises(LedgerError, match="what is settled is not reserved again"):
                self.study.reserve(number, trial.full_plan, epsilon=1.0)
        elif self.study.reserve(number, trial.full_plan, epsilon=1.0):
            trial.state = "running"
            self.open_trial(number)

    @rule()
    def crash_the_driver(self):
        committed = self.study.committed
        self.study.close()
        self.open_driver()
        for part, amount in self.study.committed.items():
            assert amount <= committed[part]  # less only where a lost trial has been found dead

    @invariant()
    def everything_ever_charged_is_within_the_budget(self):
        for part, counts in self.charged.items():
            total = math.fsum(count * plain_cost(event) for event, count in counts.items())
            assert total <= FILTER.budget
            assert total <= self.study.committed[part] * (1 + 1e-8)
            assert self.study.committed[part] <= FILTER.budget
        assert self.study.downgraded is None

    def teardown(self):
        self.study.close()
        on_disk = {part: Counter() for part in self.charged}
        for number, trial in self.trials.items():
            trial.ledger.close()
            spent = trial_spent(self.directory, number)
            for run in spent.runs:
                on_disk[run.part][run.event] += run.count
        assert on_disk == self.charged
        shutil.rmtree(self.directory)


class SchedulesWithoutLimits(Schedules):
    """Trials that may charge up to their own cap, whatever they have reserved."""

    limited = False


COMMON = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "database": None,
}


@pytest.mark.parametrize("examples", [12, pytest.param(250, marks=pytest.mark.slow)])
def test_no_schedule_passes_the_budget(examples):
    options = settings(max_examples=examples, stateful_step_count=50, **COMMON)
    run_state_machine_as_test(Schedules, settings=options)


def test_the_machine_finds_a_trial_that_ignores_its_reservation():
    options = settings(max_examples=100, stateful_step_count=50, phases=[Phase.generate], **COMMON)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(SchedulesWithoutLimits, settings=options)
