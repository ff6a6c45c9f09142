"""Admission to a study's budget: durable, and nothing is given back that may still be charged."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest

from dpsweep.foundation.errors import BadInputError, BudgetExceededError, LedgerError
from dpsweep.foundation.logs import open_log
from dpsweep.ledgers.admission import check_admitted
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.study_state import StudyAccount, account_of, read_study_state
from dpsweep.ledgers.trial import STUDY_FILE, TrialLedger, TrialLimit, trial_file
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import EventRun, Gaussian, NonPrivate, Plan, PoissonGaussian
from dpsweep.privacy.rdp import ORDERS
from dpsweep.privacy.selection.bounds import ProfileBound, RenyiBound
from dpsweep.privacy.selection.number import Selection
from tests.helpers.logs import content, put

FILTER = RenyiFilter.at(8, target_epsilon=2.0, delta=1e-5)
BUDGET = PrivacyBudget(target_epsilon=100.0, delta=1e-5)
STEP = PoissonGaussian(1.0, 0.01)


def steps(count):
    return Plan((EventRun(STEP, count),))


def scores(count, noise_multiplier=50.0):
    return Plan((EventRun(Gaussian(noise_multiplier), count, "score", "validation"),))


def share_of_steps(share):
    """Return as many steps as cost this share of the budget."""
    return steps(int(share * FILTER.budget / FILTER.cost(steps(1))["private"]))


@pytest.fixture
def ledger(ledgers):
    ledger = StudyLedger(ledgers)
    ledger.open_composition(lambda: FILTER)
    yield ledger
    ledger.close()


def reopen(ledger):
    ledger.close()
    ledger.__init__(ledger.directory)


def run(directory, trial, plan, *, charged, limit_plan=None):
    """Charge the first events of a trial's plan as its process would."""
    limit = TrialLimit(FILTER, FILTER.cost(limit_plan or plan))
    trial_ledger = TrialLedger(
        trial_file(directory, trial), budget=BUDGET, accountant="rdp", limit=limit
    )
    if charged:
        trial_ledger.charge(0, charged, plan.slice(0, charged))
    return trial_ledger


def test_without_a_filter_every_trial_is_admitted_and_written_once(ledgers):
    ledger = StudyLedger(ledgers)
    assert ledger.reserve(3, steps(10**6), epsilon=0.5)
    reopen(ledger)
    assert ledger.reserve(3, steps(10**6), epsilon=0.5)
    assert ledger.num_in_flight == 1
    ledger.settle(3, "finished")
    assert (ledger.committed, ledger.remaining, ledger.num_in_flight) == (None, None, 0)
    assert ledger.fits(Plan((EventRun(NonPrivate()),)))
    lines = content(ledgers / STUDY_FILE).decode().splitlines()
    kinds = [line.split('"kind":"')[1].split('"')[0] for line in lines]
    assert kinds == ["study", "reserve", "settle"]
    with pytest.raises(LedgerError, match="must be fixed before the first trial"):
        ledger.open_composition(lambda: FILTER)
    ledger.close()


def test_the_study_has_one_random_name(ledgers):
    names = set()
    for folder in ("a", "b"):
        ledger = StudyLedger(ledgers / folder)
        name = ledger.study_id
        reopen(ledger)
        assert ledger.study_id == name == account_of(read_study_state(ledgers / folder)).study_id
        ledger.close()
        names.add(name)
    assert len(names) == 2
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)


def test_the_filter_on_record_wins(ledger):
    def never():
        raise AssertionError("made a second time")

    assert ledger.open_composition(never) == FILTER
    reopen(ledger)
    assert ledger.open_composition(never) == FILTER
    assert account_of(read_study_state(ledger.directory)).composition == FILTER


