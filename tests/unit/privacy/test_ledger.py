import multiprocessing

import pytest

from dpsweep.errors import BudgetExceededError, LedgerError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.privacy.ledger import (
    StudyLedger,
    TrialLedger,
    study_spent,
    trial_file,
    trial_spent,
)

BUDGET = PrivacyBudget(target_epsilon=2.0, delta=1e-5)
STEP = PoissonGaussian(noise_multiplier=1.0, sample_rate=0.01)


def steps(count):
    return Plan((EventRun(STEP, count),))


def open_ledger(directory, trial=0, budget=BUDGET):
    return TrialLedger(trial_file(directory, trial), budget=budget, accountant="rdp")


def test_length_counts_every_event_ever_charged(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.charge(0, 100, steps(100))
    ledger.charge(100, 150, steps(50))
    ledger.close()
    ledger = open_ledger(tmp_path)  # a restart repeats 50 steps
    ledger.charge(100, 150, steps(50))
    assert len(ledger) == 200
    assert ledger.num_incarnations == 2
    assert ledger.epsilon() == pytest.approx(epsilon_of(steps(200), delta=1e-5), rel=1e-12)
    ledger.close()
    assert len(trial_spent(tmp_path, 0)) == 200


def test_the_hard_stop_is_at_the_last_allowed_step(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.charge(0, 880, steps(880))
    with pytest.raises(BudgetExceededError, match="refused and not run"):
        ledger.charge(880, 882, steps(2))
    assert len(ledger) == 880
    ledger.charge(880, 881, steps(1))
    with pytest.raises(BudgetExceededError):
        ledger.charge(881, 882, steps(1))
    ledger.close()
    assert len(trial_spent(tmp_path, 0)) == 881


def test_a_charge_names_as_many_events_as_positions(tmp_path):
    ledger = open_ledger(tmp_path)
    with pytest.raises(LedgerError, match="3 events for positions 0 to 3"):
        ledger.charge(0, 4, steps(3))
    ledger.close()


def test_a_trial_runs_once_at_a_time(tmp_path):
    ledger = open_ledger(tmp_path)
    with pytest.raises(LedgerError, match="another process"):
        open_ledger(tmp_path)
    ledger.close()


def _charge_and_die(directory):
    import os

    ledger = open_ledger(directory)
    ledger.charge(0, 100, steps(100))
    os.kill(os.getpid(), 9)


def test_kill_9_after_the_charge_keeps_the_charge(tmp_path):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_charge_and_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -9
    assert len(trial_spent(tmp_path, 0)) == 100


def test_study_sums_all_trials_and_different_events(tmp_path):
    for trial, plan in enumerate([steps(10), Plan((EventRun(Gaussian(5.0), 2),))]):
        ledger = open_ledger(tmp_path, trial)
        ledger.charge(0, len(plan), plan)
        ledger.close()
    spent = study_spent(tmp_path, {0: 10, 1: 2})
    assert len(spent) == 12
    assert spent.sampling == "mixed"


def test_reservation_is_written_once(tmp_path):
    ledger = StudyLedger(tmp_path)
    ledger.reserve(3, steps(10), epsilon=0.5)
    ledger.close()
    ledger = StudyLedger(tmp_path)
    ledger.reserve(3, steps(10), epsilon=0.5)
    ledger.settle(3, "finished")
    ledger.close()
    lines = (tmp_path / "study.jsonl").read_text().splitlines()
    assert [('"kind":"reserve"' in line, '"kind":"settle"' in line) for line in lines] == [
        (True, False),
        (False, True),
    ]


def test_a_lost_or_stray_ledger_is_refused(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.charge(0, 10, steps(10))
    ledger.close()
    assert len(trial_spent(tmp_path, 0, at_least=10)) == 10
    with pytest.raises(LedgerError, match="holds 10 charged events, but at least 11"):
        trial_spent(tmp_path, 0, at_least=11)
    with pytest.raises(LedgerError, match="holds 0 charged events, but at least 1"):
        study_spent(tmp_path, {0: 10, 1: 1})
    with pytest.raises(LedgerError, match="the journal does not know: 0"):
        study_spent(tmp_path, {1: 0})


def test_a_charge_without_a_number_for_epsilon_is_refused(tmp_path, monkeypatch):
    ledger = open_ledger(tmp_path)
    monkeypatch.setattr("dpsweep.privacy.ledger.epsilon_of", lambda *a, **k: float("nan"))
    with pytest.raises(BudgetExceededError):
        ledger.charge(0, 1, steps(1))
    assert len(ledger) == 0
    ledger.close()
