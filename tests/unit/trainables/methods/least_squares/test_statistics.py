"""The sums of least squares: what a record adds to them, by brute force and by arbitrary numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpsweep.trainables.methods.adamix.noisy_gd import HeadRecords
from dpsweep.trainables.methods.least_squares.solving import inverse
from dpsweep.trainables.methods.least_squares.statistics import (
    UnitRecords,
    class_sums,
    covariance,
    symmetric,
    triangle,
)
from dpsweep.trainables.methods.second_moments import unit_rows

NAN, INF = float("nan"), float("inf")


def both(rows: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return covariance(rows, device="cpu"), class_sums(rows, labels, 3, device="cpu").flatten()


def test_one_record_moves_each_sum_by_exactly_1_over_all_neighbors() -> None:
    """Every data set of up to two records of small integers, and every record that joins it."""
    points = [np.array(p, np.float32) for p in itertools.product((-2, 0, 1), repeat=2)]
    records = [(x, y) for x in points for y in (0, 2)]
    seen = []
    for count in (0, 1, 2):
        for rest in itertools.combinations_with_replacement(records[::3], count):
            for new in records:
                whole = [*rest, new]
                x = torch.tensor(np.array([x for x, _ in whole]))
                y = torch.tensor([y for _, y in whole])
                after, before = both(x, y), both(x[:-1], y[:-1])
                for one, other in zip(after, before):
                    moved = float((one - other).norm())
                    assert moved == pytest.approx(float(np.any(new[0] != 0)), abs=1e-12)
                    seen.append(moved)
    assert len(seen) > 1000


VALUES = st.one_of(
    st.floats(width=32),
    st.floats(-2.0, 2.0, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1e-45, 1e-30, 1e30, 3.4e38, NAN, INF, -INF]),
)


@st.composite
def neighbors(draw: st.DrawFn) -> tuple[list[list[float]], int]:
    size = draw(st.integers(1, 4))
    row = st.lists(VALUES, min_size=size, max_size=size)
    rows = draw(st.lists(row, min_size=1, max_size=5))
    return rows, draw(st.integers(0, len(rows) - 1))


@settings(max_examples=300, deadline=None)
@given(neighbors())
@example(([[0.0, 1.0], [3.4e38, 3.4e38]], 1))
@example(([[1e-45, 1e-45], [NAN, 1.0]], 0))
@example(([[0.5, 0.5], [INF, 1.0]], 1))
def test_one_record_of_any_numbers_moves_each_sum_by_at_most_1(
    drawn: tuple[list[list[float]], int],
) -> None:
    rows, number = drawn
    whole = torch.tensor(rows, dtype=torch.float32)
    labels = torch.arange(len(rows)) % 3
    stays = torch.arange(len(rows)) != number
    for one, other in zip(both(whole, labels), both(whole[stays], labels[stays])):
        assert bool(one.isfinite().all())
        assert float((one - other).norm()) <= 1 + 1e-12


def test_a_triangle_has_the_norm_of_its_matrix_and_gives_it_back() -> None:
    half = torch.randn(7, 7, dtype=torch.float64)
    matrix = half + half.T
    vector = triangle(matrix)
    assert vector.shape == (28,)
    assert float(vector.norm()) == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(symmetric(vector, 7), matrix)
    noisy = symmetric(torch.randn(28, dtype=torch.float64), 7)
    assert torch.equal(noisy, noisy.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_sums_are_those_of_unit_records_in_blocks_of_any_size(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpsweep.trainables.methods.least_squares import statistics

    x, y = torch.randn(50, 3, 2, 1).to(dtype), torch.arange(50) % 3
    before = x.clone()
    unit = x.flatten(1).double()
    unit = unit / unit.norm(dim=1, keepdim=True)
    for block in (1, 7, 2048):
        monkeypatch.setattr(statistics, "BLOCK", block)
        torch.testing.assert_close(symmetric(covariance(x, device="cpu"), 6), unit.T @ unit)
        expected = torch.nn.functional.one_hot(y).double().T @ unit
        torch.testing.assert_close(class_sums(x, y, 3, device="cpu"), expected)
    assert torch.equal(x, before)
    assert torch.equal(covariance(x[:0], device="cpu"), torch.zeros(21, dtype=torch.float64))


def test_gradients_are_those_of_unit_records() -> None:
    x, y = 9 * torch.randn(600, 5), torch.arange(600) % 3
    x[7] = NAN
    weight = torch.randn(3, 5)
    unit = unit_rows(x).float()
    expected, _ = HeadRecords(unit, y, device="cpu").gradient_sum(weight, 0.4)
    total, _ = UnitRecords(x, y, device="cpu").gradient_sum(weight, 0.4)
    torch.testing.assert_close(total, expected)
    singles = [one.gradient_sum(weight, 0.4)[0] for one in UnitRecords(x, y, device="cpu").alone()]
    torch.testing.assert_close(total, torch.stack(singles).sum(dim=0), rtol=1e-6, atol=1e-6)
    assert max(float(one.norm()) for one in singles) <= 0.4 * (1 + 1e-6)


def test_the_inverse_leaves_negative_eigenvalues_out() -> None:
    vectors = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    matrix = (vectors * torch.tensor([5.0, 1.0, -2.0, -9.0])) @ vectors.T
    rows = torch.randn(3, 4, dtype=torch.float64)
    positive = (vectors * torch.tensor([5.0, 1.0, 0.0, 0.0])) @ vectors.T
    expected = rows @ torch.linalg.inv(positive + 0.5 * torch.eye(4))
    torch.testing.assert_close(inverse(matrix, 0.5).applied(rows), expected)
