"""A barrier: a trial waits there until the study's ledger says that it was promoted."""

import dataclasses

import pytest

from dpsweep.foundation.errors import BudgetExceededError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.composition.declared import DeclaredComposition, declared_classes
from dpsweep.privacy.schedules import NoiseSchedule

PLAN = NoiseSchedule(prefix_factor=4.0).plan(2.0, 0.05, 40)
BARRIER = PLAN.prefix_end


@pytest.fixture
def study(lab):
    """A study's ledger, settings with what it declares, and a task that is admitted."""
    task = lab.scripted(PLAN, barrier=BARRIER)
    before, after = task.stages
    classes = declared_classes([[(before, 2)], [(after, 1)]])
    held = DeclaredComposition.at(classes, target_epsilon=8.0, delta=1e-5)
    ledger = StudyLedger(lab.path / "ledger")
    ledger.open_composition(lambda: held)
    assert task.reserve(ledger)
    yield ledger, lab.settings(composition=held), task
    ledger.close()


def test_a_trial_reports_at_its_barrier_and_waits(lab, study):
    ledger, settings, task = study
    trial = lab.open(settings, task)
    report = trial.advance()
    assert (report.step, report.rung, report.done, report.skipped) == (BARRIER, 1, False, 0)
    assert report.next_epsilon > report.epsilon
    trial.pause()
    ledger.settle(0, "paused")
    assert task.reserve(ledger, is_promoted=True)
    rest = lab.finish(lab.open(settings, task))
    assert [report.step for report in rest] == [10, 20, 30, 40]
    assert {report.rung for report in rest} == {1}
    assert rest[-1].reason == "plan complete"
    assert trial_spent(ledger.directory, 0) == PLAN


def test_a_trial_that_goes_on_without_promotion_is_refused_before_the_step(lab, study):
    ledger, settings, task = study
    trial = lab.open(settings, task)
    trial.advance()
    with pytest.raises(BudgetExceededError, match="over the 0 that the trial has reserved"):
        trial.advance()
    trial.close()
    assert trial.position == BARRIER
    assert trial_spent(ledger.directory, 0) == PLAN.slice(0, BARRIER)
    again = lab.open(settings, task)  # another process says where it is, and no more
    assert (again.advance().step, len(again.ledger)) == (BARRIER, BARRIER)
    with pytest.raises(BudgetExceededError):
        again.advance()
    again.close()


def test_one_whose_reservation_nobody_knows_waits_too(lab):
    task = lab.scripted(PLAN, trial=7, barrier=BARRIER)
    trial = lab.open(lab.settings(), task)
    assert trial.advance().step == BARRIER
    assert not trial._is_at_end
    trial.close()


def test_steps_that_a_crash_has_lost_end_a_trial_before_its_barrier(lab, study):
    """It has paid for them, and nobody else may wait for it."""
    ledger, settings, task = study
    settings = dataclasses.replace(settings, report_every=2)
    lab.crash_in_segment(lab.open(settings, task), 2)
    (last,) = lab.finish(lab.open(settings, task))
    assert (last.step, last.rung) == (BARRIER - 2, 0)
    assert "stopped at its reservation" in last.reason
    assert trial_spent(ledger.directory, 0) == PLAN.slice(0, BARRIER)
