"""Layers that have no rule of Opacus', or are used in ways of their own, against plain loops."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from gradients import relative_error
from torch import nn
from torch.nn.utils import parametrizations

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.gradients.per_example import OpacusEngine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import magnitude_mask

ROWS = np.arange(7)


class Whole(nn.Module):
    """Something, and a linear layer behind it."""

    def __init__(self, first: nn.Module, size: int = 5) -> None:
        super().__init__()
        self.first = first
        self.out = nn.Linear(size, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.first(x)).flatten(2).mean(2))


class Vectors(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.first(x)))


class Pairs(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.first(x[:, :3], x[:, 3:])))


class NamedPairs(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.first(input2=x[:, 3:], input1=x[:, :3])))


class Steps(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 5)
        for step in range(x.shape[1]):
            state = self.first(x[:, step], state)
        return self.out(state)


class NamedSteps(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 5)
        for step in range(x.shape[1]):
            state = self.first(hx=state, input=x[:, step])
        return self.out(state)


class Named(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(input=torch.tanh(self.first(input=x)).flatten(2).mean(2))


class Scaled(nn.Module):
    """A single number that is used twice, in a module whose linear layer has a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = Factor()
        self.out = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor(self.out(torch.tanh(self.factor(x))))


class Factor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value


class Untouched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(6))

    def forward(self) -> torch.Tensor:
        return self.value


class Shifted(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x + self.first())


def clipped_sum(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float
) -> list[torch.Tensor]:
    """The definition: one example at a time, in float64."""
    model = copy.deepcopy(model).double()
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    for row in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[row : row + 1].double()), y[row : row + 1])
        gradients = torch.autograd.grad(loss, parameters)
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        for total, gradient in zip(sums, gradients):
            total += gradient * min(1.0, bound / norm)
    return sums


def assert_as_defined(model: nn.Module, shape: tuple[int, ...], kind: str) -> None:
    x, y = torch.randn(7, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(7) % 3
    expected = clipped_sum(model, x, y, 0.5)
    engine = OpacusEngine(model, 3) if kind == "opacus" else SparseEngine(model, [], 3)
    actual = engine.clipped_gradient_sum(x, y, ROWS, 0.5)
    assert [total.shape for total in actual] == [total.shape for total in expected]
    assert relative_error(actual, expected) < 1e-5


@pytest.mark.parametrize("kind", ["opacus", "sparse"])
def test_norms_without_a_bias(kind: str) -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm((4, 6), bias=False)
    nn.init.normal_(norm.weight)
    assert_as_defined(Whole(nn.Sequential(nn.Conv2d(2, 5, 3), norm)), (2, 6, 8), kind)


@pytest.mark.parametrize("kind", ["opacus", "sparse"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # nn.Bilinear under vmap
def test_layers_of_several_inputs(kind: str) -> None:
    torch.manual_seed(0)
    assert_as_defined(Pairs(nn.Bilinear(3, 3, 5)), (6,), kind)
    assert_as_defined(Steps(nn.GRUCell(4, 5)), (6, 4), kind)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # nn.Bilinear under vmap
def test_layers_that_are_called_by_name() -> None:
    torch.manual_seed(0)
    assert_as_defined(Named(nn.Conv2d(2, 5, 3)), (2, 6, 8), "opacus")
    assert_as_defined(NamedPairs(nn.Bilinear(3, 3, 5)), (6,), "opacus")
    assert_as_defined(NamedSteps(nn.GRUCell(4, 5)), (6, 4), "opacus")


@pytest.mark.parametrize("kind", ["opacus", "sparse"])
def test_a_parameter_that_is_a_single_number(kind: str) -> None:
    torch.manual_seed(0)
    assert_as_defined(Scaled(), (6,), kind)


@pytest.mark.parametrize("bias", [True, False])
def test_weights_that_are_computed_from_others(bias: bool) -> None:
    torch.manual_seed(0)
    conv = parametrizations.weight_norm(nn.Conv2d(2, 5, 3, bias=bias))
    assert_as_defined(Whole(conv), (2, 6, 8), "opacus")
    linear = parametrizations.weight_norm(nn.Linear(6, 5, bias=bias))
    assert_as_defined(Vectors(linear), (6,), "opacus")


def test_a_layer_without_an_input_is_named() -> None:
    engine = OpacusEngine(Shifted(Untouched(), 6), 3)
    with pytest.raises(ModelError, match="a Untouched layer with parameters is called without"):
        engine.clipped_gradient_sum(torch.randn(3, 6), torch.arange(3), np.arange(0), 1.0)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "engine", [OpacusEngine, lambda model, rows: SparseEngine(model, [], rows)]
)
def test_parameters_of_another_type_are_named(kind: torch.dtype, engine: type) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.out = nn.Linear(6, 5).to(kind), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.body(x.to(kind)).float())

    model = Mixed()
    x, y, none = torch.randn(3, 6), torch.arange(3), np.arange(0)
    said = str(kind).removeprefix("torch.")
    with pytest.raises(ModelError, match=rf"parameter body\.weight is {said}"):
        engine(model, 3).clipped_gradient_sum(x, y, none, 1.0)
    model = Mixed()
    model.body.requires_grad_(False)  # what is frozen may be of any type
    sums = engine(model, 3).clipped_gradient_sum(x, y, none, 1.0)
    assert [total.shape for total in sums] == [(3, 5), (3,)]


def test_masked_weights_of_another_type_are_named() -> None:
    model = Whole(nn.Conv2d(2, 5, 3).bfloat16())
    masks = magnitude_mask(model, 0.5, scope="layer")
    engine = SparseEngine(model, masks, 3)
    with pytest.raises(ModelError, match=r"parameter first\.weight is bfloat16"):
        engine.clipped_gradient_sum(torch.randn(3, 2, 6, 8), torch.arange(3), np.arange(0), 1.0)


class Times(Factor):
    def forward(self, x: torch.Tensor, by: float) -> torch.Tensor:
        return by * super().forward(x)


class Doubled(Whole):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.first(x, 2.0))


