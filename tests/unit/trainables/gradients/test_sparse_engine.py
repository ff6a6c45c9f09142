from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
from gradients import relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.losses import cross_entropy_sum
from dpsweep.trainables.gradients import masked_conv, weight_products
from dpsweep.trainables.gradients.per_example import OpacusEngine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import MaskedWeight, SparseValues, magnitude_mask
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import set_training_mode


def info_of(shape: tuple[int, ...], classes: int = 5) -> DatasetInfo:
    return DatasetInfo("x", shape, classes, 100, 0, 0, 0, tuple("abcdefghij"[:classes]))


def records(count: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, *shape, generator=generator), torch.arange(count) % 5


def freeze_convolutions(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.requires_grad_(False)
    return model


def slow_clipped_sum(
    model: nn.Module,
    masks: list[MaskedWeight],
    x: torch.Tensor,
    y: torch.Tensor,
    max_grad_norm: float,
    loss: Callable[..., torch.Tensor] = cross_entropy_sum,
) -> tuple[list[torch.Tensor], list[float]]:
    """The definition: one example at a time, whole gradients, then the mask."""
    weights = [mask.layer.weight for mask in masks]
    others = [p for p in model.parameters() if p.requires_grad and all(p is not w for w in weights)]
    sums: list[torch.Tensor] = []
    norms = []
    for row in range(len(x)):
        for weight in weights:
            weight.requires_grad_(True)
        value = loss(model(x[row : row + 1]), y[row : row + 1])
        whole = torch.autograd.grad(value, weights + others)
        for weight in weights:
            weight.requires_grad_(False)
        gradients = [g.flatten()[mask.index].double() for g, mask in zip(whole, masks)]
        gradients += [g.double() for g in whole[len(masks) :]]
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        norms.append(norm)
        sums = sums or [torch.zeros_like(g) for g in gradients]
        for total, gradient in zip(sums, gradients):
            total += gradient * min(1.0, max_grad_norm / max(norm, 1e-30))
    return sums, norms


def assert_agrees(
    model: nn.Module,
    masks: list[MaskedWeight],
    x: torch.Tensor,
    y: torch.Tensor,
    physical: int = 3,
) -> list[torch.Tensor]:
    engine = SparseEngine(model, masks, physical)
    _, norms = slow_clipped_sum(model, masks, x, y, 1.0)
    bound = float(np.median(norms))  # some examples are clipped, some are not
    expected, _ = slow_clipped_sum(model, masks, x, y, bound)
    actual = engine.clipped_gradient_sum(x, y, np.arange(len(x)), bound)
    assert [a.shape for a in actual] == [e.shape for e in expected]
    assert relative_error(actual, expected) < 1e-5
    for one, other in zip(actual, expected):  # also a small layer among large ones
        assert float((one - other).norm()) <= 1e-4 * float(other.norm()) + 1e-6
    return actual


def shake_norms(model: nn.Module) -> None:
    """Give norm layers random weights, so that all layers have gradients."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)):
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)


def learn_statistics(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Set BatchNorm's statistics; with the first ones activations of random weights explode."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in norms:
        module.train()
        module.momentum = 1.0
    with torch.no_grad():
        model(torch.randn(8, *shape, generator=torch.Generator().manual_seed(7)))
    set_training_mode(model)


_RESNETS: dict[str, nn.Module] = {}


def resnet() -> nn.Module:
    if not _RESNETS:
        _RESNETS["it"] = build_model("timm/resnet18", info_of((3, 32, 32)), norm="group", seed=0)
        shake_norms(_RESNETS["it"])  # timm starts the last ones of blocks at zero
    model = _RESNETS["it"]
    for module in model.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        module._forward_pre_hooks_with_kwargs.clear()
    return freeze_convolutions(model)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize(
    "density", [0.01, *(pytest.param(density, marks=pytest.mark.slow) for density in (0.001, 1.0))]
)
def test_resnet_agrees_with_a_loop_over_examples(density: float, scope: str) -> None:
    model = resnet()
    masks = magnitude_mask(model, density, scope=scope)
    sums = assert_agrees(model, masks, *records(4, (3, 32, 32)))
    others = [p for p in model.parameters() if p.requires_grad]
    assert [s.shape for s in sums] == [(m.nnz,) for m in masks] + [p.shape for p in others]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "size", "density"),
    [
        ("tf_efficientnet_lite0", 64, 0.02),
        ("efficientnet_b0", 32, 0.01),
        ("efficientnet_b0", 32, 0.4),
    ],
)
def test_grouped_networks_with_frozen_norm_agree(name: str, size: int, density: float) -> None:
    shape = (3, size, size)
    model = build_model(f"timm/{name}", info_of(shape), norm="frozen", seed=0)
    shake_norms(model)
    learn_statistics(model, shape)
    freeze_convolutions(model)
    masks = magnitude_mask(model, density, scope="layer")
    assert any(mask.layer.groups > 1 for mask in masks)
    # In chunks of one: random weights amplify the different rounding of larger ones to 1e-3.
    assert_agrees(model, masks, *records(3, shape), physical=1)


def test_norm_layers_of_timm_train_behind_their_activations() -> None:
    """BatchNormAct2d in eval mode and GroupNormAct normalise, then activate, in one layer."""
    torch.manual_seed(0)
    from timm.layers import BatchNormAct2d, GroupNormAct, LayerNorm2d, LayerNormAct2d

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        BatchNormAct2d(8),
        nn.Conv2d(8, 8, 3),
        GroupNormAct(8, 2),
        nn.Conv2d(8, 8, 3),
        LayerNorm2d(8),
        nn.Conv2d(8, 8, 1),
        LayerNormAct2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(8),
        nn.Linear(8, 5),
    )
    for norm in (model[1], model[3], model[7]):
        norm.act.inplace = False  # as build_model does
    shake_norms(model)
    with torch.no_grad():
        model[1].running_mean.normal_()
    set_training_mode(model)
    assert_agrees(freeze_convolutions(model), magnitude_mask(model, 0.3), *records(5, (3, 8, 8)))
    assert float(model[1].num_batches_tracked) == 0


class _Scaled(nn.Module):
    """A parameter beside layers, as ConvNeXt's layer scale."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 2.0, 6))
        self.conv = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.drop = nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.conv(x)) * self.gamma[:, None, None]


