"""Labels that cost something: how many were bought, and never more than there may be."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.methods.active_learning.label_oracle import LabelOracle

LABELS = np.arange(20, dtype=np.int64) * 3 % 10


def test_labels_come_in_the_order_of_the_rows() -> None:
    oracle = LabelOracle(LABELS, most=5)
    rows = torch.tensor([7, 2, 19])
    labels = oracle.buy(rows)
    assert labels.dtype == torch.int64
    assert labels.tolist() == LABELS[rows].tolist()
    assert oracle.bought.tolist() == [2, 7, 19]
    assert oracle.bought.dtype == np.int64
    assert oracle.buy(torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_a_record_is_counted_once() -> None:
    """Within a purchase and across purchases."""
    oracle = LabelOracle(LABELS, most=3)
    assert oracle.buy(torch.tensor([4, 4, 1, 4])).tolist() == LABELS[[4, 4, 1, 4]].tolist()
    assert oracle.num_bought == 2
    oracle.buy(np.array([1, 4, 9]))
    assert oracle.num_bought == 3
    oracle.buy(torch.tensor([9, 1, 4]))
    assert oracle.num_bought == 3


def test_more_than_the_most_is_refused_and_nothing_is_bought() -> None:
    oracle = LabelOracle(LABELS, most=3)
    oracle.buy(torch.tensor([0, 1]))
    with pytest.raises(BadInputError, match=r"4 public records.*labels\.max=3") as caught:
        oracle.buy(torch.tensor([1, 2, 3]))
    assert "\n" not in caught.value.message
    assert oracle.bought.tolist() == [0, 1]
    oracle.buy(torch.tensor([5]))
    with pytest.raises(BadInputError, match=r"labels\.max"):
        oracle.buy(torch.tensor([6]))
    assert oracle.bought.tolist() == [0, 1, 5]
    with pytest.raises(BadInputError, match=r"labels\.max=0"):
        LabelOracle(LABELS, most=0).buy(torch.tensor([0]))


@pytest.mark.parametrize("row", [-1, 20])
def test_a_record_that_there_is_not_is_refused(row: int) -> None:
    oracle = LabelOracle(LABELS, most=3)
    for ask in (oracle.buy, oracle.restore):
        with pytest.raises(BadInputError, match=f"no public record {row}"):
            ask(torch.tensor([3, row]))
    assert oracle.num_bought == 0
    with pytest.raises(TypeError):
        oracle.buy(torch.tensor([1.5]))


def test_what_was_bought_is_restored() -> None:
    oracle = LabelOracle(LABELS, most=4)
    oracle.buy(torch.tensor([8, 3, 11]))
    again = LabelOracle(LABELS, most=4)
    again.buy(torch.tensor([0]))
    again.restore(oracle.bought)
    assert again.bought.tolist() == [3, 8, 11]
    again.buy(torch.tensor([3, 12]))
    with pytest.raises(BadInputError, match=r"labels\.max"):
        again.buy(torch.tensor([13]))
    with pytest.raises(BadInputError, match=r"labels\.max"):
        again.restore(np.arange(5))
    assert again.bought.tolist() == [3, 8, 11, 12]
    again.restore(np.zeros(0, dtype=np.int64))
    assert again.num_bought == 0


def test_nobody_changes_labels_or_the_count_from_outside() -> None:
    given = LABELS.copy()
    oracle = LabelOracle(given, most=4)
    given[:] = 99
    oracle.buy(torch.tensor([1])).fill_(99)
    oracle.bought[:] = 5
    assert oracle.buy(torch.tensor([1, 2])).tolist() == LABELS[[1, 2]].tolist()
    assert oracle.bought.tolist() == [1, 2]
    # A read-only view, as from an object store, can be given; a worker gets the whole.
    given.flags.writeable = False
    again = pickle.loads(pickle.dumps(LabelOracle(given, most=1)))
    assert again.buy(torch.tensor([0])).tolist() == [99]
