"""An output is a function of its record, so a record more or less changes a count by 1 at most."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.tasks import outputs_of
from dpsweep.trainables.devices.places import even_size
from dpsweep.trainables.networks.build import build_model

MODELS = {
    "linear of 10": ("linear", (1, 8, 8), 10),
    "linear of 100": ("linear", (1, 8, 8), 100),
    "wide linear": ("linear", (3, 32, 32), 100),
    "tanh_cnn": ("tanh_cnn", (1, 28, 28), 10),
    "small_resnet": ("small_resnet", (3, 16, 16), 10),
    "resnet18": ("timm/resnet18", (3, 32, 32), 10),
}


def model_and_data(name: str, count: int) -> tuple[nn.Module, SweepData]:
    """Return a network of random weights, and validation records; ``count`` are declared."""
    kind, shape, classes = MODELS[name]
    names = tuple(map(str, range(classes)))
    info = DatasetInfo("r", shape, classes, 10, count, 0, 0, names)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, *shape)).astype(np.float32)
    y = generator.integers(0, classes, count)
    nothing = (x[:0], y[:0])
    parts = {"private": nothing, "validation": (x, y), "test": nothing, "public": nothing}
    return build_model(kind, info, norm="group", seed=0), SweepData(info, parts, "0" * 64)


def whole_part(name: str) -> tuple[nn.Module, SweepData, int]:
    """Return a network, records of two blocks, and the largest size of a block."""
    count, block = (260, 256) if "linear" in name else (36, 32)
    return *model_and_data(name, count), block


def outputs(model: nn.Module, data: SweepData, rows: np.ndarray, block: int) -> torch.Tensor:
    x, y = data.parts["validation"]
    chosen = dataclasses.replace(data, parts={**data.parts, "validation": (x[rows], y[rows])})
    said = outputs_of(model, chosen, "validation", block=block, device="cpu")
    return torch.cat([logits for logits, _ in said])


@pytest.mark.parametrize("name", MODELS)
def test_no_output_moves_by_a_bit_with_how_many_records_there_are(name: str) -> None:
    model, data, block = whole_part(name)
    rows = np.arange(data.info.num_validation)
    whole = outputs(model, data, rows, block)
    assert len(whole) == len(rows)
    size = even_size(len(rows), block)
    for present in (*range(size, size + 17), len(rows) - 1):  # of the last block none, one, ..
        assert torch.equal(outputs(model, data, rows[:present], block), whole[:present])


@pytest.mark.parametrize("name", MODELS)
def test_no_output_moves_by_a_bit_with_its_place(name: str) -> None:
    model, data, block = whole_part(name)
    rows = np.arange(data.info.num_validation)
    whole = outputs(model, data, rows, block)
    for left_out in (0, 1, 7, len(rows) // 2):
        others = np.delete(rows, left_out)
        assert torch.equal(outputs(model, data, others, block), whole[others])


def test_the_size_of_blocks_follows_from_what_is_declared() -> None:
    sizes = []
    model, data = model_and_data("linear of 10", 300)
    model.register_forward_hook(lambda *parts: sizes.append(len(parts[1][0])))
    for present in (300, 299, 1, 300):
        outputs(model, data, np.arange(present), 128)
    assert set(sizes) == {112}
    assert len(sizes) == 3 + 3 + 1 + 3