def scaled_model(rate: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return freeze_convolutions(
        nn.Sequential(
            nn.Conv2d(3, 6, 3), _Scaled(rate), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 5)
        )
    )


def test_parameters_beside_layers_train_too() -> None:
    model = scaled_model()
    assert_agrees(model, magnitude_mask(model, 0.5), *records(5, (3, 8, 8)))


def test_dropout_within_such_a_layer_is_refused() -> None:
    model = scaled_model(0.5)
    with pytest.raises(ModelError, match=r"1 \(_Scaled\).*drops out"):
        SparseEngine(model, magnitude_mask(model, 0.5), 2)


def test_a_convolution_used_twice_adds_both_uses_up() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), conv, nn.Tanh(), conv, nn.Flatten(), nn.Linear(64, 5))
    assert_agrees(freeze_convolutions(model), magnitude_mask(model, 0.3), *records(5, (3, 4, 4)))


def test_unmasked_convolutions_train_whole_or_not_at_all() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3),
        nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    model[4].requires_grad_(False)
    first = [mask for mask in magnitude_mask(model, 0.3, scope="layer") if mask.name == "0"]
    sums = assert_agrees(model, first, *records(5, (3, 8, 8)))
    assert [tuple(s.shape) for s in sums] == [
        (32,), (4,), (4, 4, 3, 3), (4,), (5, 16), (5,),
    ]  # fmt: skip


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, object]:
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    stride = draw(pair)
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    paddings: list[object] = [0, draw(pair), "valid"]
    if stride == (1, 1):
        paddings += ["same", "same"]
    mode = draw(st.sampled_from(["zeros", "zeros", "circular", "reflect", "replicate"]))
    is_depthwise = groups > 1 and draw(st.booleans())
    return {
        "in_channels": groups * (1 if is_depthwise else draw(st.integers(1, 3))),
        "out_channels": groups * (1 if is_depthwise else draw(st.integers(1, 4))),
        "kernel_size": kernel,
        "stride": stride,
        "padding": draw(st.sampled_from(paddings)),
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": mode,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@given(
    options=convolutions(),
    size=st.tuples(st.integers(7, 12), st.integers(7, 12)),
    density=st.sampled_from([0.02, 0.2, 0.6, 1.0]),
    some=st.sampled_from([None, True, False]),
    dense=st.sampled_from([None, True, False]),
    cost=st.sampled_from([None, 0.0, math.inf]),
    same_as_tensorflow=st.booleans(),
    last=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_any_convolution_agrees_with_autograd(
    options: dict[str, object],
    size: tuple[int, int],
    density: float,
    some: bool | None,
    dense: bool | None,
    cost: float | None,
    same_as_tensorflow: bool,
    last: bool,
) -> None:
    """Every way to compute the product, also those that the estimate would not choose.

    Of a depthwise convolution at an infinite cost of the others, tap by tap.
    """
    torch.manual_seed(0)
    if same_as_tensorflow:
        options = {key: value for key, value in options.items() if key != "padding_mode"}
        layer: nn.Conv2d = timm.layers.Conv2dSame(**options)
    else:
        layer = nn.Conv2d(**options)
    masks = magnitude_mask(nn.Sequential(layer), density)
    if not masks:
        return

    def choose(groups: int, *arguments: object) -> tuple[bool, bool, float]:
        chosen = estimate(groups, *arguments)
        whole = chosen[1] if dense is None else dense
        part = chosen[0] if some is None else some
        return part and not (whole and groups > 1), whole, chosen[2] if cost is None else cost

    x = torch.randn(3, layer.in_channels, *size)
    if last:
        x = x.to(memory_format=torch.channels_last)
    output = layer(x)
    upstream = torch.randn(3, output.shape[1], 1, 1).expand_as(output) if last else None
    upstream = torch.randn_like(output) if upstream is None else upstream
    estimate = masked_conv._choose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked_conv, "_choose", choose)
        patch.setattr(weight_products, "CPU_BLOCK_BYTES", 4000)
        found = masked_conv.MaskedConv(masks[0])([x], upstream)
    samples = found[masks[0]]
    for row in range(3):
        wanted = torch.autograd.grad(layer(x[row : row + 1]), layer.weight, upstream[row : row + 1])
        expected = wanted[0].flatten()[masks[0].index]
        torch.testing.assert_close(samples[row], expected, rtol=1e-4, atol=1e-4)
    if layer.bias is not None:
        torch.testing.assert_close(found[layer.bias], upstream.sum((2, 3)))


