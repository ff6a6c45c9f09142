"""What a study's ledger, its trials' ledgers, its journal and its spec must agree on."""

import numpy as np
import pytest

from dpsweep.foundation.errors import LedgerError
from dpsweep.foundation.logs import open_log
from dpsweep.foundation.words import numbers
from dpsweep.ledgers.history import check_terms
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.study_state import read_study_state
from dpsweep.ledgers.trial import STUDY_FILE, TrialLedger, trial_file
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.privacy.rdp import ORDERS
from dpsweep.privacy.selection.bounds import RenyiBound
from dpsweep.privacy.selection.number import Selection
from tests.helpers.logs import content, put

FILTER = RenyiFilter.at(8, target_epsilon=2.0, delta=1e-5)
BUDGET = PrivacyBudget(target_epsilon=100.0, delta=1e-5)
TERMS = {
    "privacy.accounting": "composed",
    "privacy.study_epsilon": 2.0,
    "privacy.delta": 1e-5,
    "data.validation.visibility": "public",
}


def steps(count):
    return Plan((EventRun(PoissonGaussian(1.0, 0.01), count),))


def charge(directory, trial, count):
    ledger = TrialLedger(trial_file(directory, trial), budget=BUDGET, accountant="rdp")
    ledger.charge(0, count, steps(count))
    ledger.close()


def opened(directory, in_journal=None, terms=TERMS):
    return StudyLedger(directory, terms=terms, in_journal=in_journal)


@pytest.fixture(params=["with a filter", "without"])
def study(ledgers, request):
    """Trial 0 has finished, trial 1 is paused, trial 2 runs, trial 3 was reserved a moment ago."""
    ledger = opened(ledgers)
    if request.param == "with a filter":
        ledger.open_composition(lambda: FILTER)
    for trial in range(4):
        assert ledger.reserve(trial, steps(10), epsilon=0.5)
    for trial in range(3):
        charge(ledgers, trial, 10 - trial)
    ledger.settle(0, "finished")
    ledger.settle(1, "paused")
    ledger.close()
    return ledgers


def test_what_agrees_is_opened(study):
    ledger = opened(study, in_journal={0, 1, 2})
    ledger.settle_lost({0: "finished", 1: None, 2: None})
    assert ledger.on_dataset == dict.fromkeys(range(4), 1)
    assert (ledger.num_in_flight, ledger.has_ended(0), ledger.has_ended(1)) == (1, True, False)
    ledger.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("trial", [0, 1, 2, 3])
def test_a_trial_that_was_admitted_has_a_ledger_file(study, trial):
    trial_file(study, trial).unlink()
    with pytest.raises(LedgerError, match=f"trial-000{trial}.jsonl is missing"):
        opened(study)


@pytest.mark.parametrize("trial", [0, 1])
def test_a_settled_trial_has_at_least_what_it_was_settled_with(study, trial):
    path = trial_file(study, trial)
    path.unlink()
    charge(study, trial, 5)
    with pytest.raises(LedgerError, match=f"settled the trial with {10 - trial}"):
        opened(study)


def test_a_settled_trial_did_not_cost_less_than_it_was_settled_with(ledgers):
    ledger = opened(ledgers)
    ledger.open_composition(lambda: FILTER)
    ledger.reserve(0, steps(10), epsilon=0.5)
    charge(ledgers, 0, 10)
    ledger.settle(0, "finished")
    ledger.close()
    path = trial_file(ledgers, 0)
    path.unlink()
    cheaper = Plan((EventRun(PoissonGaussian(5.0, 0.01), 10),))
    with open_log(path) as log:
        log.append({"kind": "charge", "start": 0, "stop": 10, "events": cheaper.to_json()})
    with pytest.raises(LedgerError, match=r"a Renyi cost of .* on the private records"):
        opened(ledgers)


def test_what_is_settled_is_not_reserved_again(study):
    ledger = opened(study)
    with pytest.raises(LedgerError, match="trial 0 has finished already"):
        ledger.reserve(0, steps(10), epsilon=0.5)
    assert ledger.reserve(1, steps(10), epsilon=0.5), "a paused trial goes on"
    ledger.close()


def test_a_trial_that_the_journal_lacks_stops_the_study(study):
    for in_journal in ({0, 1}, {1, 2}, set()):
        with pytest.raises(LedgerError, match=r"knows trials that the journal does not"):
            opened(study, in_journal=in_journal)


def test_a_trial_that_the_ledger_lacks_stops_the_study(study):
    with pytest.raises(LedgerError, match=r"the journal knows trials that .* does not: 7"):
        opened(study, in_journal={0, 1, 2, 7})


def test_a_reservation_that_nobody_heard_of_is_given_back_once(study):
    ledger = opened(study, in_journal={0, 1, 2})
    before = ledger.committed
    ledger.settle_lost({0: "finished", 1: None, 2: None})
    assert before is None or ledger.committed["private"] < before["private"]
    ledger.close()
    ledger = opened(study, in_journal={0, 1, 2})
    assert ledger.on_dataset == dict.fromkeys(range(4), 1), "a dataset ledger may have heard of 3"
    assert ledger.reserve(3, steps(10), epsilon=0.5), "it has run nothing"
    assert ledger.on_dataset == {0: 1, 1: 1, 2: 1, 3: 2}
    assert ledger.reserve(3, steps(10), epsilon=0.5), "it runs"
    assert ledger.reserve(1, steps(10), epsilon=0.5), "a paused trial goes on"
    assert ledger.on_dataset == {0: 1, 1: 1, 2: 1, 3: 2}
    ledger.close()
    charge(study, 3, 1)
    with pytest.raises(LedgerError, match="journal does not: 3"):
        opened(study, in_journal={0, 1, 2})


