"""Noise and batches that are not drawn anew are seen, and what is drawn anew is not called known."""

import numpy as np
import pytest

from dpsweep.auditing.randomness import (
    are_correlated,
    are_crosswise_correlated,
    num_draws,
)

RNG = np.random.default_rng(3)


def test_independent_noise_is_never_called_correlated():
    assert not any(are_correlated(RNG.normal(size=(10, size))) for size in (2, 10, 65, 1000))
    assert not are_crosswise_correlated(RNG.normal(size=(5, 500)), RNG.normal(size=(5, 500)))


@pytest.mark.parametrize("scale", [1.0, -3.0, 1e-6])
def test_noise_that_is_the_same_up_to_its_scale_is_correlated(scale):
    noise = RNG.normal(size=81)
    others = list(RNG.normal(size=(3, 81)))
    assert are_correlated([noise, *others, scale * noise])
    assert are_crosswise_correlated([noise], [*others, scale * noise])


def test_no_noise_is_not_correlated_with_anything():
    assert not are_correlated([np.zeros(100), np.zeros(100), RNG.normal(size=100)])


def test_noises_of_two_lengths_are_compared_where_both_are():
    noise = RNG.normal(size=300)
    assert are_correlated([noise, noise[:200]])


@pytest.mark.parametrize(("rate", "records"), [(0.1, 500), (0.01, 500), (0.001, 500), (0.5, 20)])
def test_so_many_batches_are_drawn_that_a_coincidence_is_out_of_the_question(rate, records):
    draws = num_draws(rate, records)
    assert (rate**2 + (1 - rate) ** 2) ** (records * draws) <= 1e-9
    assert num_draws(rate, 0) is None
