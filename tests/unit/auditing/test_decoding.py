"""Scores tell canaries that are in from those that are not, as far as noise lets them."""

import numpy as np
import pytest

from dpsweep.auditing.decoding import count_right, log_likelihood_ratios


def released(noise, *, rate=1.0, m=60, entries=400, alike=0.0, seed=0):
    """Return (release, contributions, is_in): each contribution of norm 1, noise as given."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(m, entries)) + alike * rng.normal(size=entries)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    is_in = rng.random(m) < 0.5
    drawn = is_in & (rng.random(m) < rate)
    return drawn @ rows + noise * rng.normal(size=entries), rows, is_in


@pytest.mark.parametrize("alike", [0.0, 5.0])
def test_a_release_without_noise_tells_all(alike):
    total, rows, is_in = released(0.0, alike=alike)
    scores = log_likelihood_ratios(total, rows, 1.0)
    assert ((scores > 0) == is_in).all()


def test_noise_that_is_smaller_than_charged_is_noticed():
    """The noise is charged as 1 and is 0.05; as many as are certain are right."""
    total, rows, is_in = released(0.05, alike=3.0)
    assert ((log_likelihood_ratios(total, rows, 1.0) > 0) == is_in).mean() > 0.95


def test_much_noise_hides_who_is_in():
    right = []
    for seed in range(20):
        total, rows, is_in = released(30.0, seed=seed)
        right.append(((log_likelihood_ratios(total, rows, 1.0) > 0) == is_in).mean())
    assert abs(np.mean(right) - 0.5) < 0.1


def test_of_a_sample_those_that_were_drawn_are_told():
    total, rows, is_in = released(0.0, rate=0.3)
    scores = log_likelihood_ratios(total, rows, 0.3)
    drawn = scores > 1
    assert drawn.sum() >= 3
    assert is_in[drawn].all()
    # Not being drawn makes it a little likelier to be out: log(1 - q).
    assert scores[~drawn] == pytest.approx(np.log(0.7), abs=1e-6)


def test_ratios_are_those_of_two_gaussians_for_one_canary():
    """With q = 1 the ratio is (y.u - 1/2) for noise of 1: by hand, at the charged noise."""
    rng = np.random.default_rng(1)
    row = np.zeros((1, 10_000), np.float32)
    row[0, 0] = 1.0
    total = rng.normal(size=10_000)
    ratio = log_likelihood_ratios(total, row, 1.0)
    assert ratio == pytest.approx([total[0] - 0.5], abs=1e-4)


def test_a_canary_that_adds_nothing_has_no_score():
    total, rows, _ = released(1.0)
    rows[3] = 0.0
    assert log_likelihood_ratios(total, rows, 0.5)[3] == 0.0
    assert not log_likelihood_ratios(total, np.zeros_like(rows), 0.5).any()


def test_guesses_are_counted_from_both_ends():
    scores = np.array([5.0, 4.0, 0.0, -4.0, -5.0])
    is_in = np.array([True, False, True, True, False])
    assert count_right(scores, is_in, 4, two_sided=True) == 2
    assert count_right(scores, is_in, 3, two_sided=False) == 2
    assert count_right(scores, is_in, 1, two_sided=True) == 1