def test_nothing_is_admitted_beyond_the_budget_and_refusals_write_nothing(ledger):
    plan = share_of_steps(0.4)
    assert ledger.reserve(0, plan, epsilon=1.0)
    assert ledger.reserve(1, plan, epsilon=1.0)
    before = content(ledger.directory / STUDY_FILE)
    assert not ledger.fits(plan)
    assert not ledger.reserve(2, plan, epsilon=1.0)
    assert not ledger.reserve(3, Plan((EventRun(NonPrivate()),)), epsilon=float("inf"))
    assert content(ledger.directory / STUDY_FILE) == before
    assert ledger.num_in_flight == 2
    reopen(ledger)
    assert not ledger.reserve(2, plan, epsilon=1.0)
    assert ledger.reserve(0, plan, epsilon=1.0), "it runs already"
    assert content(ledger.directory / STUDY_FILE) == before
    committed = account_of(read_study_state(ledger.directory)).committed
    assert committed == ledger.committed
    assert committed["private"] == pytest.approx(0.8 * FILTER.budget, rel=1e-2)


def test_a_trial_is_admitted_once_with_its_task(ledger):
    plan = share_of_steps(0.1)
    assert ledger.reserve(0, plan, epsilon=1.0, task="a" * 64)
    assert ledger.reserve(0, plan, epsilon=1.0, task="a" * 64)
    with pytest.raises(LedgerError, match=r"trial 0 is not the one that was admitted"):
        ledger.reserve(0, plan, epsilon=1.0, task="b" * 64)
    reopen(ledger)
    with pytest.raises(LedgerError, match=r"trial 0 is not the one that was admitted"):
        ledger.reserve(0, plan, epsilon=1.0, task="b" * 64)
    ledger.reserve(1, plan, epsilon=1.0)  # as earlier versions wrote it
    assert ledger.reserve(1, plan, epsilon=1.0, task="a" * 64)


