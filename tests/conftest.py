"""What all tests share: seeds, small data, one local Ray per session."""

import logging
import random

import numpy as np
import pytest
from hypothesis import settings

from dpsweep.trainables.data.dataset import DatasetInfo, SweepData

# Of `make coverage`, which slows everything down.
settings.register_profile("coverage", deadline=None)


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_ambient_studies(tmp_path_factory):
    import os

    os.environ["DPSWEEP_STUDIES"] = str(tmp_path_factory.mktemp("studies"))
    os.environ["COLUMNS"] = "400"  # what tests look for stands on one line, but where they say else


def make_data(num_private=1000, num_validation=200, features=12, classes=3, seed=0, num_test=50):
    """Return a separable problem of Gaussian blobs as ``SweepData``."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(classes, features)).astype(np.float32)

    def part(count):
        labels = rng.integers(0, classes, size=count)
        noise = 0.3 * rng.normal(size=(count, features)).astype(np.float32)
        return centers[labels] + noise, labels.astype(np.int64)

    info = DatasetInfo(
        "blobs", (features,), classes, num_private, num_validation, num_test, 0,
        tuple(str(c) for c in range(classes)),
    )  # fmt: skip
    parts = {
        "private": part(num_private),
        "validation": part(num_validation),
        "test": part(num_test),
        "public": part(0),
    }
    return SweepData(info, parts, "0" * 64)


@pytest.fixture
def blobs():
    return make_data()


@pytest.fixture(scope="session")
def ray_cluster():
    """One local Ray for all tests of this process; sweeps that run in it join that."""
    ray = pytest.importorskip("ray")
    import os

    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    yield ray
    ray.shutdown()
