"""Threads of torch and NumPy for a while."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from dpsweep.trainables.networks.torch_process import torch_threads


def threads():
    """Return the threads of torch, and those of each library of NumPy's products."""
    assert np.ones((2, 2)) @ np.ones(2) is not None  # loaded
    of_products = [e["num_threads"] for e in threadpool_info() if e["user_api"] == "blas"]
    return torch.get_num_threads(), of_products


@pytest.mark.parametrize("count", [1, 2])
def test_torch_and_numpy_have_so_many_threads_and_then_what_they_had(count):
    before = threads()
    with torch_threads(count):
        own, of_products = threads()
    assert own == count
    assert of_products
    assert set(of_products) == {count}
    assert threads() == before