def test_a_layer_that_takes_more_than_tensors_is_refused() -> None:
    engine = OpacusEngine(Doubled(Times(), 6), 3)
    with pytest.raises(ModelError, match="missing 1 required positional argument: 'by'"):
        engine.clipped_gradient_sum(torch.randn(3, 6), torch.arange(3), np.arange(0), 1.0)


class Halves(nn.Module):
    """Its convolution sees two rows of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.conv(x.reshape(2 * len(x), 2, 3, 4)).flatten(1)
        return self.out(rows.reshape(len(x), -1, 4).mean(1))


def test_a_run_forward_tells_what_has_no_row_for_each_example() -> None:
    def engines(model: nn.Module) -> list[OpacusEngine | SparseEngine]:
        sparse = copy.deepcopy(model)
        return [
            SparseEngine(sparse, magnitude_mask(sparse, 0.5, scope="layer"), 1),
            OpacusEngine(model, 1),
        ]

    for engine in engines(Halves()):
        with pytest.raises(ModelError, match="no gradient per example"):
            engine.try_forward(torch.zeros(2, 2, 3, 8))
    for engine in engines(Whole(nn.Conv2d(2, 5, 3))):
        engine.try_forward(torch.zeros(2, 2, 6, 8))


class Pool(nn.Module):
    """Attention by one query, which a bias and a mask of the positions may change."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(6))

    def forward(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        **more: torch.Tensor,
    ) -> torch.Tensor:
        scores = x @ self.query
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        if "again" in more:
            scores = scores * more["again"]
        return (scores.softmax(1)[..., None] * x).sum(1)


class Pooled(nn.Module):
    """Positions of zeros are masked: of random records, which the check looks at, there are none.

    Args:
        call: From the pool, records, mask and bias to the pool's output.
    """

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.pool, self.out, self.call = Pool(), nn.Linear(6, 3), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = (x.abs().sum(-1) > 0).to(x.dtype)
        return self.out(self.call(self.pool, x, mask, x.mean(-1)))


def padded() -> torch.Tensor:
    x = torch.randn(7, 5, 6, generator=torch.Generator().manual_seed(1))
    x[:, 2:] = 0
    return x


@pytest.mark.parametrize(
    "call",
    [
        lambda pool, x, mask, bias: pool(x, bias, mask),
        lambda pool, x, mask, bias: pool(x, bias, mask=mask),
        lambda pool, x, mask, bias: pool(mask=mask, bias=bias, x=x),
        lambda pool, x, mask, bias: pool(x, bias=bias, mask=None),
    ],
)
def test_tensors_by_name_keep_their_places(call: Any) -> None:
    torch.manual_seed(0)
    model, x, y = Pooled(call), padded(), torch.arange(7) % 3
    expected = clipped_sum(model, x, y, 0.5)
    actual = OpacusEngine(model, 3).clipped_gradient_sum(x, y, ROWS, 0.5)
    assert relative_error(actual, expected) < 1e-5


@pytest.mark.parametrize(
    "call",
    [
        lambda pool, x, mask, bias: pool(x, mask=mask),
        lambda pool, x, mask, bias: pool(x, None, mask),
        lambda pool, x, mask, bias: pool(x, None, mask=mask),
        lambda pool, x, mask, bias: pool(x, bias, again=mask),
    ],
)
def test_tensors_that_would_change_their_places_are_refused(call: Any) -> None:
    torch.manual_seed(0)
    engine = OpacusEngine(Pooled(call), 3)
    with pytest.raises(ModelError, match="a Pool layer is called with tensors that are not the"):
        engine.clipped_gradient_sum(padded(), torch.arange(7) % 3, ROWS, 0.5)


@pytest.mark.parametrize("kind", ["opacus", "sparse"])
def test_a_run_forward_keeps_nothing_for_a_run_backward(kind: str) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    engine = OpacusEngine(model, 1) if kind == "opacus" else SparseEngine(model, [], 1)
    kept: weakref.WeakSet[Kept] = weakref.WeakSet()
    counts: list[int] = []

    def keep(tensor: torch.Tensor) -> Kept:
        saved = Kept(tensor.detach())
        kept.add(saved)
        return saved

    model[4].register_forward_pre_hook(lambda layer, args: counts.append(len(kept)))
    model[4].register_forward_hook(lambda layer, args, output: counts.append(len(kept)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved.tensor):
        engine.try_forward(torch.zeros(2, 6))
    assert counts == [0, 0]


class Kept:
    """A tensor that autograd has saved."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
