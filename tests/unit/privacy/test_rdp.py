"""Renyi curves against the formula itself, and against dp_accounting and Opacus."""

from __future__ import annotations

import math
import time
import warnings

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as reference

from dpsweep.privacy import rdp
from dpsweep.privacy.events import Laplace
from dpsweep.privacy.events.repeat_and_select import repeat_and_select_rdp

SIGMAS = [0.1, 0.3, 0.49, 0.51, 0.8, 1.0, 2.0, 10.0, 100.0]
RATES = [1e-4, 0.01, 0.2, 0.9]


def slow_log_moment(sigma: float, rate: float, order: float) -> float:
    """log E[(1 + u)^a] by Gauss-Legendre panels, for noise that does not overflow."""
    edges = np.linspace(-10 * sigma, order + 10 * sigma, 201)
    points, weights = np.polynomial.legendre.leggauss(24)
    half = np.diff(edges)[:, None] / 2
    z = (edges[:-1, None] + half + half * points).ravel()
    u = rate * np.expm1((2 * z - 1) / (2 * sigma**2))
    excess = np.expm1(order * np.log1p(u)) - order * u
    density = np.exp(-z * z / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    return math.log1p(float(np.sum(excess * density * (half * weights).ravel())))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_integer_orders_equal_dp_accounting(sigma: float, rate: float) -> None:
    orders = np.array([2.0, 3, 5, 10, 17, 63, 128, 1024])
    ours = rdp.poisson_gaussian_rdp(np.array([sigma]), rate, orders)[0]
    theirs = reference._compute_rdp_poisson_subsampled_gaussian(rate, sigma, orders)
    # Theirs adds terms to 1 and loses relative digits of tiny divergences.
    np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-13)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("sigma", [0.49, 0.51, 0.8, 1.0, 2.0, 10.0])
def test_fractional_orders_equal_the_formula_rounded_up(sigma: float, rate: float) -> None:
    orders = np.array([1.0125, 1.3, 2.5, 6.7, 10.9])
    ours = rdp.poisson_gaussian_rdp(np.array([sigma]), rate, orders)[0]
    exact = np.array([slow_log_moment(sigma, rate, a) / (a - 1) for a in orders])
    assert np.all(ours >= exact)
    np.testing.assert_allclose(ours, exact, rtol=1e-7)


def exact_divergence(sigma: float, rate: float, order: float) -> float:
    """r(a) with forty digits, by the trapezoidal rule at less than half the steps of ours."""
    with mpmath.workdps(40):
        s, q, a = mpmath.mpf(sigma), mpmath.mpf(rate), mpmath.mpf(order)

        def excess(z: mpmath.mpf) -> mpmath.mpf:
            u = q * mpmath.expm1((2 * z - 1) / (2 * s * s))
            return mpmath.npdf(z, 0, s) * ((1 + u) ** a - 1 - a * u)

        step = min(s / 5, s * s / 5)
        nodes = (i * step - 12 * s for i in range(math.ceil((order + 24 * sigma) / step)))
        return float(mpmath.log1p(step * mpmath.fsum(map(excess, nodes))) / (a - 1))


# A small fractional part of a high order, where u reaches e^40; u close to where a series begins;
# u large at a rate that is tiny.
@pytest.mark.parametrize(
    ("sigma", "rate", "order"),
    [
        (0.5065, 0.9, 10.1),
        (0.5138, 0.1, 10.1),
        (0.5071, 0.999, 10.1),
        (0.5227, 1e-7, 9.1),
        (0.5227, 1e-7, 8.9),
        (0.6711, 1e-5, 1.0125),
        (4.9363, 1e-3, 1.0125),
        (0.4, 0.3, 10.1),
        (0.2, 1e-6, 3.3),
        (10.0, 0.01, 386.5),  # nodes there weigh less than the least number
        (3.0, 0.2, 77.7),
    ],
)
def test_fractional_orders_are_never_below_the_formula(sigma, rate, order):
    ours = rdp.poisson_gaussian_rdp(np.array([sigma]), rate, np.array([order]))[0, 0]
    exact = exact_divergence(sigma, rate, order)
    assert exact <= ours <= exact * (1 + 1e-7)
    on_the_grid = rdp.poisson_gaussian_rdp(np.array([sigma]), rate)[0, order == rdp.ORDERS]
    assert np.all(on_the_grid >= exact)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_fractional_orders_never_above_dp_accounting_and_equal_opacus(
    sigma: float, rate: float
) -> None:
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = np.array([1.5, 2.5, 4.5, 9.5])
    ours = rdp.poisson_gaussian_rdp(np.array([sigma]), rate, orders)[0]
    theirs = reference._compute_rdp_poisson_subsampled_gaussian(rate, sigma, orders)
    assert np.all(ours <= theirs * (1 + 1e-6) + 1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opacus = np.asarray(
            compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=orders.tolist())
        )
    known = np.isfinite(opacus) & (opacus > 1e-7)
    np.testing.assert_allclose(ours[known], opacus[known], rtol=1e-5)


