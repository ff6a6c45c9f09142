"""Declared composition: its epsilon against other accountants, and what it refuses."""

import dataclasses
import json
import math
import random

import pytest

from dpsweep.foundation.errors import BadInputError, BudgetExceededError, LedgerError
from dpsweep.foundation.logs import open_log
from dpsweep.ledgers.admission import check_admitted
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import STUDY_FILE, TrialLedger, TrialLimit, trial_file
from dpsweep.privacy import accountants
from dpsweep.privacy.accountants import (
    analytic_gaussian_epsilon,
    composed_loss,
    epsilon_and_order,
    fine_pld_epsilon,
)
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.privacy.composition.declared import (
    UNDECLARED,
    DeclaredClass,
    DeclaredComposition,
    declared_classes,
    declared_epsilon,
    declared_interval,
)
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan, PoissonGaussian
from dpsweep.privacy.events.multiset import multiset

DELTA = 1e-5
RATE = 512 / 54_000


def steps(noise, count, rate=RATE, part="private"):
    return Plan((EventRun(PoissonGaussian(noise, rate), count, part=part),))


def classes(*rows):
    return tuple(
        DeclaredClass(PoissonGaussian(s, q), n, "private", i) for i, (q, s, n) in enumerate(rows)
    )


# Upper ends of a PRV accountant (eps_error .002), and values of dp_accounting's PLD.
REFERENCES = [
    (((RATE, 9.8516, 3792), (RATE, 1.0223, 316)), 1.0012832, 0.9993158),
    (((RATE, 1.0129, 316),), 1.0017392, 0.9997329),
    (((RATE, 1.9416, 2528),), 1.0018907, 0.9999153),
]


@pytest.mark.parametrize(("rows", "prv_upper", "pld"), REFERENCES)
def test_its_epsilon_lies_between_the_ends_of_another_accountant(rows, prv_upper, pld):
    epsilon = declared_epsilon(classes(*rows), DELTA)
    assert prv_upper - 0.004 <= epsilon <= prv_upper + 0.003
    assert epsilon == pytest.approx(pld, abs=1e-3)


@pytest.mark.parametrize(("noise", "whole"), [(2.0147, 1.0), (0.9902, 3.0)])
def test_two_sampling_rates_compose(noise, whole):
    rows = ((RATE, 9.8516, 3792), (2 * RATE, noise, 632))
    assert declared_epsilon(classes(*rows), DELTA) == pytest.approx(whole, abs=2e-3)


def test_a_finer_discretisation_moves_nothing():
    """Probes have tiny steps, of which a coarse grid would overcharge many."""
    from dpsweep.privacy.events.losses import composed_loss
    from dpsweep.privacy.events.multiset import in_order

    declared = classes((RATE, 10.818, 3792), (RATE, 1.0223, 316))
    epsilon, interval = declared_epsilon(declared, DELTA), declared_interval(declared, DELTA)
    events = in_order((c.event, c.count) for c in declared)
    finer = composed_loss(events, interval / 2).get_epsilon_for_delta(DELTA)
    assert 0 <= epsilon - finer < 1e-3 * epsilon
    coarse = composed_loss(events, 1e-3).get_epsilon_for_delta(DELTA)
    assert coarse > epsilon + 1e-3


@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-11, 1e-13])
def test_rounding_in_long_convolutions_is_on_the_private_side(delta):
    """So many Gaussians, all but one of whose records enter, are one Gaussian of mu = 1."""
    many = (DeclaredClass(PoissonGaussian(30_000**0.5, 1 - 1e-13), 30_000),)
    exact = analytic_gaussian_epsilon(1.0, delta)
    assert exact <= declared_epsilon(many, delta) <= 1.4 * exact


@pytest.mark.parametrize(("delta", "is_renyi"), [(1e-8, False), (1e-11, True)])
def test_a_delta_that_rounding_may_use_up_has_the_renyi_bound(delta, is_renyi):
    """30,000 convolved events may be off by 3e-11; that clipping at 0 hides it is no bound."""
    from dpsweep.privacy.accountants import epsilon_and_order
    from dpsweep.privacy.events.multiset import in_order

    many = (DeclaredClass(PoissonGaussian(30_000**0.5, 1 - 1e-13), 30_000),)
    renyi, _ = epsilon_and_order(in_order((c.event, c.count) for c in many), delta)
    assert (declared_epsilon(many, delta) == renyi) is is_renyi


