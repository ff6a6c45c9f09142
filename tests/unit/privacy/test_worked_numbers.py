"""The worked numbers about the cost of a search, by the calculator that users have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpsweep.privacy.calculator import account_epsilon, account_steps

GOLDEN = Path(__file__).parents[2] / "golden"
DELTA = 1e-5


def segment(sigma, rate, steps):
    return {
        "event": "poisson_gaussian",
        "noise_multiplier": sigma,
        "sample_rate": rate,
        "steps": steps,
    }


def epsilon(segments, accountant="rdp"):
    return account_epsilon(segments, delta=DELTA, accountant=accountant)["epsilon"]


@pytest.mark.parametrize(
    ("rate", "sigma", "target", "steps"),
    [
        (0.01, 1.0, 2.0, 881),
        (0.004, 1.1, 3.0, 20923),
        (0.02, 1.5, 1.0, 212),
        (0.1, 15.0, 1.0, 1363),
    ],
)
def test_the_last_step_within_a_budget(rate, sigma, target, steps):
    answer = account_steps(sample_rate=rate, noise_multiplier=sigma, epsilon=target, delta=DELTA)
    assert answer["steps"] == steps
    assert answer["epsilon"] <= target < epsilon([segment(sigma, rate, steps + 1)])


def test_ten_equal_trials_composed():
    assert f"{epsilon([segment(1.0, 0.01, 1000)] * 10):.2f}" == "6.71"
    assert f"{epsilon([segment(1.0, 0.01, 1000)]):.2f}" == "2.10"


def test_twenty_trials_of_which_four_run_to_the_end():
    """Successive halving: the noisier a trial, the longer it ran; the last one is the winner."""
    trials = json.loads((GOLDEN / "twenty_trials.json").read_text())
    assert len(trials) == 20
    assert len({(t["noise_multiplier"], t["sample_rate"]) for t in trials}) == 20
    assert sorted(t["steps"] for t in trials) == [50] * 12 + [150] * 4 + [450] * 4
    assert f"{epsilon(trials):.2f}" == "6.21"
    assert epsilon(trials, "pld") == pytest.approx(5.46, rel=0.02)
    assert f"{epsilon(trials[-1:]):.2f}" == "2.05"
    assert f"{sum(epsilon([trial]) for trial in trials):.1f}" == "28.5"
    assert f"{epsilon([{**trial, 'steps': 450} for trial in trials]):.1f}" == "15.9"
