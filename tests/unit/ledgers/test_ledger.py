import multiprocessing

import pytest

from dpsweep.foundation.errors import BudgetExceededError, LedgerError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import (
    TrialLedger,
    TrialLimit,
    steps_charged,
    study_spent,
    trial_covered,
    trial_file,
    trial_spent,
    trials_on_disk,
)
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.composition.base import RESERVATION_SLACK
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import EventRun, Gaussian, NonPrivate, Plan, PoissonGaussian
from tests.helpers.logs import content, put

BUDGET = PrivacyBudget(target_epsilon=2.0, delta=1e-5)
STEP = PoissonGaussian(noise_multiplier=1.0, sample_rate=0.01)


def steps(count):
    return Plan((EventRun(STEP, count),))


def score(noise_multiplier=50.0, count=1):
    return Plan((EventRun(Gaussian(noise_multiplier), count, "score", "validation"),))


def open_ledger(directory, trial=0, budget=BUDGET, **options):
    path = trial_file(directory, trial)
    return TrialLedger(path, budget=budget, accountant="rdp", **options)


def times_opened(ledger):
    return sum(record["kind"] == "open" for record in read_log(ledger.path))


def test_length_counts_every_event_ever_charged(ledgers):
    ledger = open_ledger(ledgers)
    ledger.charge(0, 100, steps(100))
    ledger.charge(100, 150, steps(50))
    ledger.close()
    ledger = open_ledger(ledgers)  # a restart repeats 50 steps
    ledger.charge(100, 150, steps(50))
    assert len(ledger) == 200
    assert times_opened(ledger) == 2
    assert ledger.epsilon() == pytest.approx(epsilon_of(steps(200), delta=1e-5), rel=1e-12)
    ledger.close()
    assert len(trial_spent(ledgers, 0)) == 200


def test_the_hard_stop_is_at_the_last_allowed_step(ledgers):
    ledger = open_ledger(ledgers)
    ledger.charge(0, 880, steps(880))
    with pytest.raises(BudgetExceededError, match="refused and not run"):
        ledger.charge(880, 882, steps(2))
    assert len(ledger) == 880
    ledger.charge(880, 881, steps(1))
    with pytest.raises(BudgetExceededError):
        ledger.charge(881, 882, steps(1))
    ledger.close()
    assert len(trial_spent(ledgers, 0)) == 881


def test_a_charge_names_as_many_events_as_positions(ledgers):
    ledger = open_ledger(ledgers)
    with pytest.raises(LedgerError, match="3 events for positions 0 to 3"):
        ledger.charge(0, 4, steps(3))
    ledger.close()


def test_a_trial_runs_once_at_a_time(ledgers):
    ledger = open_ledger(ledgers)
    with pytest.raises(LedgerError, match="another process"):
        open_ledger(ledgers)
    ledger.close()


def _charge_and_die(directory):
    import os

    ledger = open_ledger(directory)
    ledger.charge(0, 100, steps(100))
    os.kill(os.getpid(), 9)


def test_kill_9_after_the_charge_keeps_the_charge(ledgers):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_charge_and_die, args=(ledgers,))
    process.start()
    process.join()
    assert process.exitcode == -9
    assert len(trial_spent(ledgers, 0)) == 100


def test_study_sums_all_trials_and_different_events(ledgers):
    for trial, plan in enumerate([steps(10), Plan((EventRun(Gaussian(5.0), 2),))]):
        ledger = open_ledger(ledgers, trial)
        ledger.charge(0, len(plan), plan)
        ledger.close()
    spent = study_spent(ledgers, {0: 10, 1: 2})
    assert len(spent) == 12
    assert spent.sampling == "mixed"


def test_a_lost_or_stray_ledger_is_refused(ledgers):
    ledger = open_ledger(ledgers)
    ledger.charge(0, 10, steps(10))
    ledger.close()
    assert len(trial_spent(ledgers, 0, at_least=10)) == 10
    with pytest.raises(LedgerError, match="holds 10 charged events, but at least 11"):
        trial_spent(ledgers, 0, at_least=11)
    with pytest.raises(LedgerError, match="holds 0 charged events, but at least 1"):
        study_spent(ledgers, {0: 10, 1: 1})
    with pytest.raises(LedgerError, match="the journal does not know: 0"):
        study_spent(ledgers, {1: 0})


def test_a_charge_without_a_number_for_epsilon_is_refused(ledgers, monkeypatch):
    ledger = open_ledger(ledgers)
    monkeypatch.setattr("dpsweep.ledgers.trial.epsilon_of", lambda *a, **k: float("nan"))
    with pytest.raises(BudgetExceededError):
        ledger.charge(0, 1, steps(1))
    assert len(ledger) == 0
    ledger.close()


# --- A trial's share of the study's budget --------------------------------------------------

