"""Pre-training on public records: what is learned, what is kept, and going on after a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError, CheckpointError, DataError, ModelError
from dpsweep.privacy.events import Plan
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.networks import pretraining
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.image_turns import augmented, turn
from dpsweep.trainables.networks.pretrain_settings import PretrainSettings
from dpsweep.trainables.networks.pretraining import (
    PretrainedFile,
    initial_weights,
    network_for,
    pretrain_network,
)

SETTINGS = PretrainSettings(
    model="tanh_cnn",
    norm="refuse",
    objective="classes",
    resize=None,
    num_classes=3,
    keeps_classifier=False,
    epochs=3,
    lr=0.1,
    batch=16,
    weight_decay=1e-4,
    momentum=0.9,
    holdout=0.2,
    augment=False,
    seed=5,
)
SHAPE = (1, 8, 8)


def make_records(count=100, shape=SHAPE, classes=3):
    rng = np.random.default_rng(1)
    centres = np.random.default_rng(0).normal(size=(classes, *shape))
    labels = rng.integers(0, classes, count)
    noise = 0.5 * rng.normal(size=(count, *shape))
    return (centres[labels] + noise).astype(np.float32), labels


RECORDS = make_records()


def pretrain(folder: Path, settings=SETTINGS, records=RECORDS, **options):
    file = PretrainedFile(folder, settings.address(records))
    facts = pretrain_network(records, settings, file, about={"source": "blobs"}, **options)
    return file, facts


def load(file: PretrainedFile):
    from safetensors.torch import load_file

    return load_file(file.weights)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    torch.set_num_threads(1)
    return pretrain(tmp_path_factory.mktemp("store"))


def test_it_learns_and_says_how_well(done):
    file, facts = done
    losses = [scores["loss"] for scores in facts["epochs"]]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert facts["holdout_accuracy"] == facts["epochs"][-1]["holdout_accuracy"] > 0.8
    assert facts["records"] == 100
    sidecar = json.loads(file.sidecar.read_text())
    assert sidecar == file.read()
    assert {key: sidecar[key] for key in facts} == facts
    assert (sidecar["source"], sidecar["settings"]["lr"]) == ("blobs", 0.1)
    assert not file.state.exists()


def test_the_steps_are_those_of_sgd_with_a_cosine(tmp_path):
    """Two epochs, by hand: the same draws, torch's own optimizer and scheduler."""
    settings = replace(SETTINGS, epochs=2, holdout=0.0, keeps_classifier=True)
    file, _facts = pretrain(tmp_path, settings)
    model = network_for(SHAPE, settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    inputs, labels = map(torch.from_numpy, RECORDS)
    for epoch in range(2):
        seed = pretraining.public_seed(5, 0, f"pretrain epoch {epoch}")
        for rows in np.random.default_rng(seed).permutation(100)[:96].reshape(6, 16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
            scheduler.step()
    for key, value in model.state_dict().items():
        assert torch.allclose(load(file)[key], value, atol=1e-6), key


def test_held_out_records_are_not_trained_on(tmp_path):
    """Their labels, garbled, change the score and not the weights."""
    order = np.random.default_rng(pretraining.public_seed(5, 0, "pretrain holdout"))
    held = order.permutation(100)[:20]
    labels = RECORDS[1].copy()
    labels[held] = (labels[held] + 1) % 3
    first, one = pretrain(tmp_path / "a")
    other, two = pretrain(tmp_path / "b", records=(RECORDS[0], labels))
    assert first.address != other.address
    assert all(torch.equal(value, load(other)[key]) for key, value in load(first).items())
    assert one["holdout_accuracy"] > 0.8
    assert two["holdout_accuracy"] < 0.2


class Killed(BaseException):
    pass


def test_an_interrupted_training_gives_the_same_weights(tmp_path, done, monkeypatch):
    state = torch.get_rng_state()
    seen = []

    def stop(progress):
        seen.append(progress)
        if progress.epoch == 3:
            raise Killed

    monkeypatch.setattr(pretraining, "_EVERY_S", 0.0)
    with pytest.raises(Killed):
        pretrain(tmp_path, on_progress=stop)
    file = PretrainedFile(tmp_path, SETTINGS.address(RECORDS))
    assert file.state.exists()
    assert file.read() is None
    assert len(seen[-1].epochs) == 2
    assert [p.share for p in seen] == pytest.approx([step / 15 for step in range(1, 12)])
    seen.clear()
    file, facts = pretrain(tmp_path, on_progress=seen.append)
    assert [p.epoch for p in seen] == [3] * 5  # the two complete epochs are not repeated
    assert seen[-1].left_s == 0
    whole, told = done
    assert file.weights.read_bytes() == whole.weights.read_bytes()
    assert facts["epochs"] == told["epochs"]
    assert torch.equal(torch.get_rng_state(), state)


def test_threads_are_for_the_while(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(pretraining, "_EVERY_S", 0.0)
    settings = replace(SETTINGS, epochs=1)
    pretrain(
        tmp_path,
        settings,
        threads=2,
        on_progress=lambda progress: seen.append(torch.get_num_threads()),
    )
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1


def test_a_damaged_state_is_said(tmp_path):
    PretrainedFile(tmp_path, SETTINGS.address(RECORDS)).state.write_bytes(b"no state")
    with pytest.raises(CheckpointError, match="is damaged"):
        pretrain(tmp_path)


@pytest.mark.parametrize("part", ["weights", "sidecar"])
def test_weights_count_only_whole(tmp_path, done, part):
    copy = PretrainedFile(tmp_path, done[0].address)
    copy.weights.write_bytes(done[0].weights.read_bytes())
    assert copy.read() is None  # without a sidecar
    copy.sidecar.write_bytes(done[0].sidecar.read_bytes())
    assert copy.read() == done[0].read()
    path = getattr(copy, part)
    path.write_bytes(path.read_bytes()[:-3])
    assert copy.read() is None


def test_the_address_depends_on_all_that_changes_the_weights():
    changes = {
        "model": "tanh_cnn_deep",
        "norm": "group",
        "objective": "rotations",
        "resize": 16,
        "num_classes": 4,
        "keeps_classifier": True,
        "epochs": 4,
        "lr": 0.2,
        "batch": 8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "holdout": 0.1,
        "augment": True,
        "seed": 6,
    }
    assert set(changes) == set(SETTINGS.facts) - {"torch", "format"}
    found = {replace(SETTINGS, **{key: value}).address(RECORDS) for key, value in changes.items()}
    inputs, labels = RECORDS
    found |= {SETTINGS.address((inputs + 1, labels)), SETTINGS.address((inputs, labels[::-1]))}
    found |= {SETTINGS.address(RECORDS)}
    assert len(found) == len(changes) + 3
    assert all(len(address) == 32 for address in found)


@pytest.mark.parametrize("classes", [3, 7])
def test_the_classifier_starts_anew_whatever_its_size(done, classes):
    """Three classes and three others: equal sizes must not carry the public classifier over."""
    file, _facts = done
    info = DatasetInfo("x", SHAPE, classes, 9, 0, 0, 0, ())
    fresh = build_model("tanh_cnn", info, seed=8)
    model = build_model("tanh_cnn", info, seed=8, checkpoint=str(file.weights))
    head = [f"{len(model) - 1}.{name}" for name in ("weight", "bias")]
    for key, value in model.state_dict().items():
        if key in head:
            assert torch.equal(value, fresh.state_dict()[key])
        else:
            assert torch.equal(value, load(file)[key])
            assert not torch.equal(value, fresh.state_dict()[key])
    assert not set(head) & set(load(file))


def test_the_classifier_of_the_same_classes_is_kept(tmp_path, done):
    file, _facts = pretrain(tmp_path, replace(SETTINGS, keeps_classifier=True))
    model = build_model(
        "tanh_cnn",
        DatasetInfo("x", SHAPE, 3, 9, 0, 0, 0, ()),
        seed=8,
        checkpoint=str(file.weights),
    )
    assert all(torch.equal(value, load(file)[key]) for key, value in model.state_dict().items())
    correct = model(torch.from_numpy(RECORDS[0])).argmax(dim=1) == torch.from_numpy(RECORDS[1])
    assert correct.float().mean() > 0.9
    below = {key: value for key, value in load(file).items() if key in load(done[0])}
    assert all(torch.equal(value, load(done[0])[key]) for key, value in below.items())


def test_a_network_that_is_a_classifier_needs_all_of_its_weights(tmp_path):
    path = tmp_path / "w.pt"
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)).state_dict(), path)
    info = DatasetInfo("x", SHAPE, 3, 9, 0, 0, 0, ())
    with pytest.raises(BadInputError, match="does not fit the model"):
        build_model("linear", info, seed=0, checkpoint=str(path))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("norm", "resize"), [("group", None), ("frozen", None), ("group", 24)])
