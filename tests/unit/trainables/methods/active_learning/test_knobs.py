"""Numbers that do not fit together: of the pool, its labels and what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpsweep.foundation.errors import DataError
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.loading import describe_dataset
from dpsweep.trainables.hooks import ChecksRecords
from dpsweep.trainables.methods.active_learning.active_learning import ActiveLearning

VALUES: dict[str, list[Any]] = {
    "labels.max": [40],
    "select.by": ["diverse_public"],
    "select.candidates": [200],
    "select.clusters": [20],
    "select.components": [5],
}


@pytest.fixture(scope="module")
def info() -> DatasetInfo:
    public = {"fraction": 0.3}
    validation = {"fraction": 0.2, "visibility": "public"}
    own = describe_dataset(DataSpec(dataset="digits", validation=validation, public=public))
    return replace(own, num_public=105)


def said(info: DatasetInfo, **given: list[Any]) -> list[str]:
    named = {key.replace("__", "."): value for key, value in given.items()}
    return [str(mistake) for mistake in ActiveLearning.preflight({**VALUES, **named}, info)]


def records(info: DatasetInfo, there: int, *, is_polluted: bool = False) -> SweepData:
    parts = {"public": (np.zeros((there, 0), np.float32), np.zeros(there, np.int64))}
    return SweepData(info, parts, "", polluted=np.ones(there, bool) if is_polluted else None)


def test_no_components_are_asked_for_that_a_pool_cannot_have(info: DatasetInfo) -> None:
    assert said(info, select__components=[105]) == []
    (line,) = said(info, select__components=[5, 106])
    assert line.startswith(
        "select.components: 106 components cannot be had of 105 public records (at most 105, or "
    )
    assert said(info, select__components=[106], select__by=["near_private"]) == []
    assert said(info, select__components=[106], labels__max=[0]) == []
    both = ["diverse_public", "near_private"]  # which has components of embeddings
    assert said(info, select__components=[5, 106], select__by=both) == []
    assert said(info, select__components=[106, 107], select__by=both) != []


@pytest.mark.parametrize(
    ("public_from", "fix"),
    [("", "raise data.public.fraction"), ("npz pool.npz", "name a larger file in data.public")],
)
def test_a_larger_pool_is_had_as_it_was_made(info: DatasetInfo, public_from: str, fix: str) -> None:
    pool = replace(info, public_from=public_from)
    (line,) = said(pool, labels__max=[106])
    assert line.startswith(
        f"labels.max: 106 is more than the 105 public records (lower it, or {fix}"
    )
    (line,) = said(replace(pool, num_public=0))
    assert fix in line
    (line,) = said(pool, select__components=[106])
    assert fix in line


def test_candidates_are_at_fault_where_they_are_fewer_than_the_pool(info: DatasetInfo) -> None:
    (line,) = said(info, select__candidates=[30])
    assert line.startswith("select.candidates: 30 candidates are fewer than the 40 labels")
    assert all("select.candidates" not in line for line in said(info, labels__max=[300]))


def test_a_pool_that_is_smaller_than_declared_is_refused_in_time(info: DatasetInfo) -> None:
    def check(there: int, **given: list[Any]) -> None:
        named = {key.replace("__", "."): value for key, value in given.items()}
        ActiveLearning.check_records({**VALUES, **named}, records(info, there))

    assert issubclass(ActiveLearning, ChecksRecords)
    check(20)
    with pytest.raises(DataError, match="too few for 20 clusters of them") as caught:
        check(19)
    assert "19" not in str(caught.value)  # tells of the number of private records
    assert str(caught.value.fix).startswith("lower select.clusters, or correct data.num_records")
    check(19, select__clusters=[19])
    for fewer in ({"labels__max": [0, 19]}, {"select__candidates": [19]}, {"labels__max": [0]}):
        check(19, **fewer)  # a configuration with more clusters has no plan
    with pytest.raises(DataError, match="too few for 30 components of them"):
        check(29, select__components=[5, 30])
    for by in ("random", "margin", "near_private"):
        check(19, select__by=[by], select__components=[30])
    with pytest.raises(DataError, match="105 that are declared: none to label"):
        check(0, select__by=["random"])


def test_pollution_counts_where_labels_of_a_file_are_read_alone(info: DatasetInfo) -> None:
    polluted = replace(info, num_polluted=90)
    ActiveLearning.check_records(VALUES, records(polluted, 15))
    with pytest.raises(DataError, match="too few"):
        ActiveLearning.check_records(VALUES, records(polluted, 15, is_polluted=True))
