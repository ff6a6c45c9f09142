"""Mistakes that honest searches invite: each is refused, or seen to claim too little if it is made.

Where the mistake cannot be made with this tool, an exact mechanism shows what it would cost.
"""

from __future__ import annotations

import copy
import math
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr

from dpsweep.foundation.errors import BudgetExceededError, LedgerError, SpecError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, TrialLimit, trial_file
from dpsweep.privacy.accountants import analytic_gaussian_epsilon, epsilon_of
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.privacy.composition.declared import (
    DeclaredClass,
    DeclaredComposition,
    declared_epsilon,
)
from dpsweep.privacy.events import (
    EventRun,
    Gaussian,
    Laplace,
    Plan,
    PoissonGaussian,
    RepeatAndSelect,
)
from dpsweep.privacy.events.losses import profile_of
from dpsweep.privacy.events.repeat_and_select import selected_profile
from dpsweep.privacy.selection.bounds import bound_of, read_bound
from dpsweep.privacy.selection.number import Selection
from dpsweep.search.probes import Probe, next_run
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.methods.noise_rates import noise_lr_of

DELTA = 1e-5


def steps(noise, count, rate=0.01, part="private"):
    return Plan((EventRun(PoissonGaussian(noise, rate), count, part=part),))


def divergence(one, other, epsilon):
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


# --- u, not s, at another length or batch -------------------------------------------------------

PROBES = {
    "name": "probes",
    "data": {"dataset": "digits", "validation": {"visibility": "public"}},
    "privacy": {"accounting": "composed", "study_epsilon": 3.0, "delta": 1e-5},
    "search": {
        "strategy": "probe",
        "probe": {"num_probes": 5, "epsilon": 0.3},
        "space": {"method": "dp_sgd", "optim.noise_lr": {"loguniform": [0.1, 1000]}},
    },
}


@pytest.mark.parametrize(
    "overrides", [{"train.max_steps": 5}, {"train.epochs": 3}, {"batch.expected": 32}]
)
def test_u_is_not_carried_to_another_length_or_batch(overrides):
    raw = copy.deepcopy(PROBES)
    raw["search"]["probe"]["overrides"] = overrides
    with pytest.raises(SpecError, match="is good for runs of the same length and batch only"):
        SweepSpec(**raw)
    scale = {"optim.noise_scale": {"loguniform": [0.1, 100]}, "optim.input_norm": 4.0}
    raw["search"]["space"] = {"method": "dp_sgd", **scale}
    assert SweepSpec(**raw).search.probe.overrides == overrides


@pytest.mark.parametrize(("batch", "length"), [(512, 1264), (1024, 316), (2048, 79)])
def test_a_copied_u_would_be_another_noise(batch, length):
    """The noise in a logit after all steps, u X sqrt(T) / (B (1 - m)), moves if u is copied."""
    hparams = {"optim.noise_lr": None, "optim.noise_scale": 5.0, "optim.input_norm": 4.0}

    def noise_in_a_logit(u, batch, length):
        return u * 4.0 * math.sqrt(length) / batch

    of_probe = noise_lr_of(hparams, np.ones(316), expected_batch=512)
    of_final = noise_lr_of(hparams, np.ones(length), expected_batch=batch)
    assert noise_in_a_logit(of_probe, 512, 316) == pytest.approx(5.0)
    assert noise_in_a_logit(of_final, batch, length) == pytest.approx(5.0)
    copied = noise_in_a_logit(of_probe, batch, length)
    assert max(copied / 5.0, 5.0 / copied) >= 1.99


# --- The end of a grid, without spares ----------------------------------------------------------


@pytest.mark.parametrize("best", [-0.7, 5.3])
def test_an_end_without_spares_is_told_and_spares_find_what_lies_beyond(best):
    def score(value):
        return 1 - 0.01 * (math.log10(value) - best) ** 2

    def play(spares):
        probes = [Probe(n, 10.0**n, score(10.0**n)) for n in range(5)]
        while not (run := next_run(probes, ratio=10.0, spares=spares)).is_final:
            probes.append(Probe(len(probes), run.value, score(run.value)))
            spares -= 1
        return run

    without, with_spares = play(0), play(2)
    assert -1e-9 <= math.log10(without.value) <= 4 + 1e-9
    assert abs(math.log10(without.value) - best) > 0.5
    assert "the best is at an end of the range: a wider one may hold a better" in without.reason
    assert math.log10(with_spares.value) == pytest.approx(best)
    assert "a wider one" not in with_spares.reason
    assert SweepSpec(**PROBES).search.probe.spares == 2  # by default


# --- A selection by a profile at one delta, in one direction, of a number that is known ----------


