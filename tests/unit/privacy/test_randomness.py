"""Public seeds repeat, secret ones do not."""

from __future__ import annotations

import pytest

from dpsweep.privacy import randomness
from dpsweep.privacy.randomness import public_seed, secret_numpy_generator, secret_seed


def test_public_seeds_are_stable_across_versions() -> None:
    # Changing these would change every study that is resumed or reproduced.
    assert public_seed(0, 0, "weights") == 8890769834206501144
    seeds = {public_seed(s, t, p) for s in range(9) for t in range(9) for p in ("weights", "order")}
    assert len(seeds) == 162
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert public_seed(1, 11, "x") != public_seed(11, 1, "x")


def test_secret_seeds_differ_and_ignore_global_state() -> None:
    import random

    import numpy as np

    drawn = set()
    for _ in range(50):
        random.seed(0)
        np.random.seed(0)
        drawn.add(secret_seed())
        drawn.add(int(secret_numpy_generator().integers(2**62)))
    assert len(drawn) == 100
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_seeds_are_too_long_to_try_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def randbits(bits: int) -> int:
        asked.append(bits)
        return 1

    monkeypatch.setattr(randomness.secrets, "randbits", randbits)
    randomness.secret_numpy_generator()
    randomness.secret_seed()
    assert asked == [256, 63]
