"""Nodes, actors and drivers that die at seeded moments: every trial ends, and nothing is uncharged."""

import pytest
from fault_schedules import FaultySweep, ThreeNodes

from tests.helpers import postgres
from tests.helpers.postgres import sessions_of_its_own

pytestmark = [pytest.mark.ray, pytest.mark.slow]  # one of each fault: ``test_sweep``


@pytest.fixture(scope="module")
def nodes():
    nodes = ThreeNodes()
    yield nodes
    nodes.end()


@pytest.fixture(scope="module")
def server():
    with postgres.running() as server, sessions_of_its_own():
        yield server


@pytest.fixture(scope="module")
def nodes_with_a_password(server):
    nodes = ThreeNodes()  # which it is handed to, as on a cluster
    yield nodes
    nodes.end()


@pytest.mark.parametrize(
    ("seed", "faults", "max_failures"),
    [
        (0, ("node removed", "actor killed"), 3),
        (1, ("actor told to leave",), 0),  # which is no failure
        (2, ("driver killed",), 3),  # also with a database, below
    ],
)
def test_a_short_sweep_outlives_its_faults(nodes, tmp_path, seed, faults, max_failures):
    sweep = FaultySweep(
        tmp_path, nodes, seed, num_trials=4, faults=faults, max_failures=max_failures
    )
    sweep.run()
    sweep.check()


def test_a_short_sweep_outlives_its_driver_and_its_database(
    nodes_with_a_password, server, tmp_path
):
    sweep = FaultySweep(
        tmp_path, nodes_with_a_password, 3, num_trials=4, faults=("driver killed",), server=server
    )
    sweep.run()
    sweep.check()


@pytest.mark.parametrize("seed", range(100, 120))
def test_a_sweep_outlives_a_node_two_actors_and_its_driver(nodes, tmp_path, seed):
    sweep = FaultySweep(tmp_path, nodes, seed, num_trials=24)
    sweep.run()
    sweep.check()


@pytest.mark.parametrize("seed", range(200, 220))
def test_a_sweep_outlives_its_database_too(nodes_with_a_password, server, tmp_path, seed):
    sweep = FaultySweep(tmp_path, nodes_with_a_password, seed, num_trials=24, server=server)
    sweep.run()
    sweep.check()


DIES_WHEN_GIVEN_A_TRIAL = """

from dpsweep.trainables.execution.actor import DPTrainable


def die_once(actor, config):
    mark = Path(__file__).parent / "died.txt"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return reset(actor, config)
    os._exit(1)


reset, DPTrainable.reset_config = DPTrainable.reset_config, die_once
"""


def test_a_process_that_dies_as_it_is_given_a_trial_counts_once(nodes, tmp_path):
    """As with every node that is removed while its process waits for the next trial."""
    sweep = FaultySweep(tmp_path, nodes, 0, num_trials=5, faults=(), max_failures=1)
    sweep.change(nets=DIES_WHEN_GIVEN_A_TRIAL, resources={})
    sweep.run()
    assert (tmp_path / "died.txt").exists()
    sweep.check()


HANGING = """

wait_here = DPSGD.run


def hung(method, start, stop):
    mark = Path(__file__).parent / "hung.txt"
    if method._context.trial == 0 and start > 0 and not mark.exists():
        mark.touch()
        time.sleep(3600)
    wait_here(method, start, stop)


DPSGD.run = hung
"""


def test_a_trial_that_hangs_loses_its_process_and_continues(nodes, tmp_path):
    sweep = FaultySweep(tmp_path, nodes, 0, num_trials=1, faults=(), max_failures=1)
    sweep.change(nets=HANGING, resources={"hang_minutes": 0.25})
    sweep.run()
    sweep.check()
    said = " ".join((tmp_path / "stderr.txt").read_text().split())
    assert "trial 0: no report for 0.25 minutes; its process is ended" in said