def same_epsilon_plans():
    """Return two plans of one epsilon at DELTA that differ elsewhere, and that epsilon."""
    laplace = Plan((EventRun(Laplace(1.0)),))
    epsilon = epsilon_of(laplace, delta=DELTA, accountant="pld")
    mu = brentq(lambda mu: analytic_gaussian_epsilon(mu, DELTA) - epsilon, 0.1, 1.0, xtol=1e-14)
    return laplace, Plan((EventRun(Gaussian(1 / mu)),)), epsilon


def test_an_epsilon_at_one_delta_does_not_price_a_selection():
    first, second, epsilon = same_epsilon_plans()
    assert epsilon_of(second, delta=DELTA, accountant="pld") == pytest.approx(epsilon, rel=1e-6)
    selection = Selection(30, 2)
    each = [bound_of([plan], "pld") for plan in (first, second)]
    prices = [bound.selected(selection, delta=DELTA) for bound in each]
    assert prices[0] > 1.5 * prices[1]
    assert not each[1].covers(first)
    both = bound_of([second, first], "pld")
    assert both.selected(selection, delta=DELTA) >= max(prices) * (1 - 1e-9)
    for record in ({"epsilon": epsilon, "delta": DELTA}, {"profile": [DELTA]}):
        with pytest.raises(LedgerError, match="no bound that this version knows"):
            read_bound(record)


def test_one_direction_of_a_subsampled_gaussian_claims_too_little():
    """Of dp_accounting's two directions the smaller one passes for less; ours takes the larger."""
    loss = PoissonGaussian(0.8, 0.05).privacy_loss(1e-3).self_compose(10)
    at = np.linspace(0.0, 4.0, 9)
    directions = [
        np.asarray(pmf.get_delta_for_epsilon(at)) for pmf in (loss._pmf_remove, loss._pmf_add)
    ]
    assert np.all(profile_of(loss)(at) == np.maximum(*directions))
    smaller = np.minimum(*directions)
    best = selected_profile(profile_of(loss), 10, 1)(at)
    claimed = selected_profile(lambda e: np.interp(np.abs(e), at, smaller), 10, 1)(at)
    assert np.any(claimed < 0.9 * best)


@pytest.mark.parametrize("known", [5, 20])
def test_the_best_of_a_known_number_of_runs_costs_as_much_as_all_of_them(known):
    """So K is secret: randomised responses of .5 cost .5 K once it is known, in the worst order."""
    once = 0.5
    keep = math.exp(once) / (1 + math.exp(once))
    all_worse = np.array([(1 - keep) ** known, keep**known])
    assert math.log(all_worse[1] / all_worse[0]) == pytest.approx(known * once)

    def profile(epsilons):
        return np.maximum(keep - np.exp(epsilons) * (1 - keep), 0)

    claimed = 3 * once  # of a secret K, of whatever mean, at shape 1
    assert selected_profile(profile, known, 1)(np.array([claimed]))[0] == 0
    spent = np.array([all_worse[1], 1 - all_worse[1]]), np.array([all_worse[0], 1 - all_worse[0]])
    assert divergence(*spent, claimed) > 1e-5
    assert "its best run only" in RepeatAndSelect.released_part


# --- Validation records that train, too ---------------------------------------------------------


def test_parts_that_share_records_add_up():
    """A record that trains and validates is in two Gaussians, which together are a larger one."""
    training, scores = Gaussian(4.0), Gaussian(3.0)
    apart = Plan((EventRun(training), EventRun(scores, part="validation")))
    shared = Plan((EventRun(training), EventRun(scores)))
    exact = analytic_gaussian_epsilon(math.hypot(1 / 4.0, 1 / 3.0), DELTA)
    largest = analytic_gaussian_epsilon(1 / 3.0, DELTA)
    for accountant in ("rdp", "pld"):
        assert epsilon_of(shared, delta=DELTA, accountant=accountant) >= exact > 1.2 * largest
    assert epsilon_of(apart, delta=DELTA, accountant="pld") == pytest.approx(largest, rel=1e-6)
    classes = [DeclaredClass(event, 1, "private", n) for n, event in enumerate((training, scores))]
    assert declared_epsilon(classes, DELTA) >= exact


# --- Declared classes: whatever is chosen, and whoever is killed ----------------------------------

CLASSES = {"seldom": (PoissonGaussian(1.5, 0.6), 3), "clear": (PoissonGaussian(1.0, 0.8), 2)}


def chances(event, ends):
    """Return how likely a noisy sum is in each interval: without a record, and with it."""
    sigma, rate = event.noise_multiplier, event.sample_rate
    without = np.diff(ndtr(ends / sigma))
    return without, (1 - rate) * without + rate * np.diff(ndtr((ends - 1) / sigma))


