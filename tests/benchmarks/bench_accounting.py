"""Accounting: our clock and calibration against dp_accounting and Opacus, in the same process.

Each figure is of one call: what is computed once, later calls would read from the process's caches.

python tests/benchmarks/bench_accounting.py [--json]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant as GoogleRdp
from opacus.accountants import RDPAccountant as OpacusRdp
from tables import Table, number, show

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import calibrate_noise_schedule
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.privacy.events.convolution import composed
from dpsweep.privacy.events.sampled_gaussian import sampled_gaussian_loss
from dpsweep.privacy.schedules import NoiseSchedule
from dpsweep.privacy.terms import ACCOUNTANTS

Result = TypeVar("Result")

DELTA, RATE, STEPS = 1e-5, 0.01, 1000
#: The first and largest noise multiplier of the schedule; the last is half of it.
START = 1.0
#: What noise is calibrated to, each once.
EPSILONS = 2.8, 2.9, 3.0, 3.1, 3.2


def _time(function: Callable[[], Result]) -> tuple[float, Result]:
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


def clocks() -> Table:
    """Return what the epsilon after each of many different steps costs, and what one costs others."""
    noise = noises()
    plan: Plan = NoiseSchedule("cosine", 0.5).plan(float(noise[0]), RATE, STEPS)

    def every_step() -> float:
        return float(EpsilonClock(plan, delta=DELTA, accountant="rdp").table()[-1])

    own_s, own = _time(every_step)
    rows = [("epsilon clock, after *every* step, rdp", number(own_s), f"{own:.4f}")]
    for name, peer in (("Opacus RDP, once", _opacus), ("dp_accounting RDP, once", _google)):
        seconds, epsilon = _time(partial(peer, noise))
        rows.append((name, f"{number(seconds)} ({seconds / own_s:.0f} times)", f"{epsilon:.4f}"))
    clock = EpsilonClock(plan, delta=DELTA, accountant="rdp")
    reports_s, _ = _time(lambda: [clock.epsilon_after(i % STEPS) for i in range(100_000)])
    return Table(
        ("what", "s", "epsilon"),
        tuple(rows),
        f"{STEPS:,} steps with another noise multiplier each, from {START:g} down to "
        f"{START / 2:g} by a cosine, sample rate {RATE:g}, delta 1e-5 (example, add_or_remove_one, "
        "Poisson, rdp, one run); CPU seconds.",
        f"One report from the clock: {reports_s * 10:.2f} us.",
    )


def calibrations() -> Table:
    """Return what it costs to find the noise of a budget."""
    rows = []
    for row, shape, ratio in (
        ("constant noise", "constant", 1.0),
        ("cosine, from 1 down to 0.5", "cosine", 0.5),
    ):
        cells = [row]
        for accountant in ACCOUNTANTS:
            # Of each epsilon nothing is known yet: what is computed for one helps no other.
            taken = [
                _time(
                    partial(
                        calibrate_noise_schedule,
                        PrivacyBudget(target_epsilon=epsilon, delta=DELTA),
                        schedule=NoiseSchedule(shape, ratio),
                        sample_rate=RATE,
                        steps=STEPS,
                        accountant=accountant,
                    )
                )[0]
                for epsilon in EPSILONS
            ]
            cells.append(number(statistics.median(taken)))
        rows.append(tuple(cells))
    head = (
        f"calibration to epsilon {EPSILONS[0]:g} to {EPSILONS[-1]:g} over {STEPS:,} steps, median "
        f"of {len(EPSILONS)}"
    )
    return Table((head, *(f"{name}, s" for name in ACCOUNTANTS)), tuple(rows))


def distributions() -> Table:
    """Return what epsilon by privacy loss distributions costs, and how far above it could be."""
    noise, rows = noises(), []
    for start in (1.0, 1.5, 3.0):
        many = NoiseSchedule("cosine", 0.5).plan(start * START, RATE, STEPS)
        seconds, epsilon = _time(partial(_pld, many))
        above = f"{100 * (epsilon / _each_on_its_own(start * noise, 1e-3) - 1):.2g}% above"
        first = start == 1.0
        row = f"{STEPS:,} noise multipliers, cosine from 1" if first else f"the same from {start:g}"
        above += " a distribution for each multiplier" if first else ""
        rows.append((row, number(seconds), f"{epsilon:.4f}", above))
    trials = mixed_trials()
    runs = tuple(EventRun(PoissonGaussian(s, q), n) for s, q, n in trials)
    seconds, epsilon = _time(lambda: _pld(Plan(runs)))
    google_s, google = _time(lambda: _google_pld(trials))
    above = (
        f"{100 * (epsilon / google - 1):.2g}% above dp_accounting at its default interval, which "
        f"takes {google_s / seconds:.0f} times as long"
    )
    row = f"{len(trials)} trials, each with its own noise and rate"
    rows.append((row, number(seconds), f"{epsilon:.4f}", above))
    return Table(
        ("plan", "s", "epsilon", "against"),
        tuple(rows),
        "Under `pld` (privacy loss distributions), epsilon of",
    )


def main() -> None:
    """Measure and print the tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    show([clocks(), calibrations(), distributions()], {}, as_json=options.json)


if __name__ == "__main__":
    main()
