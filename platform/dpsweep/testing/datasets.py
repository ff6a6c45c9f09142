"""The suite of datasets: subclass it once per dataset of a package.

class TestSpots(DatasetConformance):
    opener = staticmethod(open_spots)
    data = {"num_records": 1000}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from dpsweep.spec.data.section import DataSpec
from dpsweep.spec.installed import AS_STORED
from dpsweep.trainables.data.source import Source
from dpsweep.trainables.data.sources import check_arrays


class DatasetConformance:
    """The suite of datasets.

    Attributes:
        opener: What its entry point names.
        data: Keys of ``data`` in a spec that it needs; ``dataset`` and ``validation`` may be left
            out.
    """

    opener: Callable[[DataSpec], Source]
    data: ClassVar[Mapping[str, Any]] = {}

    def _spec(self) -> DataSpec:
        section = {"dataset": "under_test", "validation": {"visibility": "public"}, **self.data}
        return DataSpec.model_validate(section, context=AS_STORED)

    def _source(self) -> Source:
        return type(self).opener(self._spec())

    def test_it_says_its_facts_before_it_reads(self) -> None:
        """Shapes, classes and sizes are there, and asked twice they are the same."""
        source, again = self._source(), self._source()
        assert source.input_shape
        assert all(isinstance(side, int) and side > 0 for side in source.input_shape)
        assert source.num_records >= 1
        assert source.num_classes >= 2
        if self._spec().task != "causal_lm":
            assert len(source.class_names) == source.num_classes
        for name in ("input_shape", "num_classes", "class_names", "num_records"):
            assert getattr(source, name) == getattr(again, name), name

    def test_it_has_the_task_of_the_spec(self) -> None:
        """``Source.tasks`` holds it, which a spec is checked against."""
        assert self._spec().task in self._source().tasks

    def test_records_are_as_it_said(self) -> None:
        """Parts, shapes, types, labels and the sizes of its own parts."""
        source = self._source()
        check_arrays(source, source.read(), "under_test", self._spec().task)

    def test_records_are_the_same_each_time(self) -> None:
        """A study that goes on is refused where they are not; so their order must not change."""
        first, second = self._source().read(), self._source().read()
        assert first.keys() == second.keys()
        for part, arrays in first.items():
            for one, other in zip(arrays, second[part]):
                np.testing.assert_array_equal(one, other)

    def test_labels_alone_are_those_of_the_records(self) -> None:
        """``read_labels``, where there is one, agrees with ``read``."""
        source = self._source()
        if source.read_labels is None:
            return
        for part, size in (("validation", source.own_validation), ("test", source.own_test)):
            if size is not None:
                np.testing.assert_array_equal(source.read_labels(part), source.read()[part][1])
