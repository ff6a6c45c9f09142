"""The noise that protects: its scale, its secrecy, its independence of anything known."""

import numpy as np
import pytest
import torch
from scipy import stats

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