@pytest.mark.parametrize("dense", [True, False])
def test_entries_are_formed_of_as_many_examples_each_time(
    dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 8, 3, padding=1)
    (mask,) = magnitude_mask(nn.Sequential(layer), 0.3)
    monkeypatch.setattr(masked_conv, "_choose", lambda *_: (False, dense, 0.0))
    monkeypatch.setattr(weight_products, "CPU_BLOCK_BYTES", 28 * 4 * 72 * 36)
    name, sizes = "_pick" if dense else "_sample", []
    form = getattr(masked_conv._Plan, name)

    def noted(plan: object, by_output: torch.Tensor, *others: torch.Tensor) -> None:
        sizes.append(len(by_output))
        form(plan, by_output, *others)

    monkeypatch.setattr(masked_conv._Plan, name, noted)
    masked_conv.MaskedConv(mask)([torch.randn(48, 8, 6, 6)], torch.randn(48, 8, 6, 6))
    assert sizes == [24, 24]


def test_the_estimate_chooses_each_way_somewhere() -> None:
    cpu = torch.device("cpu")
    chosen = {
        masked_conv._choose(groups, 256, 256 * 9, used, nnz, out, cpu)[:2]
        for groups in (1, 256)
        for used, nnz in ((20, 20), (256 * 9, 4000), (256 * 9, 256 * 256 * 9 // groups))
        for out in ((1, 1), (4, 4), (16, 16))
    }
    assert chosen == {(False, False), (False, True), (True, False), (True, True)}


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    return freeze_convolutions(model)


@pytest.fixture
def small() -> tuple[nn.Module, list[MaskedWeight], torch.Tensor, torch.Tensor]:
    model = small_model()
    return model, magnitude_mask(model, 0.1), *records(12, (1, 8, 8))


def test_norms_are_of_the_trainable_entries_alone(small) -> None:
    """A bound between the norms with and without frozen entries: no example may be clipped."""
    model, masks, x, y = small
    _, norms = slow_clipped_sum(model, masks, x, y, 1.0)
    _, with_frozen = slow_clipped_sum(model, magnitude_mask(model, 1.0), x, y, 1.0)
    row = int(np.argmax(np.array(with_frozen) / np.array(norms)))
    assert with_frozen[row] > 1.02 * norms[row]
    engine = SparseEngine(model, masks, 4)
    bound = norms[row] * 1.001
    unclipped = engine.clipped_gradient_sum(x, y, np.array([row]), 1e9)
    total = engine.clipped_gradient_sum(x, y, np.array([row]), bound)
    assert all(torch.equal(a, b) for a, b in zip(unclipped, total))
    below = engine.clipped_gradient_sum(x, y, np.array([row]), norms[row] * 0.5)
    norm = float(torch.cat([t.flatten() for t in below]).norm())
    assert norm == pytest.approx(norms[row] * 0.5, rel=1e-5)


def test_chunks_do_not_matter(small) -> None:
    model, masks, x, y = small
    rows = np.array([0, 3, 4, 7, 8, 9, 11])
    whole = SparseEngine(model, masks, 100).clipped_gradient_sum(x, y, rows, 0.3)
    for physical in (1, 2, 5):
        model = small_model()
        parts = SparseEngine(model, magnitude_mask(model, 0.1), physical)
        actual = parts.clipped_gradient_sum(x, y, rows, 0.3)
        assert relative_error(actual, [w.double() for w in whole]) < 1e-5


def test_empty_batch_gives_zeros(small) -> None:
    model, masks, x, y = small
    sums = SparseEngine(model, masks, 4).clipped_gradient_sum(x, y, np.array([], np.int64), 1.0)
    assert [s.shape for s in sums[:2]] == [(mask.nnz,) for mask in masks]
    assert len(sums) == len(masks) + 5
    assert all(not total.any() for total in sums)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e38])
