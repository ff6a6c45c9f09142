"""A selection on a secret part and a final run: priced as the events that they are."""

import dataclasses
import json

import numpy as np
import pytest

from dpsweep.foundation.errors import LedgerError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import (
    NO_PLAN,
    EventRun,
    Gaussian,
    Plan,
    PoissonGaussian,
    PoissonSubset,
    RepeatAndSelect,
)
from dpsweep.privacy.selection.bounds import ProfileBound, bound_of
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.selection.on_subset import SubsetBound, recorded_bound

DELTA = 1e-5
TRIAL = Plan((EventRun(PoissonGaussian(1.51327, 0.01), 1000),))
SCORES = Plan((EventRun(Gaussian(3.0), 5, phase="validation", part="validation"),))


def by_hand(trial, final, rate, selection, part="private"):
    searched = RepeatAndSelect(selection.mean, selection.shape, trial)
    if part == "private":
        searched = PoissonSubset(rate, Plan((EventRun(searched, 1),)))
    return Plan((EventRun(searched, 1), *final.runs))


def bound_on(trials, finals, *, rate=0.1, accountant="rdp"):
    return SubsetBound.of(trials, finals, rate=rate, final_epsilon=1.0, accountant=accountant)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [0, 1])
@pytest.mark.parametrize(
    ("accountant", "close"), [("rdp", 1e-6), ("pld", 2e-4)], ids=["rdp", "pld"]
)
def test_one_configuration_costs_what_its_events_do(shape, accountant, close):
    selection = Selection(10, shape)
    cost = bound_on([TRIAL], [TRIAL], accountant=accountant).selected(selection, delta=DELTA)
    events = by_hand(TRIAL, TRIAL, 0.1, selection)
    exact = epsilon_of(events, delta=DELTA, accountant=accountant)
    assert exact <= cost <= exact * (1 + close)
    alone = epsilon_of(TRIAL, delta=DELTA, accountant=accountant)
    whole = by_hand(TRIAL, TRIAL, 1.0, selection)
    assert alone < cost < epsilon_of(whole, delta=DELTA, accountant=accountant)


@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.slow)])
def test_several_configurations_cost_more_than_any_alone_and_any_pair(accountant):
    """Two plans of one epsilon have other curves and profiles, which cross."""
    selection = Selection(5, 1)
    few = Plan((EventRun(PoissonGaussian(2.0, 0.2), 40),))
    many = Plan((EventRun(PoissonGaussian(0.7, 0.004), 300),))
    both = bound_on([few, many], [few, many], accountant=accountant)
    cost = both.selected(selection, delta=DELTA)
    for trial in (few, many):
        for final in (few, many):
            pair = bound_on([trial], [final], accountant=accountant)
            assert pair.selected(selection, delta=DELTA) <= cost * (1 + 1e-9)
            assert both.covers(trial)
            assert both.covers_final(final)


def test_the_part_amplifies_and_a_smaller_one_does_more():
    selection = Selection(10, 1)
    costs = [bound_on([TRIAL], [TRIAL], rate=r).selected(selection, delta=DELTA) for r in
             (0.02, 0.1, 0.4, 0.999)]  # fmt: skip
    assert costs == sorted(costs)
    assert costs[0] > epsilon_of(TRIAL, delta=DELTA)
    search = bound_on([TRIAL], [NO_PLAN])
    assert search.search_epsilon(selection, delta=DELTA) == pytest.approx(
        search.selected(selection, delta=DELTA)
    )


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_scores_of_search_and_final_run_add_up_and_are_not_amplified(accountant):
    selection = Selection(10, 1)
    bound = bound_on([TRIAL + SCORES], [TRIAL + SCORES], accountant=accountant)
    scores = SCORES.labelled("private")
    events = by_hand(scores, scores, 0.1, selection, part="validation")
    exact = epsilon_of(events, delta=DELTA, accountant=accountant)
    private = bound_on([TRIAL], [TRIAL], accountant=accountant).selected(selection, delta=DELTA)
    assert exact > 2 * private  # of the two parts the larger counts
    assert bound.selected(selection, delta=DELTA) == pytest.approx(exact, rel=3e-4)
    cheap = Plan((dataclasses.replace(SCORES.runs[0], event=Gaussian(300.0)),))
    both = bound_on([TRIAL + cheap], [TRIAL + cheap], accountant=accountant)
    assert both.selected(selection, delta=DELTA) == pytest.approx(private)


def test_a_plan_that_reads_other_parts_or_more_is_not_covered():
    bound = bound_on([TRIAL], [TRIAL], accountant="pld")
    assert bound.covers(TRIAL.moved("private", "private"))
    assert not bound.covers(TRIAL.moved("private", "rest"))
    assert not bound.covers(TRIAL + SCORES)
    more = Plan((EventRun(PoissonGaussian(1.51327, 0.01), 1001),))
    assert not bound.covers(more)
    assert not bound.covers_final(more)
    assert bound.covers(TRIAL.slice(0, 400))


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_ledger_gives_it_back_as_it_was(accountant):
    bound = bound_on([TRIAL + SCORES], [TRIAL + SCORES], accountant=accountant)
    again = recorded_bound(json.loads(json.dumps(bound.to_json())))
    selection = Selection(4, 1)
    assert again.accountant == accountant
    assert again.final_epsilon == 1.0
    assert again.selected(selection, delta=DELTA) == bound.selected(selection, delta=DELTA)
    assert again.covers(TRIAL + SCORES)
    plain = bound_of([TRIAL], accountant)
    assert type(recorded_bound(plain.to_json())) is type(plain)


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 1.5}, {"rate": None}, {"final_epsilon": 0}, {"accountant": "gdp"},
        {"search": {}}, {"final": {"private": {"curve": [1.0]}}}, {"accountant": "pld"},
    ],
)  # fmt: skip
def test_an_edited_record_is_refused(change):
    raw = bound_on([TRIAL], [TRIAL]).to_json()["subset"]
    with pytest.raises(LedgerError):
        recorded_bound({"subset": {**raw, **change}})


def test_a_profile_below_what_is_recorded_is_seen():
    """A bound is pointwise: equal epsilons at one delta are not enough."""
    at = bound_on([TRIAL], [TRIAL], accountant="pld").search["private"].profile
    lower = ProfileBound(np.minimum(at.deltas, at.deltas[100]))
    assert not lower.covers(TRIAL)
