"""Datasets pass the suite that outsiders subclass, and it finds what is wrong with one."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np
import pytest

from dpsweep.foundation.errors import DataError
from dpsweep.testing.datasets import DatasetConformance
from dpsweep.trainables.data.built_in import open_digits


class TestDigits(DatasetConformance):
    opener = staticmethod(open_digits)


CALLS = itertools.count()


def shuffled() -> dict[str, Any]:
    inputs, labels = open_digits(TestDigits()._spec()).read()["train"]
    return {"train": (np.roll(inputs, next(CALLS), axis=0), labels)}


@pytest.mark.parametrize(
    ("change", "test", "error"),
    [
        ({"input_shape": (64,)}, "test_records_are_as_it_said", DataError),
        ({"class_names": ("0",)}, "test_it_says_its_facts_before_it_reads", AssertionError),
        ({"tasks": frozenset({"multi_label"})}, "test_it_has_the_task_of_the_spec", AssertionError),
        ({"read": shuffled}, "test_records_are_the_same_each_time", AssertionError),
        (
            {"own_test": 3, "read_labels": lambda part: np.zeros(3)},
            "test_labels_alone_are_those_of_the_records",
            KeyError,
        ),
    ],
)
def test_a_dataset_that_breaks_its_word_fails(
    change: dict[str, Any], test: str, error: type[Exception]
) -> None:
    class Broken(DatasetConformance):
        __test__: ClassVar[bool] = False
        opener = staticmethod(lambda spec: dataclasses.replace(open_digits(spec), **change))

    with pytest.raises(error):
        getattr(Broken(), test)()
