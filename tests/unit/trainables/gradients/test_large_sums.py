"""Sums over many examples: one example less changes them by what it added, whatever the others are.

The records here are made to break sums in float32, after Casacuberta et al. 2022
(https://arxiv.org/abs/2207.10635): half of every chunk is long and half is one part in 2^24 of
their sum. The short half is lost where it comes after the long one in its chunk, and kept where the
chunks begin one record later.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.devices.places import filled
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.clipping import (
    EXAMPLE_TOLERANCE,
    TOLERANCE,
    clip_factors,
    noise_margin,
)
from dpsweep.trainables.gradients.layer_gradients import add_clipped
from dpsweep.trainables.gradients.linear_head import LinearHeadEngine, ManyHeadsEngine, cpu_block
from dpsweep.trainables.gradients.per_example import GradientEngine, OpacusEngine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sums import chunk_size
from dpsweep.trainables.gradients.weight_products import LinearProduct
from dpsweep.trainables.methods.adamix.noisy_gd import HeadRecords
from dpsweep.trainables.networks.build import build_model

FEATURES = 16
#: A little over the norm of every gradient without bias, and with it.
C, C_BIASED = 0.7072, 1.00001
Sums = list[torch.Tensor]


def sizes(count: int, chunk: int) -> torch.Tensor:
    """Return 1 for long records, and what is half of the last place of their sum for short ones."""
    place = torch.arange(count) % chunk
    return torch.where(place < chunk // 2, 1.0, chunk // 2 * 2.0**-24)


def made_for_chunks(count: int, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return records of a head of zeros; the first adds the opposite of what long ones add."""
    x = 0.25 * sizes(count, chunk)[:, None].expand(count, FEATURES).contiguous()
    y = torch.zeros(count, dtype=torch.int64)
    y[0] = 1
    return x, y


def zero_head(*, bias: bool = True) -> nn.Linear:
    head = nn.Linear(FEATURES, 2, bias=bias)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head


def distance(one: Sums, other: Sums) -> float:
    return float(torch.cat([(a - b).flatten() for a, b in zip(one, other)]).norm())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", [256, 512])
def test_a_record_less_of_400_000_in_a_full_batch(chunk: int) -> None:
    x, y = made_for_chunks(400_000, chunk)
    sums = [
        HeadRecords(x[rows], y[rows], device="cpu").gradient_sum(torch.zeros(2, FEATURES), C)[0]
        for rows in (slice(0, None), slice(1, None))
    ]
    assert sums[0].dtype == torch.float64
    assert 0.999 * C < distance(sums[:1], sums[1:]) <= 1.0001 * C


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "count", "chunk"),
    [
        pytest.param(LinearHeadEngine, 200_000, cpu_block(FEATURES), id="linear head"),
        pytest.param(lambda head: ManyHeadsEngine([head]), 100_000, 512, id="many heads"),
        pytest.param(lambda head: OpacusEngine(head, 64), 20_000, 64, id="per example, 64"),
        pytest.param(lambda head: OpacusEngine(head, 512), 20_000, 512, id="per example, 512"),
        pytest.param(lambda head: OpacusEngine(head, 2048), 20_000, 2048, id="per example, 2048"),
        pytest.param(lambda head: BiasEngine(head, 2048), 20_000, 2048, id="biases"),
        pytest.param(lambda head: SparseEngine(head, [], 2048), 20_000, 2048, id="sparse"),
    ],
)
def test_a_record_less_of_many(
    make: Callable[[nn.Linear], GradientEngine], count: int, chunk: int
) -> None:
    x, y = made_for_chunks(count, chunk)
    engine = make(zero_head())
    everyone, others = (
        engine.clipped_gradient_sum(x, y, rows, C_BIASED)
        for rows in (np.arange(count), np.arange(1, count))
    )
    assert {total.dtype for total in everyone} == {torch.float64}
    assert 0.999 * C_BIASED < distance(everyone, others) <= 1.0001 * C_BIASED


