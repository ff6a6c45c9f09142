"""The best of K runs by its privacy profile: known values, exact mechanisms, other accountants."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpsweep.privacy.accountants import analytic_gaussian_epsilon, epsilon_of
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan, PoissonGaussian
from dpsweep.privacy.events.losses import _convex, loss_of_profile, profile_of
from dpsweep.privacy.events.repeat_and_select import (
    RepeatAndSelect,
    selected_profile,
    selection_gamma,
    selection_shift,
)
from dpsweep.privacy.selection.bounds import EPSILONS, bound_of

DELTA = 1e-5
MU = {1.0: 0.268051123211294, 3.0: 0.7191174352217912}  # of one Gaussian with this epsilon


def gaussian(mu):
    return Plan((EventRun(Gaussian(1 / mu)),))


def best_of(plan, mean, shape, *more, delta=DELTA, accountant="pld"):
    runs = (EventRun(RepeatAndSelect(mean, shape, plan)), *more)
    return epsilon_of(Plan(runs), delta=delta, accountant=accountant)


# Base epsilon, E[K], eta: the shift and the total in closed form, and what an explicit order costs.
GAUSSIANS = [
    (1.0, 10, 0, 0.36914020831867, 1.512752990819186, 1.4473668),
    (1.0, 10, 1, 0.24091666879728, 1.6254461200950625, 1.532),
    (1.0, 50, 1, 0.39692130109536, 2.0291948790478447, 1.897),
    (3.0, 10, 0, 0.97244395123448, 4.342788593454487, 4.214),
    (3.0, 10, 1, 0.63460022854687, 4.6395450993137475, 4.453),
]


@pytest.mark.parametrize(("base", "mean", "shape", "root", "total", "lower"), GAUSSIANS)
def test_the_best_of_gaussians_costs_what_the_closed_form_says(
    base, mean, shape, root, total, lower
):
    mu = MU[base]

    def once(epsilons):
        top = epsilons / mu
        return np.where(np.isfinite(top), _normal(mu / 2 - top), 0) - np.exp(epsilons) * _normal(
            -mu / 2 - top
        )

    assert selection_shift(once, mean, shape) / (1 + shape) == pytest.approx(root, abs=1e-9)
    ours = best_of(gaussian(mu), mean, shape)
    assert ours == pytest.approx(total, abs=1e-4)
    assert lower <= total <= ours + 1e-9
    assert ours < best_of(gaussian(mu), mean, shape, accountant="rdp")


def _normal(x):
    from scipy.special import ndtr

    return ndtr(x)


@pytest.mark.parametrize(
    ("noise", "mean", "shape", "total", "papernot_steinke"),
    [
        (1.51327, 10, 0, 1.373, 1.758),
        (1.51327, 10, 1, 1.470, 2.109),
        (1.02239, 10, 0.5, 2.677, 3.666),
        (0.86468, 50, 1, 4.910, 6.707),
    ],
)
def test_the_best_of_subsampled_runs(noise, mean, shape, total, papernot_steinke):
    base = Plan((EventRun(PoissonGaussian(noise, 0.01), 1000),))
    ours = best_of(base, mean, shape)
    assert ours == pytest.approx(total, abs=2e-3)
    theirs = best_of(base, mean, shape, accountant="rdp")
    assert theirs == pytest.approx(papernot_steinke, abs=1e-3)


def test_poisson_numbers_of_runs():
    assert best_of(gaussian(MU[1.0]), 10, "poisson") == pytest.approx(2.210, abs=1e-3)


def test_one_run_of_which_the_best_is_taken_costs_that_run():
    assert best_of(gaussian(MU[1.0]), 1, 1) == pytest.approx(1.0, abs=1e-4)


def test_a_selection_composes_with_other_events():
    """The best of one Gaussian, twice, is two Gaussians."""
    twice = Plan((EventRun(RepeatAndSelect(1, 0, gaussian(MU[1.0])), 2),))
    exact = analytic_gaussian_epsilon(math.sqrt(2) * MU[1.0], DELTA)
    bound = epsilon_of(twice, delta=DELTA, accountant="pld")
    assert exact <= bound == pytest.approx(exact, abs=1e-4)
    base = Plan((EventRun(PoissonGaussian(1.51327, 0.01), 1000),))
    final = EventRun(PoissonGaussian(1.51327, 0.01), 1000)
    assert best_of(base, 10, 0, final) == pytest.approx(1.8247, abs=5e-3)


def test_the_best_of_randomised_responses_is_within_its_bound():
    """Its epsilon at delta 0 is in closed form: eps .5, mean 10, eta 1: .9063."""
    base = Plan((EventRun(Laplace(2.0)),))  # .5-DP, as the response
    assert 0.9063 <= best_of(base, 10, 1, delta=1e-12) <= (2 + 1) * 0.5


def test_costs_that_no_grid_holds_are_left_to_the_renyi_bound():
    base = gaussian(30.0)  # epsilon above 500
    assert best_of(base, 10, 1) == best_of(base, 10, 1, accountant="rdp")


# --- Exact finite mechanisms ------------------------------------------------------------------


def release(chances, mean, shape):
    """Return how likely each output is the best of K runs; later ones are better."""
    below = np.concatenate([[0.0], np.cumsum(chances)])
    below[-1] = 1.0
    if shape == "poisson":
        values = np.exp(mean * (below - 1))
    elif shape == 0:
        gamma = selection_gamma(mean, 0)
        values = np.log1p(-(1 - gamma) * below) / math.log(gamma)
    else:
        gamma = selection_gamma(mean, shape)
        values = ((1 - (1 - gamma) * below) ** -shape - 1) / (gamma**-shape - 1)
    return np.diff(values)


def divergence(one, other, epsilon):
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def profile_between(one, other):
    """Return the exact profile of a finite mechanism, the larger of both directions."""

    def delta(epsilons):
        return np.array(
            [max(divergence(one, other, e), divergence(other, one, e)) for e in epsilons]
        )

    return delta


chances = st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=7)


#: Something rare that is likelier with a record: the best of many runs has it 60 times as often.
RARE: dict = {"one": [1.0, 1.0, 1e-3], "changes": [0, 0, 1.5, 0, 0, 0, 0], "mean": 60}


@settings(max_examples=200, deadline=None)
@example(**RARE, shape=1, epsilon=1.0)
@example(**RARE, shape="poisson", epsilon=0.5)
@given(
    one=chances,
    changes=st.lists(st.floats(-1.5, 1.5), min_size=7, max_size=7),
    mean=st.sampled_from([1.5, 3, 10, 60]),
    shape=st.sampled_from([0, 0.5, 1, 3, "poisson"]),
    epsilon=st.floats(0, 4),
)
def test_no_finite_mechanism_passes_the_bound(one, changes, mean, shape, epsilon):
    one = np.array(one) / sum(one)
    other = one * np.exp(changes[: len(one)])
    other /= other.sum()
    once = profile_between(one, other)
    bound = float(selected_profile(once, mean, shape)(np.array([epsilon]))[0])
    best, best_of_other = release(one, mean, shape), release(other, mean, shape)
    assert divergence(best, best_of_other, epsilon) <= bound + 1e-12
    assert divergence(best_of_other, best, epsilon) <= bound + 1e-12


def test_a_profile_of_one_direction_would_claim_too_little():
    one, other = np.array([0.999, 0.001]), np.array([0.9, 0.1])

    def downwards(epsilons):
        return np.array([divergence(one, other, e) for e in epsilons])

    epsilon = 1.0
    best, best_of_other = release(one, 10, 1), release(other, 10, 1)
    spent = divergence(best_of_other, best, epsilon)
    assert float(selected_profile(downwards, 10, 1)(np.array([epsilon]))[0]) < spent
    both = selected_profile(profile_between(one, other), 10, 1)
    assert float(both(np.array([epsilon]))[0]) >= spent


# --- Profiles as distributions -----------------------------------------------------------------


def test_a_distribution_of_a_profile_has_at_least_that_profile():
    once = profile_of(Gaussian(2.0).privacy_loss(1e-3))
    chosen = selected_profile(once, 10, 1)
    back = profile_of(loss_of_profile(chosen, 1e-3))
    epsilons = np.linspace(0, 4, 50)
    own, others = back(epsilons), chosen(epsilons)
    # Equal where the bound is convex; below it only where it is cut off at 1.
    assert np.all(own[others < 0.2] >= others[others < 0.2] - 1e-12)
    assert np.all(np.diff(own) <= 1e-12)


def test_a_convex_envelope_is_below_and_touches_its_corners():
    places, values = np.array([0.0, 1, 2, 3, 4]), np.array([1.0, 0.9, 0.2, 0.15, 0.0])
    assert _convex(places, values) == pytest.approx([1.0, 0.6, 0.2, 0.1, 0.0])


def exact_gaussian(mu):
    """Return the profile of a Gaussian, to thirty digits."""
    mp = mpmath.mp.clone()
    mp.dps = 30

    def delta(epsilon):
        e = mp.mpf(abs(float(epsilon)))
        ahead = mp.ncdf(mu / mp.mpf(2) - e / mu) - mp.exp(e) * mp.ncdf(-mu / mp.mpf(2) - e / mu)
        return float(ahead if epsilon >= 0 else 1 - mp.exp(-e) * (1 - ahead))

    return lambda epsilons: np.array([delta(e) for e in epsilons])


#: Ten events that are all but Gaussians over all records, and composed by Fourier transforms.
MU_OF_TEN = 1.0
TEN = Plan((EventRun(PoissonGaussian(math.sqrt(10) / MU_OF_TEN, 1 - 1e-12), 10),))


def test_what_rounding_takes_from_a_run_is_paid_for_by_the_best_of_many():
    exact = selected_profile(exact_gaussian(MU_OF_TEN * (1 - 1e-9)), 1000, 1)
    ours = best_of(TEN, 1000, 1, delta=1e-10)
    assert exact(np.array([ours]))[0] <= 1e-10


def test_a_bound_is_above_the_exact_profile_where_rounding_counts():
    exact = exact_gaussian(MU_OF_TEN * (1 - 1e-9))
    deltas = bound_of([TEN], "pld").deltas
    tiny = np.flatnonzero((deltas > 1e-16) & (deltas < 1e-10))
    assert len(tiny) > 10
    assert np.all(deltas[tiny] >= exact(EPSILONS[tiny]))
