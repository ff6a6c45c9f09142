"""The sensitivity of the second moment, the noise that covers it, and the components it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.decomposition import TruncatedSVD

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.methods.active_learning.dp_pca import (
    principal_components,
    symmetric_noise,
)
from dpsweep.trainables.methods.second_moments import second_moment

NAN, INF = float("nan"), float("inf")


def clipped(rows: torch.Tensor) -> torch.Tensor:
    """The obvious computation, for rows of ordinary size."""
    return rows.double() / rows.double().norm(dim=1, keepdim=True).clamp(min=1.0)


def embeddings(count: int = 400, size: int = 9) -> torch.Tensor:
    """Rows with norms on both sides of 1 and well separated principal directions."""
    generator = torch.Generator().manual_seed(0)
    scales = 0.75 ** torch.arange(size)
    rows = 0.6 * torch.randn(count, size, generator=generator) * scales + 0.2
    norms = rows.norm(dim=1)
    assert bool((norms > 1).any() & (norms < 1).any())
    return rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_moment_is_that_of_clipped_rows_in_blocks_of_any_size(dtype: torch.dtype) -> None:
    rows = embeddings().to(dtype)
    before = rows.clone()
    expected = clipped(rows).T @ clipped(rows)
    for block in (1, 7, 4096):
        moment = second_moment(rows, block=block)
        assert moment.dtype == torch.float64
        torch.testing.assert_close(moment, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(rows, before)
    assert torch.equal(second_moment(rows[:0]), torch.zeros(9, 9, dtype=torch.float64))


def test_components_without_noise_are_those_of_sklearn() -> None:
    """Uncentred, up to the sign."""
    rows = embeddings()
    svd = TruncatedSVD(4, algorithm="arpack", random_state=0).fit(clipped(rows).numpy())
    found = principal_components(second_moment(rows), 4)
    torch.testing.assert_close(
        (torch.tensor(svd.components_.copy()) @ found).abs(),
        torch.eye(4).double(),
        rtol=0,
        atol=1e-7,
    )


VALUES = st.one_of(
    st.floats(width=64),
    st.floats(-2.0, 2.0),
    st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1e-170, 1e170, 1.7e308, NAN, INF, -INF]),
)


@st.composite
def neighbors(draw: st.DrawFn) -> tuple[list[list[float]], int]:
    """Rows of arbitrary numbers, and which of them is added or removed."""
    size = draw(st.integers(1, 5))
    row = st.lists(VALUES, min_size=size, max_size=size)
    rows = draw(st.lists(row, min_size=1, max_size=6))
    return rows, draw(st.integers(0, len(rows) - 1))


@settings(max_examples=400, deadline=None)
@given(neighbors())
@example(([[0.0, 1.0], [3.0, 4.0]], 0))
@example(([[1e200, 1e200], [NAN, 1.0]], 0))
@example(([[0.5, 0.5], [NAN, 1.0]], 1))
@example(([[0.5, 0.5], [INF, 1.0]], 1))
def test_one_row_moves_the_upper_triangle_by_at_most_1(
    drawn: tuple[list[list[float]], int],
) -> None:
    rows, number = drawn
    whole = torch.tensor(rows, dtype=torch.float64)
    rest = whole[torch.arange(len(rows)) != number]
    change = second_moment(whole, block=2) - second_moment(rest, block=2)
    above = change[tuple(torch.triu_indices(*change.shape))]
    assert bool(above.isfinite().all())
    assert float(above.norm()) <= 1 + 1e-12


@pytest.mark.parametrize(
    ("row", "added"),
    [
        ([0.0, -7.0], [[0.0, 0.0], [0.0, 1.0]]),  # attains the sensitivity
        ([1e200, 1e200], [[0.5, 0.5], [0.5, 0.5]]),
        ([1.7e308, 0.0], [[1.0, 0.0], [0.0, 0.0]]),
        ([5e-324, 0.0], [[0.0, 0.0], [0.0, 0.0]]),
        ([0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]),
        ([NAN, 0.5], [[0.0, 0.0], [0.0, 0.0]]),
        ([0.5, INF], [[0.0, 0.0], [0.0, 0.0]]),
        ([0.6, -0.3], [[0.36, -0.18], [-0.18, 0.09]]),
    ],
)
def test_what_a_row_adds(row: list[float], added: list[list[float]]) -> None:
    found = second_moment(torch.tensor([row], dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(added).double(), rtol=1e-7, atol=0)


def test_the_moment_is_symmetric_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the difference of its two halves would be released without noise."""
    multiply = torch.Tensor.__matmul__

    def uneven(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """As a library may round it."""
        product = multiply(one, other)
        unlike = torch.arange(product.numel(), dtype=product.dtype).view_as(product)
        return product * (1 + 1e-15 * unlike)

    monkeypatch.setattr(torch.Tensor, "__matmul__", uneven)
    rows = embeddings()
    product = rows.double().T @ rows.double()
    assert not torch.equal(product, product.T)
    moment = second_moment(rows)
    assert torch.equal(moment, moment.T)


def test_noise_has_the_planned_scale() -> None:
    """Kolmogorov and Smirnov agree at the scale, and not at 2/3 or 3/2 of it; nor on the diagonal."""
    generator = np.random.default_rng(0)
    draws = torch.stack([symmetric_noise(60, 1.7, generator) for _ in range(40)])
    assert draws.dtype == torch.float64
    assert torch.equal(draws, draws.mT)
    row, column = torch.triu_indices(60, 60, offset=1)
    above = draws[:, row, column].flatten().numpy()
    diagonal = draws.diagonal(dim1=1, dim2=2).flatten().numpy()
    assert len(above) + len(diagonal) >= 20_000
    for noise in (above, diagonal):
        assert len(np.unique(noise)) == len(noise)  # no draw is used twice
        assert stats.kstest(noise / 1.7, "norm").pvalue > 1e-6
        assert stats.kstest(noise / 1.7 * 2 / 3, "norm").pvalue < 1e-6
        assert stats.kstest(noise / 1.7 * 3 / 2, "norm").pvalue < 1e-6


def test_noise_comes_from_the_generator_that_is_given() -> None:
    one, same = (symmetric_noise(5, 1.0, np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(one, same)
    assert not torch.equal(one, symmetric_noise(5, 1.0, np.random.default_rng(4)))


@pytest.mark.parametrize("noise_multiplier", [-1.0, NAN, INF])
def test_noise_that_is_none_is_refused(noise_multiplier: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        symmetric_noise(3, noise_multiplier, np.random.default_rng(0))


def test_components_are_orthonormal_and_the_largest_comes_first() -> None:
    """Of noise alone, half of whose eigenvalues are negative."""
    moment = symmetric_noise(30, 2.0, np.random.default_rng(0))
    found = principal_components(moment, 30)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.T @ found, torch.eye(30).double(), rtol=0, atol=1e-12)
    values = (found.T @ moment @ found).diagonal()
    assert bool((values[:-1] > values[1:]).all())
    assert values[0] > 0 > values[-1]
    torch.testing.assert_close(moment @ found, found * values, rtol=0, atol=1e-10)
    torch.testing.assert_close(principal_components(moment, 4), found[:, :4], rtol=0, atol=1e-12)


def test_signs_are_fixed() -> None:
    found = principal_components(symmetric_noise(30, 1.0, np.random.default_rng(1)), 30)
    assert bool((found.amax(dim=0) == found.abs().amax(dim=0)).all())


def test_components_read_the_upper_triangle_alone() -> None:
    moment = symmetric_noise(8, 1.0, np.random.default_rng(2))
    assert torch.equal(principal_components(moment.triu(), 3), principal_components(moment, 3))


@pytest.mark.parametrize("num", [0, 4, -1])
def test_a_number_of_components_that_there_is_not_is_refused(num: int) -> None:
    with pytest.raises(BadInputError, match="3 dimensions"):
        principal_components(torch.eye(3).double(), num)


def test_much_noise_hides_the_components_and_many_records_show_them() -> None:
    """5,000 records outweigh noise of multiplier 4 in 9 dimensions, and 5 of them do not."""
    truth = principal_components(second_moment(embeddings(5000)), 2)

    def agreement(count: int) -> float:
        generator = np.random.default_rng(0)
        moment = second_moment(embeddings(5000)[:count]) + symmetric_noise(9, 4.0, generator)
        return float((truth.T @ principal_components(moment, 2)).square().sum()) / 2

    assert agreement(5000) > 0.98
    assert agreement(5) < 0.7
