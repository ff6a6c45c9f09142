"""Pebbles: three heaps of points, made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.source import Arrays, Source, declared_size

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec


def open_pebbles(spec: DataSpec) -> Source:
    """Return the source of ``dataset: pebbles``; it has a test part of its own."""
    if spec.path is not None:
        raise DataError("pebbles lie in no file", fix="remove data.path")
    size = declared_size(spec)

    def heap(count: int, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 3, count)
        points = rng.normal(size=(count, 8)) * 0.3 + np.eye(3, 8)[labels] * 2
        return points.astype(np.float32), labels.astype(np.int64)

    def read() -> dict[str, Arrays]:
        return {"train": heap(size, 0), "test": heap(100, 1)}

    return Source((8,), 3, ("grey", "white", "striped"), size, None, 100, read)
