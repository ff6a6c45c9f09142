"""Networks that start from published weights, and images that are resized in the network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from dpsweep.errors import BadInputError, ModelError
from dpsweep.trainables.backbones import backbone_settings, build_backbone
from dpsweep.trainables.data import DatasetInfo
from dpsweep.trainables.dp_sgd import DPSGD
from dpsweep.trainables.image_front import normalize_layer, resize_layers
from dpsweep.trainables.models import build_model
from dpsweep.trainables.parameter_table import head_layers

LITE0 = "timm/tf_efficientnet_lite0"


def info_of(shape: tuple[int, ...], classes: int = 5) -> DatasetInfo:
    return DatasetInfo("x", shape, classes, 100, 10, 10, 0, ())


@pytest.fixture(scope="module")
def lite0() -> nn.Module:
    info = info_of((1, 28, 28))
    return build_model(
        LITE0, info, norm="frozen", seed=3, checkpoint="published", image_size=32
    ).eval()


def test_published_weights_give_the_features_of_the_backbone(lite0: nn.Module) -> None:
    assert isinstance(lite0, nn.Sequential)
    settings = backbone_settings("efficientnet_lite0", image_size=32)
    backbone = build_backbone(settings, info_of((1, 28, 28))).eval()
    x = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    network = lite0[-1]
    with torch.no_grad():
        features = network.forward_head(network.forward_features(lite0[:-1](x)), pre_logits=True)
        assert torch.allclose(features, backbone(x), rtol=1e-4, atol=1e-5)
    assert network.classifier.weight.shape == (5, 1280)


def test_a_state_dict_needs_no_published_weights(
    lite0: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*args: object, **kwargs: object) -> None:
        raise AssertionError("looked for weights")

    monkeypatch.setattr("dpsweep.trainables.backbones._lite0_settings", gone)
    monkeypatch.setattr("dpsweep.trainables.backbones._timm_settings", gone)
    again = build_model(
        LITE0,
        info_of((1, 28, 28)),
        norm="frozen",
        seed=9,
        checkpoint="published",
        image_size=32,
        is_initial=False,
    )
    again.load_state_dict(lite0.state_dict())
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(again.eval()(x), lite0(x))


def test_the_front_trains_nothing_and_the_head_is_found_behind_it(lite0: nn.Module) -> None:
    assert isinstance(lite0, nn.Sequential)
    assert not any(p.requires_grad for layer in lite0[:-1] for p in layer.parameters())
    assert head_layers(lite0) == {f"{len(lite0) - 1}.classifier"}
    resized = build_model(
        "timm/resnet10t", info_of((3, 16, 16)), norm="group", seed=0, image_size=32
    )
    assert head_layers(resized) == {"1.fc"}


def test_the_classifier_depends_on_the_seed_and_the_rest_does_not(lite0: nn.Module) -> None:
    other = build_model(
        LITE0, info_of((1, 28, 28)), norm="frozen", seed=4, checkpoint="published", image_size=32
    )
    differing = {
        k for k, v in other.state_dict().items() if not torch.equal(v, lite0.state_dict()[k])
    }
    assert differing == {"2.classifier.weight", "2.classifier.bias"}


def test_a_file_goes_into_the_network_behind_the_front(tmp_path: Path) -> None:
    source = build_model("tanh_cnn", info_of((1, 24, 24)), seed=1)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    file = str(tmp_path / "w.pt")
    model = build_model("tanh_cnn", info_of((1, 12, 12)), seed=2, checkpoint=file, image_size=24)
    assert isinstance(model, nn.Sequential)
    x = torch.rand(2, 1, 12, 12)
    with torch.no_grad():
        assert torch.equal(model(x), source(nn.Upsample(size=24, mode="bilinear")(x)))


@pytest.mark.parametrize("trained_with", ["group", "batch"])
def test_weights_of_either_norm_start_a_network_with_group_norm(
    trained_with: str, tmp_path: Path
) -> None:
    info = info_of((1, 32, 32))
    norm = "group" if trained_with == "group" else "frozen"
    source = build_model("timm/resnet10t", info, norm=norm, seed=1)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    model = build_model(
        "timm/resnet10t", info, norm="group", seed=2, checkpoint=str(tmp_path / "w.pt")
    )
    own, given = model.state_dict(), source.state_dict()
    shared = own.keys() & given.keys()
    assert len(shared) == len(own)
    assert all(torch.equal(own[key], given[key]) for key in shared)


def test_normalization_is_that_of_each_channel() -> None:
    x = torch.rand(2, 1, 3, 3)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = (x - torch.tensor(mean)[None, :, None, None]) / torch.tensor(std)[
        None, :, None, None
    ]
    assert torch.allclose(normalize_layer(1, mean, std)(x), expected, atol=1e-6)
    colour = torch.rand(2, 3, 3, 3)
    shift = torch.tensor(mean)[None, :, None, None]
    scale = torch.tensor(std)[None, :, None, None]
    assert torch.allclose(
        normalize_layer(3, mean, std)(colour), (colour - shift) / scale, atol=1e-6
    )


def test_images_of_the_right_size_are_not_resized() -> None:
    assert resize_layers((3, 32, 32), 32) == []


@pytest.mark.parametrize(
    ("name", "shape", "size", "said"),
    [
        ("tanh_cnn", (1, 28, 28), None, "needs one of timm's networks"),
        (LITE0, (2, 28, 28), 32, "grey or colour"),
        (LITE0, (1, 28, 20), None, "square"),
        ("timm/no_such_net", (1, 28, 28), 32, "no_such_net"),
    ],
)
def test_published_weights_that_cannot_be_had(
    name: str, shape: tuple[int, ...], size: int | None, said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        build_model(name, info_of(shape), seed=0, checkpoint="published", image_size=size)


def test_vectors_have_no_size() -> None:
    with pytest.raises(ModelError, match="no images"):
        build_model("linear", info_of((7,)), seed=0, image_size=8)


def test_preflight_names_the_knob_to_change() -> None:
    values = {"model.name": ["tanh_cnn"], "model.checkpoint": ["published"], "batch.expected": [8]}
    (problem,) = DPSGD.preflight(values, info_of((1, 28, 28)))
    assert problem[0] == "model.checkpoint"
    values = {"model.name": [LITE0], "model.checkpoint": ["published"], "batch.expected": [8]}
    (problem,) = DPSGD.preflight({**values, "model.image_size": [32]}, info_of((1, 28, 28)))
    assert problem[0] == "model.norm"
