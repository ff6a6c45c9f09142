"""Parameters of networks per layer, and the share of biases that the DP-BiTFiT paper prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.hooks import TrainsSome
from dpsweep.trainables.networks import parameter_table
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import head_layers
from dpsweep.trainables.networks.parameter_table import everything, full_name
from dpsweep.trainables.networks.parameter_table import parameter_table as table_of

# Bu et al. 2024, tables 1 and E.1, in per cent; the digits beyond the paper's are timm's.
WITH_HEAD = {
    "resnet18": "0.0496",
    "resnet34": "0.0436",
    "resnet50": "0.1078",
    "resnet101": "0.1205",
    "resnet152": "0.1274",
    "wide_resnet50_2": "0.0510",
    "wide_resnet101_2": "0.0551",
    "vgg11": "0.0090",
    "vgg16": "0.0097",
    "vgg19": "0.0102",
    "convnext_base": "0.1482",
    "convnext_large": "0.0993",
    "vit_small_patch16_224": "0.2379",
    "vit_base_patch16_224": "0.1200",
    "vit_large_patch16_224": "0.0898",
    "deit_base_patch16_224": "0.1200",
    "beit_base_patch16_224": "0.088",
}
# The paper's .043 and .113 leave the classifier out.
WITHOUT_HEAD = {"resnet18": "0.0429", "resnet50": "0.1130"}
VIT = "vit_tiny_patch16_224"


class RealBytes(TorchDispatchMode):
    """Adds up what operations put into memory: everything but tensors on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                self.total += leaf.numel() * leaf.element_size()
        return out


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "printed"), WITH_HEAD.items())
def test_bias_percent_is_the_papers(name: str, printed: str) -> None:
    found = table_of(name).bias_percent
    assert f"{found:.{len(printed) - 2}f}" == printed


@pytest.mark.parametrize(("name", "printed"), WITHOUT_HEAD.items())
def test_bias_percent_no_head_is_the_papers(name: str, printed: str) -> None:
    found = table_of(name).bias_percent_no_head
    assert f"{found:.{len(printed) - 2}f}" == printed


@pytest.mark.parametrize(("name", "millions"), [("resnet18", 11.7), ("convnext_large", 197.8)])
def test_the_papers_numbers_of_parameters(name: str, millions: float) -> None:
    assert round(table_of(name).num_parameters / 1e6, 1) == millions


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("name", "heads"),
    [
        (VIT, 1),
        ("deit_tiny_distilled_patch16_224", 2),  # a tuple of two
        ("crossvit_tiny_240", 2),  # a list of two
        ("caformer_s18", 3),  # a head of several layers, one of them a norm
        ("swin_tiny_patch4_window7_224", 1),
        ("beit_base_patch16_224", 1),
        ("tf_efficientnet_lite0", 1),
        ("mobilenetv5_300m_enc", 0),  # says nothing of a classifier
    ],
)
def test_totals_agree_with_the_network(name: str, heads: int) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=10)
    sizes = {path: p.numel() for path, p in model.named_parameters()}
    biases = {path: n for path, n in sizes.items() if path.split(".")[-1] == "bias"}
    table = table_of(f"timm/{name}", num_classes=10)
    assert table.num_parameters == sum(sizes.values())
    assert table.num_bias == sum(biases.values())
    rows = {row.layer: row for row in table.layers}
    assert len(rows) == len(table.layers)
    assert all(rows[path.rpartition(".")[0]].num_parameters >= n for path, n in sizes.items())
    assert all(row.type == type(model.get_submodule(row.layer)).__name__ for row in table.layers)
    in_head = {path for path in sizes if path.rpartition(".")[0] in table.head}
    assert len({path.rpartition(".")[0] for path in in_head}) == heads
    rest = {path: n for path, n in sizes.items() if path not in in_head}
    share = sum(n for path, n in rest.items() if path in biases) / sum(rest.values())
    assert table.bias_percent_no_head == pytest.approx(100 * share, rel=1e-12)


def test_only_a_parameter_named_bias_is_one() -> None:
    rows = {row.layer: row for row in table_of("beit_base_patch16_224").layers}
    attention = rows["blocks.0.attn"]
    assert attention.num_parameters > 2 * 768  # q_bias, v_bias and the table of positions
    assert attention.num_bias == 0
    assert rows["blocks.0.attn.proj"].num_bias == 768


def test_no_memory_of_the_networks_size() -> None:
    with RealBytes() as real:
        table = table_of("vit_large_patch16_224")
    assert table.num_parameters == 304_326_632
    assert real.total < 1e6
    with RealBytes() as real:  # and the counter sees a network that is allocated
        timm.create_model(VIT)
    assert real.total > 4 * 5_717_416


