"""Whole studies that start from public pre-training: once, cached, tracked as public."""

import json

import pytest
from whole_studies import make_spec, mlflow_rows, parent_note

from dpsweep.foundation.logs import read_log
from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer
from dpsweep.study.trial import TrialState
from dpsweep.sweep import run_sweep

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


class Ear(Observer):
    def __init__(self):
        self.messages = []

    def on_message(self, text):
        self.messages.append(text)


class Onlooker(Ear):
    """Asks for the status of a study whenever there is a message."""

    def __init__(self, root, name):
        super().__init__()
        self.told, self._root, self._name = [], root, name

    def on_message(self, text):
        super().on_message(text)
        self.told.append(load_sweep(self._name, root=self._root / "studies").status_line())


def study(root, name, starts, **changes):
    space = {
        "method": "dp_sgd",
        "model.name": "tanh_cnn",
        "model.checkpoint": {"choice": starts},
        "batch.expected": 128,
        "train.max_steps": 4,
        "optim.lr": 0.5,
    }
    search = {"sampler": "grid", "num_trials": len(starts), "space": space}
    public = {"classes": [0, 1, 2, 3, 4], "model": "tanh_cnn", "epochs": 2, "lr": 0.2}
    spec = make_spec(
        root, name, data__classes=[5, 6, 7, 8, 9], search=search, pretrain=public, **changes
    )
    return SweepSpec(**spec)


@pytest.mark.slow
def test_two_studies_share_one_public_pre_training(tmp_path, ray_cluster):
    ear = Onlooker(tmp_path, "first")
    first = run_sweep(study(tmp_path, "first", ["pretrain", None]), observer=ear)
    first_thing = "public weights first: tanh_cnn on classes 0, 1, 2, 3, 4 of digits, 2 epochs"
    assert ear.told[0] == f"study 'first': running; no trials yet of at most 2; {first_thing}"
    assert "public weights" not in first.status_line()
    assert [trial.state for trial in first.results] == [TrialState.FINISHED] * 2
    assert [trial.config.get("model.checkpoint") for trial in first.results] == ["pretrain", None]
    assert all(trial.epsilon <= 2.0 for trial in first.results)
    (sidecar,) = (tmp_path / "studies" / ".pretrained").glob("*.json")
    facts = json.loads(sidecar.read_text())
    assert [len(facts["epochs"]), facts["records"]] == [2, 901]
    assert first.view.pretrained == {key: facts[key] for key in ("address", "sha256")}
    written = sidecar.stat().st_mtime_ns

    second = run_sweep(
        study(tmp_path, "second", ["pretrain"], tracking={"uri": None}), observer=ear
    )
    assert second.view.pretrained == first.view.pretrained
    assert sidecar.stat().st_mtime_ns == written
    done, found = (line for line in ear.messages if line.startswith("pretrain: tanh_cnn"))
    assert "2 epochs, loss" in done
    assert f"found ({facts['address'][:12]})" in found

    for name in ("first", "second"):
        result = load_sweep(name, root=tmp_path / "studies")
        events = [record["event"] for record in read_log(result.files.journal)]
        assert events[:2] == ["study_started", "pretrained"]
        assert events.count("pretrained") == 1
    runs = mlflow_rows(
        tmp_path,
        "select r.name, max(m.step), count(m.value), t.value from runs r "
        "join metrics m on m.run_uuid = r.run_uuid and m.key = 'pretrain/holdout_accuracy' "
        "join tags t on t.run_uuid = r.run_uuid and t.key = 'dp.records' group by r.run_uuid",
    )
    assert runs == [("pretrain", 2, 2, "public")]
    named = mlflow_rows(
        tmp_path,
        "select r.name from runs r join tags t on t.run_uuid = r.run_uuid "
        f"and t.key = 'dpsweep.pretrained' and t.value = '{facts['address']}' order by r.name",
    )
    assert [name for (name,) in named] == ["pretrain", "trial-0000"]
    card = parent_note(tmp_path)
    assert "trained on public records: tanh_cnn on classes 0, 1, 2, 3, 4 of digits" in card
    assert facts["address"] in card
    assert len(first.view.model_uris) == 1  # its export builds the network from the weights too
