"""Privacy losses of sampled Gaussians, and many of them composed at once, against slower ways."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EventRun, Laplace, Plan, PoissonGaussian
from dpsweep.privacy.events.convolution import _TAIL, composed
from dpsweep.privacy.events.losses import _ROUNDING, composed_loss
from dpsweep.privacy.events.sampled_gaussian import (
    sampled_gaussian_loss,
    sampled_gaussian_profiles,
)
from dpsweep.privacy.schedules import NoiseSchedule

DELTA = 1e-5


def exact_profiles(epsilon, noise, rate):
    """Return both deltas in forty digits, straight from the integral's closed form."""
    with mpmath.workdps(40):
        e, s, q = mpmath.mpf(epsilon), mpmath.mpf(noise), mpmath.mpf(rate)

        def outcome(ratio):
            """Where the likelihood ratio of the mixture is ``ratio``, above 1 - q."""
            return s * s * mpmath.log((ratio - 1 + q) / q) + mpmath.mpf(1) / 2

        def mass(above, mean):
            return mpmath.erfc((above - mean) / (s * mpmath.sqrt(2))) / 2

        def mixture(above):
            return (1 - q) * mass(above, 0) + q * mass(above, 1)

        at = mpmath.exp(e)
        if at <= 1 - q:
            remove = 1 - at
        else:
            remove = mixture(outcome(at)) - at * mass(outcome(at), 0)
        if 1 / at <= 1 - q:
            add = mpmath.mpf(0)
        else:  # the outcomes below, where the mixture is less likely than 1 / at times the other
            x = outcome(1 / at)
            below = mpmath.erfc(x / (s * mpmath.sqrt(2)))
            add = (1 - below / 2) - at * (1 - mixture(x))
        return float(remove), float(add)


def points():
    rng = np.random.default_rng(0)
    for _ in range(150):
        noise, rate = float(np.exp(rng.uniform(-1.5, 5))), float(10 ** rng.uniform(-7, -0.01))
        yield float(rng.normal() * min(3.0, 3 / noise)), noise, rate
    # Tiny rates and large noise, where close numbers are subtracted; both ends of each case.
    yield from [(1e-6, 0.7, 1e-7), (0.0, 200.0, 0.5), (1e-4, 1000.0, 0.9), (-0.2, 1.0, 0.3)]
    yield from [(-0.4, 1.0, 0.3), (0.35, 1.0, 0.3), (0.4, 1.0, 0.3), (12.0, 0.3, 0.01)]
    # Nearly all records.
    yield from [(20.0, 0.3, 1 - 1e-9), (27.0, 0.2, 1 - 1e-13), (29.0, 0.3, 1 - 1e-13)]
    # Beyond the exponent of the largest float.
    yield from [(708.0, 0.02, 1e-4), (1400.0, 0.02, 0.5), (2500.0, 0.0141575, 0.5)]


def test_profiles_are_those_of_forty_digits_rounded_up():
    for epsilon, noise, rate in points():
        exact = exact_profiles(epsilon, noise, rate)
        ours = sampled_gaussian_profiles(np.array([epsilon]), noise, rate)
        for true, (value,) in zip(exact, ours):
            if true < 1e-30:
                assert 0 <= value < 1e-28
                continue
            assert true <= value <= true * (1 + 2e-9 * max(1, 1e-6 / rate)) + 1e-300, (
                epsilon, noise, rate,
            )  # fmt: skip


@pytest.mark.parametrize(
    ("noise", "rate", "delta"),
    [
        (0.0141575, 0.5, 1e-5), (0.02, 1e-4, 1e-5), (0.02, 1e-9, 1e-14), (0.03, 0.5, 0.3),
        (0.033, 0.01, 0.005), (0.034, 0.9, 1e-5), (0.05, 0.5, 1e-5),
    ],
)  # fmt: skip
def test_an_epsilon_of_hundreds_is_never_below_the_true_one(noise, rate, delta):
    """The library's distributions end where ``exp`` does, at 709; what is beyond is never lost."""
    plan = Plan((EventRun(PoissonGaussian(noise, rate), 1),))
    epsilon = epsilon_of(plan, delta=delta, accountant="pld")
    assert max(exact_profiles(epsilon, noise, rate)) <= delta
    if epsilon < 600:
        assert max(exact_profiles(epsilon * (1 - 1e-5), noise, rate)) > delta


def test_losses_of_thousands_add_up():
    """Nearly all records enter, so two steps are one Gaussian of half the variance."""
    plan = Plan((EventRun(PoissonGaussian(0.02, 1 - 1e-12), 2),))
    assert epsilon_of(plan, delta=DELTA, accountant="pld") > 2800


@pytest.mark.parametrize(
    ("noise", "rate"), list(itertools.product([0.5, 1.0, 4.0], [1e-4, 0.01, 0.3, 0.9]))
)
def test_one_loss_is_that_of_dp_accounting(noise, rate):
    interval = 1e-3
    ours = sampled_gaussian_loss(noise, rate, interval)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=interval, sampling_prob=rate
    )
    for one, other in [(ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)]:
        for epsilon in (0.0, 0.01, 0.1, 0.5, 2.0):
            true = other.get_delta_for_epsilon(epsilon)
            assert one.get_delta_for_epsilon(epsilon) == pytest.approx(true, rel=1e-9, abs=1e-20)


@pytest.mark.parametrize(("rate", "epsilon"), [(0.0, 0.0), (1.0, 1.9931)])
def test_the_ends_of_the_rate_are_nothing_and_the_gaussian(rate, epsilon):
    loss = PoissonGaussian(2.0, rate).privacy_loss(1e-3)
    assert loss.get_epsilon_for_delta(DELTA) == pytest.approx(epsilon, abs=2e-3)