def test_batch_norm_and_resized_images_reach_the_trial(tmp_path, norm, resize):
    records = make_records(40, (3, 32, 32))
    settings = replace(
        SETTINGS, model="timm/resnet10t", norm=norm, resize=resize, epochs=1, batch=20, holdout=0
    )
    file, _facts = pretrain(tmp_path, settings, records)
    info = DatasetInfo("x", (3, 32, 32), 3, 9, 0, 0, 0, ())
    options = {"norm": norm, "seed": 8, "image_size": resize}
    model = build_model("timm/resnet10t", info, checkpoint=str(file.weights), **options)
    state = initial_weights(model, (3, 32, 32), settings)
    assert set(state) == set(load(file))
    assert all(torch.equal(value, load(file)[key]) for key, value in state.items())
    fresh = build_model("timm/resnet10t", info, **options).state_dict()
    moved = {
        key for key in state if not torch.equal(state[key], fresh["1." + key if resize else key])
    }
    norms = {key for key in state if key.endswith("running_mean")}
    assert bool(norms) == (norm == "frozen")
    assert norms < moved or not norms  # frozen means: trained here, and frozen in the trial


def test_a_trial_starts_from_the_file_that_the_word_stands_for(done, make_blobs):
    file, _facts = done
    data = make_blobs(60, SHAPE, 3)
    method = TRAINABLES["non_private"]()
    given = {"model.name": "tanh_cnn", "model.checkpoint": "pretrain", "batch.expected": 20}
    hparams = resolve(method.hyperparameters, given)
    context = RunContext(0, 0, supplies=Supplies(pretrained=file.weights))
    method.prepare(data, hparams, Plan(()), context)
    state = method.state_dict()["model"]
    assert all(torch.equal(state[key], value) for key, value in load(file).items())
    with pytest.raises(ModelError, match="was given no pre-trained weights"):
        TRAINABLES["non_private"]().prepare(data, hparams, Plan(()), RunContext(0, 0))
    assert "pretrain" not in {
        problem for _, problem, _ in method.preflight({"model.checkpoint": ["pretrain"]}, data.info)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "outputs"), [("rotations", 4), ("classes_and_rotations", 12)]
)
def test_quarter_turns_are_learnt(tmp_path, objective, outputs):
    """Blobs that are no symmetric pictures: which way up they are can be learnt."""
    settings = replace(SETTINGS, objective=objective, epochs=12, batch=8)
    assert settings.num_outputs == outputs
    network = network_for(SHAPE, settings)
    assert network(torch.zeros(2, *SHAPE)).shape == (2, outputs)
    _file, facts = pretrain(tmp_path, settings)
    assert facts["holdout_accuracy"] > 2 / outputs  # chance is 1 / outputs


