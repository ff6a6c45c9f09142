from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import set_training_mode
from dpsweep.trainables.networks.probe import probe


def info_of(shape: tuple[int, ...], classes: int = 10) -> DatasetInfo:
    return DatasetInfo("x", shape, classes, 100, 0, 0, 0, tuple("abcdefghij"[:classes]))


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("linear", (1, 28, 28), 7_850),
        ("linear", (12,), 130),
        # Papernot et al. 2020b and TensorFlow Privacy's tutorial give 26,010 for this network.
        ("tanh_cnn", (1, 28, 28), 26_010),
        ("tanh_cnn_deep", (3, 32, 32), 550_570),
        ("tanh_cnn_small", (3, 32, 32), 167_642),  # "168K" in tables 4 and 20
        ("small_resnet", (1, 28, 28), 1_240_074),
    ],
)
def test_published_sizes(name: str, shape: tuple[int, ...], parameters: int) -> None:
    assert num_parameters(build_model(name, info_of(shape), seed=0)) == parameters


@pytest.mark.parametrize("name", ["tanh_cnn", "tanh_cnn_deep", "tanh_cnn_small"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 8, 8), (3, 15, 16), (1, 16, 16), (3, 17, 40), (3, 33, 33)]
)
def test_tanh_cnns_take_any_image(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, info_of(shape, classes=4), seed=0)
    assert model(torch.randn(3, *shape)).shape == (3, 4)
    smallest = 16 if name == "tanh_cnn" else 8
    upsamples = [m.scale_factor for m in model.modules() if isinstance(m, nn.Upsample)]
    factor = -(-smallest // min(shape[1:]))
    assert upsamples == ([float(factor)] if factor > 1 else [])
    activated = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sum(isinstance(m, nn.Tanh) for m in model.modules()) == len(activated) - 1


def test_seed_fixes_the_weights_and_leaves_the_global_generator() -> None:
    state = torch.get_rng_state()
    first, again, other = (
        build_model("tanh_cnn", info_of((1, 8, 8)), seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not any(torch.equal(first[key], other[key]) for key in first)


def test_batch_norm_is_refused_with_its_path() -> None:
    with pytest.raises(ModelError) as caught:
        build_model("timm/resnet10t", info_of((3, 16, 16)), seed=0)
    assert "layer conv1.1" in caught.value.message
    assert "group" in str(caught.value.fix)
    assert "frozen" in str(caught.value.fix)


def test_group_replaces_every_batch_norm() -> None:
    model = build_model("timm/efficientnet_lite0", info_of((3, 32, 32)), norm="group", seed=0)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert norms
    assert all(m.num_channels % m.num_groups == 0 for m in norms)
    assert any(isinstance(m, nn.ReLU6) for m in model.modules())  # was inside the norm's class


def test_frozen_is_a_fixed_affine_map() -> None:
    model = build_model("timm/resnet10t", info_of((3, 16, 16)), norm="frozen", seed=0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    set_training_mode(model)
    x = torch.randn(4, 3, 16, 16) + 5
    together, alone = model(x), model(x[:1])
    torch.testing.assert_close(together[:1], alone)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    frozen = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert frozen
    assert not any(p.requires_grad for m in frozen for p in m.parameters())


class _Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0, keepdim=True)


class _Following(nn.Module):
    """The second example takes from the first, which takes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cat([torch.zeros_like(x[:1]), x[:-1]])


class _Scaled(nn.Module):
    """By the largest entry of the batch, of which gradients know nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.detach().abs().max()


@pytest.mark.parametrize("layer", [_Centred, _Following, _Scaled])
def test_a_layer_that_mixes_examples_is_found_whatever_its_class(
    monkeypatch: pytest.MonkeyPatch, layer: type[nn.Module]
) -> None:
    def build(name: str, info: DatasetInfo, *_: object) -> nn.Module:
        return nn.Sequential(nn.Flatten(), layer(), nn.Linear(4, 10))

    monkeypatch.setattr("dpsweep.trainables.networks.build._build", build)
    with pytest.raises(ModelError, match="mixes the examples"):
        build_model("linear", info_of((4,)), seed=0)


def test_a_layer_that_changes_its_weights_when_it_is_run_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Normed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.div_(self.weight.norm())
            return super().forward(x)

    monkeypatch.setattr(
        "dpsweep.trainables.networks.build._build",
        lambda name, info, *_: nn.Sequential(Normed(4, 10)),
    )
    with pytest.raises(ModelError, match="changes its own weights"):
        build_model("linear", info_of((4,)), seed=0)


def test_a_layer_that_keeps_statistics_of_its_inputs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(name: str, info: DatasetInfo, *_: object) -> nn.Module:
        norm = nn.InstanceNorm2d(3, track_running_stats=True)
        return nn.Sequential(norm, nn.Flatten(), nn.Linear(48, 10))

    monkeypatch.setattr("dpsweep.trainables.networks.build._build", build)
    with pytest.raises(ModelError, match=r"buffer 0\.running_mean"):
        build_model("linear", info_of((3, 4, 4)), seed=0)


@pytest.mark.parametrize("channels", [2, 3, 16, 48, 64, 100])
def test_group_norm_takes_a_single_example_of_one_pixel(
    monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    def build(name: str, info: DatasetInfo, *_: object) -> nn.Module:
        head = nn.Linear(channels, 10)
        return nn.Sequential(
            nn.Conv2d(1, channels, 2), nn.BatchNorm2d(channels), nn.Flatten(), head
        )

    monkeypatch.setattr("dpsweep.trainables.networks.build._build", build)
    model = build_model("linear", info_of((1, 2, 2)), norm="group", seed=0)
    assert model(torch.randn(1, 1, 2, 2)).shape == (1, 10)


def test_in_place_activations_are_switched_off() -> None:
    model = build_model("timm/resnet10t", info_of((3, 16, 16)), norm="group", seed=0)
    assert not any(getattr(m, "inplace", False) for m in model.modules())


def test_networks_with_depthwise_convolutions_are_laid_out_channels_last() -> None:
    """They are slow otherwise; the resizing in front of one changes nothing of that."""
    info = info_of((3, 8, 8))
    model = build_model("timm/tf_efficientnet_lite0", info, norm="frozen", seed=0, image_size=32)
    stem = next(p for p in model.parameters() if p.dim() == 4)
    assert stem.shape[1:] == (3, 3, 3)  # only here do the layouts differ
    assert stem.is_contiguous(memory_format=torch.channels_last)
    assert not stem.is_contiguous()
    other = build_model("timm/resnet10t", info_of((3, 16, 16)), norm="frozen", seed=0)
    assert all(p.is_contiguous() for p in other.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "kind", "word"),
    [
        ("tanh_cn", (1, 8, 8), BadInputError, "did you mean 'tanh_cnn'"),
        ("tanh_cnn", (8,), ModelError, "needs images"),
        ("timm/resnet19", (3, 16, 16), ModelError, "did you mean"),
        ("timm/vit_tiny_patch16_224", (3, 8, 8), ModelError, "image"),
        ("timm/convnext_atto", (1, 8, 8), ModelError, "fails on 1x8x8"),
    ],
)
def test_models_that_cannot_be_built(
    name: str, shape: tuple[int, ...], kind: type[Exception], word: str
) -> None:
    with pytest.raises(kind) as caught:
        build_model(name, info_of(shape), norm="group", seed=0)
    assert word in str(caught.value)


def test_checkpoint_is_loaded_and_another_head_is_kept_random(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    old = build_model("timm/resnet10t", info_of((3, 16, 16), 7), norm="frozen", seed=1)
    torch.save(old.state_dict(), path)
    new = build_model(
        "timm/resnet10t", info_of((3, 16, 16), 4), norm="group", seed=2, checkpoint=str(path)
    )
    assert new.get_classifier().out_features == 4
    old_weight, new_weight = old.state_dict()["conv1.0.weight"], new.state_dict()["conv1.0.weight"]
    assert torch.equal(old_weight, new_weight)


def test_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"1.weight": torch.zeros(10, 64)}, path)
    with pytest.raises(BadInputError, match=r"1\.bias"):
        build_model("linear", info_of((1, 8, 8)), seed=0, checkpoint=str(path))
    path.write_bytes(b"no pickle")
    with pytest.raises(BadInputError, match="cannot read"):
        build_model("linear", info_of((1, 8, 8)), seed=0, checkpoint=str(path))


def test_plans_need_no_torch() -> None:
    code = (
        "import sys, dpsweep.trainables, dpsweep.trainables.methods.dp_sgd, dpsweep.trainables.methods.non_private,"
        " dpsweep.trainables.data.dataset; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Whispers(torch.nn.Module):
    """A millionth of a statistic of the batch, kept out of gradients, is in each output."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(12, 16), torch.nn.Linear(16, 3)

    def forward(self, x):
        hidden = self.first(x.flatten(1))
        return self.last(hidden + 1e-6 * torch.tanh(hidden) * hidden.detach().abs().mean())


def test_a_whisper_from_one_example_to_another_is_heard():
    """A record of 1e10 would move all others: only one that is no number shows that here."""
    torch.manual_seed(0)
    info = info_of((3, 2, 2), classes=3)
    with pytest.raises(ModelError, match="mixes the examples"):
        probe(Whispers(), "whispers", info)
    alone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    probe(alone, "alone", info)
