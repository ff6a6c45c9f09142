"""A whole study of sparse finetuning: trained, exported, its layers in MLflow and on the screen."""

import json

import pytest
import torch
from typer.testing import CliRunner
from whole_studies import make_spec, mlflow_rows

from dpsweep.cli.app import app
from dpsweep.spec.study import SweepSpec
from dpsweep.sweep import run_sweep

pytestmark = pytest.mark.ray


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_study_trains_masks_and_shows_its_layers(tmp_path, ray_cluster):
    raw = make_spec(tmp_path, name="sparse")
    raw["data"]["public"] = {"fraction": 0.1}
    raw["search"] = {
        "sampler": "grid",
        "num_trials": 2,
        "space": {
            "method": "sparse",
            "model.name": "tanh_cnn",
            "sparse.train": {"choice": ["cls", "all"]},
            "sparse.density": 0.1,
            "sparse.body_lr": 0.3,
            "optim.lr": 1.0,
            "train.max_steps": 6,
        },
    }
    result = run_sweep(SweepSpec(**raw))
    assert result.state == "finished", result.view.end_reason
    first, second = result.results
    assert first.statement.epsilon == second.statement.epsilon  # whatever trains

    best = result.best()
    import mlflow.pytorch

    mlflow.set_tracking_uri(raw["tracking"]["uri"])
    model = mlflow.pytorch.load_model(best.model_uri)
    with torch.no_grad():
        assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    ((where,),) = mlflow_rows(
        tmp_path, f"select artifact_uri from runs where run_uuid = '{best.run_id}'"
    )
    with open(f"{where.removeprefix('file://')}/layers.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"

    words = [
        "layers",
        "sparse",
        "--root",
        str(tmp_path / "studies"),
        "--at",
        "best",
        "--trial",
        "1",
    ]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["layer"]: row for row in json.loads(done.stdout)["layers"]}
    masked = sum(row["num_trainable"] for row in rows.values() if row["kind"] == "conv")
    assert masked == round(0.1 * 9216)
    assert [row["share"] for row in rows.values() if row["kind"] == "cls"] == [1.0]
