"""Sums over thousands of examples: one example less changes them by what it added, not by rounding.

In float32 each addition to a large sum rounds by a part of that sum, and an example that is left
out moves all blocks behind it, which then round otherwise: here by 3e-3 to 6e-3 C, as these tests
show with float32 totals. Totals are float64.
"""

import numpy as np
import pytest
import torch
from torch import nn

from dpsweep.trainables.bias_engine import BiasEngine
from dpsweep.trainables.linear_head import LinearHeadEngine, ManyHeadsEngine
from dpsweep.trainables.noisy_gd import HeadRecords
from dpsweep.trainables.per_example import OpacusEngine
from dpsweep.trainables.sparse_engine import SparseEngine

C, COUNT, FEATURES, CLASSES = 0.5, 20_000, 8, 3


def many_records():
    """Return records whose gradients all point almost the same way, and are longer than C."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(FEATURES, generator=generator)
    x = direction + 0.01 * torch.randn(COUNT, FEATURES, generator=generator)
    return x, torch.zeros(COUNT, dtype=torch.int64)


def zero_head():
    head = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def of_head_records(x, y, rows):
    records = HeadRecords(x[rows], y[rows], device="cpu")
    return [records.gradient_sum(torch.zeros(CLASSES, FEATURES), C)[0]]


def of_engine(make):
    def sums(x, y, rows):
        return make(zero_head()).clipped_gradient_sum(x, y, rows, C)

    return sums


@pytest.mark.parametrize(
    "sums",
    [
        pytest.param(of_engine(LinearHeadEngine), id="linear head"),
        pytest.param(of_engine(lambda head: ManyHeadsEngine([head])), id="many heads"),
        pytest.param(of_engine(lambda head: OpacusEngine(head, 64)), id="per example"),
        pytest.param(of_engine(lambda head: BiasEngine(head, 64)), id="biases"),
        pytest.param(of_engine(lambda head: SparseEngine(head, [], 64)), id="sparse"),
        pytest.param(of_head_records, id="records of a head"),
    ],
)
def test_one_example_less_changes_a_sum_of_thousands_by_what_it_added(sums):
    x, y = many_records()
    rows = np.arange(COUNT)
    everyone, others, one = (sums(x, y, r) for r in (rows, rows[1:], rows[:1]))
    assert {total.dtype for total in everyone} == {torch.float64}
    assert float(torch.cat([t.flatten() for t in one]).norm()) == pytest.approx(C, rel=1e-5)
    left = torch.cat([(a - b - c).flatten() for a, b, c in zip(everyone, others, one)])
    assert float(left.norm()) < 1e-3 * C
