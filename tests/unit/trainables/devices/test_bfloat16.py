"""Networks in bfloat16: near float32, within the bound, and one example's gradient its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from gradients import relative_error
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.devices.numerics import BFLOAT16_EPSILON
from dpsweep.trainables.devices.places import (
    refuse_moving,
    refuse_products_over_positions,
    row_codes,
)
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.canaries import clipped_gradients
from dpsweep.trainables.gradients.clipping import EXAMPLE_TOLERANCE
from dpsweep.trainables.gradients.per_example import OpacusEngine, make_engine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import magnitude_mask
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import head_layers, on_device

DEVICES = [
    pytest.param("cpu"),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]
CHUNK = 4


def network(name: str, *shape: int, device: str = "cpu") -> nn.Module:
    info = DatasetInfo("r", shape, 10, 256, 0, 0, 0, tuple("0123456789"))
    return on_device(build_model(name, info, norm="group", seed=0), device)


def opacus(model: nn.Module, precision: str) -> Any:
    return OpacusEngine(model, CHUNK, precision=precision)


def bias(model: nn.Module, precision: str) -> Any:
    head = head_layers(model)
    for name, parameter in model.named_parameters():
        layer, _, own = name.rpartition(".")
        parameter.requires_grad_(own == "bias" or layer in head)
    return BiasEngine(model, CHUNK, precision=precision)


def sparse(model: nn.Module, precision: str) -> Any:
    return SparseEngine(model, magnitude_mask(model, 0.1), CHUNK, precision=precision)


CASES = [
    pytest.param(opacus, ("tanh_cnn", 1, 28, 28), id="tanh_cnn"),
    pytest.param(opacus, ("small_resnet", 3, 32, 32), id="small_resnet"),
    pytest.param(opacus, ("timm/resnet18", 3, 32, 32), id="resnet18", marks=pytest.mark.slow),
    pytest.param(bias, ("tanh_cnn", 1, 28, 28), id="biases of tanh_cnn"),
    pytest.param(
        bias, ("timm/resnet18", 3, 32, 32), id="biases of resnet18", marks=pytest.mark.slow
    ),
    pytest.param(sparse, ("small_resnet", 3, 32, 32), id="sparse small_resnet"),
    pytest.param(
        sparse, ("timm/resnet18", 3, 32, 32), id="sparse resnet18", marks=pytest.mark.slow
    ),
]
FEW = [CASES[0], CASES[1], CASES[3], CASES[5]]
#: Products over positions: refused on CUDA.
VITS = [
    pytest.param(opacus, ("timm/test_vit", 3, 160, 160), id="vit"),
    pytest.param(bias, ("timm/test_vit", 3, 160, 160), id="biases of vit"),
]
Make = Callable[[nn.Module, str], Any]


def records(shape: tuple[int, ...], count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(count) % 10


def num_roundings(model: nn.Module, x: torch.Tensor) -> int:
    """Count what may round on the way from an input to a gradient: layers there and back, weights.

    The result of a layer is rounded, and so is the gradient by its input, and a weight each time it
    is used: for the output, and for that gradient. Sums of residuals are no layers: one for each.
    """
    calls = 0
    hooks = []
    for module in model.modules():
        if any(module.children()):
            continue

        def count(layer: nn.Module, *_: object) -> None:
            nonlocal calls
            calls += 3 + 2 * any(True for _ in layer.parameters())

        hooks.append(module.register_forward_hook(count))
    model(x)
    for hook in hooks:
        hook.remove()
    return calls + 1


def on_each(devices: list[Any], cases: list[Any]) -> list[Any]:
    """Return cases (make, case, device)."""
    return [
        pytest.param(
            *case.values, device.values[0], id=f"{case.id}-{device.values[0]}",
            marks=[*case.marks, *device.marks],
        )
        for case in cases
        for device in devices
    ]  # fmt: skip


EVERYWHERE = [*on_each(DEVICES, CASES), *on_each(DEVICES[:1], VITS)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("make", "case", "device"), EVERYWHERE)
def test_gradients_are_near_those_in_float32(
    make: Make, case: tuple[str, int, int, int], device: str
) -> None:
    """Each rounding moves a gradient by 2^-8 of it, were no operation worse than the identity."""
    name, *shape = case
    x, y = records(tuple(shape))
    rows = np.arange(len(x))
    model = network(name, *shape, device=device)
    bound = num_roundings(model, x[:1].to(device)) * BFLOAT16_EPSILON
    exact = clipped_gradients(make(model, "float32"), x, y, rows, 1e9)
    model = network(name, *shape, device=device)
    rounded = clipped_gradients(make(model, "bfloat16"), x, y, rows, 1e9)
    error = (rounded - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(error.min()) > 0
    assert float(error.max()) < min(bound, 0.5)


HOSTILE = [float("nan"), float("inf"), -float("inf"), 3e38, 1e30, 1e19, 1e-19, 1e-30, 1e-45, 0.0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("make", "case"), FEW)
def test_an_example_adds_at_most_the_bound_whatever_its_values(
    make: Make, case: tuple[str, int, int, int], device: str
) -> None:
    name, *shape = case
    x, y = records(tuple(shape), 3)
    hostile = torch.stack([torch.full_like(x[0], value) for value in HOSTILE])
    hostile[:, :, ::2] *= torch.where(hostile[:, :, ::2].isfinite(), 0.5, 1.0)
    x, y = torch.cat([x, hostile]).to(device), torch.arange(3 + len(HOSTILE)).to(device) % 10
    engine = make(network(name, *shape, device=device), "bfloat16")
    for bound in (1e-3, 1.0):
        three = engine.clipped_gradient_sum(x, y, np.arange(3), bound)
        for row, value in enumerate(HOSTILE, start=3):
            alone = engine.clipped_gradient_sum(x, y, np.array([row]), bound)
            size = float(torch.cat([total.flatten() for total in alone]).norm())
            assert size <= bound * (1 + EXAMPLE_TOLERANCE)
            if not np.isfinite(value):
                assert size == 0
            together = engine.clipped_gradient_sum(x, y, np.array([0, 1, 2, row]), bound)
            parts = zip(together, three, alone)
            moved = torch.cat([(t - before - one).flatten() for t, before, one in parts])
            assert float(moved.norm()) <= 1e-12


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("make", "case", "device"), EVERYWHERE)
def test_the_place_in_a_batch_does_not_change_what_an_example_adds(
    make: Make, case: tuple[str, int, int, int], device: str
) -> None:
    name, *shape = case
    x, y = records(tuple(shape))
    engine = make(network(name, *shape, device=device), "bfloat16")
    rows = np.arange(len(x))
    expected = engine.clipped_gradient_sum(x, y, rows, 1.0)
    for order in (np.roll(rows, 1), rows[::-1].copy(), np.random.default_rng(0).permutation(rows)):
        actual = engine.clipped_gradient_sum(x, y, order, 1.0)
        assert relative_error(actual, expected) <= 1e-13


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("make", "case"), VITS)
def test_products_over_positions_are_refused_on_a_gpu(
    make: Make, case: tuple[str, int, int, int]
) -> None:
    name, *shape = case
    x, y = records(tuple(shape))
    engine = make(network(name, *shape, device="cuda"), "bfloat16")
    with pytest.raises(ModelError, match="in bfloat16 on a GPU a Linear layer"):
        engine.clipped_gradient_sum(x, y, np.arange(len(x)), 1.0)


class Named(nn.Module):
    """Attention that is given its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(query=x, key=x, value=x)[0]


