"""Embeddings: what the classifier sees, each row as if its record were alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.testing.conformance import tiny_data
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.methods.active_learning.embeddings import embed, last_linear, project
from dpsweep.trainables.networks.build import build_model


def images() -> DatasetInfo:
    info = tiny_data().info
    return DatasetInfo(**{**info.__dict__, "input_shape": (1, 28, 28), "num_classes": 10})


def test_the_head_gives_the_logits_of_the_embeddings() -> None:
    model = build_model("tanh_cnn", images(), seed=0)
    x = torch.randn(10, 1, 28, 28)
    rows, logits = embed(model, x, block=4, device="cpu")
    assert rows.shape == (10, 32)
    assert torch.allclose(last_linear(model)(rows), logits, atol=1e-6)
    assert torch.allclose(model(x), logits, atol=1e-6)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["tanh_cnn", "small_resnet", "linear"])
@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 66])
def test_a_row_has_the_same_bits_whoever_comes_after_it(name: str, num: int) -> None:
    """Noisy counts of nearest neighbours have their sensitivity only then."""
    model = build_model(name, images(), seed=0)
    x = torch.randn(70, 1, 28, 28)
    directions = torch.randn(embed(model, x, block=64, device="cpu")[0].shape[1], 5).double()
    whole, few = (embed(model, part, block=64, device="cpu") for part in (x, x[:num]))
    for mine, theirs in zip(whole, few):
        assert torch.equal(mine[:num], theirs)
    projected = [project(rows, directions, block=64) for rows, _ in (whole, few)]
    assert torch.equal(projected[0][:num], projected[1])


def test_no_record_has_no_row() -> None:
    model = build_model("tanh_cnn", images(), seed=0)
    rows, logits = embed(model, torch.zeros(0, 1, 28, 28), block=4, device="cpu")
    assert (rows.shape, logits.shape) == ((0, 32), (0, 10))
    assert project(rows, torch.zeros(32, 5).double(), block=4).shape == (0, 5)


def test_the_model_stays_in_its_mode_and_without_hooks() -> None:
    model = build_model("tanh_cnn", images(), seed=0).train()
    embed(model, torch.zeros(3, 1, 28, 28), block=4, device="cpu")
    assert all(module.training for module in model.modules())
    assert not last_linear(model)._forward_pre_hooks


def test_a_network_without_a_linear_classifier_is_refused() -> None:
    with pytest.raises(ModelError, match="this network ends with Conv2d"):
        last_linear(nn.Sequential(nn.Linear(3, 3), nn.Conv2d(1, 1, 1)))
