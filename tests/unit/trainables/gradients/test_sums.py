"""Products over examples: the same whatever takes them, and in whatever pieces."""

from __future__ import annotations

import pytest
import torch

from dpsweep.trainables.gradients.sums import add_product, add_rows, tile_of


def spread(*shape: int) -> torch.Tensor:
    """Return numbers between 1e-4 and 1e4 of both signs."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    sizes = 10.0 ** (8 * torch.rand(shape, generator=generator) - 4)
    return sizes * torch.randn(shape, generator=generator).sign()


# Few rows go to NumPy, in one piece or several; more to torch.
@pytest.mark.parametrize("rows", [1, 10, 20, 21, 64])
@pytest.mark.parametrize(("examples", "columns"), [(1, 1), (7, 5), (256, 3969), (16, 70_001)])
def test_a_product_is_added_to_what_is_there(rows: int, examples: int, columns: int) -> None:
    left, right = spread(rows, examples), spread(examples, columns)
    before = spread(rows, columns).double()
    total = before.clone()
    add_product(total, left, right)
    terms = before.abs() + left.double().abs() @ right.double().abs()
    error = (total - (before + left.double() @ right.double())).abs()
    assert (error <= 4 * (examples + 1) * 2.0**-53 * terms).all()


def test_a_tile_that_is_lent_gives_the_same_bits() -> None:
    left, right = spread(10, 256), spread(256, 3969)
    fresh, lent = torch.zeros(2, 10, 3969, dtype=torch.float64)
    tile = tile_of(right).fill_(float("nan"))
    assert len(tile) < len(right)  # so there are several
    add_product(fresh, left, right)
    add_product(lent, left, right, tile)
    assert torch.equal(fresh, lent)


@pytest.mark.parametrize(("examples", "entries"), [(1, 1), (80, 7001), (3, 400_000)])
def test_rows_are_added_with_their_factors(examples: int, entries: int) -> None:
    rows, factors = spread(examples, entries), spread(examples).abs()
    before = spread(entries).double()
    total = before.clone()
    add_rows(total, rows, factors)
    weights = factors.double()[:, None]
    terms = before.abs() + (rows.double().abs() * weights).sum(dim=0)
    error = (total - (before + (rows.double() * weights).sum(dim=0))).abs()
    assert (error <= 4 * (examples + 1) * 2.0**-53 * terms).all()
