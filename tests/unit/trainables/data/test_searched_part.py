"""The part of the private records that is searched on: disjoint by record, blind to all others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.foundation.errors import DataError
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.dataset import searched_rows, split_sizes
from dpsweep.trainables.data.loading import load_dataset

SHARES = st.floats(0.001, 0.999)


def npz(path, num_records, declared, changed=None, **parts):
    """Records whose only value is their own number; ``changed`` has another value and label."""
    values = np.arange(num_records, dtype=np.float32)[:, None]
    labels = np.zeros(num_records, np.int64)
    if changed is not None:
        values[changed], labels[changed] = -1 - changed, 1
    np.savez(path, x_train=values, y_train=labels)
    return DataSpec(
        dataset="npz", path=str(path), num_records=declared, num_classes=2,
        validation={"fraction": 0.2, "visibility": "public"}, test={"fraction": 0.1}, **parts,
    )  # fmt: skip


def numbers(data, part="private"):
    return set(data.parts[part][0][:, 0].astype(int).tolist())


@settings(deadline=None, max_examples=25)
@given(
    declared=st.integers(20, 60), off=st.integers(-8, 8), share=SHARES,
    most=st.none() | st.integers(2, 10),
)  # fmt: skip
def test_each_record_is_in_one_part_alone(tmp_path_factory, declared, off, share, most):
    path = tmp_path_factory.mktemp("parts") / "data.npz"
    spec = npz(path, declared + off, declared, max_private=most)
    data = load_dataset(spec, searched_share=share)
    search, final = data.for_search(), data.for_final_run()
    of_parts = [numbers(search), numbers(final), numbers(data, "validation"), numbers(data, "test")]
    assert sum(map(len, of_parts)) == len(set().union(*of_parts))
    assert of_parts[0] | of_parts[1] == numbers(data)
    assert numbers(search, "validation") == numbers(final, "validation") == of_parts[2]
    sizes = (search.info.num_private, final.info.num_private)
    assert sizes == split_sizes(data.info.num_private, share)
    assert min(sizes) >= 1
    assert (search.records, final.records) == ("private", "rest")


@settings(deadline=None, max_examples=15)
@given(share=SHARES, changed=st.integers(0, 39))
def test_what_a_record_holds_moves_neither_it_nor_another(tmp_path_factory, share, changed):
    root = tmp_path_factory.mktemp("content")
    before = load_dataset(npz(root / "a.npz", 40, 40), searched_share=share)
    after = load_dataset(npz(root / "b.npz", 40, 40, changed), searched_share=share)
    for view in ("for_search", "for_final_run"):
        old, new = numbers(getattr(before, view)()), numbers(getattr(after, view)())
        assert new == {-1 - changed if number == changed else number for number in old}


@given(declared=st.integers(2, 300), share=SHARES, actual=st.integers(0, 320))
def test_rows_are_a_function_of_declared_numbers(declared, share, actual):
    rows = searched_rows(declared, share, actual)
    every = searched_rows(declared, share, declared)
    assert len(every) == split_sizes(declared, share)[0]
    assert rows.tolist() == [row for row in every.tolist() if row < actual]


def test_the_part_is_no_prefix_and_has_all_classes():
    rows = searched_rows(10_000, 0.1, 10_000)
    assert 4500 < rows.mean() < 5500


def test_without_a_share_there_is_no_rest(tmp_path):
    data = load_dataset(npz(tmp_path / "data.npz", 40, 40))
    assert data.for_search() is data
    with pytest.raises(DataError, match="no rest"):
        data.for_final_run()


def test_a_part_is_not_parted_again(tmp_path):
    search = load_dataset(npz(tmp_path / "data.npz", 40, 40), searched_share=0.5).for_search()
    assert search.for_search() is search
    with pytest.raises(DataError, match="no rest"):
        search.for_final_run()
