"""Models of texts, images of files and attributes answer raw records as their trials did."""

import csv

import numpy as np
import pytest
import torch
from studies_here import run_here
from whole_studies import make_spec

from dpsweep.running.registering import open_model
from dpsweep.trainables.data.loading import describe_dataset, load_dataset, split_slots
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.execution.finished.trials import export_model

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow and torch.export warn of themselves

PUBLIC = {"fraction": 0.2, "visibility": "public"}


def trained(root, data, space, patch, count):
    raw = make_spec(
        root, "small", data={**data, "num_records": count, "validation": PUBLIC, "test": PUBLIC},
        tracking={"uri": None}, report={"points": 1},
    )  # fmt: skip
    raw["privacy"] |= {"delta": 1e-4, "trial_epsilon": 8.0}
    raw["search"] |= {"num_trials": 1, "space": {"train.max_steps": 15, **space}}
    result = run_here(patch, raw)
    rows = split_slots(describe_dataset(result.spec.data), open_source(result.spec.data), None)
    return result, rows["test"]


def logits_of_the_trial(result):
    data = load_dataset(result.spec.data)
    model, _ = export_model(
        result.files.trial(0), result.task(0), study_seed=result.spec.seed, data=data
    )
    with torch.no_grad():
        return model(torch.from_numpy(np.array(data.parts["test"][0]))).double()


def columns(frame, names, kind="probability"):
    return frame[[f"{kind}/{name}" for name in names]].to_numpy()


@pytest.mark.slow
def test_texts(tmp_path, monkeypatch):
    from tiny_text import WORDS, save_encoder

    rng = np.random.default_rng(0)
    texts = [
        " ".join(WORDS[n] for n in rng.integers(0, len(WORDS), rng.integers(1, 12)))
        for _ in range(120)
    ]
    labels = np.array(["good" in text for text in texts], int)
    with (tmp_path / "d.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["review", "label"], *zip(texts, labels)])
    save_encoder(tmp_path / "bert", "BertForMaskedLM")
    data = {
        "dataset": "text", "path": str(tmp_path / "d.csv"), "num_classes": 2, "max_length": 8,
        "tokenizer": str(tmp_path / "bert"), "text_column": "review", "class_names": ["no", "yes"],
    }  # fmt: skip
    space = {"method": "bitfit", "model.name": f"text/{tmp_path / 'bert'}", "optim.lr": 0.3}
    result, rows = trained(tmp_path, data, space, monkeypatch.setattr, 120)
    served = open_model(result)
    frame = served.predict([texts[row] for row in rows])
    shares = torch.softmax(logits_of_the_trial(result), dim=1).numpy()
    assert np.abs(columns(frame, ["no", "yes"]) - shares).max() < 1e-6
    accuracy = ((frame["class"] == "yes") == labels[rows]).mean()
    assert accuracy == pytest.approx(result.best().metrics["test/accuracy"], abs=1e-6)
    assert served.facts["preparation"]["column"] == "review"
    assert len(served.predict([texts[0]])) == 1


@pytest.mark.slow
def test_images_of_a_folder(tmp_path, monkeypatch):
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(120):
        folder = tmp_path / "images" / ("dark" if number % 2 else "light")
        folder.mkdir(parents=True, exist_ok=True)
        size = rng.integers(5, 14, 2)
        pixels = rng.integers(0, 128, (*size, 3)) + (0 if number % 2 else 100)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:03}.png")
    data = {"dataset": "image_folder", "path": str(tmp_path / "images"), "image_size": [6, 9]}
    space = {"method": "dp_sgd", "model.name": "linear", "optim.lr": 1.0}
    result, rows = trained(tmp_path, data, space, monkeypatch.setattr, 120)
    files = sorted((tmp_path / "images").glob("*/*.png"))
    paths = [files[row] for row in rows]
    frame = open_model(result).predict([path.read_bytes() for path in paths])
    shares = torch.softmax(logits_of_the_trial(result), dim=1).numpy()
    assert np.abs(columns(frame, ["dark", "light"]) - shares).max() < 1e-6
    accuracy = np.mean([row == path.parent.name for row, path in zip(frame["class"], paths)])
    assert accuracy == pytest.approx(result.best().metrics["test/accuracy"], abs=1e-6)


@pytest.mark.slow
def test_attributes_of_an_npz(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(120, 5))
    labels = (values[:, :3] > 0).astype(int)
    np.savez(tmp_path / "d.npz", x_train=values, y_train=labels)
    data = {
        "dataset": "npz", "path": str(tmp_path / "d.npz"), "num_classes": 3, "task": "multi_label",
        "class_names": ["young", "smiling", "tall"],
    }  # fmt: skip
    space = {"method": "dp_sgd", "model.name": "linear", "optim.lr": 1.0}
    result, rows = trained(tmp_path, data, space, monkeypatch.setattr, 120)
    frame = open_model(result).predict(values[rows].astype(np.float32))
    logits, names = logits_of_the_trial(result), data["class_names"]
    assert np.abs(columns(frame, names) - torch.sigmoid(logits).numpy()).max() < 1e-6
    decided = columns(frame, names, "attribute")
    assert (decided == (logits > 0).numpy()).all()
    accuracy = (decided == labels[rows].astype(bool)).mean()
    assert accuracy == pytest.approx(result.best().metrics["test/accuracy"], abs=1e-6)
