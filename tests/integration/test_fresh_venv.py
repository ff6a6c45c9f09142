"""A registered model in a virtual environment with torch, MLflow and what they bring, alone."""

import json
import os
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from sklearn.datasets import load_digits
from studies_here import run_here
from whole_studies import make_spec

from dpsweep import register_model
from dpsweep.running.registering import open_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]

SPACES = {
    "plain": {"method": "dp_sgd", "optim.lr": 1.0, "train.max_steps": 20},
    "frozen": {
        "method": "scatternet", "features.name": "scatternet", "optim.lr": 1.0,
        "train.max_steps": 20,
    },
}  # fmt: skip
ASK = """
import importlib.util, json, sys
import mlflow, numpy as np
for name in ("dpsweep", "opacus", "kymatio", "timm", "ray", "optuna"):
    assert importlib.util.find_spec(name) is None, name
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
json.dump(model.predict(np.load("raw.npy")).to_dict("list"), open("answers.json", "w"))
"""


def closure(*names):
    """Return installed distributions: those named, and all that they need."""
    waiting, seen, whole = [(name, "") for name in names], set(), []
    while waiting:
        name, extra = wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        whole.append(distribution)
        for line in distribution.requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                waiting += [(need.name, asked) for asked in ("", *need.extras)]
    return whole


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return the interpreter of a new environment; its files are links to those of this one."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    whole = closure("mlflow", "torch")
    assert "dpsweep" not in {distribution.name for distribution in whole}
    for distribution in whole:
        for file in distribution.files or []:
            source = Path(distribution.locate_file(file))
            if ".." in file.parts or not source.is_file():
                continue  # commands
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except FileExistsError:  # MLflow and its smaller package share theirs
                continue
            except OSError:  # another file system
                shutil.copy2(source, target)
    return folder / "bin" / "python"


@pytest.mark.parametrize("name", SPACES)
def test_a_registered_model_answers_as_its_trial(name, python, tmp_path):
    raw = make_spec(tmp_path, name)
    raw["search"] |= {"num_trials": 1, "space": SPACES[name]}
    with pytest.MonkeyPatch.context() as patch:
        result = run_here(patch.setattr, raw)
    made = register_model(result)
    images = load_digits().images[:200]
    expected = open_model(result).predict(images)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    np.save(folder / "raw.npy", images)
    (folder / "ask.py").write_text(ASK)
    done = subprocess.run(
        [python, "-I", "-W", "ignore", "ask.py", f"sqlite:///{tmp_path}/mlflow.db", made.uri],
        cwd=folder, env={"PATH": os.environ["PATH"], "HOME": str(folder)}, capture_output=True,
        text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = json.loads((folder / "answers.json").read_text())
    assert answers["class"] == list(expected["class"])
    for column in list(expected)[1:]:
        assert answers[column] == pytest.approx(list(expected[column]), abs=1e-6)
    assert sys.executable != str(python)