def test_products_over_positions_are_seen_by_what_layers_are_given() -> None:
    from transformers.pytorch_utils import Conv1D

    tokens, rows = torch.randn(2, 3, 4), torch.randn(2, 4)
    for layer in (nn.Linear(4, 5), Conv1D(5, 4), Named()):
        with pytest.raises(ModelError, match="on a GPU a"):
            refuse_products_over_positions(layer, layer, tokens)
        assert not any(module._forward_pre_hooks for module in layer.modules())
    head = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    refuse_products_over_positions(head, head, rows)
    words = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4))
    refuse_products_over_positions(words, words, torch.ones(2, 3, dtype=torch.int64))
    images = network("small_resnet", 3, 32, 32)
    refuse_products_over_positions(images, images, torch.randn(2, 3, 32, 32))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("make", "case"), FEW)
def test_the_default_is_float32_to_the_last_bit(
    make: Make, case: tuple[str, int, int, int]
) -> None:
    name, *shape = case
    x, y = records(tuple(shape))
    engines = [make(network(name, *shape), "float32")]
    model = network(name, *shape)
    if make is opacus:
        engines.append(OpacusEngine(model, CHUNK))
    elif make is bias:
        bias(model, "float32")
        engines.append(BiasEngine(model, CHUNK))
    else:
        engines.append(SparseEngine(model, magnitude_mask(model, 0.1), CHUNK))
    one, two = (engine.clipped_gradient_sum(x, y, np.arange(8), 1.0) for engine in engines)
    assert all(map(torch.equal, one, two))


def test_a_linear_network_has_its_closed_form_in_float32_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    assert isinstance(make_engine(model, 4, precision="bfloat16"), OpacusEngine)
    assert not isinstance(make_engine(model, 4), OpacusEngine)


