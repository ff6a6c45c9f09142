"""A secret part of the private records: each is drawn by itself, and only declared facts are told."""

import numpy as np
import pytest
from scipy import stats

from dpsweep.privacy.randomness import secret_hex
from dpsweep.spec.data.section import DataSpec
from dpsweep.trainables.data.dataset import secret_rows
from dpsweep.trainables.data.loading import load_dataset


@pytest.fixture(scope="module")
def data():
    spec = DataSpec(dataset="digits", validation={"fraction": 0.2, "visibility": "public"})
    return load_dataset(spec)


def test_the_part_is_the_drawn_records_and_nothing_else_changes(data):
    seed = secret_hex()
    part = data.for_secret_part(0.2, seed)
    rows = secret_rows(len(data.parts["private"][1]), 0.2, seed)
    for whole, some in zip(data.parts["private"], part.parts["private"], strict=True):
        assert np.array_equal(whole[rows], some)
    assert part.parts["validation"] is data.parts["validation"]
    assert part.records == "private"


@pytest.mark.parametrize("rate", [0.02, 0.2, 0.7])
def test_its_facts_are_declared_whatever_was_drawn(data, rate):
    parts = [data.for_secret_part(rate, secret_hex()) for _ in range(4)]
    declared = round(rate * data.info.num_private)
    assert {part.info.num_private for part in parts} == {declared}
    assert len({len(part.parts["private"][1]) for part in parts}) > 1
    for part in parts:  # by a hash, whoever has the records could look for the part
        assert (part.content_hash, part.old_hash) == ("", "")
        assert "private" not in part.hashes


def test_each_record_enters_by_a_draw_of_its_own():
    """With others behind it or not, a record is in or out as before."""
    seed = secret_hex()
    all_rows = secret_rows(1000, 0.3, seed)
    fewer = secret_rows(400, 0.3, seed)
    assert np.array_equal(fewer, all_rows[all_rows < 400])


def test_members_are_binomial_and_independent():
    rate, size, draws = 0.1, 200, 600
    members = np.zeros((draws, size), dtype=bool)
    for draw in range(draws):
        members[draw, secret_rows(size, rate, secret_hex())] = True
    sizes = members.sum(axis=1)
    spread = stats.chi2.cdf((draws - 1) * sizes.var(ddof=1) / (size * rate * (1 - rate)), draws - 1)
    assert 1e-5 < spread < 1 - 1e-5  # a part of fixed size has a variance of 0
    assert stats.binomtest(int(members.sum()), draws * size, rate).pvalue > 1e-6
    pairs = int((members[:, :-1] & members[:, 1:]).sum())
    assert stats.binomtest(pairs, draws * (size - 1), rate**2).pvalue > 1e-6


def test_other_bits_are_another_part():
    first, second = (set(secret_rows(1000, 0.5, secret_hex()).tolist()) for _ in range(2))
    assert 150 < len(first & second) < 350