def test_an_example_that_is_not_finite_adds_zero(small, value: float) -> None:
    model, masks, x, y = small
    engine = SparseEngine(model, masks, 3, factors=lambda norms, c: c / (norms + 0.01))
    rows = np.arange(6)
    without = engine.clipped_gradient_sum(x, y, rows[rows != 2], 0.5)
    x[2, 0, 4, 4] = value
    with_it = engine.clipped_gradient_sum(x, y, rows, 0.5)
    moved = torch.cat([(a - b).flatten() for a, b in zip(with_it, without)]).norm()
    if np.isfinite(value):
        assert float(moved) <= 0.5 * (1 + 1e-5)
    else:
        assert float(moved) <= 1e-6


def test_loss_and_factors_are_those_given(small) -> None:
    model, masks, x, _ = small
    targets = torch.rand(12, 5)

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")

    seen = []

    def factors(norms: torch.Tensor, bound: float) -> torch.Tensor:
        seen.append(norms)
        return torch.full_like(norms, 0.25)

    engine = SparseEngine(model, masks, 5, loss=loss, factors=factors)
    actual = engine.clipped_gradient_sum(x, targets, np.arange(12), 0.7)
    expected, norms = slow_clipped_sum(model, masks, x, targets, 1e9, loss)
    assert relative_error(actual, [0.25 * e for e in expected]) < 1e-5
    found = torch.cat(seen)[:12]  # what comes after them fills the last chunk
    np.testing.assert_allclose(found.numpy(), norms, rtol=1e-4)


