"""Votes for the nearest point: exact, one per record, and noise on what they add up to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.methods.active_learning import nearest_votes
from dpsweep.trainables.methods.active_learning.nearest_votes import (
    SENSITIVITY,
    counts,
    largest,
    nearest,
    noisy_counts,
    voters,
)

NAN, INF = float("nan"), float("inf")


def one_by_one(private: torch.Tensor, public: torch.Tensor) -> list[int]:
    """The obvious computation in plain numbers, pair by pair; the first of equally near ones."""
    votes = []
    for a in private.double().tolist():
        distances = []
        for b in public.double().tolist():
            total = 0.0
            for x, y in zip(a, b):
                total += (x - y) * (x - y)
            distances.append(total)
        votes.append(distances.index(min(distances)))
    return votes


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_votes_equal_those_found_one_by_one(dtype: torch.dtype) -> None:
    private, public = normal(90, 6).to(dtype), normal(40, 6, seed=1).to(dtype)
    expected = one_by_one(private, public)
    assert len(set(expected)) > 20
    for block in (1, 13, 2048):
        votes = nearest(private, public, block=block)
        assert votes.dtype == torch.int64
        assert votes.tolist() == expected
    assert nearest(private[:0], public).tolist() == []


GRID = st.lists(st.lists(st.integers(-2, 2), min_size=2, max_size=2), min_size=1, max_size=9)


@settings(max_examples=200, deadline=None)
@given(GRID, GRID)
def test_of_equally_near_points_the_first_has_the_vote(
    private: list[list[int]], public: list[list[int]]
) -> None:
    """On a grid, most points are equally near to several."""
    a, b = torch.tensor(private).float(), torch.tensor(public).float()
    assert nearest(a, b, block=4).tolist() == one_by_one(a, b)


def test_a_vote_depends_on_no_other_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that are equally near but for rounding, which a matrix product does as it likes."""
    offset = normal(64, 7, seed=1).double()
    centre = 30 * normal(64, 7).double()
    public = torch.cat([centre + offset, centre - offset])
    private = centre.repeat(3, 1) + 1e-15 * normal(192, 7, seed=2).double()
    expected = one_by_one(private, public)
    assert 32 < sum(vote >= 64 for vote in expected) < 160
    with monkeypatch.context() as patch:
        patch.setattr(nearest_votes, "_PAIRS", 700)  # blocks of 5 records
        assert nearest(private, public).tolist() == expected
    assert nearest(private, public).tolist() == expected
    assert [int(nearest(one[None], public)) for one in private] == expected
    assert nearest(private.flip(0)[:101], public, block=50).tolist() == expected[::-1][:101]


def test_records_far_from_the_origin_are_told_apart() -> None:
    """|a|^2 - 2ab + |b|^2 has lost what decides; the difference a - b has not."""
    public = 1e6 + 1e-3 * normal(30, 4).double()
    private = public[torch.arange(60) % 30] + 1e-5 * normal(60, 4, seed=1).double()
    assert nearest(private, public).tolist() == (torch.arange(60) % 30).tolist()
    tiny = torch.tensor([[0.0], [1e-140], [3e-140]], dtype=torch.float64)
    assert nearest(tiny * 1.1, tiny).tolist() == [0, 1, 2]
    # Here squares are a few of the smallest numbers there are, and relative bounds do not hold.
    private, public = 3e-162 * normal(200, 5).double(), 3e-162 * normal(40, 5, seed=1).double()
    assert nearest(private, public).tolist() == one_by_one(private, public)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e200, -1.7e308])
def test_a_record_that_is_not_finite_votes_for_the_first_point(value: float) -> None:
    """And changes no other vote."""
    public = normal(20, 3, seed=1).double()
    private = normal(30, 3).double()
    expected = nearest(private, public)
    private[[4, 17], 1] = value
    expected[[4, 17]] = 0
    assert torch.equal(nearest(private, public), expected)


@pytest.mark.parametrize("value", [NAN, INF, 1e200])
def test_a_public_point_that_is_not_finite_has_no_vote(value: float) -> None:
    public, private = normal(20, 3, seed=1).double(), normal(30, 3).double()
    public[[0, 7], 2] = value
    rest = torch.tensor([i for i in range(20) if i not in (0, 7)])
    assert torch.equal(nearest(private, public), rest[nearest(private, public[rest])])
    assert nearest(private, public * NAN).tolist() == [0] * 30
    with pytest.raises(BadInputError, match="no public point"):
        nearest(private, public[:0])


def test_counts() -> None:
    assert counts(torch.tensor([3, 1, 3, 3]), 5).tolist() == [0, 1, 0, 3, 0]
    assert counts(torch.zeros(0, dtype=torch.int64), 2).tolist() == [0, 0]
    assert counts(torch.tensor([1]), 2).dtype == torch.int64
    with pytest.raises(ValueError, match="beyond the 3"):
        counts(torch.tensor([3]), 3)


