"""Networks that start from published weights, and images that are resized in the network."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError, ModelError
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.method import PlanContext
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import head_layers
from dpsweep.trainables.networks.pretrained.backbones import backbone_settings
from dpsweep.trainables.networks.pretrained.image_front import normalize_layer, resize_layers
from dpsweep.trainables.networks.pretrained.published_networks import build_backbone

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


def test_images_that_are_no_squares_are_taken_as_they_are() -> None:
    info = info_of((3, 40, 32))
    model = build_model(LITE0, info, norm="frozen", seed=3, checkpoint="published").eval()
    assert isinstance(model, nn.Sequential)
    normalize, network = model
    x = torch.rand(2, 3, 40, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(normalize(x), (x - 0.5) / 0.5, atol=1e-6)
        assert network.forward_features(normalize(x)).shape == (2, 1280, 2, 1)
        assert torch.equal(model(x), network(normalize(x)))


def test_a_state_dict_needs_no_published_weights(
    lite0: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*args: object, **kwargs: object) -> None:
        raise AssertionError("looked for weights")

    monkeypatch.setattr("dpsweep.trainables.networks.pretrained.backbones._lite0_settings", gone)
    monkeypatch.setattr("dpsweep.trainables.networks.pretrained.backbones._timm_settings", gone)
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
        (LITE0, (28,), None, "grey or colour"),
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


def saved(path: Path, content: object) -> str:
    torch.save(content, path)
    return str(path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("how", "mean", "std"),
    [
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("timm", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),  # of tf_efficientnet_lite0
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_weights_of_a_file_see_the_images_they_were_trained_on(
    tmp_path: Path, how: str, mean: tuple[float, ...], std: tuple[float, ...], channels: int
) -> None:
    source = build_model(LITE0, info_of((3, 32, 32)), norm="frozen", seed=1).eval()
    file = saved(tmp_path / "w.pt", source.state_dict())
    options = {"norm": "frozen", "checkpoint": file, "normalize": how}
    model = build_model(LITE0, info_of((channels, 32, 32)), seed=2, **options).eval()
    images = torch.rand(4, channels, 32, 32, generator=torch.Generator().manual_seed(0))
    wanted = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    with torch.no_grad():
        assert torch.allclose(model(images), source(wanted), atol=1e-4)
    front = [p for module in list(model)[:-1] for p in module.parameters()]
    assert front
    assert not any(parameter.requires_grad for parameter in front)


def test_a_file_gets_images_as_they_are_unless_it_is_asked_for(tmp_path: Path) -> None:
    source = build_model(LITE0, info_of((3, 32, 32)), norm="frozen", seed=1).eval()
    file = saved(tmp_path / "w.pt", source.state_dict())
    model = build_model(LITE0, info_of((3, 32, 32)), norm="frozen", seed=2, checkpoint=file).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model(images), source(images))
    given = {"model.name": [LITE0], "model.checkpoint": [file]}
    (note,) = DPSGD.notes(given)
    assert note.startswith(f"images reach the weights of {file} as they are, in [0, 1]")
    assert DPSGD.notes({**given, "model.normalize": ["timm"]}) == []
    assert DPSGD.notes({**given, "model.checkpoint": ["published"]}) == []


@pytest.mark.parametrize(
    ("name", "shape", "options", "said"),
    [
        (LITE0, (3, 32, 32), {"checkpoint": "published", "normalize": "timm"}, "of their own"),
        ("small_resnet", (3, 32, 32), {"normalize": "timm"}, "needs one of timm's networks"),
        ("linear", (7,), {"normalize": "imagenet"}, "needs grey or colour images"),
        ("tanh_cnn", (5, 16, 16), {"normalize": "imagenet"}, "needs grey or colour images"),
    ],
)
def test_what_cannot_be_normalised_is_said(
    name: str, shape: tuple[int, ...], options: dict[str, str], said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        build_model(name, info_of(shape), norm="frozen", seed=0, **options)


def test_published_weights_are_not_normalised_twice() -> None:
    hparams = resolve(
        DPSGD.hyperparameters, {"model.checkpoint": "published", "model.normalize": "timm"}
    )
    context = PlanContext(PrivacyBudget(1.0, 1e-5), "rdp", 100)
    with pytest.raises(
        InfeasibleBudgetError, match=r"model\.normalize=timm with model\.checkpoint"
    ):
        DPSGD.complete(hparams, context)
    hparams["model.checkpoint"] = "/weights.pt"
    assert DPSGD.complete(hparams, context) == hparams
    values = {"model.name": [LITE0], "model.norm": ["frozen"], "model.image_size": [32]}
    values |= {"model.checkpoint": ["published"], "model.normalize": ["imagenet"]}
    problems = DPSGD.preflight(values, info_of((3, 32, 32), classes=5))
    assert (
        "model.normalize",
        "imagenet comes on top of that of published weights",
        "remove it",
    ) in (problems)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"lr": 0.1}},
        lambda state: {"model_ema": state},
        lambda state: {"state_dict": {"fc.weight": torch.zeros(1)}, "model_ema": state},  # timm's
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {f"_orig_mod.{key}": value for key, value in state.items()},
        lambda state: {"state_dict": state, "args": argparse.Namespace(lr=0.1)},
    ],
)
def test_weights_are_found_in_what_training_scripts_save(tmp_path: Path, wrapped: object) -> None:
    source = build_model("tanh_cnn", info_of((1, 16, 16)), seed=1)
    file = saved(tmp_path / "w.pt", wrapped(source.state_dict()))  # type: ignore[operator]
    model = build_model("tanh_cnn", info_of((1, 16, 16)), seed=2, checkpoint=file)
    own = source.state_dict()
    assert all(torch.equal(value, own[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("content", [[torch.zeros(2)], {}, {3: torch.zeros(2)}])
def test_a_file_without_weights_is_said(tmp_path: Path, content: object) -> None:
    file = saved(tmp_path / "w.pt", content)
    with pytest.raises(BadInputError, match="holds no state dict"):
        build_model("tanh_cnn", info_of((1, 16, 16)), seed=2, checkpoint=file)