def convolved(pmfs):
    """Return the first loss and the probabilities of a composition, one product at a time."""
    first, total = 0, np.ones(1, np.longdouble)
    for pmf, count in pmfs:
        for _ in range(count):
            first += pmf._lower_loss
            total = sum(
                np.pad(probability * total, (place, len(pmf._probs) - 1 - place))
                for place, probability in enumerate(pmf._probs.astype(np.longdouble))
            )
    return first, total


@pytest.mark.parametrize(
    "parts",
    [
        [(1.0, 0.01, 1)],
        [(1.0, 0.5, 2)],
        [(1.0, 0.5, 8)],
        [(0.7, 0.1, 3), (2.0, 0.2, 4)],
        [(3.0, 0.05, 40)],
        [(3.0, 0.05, 30), (1.0, 0.3, 1), (2.0, 1e-3, 5)],
    ],
)
@pytest.mark.parametrize("direction", ["_pmf_remove", "_pmf_add"])
def test_a_composition_is_the_convolution_within_what_rounding_may_take(parts, direction):
    interval = 0.02
    pmfs = [
        (getattr(sampled_gaussian_loss(s, q, interval), direction).to_dense_pmf(), n)
        for s, q, n in parts
    ]
    first, exact = convolved(pmfs)
    ours = composed(pmfs, interval)
    places = ours._lower_loss - first + np.arange(len(ours._probs))
    inside = (places >= 0) & (places < len(exact))
    at = np.zeros(len(places), np.longdouble)
    at[inside] = exact[places[inside]]
    missing = np.minimum(ours._probs - at, 0).sum()
    assert -missing <= _ROUNDING * (1 + sum(n for *_, n in parts))
    assert exact[max(places[-1] + 1, 0) :].sum() <= _TAIL * (1 + 1e-6)
    assert exact[: max(places[0], 0)].sum() <= _TAIL * (1 + 1e-6)
    assert ours._infinity_mass >= _TAIL
    # And hardly more: neither the window nor the transform adds to the bound.
    assert np.maximum(ours._probs - at, 0).sum() <= 1e-13


def test_an_infinite_loss_is_kept_however_often_it_is_composed():
    pmf = pld_pmf.create_pmf({0: 0.9}, 0.1, 0.1, pessimistic_estimate=True)
    ours = composed([(pmf, 3)], 0.1)
    assert ours._infinity_mass == pytest.approx(1 - 0.9**3, abs=1e-15)
    assert ours._infinity_mass >= 1 - 0.9**3


def test_what_releases_everything_does_so_in_company():
    everything = pld_pmf.create_pmf({}, 0.1, 1.0, pessimistic_estimate=True)
    other = pld_pmf.create_pmf({0: 1.0}, 0.1, 0.0, pessimistic_estimate=True)
    assert composed([(other, 2), (everything, 1)], 0.1).get_epsilon_for_delta(0.5) == math.inf


def test_losses_of_other_mechanisms_are_composed_with_them():
    interval = 1e-3
    events = ((Laplace(3.0), 4), (PoissonGaussian(1.0, 0.1), 10))
    loss = composed_loss(events, interval)
    stepwise = Laplace(3.0).privacy_loss(interval).self_compose(4)
    stepwise = stepwise.compose(PoissonGaussian(1.0, 0.1).privacy_loss(interval).self_compose(10))
    for delta in (1e-3, 1e-6):
        assert loss.get_epsilon_for_delta(delta) == pytest.approx(
            stepwise.get_epsilon_for_delta(delta), rel=1e-9
        )


def test_mixed_trials_cost_what_dp_accounting_says_at_its_own_interval():
    rng = np.random.default_rng(0)
    runs = [
        (float(rng.uniform(0.7, 4)), float(rng.choice([0.01, 0.05])), int(rng.integers(20, 200)))
        for _ in range(20)
    ]
    theirs = PLDAccountant()
    for noise, rate, count in runs:
        theirs.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), count)
    plan = Plan(tuple(EventRun(PoissonGaussian(s, q), n) for s, q, n in runs))
    ours, true = epsilon_of(plan, delta=DELTA, accountant="pld"), theirs.get_epsilon(DELTA)
    assert true * (1 - 1e-9) <= ours <= true * 1.001


@pytest.mark.parametrize("start", [pytest.param(1.0, marks=pytest.mark.slow), 2.0])
def test_a_thousand_multipliers_cost_within_one_percent_of_what_each_costs(start):
    schedule = NoiseSchedule("cosine", 0.5)
    interval = 1e-3
    losses = [
        sampled_gaussian_loss(float(noise), 0.01, interval)
        for noise in start * schedule.factors(1000)
    ]
    each = composed([(loss._pmf_remove, 1) for loss in losses], interval)
    true = each.get_epsilon_for_delta(DELTA)
    ours = epsilon_of(schedule.plan(start, 0.01, 1000), delta=DELTA, accountant="pld")
    assert true * (1 - 1e-4) <= ours <= 1.01 * true


@pytest.mark.slow
def test_a_part_of_a_plan_never_costs_more_than_the_whole():
    plan = NoiseSchedule("cosine", 0.5).plan(2.0, 0.02, 600)
    costs = [
        epsilon_of(plan.slice(0, end), delta=DELTA, accountant="pld")
        for end in (1, 30, 39, 40, 41, 42, 200, 255, 256, 257, 600)
    ]
    assert costs == sorted(costs)
