"""Gaussian blobs: small records whose classes can be told apart, in the parts of a study."""

import numpy as np

from dpsweep.trainables.data.dataset import DatasetInfo, SweepData


def blobs(
    num_private: int = 200,
    shape: tuple[int, ...] = (6,),
    classes: int = 3,
    seed: int = 0,
    *,
    num_validation: int = 60,
    num_test: int = 40,
    num_public: int = 0,
) -> SweepData:
    """Return blobs of a seed, read-only as arrays from an object store are."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, *shape)).astype(np.float32) * 2
    sizes = {
        "private": num_private,
        "validation": num_validation,
        "test": num_test,
        "public": num_public,
    }
    parts = {}
    for part, count in sizes.items():
        labels = rng.integers(0, classes, count)
        inputs = centres[labels] + rng.normal(size=(count, *shape)).astype(np.float32)
        inputs, labels = inputs.astype(np.float32), labels.astype(np.int64)
        inputs.flags.writeable = labels.flags.writeable = False
        parts[part] = (inputs, labels)
    names = tuple(str(label) for label in range(classes))
    counts = (num_private, num_validation, num_test, num_public)
    return SweepData(DatasetInfo("blobs", shape, classes, *counts, names), parts, "0" * 64)
