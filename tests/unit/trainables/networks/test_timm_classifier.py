"""Options of timm's networks, and the stem for small images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.spec.space.parameters import canonical_space, parse_space
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.networks.build import build_model

RESNET = "timm/test_resnet"


def info_of(shape: tuple[int, ...]) -> DatasetInfo:
    return DatasetInfo("x", shape, 5, 100, 10, 10, 0, ())


def test_the_cifar_stem_keeps_every_pixel() -> None:
    model = build_model("timm/resnet10t", info_of((3, 32, 32)), norm="group", seed=0, stem="cifar")
    assert (model.conv1.stride, model.conv1.kernel_size) == ((1, 1), (3, 3))
    assert isinstance(model.maxpool, nn.Identity)
    with torch.no_grad():
        assert model.forward_features(torch.rand(1, 3, 32, 32)).shape[-2:] == (4, 4)
        plain = build_model("timm/resnet10t", info_of((3, 32, 32)), norm="group", seed=0)
        assert plain.forward_features(torch.rand(1, 3, 32, 32)).shape[-2:] == (1, 1)


@pytest.mark.parametrize("name", ["timm/test_vit", "timm/test_efficientnet"])
def test_a_network_without_such_a_stem_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"^model\.stem: cifar"):
        build_model(name, info_of((3, 160, 160)), norm="group", seed=0, stem="cifar")


def test_options_reach_the_network() -> None:
    options = '{"act_layer": "gelu"}'
    model = build_model(RESNET, info_of((3, 32, 32)), norm="group", seed=0, options=options)
    assert any(type(module).__name__ == "GELU" for module in model.modules())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ('{"act_lyer": "gelu"}', "has no option 'act_lyer'"),
        ('{"act_layer": "nonsense"}', "does not suit timm/test_resnet: KeyError"),
        ('{"num_classes": 3}', "cannot be set: the data say"),
        ('{"drop_rate": 0.1}', "dropout is off"),
        ("[1]", "is no mapping"),
    ],
)
def test_options_that_cannot_be_are_refused(options: str, said: str) -> None:
    with pytest.raises(BadInputError, match=r"^model\.options: ") as raised:
        build_model(RESNET, info_of((3, 32, 32)), norm="group", seed=0, options=options)
    assert said in raised.value.message


@pytest.mark.parametrize(("knob", "value"), [("options", "{}"), ("stem", "cifar")])
def test_they_are_for_timm_alone(knob: str, value: str) -> None:
    with pytest.raises(BadInputError, match=f"model.{knob} is for networks of timm's"):
        build_model("tanh_cnn", info_of((3, 32, 32)), seed=0, **{knob: value})


def test_preflight_says_them_under_their_own_names() -> None:
    values = {
        "model.name": ["timm/test_resnet"],
        "model.norm": ["group"],
        "model.options": ['{"stem_type": "deep"}', '{"act_lyer": 1}'],
        "model.stem": [None],
    }
    problems = DPSGD.preflight(values, info_of((3, 32, 32)))
    assert [problem.key for problem in problems] == ["model.options"]


def test_a_space_keeps_mappings_as_json() -> None:
    space = {"method": "dp_sgd", "model.options": {"b": 1, "a": "x"}}
    parameters, flaws = parse_space(space)
    assert not flaws
    assert parameters[1].choices == ('{"a": "x", "b": 1}',)
    again = canonical_space(space)
    assert canonical_space(again) == again
    searched = {**space, "model.options": {"choice": [{"a": 1}, None]}}
    assert parse_space(searched)[0][1].choices == ('{"a": 1}', None)
    assert parse_space({**space, "model.option": {"a": 1}})[1]
