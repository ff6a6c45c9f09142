"""Accounting: our clock and calibration against dp_accounting and Opacus, in the same process.

python tests/benchmarks/bench_accounting.py
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant as GoogleRdp
from opacus.accountants import RDPAccountant as OpacusRdp

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import calibrate_factors, calibrate_noise_schedule
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.privacy.events.convolution import composed
from dpsweep.privacy.events.sampled_gaussian import sampled_gaussian_loss
from dpsweep.privacy.schedules import NoiseSchedule
from dpsweep.privacy.terms import ACCOUNTANTS

DELTA, RATE, STEPS = 1e-5, 0.01, 1000
#: The first and largest noise multiplier of the schedule; the last is half of it.
START = 1.0


def _time(function: Callable[[], object]) -> tuple[float, object]:
    begin = time.process_time()
    result = function()
    return time.process_time() - begin, result


def noises() -> np.ndarray:
    """Return 1000 noise multipliers, the same ones each time; no cache of the process has them."""
    return START * NoiseSchedule("cosine", 0.5).factors(STEPS)


def _google(noise: np.ndarray) -> float:
    accountant = GoogleRdp()
    for sigma in noise:
        accountant.compose(PoissonSampledDpEvent(RATE, GaussianDpEvent(sigma)))
    return float(accountant.get_epsilon(DELTA))


def _opacus(noise: np.ndarray) -> float:
    accountant = OpacusRdp()
    accountant.history = [(sigma, RATE, 1) for sigma in noise]
    return float(accountant.get_epsilon(DELTA))


def mixed_trials() -> list[tuple[float, float, int]]:
    """Return noise multiplier, sample rate and steps of 20 trials."""
    rng = np.random.default_rng(0)
    return [
        (float(rng.uniform(0.7, 4)), float(rng.choice([0.01, 0.05])), int(rng.integers(20, 200)))
        for _ in range(20)
    ]


def _pld(plan: Plan) -> float:
    return epsilon_of(plan, delta=DELTA, accountant="pld")


def _google_pld(trials: list[tuple[float, float, int]]) -> float:
    accountant = PLDAccountant()
    for noise, rate, steps in trials:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(DELTA))


def _each_on_its_own(noise: np.ndarray, interval: float) -> float:
    """Return epsilon with a distribution for each multiplier; of both directions, the larger."""
    losses = [sampled_gaussian_loss(float(sigma), RATE, interval) for sigma in noise]
    directions = ("_pmf_remove", "_pmf_add")
    return max(
        float(composed([(getattr(loss, way), 1) for loss in losses], interval)
              .get_epsilon_for_delta(DELTA))
        for way in directions
    )  # fmt: skip


def main() -> None:
    """Measure and print a table."""
    warnings.simplefilter("ignore")
    noise = noises()
    schedule = NoiseSchedule("cosine", 0.5)

    def ours() -> float:
        plan: Plan = schedule.plan(float(noise[0]), RATE, STEPS)
        return float(EpsilonClock(plan, delta=DELTA, accountant="rdp").table()[-1])

    table_s, epsilon = _time(ours)
    opacus_s, opacus = _time(lambda: _opacus(noise))
    google_s, google = _time(lambda: _google(noise))
    print(f"epsilon of {STEPS} steps, another noise multiplier each, after every step:")
    print(f"  epsilon clock       {table_s:8.3f} s   epsilon {epsilon:.4f}")
    print(f"  Opacus, once        {opacus_s:8.3f} s   epsilon {opacus:.4f}   "
          f"{opacus_s / table_s:.0f}x")  # fmt: skip
    print(f"  dp_accounting, once {google_s:8.3f} s   epsilon {google:.4f}   "
          f"{google_s / table_s:.0f}x")  # fmt: skip

    plan = schedule.plan(float(noise[0]), RATE, STEPS)
    clock = EpsilonClock(plan, delta=DELTA, accountant="rdp")
    reports_s, _ = _time(lambda: [clock.epsilon_after(i % STEPS) for i in range(100_000)])
    print(f"one report: {reports_s * 10:.2f} us")

    budget = PrivacyBudget(target_epsilon=3.0, delta=DELTA)
    cases = itertools.product(ACCOUNTANTS, (("constant", 1.0), ("cosine", 0.5)))
    for accountant, (shape, ratio) in cases:
        calibrate_factors.cache_clear()
        seconds, start = _time(
            lambda accountant=accountant, shape=shape, ratio=ratio: calibrate_noise_schedule(
                budget,
                schedule=NoiseSchedule(shape, ratio),
                sample_rate=RATE,
                steps=STEPS,
                accountant=accountant,
            )
        )
        print(f"calibration, {shape} noise, {accountant}: {seconds:.3f} s (start {start:.4f})")

    print("epsilon by privacy loss distributions (pld):")
    for times in (1.0, 1.5, 3.0):
        many = schedule.plan(times * START, RATE, STEPS)
        seconds, epsilon = _time(lambda many=many: _pld(many))
        each = _each_on_its_own(times * noise, 1e-3)
        print(f"  {STEPS} noise multipliers from {times:g}: {seconds:.3f} s   "
              f"epsilon {epsilon:.4f}, {100 * (epsilon / each - 1):.2f}% above no grouping")  # fmt: skip
    trials = mixed_trials()
    seconds, epsilon = _time(
        lambda: _pld(Plan(tuple(EventRun(PoissonGaussian(s, q), n) for s, q, n in trials)))
    )
    google_s, google = _time(lambda: _google_pld(trials))
    print(f"  {len(trials)} trials, each its own noise and rate: {seconds:.3f} s   "
          f"epsilon {epsilon:.5f}, {100 * (epsilon / google - 1):.4f}% above dp_accounting's, "
          f"which takes {google_s / seconds:.1f} times as long")  # fmt: skip


if __name__ == "__main__":
    main()
