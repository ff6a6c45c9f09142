"""The closed forms of one linear head and of many, against the definition."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from heads import front_of, heads_of, records
from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.gradients import linear_head
from dpsweep.trainables.gradients.clipping import clip_factors
from dpsweep.trainables.gradients.linear_head import (
    LinearHeadEngine,
    ManyHeadsEngine,
    cpu_block,
)
from dpsweep.trainables.gradients.per_example import OpacusEngine, make_engine
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.heads import LinearHeads

ROWS = np.arange(0, 300, 2)


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let as few records as there are here make up several blocks of one head."""
    monkeypatch.setattr(linear_head, "CPU_BLOCK_ROWS", (16, 128))


def obvious_sum(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, rows: np.ndarray, bound: float
) -> tuple[list[torch.Tensor], np.ndarray]:
    """The definition, one record at a time in float64; also the norms."""
    exact = copy.deepcopy(model).double()
    parameters = list(exact.parameters())
    sums, norms = [torch.zeros_like(p) for p in parameters], []
    for row in rows:
        loss = nn.functional.cross_entropy(exact(x[row : row + 1].double()), y[row : row + 1])
        gradients = torch.autograd.grad(loss, parameters)
        norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
        for total, gradient in zip(sums, gradients):
            total += gradient * min(1.0, bound / norms[-1])
    return sums, np.array(norms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 2, 3), (7,)])
@pytest.mark.parametrize("has_front", [False, True])
def test_front_and_half_precision(
    has_front: bool, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """The clipped sum is that of the rounded, normalised records: the bound holds for them."""
    (head,) = heads_of(1, int(np.prod(shape)))
    front = [front_of(shape)] if has_front else []
    model = nn.Sequential(*front, nn.Flatten(), head)
    x, y = records(*shape, dtype=dtype)
    _, norms = obvious_sum(model, x, y, ROWS, 1.0)
    bound = float(np.median(norms))
    expected, _ = obvious_sum(model, x, y, ROWS, bound)
    engine = make_engine(model, 16)
    assert type(engine) is LinearHeadEngine
    kept = x.clone()
    for _ in range(2):  # buffers are reused
        for actual, total in zip(engine.clipped_gradient_sum(x, y, ROWS, bound), expected):
            torch.testing.assert_close(actual.double(), total, rtol=1e-4, atol=1e-4)
    assert torch.equal(x, kept)
    for actual, total in zip(
        OpacusEngine(model, 16).clipped_gradient_sum(x, y, ROWS, bound), expected
    ):
        torch.testing.assert_close(actual.double(), total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["scatter_cnn", "scatter_cnn_deep"])
def test_cnns_on_normalised_half_precision_features(name: str) -> None:
    info = DatasetInfo("x", (18, 5, 6), 4, 300, 0, 0, 0, tuple("abcd"))
    front = front_of(info.input_shape)
    model = nn.Sequential(front, *build_model(name, info, seed=0))
    x, y = records(*info.input_shape, dtype=torch.float16)
    rows = ROWS[:20]
    _, norms = obvious_sum(model, x, y, rows, 1.0)
    bound = float(np.median(norms))
    expected, _ = obvious_sum(model, x, y, rows, bound)
    engine = make_engine(model, 16)
    assert type(engine) is OpacusEngine
    for actual, total in zip(engine.clipped_gradient_sum(x, y, rows, bound), expected):
        torch.testing.assert_close(actual.double(), total, rtol=1e-3, atol=1e-4)
    assert not front.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_record_moves_the_sum_by_at_most_the_bound(dtype: torch.dtype) -> None:
    heads = heads_of(3, 30)
    front = front_of((5, 2, 3))
    x, y = records(5, 2, 3, dtype=dtype)
    x[17] = 60_000.0
    one = LinearHeadEngine(heads[0], front)
    many = ManyHeadsEngine(heads, front)
    for rows in (np.array([17]), np.array([3])):
        none = rows[:0]
        for engine, sensitivity in ((one, 1.0), (many, 3**0.5)):
            sums = [engine.clipped_gradient_sum(x, y, r, 1e-3) for r in (rows, none)]
            moved = torch.cat([(a - b).flatten().double() for a, b in zip(*sums)]).norm()
            # All heads are clipped here, so that the joint bound is reached, and not passed.
            assert float(moved) == pytest.approx(1e-3 * sensitivity, rel=1e-5)


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("has_front", [False, True])
def test_many_heads_are_as_many_single_ones(count: int, has_front: bool) -> None:
    heads = heads_of(count, 30)
    front = [front_of((5, 2, 3))] if has_front else []
    x, y = records(5, 2, 3)
    rows = np.arange(2 * cpu_block(30) + 3)
    engine = make_engine(nn.Sequential(*front, LinearHeads(heads)), 16)
    assert type(engine) is ManyHeadsEngine
    actual = engine.clipped_gradient_sum(x, y, rows, 0.8)
    expected = []
    for head in heads:
        single = LinearHeadEngine(head, *front)
        expected += single.clipped_gradient_sum(x, y, rows, 0.8)
    assert [a.shape for a in actual] == [e.shape for e in expected]
    for a, e in zip(actual, expected):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


def test_no_rows_give_zeros() -> None:
    x, y = records(7)
    engine = ManyHeadsEngine(heads_of(2, 7))
    sums = engine.clipped_gradient_sum(x, y, ROWS[:0], 1.0)
    assert len(sums) == 4
    assert not any(bool(total.any()) for total in sums)


@pytest.mark.parametrize("bound", [1e-6, 1e-3, 0.1, 1.0, 40.0])
def test_no_norm_however_large_passes_the_bound(bound):
    norms = torch.logspace(-30, 38.5, 5000, dtype=torch.float64).to(torch.float32)
    factors = clip_factors(norms, bound)
    assert bool((factors.double() * norms.double() <= bound * (1 + 1e-6)).all())
    expected = (bound / norms.double()).clamp(max=1)
    usual = expected > 1e-37
    assert torch.allclose(factors[usual].double(), expected[usual])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_records_that_are_not_finite_add_nothing(value: float) -> None:
    heads = heads_of(3, 7)
    x, y = records(7)
    x[4] = value
    engine = ManyHeadsEngine(heads)
    with_it = engine.clipped_gradient_sum(x, y, ROWS, 1.0)
    without = engine.clipped_gradient_sum(x, y, np.delete(ROWS, 2), 1.0)
    for a, b in zip(with_it, without):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_broken_head_leaves_the_others_alone() -> None:
    heads = heads_of(3, 7)
    x, y = records(7)
    alone = LinearHeadEngine(heads[2]).clipped_gradient_sum(x, y, ROWS, 1.0)
    with torch.no_grad():
        heads[1].weight.fill_(float("nan"))
    sums = ManyHeadsEngine(heads).clipped_gradient_sum(x, y, ROWS, 1.0)
    assert not bool(sums[2].any())
    assert not bool(sums[3].any())
    for a, b in zip(sums[4:], alone):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_heads_are_evaluated_together() -> None:
    heads = heads_of(3, 30)
    x, _ = records(5, 2, 3)
    logits = LinearHeads(heads)(x)
    assert logits.shape == (300, 3, 4)
    for index, head in enumerate(heads):
        torch.testing.assert_close(logits[:, index], head(x.flatten(1)))
