"""Norms of a head's records that are computed once: the same sums, and never those of old records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from heads import front_of, heads_of, records

from dpsweep.trainables.gradients import linear_head
from dpsweep.trainables.gradients.linear_head import LinearHeadEngine, ManyHeadsEngine

SHAPE = (7, 2, 3)
BATCHES = [np.arange(start, 300, 2 + start) for start in (0, 1, 2, 0, 1, 2, 1)]
MAKERS: dict[str, Callable[..., Any]] = {
    "one": lambda front: LinearHeadEngine(heads_of(1, 42)[0], front, expected_batch=150),
    "many": lambda front: ManyHeadsEngine(heads_of(3, 42), front, expected_batch=150),
}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_head, "CPU_BLOCK_ROWS", (16, 64))
    monkeypatch.setattr(linear_head, "MANY_HEADS_CPU_BLOCK", 64)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that the rows are added to whose norms are computed."""
    calls: list[int] = []
    true = linear_head.row_norms

    def count(values: torch.Tensor) -> torch.Tensor:
        calls.append(len(values))
        return true(values)

    monkeypatch.setattr(linear_head, "row_norms", count)
    return calls


def assert_fresh(engine: Any, make: Callable[..., Any], front: Any, x: Any, y: Any) -> None:
    for rows in BATCHES:
        sums = engine.clipped_gradient_sum(x, y, rows, 0.3)
        expected = make(front).clipped_gradient_sum(x, y, rows, 0.3)
        assert all(torch.equal(a, b) for a, b in zip(sums, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("has_front", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_sums_are_the_same_to_the_last_bit(
    name: str, has_front: bool, dtype: torch.dtype, computed: list[int]
) -> None:
    front = front_of(SHAPE) if has_front else None
    x, y = records(*SHAPE, dtype=dtype)
    x[4], x[9] = float("nan"), 60_000.0
    engine = MAKERS[name](front)
    assert_fresh(engine, MAKERS[name], front, x, y)
    computed.clear()
    assert_fresh(engine, MAKERS[name], front, x, y)
    those_of_others = sum(64 * -(-len(rows) // 64) for rows in BATCHES)
    assert sum(computed) == those_of_others  # and none by the engine that has seen them all


@pytest.mark.parametrize("name", MAKERS)
def test_none_are_computed_of_records_that_an_epoch_does_not_draw(
    name: str, computed: list[int]
) -> None:
    x, y = records(*SHAPE)
    engine = MAKERS[name](None)
    for _ in range(2):
        engine.clipped_gradient_sum(x, y, BATCHES[0], 0.3)
    assert sum(computed) == 2 * 192  # three blocks of 64 for 150 records
    engine.clipped_gradient_sum(x, y, BATCHES[0], 0.3)
    assert sum(computed) == 2 * 192 + 320  # five blocks for all 300


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("change", ["a record", "the front", "another source", "another front"])
def test_a_change_is_seen(name: str, change: str) -> None:
    """A norm of before would let what a record has become pass its bound."""
    front = front_of(SHAPE)
    x, y = records(*SHAPE)
    engine = MAKERS[name](front)
    assert_fresh(engine, MAKERS[name], front, x, y)
    if change == "a record":
        x[BATCHES[0]] *= 1000.0
    elif change == "the front":
        front.running_var.mul_(1e-4)
    elif change == "another source":
        x = 1000.0 * x
    else:
        front.running_var = 1e-4 * front.running_var
    assert_fresh(engine, MAKERS[name], front, x, y)
