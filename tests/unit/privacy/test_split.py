"""A search on one part of the records and one run on the rest: the larger counts, within limits."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.privacy.composition.declared import DeclaredComposition
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.composition.split import FINAL_RUN, SplitComposition
from dpsweep.privacy.composition.table import COMPOSITIONS
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian

DELTA = 1e-5
TRIAL = Plan((EventRun(PoissonGaussian(2.0, 0.02), 100),))
FINAL = Plan((EventRun(PoissonGaussian(1.0, 0.02), 100),)).moved("private", "rest")
SCORE = Gaussian(50.0)


def scores(count):
    return Plan((EventRun(SCORE, count, phase="validation", part="validation"),))


def searches(target=2.0):
    return {
        "filter": RenyiFilter.choose([TRIAL], target_epsilon=target, delta=DELTA),
        "declared": DeclaredComposition.of(
            [(TRIAL, 4), (scores(10), 1)], target_epsilon=target, delta=DELTA
        ),
        "gaussian_filter": GaussianFilter.at(target_epsilon=target, delta=DELTA),
    }


KINDS = list(searches())


@pytest.mark.parametrize("kind", KINDS)
def test_it_survives_its_record(kind):
    split = SplitComposition(searches()[kind], 0.1, "rdp", scores(3))
    again = COMPOSITIONS["split"].from_json(split.to_json())
    assert again == split
    assert (again.kind, again.search.kind) == ("split", kind)
    assert (again.searched_share, again.target_epsilon, again.delta) == (0.1, 2.0, DELTA)
    assert (split.choice, split.accountant) == (split.search.choice, split.search.accountant)


@pytest.mark.parametrize("kind", ["filter", "declared"])
def test_the_search_may_spend_all_of_it_and_so_may_the_final_run(kind):
    search = searches()[kind]
    account = CompositionAccount(SplitComposition(search, 0.1, "rdp"))
    alone, number = CompositionAccount(search), 0
    while account.reserve(number, account.composition.cost(TRIAL)):
        assert alone.reserve(number, search.cost(TRIAL))
        number += 1
    assert not alone.reserve(number, search.cost(TRIAL))
    assert number >= 2
    assert 1.5 < epsilon_of(FINAL, delta=DELTA) <= 2.0
    assert account.reserve(number, account.composition.cost(FINAL))
    assert not account.is_over


@pytest.mark.parametrize("kind", ["filter", "declared"])
def test_what_a_final_run_may_take_is_spent_once_there_is_one(kind):
    split = SplitComposition(searches()[kind], 0.1, "pld")
    one, final = split.cost(TRIAL), split.cost(FINAL)
    assert split.spent_epsilon(one) == split.search.spent_epsilon(split.search.cost(TRIAL))
    both = {name: one[name] + final[name] for name in one}
    assert split.spent_epsilon(both) == split.target_epsilon >= epsilon_of(FINAL, delta=DELTA)
    assert "pld" in split.spent_accountant or not split.search.spent_accountant


def test_there_is_one_final_run():
    account = CompositionAccount(SplitComposition(searches()["filter"], 0.1, "rdp"))
    small = FINAL.slice(0, 1)  # however little it costs: delta would count twice
    assert account.reserve(0, account.composition.cost(small))
    assert not account.reserve(1, account.composition.cost(small))
    account.settle(0, account.composition.cost(small))
    assert not account.reserve(1, account.composition.cost(small))


def test_a_final_run_that_has_charged_nothing_gives_its_place_back():
    account = CompositionAccount(SplitComposition(searches()["filter"], 0.1, "rdp"))
    assert account.reserve(0, account.composition.cost(FINAL))
    account.settle(0, account.composition.cost(Plan()))
    assert account.reserve(1, account.composition.cost(FINAL))


def test_a_final_run_over_the_budget_fits_nowhere():
    split = SplitComposition(searches()["filter"], 0.1, "rdp")
    dear = Plan((EventRun(PoissonGaussian(0.8, 0.02), 100, part="rest"),))
    assert epsilon_of(dear, delta=DELTA) > 2.0
    assert split.cost(dear)[FINAL_RUN] == math.inf
    assert "more than epsilon=2" in split.refusal(dear)
    assert not CompositionAccount(split).fits(split.cost(dear))
    assert split.is_over(split.cost(dear))


def test_a_trial_that_reads_both_parts_is_refused():
    split = SplitComposition(searches()["filter"], 0.1, "rdp")
    assert "both" in split.refusal(TRIAL + FINAL)
    assert split.refusal(TRIAL) == split.refusal(FINAL) == ""


@pytest.mark.parametrize("kind", ["filter", "gaussian_filter"])
def test_parts_that_nobody_has_parted_are_added(kind):
    """Validation not disjoint: outside of a split study, `rest` are private records like others."""
    search = searches()[kind]
    noise = Plan((EventRun(Gaussian(30.0), 4),))
    both = noise + noise.moved("private", "rest")
    assert search.cost(both)["private"] == pytest.approx(2 * search.cost(noise)["private"])


def test_parts_that_nobody_has_parted_are_undeclared():
    declared = searches()["declared"]
    assert declared.cost(FINAL)["undeclared"] == len(FINAL)
    assert "not among the events" in declared.refusal(TRIAL.moved("private", "rest"))
    with pytest.raises(BadInputError, match="part"):
        DeclaredComposition.of([(FINAL, 1)], target_epsilon=2.0, delta=DELTA)


@pytest.mark.parametrize("kind", ["filter", "declared"])
def test_scores_of_the_final_run_are_kept_and_no_trial_gets_them(kind):
    split = SplitComposition(searches()[kind], 0.1, "rdp", scores(3))
    account, number = CompositionAccount(split), 0
    while account.reserve(number, split.cost(scores(1))):
        number += 1
        assert number < 10**5
    assert account.reserve(number, split.cost(FINAL + scores(3)))
    every = Plan(FINAL.runs + scores(number + 3).runs)  # what a reader adds up
    assert not split.is_over(split.cost(every))
    assert not split.search.is_over(split.search.cost(every.without("rest")))


def test_more_scores_than_are_kept_are_refused():
    split = SplitComposition(searches()["declared"], 0.1, "rdp", scores(3))
    assert split.refusal(FINAL + scores(3)) == ""
    assert "more noisy scores" in split.refusal(FINAL + scores(4))


def test_what_is_kept_fits_into_the_study():
    with pytest.raises(BadInputError, match="scores of the final run alone"):
        SplitComposition(searches()["declared"], 0.1, "rdp", scores(11))
    with pytest.raises(BadInputError, match="only scores"):
        SplitComposition(searches()["declared"], 0.1, "rdp", TRIAL)
    for share in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(BadInputError):
            SplitComposition(searches()["filter"], share, "rdp")


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["private", "validation", "rest"]),
            st.sampled_from([20.0, 40.0]),
            st.integers(1, 5),
        ),
        max_size=8,
    )
)
def test_the_epsilon_of_a_plan_is_the_largest_of_its_parts(runs):
    plan = Plan(tuple(EventRun(Gaussian(noise), n, part=part) for part, noise, n in runs))
    of_parts = [
        epsilon_of(plan.part(part), delta=DELTA) for part in ("private", "validation", "rest")
    ]
    assert epsilon_of(plan, delta=DELTA) == max(of_parts)
    assert len(plan.without("rest")) + len(plan.part("rest")) == len(plan)
