"""Fixtures of all tests: seeds, a folder of studies, one local Ray per session."""

import logging
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings

from dpsweep.foundation.process.garbage import search_seldom

# As in our own processes. Ten thousand tests and their modules are very many objects that stay.
search_seldom()
# The machine may be shared: how long an example takes is no mistake of the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
GOLDEN = (5**0.5 - 1) / 2


def pytest_ignore_collect(collection_path, config):
    """Load no file in vain where tests with Ray alone are asked for: that takes half a minute."""
    if not config.option.markexpr.startswith("ray") or collection_path.suffix != ".py":
        return None
    return True if "mark.ray" not in collection_path.read_text() else None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """Leave all but one in n cases of a test that is marked ``sampled(n)`` to make test-slow.

    By the golden section, so that the cases that stay have each value of each parameter in turn.
    """
    number = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None:
            continue
        test = (item.path, item.originalname)
        if number[test] * GOLDEN % 1 >= 1 / mark.args[0]:
            item.add_marker(pytest.mark.slow)
        number[test] += 1


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_ambient_studies(tmp_path_factory):
    import os

    os.environ["DPSWEEP_STUDIES"] = str(tmp_path_factory.mktemp("studies"))
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # processes of no use here
    os.environ["COLUMNS"] = "400"  # what tests look for stands on one line, but where they say else


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


@pytest.fixture(scope="session")
def database_server():
    """A PostgreSQL server for all tests of this process."""
    from tests.helpers import postgres

    with postgres.running() as server:
        yield server


@pytest.fixture(scope="session")
def _database(database_server):
    return database_server.make("ledgers")


@pytest.fixture
def database_sessions():
    """Closes the sessions that a test leaves open, those of readers too."""
    from tests.helpers import postgres

    with postgres.sessions_of_its_own():
        yield


@pytest.fixture
def database(_database, database_sessions):
    """Address of a database that other tests use, too."""
    return _database
