"""Reservations in two parts: what a trial may charge until it is promoted, and the rest."""

import pytest

from dpsweep.foundation.errors import BudgetExceededError
from dpsweep.ledgers.admission import admission, check_admitted, is_promoted
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, TrialLimit, trial_file
from dpsweep.privacy.composition.declared import DeclaredComposition, declared_classes
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.study.trial import TrialTask

LOUD, BASE, SCORE = PoissonGaussian(8.0, 0.01), PoissonGaussian(2.0, 0.01), Gaussian(30.0)
PREFIX, STEPS, TRIALS = 20, 135, 3


def task(trial, *, scores=0):
    plan = Plan((EventRun(LOUD, PREFIX, "prefix"), EventRun(BASE, STEPS - PREFIX)))
    validation = Plan((EventRun(SCORE, scores, "score", "validation"),)) if scores else Plan()
    return TrialTask(
        trial, "dp_sgd", {}, plan, 1.0, True, validation,
        barrier=plan.prefix_end, barrier_scores=1 if scores else 0,
    )  # fmt: skip


def composition(*, scores=0, keep=1):
    before, after = task(0, scores=scores).stages
    classes = declared_classes([[(before, TRIALS)], [(after, keep)]])
    return DeclaredComposition.at(classes, target_epsilon=8.0, delta=1e-5)


@pytest.fixture
def study(tmp_path):
    ledger = StudyLedger(tmp_path)
    ledger.open_composition(composition)
    yield ledger
    ledger.close()


def charged(study, trial, start, stop):
    """Charge positions as the trial's process does, with what it holds now."""
    one = task(trial)
    held = study.open_composition(composition)
    cost = held.cost(one.full_plan if is_promoted(study.directory, trial) else one.stages[0])
    ledger = TrialLedger(
        trial_file(study.directory, trial),
        budget=None,
        accountant="rdp",
        limit=TrialLimit(held, cost),
    )
    try:
        ledger.charge(start, stop, one.plan.slice(start, stop))
    finally:
        ledger.close()


def test_a_trial_that_was_not_promoted_is_refused_by_its_own_ledger(study):
    assert task(0).reserve(study)
    assert not is_promoted(study.directory, 0)
    charged(study, 0, 0, PREFIX)
    with pytest.raises(BudgetExceededError, match=r"1 times poisson_gaussian \(noise_multiplier 2"):
        charged(study, 0, PREFIX, PREFIX + 1)
    study.settle(0, "paused")
    assert task(0).reserve(study, is_promoted=True)
    assert is_promoted(study.directory, 0)
    charged(study, 0, PREFIX, STEPS)
    study.settle(0, "finished")
    assert study.downgraded is None
    assert study.remaining["1"] == 0


def test_nobody_is_promoted_before_all_have_come_to_the_barrier(study):
    for trial in range(2):
        assert task(trial).reserve(study)
    charged(study, 0, 0, PREFIX)
    study.settle(0, "paused")
    assert not task(0).reserve(study, is_promoted=True)  # trial 1 is on its way
    assert not task(1).reserve(study, is_promoted=True)  # and runs
    charged(study, 1, 0, PREFIX)
    study.settle(1, "paused")
    assert task(0).reserve(study, is_promoted=True)
    assert not task(2).reserve(study), "the phase before the barrier is over"
    assert not task(1).reserve(study, is_promoted=True), "one trial was declared beyond it"


def test_no_more_trials_come_to_the_barrier_than_were_declared(study):
    for trial in range(TRIALS):
        assert task(trial).reserve(study)
    assert not task(TRIALS).reserve(study)


def test_what_is_held_outlives_a_kill(study):
    for trial in range(2):
        assert task(trial).reserve(study)
        charged(study, trial, 0, PREFIX)
        study.settle(trial, "paused")
    assert task(1).reserve(study, is_promoted=True)
    study.close()
    again = StudyLedger(study.directory)
    again.open_composition(composition)
    assert task(1).reserve(again)  # by a launch that does not know better
    assert is_promoted(again.directory, 1)
    assert again.remaining == {"0": PREFIX, "1": 0, "undeclared": 0}
    assert not task(0).reserve(again, is_promoted=True)
    assert "num_reserved" not in admission(again.directory, 1)
    check_admitted(again.directory, 1, task(1).full_plan, task(1).digest)
    again.settle(1, "paused")  # promoted, it never asks for less again
    assert task(1).reserve(again)
    assert is_promoted(again.directory, 1)
    again.close()


def test_noisy_scores_are_declared_for_both_phases():
    held = composition(scores=11)
    (score,) = (c for c in held.classes if c.part == "validation")
    assert (score.phase, score.count) == (None, TRIALS + 10)
    assert [c.phase for c in held.classes if c.part == "private"] == [0, 1]
    assert DeclaredComposition.from_json(held.to_json()) == held
    assert task(0, scores=11).refusal(held) == ""
    assert held.refusal(task(0, scores=11).full_plan) == "its events are declared in several phases"


def test_a_task_says_its_barrier_and_older_ones_keep_their_digests():
    one = task(0, scores=11)
    assert TrialTask.from_json(one.to_json()) == one
    plain = TrialTask(0, "dp_sgd", {}, one.plan, 1.0, True)
    assert "barrier" not in plain.to_json()
    assert plain.stages == (plain.full_plan,)
