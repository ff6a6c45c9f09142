"""Whole studies whose public records are another file: of another size, or of another domain."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from whole_studies import make_spec, mlflow_rows

from dpsweep.foundation.errors import StudyError
from dpsweep.planning.preflight import preflight
from dpsweep.results.study_card import card
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState
from dpsweep.sweep import run_sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def files(tmp_path):
    """Blurred digits, which are private, and larger ones that are sharp, which are public."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    large = images[1000:].repeat(2, 2).repeat(2, 3)
    blurred = (images + np.roll(images, 1, axis=2) + np.roll(images, 1, axis=3)) / 3
    labels = digits.target
    np.savez(tmp_path / "own.npz", x_train=blurred[:1000], y_train=labels[:1000])
    np.savez(tmp_path / "pool.npz", x_train=large, y_train=labels[1000:])
    return tmp_path


def data(root, public):
    return {
        "dataset": "npz",
        "path": str(root / "own.npz"),
        "num_records": 1000,
        "num_classes": 10,
        "validation": {"visibility": "public"},
        "test": {"fraction": 0.1, "visibility": "public"},
        "public": {"path": str(root / "pool.npz"), "resize": True, **public},
    }


def composed(epsilon, **more):
    return {"accounting": "composed", "trial_epsilon": epsilon, "delta": 1e-5, **more}


def test_labels_are_bought_from_a_pool_that_taught_rotations(files):
    raw = make_spec(
        files,
        "pool",
        data=data(files, {"labels": "bought", "validation": 0.2}),
        pretrain={"model": "tanh_cnn", "objective": "rotations", "epochs": 1},
        start={
            "epsilons": [2.0],
            "hyperparameters": {
                "model.name": "tanh_cnn",
                "model.checkpoint": "pretrain",
                "train.max_steps": 20,
                "batch.expected": 100,
            },
        },
        search={
            "sampler": "grid",
            "num_trials": 2,
            "space": {
                "method": "active_learning",
                "labels.max": {"choice": [0, 40]},
                "select.by": "margin",
                "finetune.distill_epochs": 2,
                "finetune.epochs": 2,
            },
        },
        privacy=composed(2.0, study_epsilon=4.0),
        report={"points": 1},
    )
    raw["data"]["test"] = {}
    spec = SweepSpec(**raw)
    info = preflight(spec).info
    assert (info.num_private, info.num_public, info.num_validation) == (1000, 638, 159)
    result = run_sweep(spec)
    assert result.view.count(TrialState.FINISHED) == 3
    query = "select value from metrics where key = 'public/labels'"
    assert {value for (value,) in mlflow_rows(files, query)} >= {0.0, 40.0}
    text = card(result)
    pool = f"npz {files / 'pool.npz'}"
    assert f"Declared public: {pool}, whose labels are bought one by one; not protected" in text
    assert f"**Public records**: {pool}." in text
    assert f"records of {pool}, which is declared public, are not covered" in text
    assert run_sweep(spec).view.count(TrialState.FINISHED) == 3  # complete
    x = np.load(files / "pool.npz")["x_train"]
    np.savez(files / "pool.npz", x_train=x[::-1], y_train=np.load(files / "pool.npz")["y_train"])
    with pytest.raises(StudyError, match="launched on other records"):
        run_sweep(SweepSpec(**{**raw, "search": {**raw["search"], "num_trials": 3}}))


def test_shots_of_another_domain_start_adamix(files):
    spec = SweepSpec(
        **make_spec(
            files,
            "shift",
            data=data(files, {"per_class": 5}),
            search={
                "sampler": "grid",
                "num_trials": 2,
                "space": {
                    "method": "adamix",
                    "adamix.variant": {"choice": ["only_public", "adamix"]},
                    "features.name": "none",
                    "public.shots": 5,
                    "public.lr": None,
                    "public.epochs": 50,
                },
            },
            privacy=composed(2.0, study_epsilon=4.0),
            report={"points": 1},
        )
    )
    assert preflight(spec).info.num_private == 700
    result = run_sweep(spec)
    losses = {t.config["adamix.variant"]: t.metrics["test/loss"] for t in result.results}
    # Blurred records say what blurred digits look like: about .64 nats against .92.
    assert losses["adamix"] < losses["only_public"] - 0.03