FILTER = RenyiFilter.at(8, target_epsilon=2.0, delta=1e-5)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("segment", [1, 7, 60, 400])
def test_the_reserved_plan_is_accepted_in_any_segments_and_nothing_beyond(ledgers, segment):
    noises = [1.0 + 0.001 * t for t in range(200)]
    plan = Plan(tuple(EventRun(PoissonGaussian(s, 0.01), 2) for s in noises))
    limit = TrialLimit(FILTER, FILTER.cost(plan + score(count=10)))
    ledger = open_ledger(ledgers, limit=limit)
    for start in range(0, len(plan), segment):
        stop = min(start + segment, len(plan))
        assert ledger.affords(plan.slice(start, stop))
        ledger.charge(start, stop, plan.slice(start, stop))
    for _ in range(10):
        ledger.release(score())
    before = content(ledger.path)
    assert not ledger.affords(steps(1))
    assert not ledger.affords(score())
    assert content(ledger.path) == before
    with pytest.raises(BudgetExceededError) as caught:
        ledger.charge(0, 1, steps(1))
    text = str(caught.value)
    for word in ("reserved of the study's budget", "private records", "refused and not run",
                 "epsilon=2 at delta=1e-05", "rdp", "add_or_remove_one", "composed"):  # fmt: skip
        assert word in text
    with pytest.raises(BudgetExceededError, match="on the validation records"):
        ledger.release(score())
    assert content(ledger.path) == before
    assert (len(ledger), ledger.position_charges) == (410, 400)
    ledger.close()
    spent = FILTER.cost(trial_spent(ledgers, 0))
    for part, cost in limit.cost.items():
        assert spent[part] <= cost * (1 + RESERVATION_SLACK / 2)


def test_a_crash_is_paid_from_the_reservation(ledgers):
    limit = TrialLimit(FILTER, FILTER.cost(steps(100)))
    ledger = open_ledger(ledgers, limit=limit)
    ledger.charge(0, 60, steps(60))
    ledger.close()
    ledger = open_ledger(ledgers, limit=limit)
    ledger.charge(30, 60, steps(30))
    assert ledger.affords(steps(10))
    with pytest.raises(BudgetExceededError):
        ledger.charge(60, 71, steps(11))
    ledger.charge(60, 70, steps(10))
    assert ledger.position_charges == 100
    ledger.close()


@pytest.mark.parametrize("cost", [float("nan"), float("inf")])
def test_a_cost_that_is_no_number_is_refused(ledgers, monkeypatch, cost):
    limit = TrialLimit(FILTER, FILTER.cost(steps(100)))
    ledger = open_ledger(ledgers, limit=limit)
    monkeypatch.setattr(RenyiFilter, "cost", lambda *_: {"private": cost, "validation": 0.0})
    assert not ledger.affords(steps(1))
    with pytest.raises(BudgetExceededError):
        ledger.charge(0, 1, steps(1))
    assert len(ledger) == 0
    ledger.close()


def test_the_limit_holds_for_a_trial_without_a_cap_of_its_own(ledgers):
    limit = TrialLimit(FILTER, FILTER.cost(steps(10)))
    ledger = open_ledger(ledgers, budget=None, limit=limit)
    with pytest.raises(BudgetExceededError, match="reserved of the study"):
        ledger.charge(0, 1, Plan((EventRun(NonPrivate()),)))
    ledger.close()


def test_a_trial_costs_the_larger_of_its_parts_and_nothing_on_public_records(ledgers):
    ledger = open_ledger(ledgers)
    ledger.charge(0, 800, steps(800))
    before = ledger.epsilon()
    for _ in range(20):
        ledger.release(score())
    assert ledger.epsilon() == before == epsilon_of(steps(800), delta=1e-5)
    ledger.charge(800, 10_800, steps(10_000).labelled("public"))
    assert ledger.epsilon() == before
    with pytest.raises(BudgetExceededError, match="100 further events would cost"):
        ledger.release(score(1.0, 100))
    assert (len(ledger), ledger.position_charges) == (10_820, 10_800)
    ledger.close()
    assert trial_spent(ledgers, 0).part("validation") == score(count=20)


def test_a_method_without_noise_is_free_on_public_records_only(ledgers):
    ledger = open_ledger(ledgers, budget=None)
    wild = Plan((EventRun(NonPrivate(), 5),))
    ledger.charge(0, 5, wild.labelled("public"))
    assert ledger.epsilon() == 0
    ledger.charge(5, 10, wild)
    assert ledger.epsilon() == float("inf")
    ledger.close()


# --- Attempts that begin afresh -------------------------------------------------------------


def test_a_fresh_attempt_keeps_the_lost_one_beside_it(ledgers):
    for attempt, count in enumerate([30, 20, 10]):
        ledger = open_ledger(ledgers, fresh=True)
        assert (len(ledger), times_opened(ledger)) == (0, 1)
        ledger.charge(0, count, steps(count))
        ledger.close()
        assert len(trials_on_disk(ledgers)[0]) == attempt + 1
    assert sorted(path.name for path in ledgers.glob("*")) == [
        "trial-0000.attempt-1.jsonl",
        "trial-0000.attempt-2.jsonl",
        "trial-0000.jsonl",
    ]
    assert len(trial_spent(ledgers, 0)) == 10
    # All attempts were made; a study's sum holds them, and its check knows their names.
    assert len(study_spent(ledgers, {0: 60})) == 60
    with pytest.raises(LedgerError, match="holds 60 charged events, but at least 61"):
        study_spent(ledgers, {0: 61})
    with pytest.raises(LedgerError, match="the journal does not know: 0"):
        study_spent(ledgers, {})