def test_a_large_network_takes_seconds() -> None:
    begin = time.process_time()
    table_of("vit_large_patch16_224")
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [("linear", 1, 28), ("tanh_cnn", 1, 28), ("tanh_cnn_deep", 3, 32), ("scatter_cnn", 81, 7)],
)
def test_built_in_networks(
    name: str, channels: int, size: int, make_blobs: Callable[..., Any]
) -> None:
    info = make_blobs(shape=(channels, size, size), classes=10).info
    model = build_model(name, info, seed=0)
    table = table_of(name, 10, size, channels=channels)
    assert table.num_parameters == sum(p.numel() for p in model.parameters())
    assert table.head == {str(len(model) - 1)}
    if name == "linear":
        assert table.bias_percent_no_head is None
    with pytest.raises(BadInputError, match=f"size of {name} .* image size"):
        table_of(name, 10)


def test_image_size_channels_and_classes_reach_the_network() -> None:
    def rows(**given: Any) -> dict[str, Any]:
        return {row.layer: row.num_parameters for row in table_of(VIT, **given).layers}

    base = rows()
    small = rows(image_size=32, channels=1, num_classes=10)
    assert {path for path in base if base[path] != small[path]} == {"", "patch_embed.proj", "head"}
    assert base[""] - small[""] == (14**2 - 2**2) * 192
    assert base["patch_embed.proj"] - small["patch_embed.proj"] == 2 * 16 * 16 * 192
    assert small["head"] == 193 * 10
    # A network whose parameters do not depend on the size of the images.
    assert table_of("resnet18", image_size=64).layers == table_of("resnet18").layers


def test_what_is_trained_is_a_function_of_method_and_parameter() -> None:
    whole = table_of(VIT, is_trainable=everything)
    assert whole.num_trainable == whole.num_parameters
    asked: dict[str, torch.Size] = {}

    def biases(name: str, parameter: nn.Parameter, *, in_head: bool) -> bool:
        assert in_head == name.startswith("head.")
        asked[name] = parameter.shape
        return name.endswith(".bias")

    table = table_of(VIT, is_trainable=biases)
    assert table.num_trainable == table.num_bias
    assert all(row.num_trainable == row.num_bias for row in table.layers)
    assert asked["blocks.0.attn.qkv.bias"] == (576,)
    assert asked["cls_token"] == (1, 1, 192)


def test_methods_train_everything_unless_they_say_otherwise() -> None:
    assert [n for n in TRAINABLES if issubclass(TRAINABLES[n], TrainsSome)] == [
        "bitfit",
        "bitfit_non_private",
    ]


def test_frozen_and_shared_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*args: Any, **kwargs: Any) -> nn.Module:
        first, second, last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        second.weight = first.weight
        first.bias.requires_grad_(False)
        return nn.Sequential(first, second, second, last)

    monkeypatch.setattr(parameter_table, "build_untreated", build)
    rows = {row.layer: row for row in table_of("linear", 2, 1).layers}
    assert list(rows) == ["0", "1", "3"]
    assert (rows["0"].num_parameters, rows["0"].num_trainable) == (20, 16)
    assert (rows["1"].num_parameters, rows["1"].num_bias) == (4, 4)


def test_batch_norm_is_noted_and_refuses_nothing() -> None:
    note = table_of("resnet18").note
    assert note is not None
    assert "20 layers" in note
    assert "bn1" in note
    assert "model.norm" in note
    assert table_of(VIT).note is None


def test_no_head_to_leave_out() -> None:
    assert head_layers(nn.ReLU()) == frozenset()
    empty = parameter_table.ParameterTable("x", 1, 1, None, (), frozenset(), ())
    assert empty.bias_percent is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vit_bse_patch16_224", "did you mean 'vit_base_patch16_224'"),
        ("timm/resnet_18", "did you mean 'timm/resnet18'"),
        ("tanh_cn", "did you mean 'tanh_cnn'"),
        ("q", "known: linear, tanh_cnn"),
        ("hf-hub:someone/network", "known: linear, tanh_cnn"),
        ("timm/linear", "unknown model 'timm/linear'"),
    ],
)
def test_unknown_names_are_one_line_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(BadInputError) as caught:
        table_of(name)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_with_and_without_their_library() -> None:
    assert full_name("resnet18") == full_name("timm/resnet18") == "timm/resnet18"
    assert full_name("linear") == "linear"
    assert table_of("timm/resnet18").layers == table_of("resnet18").layers


@pytest.mark.parametrize(
    "given",
    [{"num_classes": 0}, {"image_size": 0}, {"channels": 0}],
    ids=lambda given: next(iter(given)),
)
def test_sizes_below_one_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(BadInputError, match="at least 1, got 0"):
        table_of(VIT, **given)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("name", "size"), [("twins_svt_small", 30), ("xcit_nano_12_p16_224", 30), ("gmlp_s16_224", 1)]
)
def test_a_network_that_cannot_have_this_size(name: str, size: int) -> None:
    with pytest.raises(ModelError, match=f"3x{size}x{size} images") as caught:
        table_of(name, image_size=size)
    assert caught.value.fix == "use another image size"


def test_a_network_that_cannot_be_built() -> None:
    with pytest.raises(ModelError, match="no_such_tag") as caught:
        table_of(f"{VIT}.no_such_tag")
    assert caught.value.fix == "use another model"