@pytest.mark.parametrize(
    ("positions", "chunk"), [(1, 128), (4, 32), (16, 64)], ids=["pair", "at once", "formed"]
)
def test_a_record_less_of_a_large_weight(positions: int, chunk: int) -> None:
    """Gradients of norm 1 by a weight of 64 x 64, all of it at one position of several."""
    count = 8192
    layer = nn.Linear(64, 64, bias=False)
    gradient, x = torch.zeros(count, positions, 64), torch.zeros(count, positions, 64)
    gradient[:, 0] = sizes(count, chunk)[:, None] / 8
    gradient[0] *= -1
    x[:, 0] = 1 / 8

    def total(first: int) -> torch.Tensor:
        found = torch.zeros(64, 64, dtype=torch.float64)
        for g, a in zip(gradient[first:].split(chunk), x[first:].split(chunk)):
            add_clipped([found], [LinearProduct(layer, a, g)], 1.00001, clip_factors)
        return found

    assert 0.999 < distance([total(0)], [total(1)]) <= 1.0001


def test_examples_whose_terms_cancel_cannot_add_up_to_more() -> None:
    """Terms of 1e4 C that cancel would round by parts of themselves, example after example."""
    layer, count = nn.Linear(64, 64, bias=False), 256
    torch.manual_seed(0)
    g, a = torch.randn(count, 64), torch.randn(count, 64)
    gradient = torch.stack([g, -g], dim=1)
    x = torch.stack([a, a + 1e-4 * torch.randn(count, 64)], dim=1)
    terms = (gradient.norm(dim=2) * x.norm(dim=2)).sum(dim=1)
    bound = float((gradient.transpose(1, 2) @ x).flatten(1).norm(dim=1).max())
    norms, rounding = LinearProduct(layer, x, gradient).norms()
    scales = clip_factors(norms + rounding, bound)
    assert float((scales * terms).max()) <= 513 * bound < float(terms.max()) / 2


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@example(count=14, physical=1, other=2, seed=31)
@given(
    count=st.integers(1, 60),
    physical=st.integers(1, 70),
    other=st.integers(1, 70),
    seed=st.integers(0, 2**16),
)
def test_the_size_of_chunks_changes_nothing_but_rounding(
    count: int, physical: int, other: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, FEATURES, generator=generator)
    x *= 10.0 ** torch.randint(-3, 4, (60, 1), generator=generator)
    y = torch.randint(0, 2, (60,), generator=generator)
    rows = np.random.default_rng(seed).permutation(60)[:count]
    for kind in (OpacusEngine, BiasEngine):
        torch.manual_seed(seed)
        head, unsure = nn.Linear(FEATURES, 2), nn.Linear(FEATURES, 2)
        # Of a softmax near 1 an epsilon of float32 is much of what the gradient is made of.
        unsure.weight.data *= 1e-4
        sums = [
            kind(unsure, size).clipped_gradient_sum(x, y, rows, 0.1) for size in (physical, other)
        ]
        # Other sizes may round an example's own gradient otherwise, by 1e-6 of its norm.
        assert distance(*sums) <= 1e-6 * 0.1 * count
        for model in (head, unsure):
            whole = kind(model, physical).clipped_gradient_sum(x, y, rows, 0.1)
            without = kind(model, physical).clipped_gradient_sum(x, y, rows[1:], 0.1)
            assert distance(whole, without) <= 0.1 * (1 + TOLERANCE)


def small_network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 4)
    )


def on_a_kink(model: nn.Sequential, x: torch.Tensor) -> bool:
    """Set biases so that a record alone is on the other side of a ReLU than beside its copy."""
    conv = model[0]
    assert isinstance(conv, nn.Conv2d)
    assert conv.bias is not None
    pair = torch.cat([x, x])
    with torch.no_grad():
        conv.bias.zero_()
        for place in (conv(x)[0] != conv(pair)[0]).nonzero()[:200]:
            channel = int(place[0])
            for value in (conv(x)[0][tuple(place)], conv(pair)[0][tuple(place)]):
                conv.bias[channel] = -value
                alone, beside = conv(x)[0][tuple(place)] > 0, conv(pair)[0][tuple(place)] > 0
                if bool(alone != beside):
                    return True
                conv.bias[channel] = 0.0
    return False


def test_a_copy_beside_a_record_on_a_kink_does_not_change_what_it_adds() -> None:
    found = 0
    for seed in range(20):
        model, x = small_network(seed), torch.randn(1, 3, 8, 8)
        if not on_a_kink(model, x):
            continue
        found += 1
        engine, both = OpacusEngine(model, 16), torch.cat([x, x])
        y = torch.zeros(2, dtype=torch.int64)
        one, two = (engine.clipped_gradient_sum(both, y, np.arange(n), 0.1) for n in (1, 2))
        assert distance(one, two) <= 0.1 * (1 + EXAMPLE_TOLERANCE)
        assert distance([2 * total for total in one], two) <= 1e-12
    if not found:
        pytest.skip("no kink: this machine's convolution rounds one record as it does two")


