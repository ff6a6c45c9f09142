"""Extractors and norms: what they compute, record by record, and what they refuse."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.features.extractors import norm_layers
from dpsweep.trainables.features.spec import FeatureSpec

INFO = DatasetInfo("images", (1, 12, 16), 10, 100, 0, 0, 0, ())


def records(count: int, shape: tuple[int, ...] = (1, 12, 16)) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def test_identity_flattens_and_changes_nothing() -> None:
    inputs = records(3)
    assert torch.equal(
        FeatureSpec.of("identity", norm="none").build(INFO)(inputs), inputs.flatten(1)
    )
    flat = replace(INFO, input_shape=(7,))
    assert FeatureSpec.of("identity").describe(flat).input_shape == (7,)


def test_l2_divides_by_the_norm_and_leaves_zeros_alone() -> None:
    module = FeatureSpec.of("identity", norm="l2").build(INFO)
    inputs = torch.cat([records(4), 1e-4 * records(1), 1e6 * records(1), torch.zeros(1, 1, 12, 16)])
    found = module(inputs)
    torch.testing.assert_close(found[:-1], functional.normalize(inputs[:-1].flatten(1), eps=0.0))
    assert torch.equal(found[-1], torch.zeros(192))


def test_l2_of_channels_is_over_all_of_a_record() -> None:
    inputs = records(5, (6, 2, 2))
    (layer,) = norm_layers("l2", (6, 2, 2))
    torch.testing.assert_close(layer(inputs).flatten(1).norm(dim=1), torch.ones(5))


def test_group_norm_is_that_of_each_group_of_channels() -> None:
    inputs = 3 * records(4, (6, 2, 2)) + 1
    (layer,) = norm_layers("group:3", (6, 2, 2))
    groups = inputs.reshape(4, 3, 8)
    scaled = groups - groups.mean(2, keepdim=True)
    scaled = scaled / (groups.var(2, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer(inputs), scaled.reshape(4, 6, 2, 2))
    assert not list(layer.parameters())


@pytest.mark.parametrize(
    ("norm", "shape", "text"),
    [
        ("group:4", (6, 2, 2), "4 groups do not divide the 6 channels"),
        ("group:6", (6,), "only zeros"),
        ("group:0", (6, 2, 2), "unknown feature norm 'group:0'"),
        ("batch", (6, 2, 2), "unknown feature norm 'batch'"),
    ],
)
def test_norms_that_cannot_be_are_refused(norm: str, shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        norm_layers(norm, shape)
    assert caught.value.fix


def test_a_built_extractor_trains_nothing_and_is_in_eval_mode() -> None:
    for spec in (
        FeatureSpec.of("identity", norm="l2"),
        FeatureSpec.of("scatternet", norm="group:9"),
    ):
        module = spec.build(INFO)
        assert not module.training
        assert not any(parameter.requires_grad for parameter in module.parameters())


def test_the_key_is_that_of_the_settings_whatever_their_container() -> None:
    listed = FeatureSpec.of("identity", mean=[0.5, [1]], norm="l2")
    assert listed == FeatureSpec.of("identity", norm="l2", mean=(0.5, (1,)))
    assert hash(listed) == hash(FeatureSpec.of("identity", norm="l2", mean=(0.5, (1,))))
    keys = {
        spec.key
        for spec in (
            listed,
            FeatureSpec.of("identity", norm="l2"),
            FeatureSpec.of("identity", norm="none"),
            FeatureSpec.of("identity", norm="l2", dtype="float16"),
            FeatureSpec.of("scatternet", norm="l2"),
        )
    }
    assert len(keys) == 5


def test_labels_are_for_people() -> None:
    assert FeatureSpec.of("scatternet", norm="group:27", depth=2).label == "scatternet (group:27)"
    spec = FeatureSpec.of("backbone", model="tiny", norm="none", dtype="float16")
    assert spec.label == "tiny (float16)"
    assert FeatureSpec.of("identity").is_raw
    assert not FeatureSpec.of("identity", dtype="float16").is_raw


def test_scattering_has_81_coefficients_of_each_channel_in_turn() -> None:
    info = replace(INFO, input_shape=(3, 12, 16))
    spec = FeatureSpec.of("scatternet", depth=2, angles=8, norm="none")
    assert spec.describe(info).input_shape == (243, 3, 4)
    assert spec.describe(info).features == spec.key
    inputs = records(2, (3, 12, 16))
    found = spec.build(info)(inputs)
    grey = spec.build(INFO)
    for channel in range(3):
        alone = grey(inputs[:, channel : channel + 1].contiguous())
        torch.testing.assert_close(found[:, 81 * channel : 81 * (channel + 1)], alone)


def test_scattering_depends_on_depth_and_angles() -> None:
    spec = FeatureSpec.of("scatternet", depth=1, angles=4)
    assert spec.describe(INFO).input_shape == (5, 6, 8)


def test_the_first_scattering_coefficient_is_a_local_mean() -> None:
    module = FeatureSpec.of("scatternet").build(INFO)
    found = module(torch.full((1, 1, 12, 16), 0.75))[0]
    torch.testing.assert_close(found[0], torch.full((3, 4), 0.75), atol=1e-4, rtol=0)
    assert float(found[1:].abs().max()) < 1e-3  # wavelets have no mean


def test_a_record_is_scattered_alone() -> None:
    module = FeatureSpec.of("scatternet", norm="group:27").build(INFO)
    inputs = records(6)
    together = module(inputs)
    torch.testing.assert_close(module(inputs[2:3]), together[2:3], atol=1e-5, rtol=1e-4)
    inputs[0] = float("nan")
    assert torch.equal(module(inputs)[1:].isfinite(), torch.ones(5, 81, 3, 4, dtype=torch.bool))


@pytest.mark.parametrize(
    ("shape", "text"),
    [((7,), "needs images"), ((1, 3, 28), "at least 4 x 4 pixels.* 3 x 28")],
)
def test_scattering_refuses_records_it_cannot_take(shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        FeatureSpec.of("scatternet").describe(replace(INFO, input_shape=shape))
    assert caught.value.fix


def test_without_kymatio_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kymatio.scattering2d.frontend.torch_frontend", None)
    with pytest.raises(ModelError, match="kymatio") as caught:
        FeatureSpec.of("scatternet").build(INFO)
    assert caught.value.fix == "pip install 'dpsweep[scatternet]'"


def test_describing_features_again_changes_nothing() -> None:
    spec = FeatureSpec.of("identity", norm="l2")
    once = spec.describe(INFO)
    assert spec.describe(once) is once
    assert np.prod(once.input_shape) == 192
