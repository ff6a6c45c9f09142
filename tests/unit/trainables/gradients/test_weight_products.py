"""Gradients per example as products: norms and weighted sums against the gradients themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradients import relative_error
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dpsweep.trainables.devices.numerics import full_float32
from dpsweep.trainables.gradients import weight_products
from dpsweep.trainables.gradients.clipping import TOLERANCE, clip_factors
from dpsweep.trainables.gradients.layer_gradients import add_clipped
from dpsweep.trainables.gradients.per_example import OpacusEngine
from dpsweep.trainables.gradients.weight_products import (
    MIN_ENTRIES,
    ConvProduct,
    LinearProduct,
    WeightProduct,
    _unfolded_by_views,
    has_product,
    unfolded,
)


def gradients_alone(layer: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return each example's gradient by the layer's weight, one backward pass each."""
    rows = []
    for one, its in zip(x, gradient):
        (found,) = torch.autograd.grad(layer(one[None]), layer.weight, its[None])
        rows.append(found.flatten())
    return torch.stack(rows)


def agree(product: WeightProduct, expected: torch.Tensor, factors: torch.Tensor) -> None:
    norms, rounding = product.norms()
    sizes = expected.norm(dim=1)
    assert torch.allclose(norms, sizes, rtol=1e-4, atol=1e-5)
    assert bool((rounding >= 0).all())
    whole = torch.zeros(expected.shape[1], dtype=torch.float64)
    product.add_to(whole, factors)
    # Of terms that cancel in the sum, it is their own size that rounding follows.
    error = (whole - (factors @ expected).double()).norm()
    assert float(error) < 1e-5 * float((factors * sizes).norm())
    assert relative_error([product.each()], [expected]) < 1e-5


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=100, deadline=None)
@given(
    kernel=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    size=st.tuples(st.integers(7, 9), st.integers(7, 9)),
    is_last=st.booleans(),
)
def test_inputs_of_a_gpu_are_unfolded_as_torch_does_to_the_last_bit(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
    size: tuple[int, int],
    is_last: bool,
) -> None:
    layer = nn.Conv2d(3, 2, kernel, stride, padding, dilation)
    x = torch.randn(5, 3, *size)[1:4]
    if is_last:
        x = x.contiguous(memory_format=torch.channels_last)
    expected = nn.functional.unfold(x, kernel, dilation, padding, stride)
    assert torch.equal(_unfolded_by_views(layer, x), expected)
    assert torch.equal(unfolded(layer, x), expected)
    assert expected.shape[2] == layer(x).flatten(2).shape[2]


def test_all_examples_of_a_gpu_are_unfolded_at_once() -> None:
    """One copy, however many there are; tensors without numbers stand in for a GPU's."""
    layer = nn.Conv2d(3, 2, 3, padding=1)
    with FakeTensorMode(), Counting() as counting:
        patches = unfolded(layer, torch.empty(64, 3, 8, 8, device="cuda"))
    assert patches.shape == (64, 27, 64)
    assert "im2col" not in counting.names
    assert counting.names.count("clone") == 1


class Counting(TorchDispatchMode):
    """Notes the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@settings(max_examples=40, deadline=None)
@example(out=1, into=1, kernel=1, stride=1, padding=0, dilation=1, size=6, seed=514)
@given(
    out=st.sampled_from([1, 3, 40]),
    into=st.sampled_from([1, 5, 30]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    size=st.integers(5, 9),
    seed=st.integers(0, 2**16),
)
def test_convolutions(
    out: int, into: int, kernel: int, stride: int, padding: int, dilation: int, size: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = nn.Conv2d(into, out, kernel, stride, padding=padding, dilation=dilation, bias=False)
    x = torch.randn(4, into, size, size + 1)
    gradient = torch.randn_like(layer(x))
    expected = gradients_alone(layer, x, gradient)
    agree(ConvProduct(layer, x, gradient), expected, torch.tensor([1.0, 0.5, 0.0, 2.0]))


@pytest.mark.parametrize("positions", [(), (1,), (3,), (2, 5), (200,)])
def test_linear_layers(positions: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 40, bias=False)
    x = torch.randn(5, *positions, 24)
    gradient = torch.randn(5, *positions, 40)
    expected = gradients_alone(layer, x, gradient)
    factors = torch.tensor([1.0, 0.5, 0.0, 2.0, 1e-3])
    agree(LinearProduct(layer, x, gradient), expected, factors)


@pytest.mark.parametrize(("positions", "entries"), [(2, 2 * 128), (200, 200 * 64)])
@pytest.mark.parametrize(("count", "size"), [(48, 24), (13, 13), (31, 1)])
def test_products_are_formed_of_as_many_examples_each_time(
    positions: int, entries: int, count: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel for what is left over may round otherwise than that for the others."""
    layer = nn.Linear(64, 64)
    monkeypatch.setattr(weight_products, "CPU_BLOCK_BYTES", 28 * 4 * entries)
    x, gradient = torch.randn(count, positions, 64), torch.randn(count, positions, 64)
    sizes = {len(g) for _, g, _ in LinearProduct(layer, x, gradient)._blocks()}
    assert sizes == {size}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["input", "gradient"])
