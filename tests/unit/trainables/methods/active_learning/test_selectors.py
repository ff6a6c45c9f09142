"""Uncertain records, and diverse ones among them: each against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.cluster import KMeans

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.methods.active_learning.selectors import (
    Clusters,
    diverse_public,
    entropy,
    margin,
    most_uncertain,
    random_rows,
    uncertainty,
)

NAN, INF = float("nan"), float("inf")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_entropy_equals_that_of_scipy() -> None:
    logits = 3 * normal(50, 7)
    found = entropy(logits)
    assert found.dtype == torch.float64
    p = np.exp(logits.double().numpy())
    np.testing.assert_allclose(found, stats.entropy(p, axis=1), rtol=1e-10)


def test_entropy_of_extreme_logits() -> None:
    logits = torch.tensor([[0.0, 0.0], [1e4, 1e4], [1e4, -1e4], [0.0, -INF], [NAN, 0.0]])
    log2 = math.log(2)
    torch.testing.assert_close(
        entropy(logits), torch.tensor([log2, log2, 0.0, 0.0, NAN]).double(), equal_nan=True
    )


def test_margin_is_that_of_the_two_largest_logits() -> None:
    logits = normal(50, 7)
    ordered = np.sort(logits.double().numpy(), axis=1)
    found = margin(logits)
    assert found.dtype == torch.float64
    np.testing.assert_array_equal(found, ordered[:, -1] - ordered[:, -2])
    with pytest.raises(BadInputError, match="two classes"):
        margin(logits[:, :1])


def test_both_call_the_same_records_uncertain() -> None:
    """Larger is less certain, whichever measure is taken."""
    logits = torch.tensor([[5.0, 0.0, 0.0], [1.0, 0.9, 0.8], [3.0, 0.0, 0.0]])
    for by in ("entropy", "margin"):
        assert most_uncertain(uncertainty(logits, by), 3).tolist() == [1, 2, 0]
    assert torch.equal(uncertainty(logits, "entropy"), entropy(logits))
    assert torch.equal(uncertainty(logits, "margin"), -margin(logits))
    with pytest.raises(BadInputError, match="entropy or margin"):
        uncertainty(logits, "luck")  # type: ignore[arg-type]


def test_the_most_uncertain_come_in_order() -> None:
    values = torch.tensor([0.5, NAN, 0.9, 0.5, 0.1], dtype=torch.float64)
    assert most_uncertain(values, 3).tolist() == [2, 0, 3]
    assert most_uncertain(values, 99).tolist() == [2, 0, 3, 4, 1]
    # Many alike: a sort that is not stable shows itself only on more than a few.
    assert most_uncertain(torch.ones(5000), 3000).tolist() == list(range(3000))
    assert bool(values[1].isnan())  # what is given stays as it is


def test_random_rows_differ_by_seed_alone_and_are_nested() -> None:
    torch.manual_seed(1)
    rows = random_rows(100, 30, 2**62)
    assert rows.dtype == torch.int64
    assert len(set(rows.tolist())) == 30
    assert set(rows.tolist()) < set(range(100))
    torch.manual_seed(2)
    assert torch.equal(random_rows(100, 30, 2**62), rows)
    assert torch.equal(random_rows(100, 10, 2**62), rows[:10])
    assert not torch.equal(random_rows(100, 30, 5), rows)
    assert sorted(random_rows(10, 99, 0).tolist()) == list(range(10))


NUMBERS = {
    "num_uncertain": 120,
    "num_components": 2,
    "num_clusters": 4,
    "num_each": 5,
    "seed": 2**62,
}


def blobs(sizes: tuple[int, ...] = (30, 30, 30, 30), certain: int = 80) -> tuple:
    """Uncertain records in groups far apart, others everywhere, all shuffled.

    Returns:
        (embeddings, uncertainty, group of each record; -1: certain).
    """
    corners = 20.0 * torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    group = torch.cat([torch.full((n,), i) for i, n in enumerate((*sizes, certain))])
    group[group == len(sizes)] = -1
    group = group[torch.randperm(len(group), generator=torch.Generator().manual_seed(3))]
    embeddings = normal(len(group), 3)
    is_certain = group < 0
    embeddings[~is_certain] += corners[group[~is_certain]]
    embeddings[is_certain] *= 8
    values = torch.where(is_certain, 0.1, 1.0) + 0.01 * normal(len(group), seed=4)
    return embeddings, values, group


def project(embeddings: torch.Tensor, num: int) -> torch.Tensor:
    """On the principal components of all records, by a full SVD."""
    centred = embeddings.double() - embeddings.double().mean(dim=0)
    return centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:num].T


def test_the_records_nearest_to_each_centre_are_taken() -> None:
    embeddings, values, group = blobs()
    found = diverse_public(embeddings, values, **NUMBERS)
    assert found.rows.dtype == found.cluster.dtype == found.central.dtype == torch.int64
    assert found.cluster.tolist() == sorted([0, 1, 2, 3] * 5)
    points = project(embeddings, 2)
    seen = set()
    for cluster in range(4):
        rows = found.rows[found.cluster == cluster]
        (number,) = set(group[rows].tolist())
        seen.add(number)
        members = (group == number).nonzero()[:, 0]
        away = (points[members] - points[members].mean(dim=0)).norm(dim=1)
        assert rows.tolist() == members[away.argsort()[:5]].tolist()
        assert int(found.central[cluster]) == int(rows[0])
    assert seen == {0, 1, 2, 3}


def test_clusters_are_those_of_the_most_uncertain_on_components_of_all() -> None:
    """The wide direction of all records is not that of the uncertain ones."""
    embeddings = 0.1 * normal(300, 2)
    embeddings[:100, 0] += torch.tensor([-3.0, 3.0]).repeat(50)
    embeddings[:100, 1] += torch.tensor([-1.0, -1.0, 1.0, 1.0]).repeat(25)
    embeddings[100:, 1] += 9 * normal(200, seed=1)
    values = torch.where(torch.arange(300) < 100, 1.0, 0.0)
    numbers = {"num_components": 1, "num_clusters": 2, "num_each": 8, "seed": 0}
    found = diverse_public(embeddings, values, num_uncertain=100, **numbers)
    assert bool((found.rows < 100).all())
    for cluster in (0, 1):
        assert len(set(embeddings[found.rows[found.cluster == cluster], 1].sign().tolist())) == 1
    everywhere = diverse_public(embeddings, values, num_uncertain=300, **numbers)
    assert bool((everywhere.rows >= 100).any())


def test_the_largest_clusters_fill_up_for_small_ones() -> None:
    """Those nearest to their centre first, from whichever has most left."""
    embeddings, values, group = blobs(sizes=(40, 12, 2, 3), certain=0)
    found = diverse_public(embeddings, values, **{**NUMBERS, "num_uncertain": 57, "num_each": 10})
    assert len(found.rows) == len(set(found.rows.tolist())) == 40
    points = project(embeddings, 2)
    for number, count in enumerate((25, 10, 2, 3)):
        rows = found.rows[group[found.rows] == number]
        members = (group == number).nonzero()[:, 0]
        away = (points[members] - points[members].mean(dim=0)).norm(dim=1)
        assert rows.tolist() == members[away.argsort()[:count]].tolist()
        assert len(set(found.cluster[group[found.rows] == number].tolist())) == 1
    assert bool((group[found.rows[25:]] == 0).all())  # fillers come last


def test_all_are_taken_where_there_are_too_few() -> None:
    embeddings, values, _ = blobs()
    for num_each in (30, 31, 500):
        found = diverse_public(embeddings, values, **{**NUMBERS, "num_each": num_each})
        expected = most_uncertain(values, 120)
        assert torch.equal(found.rows.sort().values, expected.sort().values)


def test_the_first_picks_are_spread_over_clusters() -> None:
    rows, cluster = torch.arange(10, 17), torch.tensor([0, 0, 0, 1, 2, 2, 0])
    found = Clusters(rows, cluster, rows[:3])
    assert found.first(4).tolist() == [10, 13, 14, 11]
    assert found.first(99).tolist() == [10, 13, 14, 11, 15, 12, 16]


def test_a_seed_says_everything() -> None:
    """Neither global seeds nor the number of threads do; and nothing global changes."""
    embeddings, values = normal(800, 6), normal(800, seed=1)
    numbers = {**NUMBERS, "num_uncertain": 700, "num_components": 5, "num_clusters": 30}

    def pick(seed: int, threads: int, global_seed: int) -> Clusters:
        np.random.seed(global_seed)
        torch.manual_seed(global_seed)
        torch.set_num_threads(threads)
        expected = torch.random.get_rng_state(), np.random.get_state()[1].copy()
        found = diverse_public(embeddings, values, **{**numbers, "seed": seed})
        assert torch.equal(torch.random.get_rng_state(), expected[0])
        assert np.array_equal(np.random.get_state()[1], expected[1])
        assert torch.get_num_threads() == threads
        return found

    one, same, other = pick(7, 1, 0), pick(7, 2, 5), pick(8, 1, 0)
    torch.set_num_threads(1)
    for name in ("rows", "cluster", "central"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.rows, other.rows)


def test_clusters_are_as_tight_as_those_of_sklearn() -> None:
    """Spread of the central records: no worse than a k-means with ten starts, by a tenth."""
    embeddings, values = normal(600, 3), torch.ones(600)
    numbers = {"num_uncertain": 600, "num_components": 3, "num_clusters": 12, "num_each": 1}
    found = diverse_public(embeddings, values, seed=0, **numbers)
    best = KMeans(12, n_init=10, random_state=0).fit(embeddings.double().numpy())

    def spread(centres: np.ndarray) -> float:
        distance = torch.cdist(embeddings.double(), torch.from_numpy(centres))
        return float(distance.amin(dim=1).square().mean())

    nearest = torch.cdist(torch.from_numpy(best.cluster_centers_), embeddings.double()).argmin(1)
    expected = spread(embeddings[nearest].double().numpy())
    assert spread(embeddings[found.central].double().numpy()) < 1.1 * expected


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_picks_are_different_and_as_many_as_asked_for(data: st.DataObject) -> None:
    """Also of points that repeat, so that clusters are empty."""
    n = data.draw(st.integers(1, 25))
    values = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=2 * n, max_size=2 * n)))
    embeddings, certainty = values.view(n, 2).float(), torch.arange(n) * 7 % 5 / 5
    k = data.draw(st.integers(1, 30))
    clusters = data.draw(st.integers(1, min(k, n)))
    each = data.draw(st.integers(1, 6))
    components = data.draw(st.integers(1, min(2, n)))
    found = diverse_public(
        embeddings, -certainty, num_uncertain=k, num_components=components,
        num_clusters=clusters, num_each=each, seed=data.draw(st.integers(0, 2**63 - 1)),
    )  # fmt: skip
    candidates = set(most_uncertain(-certainty, k).tolist())
    rows = found.rows.tolist()
    assert len(rows) == len(found.cluster) == min(clusters * each, len(candidates))
    assert len(set(rows)) == len(rows)
    assert set(rows) <= candidates
    assert len(found.central) == clusters
    assert set(found.central.tolist()) <= candidates
    assert bool(((found.cluster >= 0) & (found.cluster < clusters)).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_components": 4}, r"4 principal components.*200 public records with 3 features"),
        ({"num_components": 0}, r"0 principal components"),
        ({"num_clusters": 121}, r"121 clusters.*120 uncertain"),
        ({"num_clusters": 201, "num_uncertain": 999}, r"201 clusters.*200 uncertain"),
        ({"num_clusters": 0}, r"0 clusters"),
        ({"num_each": 0}, r"0 records of each cluster"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_a_line(change: dict, message: str) -> None:
    embeddings, values, _ = blobs()
    with pytest.raises(BadInputError, match=message) as caught:
        diverse_public(embeddings, values, **{**NUMBERS, **change})
    assert "\n" not in caught.value.message


def test_embeddings_that_are_not_finite_are_refused() -> None:
    embeddings, values, _ = blobs()
    embeddings[3, 1], embeddings[9, 0] = NAN, INF
    with pytest.raises(BadInputError, match="2 of 200 public records are not finite"):
        diverse_public(embeddings, values, **NUMBERS)
