"""The bound of Steinke, Nasr & Jagielski 2023: published numbers, its level, and its limits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.one_run_audit import (
    ceiling,
    epsilon_lower_bound,
    guesses_needed,
    is_refuted,
    p_value,
)

#: (m, r, v) -> the bound at 95% with delta 0 and 1e-5, as jax_privacy computes it.
PUBLISHED = {
    (1000, 100, 100): (3.49297, 3.46538),
    (1000, 100, 95): (2.17243, 2.16518),
    (1000, 100, 80): (0.95839, 0.95532),
    (1000, 100, 50): (0.0, 0.0),
    (1000, 1000, 600): (0.29747, 0.29723),
    (1000, 1000, 750): (0.97667, 0.97637),
    (1000, 1000, 1000): (5.80907, 5.78228),
    (5000, 500, 490): (3.35634, 3.33567),
    (100, 20, 20): (1.82272, 1.81960),
}


@pytest.mark.parametrize("counts", PUBLISHED)
def test_bounds_are_the_published_ones(counts):
    pure, approximate = PUBLISHED[counts]
    assert epsilon_lower_bound(*counts) == pytest.approx(pure, abs=5.1e-6)
    assert epsilon_lower_bound(*counts, delta=1e-5) == pytest.approx(approximate, abs=5.1e-6)


COUNTS = st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300)).filter(
    lambda counts: counts[2] <= counts[1] <= counts[0]
)
DELTAS = st.sampled_from([0.0, 1e-7, 1e-5, 1e-3])


@given(COUNTS, DELTAS, st.floats(0.5, 0.999))
def test_a_bound_is_refuted_and_a_little_more_is_not(counts, delta, confidence):
    m, guesses, correct = counts
    bound = epsilon_lower_bound(m, guesses, correct, delta=delta, confidence=confidence)
    test = {
        "m": m,
        "guesses": guesses,
        "correct": correct,
        "delta": delta,
        "confidence": confidence,
    }
    assert bound >= 0
    assert not is_refuted(bound + 1e-6, **test)
    if bound > 0:
        assert is_refuted(bound, **test)


@settings(max_examples=60)
@given(COUNTS, DELTAS)
def test_bounds_grow_with_right_guesses_and_fall_with_delta_and_confidence(counts, delta):
    m, guesses, correct = counts
    bound = epsilon_lower_bound(m, guesses, correct, delta=delta)
    if correct < guesses:
        assert epsilon_lower_bound(m, guesses, correct + 1, delta=delta) >= bound
    assert epsilon_lower_bound(m, guesses, correct, delta=delta + 1e-4) <= bound
    assert epsilon_lower_bound(m, guesses, correct, delta=delta, confidence=0.99) <= bound
    assert bound <= ceiling(m, guesses, delta=delta)


@given(st.integers(1, 5000), st.floats(0.5, 0.999))
def test_the_ceiling_is_in_closed_form_without_delta(guesses, confidence):
    exact = max(0.0, float(special.logit((1 - confidence) ** (1 / guesses))))
    assert ceiling(guesses, guesses, confidence=confidence) == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("guesses", [10, 100])
def test_randomised_response_is_refuted_no_more_often_than_it_should_be(epsilon, guesses):
    """Its guesses are right with probability e^eps / (1 + e^eps) each: the worst case of theory."""
    p = special.expit(epsilon)
    values = np.arange(guesses + 1)
    chances = stats.binom.pmf(values, guesses, p)
    for confidence in (0.9, 0.95, 0.999):
        test = {"m": guesses, "guesses": guesses, "delta": 0.0, "confidence": confidence}
        refuted = [is_refuted(epsilon, correct=int(v), **test) for v in values]
        assert chances[refuted].sum() <= 1 - confidence
        more = [is_refuted(epsilon, correct=int(v) - 1, **test) for v in values[1:]]
        assert chances[1:][more].sum() <= 1 - confidence


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_as_many_guesses_as_needed_refute(epsilon):
    needed = guesses_needed(epsilon)
    assert ceiling(needed, needed) >= epsilon > ceiling(needed, needed - 1)


def test_p_values_are_probabilities_and_grow_with_delta():
    values = [p_value(1.0, m=100, guesses=50, correct=45, delta=d) for d in (0, 1e-6, 1e-3, 0.5)]
    assert values == sorted(values)
    assert 0 < values[0] < 0.05
    assert values[-1] == 1.0
    assert not is_refuted(math.inf, m=100, guesses=50, correct=50, delta=0.0)


@pytest.mark.parametrize(
    "counts", [(10, 11, 5), (10, 5, 6), (0, 0, 0), (10, 0, 0), (10, 5, -1), (10.5, 5, 1)]
)
def test_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(BadInputError):
        epsilon_lower_bound(*counts)


@pytest.mark.parametrize("bad", [{"delta": 1.0}, {"delta": -0.1}, {"confidence": 1.0}])
def test_levels_out_of_range_are_refused(bad):
    with pytest.raises(BadInputError):
        epsilon_lower_bound(10, 5, 5, **bad)