def test_an_example_that_is_not_finite_adds_zero_and_hurts_no_other(bad: float, where: str) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 8, 3, bias=False)
    x, gradient = torch.randn(4, 3, 6, 6), torch.randn(4, 8, 4, 4)
    (x if where == "input" else gradient)[1, 0, 2, 2] = bad
    others = torch.tensor([0, 2, 3])
    expected = gradients_alone(layer, x[others], gradient[others])
    total = torch.zeros_like(layer.weight, dtype=torch.float64)
    add_clipped([total], [ConvProduct(layer, x, gradient)], 0.7, clip_factors)
    clipped = clip_factors(expected.norm(dim=1), 0.7) @ expected
    assert relative_error([total.flatten()], [clipped]) < 1e-5


@pytest.mark.parametrize("positions", [8, 400])
def test_to_leave_examples_out_does_not_change_how_others_round(
    positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA, where nobody looks whether there are any; inputs are slices of larger ones."""
    torch.manual_seed(0)
    x, gradient = torch.randn(5, positions, 50)[..., :40], torch.randn(5, positions, 60)[..., 30:]
    images = torch.randn(5, 9, 12, 12)[:, :8]
    by_output = torch.randn(5, 12, 12, 70).permute(0, 3, 1, 2)[:, :64]
    factors = torch.tensor([1.0, 0.5, 0.25, 2.0, 1e-3])
    products: list[WeightProduct] = [
        LinearProduct(nn.Linear(40, 30), x, gradient),
        ConvProduct(nn.Conv2d(8, 64, 3, padding=1), images, by_output),
        ConvProduct(nn.Conv2d(8, 64, 1), images, by_output),
    ]
    for product in products:
        totals = []
        for may_skip in (True, False):
            path = "dpsweep.trainables.gradients.weight_products.may_skip"
            monkeypatch.setattr(path, lambda marked, may=may_skip: may)
            entries = product.each().shape[1]
            totals.append(torch.zeros(entries, dtype=torch.float64))
            product.add_to(totals[-1], factors)
        assert torch.equal(*totals)
        assert float(totals[0].norm()) > 0


@pytest.mark.parametrize(("size", "is_held"), [(32, True), (4, False)])
def test_gradients_no_larger_than_what_they_are_formed_of_are_held(
    size: int, is_held: bool
) -> None:
    """64 x 32 x 9 entries against 96 x 32 x 32 of inputs and outputs, or 96 x 4 x 4."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1), nn.Flatten()
    )
    engine = OpacusEngine(model, 2)
    x, y = torch.randn(2, 3, size, size), torch.arange(2)
    samples = engine._per_example_gradients(x, y)
    large = samples[2]
    assert isinstance(large, torch.Tensor) == is_held
    (expected,) = (
        torch.stack(row)
        for row in zip(
            *(
                torch.autograd.grad(
                    nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]),
                    [model[1].weight],
                )
                for i in range(2)
            )
        )
    )
    actual = large if isinstance(large, torch.Tensor) else large.each()
    assert relative_error([actual], [expected.flatten(1)]) < 1e-5


def test_terms_that_cancel_cannot_bring_more_than_the_bound() -> None:
    """Two positions with opposite gradients of 1e12: what is left of them is rounding alone."""
    layer = nn.Linear(64, 64, bias=False)
    g, a = 1e6 * torch.randn(64), 1e6 * torch.randn(64)
    x = torch.stack([a, a * (1 + 1e-7)])[None].expand(1, 2, 64).contiguous()
    gradient = torch.stack([g, -g])[None]
    product = LinearProduct(layer, x, gradient)
    norms, rounding = product.norms()
    assert float(rounding[0]) > float(norms[0])
    total = torch.zeros_like(layer.weight, dtype=torch.float64)
    add_clipped([total], [product], 1.0, clip_factors)
    assert float(total.norm()) <= 1.0