def test_parts_of_the_records_are_not_added_up():
    both = declared_classes([[(steps(2, 300), 4), (steps(2, 300, part="validation"), 4)]])
    one = declared_classes([[(steps(2, 300), 4)]])
    assert declared_epsilon(both, DELTA) == declared_epsilon(one, DELTA)


# --- The theorem, on mechanisms small enough to be enumerated ---------------------------------


def randomised_response(epsilon):
    return math.exp(epsilon) / (1 + math.exp(epsilon))


def adaptive_delta(policy, units, target):
    """Return the exact delta at ``target`` of an adversary that chooses classes by what it saw.

    Each unit answers one bit by randomised response of its class's epsilon, about records or about
    their neighbours; ``policy`` says from the bits so far which class comes next, or stops.
    """
    leaves = []

    def go(seen, left, p, q):
        name = policy(seen, left)
        if name is None or not left[name]:
            leaves.append((p, q))
            return
        keep = randomised_response(name)
        rest = {**left, name: left[name] - 1}
        go((*seen, 0), rest, p * keep, q * (1 - keep))
        go((*seen, 1), rest, p * (1 - keep), q * keep)

    go((), units, 1.0, 1.0)
    assert math.isclose(sum(p for p, _ in leaves), 1)
    return sum(max(p - math.exp(target) * q, 0) for p, q in leaves)


@pytest.mark.parametrize("seed", range(30))
def test_no_adaptive_choice_within_the_classes_passes_the_declared_epsilon(seed):
    rng = random.Random(seed)
    units = {0.3: 4, 0.9: 3}
    memory = {}

    def policy(seen, left):
        if seen not in memory:
            memory[seen] = rng.choice([*[n for n in left if left[n]], None if seen else 0.3])
        return memory[seen]

    def everything(seen, left):
        return next((name for name in left if left[name]), None)

    for target in (0.0, 0.5, 1.0, 2.0):
        whole = adaptive_delta(everything, units, target)
        assert adaptive_delta(policy, units, target) <= whole + 1e-12


# --- What is refused --------------------------------------------------------------------------


def declared(*plans, target=8.0):
    return DeclaredComposition.of(plans, target_epsilon=target, delta=DELTA)


def test_what_costs_more_than_the_target_is_not_declared():
    with pytest.raises(BadInputError, match=r"cost epsilon=.* over 0\.5"):
        declared((steps(1.0, 316), 8), target=0.5)
    just = declared((steps(2, 10), 2)).epsilon
    assert declared((steps(2, 10), 2), target=just).epsilon == just
    with pytest.raises(BadInputError, match="the declared events cost"):
        declared((steps(2, 10), 2), target=0.999 * just)


def test_a_class_is_declared_once():
    event = PoissonGaussian(2, 0.1)
    twice = (DeclaredClass(event, 3), DeclaredClass(event, 4))
    with pytest.raises(BadInputError, match="declared twice"):
        DeclaredComposition.at(twice, target_epsilon=8, delta=DELTA)
    with pytest.raises(BadInputError, match="in two phases, 0 and 1"):
        declared_classes([[(steps(2, 1), 1), (steps(3, 1), 1)], [(steps(2, 1), 1)]])
    with pytest.raises(BadInputError, match="needs a class"):
        declared()


def test_the_only_class_of_its_part_is_open_in_every_phase():
    score = steps(90, 1, part="validation")
    probe, final = steps(4, 10) + score, steps(2, 10) + score
    classes = declared_classes([[(probe, 3)], [(final, 1)]])
    assert [(c.part, c.count, c.phase) for c in classes] == [
        ("private", 30, 0),
        ("validation", 4, None),
        ("private", 10, 1),
    ]
    composition = DeclaredComposition.at(classes, target_epsilon=8, delta=DELTA)
    raw = json.loads(json.dumps(composition.to_json()))
    assert DeclaredComposition.from_json(raw) == composition
    account = CompositionAccount(composition)
    assert account.reserve(0, composition.cost(probe))
    assert not account.fits(composition.cost(final))  # a probe is running
    account.settle(0, composition.cost(probe))
    assert account.reserve(3, composition.cost(final))
    assert not account.fits(composition.cost(probe))  # its phase does not come again
    assert not account.fits(composition.cost(steps(90, 4, part="validation")))
    assert account.fits(composition.cost(score))
    every = [dataclasses.replace(c, phase=None) for c in classes]
    with pytest.raises(BadInputError, match="on private records, each needs a phase"):
        DeclaredComposition.at(every, target_epsilon=8, delta=DELTA)


