"""The noise model of learning curves: its formula, its noise, its constants against the tables."""

import math

import numpy as np
import pytest

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.simulation.noise_model import NoiseCurves
from dpsweep.spec.space.parameter import Parameter

SCALE = Parameter("optim.noise_scale", "loguniform", 0.05, 500.0)
ENDS = {"fractions": np.ones(1), "epsilons": np.ones(1)}


def curves(seed=0, **fields):
    return NoiseCurves(SCALE, **{"seed": seed, "chance": 0.1, "num_validation": 6000, **fields})


@pytest.mark.parametrize(
    ("signal", "accuracy"),
    [
        # Signals of plans of batch 512 and 316 steps, of batch 1,024 and 632 steps; q = B / 54,000.
        (925, 0.7343), (3112, 0.7872), (8985, 0.8116), (12996, 0.8178),
        (932, 0.7376), (3272, 0.7896), (13042, 0.8193), (26037, 0.8270),
    ],
)  # fmt: skip
def test_accuracy_at_the_best_value_is_that_of_the_tables(signal, accuracy):
    model = curves()
    assert model.accuracy(model.best_value, signal) == pytest.approx(accuracy, abs=0.003)


def test_half_a_decade_costs_one_to_two_points_and_the_top_is_flat():
    model = curves()
    best, beside, off = (
        model.accuracy(model.best_value * 10**decades, 9000) for decades in (0, 0.15, 0.5)
    )
    assert 0.01 < best - off < 0.02
    assert best - beside < 0.002
    assert off == pytest.approx(model.accuracy(model.best_value / math.sqrt(10), 9000))


def test_one_random_value_of_four_decades_loses_about_six_points():
    models = [curves(seed) for seed in range(300)]
    values = 5 * 10 ** np.random.default_rng(0).uniform(-2, 2, 300)
    losses = [m.accuracy(m.best_value, 9000) - m.accuracy(v, 9000) for m, v in zip(models, values)]
    assert 0.05 < np.mean(losses) < 0.075


def test_the_best_value_lies_in_the_middle_third_of_the_range():
    decades = [math.log10(curves(seed).best_value / 5) for seed in range(300)]
    assert -2 / 3 < min(decades) < -0.6
    assert 0.6 < max(decades) < 2 / 3


def test_accuracy_grows_with_signal_and_steps_from_a_guess():
    model = curves()
    by_signal = [model.accuracy(5.0, signal) for signal in (0.0, 1.0, 100.0, 1e4, 1e12)]
    assert by_signal == sorted(by_signal)
    assert by_signal[0] == 0.1
    assert by_signal[-1] <= 0.84
    fractions = np.array([0.1, 0.5, 1.0])
    _, exact = model.scores(
        0, {SCALE.name: 5.0}, fractions=fractions, epsilons=fractions, signal=9000.0
    )
    assert list(exact) == sorted(exact)


def test_noise_is_that_of_equal_runs_and_of_validation_records():
    model = curves(noise_std=0.01)
    both = [model.scores(t, {SCALE.name: 5.0}, signal=9000.0, **ENDS) for t in range(2000)]
    seen, exact = (np.array(part)[:, 0] for part in zip(*both))
    assert np.std(exact) == pytest.approx(0.0025, rel=0.1)
    binomial = math.sqrt(0.81 * 0.19 / 6000)
    assert np.std(seen - exact) == pytest.approx(math.hypot(binomial, 0.01), rel=0.1)


def test_the_same_arguments_give_the_same_scores():
    first, again, other = (
        curves(seed).scores(3, {SCALE.name: 5.0}, signal=9000.0, **ENDS) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("signal", [None, math.inf])
def test_a_plan_without_noise_is_refused(signal):
    with pytest.raises(BadInputError, match="this plan has none"):
        curves().scores(0, {SCALE.name: 5.0}, signal=signal, **ENDS)
