"""Images of a random process, their views, and pre-training by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dpsweep.foundation.errors import SpecError
from dpsweep.planning.reading import read_spec
from dpsweep.trainables.data.raw.random_images import random_images
from dpsweep.trainables.networks.image_turns import is_recognised, view, views_loss
from dpsweep.trainables.networks.pretrain_settings import PretrainSettings
from dpsweep.trainables.networks.pretraining import PretrainedFile, pretrain_network

SETTINGS = PretrainSettings(
    model="tanh_cnn",
    norm="refuse",
    objective="views",
    resize=None,
    num_classes=1,
    keeps_classifier=False,
    epochs=6,
    lr=0.1,
    batch=64,
    weight_decay=1e-4,
    momentum=0.9,
    holdout=0.2,
    augment=False,
    seed=0,
)


def test_images_are_a_function_of_the_seed() -> None:
    one, labels = random_images(30, (3, 16, 20), seed=1)
    again, _ = random_images(30, (3, 16, 20), seed=1)
    other, _ = random_images(30, (3, 16, 20), seed=2)
    assert one.shape == (30, 3, 16, 20)
    assert one.dtype == np.float32
    assert 0 <= one.min() < one.max() <= 1
    assert not labels.any()
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len({image.tobytes() for image in one}) == 30


def test_a_view_keeps_shape_and_range_and_shows_something_else() -> None:
    images = torch.from_numpy(random_images(20, (3, 16, 16), seed=1)[0])
    seen = view(images, np.random.default_rng(0))
    assert seen.shape == images.shape
    assert 0 <= float(seen.min()) <= float(seen.max()) <= 1
    assert (seen - images).abs().mean(dim=(1, 2, 3)).min() > 0.01
    assert torch.equal(seen, view(images, np.random.default_rng(0)))


def test_the_loss_is_least_where_views_agree_and_images_differ() -> None:
    apart = torch.eye(4)
    same = torch.ones(4, 4)
    assert views_loss(apart, apart) < views_loss(same, same)
    assert views_loss(apart, apart) < views_loss(apart, apart.roll(1, 0))
    # Unit vectors at distance sqrt(2): alignment 0, uniformity log exp(-4).
    assert float(views_loss(3 * apart, apart)) == pytest.approx(-4)
    assert is_recognised(apart, apart).all()
    assert not is_recognised(apart, apart.roll(1, 0)).any()


def test_views_are_learned_and_the_outputs_are_left_out(tmp_path: Path) -> None:
    records = random_images(400, (1, 16, 16), seed=3)
    file = PretrainedFile(tmp_path, SETTINGS.address(records))
    facts = pretrain_network(records, SETTINGS, file, about={})
    assert facts["epochs"][-1]["loss"] < facts["epochs"][0]["loss"]
    assert facts["epochs"][-1]["accuracy"] > 2 / 64  # by chance 1 / 64
    assert 0 <= facts["holdout_accuracy"] <= 1
    from safetensors.torch import load_file

    weights = load_file(str(file.weights))
    assert weights
    assert not [key for key, value in weights.items() if value.shape[0] == SETTINGS.num_outputs]


def test_addresses_from_before_options_stay() -> None:
    assert not {"options", "stem"} & set(SETTINGS.facts)


SPEC = """\
name: randp
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
pretrain: {dataset: random_process, model: tanh_cnn%s}
privacy: {delta: 1.0e-5, trial_epsilon: 1.0, accounting: unaccounted}
search: {space: {method: dp_sgd, model.name: tanh_cnn, model.checkpoint: pretrain}}
"""


def test_images_without_labels_have_no_classes() -> None:
    read_spec(SPEC % ", objective: views, num_records: 500")
    read_spec(SPEC % ", objective: rotations")
    with pytest.raises(SpecError, match="write objective: views"):
        read_spec(SPEC % "")
    with pytest.raises(SpecError, match="path: has no meaning for random_process"):
        read_spec(SPEC % ", objective: views, path: x")
