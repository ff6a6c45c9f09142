"""Noise against gradient by layer: the norms are what they say, and private records stay out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from torch import nn

from dpsweep.foundation.errors import BadInputError, CheckpointError, DataError
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import PoissonGaussian
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.study.trial import TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.execution.finished.trials import has_noise_figures, trial_noise
from dpsweep.trainables.gradients.layer_noise import LayerNoise, layer_noise
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import magnitude_mask
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.networks.layers import layer_kinds


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False),
        nn.GroupNorm(2, 6),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3),
        nn.Flatten(),
        nn.Linear(96, 8),
        nn.Tanh(),
        nn.Linear(8, 4),
    )


def images(num_public: int = 30, num_private: int = 80) -> SweepData:
    return blobs(num_private, (1, 8, 8), 4, num_validation=20, num_test=10, num_public=num_public)


def task_of(data: SweepData, method: str = "sparse", **given: Any) -> TrialTask:
    named = {key.replace("__", "."): value for key, value in given.items()}
    base = {"model.name": "tanh_cnn", "batch.expected": 40, "train.max_steps": 4}
    cls = TRAINABLES[method]
    hparams = resolve(cls.hyperparameters, {**base, **named})
    context = PlanContext(PrivacyBudget(2.0, 1e-5), "rdp", data.info.num_private)
    return TrialTask(0, method, hparams, cls.plan(hparams, context), 2.0, True)


@pytest.mark.parametrize("bound", [0.05, 1e6])
def test_figures_are_the_norms_of_noise_and_of_the_expected_sum(bound: float) -> None:
    model = small_model()
    masks = magnitude_mask(model, 0.2)
    for index in (0, 3):
        model[index].weight.requires_grad_(False)
    model[5].requires_grad_(False)
    engine = SparseEngine(model, masks, 4)
    x, y = torch.randn(9, 1, 8, 8), torch.arange(9) % 4
    names = [*(m.name for m in masks), "1", "1", "3", "7", "7"]
    rows = layer_noise(
        model, engine, names, x, y, noise_multiplier=3.0, max_grad_norm=bound, expected_batch=90.0
    )
    assert [(row.layer, row.kind) for row in rows] == [
        ("0", "conv"), ("1", "norm"), ("3", "conv"), ("5", "other"), ("7", "cls"),
    ]  # fmt: skip
    # The definition, one record at a time; chosen entries alone.
    totals = {row.layer: torch.zeros(row.num_trainable, dtype=torch.float64) for row in rows}
    for row in range(9):
        for mask in masks:
            mask.layer.weight.requires_grad_(True)
        model.zero_grad()
        nn.functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1]).backward()
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in totals}
        for mask in masks:
            parts[mask.name].append(mask.layer.weight.grad.flatten()[mask.index])
            mask.layer.weight.requires_grad_(False)
        for name in ("1", "3", "7"):
            layer = model[int(name)]
            own = [p.grad.flatten() for p in layer.parameters() if p.requires_grad]
            parts[name] += own
        flat = {name: torch.cat(found).double() for name, found in parts.items() if found}
        norm = float(torch.cat(list(flat.values())).norm())
        for name, gradient in flat.items():
            totals[name] += gradient * min(1.0, bound / norm)
    for row in rows:
        if row.layer == "5":  # frozen
            assert (row.num_trainable, row.noise_norm, row.gradient_norm) == (0, None, None)
            assert (row.ratio, row.share) == (None, 0.0)
            continue
        assert row.gradient_norm == pytest.approx(float(totals[row.layer].norm()) * 10, rel=1e-5)
        assert row.noise_norm == pytest.approx(3.0 * bound * math.sqrt(row.num_trainable))
        assert row.ratio == pytest.approx(row.noise_norm / row.gradient_norm)
    sizes = {row.layer: (row.num_trainable, row.num_parameters) for row in rows}
    assert sizes["1"] == (12, 12)
    assert sizes["3"][1] == 330
    assert sum(trainable for trainable, _ in sizes.values()) == round(0.2 * 378) + 12 + 6 + 36


def test_noise_norm_is_that_of_drawn_noise() -> None:
    row = LayerNoise("x", "conv", 5000, 5000, 2.0 * 0.5 * math.sqrt(5000), 1.0)
    noise = SecretNoise("cpu")
    drawn = [float(noise.like(torch.zeros(5000), 2.0 * 0.5).norm()) for _ in range(40)]
    assert np.sqrt(np.mean(np.square(drawn))) == pytest.approx(row.noise_norm, rel=0.02)


def test_a_gradient_of_zero_has_no_finite_ratio() -> None:
    row = LayerNoise("x", "norm", 4, 4, 1.0, 0.0)
    assert math.isinf(row.ratio or 0.0)
    json.dumps(row.to_dict())


def test_kinds_of_timms_layers() -> None:
    import timm

    kinds = layer_kinds(timm.create_model("tf_efficientnet_lite0", num_classes=3))
    assert (kinds["conv_stem"], kinds["bn1"], kinds["classifier"]) == ("conv", "norm", "cls")
    kinds = layer_kinds(timm.create_model("vit_tiny_patch16_224", num_classes=3))
    assert (kinds["patch_embed.proj"], kinds["blocks.0.norm1"]) == ("conv", "norm")
    assert (kinds["blocks.0.attn.qkv"], kinds["head"], kinds[""]) == ("other", "cls", "other")
    behind = nn.Sequential(nn.Upsample(64), timm.create_model("resnet10t", num_classes=3))
    assert layer_kinds(behind)["1.fc"] == "cls"


@pytest.mark.parametrize("method", ["sparse", "dp_sgd"])
def test_a_trial_is_looked_at_without_a_private_record(method: str) -> None:
    data = images()
    for part in ("private", "validation", "test"):
        inputs, labels = data.parts[part]
        data.parts[part] = (np.full_like(inputs, np.nan), labels)
    task = task_of(data, method)
    figures = trial_noise(task, data, study_seed=0, num_records=16)
    assert figures.num_records == 16
    assert figures.expected_batch == 40  # declared numbers of the private training
    event = task.plan.at(0)
    assert isinstance(event, PoissonGaussian)
    assert (figures.step, figures.noise_multiplier) == (0, event.noise_multiplier)
    for row in figures.layers:
        assert row.num_trainable == 0 or 0 < row.ratio < math.inf
    if method == "dp_sgd":
        assert all(row.share == 1.0 for row in figures.layers)
    else:
        convs = [row for row in figures.layers if row.kind == "conv"]
        assert sum(row.num_trainable for row in convs) == round(0.01 * 9216)
        inner, head = [row for row in figures.layers if row.kind in ("other", "cls")]
        assert (inner.kind, inner.num_trainable, inner.ratio) == ("other", 0, None)
        assert head.share == 1.0
    again = trial_noise(task, data, study_seed=0, num_records=16)
    assert again == figures


def test_trained_weights_have_figures_of_their_own(tmp_path: Any) -> None:
    from dpsweep.trainables.execution.checkpoints import Checkpoint, CheckpointStore

    data = images()
    task = task_of(data, noise__shape="linear", noise__end_ratio=0.5, clip__shape="linear",
                   clip__end_ratio=0.1, sparse__density=0.05)  # fmt: skip
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        trial_noise(task, data, study_seed=0, num_records=30, checkpoints=tmp_path)
    method = TRAINABLES["sparse"]()
    method.prepare(data, task.hparams, task.plan, RunContext(0, 0))
    method.run(0, 2)
    saved = Checkpoint(2, 0.5, 2, 2, {}, method.state_dict())
    CheckpointStore(tmp_path).save("best", saved)
    first = trial_noise(task, data, study_seed=0, num_records=30)
    best = trial_noise(task, data, study_seed=0, num_records=30, checkpoints=tmp_path)
    assert (first.step, best.step) == (0, 2)
    assert best.noise_multiplier == task.plan.at(2).noise_multiplier < first.noise_multiplier
    assert best.max_grad_norm == pytest.approx(1.0 + 2 / 3 * (0.1 - 1.0))
    assert best.layers[0].gradient_norm != first.layers[0].gradient_norm


def test_private_records_are_refused() -> None:
    data = images()
    task = task_of(data)
    method = TRAINABLES["sparse"]()
    method.prepare(data, task.hparams, task.plan, RunContext(0, 0))
    with pytest.raises(BadInputError, match="public records"):
        method.layer_noise(10)
    with pytest.raises(DataError, match="no public records"):
        trial_noise(task, images(num_public=0), study_seed=0, num_records=10)
    none = replace(data, parts={**data.parts, "public": tuple(a[:0] for a in data.parts["public"])})
    with pytest.raises(BadInputError, match="no public record is given"):
        trial_noise(task, none, study_seed=0, num_records=10)


def test_methods_on_features_have_no_such_figures() -> None:
    has = {name for name in TRAINABLES if has_noise_figures(TRAINABLES[name])}
    assert {"dp_sgd", "sparse"} <= has
    assert not has & {"adamix", "adamix_paragon", "scatternet", "non_private"}