# --- What is refused ---------------------------------------------------------------------------


class InBfloat16(nn.Module):
    """The identity, but for numbers in bfloat16."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._change(x) if x.dtype == torch.bfloat16 else x


def by_place(x: torch.Tensor) -> torch.Tensor:
    odd = (torch.arange(len(x)) % 2).view(-1, *[1] * (x.dim() - 1))
    return x * (1 + odd / 128).to(x.dtype)


def by_neighbour(x: torch.Tensor) -> torch.Tensor:
    """Round coarsely beside a row that is large, as a kernel with a scale for each block does."""
    is_large = x.detach().abs().amax() > 100
    return torch.where(is_large, x * (1 + 1 / 128), x)


def last_place(x: torch.Tensor) -> torch.Tensor:
    factors = torch.ones(len(x), 1)
    factors[-1] = 1 + 1 / 128
    return x * factors.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)


@pytest.mark.parametrize("change", [by_place, by_neighbour, last_place])
@pytest.mark.parametrize("kind", ["per example", "biases", "sparse"])
def test_a_network_whose_rows_round_by_their_place_is_refused(
    change: Callable[[torch.Tensor], torch.Tensor], kind: str
) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3), InBfloat16(change), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)
        made = nn.Sequential(*layers)
        if kind == "biases":
            made[0].weight.requires_grad_(False)
        return made

    makes: dict[str, Callable[[str], Any]] = {
        "per example": lambda precision: OpacusEngine(model(), 16, precision=precision),
        "biases": lambda precision: BiasEngine(model(), 16, precision=precision),
        "sparse": lambda precision: SparseEngine(model(), [], 16, precision=precision),
    }
    x, y = torch.randn(5, 1, 8, 8), torch.zeros(5, dtype=torch.int64)
    makes[kind]("float32").clipped_gradient_sum(x, y, np.arange(5), 1.0)
    with pytest.raises(ModelError, match="depends on its place among others") as caught:
        makes[kind]("bfloat16").clipped_gradient_sum(x, y, np.arange(0), 1.0)
    assert caught.value.fix == "model.precision: float32"


class Doubled(nn.Linear):
    """A layer that does something else in bfloat16 than in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x if x.dtype == torch.bfloat16 else x)


def test_a_layer_that_is_another_function_in_bfloat16_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Doubled(8, 3))
    x, y = torch.randn(5, 8), torch.zeros(5, dtype=torch.int64)
    OpacusEngine(model, 4).clipped_gradient_sum(x, y, np.arange(5), 1.0)
    with pytest.raises(ModelError, match=r"in bfloat16 the gradients per example of .*1\.") as seen:
        OpacusEngine(model, 4, precision="bfloat16").clipped_gradient_sum(x, y, np.arange(5), 1.0)
    assert seen.value.fix == "model.precision: float32"


def test_codes_tell_rows_apart_by_a_single_bit() -> None:
    rows = torch.randn(4, 40_000)
    parts = [rows, rows[:, :3].bfloat16(), rows[:, :0]]
    codes = row_codes(parts)
    assert codes.shape == (3, 4)
    assert torch.equal(row_codes([part.flip(0) for part in parts]), codes.flip(1))
    assert len(set(codes[0].tolist())) == 4
    for column in (0, 16_384, 39_999):
        other = rows.clone()
        other[2, column] = torch.nextafter(other[2, column], torch.tensor(9.0))
        assert (row_codes([other])[0] != codes[0]).tolist() == [False, False, True, False]
    signs = torch.tensor([[0.0, 1.0], [-0.0, 1.0]])
    assert len(set(row_codes([signs])[0].tolist())) == 1


def test_a_row_is_tried_at_every_end_and_beside_every_kind() -> None:
    """Each batch that a row is tried in is needed: something moves in that one alone."""
    x, others = torch.randn(16, 3), torch.randn(16, 3)
    refuse_moving(lambda rows: [rows * 2], x, others)

    def moving(is_moved: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        def parts(rows: torch.Tensor) -> Iterable[torch.Tensor]:
            return [torch.where(is_moved(rows), rows * (1 + 2.0**-23), rows)]

        return parts

    place = torch.arange(16)[:, None]
    for case in (
        lambda rows: place == 0,
        lambda rows: place == 15,
        lambda rows: place % 2 == 1,
        lambda rows: (rows.abs().sum(dim=1) == 0).any() & (place >= 0),
        lambda rows: (rows.abs() > 100).any() & (place >= 0),
        lambda rows: (rows[:-1] == 0).all() & (place == 15),
    ):
        with pytest.raises(ModelError, match="place among others"):
            refuse_moving(moving(case), x, others)
