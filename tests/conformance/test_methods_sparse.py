"""Sparse finetuning passes the suite of methods: a classifier alone, and with masked convolutions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from dpsweep.testing import conformance
from dpsweep.testing.conformance import MethodConformance
from dpsweep.trainables.methods.sparse.sparse import SparseFinetuning
from dpsweep.trainables.methods.without_privacy import SparseNonPrivate

GIVEN = {"train.max_steps": 24, "batch.expected": 100, "optim.lr": 0.3}


class TestSparseClassifier(MethodConformance):
    method = SparseFinetuning
    given: ClassVar[Mapping[str, Any]] = {**GIVEN, "sparse.train": "cls"}


class TestSparseNonPrivate(MethodConformance):
    method = SparseNonPrivate
    given: ClassVar[Mapping[str, Any]] = {**GIVEN, "sparse.train": "cls"}


class TestSparseMasked(MethodConformance):
    method = SparseFinetuning
    given: ClassVar[Mapping[str, Any]] = {
        **GIVEN,
        "model.name": "tanh_cnn",
        "sparse.train": "all",
        "sparse.density": 0.05,
        "optim.lr": 1.0,
        "sparse.body_lr": 0.3,
        "clip.rule": "automatic",
        "batch.physical": 128,
    }

    @pytest.fixture(autouse=True)
    def _images(self, monkeypatch):
        points = conformance.tiny_data

        def images(*arguments, **named):
            """The same two classes as grey images of 8 x 8, half of them dark."""
            data = points(*arguments, **named)
            parts = {
                name: (np.repeat(x[:, :4], 16, axis=1).reshape(-1, 1, 8, 8), y)
                for name, (x, y) in data.parts.items()
            }
            return replace(data, info=replace(data.info, input_shape=(1, 8, 8)), parts=parts)

        monkeypatch.setattr(conformance, "tiny_data", images)
