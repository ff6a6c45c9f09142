"""A method runs on the data that people have, named by their path and one key more."""

import math

import numpy as np
import pytest
from image_sets import celeba, cifar10, folders, saved

from dpsweep.spec.study import DataSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.kept import keep as module
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.kept.pixels import Pixels
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.features.spec import FeatureSpec
from dpsweep.trainables.features.store import FeatureStore
from dpsweep.trainables.method import RunContext

PUBLIC = {"validation": {"fraction": 0.25, "visibility": "public"}}
#: Each with its path and the number or the task that it asks for; the size keeps tests short.
SETS = {
    "cifar10": (lambda root: cifar10(root, count=60), {"dataset": "cifar10"}),
    "folder": (folders, {"dataset": "image_folder", "num_records": 8}),
    "hugging face": (saved, {"dataset": "image_dataset", "num_records": 30}),
    "celeba": (celeba, {"dataset": "celeba", "task": "multi_label"}),
}
HPARAMS = {"model__name": "linear", "train__max_steps": 3, "batch__expected": 4}


@pytest.fixture(params=list(SETS))
def spec(request, tmp_path):
    make, raw = SETS[request.param]
    root = tmp_path / "data"
    if request.param != "celeba":
        root.mkdir()
    if request.param == "hugging face":
        root = root / "saved"
    make(root)
    raw = {**raw, "path": str(root), **PUBLIC}
    if request.param in ("folder", "hugging face", "celeba"):
        raw["image_size"] = 16
    return DataSpec(**raw)


def run(name, data, make_plan, hparams, **supplies):
    method = TRAINABLES[name]()
    hparams, plan = make_plan(TRAINABLES[name], num_private=data.info.num_private, **hparams)
    context = RunContext(study_seed=0, trial=0, supplies=Supplies(**supplies))
    method.prepare(data, hparams, plan, context)
    before = method.evaluate("validation")
    method.run(0, len(plan))
    return before, method.evaluate("validation")


@pytest.mark.parametrize("is_lazy", [True, False])
def test_dp_sgd_runs(spec, tmp_path, monkeypatch, make_plan, is_lazy):
    monkeypatch.setattr(module, "EAGER_BYTES", 0 if is_lazy else 10**9)
    data = load_dataset(spec, keep=Keep(tmp_path / "kept"))
    is_of_files = spec.dataset != "cifar10"
    assert isinstance(data.parts["private"][0], Pixels) == (is_lazy and is_of_files)
    _, after = run("dp_sgd", data, make_plan, HPARAMS)
    assert all(math.isfinite(score) for score in after.values())
    if spec.task == "multi_label":
        assert {"accuracy/Smiling", "accuracy/Male"} <= after.keys()


def test_bytes_and_arrays_score_alike(spec, tmp_path, monkeypatch, make_plan):
    scores = []
    for eager in (0, 10**9):
        monkeypatch.setattr(module, "EAGER_BYTES", eager)
        data = load_dataset(spec, keep=Keep(tmp_path / "kept"))
        scores.append(run("dp_sgd", data, make_plan, HPARAMS)[0])  # of the initial weights
    assert scores[0] == scores[1]


def test_features_are_those_of_the_arrays(spec, tmp_path, monkeypatch):
    features = FeatureSpec.of("identity", norm="l2")
    rows = []
    for eager in (0, 10**9):
        monkeypatch.setattr(module, "EAGER_BYTES", eager)
        data = load_dataset(spec, keep=Keep(tmp_path / "kept"))
        store = FeatureStore(tmp_path / f"features{eager}")
        rows.append(store.open(data, features).parts["private"][0])
        raw = FeatureStore(None).open(data, FeatureSpec.of("identity", norm="none"))
        assert raw.parts["private"][0].shape == (len(rows[0]), math.prod(data.info.input_shape))
    np.testing.assert_array_equal(rows[0], rows[1])
    assert len(rows[0])