def test_images_are_turned_by_the_turns_they_are_given():
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    found = turn(image.repeat(4, 1, 1, 1), np.array([3, 0, 2, 1]))
    for row, quarters in enumerate((3, 0, 2, 1)):
        assert torch.equal(found[row], torch.rot90(image[0], quarters, (1, 2)))


def test_augmented_images_are_shifted_and_mirrored():
    image = torch.zeros(64, 2, 6, 7)
    image[:, 0, 2, 3], image[:, 1, 2, 4] = 1.0, 2.0
    found = augmented(image, np.random.default_rng(0))
    assert found.shape == image.shape
    shifts, mirrored = set(), set()
    for example in found:
        assert sorted(example[example > 0].tolist()) == [1.0, 2.0]
        (_, row, first), (_, other, second) = torch.nonzero(example).tolist()
        assert row == other
        mirrored.add(second - first)
        shifts.add((row - 2, (first if second > first else 6 - first) - 3))
    assert mirrored == {1, -1}
    assert {down for down, _ in shifts} == {across for _, across in shifts} == set(range(-2, 3))


def test_divergence_and_too_few_records_are_said(tmp_path):
    with pytest.raises(ModelError, match="diverged in epoch 1"):
        pretrain(tmp_path, replace(SETTINGS, lr=1e30))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="has 1 public record to train on"):
        pretrain(tmp_path, records=(RECORDS[0][:1], RECORDS[1][:1]))


@pytest.mark.parametrize("own", [8, 14, 20])
def test_weights_of_other_images_fit_where_both_are_resized_to_one_size(tmp_path, own):
    """Digits of 8 pixels, clothes of 20: the network sees 14, whatever its front does."""
    settings = replace(SETTINGS, resize=14, epochs=1)
    file, _ = pretrain(tmp_path, settings, make_records(shape=(1, 20, 20)))
    info = DatasetInfo("own", (1, own, own), 4, 10, 0, 0, 0, tuple("abcd"))
    model = build_model("tanh_cnn", info, seed=0, image_size=14, checkpoint=str(file.weights))
    weights = load(file)
    body = model if own == 14 else model[-1]
    assert all(torch.equal(body.state_dict()[name], weights[name]) for name in weights)
    assert len(weights) >= 4