@pytest.mark.parametrize("positions", [256, 4096, 65_536])
def test_rounding_over_many_positions_stays_within_the_tolerance(positions: int) -> None:
    """Half of the positions cancel the other half but for a part in a thousand."""
    layer = nn.Linear(1, 1, bias=False)
    for excess in (1.0, 1.002, 1.004):
        x = torch.ones(1, positions, 1)
        gradient = torch.ones(1, positions, 1)
        gradient[0, positions // 2 :] = -excess
        for product in (
            LinearProduct(layer, x, gradient),
            ConvProduct(
                nn.Conv2d(1, 1, 1, bias=False),
                x.reshape(1, 1, -1, 16),
                gradient.reshape(1, 1, -1, 16),
            ),
        ):
            total = torch.zeros(1, 1, dtype=torch.float64)
            bound = 1e-3
            add_clipped([total], [product], bound, clip_factors)
            assert float(total.norm()) <= bound * (1 + TOLERANCE)


@pytest.mark.parametrize("bound", [1e-4, 1.0])
def test_a_tiny_gradient_beside_a_huge_input_is_not_taken_for_zero(bound: float) -> None:
    """In float32 the squares of 1e-24 are zero; 1e-24 times 1e19 is not small."""
    layer = nn.Linear(64, 64, bias=False)
    x = torch.full((1, 64), 2e18)
    gradient = torch.full((1, 64), 1e-23) * (1e4 if bound == 1.0 else 1)
    total = torch.zeros_like(layer.weight, dtype=torch.float64)
    add_clipped([total], [LinearProduct(layer, x, gradient)], bound, clip_factors)
    assert 0 < float(total.double().norm()) <= bound * (1 + TOLERANCE)


@pytest.mark.parametrize("chunk", [2, 7])
def test_the_engine_sums_what_a_loop_sums(chunk: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 40, 3, stride=2), nn.GroupNorm(4, 40),
        nn.ReLU(), nn.Flatten(), nn.Linear(40 * 9, 64), nn.ReLU(), nn.Linear(64, 3),
    )  # fmt: skip
    assert sum(has_product(layer) for layer in model) == 2
    x, y = torch.randn(9, 1, 8, 8), torch.randint(0, 3, (9,))
    rows = np.array([0, 2, 3, 5, 8])
    engine = OpacusEngine(model, chunk)
    sums = engine.clipped_gradient_sum(x, y, rows, 0.5)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    for row in rows:
        loss = nn.functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
        found = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([g.flatten() for g in found]).norm()
        for total, g in zip(expected, found):
            total += g * min(1.0, 0.5 / float(norm))
    assert relative_error(sums, expected) < 1e-5


def test_a_weight_that_is_used_twice() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(70, 70)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(70, 2))
    assert has_product(shared)
    x, y = torch.randn(4, 70), torch.randint(0, 2, (4,))
    sums = OpacusEngine(model, 4).clipped_gradient_sum(x, y, np.arange(4), 1e6)
    loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
    assert relative_error(sums, list(torch.autograd.grad(loss, list(model.parameters())))) < 1e-5


def test_which_layers_are_products() -> None:
    large = MIN_ENTRIES
    assert has_product(nn.Linear(large, 1))
    assert not has_product(nn.Linear(large - 1, 1))
    assert not has_product(nn.Conv2d(64, 64, 3, padding="same"))
    assert not has_product(nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect"))
    assert not has_product(nn.Conv2d(64, 64, 3).requires_grad_(False))

    class Scaled(nn.Linear):
        pass

    assert not has_product(Scaled(large, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensorfloat32_adds_nothing_to_what_an_example_adds() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 64, 1, bias=False).cuda()
    x = torch.randn(1, 64, 1, 1).cuda().expand(1, 64, 1, 2).contiguous()
    gradient = torch.randn(1, 64, 1, 1).cuda().expand(1, 64, 1, 2).contiguous()
    gradient[..., 1] *= -1.001
    total = torch.zeros_like(layer.weight, dtype=torch.float64)
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        with full_float32():
            add_clipped([total], [ConvProduct(layer, x, gradient)], 0.05, clip_factors)
    finally:
        products.fp32_precision = before
    assert float(total.double().norm()) <= 0.05 * (1 + TOLERANCE)
