"""From how many trials on the importance of hyperparameters is more than a guess."""

import math

import numpy as np
import pytest

from dpsweep.results.pictures.importance import LEAST
from dpsweep.search.importance import importances

SPACE = {
    "method": "dp_sgd",
    "optim.lr": {"loguniform": [0.01, 2]},
    "noise.noise_multiplier": {"uniform": [0.6, 3.0]},
    "clip.max_grad_norm": {"loguniform": [0.1, 2]},
    "batch.expected": {"choice": [64, 128, 256]},
}


def share_of_right_leaders(num_trials: int, *, studies: int) -> float:
    """Return how often the rate leads: its peak explains most of a made-up score."""
    generator, right = np.random.default_rng(0), 0
    for study in range(studies):
        trials = []
        for _ in range(num_trials):
            rate, noise, clip = generator.uniform(size=3)
            score = -4 * (rate - 0.6) ** 2 - 0.25 * noise - 0.25 * clip
            config = {
                "method": "dp_sgd",
                "optim.lr": 0.01 * math.exp(rate * math.log(200)),
                "noise.noise_multiplier": 0.6 + 2.4 * noise,
                "clip.max_grad_norm": 0.1 * math.exp(clip * math.log(20)),
                "batch.expected": int(generator.choice([64, 128, 256])),
            }
            trials.append((config, score + 0.1 * generator.normal()))
        shares, _ = importances(SPACE, trials, seed=study)
        right += max(shares, key=lambda name: shares[name]) == "optim.lr"
    return right / studies


@pytest.mark.slow
def test_what_explains_most_leads_from_the_least_number_on() -> None:
    few, enough = (share_of_right_leaders(n, studies=40) for n in (LEAST // 2, LEAST))
    print(f"{LEAST // 2} trials: {few:.2f}; {LEAST} trials: {enough:.2f}")
    assert few < 0.6
    assert enough > 0.65
