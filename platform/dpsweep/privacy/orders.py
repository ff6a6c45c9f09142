"""Renyi orders beside those of the grid, where that is sparse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpsweep.privacy import rdp
from dpsweep.privacy.rdp import Array

#: Orders of ``ORDERS`` whose neighbors are far apart: where the best one is among these, whole
#: orders between them are asked, too (``refined``).
_SPARSE = (63.0, 1024.0)
_STAGES, _BETWEEN = 4, 6
_PER_OCTAVE, _NUM_OCTAVES = 64, 5
#: The grid with whole orders 1% apart where it is sparse, and the first of ``HIGH_ORDERS``: for
#: curves that are kept before it is known which order will be the best.
FILLED_ORDERS: Array = np.union1d(
    np.append(rdp.ORDERS, rdp.HIGH_ORDERS[:2]),
    np.rint(_SPARSE[0] * 2 ** (np.arange(_PER_OCTAVE * _NUM_OCTAVES + 1) / _PER_OCTAVE)),
)


def is_sparse(order: Array | float) -> NDArray[np.bool_]:
    """Say of a best order whether orders beside it, which are on no grid, may be better."""
    return np.asarray((order >= _SPARSE[0]) & (order <= _SPARSE[1]))


def refined(
    curves_at: Callable[[NDArray[np.int64], Array], Array],
    least: Array,
    best: Array,
    delta: float,
) -> tuple[Array, Array]:
    """Return smaller epsilons by whole orders beside the best ones, where the grid is sparse.

    With little spent, the Renyi curve of sampled Gaussians bends up sharply at an order of 100 or
    more, and the best order lies just below: powers of two miss it, and epsilon with it (.0040 in
    the place of .0031 for 100 steps of noise 10 at rate .001). Orders between the neighbors of the
    best are tried, then between the neighbors of the best of those, until they are less than 1%
    apart. Any order gives a bound.

    Args:
        curves_at: Called on row numbers and orders; returns the curves, shape (rows, orders).
        least: Epsilon of each row over ``ORDERS``, shape (n,); positive.
        best: The order that gave it, for which ``is_sparse`` holds, shape (n,).
        delta: In (0, 1).
    Returns:
        Epsilons and their orders, both of shape (n,).
    """
    grid = rdp.orders_at(1)
    place = np.searchsorted(grid, best)
    # Lower neighbor, best order so far and upper neighbor of each row.
    around = np.stack([grid[place - 1], best, grid[place + 1]], axis=1)
    least = least.copy()
    for _ in range(_STAGES):
        for low, middle, high in np.unique(around, axis=0).tolist():
            if high - low <= 2:
                continue  # there is no other whole order
            rows = np.flatnonzero((around == (low, middle, high)).all(axis=1))
            steps = np.geomspace(low, high, _BETWEEN + 2)
            orders = np.unique(np.concatenate([np.rint(steps), [middle]]))
            values, index = rdp.epsilons(curves_at(rows, orders), orders, delta)
            least[rows] = np.minimum(least[rows], values)
            around[rows] = np.stack(
                [
                    orders[np.maximum(index - 1, 0)],
                    orders[index],
                    orders[np.minimum(index + 1, len(orders) - 1)],
                ],
                axis=1,
            )
    return least, around[:, 1]