def test_an_undeclared_event_takes_what_there_is_none_of():
    composition = declared((steps(2, 10), 3))
    other = steps(1.99, 1)
    assert composition.cost(other)[UNDECLARED] == 1
    assert "is not among the events that the study has declared" in composition.refusal(other)
    assert composition.refusal(steps(2, 1)) == ""
    assert "validation records is not" in composition.refusal(steps(2, 1, part="validation"))
    account = CompositionAccount(composition)
    assert not account.reserve(0, composition.cost(other))
    assert composition.is_over(composition.cost(other))


def test_an_empty_class_is_refused_and_what_was_taken_is_never_given_back():
    composition = declared((steps(2, 10), 2))
    account = CompositionAccount(composition)
    whole = composition.cost(steps(2, 10))
    assert account.reserve(0, whole)
    assert account.reserve(1, whole)
    assert not account.reserve(2, composition.cost(steps(2, 1)))
    account.settle(0, composition.cost(steps(2, 6)))
    assert not account.reserve(2, composition.cost(steps(2, 5)))
    assert account.reserve(2, composition.cost(steps(2, 4)))
    account.settle(0, composition.cost(steps(2, 1)))  # a file that was restored, a refund
    assert account.settled(0)["0"] == 6
    assert not account.fits(composition.cost(steps(2, 1)))


def test_nothing_below_the_declared_epsilon_is_said():
    composition = declared((steps(2, 10), 2), target=3.0)
    assert composition.spent_epsilon(composition.cost(steps(2, 1))) == 3.0
    assert composition.epsilon < 3


def test_a_phase_begins_when_nothing_of_the_last_one_runs_and_that_is_over_then():
    probe, final = steps(9.0, 10), steps(1.0, 10)
    found = declared_classes([[(probe, 3)], [(final, 1)]])
    composition = DeclaredComposition.at(found, target_epsilon=8, delta=DELTA)
    account = CompositionAccount(composition)
    assert account.reserve(0, composition.cost(probe))
    assert not account.reserve(9, composition.cost(final))
    account.settle(0, composition.cost(probe))
    assert account.reserve(9, composition.cost(final))
    assert not account.reserve(1, composition.cost(probe))
    account.settle(9, composition.cost(final))
    assert not account.reserve(1, composition.cost(probe))
    assert "in several phases" in composition.refusal(probe + final)


def test_what_is_written_is_read_again():
    both = declared_classes([[(steps(9, 7), 2)], [(Plan((EventRun(Gaussian(20.0), 5),)), 3)]])
    composition = DeclaredComposition.at(both, target_epsilon=8, delta=DELTA)
    assert DeclaredComposition.from_json(composition.to_json()) == composition
    with pytest.raises(BadInputError, match="cost epsilon"):
        DeclaredComposition.from_json({**composition.to_json(), "target_epsilon": 0.01})


# --- On disk ----------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path):
    composition = declared((steps(2, 10), 2))
    ledger = StudyLedger(tmp_path)
    ledger.open_composition(lambda: composition)
    yield ledger
    ledger.close()


def opened(study, trial, plan):
    composition = study.open_composition(lambda: None)
    limit = TrialLimit(composition, composition.cost(plan))
    return TrialLedger(
        trial_file(study.directory, trial), budget=None, accountant="rdp", limit=limit
    )