def test_training_leaves_frozen_weights_and_records_alone(small) -> None:
    model, masks, x, y = small
    others = [p for p in model.parameters() if p.requires_grad]
    values = SparseValues(masks)
    engine = SparseEngine(model, masks, 5)
    optimizer = torch.optim.SGD([*values.parameters, *others], lr=0.05, momentum=0.9)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    inputs = x.clone()
    rows = np.arange(12)
    losses = []
    for _ in range(6):
        for parameter, total in zip(
            [*values.parameters, *others], engine.clipped_gradient_sum(x, y, rows, 1.0)
        ):
            assert parameter.shape == total.shape
            parameter.grad = (total / 12).float()
        optimizer.step()
        values.write()
        with torch.no_grad():
            losses.append(float(cross_entropy_sum(model(x), y)))
    assert losses == sorted(losses, reverse=True)
    assert torch.equal(x, inputs)
    for mask in masks:
        frozen = torch.ones(mask.layer.weight.numel(), dtype=torch.bool)
        frozen[mask.index] = False
        now, then = mask.layer.weight.flatten(), before[f"{mask.name}.weight"].flatten()
        assert torch.equal(now[frozen].view(torch.int32), then[frozen].view(torch.int32))
        assert (now[~frozen] != then[~frozen]).any()
        assert mask.layer.weight.grad is None
        assert not mask.layer.weight.requires_grad


class _Sizes(TorchDispatchMode):
    """Notes the largest tensor that any operation returns, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                self.largest = max(self.largest, value.numel())
        return result


def wide_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 128, 3), nn.Tanh(), nn.Conv2d(128, 160, 3), nn.Tanh()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 5))


@pytest.mark.parametrize("density", [0.005, 0.05, 0.5])
def test_no_gradient_of_a_whole_weight_per_example(density: float) -> None:
    model, (x, y) = freeze_convolutions(wide_model()), records(8, (3, 8, 8))
    whole = model[2].weight.numel()

    def largest(engine: SparseEngine | OpacusEngine) -> int:
        engine.clipped_gradient_sum(x, y, np.arange(8), 1.0)  # its check is no part of a step
        with _Sizes() as sizes:
            engine.clipped_gradient_sum(x, y, np.arange(8), 1.0)
        return sizes.largest

    with _Sizes() as seen:  # what a gradient of the whole weight per example would show
        torch.bmm(torch.ones(8, 160, 4), torch.ones(8, 4, whole // 160))
    assert seen.largest >= 8 * whole
    assert largest(OpacusEngine(wide_model(), 8)) < 8 * whole
    masks = magnitude_mask(model, density)
    most = largest(SparseEngine(model, masks, 8))
    assert most <= max(2 * whole, 8 * max(mask.nnz for mask in masks))
    assert most < 8 * whole


class _Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x) * 1.0
        logits = self.second(hidden)
        with torch.no_grad():
            hidden.mul_(2.0)
        return (logits + hidden.sum(1, keepdim=True)).mean((2, 3))


class _ElsewhereToo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again = nn.functional.conv2d(x, self.conv.weight)
        return (self.conv(x) + again.square()).mean((2, 3))


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.unused = nn.Conv2d(1, 5, 3), nn.Conv2d(1, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))


class _Folded(nn.Module):
    """Folds parts of each record into the batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.reshape(-1, 1, 4, 8)).mean((2, 3)).reshape(len(x), 2, 5).sum(1)


