from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dpsweep.hyperparameters import resolve
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.spec import DataSpec
from dpsweep.trainables.data import DatasetInfo, SweepData
from dpsweep.trainables.method import Method, PlanContext


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_spec() -> Callable[..., DataSpec]:
    def make(**given: Any) -> DataSpec:
        raw: dict[str, Any] = {
            "dataset": "digits",
            "validation": {"fraction": 0.2, "visibility": "public"},
            **given,
        }
        return DataSpec(**raw)

    return make


def blobs(
    num_private: int = 200, shape: tuple[int, ...] = (6,), classes: int = 3, seed: int = 0
) -> SweepData:
    """Gaussian blobs, read-only as arrays from an object store are."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, *shape)).astype(np.float32) * 2
    parts = {}
    for part, count in (("private", num_private), ("validation", 60), ("test", 40), ("public", 0)):
        labels = rng.integers(0, classes, count)
        inputs = centres[labels] + rng.normal(size=(count, *shape)).astype(np.float32)
        inputs, labels = inputs.astype(np.float32), labels.astype(np.int64)
        inputs.flags.writeable = labels.flags.writeable = False
        parts[part] = (inputs, labels)
    names = tuple(str(label) for label in range(classes))
    info = DatasetInfo("blobs", shape, classes, num_private, 60, 40, 0, names)
    return SweepData(info, parts, "0")


@pytest.fixture
def data() -> SweepData:
    return blobs()


@pytest.fixture
def make_blobs() -> Callable[..., SweepData]:
    return blobs


@pytest.fixture
def make_plan() -> Callable[..., tuple[dict[str, Any], Any]]:
    def make(
        method: type[Method], *, num_private: int = 200, epsilon: float = 3.0, **given: Any
    ) -> tuple[dict[str, Any], Any]:
        named = {key.replace("__", "."): value for key, value in given.items()}
        hparams = resolve(method.hyperparameters, {"batch.expected": 50, **named})
        context = PlanContext(PrivacyBudget(epsilon, 1e-5), "rdp", num_private)
        return hparams, method.plan(hparams, context)

    return make
