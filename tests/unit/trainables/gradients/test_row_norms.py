"""Norms over millions of entries: an example is clipped to C, not to a per cent more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dpsweep.trainables.gradients.clipping import TOLERANCE, _begun_alike, clip_factors, row_norms
from dpsweep.trainables.gradients.layer_gradients import add_clipped
from dpsweep.trainables.gradients.weight_products import LinearProduct, WeightProduct
from dpsweep.trainables.methods.adamix.noisy_gd import HeadRecords


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 3 * 2048, 100_000, 5_000_000])
@pytest.mark.parametrize("kind", ["constant", "normal"])
def test_row_norms_are_those_in_double_precision(size: int, kind: str) -> None:
    torch.manual_seed(0)
    values = torch.full((2, size), 0.1) if kind == "constant" else torch.randn(2, size)
    norms = row_norms(values)
    assert norms.dtype == torch.float32
    torch.testing.assert_close(
        norms.double(), values.double().norm(dim=1), rtol=2e-6, atol=0, check_dtype=False
    )


def test_norms_that_are_not_finite_stay_so() -> None:
    values = torch.ones(3, 5000)
    values[0, 10], values[1, 4999] = torch.inf, torch.nan
    assert row_norms(values).isfinite().tolist() == [False, False, True]
    assert not row_norms(torch.full((1, 5000), 1e30)).isfinite().item()


@pytest.mark.parametrize("size", [129, 1023, 1025, 4096, 4099])
def test_each_row_of_a_gpu_begins_where_it_loads(size: int) -> None:
    """Four entries at once; tensors without numbers stand in for a GPU's."""
    with FakeTensorMode(), Reduced() as reduced:
        norms = row_norms(torch.empty(16, size, device="cuda"))
    assert norms.shape == (16,)
    assert reduced.strides
    assert [stride % 4 for stride in reduced.strides] == [0] * len(reduced.strides)


@pytest.mark.parametrize("size", [128, 1025, 4099])
def test_rows_that_begin_alike_have_the_norms_that_they_had(size: int) -> None:
    values = torch.randn(4, 2 * size + 1)
    for rows in (values[:, :size], values[:, 1:], values[:, :size].T.contiguous().T):
        begun = _begun_alike(rows)
        torch.testing.assert_close(row_norms(begun), row_norms(rows), rtol=1e-6, atol=0)
    assert _begun_alike(values[:, :4].contiguous()).shape == (4, 4)


class Reduced(TorchDispatchMode):
    """Notes the strides from one float32 row, or block of one, to the next that are reduced."""

    def __init__(self) -> None:
        super().__init__()
        self.strides: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "linalg_vector_norm" and args[0].dtype is torch.float32:
            self.strides += args[0].stride()[:-1] if not (kwargs or {}).get("dtype") else []
        return func(*args, **(kwargs or {}))


def added(sample: torch.Tensor | WeightProduct, size: int) -> float:
    total = torch.zeros(size, dtype=torch.float64)
    add_clipped([total], [sample], 1.0, clip_factors)
    return float(total.norm())


def test_one_example_adds_at_most_c_whatever_its_size() -> None:
    """Constant entries are the worst for a sum from left to right."""
    assert added(torch.full((1, 5_000_000), 0.1), 5_000_000) <= 1 + TOLERANCE / 2


def test_one_example_of_products_adds_at_most_c() -> None:
    rows, columns, positions = 1024, 1024, 600  # so many positions that products are formed
    gradient, inputs = (
        torch.full((1, positions, rows), 0.1),
        torch.full((1, positions, columns), 0.37),
    )
    sample = LinearProduct(nn.Linear(columns, rows), inputs, gradient)
    assert not sample._by_positions
    assert added(sample, rows * columns) <= 1 + TOLERANCE / 2


def test_features_of_a_head_have_norms_in_double_precision() -> None:
    features = torch.full((2, 150_000), 0.1)
    found = HeadRecords(features, torch.zeros(2, dtype=torch.int64), device="cpu")._norms
    np.testing.assert_allclose(found.numpy(), features.double().norm(dim=1).numpy(), rtol=2e-6)