def test_a_file_without_charges_is_not_an_attempt(ledgers):
    open_ledger(ledgers, fresh=True).close()
    ledger = open_ledger(ledgers, fresh=True)
    assert times_opened(ledger) == 2
    ledger.close()
    assert len(list(ledgers.glob("*"))) == 1


def test_a_fresh_attempt_is_refused_while_the_old_one_runs(ledgers):
    ledger = open_ledger(ledgers)
    ledger.charge(0, 10, steps(10))
    with pytest.raises(LedgerError, match="another process"):
        open_ledger(ledgers, fresh=True)
    ledger.charge(10, 20, steps(10))
    ledger.close()
    assert len(trial_spent(ledgers, 0)) == 20


def test_what_is_inherited_counts_against_the_cap_and_is_charged_to_nobody(ledgers):
    start = Plan((EventRun(PoissonGaussian(1.0, 0.02), 15),))
    ledger = open_ledger(ledgers, inherited=start)
    before = epsilon_of(start, delta=1e-5)
    assert ledger.epsilon() == before
    assert len(ledger) == 0
    fits = next(n for n in range(2000) if not ledger.affords(steps(n + 1)))
    assert 0 < fits < 881  # the last allowed step without it
    with pytest.raises(BudgetExceededError, match="after 15 of the run that the trial starts"):
        ledger.charge(0, fits + 1, steps(fits + 1))
    ledger.charge(0, fits, steps(fits))
    assert before < ledger.epsilon() <= 2.0
    assert ledger.epsilon() == epsilon_of(start + steps(fits), delta=1e-5)
    ledger.close()
    assert trial_spent(ledgers, 0) == steps(fits)
    assert study_spent(ledgers, {0: fits}) == steps(fits)
    ledger = open_ledger(ledgers, inherited=start)
    assert (ledger.inherited, ledger.spent) == (start, steps(fits))
    assert not ledger.affords(steps(1))
    ledger.close()


@pytest.mark.parametrize("now", [Plan(), Plan((EventRun(PoissonGaussian(1.0, 0.02), 14),))])
def test_a_trial_never_starts_from_another_release_than_at_first(ledgers, now):
    first = Plan((EventRun(PoissonGaussian(1.0, 0.02), 15),))
    open_ledger(ledgers, inherited=first).close()
    for _ in range(2):  # the file is free again after the refusal
        with pytest.raises(LedgerError, match="has inherited 15 events, not these"):
            open_ledger(ledgers, inherited=now)
    open_ledger(ledgers, inherited=first).close()
    open_ledger(ledgers, trial=1).close()
    with pytest.raises(LedgerError, match="has inherited 0 events, not these 15"):
        open_ledger(ledgers, trial=1, inherited=first)


def test_a_reservation_is_for_what_a_trial_charges_itself(ledgers):
    study = RenyiFilter.choose([steps(100)], target_epsilon=1.0, delta=1e-5)
    limit = TrialLimit(study, study.cost(steps(100)))
    start = Plan((EventRun(PoissonGaussian(1.0, 0.02), 15),))
    ledger = open_ledger(ledgers, limit=limit, inherited=start)
    ledger.charge(0, 100, steps(100))
    with pytest.raises(BudgetExceededError, match="over the"):
        ledger.charge(100, 101, steps(1))
    ledger.close()


def test_what_a_trial_is_said_to_inherit_is_what_its_ledger_says(ledgers):
    start = Plan((EventRun(PoissonGaussian(1.0, 0.02), 15),))
    assert trial_covered(ledgers, 0, start) == start  # it has not begun
    ledger = open_ledger(ledgers, inherited=start)
    ledger.charge(0, 5, steps(5))
    ledger.close()
    assert trial_covered(ledgers, 0, start, at_least=5) == start + steps(5)
    with pytest.raises(LedgerError, match="has inherited 15 events, and its task 0"):
        trial_covered(ledgers, 0, Plan())
    with pytest.raises(LedgerError, match="holds 5 charged events"):
        trial_covered(ledgers, 0, start, at_least=6)


def test_a_release_is_noted_once(ledgers):
    ledger = open_ledger(ledgers)
    ledger.charge(0, 100, steps(100))
    ledger.note_release(0, "ab" * 32)
    with pytest.raises(LedgerError, match="release 0 was made before"):
        ledger.note_release(0, "cd" * 32)
    ledger.charge(100, 150, steps(50))
    ledger.note_release(1, "ef" * 32)
    assert {n: r["charged"] for n, r in ledger.releases.items()} == {0: 100, 1: 150}
    assert ledger.position_charges == steps_charged(ledgers, 0) == 150
    ledger.close()


def test_files_of_other_names_are_no_trials(ledgers):
    open_ledger(ledgers, 3).close()
    put(ledgers / "trial-three.jsonl", b"")
    assert set(trials_on_disk(ledgers)) == {3}
