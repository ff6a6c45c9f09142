"""SIGTERM to a driver, to it and all of Ray, and a raylet that dies: one line, and it goes on."""

import contextlib
import os
import signal

import pytest
import yaml
from whole_studies import descendants, make_spec, mlflow_rows, start, wait_for_steps

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import load_sweep

pytestmark = pytest.mark.ray
DELTA = 1e-5


@pytest.fixture
def running(tmp_path):
    """Start a study of two CNNs that takes minutes; yield its process once both have reported."""
    spec = make_spec(tmp_path, "long", resources={"cpu": 1}, report={"every_steps": 10})
    spec["search"]["num_trials"] = 2
    spec["search"]["space"] = {
        "method": "dp_sgd", "model.name": "tanh_cnn", "train.max_steps": 2000, "batch.expected": 32,
    }  # fmt: skip
    path = tmp_path / "long.yaml"
    path.write_text(yaml.safe_dump(spec))
    process = start(path)
    for trial in (0, 1):
        wait_for_steps(tmp_path / "studies/long/journal.jsonl", 10, process, trial=trial)
    yield process, tmp_path, path
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def check_end(running, *, code, said):
    process, root, path = running
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    for word in ("Traceback", "***", "Error:", "SIGTERM received"):
        assert word not in err
    assert said in err
    assert f"run the same command again: dpsweep run {path}" in err
    result = load_sweep("long", root=root / "studies")
    assert result.state == "interrupted"
    *_, last = read_log(result.files.journal)
    assert (last["event"], last["state"]) == ("study_ended", "interrupted")
    for number, view in result.view.trials.items():
        # What it is known to have been charged; an actor may have charged more since then.
        spent = trial_spent(result.files.ledger, number).slice(0, view.charged)
        shown = mlflow_rows(
            root,
            "select max(m.value) from metrics m join tags t on t.run_uuid = m.run_uuid and "
            f"t.key = 'dpsweep.trial' and t.value = '{number}' where m.key = 'dp/epsilon'",
        )
        assert shown[0][0] >= epsilon_of(spent, delta=DELTA) * (1 - 1e-6)


@pytest.mark.slow  # the one below sends it to the driver, too
def test_sigterm_to_the_driver_is_ctrl_c(running):
    os.kill(running[0].pid, signal.SIGTERM)
    check_end(running, code=143, said="terminated; to continue")


def test_sigterm_to_every_process_ends_in_time(running):
    """As Slurm sends it: to the driver, to Ray's own processes and to the actors."""
    for pid in (running[0].pid, *descendants(running[0].pid)):
        with contextlib.suppress(ProcessLookupError):  # ended by the ones before it
            os.kill(pid, signal.SIGTERM)
    check_end(running, code=143, said="terminated; to continue")


@pytest.mark.slow
def test_a_dead_raylet_is_one_line(running):
    (raylet,) = [p for p, c in descendants(running[0].pid).items() if c.endswith("/raylet")]
    os.kill(raylet, signal.SIGKILL)
    check_end(running, code=1, said="error: Ray has ended under the study; to continue")