UNCERTAINTIES = st.sampled_from([0.0, 0.25, 0.5, 0.5, 0.75, 1.0, NAN, INF, -INF])
COORDINATES = st.one_of(st.integers(-2, 2).map(float), st.sampled_from([0.5, NAN, INF, 1e300]))
RECORDS = st.lists(st.tuples(COORDINATES, COORDINATES, UNCERTAINTIES), min_size=1, max_size=9)
POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-2.0, 1.0], [0.5, -2.0]])


def votes_of(records: list[tuple[float, float, float]], kind: str, k: int) -> torch.Tensor:
    """Counts of a private set, as a method makes them."""
    table = torch.tensor(records, dtype=torch.float64).view(-1, 3)
    chosen = voters(kind, table[:, 2], threshold=0.5, k=k)
    return counts(nearest(table[:, :2], POINTS, block=3)[chosen], len(POINTS))


def furthest(records: list[tuple[float, float, float]], kind: str, k: int) -> int:
    """The largest change of the counts in L1 when one record is removed, or added again."""
    whole = votes_of(records, kind, k)
    changes = (
        votes_of(records[:row] + records[row + 1 :], kind, k) - whole for row in range(len(records))
    )
    return max(int(change.abs().sum()) for change in changes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", sorted(SENSITIVITY))
@settings(max_examples=150, deadline=None)
@given(RECORDS, st.integers(0, 6))
@example([(0.0, 0.0, 0.5), (1.0, 0.0, 0.5), (0.0, 1.0, 0.5)], 2)
@example([(0.0, 0.0, 1.0), (1.0, 0.0, NAN), (0.0, 1.0, 0.5)], 1)
def test_one_record_moves_the_counts_by_at_most_the_sensitivity(
    kind: str, records: list[tuple[float, float, float]], k: int
) -> None:
    assert furthest(records, kind, k) <= SENSITIVITY[kind]


def test_the_sensitivities_are_attained() -> None:
    """With top_k, the record that enters drives another out: 2, where the paper charges 1."""
    records = [(1.0, 0.0, 0.9), (0.0, 1.0, 0.6), (-2.0, 1.0, 0.5)]
    assert dict(SENSITIVITY) == {"all": 1, "threshold": 1, "top_k": 2}
    assert {kind: furthest(records, kind, 2) for kind in SENSITIVITY} == dict(SENSITIVITY)
    assert votes_of(records, "top_k", 2).tolist() == [0, 1, 1, 0, 0]
    assert votes_of(records[1:], "top_k", 2).tolist() == [0, 0, 1, 1, 0]


def test_who_votes() -> None:
    uncertainty = torch.tensor([0.5, 0.2, NAN, 0.9, 0.5, 0.5])

    def rows(kind: str, **given: float) -> list[int]:
        chosen = voters(kind, uncertainty, **given)  # type: ignore[arg-type]
        assert chosen.dtype == torch.bool
        return chosen.nonzero()[:, 0].tolist()

    assert rows("all") == [0, 1, 2, 3, 4, 5]
    assert rows("threshold", threshold=0.5) == [0, 3, 4, 5]
    assert rows("threshold", threshold=-INF) == [0, 1, 3, 4, 5]
    assert rows("top_k", k=3) == [0, 3, 4]
    assert rows("top_k", k=5) == [0, 1, 3, 4, 5]
    assert rows("top_k", k=0) == []
    assert rows("top_k", k=6) == rows("top_k", k=60) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("kind", "given_"), [("threshold", {"k": 3}), ("top_k", {}), ("some", {})])
def test_voters_that_cannot_be_chosen_are_refused(kind: str, given_: dict) -> None:
    with pytest.raises(BadInputError, match=f"voters '{kind}'"):
        voters(kind, torch.zeros(4), **given_)


def test_noise_is_laplace_of_the_given_scale() -> None:
    """Kolmogorov and Smirnov agree at the scale, and not at 2/3 or 3/2 of it."""
    votes = torch.arange(20_000) % 7
    noisy = noisy_counts(votes, 2.5, np.random.default_rng(0))
    assert noisy.dtype == torch.float64
    noise = (noisy - votes).numpy() / 2.5
    assert stats.kstest(noise, "laplace").pvalue > 1e-6
    assert stats.kstest(noise * 2 / 3, "laplace").pvalue < 1e-6
    assert stats.kstest(noise * 3 / 2, "laplace").pvalue < 1e-6
    assert stats.kstest(noise / noise.std(), "norm").pvalue < 1e-6
    assert len(np.unique(noisy)) == len(noisy)  # continuous: the event that is charged for


@pytest.mark.parametrize("scale", [-1.0, NAN, INF])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale"):
        noisy_counts(torch.zeros(3), scale, np.random.default_rng(0))


def test_the_largest_come_in_order() -> None:
    noisy = torch.tensor([1.5, -2.0, 7.25, 1.5, 0.0], dtype=torch.float64)
    assert largest(noisy, 4).tolist() == [2, 0, 3, 4]
    assert largest(noisy, 9).tolist() == [2, 0, 3, 4, 1]
    # Many alike: a sort that is not stable shows itself only on more than a few.
    assert largest(torch.ones(5000), 3000).tolist() == list(range(3000))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu() -> None:
    private, public = normal(3000, 9), normal(500, 9, seed=1)
    assert torch.equal(nearest(private.cuda(), public), nearest(private, public))