@settings(max_examples=60, deadline=None)
@given(choices=st.randoms(use_true_random=False), delta=st.sampled_from([1e-2, 1e-3, 1e-5]))
def test_random_adaptive_choices_never_pass_the_declared_epsilon(choices, delta):
    """An adversary picks class, intervals and end of each step by all that it saw; enumerated."""
    classes = tuple(DeclaredClass(event, count) for event, count in CLASSES.values())
    composition = DeclaredComposition.at(classes, target_epsilon=99.0, delta=delta)
    leaves = []

    def go(left, one, other):
        names = [name for name, count in left.items() if count]
        if not names or choices.random() < 0.01:
            leaves.append((one, other))
            return
        name, shift = choices.choice(names), choices.uniform(-0.5, 0.5)
        ends = np.array([-np.inf, shift, shift + 1, shift + 2, np.inf])
        rest = {**left, name: left[name] - 1}
        for without, added in zip(*chances(CLASSES[name][0], ends)):
            go(rest, one * without, other * added)

    go({name: count for name, (_, count) in CLASSES.items()}, 1.0, 1.0)
    one, other = np.array(leaves).T
    assert one.sum() == pytest.approx(1)

    def spent(epsilon):
        return max(divergence(*pair, epsilon) for pair in ((one, other), (other, one)))

    assert spent(composition.epsilon) <= delta
    if len(leaves) > 900:  # hardly any end came early: power: three fifths of it are not enough
        assert spent(0.6 * composition.epsilon) > delta


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_schedule_takes_more_units_than_were_declared(data):
    """Reservations, partial ends, refunds and repeated ends, in any order, of two phases."""
    probe, final = steps(9.0, 5), steps(2.0, 7)
    classes = (DeclaredClass(PoissonGaussian(9.0, 0.01), 20), DeclaredClass(
        PoissonGaussian(2.0, 0.01), 14, "private", 1))  # fmt: skip
    composition = DeclaredComposition.at(classes, target_epsilon=99.0, delta=DELTA)
    account, running, taken = CompositionAccount(composition), {}, {"0": 0, "1": 0}
    for number in range(data.draw(st.integers(1, 14))):
        plan = data.draw(st.sampled_from([probe, final, probe + final, steps(3.0, 1)]))
        if account.reserve(number, composition.cost(plan)):
            assert plan in (probe, final)
            running[number] = plan
        if running and data.draw(st.booleans()):
            trial = data.draw(st.sampled_from(sorted(running)))
            ended = running.pop(trial)
            part = ended.slice(0, data.draw(st.integers(0, len(ended))))
            spent = composition.cost(part)
            account.settle(trial, spent)
            account.settle(trial, composition.cost(Plan(())))  # a refund
            taken = {name: taken[name] + spent[name] for name in taken}
        held = [composition.cost(plan) for plan in running.values()]
        for name in taken:
            assert taken[name] + sum(cost[name] for cost in held) <= composition.limits[name]
        assert not (taken["1"] or any(c["1"] for c in held)) or not account.fits(
            composition.cost(steps(9.0, 1))
        )
        assert composition.spent_epsilon(account.committed) == 99.0


TAKES_AND_DIES = """
import os, signal, sys
from pathlib import Path
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, TrialLimit, trial_file
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
root, events = Path(sys.argv[1]), Plan((EventRun(PoissonGaussian(2.0, 0.01), 4),))
study = StudyLedger(root)
composition = study.open_composition(lambda: None)
whole = Plan((EventRun(PoissonGaussian(2.0, 0.01), 10),))
assert study.reserve(0, whole, epsilon=1.0)
limit = TrialLimit(composition, composition.cost(whole))
ledger = TrialLedger(trial_file(root, 0), budget=None, accountant="rdp", limit=limit)
ledger.charge(0, 4, events)
os.kill(os.getpid(), signal.SIGKILL)  # and no step was run
"""


def test_kill_9_between_a_charge_and_its_steps_loses_the_units(tmp_path):
    """A real SIGKILL of driver and trial; the next ones have six of ten units left, not ten."""
    composition = DeclaredComposition.of([(steps(2, 10), 2)], target_epsilon=8, delta=DELTA)
    ledger = StudyLedger(tmp_path)
    ledger.open_composition(lambda: composition)
    ledger.close()
    died = subprocess.run([sys.executable, "-c", TAKES_AND_DIES, str(tmp_path)], timeout=120)
    assert died.returncode == -signal.SIGKILL
    study = StudyLedger(tmp_path)
    assert study.open_composition(lambda: None) == composition
    limit = TrialLimit(composition, composition.cost(steps(2, 10)))
    again = TrialLedger(trial_file(tmp_path, 0), budget=None, accountant="rdp", limit=limit)
    with pytest.raises(BudgetExceededError):
        again.charge(4, 11, steps(2, 7))
    again.charge(4, 10, steps(2, 6))
    again.close()
    study.settle(0, "finished")
    assert study.remaining["0"] == 10
    assert study.reserve(1, steps(2, 10), epsilon=1.0)
    assert not study.reserve(2, steps(2, 1), epsilon=1.0)
    study.close()