def test_extreme_arguments_give_numbers_in_the_right_order() -> None:
    noise = np.array([0.0, 1e-200, 1e-5, 1e-3, 0.049, 0.051, 0.1, 0.3, 0.49, 0.51, 1, 1e3, 1e8])
    for rate in [0.0, 1e-9, 1e-3, 0.5, 0.9999999, 1.0]:
        curves = rdp.poisson_gaussian_rdp(noise, rate)
        assert not np.isnan(curves).any()
        assert np.all(curves >= 0)
        # Non-increasing in the noise, non-decreasing in the order.
        assert np.all(curves[1:] <= curves[:-1] * (1 + 3e-9))
        assert np.all(curves[:, :-1] <= curves[:, 1:] * (1 + 3e-9))


def test_chords_below_the_quadrature_are_upper_bounds() -> None:
    # Just above and just below the smallest noise that is integrated.
    sigma = rdp._SMALLEST_QUADRATURE_NOISE
    inside, outside = rdp.poisson_gaussian_rdp(np.array([sigma, sigma * (1 - 1e-9)]), 0.01)
    assert np.all(outside >= inside * (1 - 1e-6))


def test_full_batch_is_the_closed_form() -> None:
    curve = rdp.poisson_gaussian_rdp(np.array([3.0]), 1.0)[0]
    np.testing.assert_allclose(curve, rdp.ORDERS / 18, rtol=2e-8)
    nearly = rdp.poisson_gaussian_rdp(np.array([3.0]), 1 - 1e-12)[0]
    np.testing.assert_allclose(nearly, curve, rtol=1e-6)


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.0, 500.0])
def test_laplace_equals_dp_accounting(scale: float) -> None:
    theirs = [reference._laplace_rdp(1 / scale, order) for order in rdp.ORDERS]
    np.testing.assert_allclose(Laplace(scale).renyi(rdp.ORDERS), theirs, rtol=1e-7)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0, "poisson"])
@pytest.mark.parametrize("mean", [1.5, 10.0, 1000.0])
def test_selection_equals_dp_accounting(shape: float | str, mean: float) -> None:
    once = 1000 * rdp.poisson_gaussian_rdp(np.array([1.51313]), 0.01)[0]
    theirs = reference._compute_rdp_repeat_and_select(
        rdp.ORDERS, once, mean, math.inf if shape == "poisson" else shape
    )
    ours = repeat_and_select_rdp(once, rdp.ORDERS, mean, shape)
    np.testing.assert_allclose(ours, theirs, rtol=1e-7)


def test_conversion_equals_dp_accounting() -> None:
    rng = np.random.default_rng(0)
    for scale in [1e-12, 1e-7, 1e-3, 1.0, 50.0]:
        curves = scale * np.cumsum(rng.uniform(size=(5, len(rdp.ORDERS))), axis=1)
        for delta in [1e-9, 1e-5, 1e-2]:
            ours, _ = rdp.epsilons(curves, rdp.ORDERS, delta)
            theirs = [reference.compute_epsilon(rdp.ORDERS, row, delta)[0] for row in curves]
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)


def test_the_default_orders_are_all_there() -> None:
    assert set(reference.DEFAULT_RDP_ORDERS) <= set(rdp.ORDERS.tolist())
    assert np.all(np.diff(rdp.ORDERS) > 0)


def test_a_thousand_noise_multipliers_take_well_under_a_second() -> None:
    noise = np.linspace(0.7, 2.0, 1000)
    start = time.process_time()
    rdp.poisson_gaussian_rdp(noise, 0.01)
    assert time.process_time() - start < 1.0


def test_a_curve_does_not_depend_on_its_neighbors_in_a_call() -> None:
    # Rows of one block share a width, which reaches far past the end of the narrower ones.
    noise = np.geomspace(0.06, 60, 400)
    for rate in (1e-3, 0.3):
        together = rdp.poisson_gaussian_rdp(noise, rate)
        alone = np.array(
            [rdp.poisson_gaussian_rdp(noise[i : i + 1], rate)[0] for i in (0, 99, 399)]
        )
        assert np.all(np.isfinite(together))
        np.testing.assert_allclose(together[[0, 99, 399]], alone, rtol=1e-10)


@pytest.mark.parametrize("order", [48.0048, 77.7, 500.5])
def test_fractional_orders_that_overflow_are_bounded_by_their_neighbors(order: float) -> None:
    whole = np.array([math.floor(order), math.ceil(order)], dtype=np.float64)
    between = rdp.poisson_gaussian_rdp(np.array([0.9]), 0.05, np.array([order]))[0, 0]
    low, high = rdp.poisson_gaussian_rdp(np.array([0.9]), 0.05, whole)[0]
    assert low < between < high