class Counting(nn.Sequential):
    """A head that notes how many rows it is given."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 2))
        self.seen: set[int] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add(len(x))
        return super().forward(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: OpacusEngine(model, 8),
        lambda model: BiasEngine(model, 8),
        lambda model: SparseEngine(model, [], 8),
    ],
    ids=["per example", "biases", "sparse"],
)
def test_every_chunk_has_the_same_number_of_rows(
    make: Callable[[nn.Module], GradientEngine],
) -> None:
    model = Counting()
    engine, x = make(model), torch.randn(30, FEATURES)
    y = torch.zeros(30, dtype=torch.int64)
    none = engine.clipped_gradient_sum(x, y, np.arange(0), 1.0)  # checks itself
    assert not any(bool(total.any()) for total in none)
    model.seen.clear()
    for count in (0, 1, 7, 8, 9, 30):
        engine.clipped_gradient_sum(x, y, np.arange(count), 1.0)
    assert model.seen == {8}


def network(name: str, *shape: int) -> nn.Module:
    info = DatasetInfo("r", shape, 10, 256, 0, 0, 0, tuple("0123456789"))
    return build_model(name, info, norm="group", seed=0)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(lambda: OpacusEngine(network("small_resnet", 3, 32, 32), 16), (3, 32, 32)),
        pytest.param(lambda: OpacusEngine(network("tanh_cnn", 1, 28, 28), 32), (1, 28, 28)),
        pytest.param(lambda: OpacusEngine(network("timm/resnet18", 3, 32, 32), 16), (3, 32, 32)),
        pytest.param(lambda: LinearHeadEngine(nn.Linear(784, 10)), (784,)),
        pytest.param(lambda: LinearHeadEngine(nn.Linear(3969, 10)), (3969,)),
        pytest.param(lambda: ManyHeadsEngine([nn.Linear(784, 10)] * 3), (784,)),
    ],
    ids=["small_resnet", "tanh_cnn", "resnet18", "head 784", "head 3969", "heads"],
)
def test_the_place_in_a_chunk_does_not_change_what_an_example_adds(
    make: Callable[[], GradientEngine], shape: tuple[int, ...]
) -> None:
    """On this machine, to the last bit: the sum moves by the order of its float64 additions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, *shape, generator=generator)
    y = torch.randint(0, 10, (32,), generator=generator)
    torch.manual_seed(0)
    engine, rows = make(), np.arange(32)
    expected = engine.clipped_gradient_sum(x, y, rows, 1.0)
    for order in (np.roll(rows, 1), rows[::-1].copy(), np.random.default_rng(0).permutation(32)):
        assert distance(engine.clipped_gradient_sum(x, y, order, 1.0), expected) < 1e-13


def test_the_place_in_a_block_does_not_change_what_a_record_of_a_head_adds() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 784, generator=generator)
    y, weight = torch.arange(300) % 10, torch.randn(10, 784, generator=generator)
    whole = HeadRecords(x, y, device="cpu").gradient_sum(weight, 1.0)[0]
    for order in (torch.arange(300).roll(1), torch.randperm(300, generator=generator)):
        moved = HeadRecords(x[order], y[order], device="cpu").gradient_sum(weight, 1.0)[0]
        assert distance([moved], [whole]) < 1e-12


def test_noise_covers_what_is_proven() -> None:
    assert noise_margin(1) == noise_margin(200_000) == TOLERANCE
    # Up to twice as many as are declared are read.
    assert noise_margin(1_000_000) > EXAMPLE_TOLERANCE + 2 * (2e6) ** 2 * 2.0**-53
    assert noise_margin(3_000_000) > noise_margin(1_000_000) > TOLERANCE


@given(expected=st.floats(0.1, 1e5), most=st.integers(1, 3000))
@settings(deadline=None)
def test_chunks_are_whole_vectors_and_fit_into_memory(expected: float, most: int) -> None:
    for device in ("cpu", "cuda"):
        size = chunk_size(expected, most, torch.device(device))
        assert 1 <= size <= most
        assert size % 16 == 0 or size == most < 16


def test_rows_after_the_last_are_zero() -> None:
    assert filled(torch.ones(2, 3), 4).sum(dim=1).tolist() == [3.0, 3.0, 0.0, 0.0]
    assert filled(torch.ones(4, dtype=torch.int64), 4).dtype == torch.int64