def test_an_end_that_only_the_journal_has_is_written_down(study):
    ledger = opened(study, in_journal={0, 1, 2})
    ledger.settle_lost({0: "finished", 1: None, 2: "pruned"})
    assert ledger.has_ended(2)
    ledger.close()
    trial_file(study, 2).unlink()
    with pytest.raises(LedgerError, match="missing"):
        opened(study)


def test_a_study_ledger_of_before_files_were_named_is_still_opened(ledgers):
    """Reservations had no ``has_file``, settlements no ``charged``: a cost is what there is."""
    plan = steps(10)
    with open_log(ledgers / STUDY_FILE) as log:
        log.append({"kind": "study", "study_id": "ab"})
        log.append({"kind": "filter", **FILTER.to_json()})
        cost = FILTER.cost(plan)
        for trial in (0, 1):
            digest = {"num_events": 10, "plan_sha256": "x", "epsilon": 0.5, "cost": cost}
            log.append({"kind": "reserve", "trial": trial, **digest})
        log.append({"kind": "settle", "trial": 0, "state": "finished", "cost": cost})
    charge(ledgers, 0, 10)
    opened(ledgers, in_journal={0, 1}).close()
    trial_file(ledgers, 0).unlink()
    with pytest.raises(LedgerError, match="a Renyi cost of 0 at order 8 on the private records"):
        opened(ledgers, in_journal={0, 1})


# --- Terms ----------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("privacy.study_epsilon", 1.0, "is 1, and the study was launched with 2"),
        ("privacy.delta", 1e-9, "is 1e-09, and the study was launched with 1e-05"),
        ("privacy.accounting", "public", "is public, and the study was launched with composed"),
        ("data.validation.visibility", "exact", "is exact, and the study was launched with public"),
    ],
)
def test_a_study_is_opened_on_the_terms_of_its_first_launch_only(study, key, value, told):
    with pytest.raises(LedgerError, match=f"{key} {told}"):
        opened(study, terms={**TERMS, key: value})
    opened(study, terms={**TERMS, "privacy.of_a_later_version": 1}).close()


def test_without_terms_on_record_the_filter_has_them(ledgers):
    ledger = opened(ledgers, terms=None)
    ledger.open_composition(lambda: FILTER)
    ledger.close()
    state = read_study_state(ledgers)
    check_terms(ledgers, state, TERMS)
    for change in ({"privacy.study_epsilon": 1.0}, {"privacy.accounting": "unaccounted"}):
        with pytest.raises(LedgerError, match="was launched with"):
            check_terms(ledgers, state, {**TERMS, **change})


def test_without_a_budget_on_record_no_mode_has_one(ledgers):
    ledger = opened(ledgers, terms=None)
    ledger.reserve(0, steps(1), epsilon=0.5)
    ledger.close()
    state = read_study_state(ledgers)
    for mode in ("composed", "select"):
        with pytest.raises(LedgerError, match="one without a budget of the whole study"):
            check_terms(ledgers, state, {**TERMS, "privacy.accounting": mode})
    check_terms(ledgers, state, {**TERMS, "privacy.accounting": "unaccounted"})


def test_a_file_that_is_removed_or_replaced_while_it_is_written_takes_no_more(ledgers):
    path = ledgers / "log.jsonl"
    log = open_log(path)
    log.append({"kind": "a"})
    put(ledgers / "copy", content(path))
    path.unlink()
    with pytest.raises(LedgerError, match="was removed while it was being written"):
        log.append({"kind": "b"})
    (ledgers / "copy").rename(path)
    with pytest.raises(LedgerError, match="was replaced while it was being written"):
        log.append({"kind": "b"})
    log.close()
    with open_log(path) as again:
        assert [record["kind"] for record in again.records] == ["a"]


def test_a_journal_that_knows_more_than_the_ledger_is_refused(study):
    with pytest.raises(LedgerError, match=r"knows trials that .* does not: 17, 18"):
        opened(study, in_journal={0, 1, 2, 17, 18})


def test_the_terms_of_a_selection_are_those_of_its_charge(ledgers):
    ledger = StudyLedger(ledgers)
    ledger.charge_selection(Selection(10, 1.0), RenyiBound(np.ones(len(ORDERS))), 1.7, 1e-5)
    ledger.close()
    state = read_study_state(ledgers)
    terms = {"privacy.accounting": "select", "privacy.delta": 1e-5}
    check_terms(ledgers, state, terms)
    for key, value in (("privacy.accounting", "composed"), ("privacy.delta", 1e-6)):
        with pytest.raises(LedgerError, match=f"{key} is {value}"):
            check_terms(ledgers, state, {**terms, key: value})


def test_many_lost_trials_are_told_by_their_ends():
    assert numbers([3, 0, 1, 7, 8, 9]) == "0, 1, 3, 7, 8, 9"
    assert numbers([*range(750, 1004), 2, 5]) == "2, 5, 750 to 1003"
