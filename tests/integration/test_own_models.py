"""A network of the user's own, in a file beside the spec, with a range for each method."""

import json
import subprocess
import sys

import pytest
import ray
import yaml
from whole_studies import make_spec, mlflow_rows

from dpsweep.cluster.worker import TRIED
from dpsweep.results.study import load_sweep

pytestmark = pytest.mark.ray

NETS = """
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        channels, height, width = input_shape
        self.conv = nn.Conv2d(channels, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.fc = nn.Linear(8 * height * width, num_classes)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).flatten(1))

    def get_classifier(self):
        return self.fc
"""


def installed(directory, *arguments):
    """Run dpsweep as the installed command does: the directory is not on Python's path."""
    code = "from dpsweep.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.skipif(
    not ray.__version__.startswith(TRIED), reason="another Ray, of which all is loaded"
)
def test_a_trials_process_loads_neither_pandas_nor_tunes_loop(tmp_path):
    """Each of them takes a fifth of a second, and a sweep of a few trials takes ten."""
    names = ("pandas.core", "ray.data.dataset", "ray.tune.tuner", "ray.tune.trainable")
    look = f"""
import os, sys, pathlib
def look():
    if "DPSWEEP_WORKER_HOME" in os.environ and "torch" in sys.modules and sys.argv[0] != "-c":
        path = pathlib.Path({str(tmp_path / "seen")!r})
        path.write_text(repr([n for n in {names} if n in sys.modules]))
"""
    net = NETS.replace("        return self.fc", "        look()\n        return self.fc")
    (tmp_path / "nets.py").write_text(look + net)
    space = {"method": "dp_sgd", "model.name": "nets:Net", "optim.lr": 0.1,
             "train.max_steps": 2, "batch.expected": 16}  # fmt: skip
    search = {"sampler": "random", "num_trials": 3, "space": space}
    spec = make_spec(tmp_path, name="own", search=search)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(spec))
    done = installed(tmp_path, "run", "sweep.yaml")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == "['ray.tune.trainable']"


@pytest.mark.slow  # the sweeps under faults train a network of their own, too
def test_a_file_beside_the_spec_is_what_trials_train(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    rates = {"dp_sgd": 1.0, "bitfit": {"loguniform": [0.05, 0.2], "num": 1}}
    spec = make_spec(
        tmp_path,
        name="own",
        search={
            "sampler": "grid",
            "num_trials": 4,
            "space": {
                "method": {"choice": ["dp_sgd", "bitfit"]},
                "model.name": "nets:Net",
                "optim.lr": {"by": {"method": rates}},
                "train.epochs": 2,
                "batch.expected": 128,
            },
        },
    )
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(spec))
    wrong = installed(
        tmp_path, "validate", "sweep.yaml", "--set", "search.space.model.name=nets:Nt"
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "search.space.model.name: nets:Nt: nets has no 'Nt'" in wrong.stderr
    done = installed(tmp_path, "run", "sweep.yaml")
    assert done.returncode == 0, done.stderr
    result = load_sweep("own", root=tmp_path / "studies")
    assert [t.state.value for t in result.results] == ["finished"] * 2
    configs = {t.config["method"]: t.config for t in result.results}
    assert configs["dp_sgd"]["optim.lr"] == 1.0
    assert configs["bitfit"]["optim.lr"] == pytest.approx(0.1)
    assert "optim.lr" in result.varied
    shown = mlflow_rows(tmp_path, "select value from params where key = 'optim.lr'")
    assert {float(value) for (value,) in shown} == {1.0, configs["bitfit"]["optim.lr"]}
    said = installed(tmp_path, "best", "own", "--root", "studies", "-f", "json")
    assert said.returncode == 0, said.stderr
    best = json.loads(said.stdout)
    assert best["config"]["optim.lr"] == result.best().config["optim.lr"]
    code = (
        "import sys, mlflow, torch; mlflow.set_tracking_uri(sys.argv[1]); "
        "m = mlflow.pytorch.load_model(sys.argv[2]); print(tuple(m(torch.zeros(3, 1, 8, 8)).shape));"
        "assert not {'dpsweep', 'nets'} & set(sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", code, f"sqlite:///{tmp_path}/mlflow.db", best["model_uri"]],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert loaded.stdout.strip() == "(3, 10)", loaded.stderr