class _CutOff(_Unused):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = self.unused(x).mean((2, 3))
        return self.conv(x).mean((2, 3)) + hidden


class _Doubled(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * 2)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (_Overwritten, "overwritten"),
        (_ElsewhereToo, "disagree with autograd"),
        (_Unused, "no gradient per example"),
        (_Folded, "no gradient per example"),
        (_CutOff, "no gradient per example"),
        (lambda: nn.Sequential(_Doubled(1, 5, 3), nn.Flatten()), r"layer 0 \(_Doubled\)"),
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten()
            ),
            "layer 1 .* mixes",
        ),
    ],
)
def test_networks_without_gradients_per_example_are_refused(
    make: Callable[[], nn.Module], word: str
) -> None:
    model = freeze_convolutions(make())
    x, y = records(4, (1, 8, 8))
    with pytest.raises(ModelError, match=word):
        SparseEngine(model, magnitude_mask(model, 0.5), 4).clipped_gradient_sum(
            x, y, np.arange(4), 1.0
        )


def test_masks_must_fit_the_model() -> None:
    model = small_model()
    masks = magnitude_mask(model, 0.1)
    with pytest.raises(ModelError, match="different layers"):
        SparseEngine(model, [masks[0], masks[0]], 2)
    with pytest.raises(ModelError, match="different layers"):
        SparseEngine(model, magnitude_mask(small_model(), 0.1), 2)
    with pytest.raises(ModelError, match="nothing to train"):
        SparseEngine(model.requires_grad_(False), [], 2)


def test_gradients_never_hold_what_memory_held_before() -> None:
    """On 1 x 1 images most taps meet padding only; torch fills fresh memory with NaN here."""
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, 3, padding=1)
    (mask,) = magnitude_mask(nn.Sequential(layer), 0.05)
    torch.use_deterministic_algorithms(True)
    try:
        for size in (1, 2, 6):
            conv = masked_conv.MaskedConv(mask)
            samples = conv([torch.randn(3, 16, size, size)], torch.randn(3, 16, size, size))[mask]
            assert samples.isfinite().all()
            assert bool((samples == 0).all(dim=0).any()) == (size == 1)
    finally:
        torch.use_deterministic_algorithms(False)


class _OfTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(10, 3), nn.Conv2d(3, 5, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.conv(self.embedding(tokens).movedim(-1, 1)).mean((2, 3))


def test_integer_inputs_stay_integers() -> None:
    torch.manual_seed(0)
    model = freeze_convolutions(_OfTokens())
    x = torch.randint(0, 10, (6, 5, 5))
    assert_agrees(model, magnitude_mask(model, 0.4), x, torch.arange(6) % 5)


def test_the_check_leaves_gradients_of_others_alone(small) -> None:
    model, masks, x, y = small
    kept = model[7].weight.grad = torch.ones_like(model[7].weight)
    SparseEngine(model, masks, 4).clipped_gradient_sum(x, y, np.arange(4), 1.0)
    assert model[7].weight.grad is kept
    assert bool((kept == 1.0).all())
    assert masks[0].layer.weight.grad is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("density", [0.001, 0.05, 1.0])
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_engine_on_the_gpu_agrees_with_the_cpu(name: str, density: float) -> None:
    x, y = records(9, (3, 32, 32))
    sums = []
    for device in ("cpu", "cuda"):
        model = build_model(f"timm/{name}", info_of((3, 32, 32)), norm="group", seed=0)
        freeze_convolutions(model)
        engine = SparseEngine(model.to(device), magnitude_mask(model, density), 4)
        sums.append([s.cpu() for s in engine.clipped_gradient_sum(x, y, np.arange(9), 0.5)])
    assert relative_error(sums[1], [s.double() for s in sums[0]]) < 1e-2  # TF32 convolutions