def test_a_unit_that_was_taken_before_a_kill_is_lost(study):
    plan = steps(2, 10)
    assert study.reserve(0, plan, epsilon=1.0)
    ledger = opened(study, 0, plan)
    ledger.charge(0, 4, steps(2, 4))
    ledger.close()  # as kill -9 does: nothing of it ran
    again = opened(study, 0, plan)
    assert not again.affords(steps(2, 7))
    with pytest.raises(BudgetExceededError, match=r"11 times .* over the 10 that"):
        again.charge(0, 7, steps(2, 7))
    again.charge(0, 6, steps(2, 6))
    again.close()
    study.settle(0, "finished")
    assert study.remaining == {"0": 10, UNDECLARED: 0}
    assert study.downgraded is None


def test_a_trial_that_charges_something_undeclared_takes_the_claim_with_it(study):
    assert study.reserve(0, steps(2, 10), epsilon=1.0)
    with TrialLedgerWithoutLimit(study, 0) as ledger:
        ledger.charge(0, 1, steps(1.9, 1))
    study.settle(0, "finished")
    assert "more than its reservation" in study.downgraded


class TrialLedgerWithoutLimit(TrialLedger):
    def __init__(self, study, trial):
        super().__init__(trial_file(study.directory, trial), budget=None, accountant="rdp")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def test_no_class_is_added_to_a_ledger(study):
    study.reserve(0, steps(2, 10), epsilon=1.0)
    study.close()
    larger = declared((steps(2, 10), 99))
    with open_log(study.directory / STUDY_FILE) as log:
        log.append({"kind": "declared", **larger.to_json()})
    with pytest.raises(LedgerError, match="not fixed before the first trial"):
        StudyLedger(study.directory)


def test_a_record_that_declares_more_than_it_states_is_refused(study):
    path = study.directory / STUDY_FILE
    study.close()
    with open_log(path) as log:
        records = [dict(record) for record in log.records]
    path.unlink()
    with open_log(path) as log:
        for record in records:
            for segment in record.get("classes", ()):
                segment["steps"] *= 10_000
            log.append({k: v for k, v in record.items() if k not in ("seq", "crc")})
    again = StudyLedger(study.directory)
    with pytest.raises(LedgerError, match="cost more than epsilon=8"):
        again.open_composition(lambda: None)
    again.close()


def test_a_process_that_comes_after_the_end_of_its_trial_charges_nothing(study):
    """A driver was killed; the next one settles a trial whose process is still on its way."""
    plan = steps(2, 10)
    study.reserve(0, plan, epsilon=1.0, task="task")
    check_admitted(study.directory, 0, plan, "task")
    study.settle_lost({0: "failed"})
    assert study.reserve(1, plan, epsilon=1.0)
    with pytest.raises(LedgerError, match="trial 0 has been settled"):
        check_admitted(study.directory, 0, plan, "task")


def test_a_trial_whose_process_lives_keeps_all_that_it_holds(study):
    plan = steps(2, 10)
    study.reserve(0, plan, epsilon=1.0)
    alive = opened(study, 0, plan)
    study.settle(0, "failed", died=True)
    assert study.remaining["0"] == 10
    alive.charge(0, 3, steps(2, 3))
    alive.close()
    assert study.fits(plan)
    assert not study.fits(steps(2, 18))


def test_what_is_declared_outlives_a_launch_with_another_wish(study):
    first = study.open_composition(lambda: None)
    study.close()
    again = StudyLedger(study.directory)
    assert again.open_composition(lambda: declared((steps(2, 10), 99))) == first
    again.close()


def test_pure_mechanisms_may_be_declared_too():
    composition = declared((Plan((EventRun(Laplace(2.0), 3),)), 2))
    assert composition.epsilon <= 6 * 0.5 + 1e-6
    assert len(composition.classes) == 1


def test_what_costs_nothing_at_a_delta_is_discretised_once(monkeypatch):
    """A fine grid of rare and large losses takes minutes and gigabytes, for the same 0."""
    intervals = []

    def composed(events, interval):
        intervals.append(interval)
        return composed_loss(events, interval)

    monkeypatch.setattr(accountants, "composed_loss", composed)
    events = multiset(Plan((EventRun(PoissonGaussian(0.3, 1e-4), 2),)))
    assert epsilon_and_order(events, 1.85e-4)[0] > 4
    assert fine_pld_epsilon(events, 1.85e-4)[0] == 0
    assert len(intervals) == 1