def test_scores_have_a_budget_of_their_own(ledger):
    half = int(0.5 * FILTER.budget / FILTER.cost(scores(1))["validation"])
    assert ledger.reserve(0, share_of_steps(0.7) + scores(half // 2), epsilon=1.0)
    assert ledger.reserve(1, share_of_steps(0.2) + scores(half), epsilon=1.0)
    assert not ledger.reserve(2, steps(1) + scores(half), epsilon=1.0)
    assert ledger.reserve(2, share_of_steps(0.05).labelled("public") + scores(1), epsilon=1.0)
    assert ledger.remaining["validation"] < 0.3 * FILTER.budget


def test_the_unspent_reservation_of_a_pruned_trial_admits_another(ledger):
    plan = share_of_steps(0.6)
    assert ledger.reserve(0, plan, epsilon=1.0)
    assert not ledger.reserve(1, plan, epsilon=1.0)
    trial = run(ledger.directory, 0, plan, charged=len(plan) // 10)
    ledger.settle(0, "pruned")  # its process may keep the file open for a while
    trial.close()
    assert ledger.committed["private"] == pytest.approx(0.06 * FILTER.budget, rel=0.05)
    assert ledger.reserve(1, plan, epsilon=1.0)
    reopen(ledger)
    assert not ledger.reserve(2, plan, epsilon=1.0)


def test_a_trial_that_never_started_gives_everything_back(ledger):
    assert ledger.reserve(0, share_of_steps(0.9), epsilon=1.0)
    ledger.settle(0, "failed", died=True)
    assert ledger.committed == {"private": 0.0, "validation": 0.0}
    with pytest.raises(LedgerError, match="holds 0 charged events, but at least 5"):
        ledger.settle(0, "failed", at_least=5)


def test_a_paused_trial_needs_a_new_reservation_to_go_on(ledger):
    plan = share_of_steps(0.5)
    assert ledger.reserve(0, plan, epsilon=1.0)
    run(ledger.directory, 0, plan, charged=len(plan) // 2).close()
    ledger.settle(0, "paused")
    assert ledger.num_in_flight == 0
    assert ledger.reserve(1, share_of_steps(0.6), epsilon=1.0)
    reopen(ledger)
    assert not ledger.reserve(0, plan, epsilon=1.0)
    run(ledger.directory, 1, share_of_steps(0.6), charged=10).close()
    ledger.settle(1, "pruned")
    assert ledger.reserve(0, plan, epsilon=1.0)
    assert ledger.committed["private"] == pytest.approx(0.5 * FILTER.budget, rel=0.05)
    trial = run(ledger.directory, 0, plan, charged=0)
    half = len(plan) // 2
    trial.charge(half, len(plan), plan.slice(half, len(plan)))
    with pytest.raises(BudgetExceededError):
        trial.charge(0, 1, steps(1))
    trial.close()
    ledger.settle(0, "finished")
    assert ledger.downgraded is None


def test_a_plan_cannot_be_exchanged_after_its_admission(ledger):
    assert ledger.reserve(0, steps(10), epsilon=1.0)
    with pytest.raises(LedgerError, match="admitted with another plan"):
        ledger.reserve(0, steps(11), epsilon=1.0)
    ledger.settle(0, "paused")
    with pytest.raises(LedgerError, match="admitted with another plan"):
        ledger.reserve(0, steps(11), epsilon=1.0)
    assert ledger.reserve(0, Plan((EventRun(STEP, 4), EventRun(STEP, 6))), epsilon=1.0)


def test_the_reservation_of_a_dead_trial_whose_process_lives_is_kept(ledger):
    plan = share_of_steps(0.6)
    assert ledger.reserve(0, plan, epsilon=1.0)
    zombie = run(ledger.directory, 0, plan, charged=10)
    ledger.settle(0, "failed", died=True)
    assert ledger.num_in_flight == 0
    assert not ledger.reserve(1, plan, epsilon=1.0)
    reopen(ledger)
    assert not ledger.reserve(1, plan, epsilon=1.0)
    zombie.charge(10, 20, plan.slice(10, 20))
    zombie.close()
    assert ledger.reserve(1, plan, epsilon=1.0), "its file is free now"
    assert ledger.committed["private"] == pytest.approx(0.6 * FILTER.budget, rel=0.05)
    ledger.settle(1, "finished")
    assert ledger.committed["private"] == pytest.approx(FILTER.cost(steps(20))["private"])
    reopen(ledger)
    assert ledger.committed["private"] == pytest.approx(FILTER.cost(steps(20))["private"])
    assert ledger.downgraded is None


def test_a_trial_over_its_reservation_downgrades_the_study_for_good(ledger):
    plan = share_of_steps(0.1)
    assert ledger.reserve(7, plan, epsilon=1.0)
    run(ledger.directory, 7, plan + plan, charged=len(plan) + 1).close()
    ledger.settle(7, "finished")
    assert ledger.downgraded == ("trial 7 charged more than its reservation of the study's budget")
    ledger.downgrade("another reason")
    reopen(ledger)
    assert "trial 7" in ledger.downgraded
    assert "trial 7" in account_of(read_study_state(ledger.directory)).downgraded


def test_a_charge_after_the_end_is_found_at_the_next_launch(ledger):
    plan = share_of_steps(0.5)
    assert ledger.reserve(0, plan, epsilon=1.0)
    trial = run(ledger.directory, 0, plan, charged=10)
    ledger.settle(0, "pruned")
    trial.charge(10, 20, plan.slice(10, 20))
    trial.close()
    reopen(ledger)
    assert ledger.committed["private"] == pytest.approx(FILTER.cost(steps(20))["private"])
    assert ledger.downgraded is None, "it is within its reservation, and all is within the budget"
    # The others have got what this one gave back: now it is too much.
    assert ledger.reserve(1, share_of_steps(0.9), epsilon=1.0)
    trial = run(ledger.directory, 0, plan, charged=0)
    trial.charge(20, len(plan), plan.slice(20, len(plan)))
    trial.close()
    reopen(ledger)
    assert "budget was passed: trial 0 charged after its end" in ledger.downgraded
    assert not ledger.fits(Plan(()))


def test_a_lost_study_ledger_is_not_begun_again(ledger, ledgers):
    assert ledger.reserve(0, steps(10), epsilon=1.0)
    half = content(ledgers / STUDY_FILE)
    assert ledger.reserve(1, steps(10), epsilon=1.0)
    for trial in (0, 1):
        run(ledgers, trial, steps(10), charged=5).close()
    ledger.close()
    put(ledgers / STUDY_FILE, half)
    with pytest.raises(LedgerError, match="does not know trials whose ledgers lie beside it: 1"):
        StudyLedger(ledgers)
    (ledgers / STUDY_FILE).unlink()
    with pytest.raises(LedgerError, match="does not know trials whose ledgers lie beside it: 0, 1"):
        StudyLedger(ledgers)


def test_two_drivers_at_once_are_refused(ledger):
    with pytest.raises(LedgerError, match="another process"):
        StudyLedger(ledger.directory)


def _charge_and_die(directory):
    ledger = StudyLedger(directory)
    ledger.open_composition(lambda: FILTER)
    plan = share_of_steps(0.6)
    assert ledger.reserve(0, plan, epsilon=1.0)
    assert ledger.reserve(1, share_of_steps(0.3), epsilon=1.0)
    run(directory, 1, share_of_steps(0.3), charged=5).close()
    ledger.settle(1, "pruned")
    run(directory, 0, plan, charged=100)  # charged; before the first step is run:
    os.kill(os.getpid(), 9)


def test_kill_9_keeps_reservations_settlements_and_charges(ledgers):
    process = multiprocessing.get_context("spawn").Process(target=_charge_and_die, args=(ledgers,))
    process.start()
    process.join()
    assert process.exitcode == -9
    ledger = StudyLedger(ledgers)
    assert ledger.num_in_flight == 1
    assert ledger.committed["private"] == pytest.approx(
        FILTER.cost(share_of_steps(0.6))["private"] + FILTER.cost(steps(5))["private"]
    )
    assert not ledger.reserve(2, share_of_steps(0.5), epsilon=1.0)
    ledger.settle(0, "failed", died=True)
    assert ledger.committed["private"] == pytest.approx(FILTER.cost(steps(105))["private"])
    ledger.close()


# --- Selection ------------------------------------------------------------------------------


def test_the_number_of_trials_is_drawn_once(ledgers):
    ledger = StudyLedger(ledgers)
    assert ledger.num_trials(lambda: 17) == 17
    assert ledger.num_trials(lambda: 3) == 17
    reopen(ledger)
    assert ledger.num_trials(lambda: 3) == 17
    ledger.close()


def test_no_trials_at_all_is_a_draw_too(ledgers):
    ledger = StudyLedger(ledgers)
    assert ledger.num_trials(lambda: 0) == 0
    assert ledger.num_trials(lambda: 5) == 0
    ledger.close()


CURVE = np.linspace(0.1, 2, len(ORDERS))
CURVE[-1] = np.inf
BOUNDS = {
    "rdp": (RenyiBound(CURVE), RenyiBound(CURVE / 2)),
    "pld": (ProfileBound(np.array([0.5, 0.1, 1e-9])), ProfileBound(np.array([0.1, 1e-9]))),
}


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_selection_on_record_wins(ledgers, accountant):
    selection = Selection(10, "poisson")
    bound, smaller = BOUNDS[accountant]
    ledger = StudyLedger(ledgers)
    first, epsilon = ledger.charge_selection(selection, bound, 1.7, 1e-5)
    assert (first.to_json(), epsilon) == (bound.to_json(), 1.7)
    reopen(ledger)
    again, epsilon = ledger.charge_selection(selection, smaller, 0.9, 1e-5)
    assert (again.to_json(), epsilon) == (bound.to_json(), 1.7)
    account = account_of(read_study_state(ledgers))
    assert (account.selection, account.selection_epsilon) == (selection, 1.7)
    assert account.selection_accountant == accountant
    for other, delta in ((Selection(11, "poisson"), 1e-5), (selection, 1e-6)):
        with pytest.raises(LedgerError, match="another selection"):
            ledger.charge_selection(other, bound, 1.7, delta)
    ledger.close()


def test_a_reader_of_nothing_reads_nothing(ledgers):
    assert account_of(read_study_state(ledgers / "nowhere")) == StudyAccount()
    assert account_of(read_study_state(ledgers)) == StudyAccount(None, None, {}, None, None, None)


def test_a_filter_on_record_that_promises_too_much_is_refused(ledgers):
    ledger = StudyLedger(ledgers)
    ledger._log.append({"kind": "filter", **FILTER.to_json(), "budget": 1.5})
    ledger.close()
    with pytest.raises(BadInputError, match="costs more than epsilon=2"):
        StudyLedger(ledgers)


def test_what_began_is_written_once_and_stays(ledgers):
    ledger = StudyLedger(ledgers)
    assert (ledger.is_on_dataset, ledger.has_begun_selection) == (False, False)
    assert not ledger.has_num_trials
    for _ in range(2):
        ledger.note_dataset()
        ledger.begin_selection()
    ledger.num_trials(lambda: 4)
    reopen(ledger)
    assert (ledger.is_on_dataset, ledger.has_begun_selection) == (True, True)
    assert ledger.has_num_trials
    text = content(ledgers / STUDY_FILE).decode()
    assert (text.count('"dataset_charge"'), text.count('"begin_selection"')) == (1, 1)
    ledger.close()


def test_a_trial_whose_file_was_deleted_does_not_end(ledger):
    assert ledger.reserve(0, steps(100), epsilon=0.5)
    run(ledger.directory, 0, steps(100), charged=10).close()
    trial_file(ledger.directory, 0).unlink()
    with pytest.raises(LedgerError, match="what it has charged is not known"):
        ledger.settle(0, "finished")


@pytest.mark.parametrize("number", [10, 20])
def test_a_trial_that_nothing_began_may_be_another_one_in_the_next_launch(ledger, number):
    """Killed before the journal knew it, with the sampler's memory lost as well."""
    assert ledger.reserve(0, steps(10), epsilon=1.0, task="a" * 64)
    reopen(ledger)
    ledger.settle_lost({})
    assert ledger.reserve(0, steps(number), epsilon=1.0, task="b" * 64)
    assert ledger.committed == pytest.approx(FILTER.cost(steps(number)))
    check_admitted(ledger.directory, 0, steps(number), "b" * 64)
    with pytest.raises(LedgerError, match="is not the one that was admitted"):
        check_admitted(ledger.directory, 0, steps(10), "a" * 64)
    with pytest.raises(LedgerError, match="is not the one that was admitted"):
        ledger.reserve(0, steps(number), epsilon=1.0, task="a" * 64)


def test_a_trial_that_has_charged_by_now_is_not_unstarted(ledger):
    """Its process held the file when it was settled, and charged before it ended."""
    assert ledger.reserve(0, steps(10), epsilon=1.0, task="a" * 64)
    with open_log(trial_file(ledger.directory, 0)):
        reopen(ledger)
        ledger.settle_lost({})
        assert 0 in ledger._state.kept or 0 in ledger._state.running
    run(ledger.directory, 0, steps(10), charged=4).close()
    reopen(ledger)
    assert ledger._state.settled[0]["charged"] == 4
    with pytest.raises(LedgerError, match="is not the one that was admitted"):
        ledger.reserve(0, steps(10), epsilon=1.0, task="b" * 64)


def test_a_trial_whose_process_may_live_stays_what_it_was(ledger):
    assert ledger.reserve(0, steps(10), epsilon=1.0, task="a" * 64)
    with open_log(trial_file(ledger.directory, 0)):  # a process has just opened it
        reopen(ledger)
        ledger.settle_lost({})
    with pytest.raises(LedgerError, match="is not the one that was admitted"):
        ledger.reserve(0, steps(10), epsilon=1.0, task="b" * 64)
