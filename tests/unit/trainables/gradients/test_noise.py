"""The noise that protects: its scale, its secrecy, its independence of anything known."""

import numpy as np
import pytest
import torch
from scipy import stats

from dpsweep.trainables.gradients.clipping import TOLERANCE, noise_bound
from dpsweep.trainables.gradients.noise import SecretNoise


@pytest.mark.parametrize(("claimed", "passes"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_scale_by_kolmogorov_smirnov(claimed, passes):
    noise = SecretNoise("cpu").like(torch.zeros(100, 50), 1.7).numpy().ravel()
    p_value = stats.kstest(noise, "norm", args=(0, 1.7 * claimed)).pvalue
    assert bool(p_value > 1e-6) is passes


def test_noise_ignores_every_known_seed():
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        drawn.append(SecretNoise("cpu").like(torch.zeros(8), 1.0))
    assert not torch.equal(*drawn)


def test_cpu_noise_is_not_seeded_with_32_bits():
    """torch's CPU generator drops the high bits of a seed, so noise must not come from it."""
    low = torch.Generator().manual_seed(5)
    high = torch.Generator().manual_seed(5 + 2**32)
    assert torch.equal(torch.randn(8, generator=low), torch.randn(8, generator=high))
    assert SecretNoise("cpu")._torch is None
    state = SecretNoise("cpu")._numpy.bit_generator.state["state"]
    assert state["state"].bit_length() > 100


def test_noise_follows_shape_and_dtype():
    noise = SecretNoise("cpu").like(torch.zeros(3, 4, dtype=torch.float64), 2.0)
    assert noise.shape == (3, 4)
    assert noise.dtype == torch.float64


def test_a_release_is_the_sum_and_noise_of_the_bound_times_the_multiplier():
    torch.manual_seed(0)
    exact = torch.randn(40_000, dtype=torch.float64)
    total, seen = exact.clone(), []
    released = SecretNoise("cpu").release(total, 3.0, 0.5, observer=seen.append)
    assert released is total  # in place: nobody keeps the exact sum by accident
    assert torch.equal(released, exact + seen[0])
    assert seen[0].dtype == torch.float64
    assert float(seen[0].std()) == pytest.approx(1.5, rel=0.02)


def test_the_bound_of_a_sum_covers_rounding_and_sums_that_are_clipped_apart():
    assert noise_bound(0.3, 1000) == (1 + TOLERANCE) * 0.3
    assert noise_bound(0.3, 1000, joint=2.0) == (1 + TOLERANCE) * 2.0 * 0.3
    assert noise_bound(0.3, 10**7) > 1.01 * 0.3
