"""Accounting: our clock and calibration against dp_accounting and Opacus, in the same process.

python tests/benchmarks/bench_accounting.py
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant as GoogleRdp
from opacus.accountants import RDPAccountant as OpacusRdp

from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import calibrate_factors, calibrate_noise_schedule
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.privacy.schedules import NoiseSchedule

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
    for name, shape, ratio in (("constant", "constant", 1.0), ("cosine", "cosine", 0.5)):
        calibrate_factors.cache_clear()
        seconds, start = _time(
            lambda shape=shape, ratio=ratio: calibrate_noise_schedule(
                budget,
                schedule=NoiseSchedule(shape, ratio),
                sample_rate=RATE,
                steps=STEPS,
            )
        )
        print(f"calibration, {name} noise, rdp: {seconds:.3f} s (start {start:.4f})")


if __name__ == "__main__":
    main()
