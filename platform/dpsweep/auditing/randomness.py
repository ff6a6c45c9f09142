"""Randomness of a trial: whether batches and noise are drawn anew, where guesses cannot tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpsweep.trainables.gradients.noise import Released, watched_releases
from dpsweep.trainables.method import Method

Array = NDArray[np.float64]

#: Standard deviations by which independent noise does not correlate: probability 1e-15.
_DEVIATIONS = 8.0
_ENTRIES = 2**16  # of a noise that are looked at
#: Probability that batches which are drawn anew are all the same, at most.
_COINCIDENCE = 1e-9
_MOST_DRAWS = 400

BATCHES = (
    "batches are not secret: two preparations that share only public values drew the same records"
)
NOISE_AGAIN = "noise is used again: that of two steps is correlated"
NOISE_PUBLIC = (
    "noise is not secret: two preparations that share only public values drew correlated noise"
)


class Watcher:
    """The releases of one position after the other.

    Call ``taken`` after each position.
    """

    def __init__(self) -> None:
        self._releases: list[Released] = []

    def __call__(self, released: Released) -> None:
        """Take one release."""
        self._releases.append(released)

    def taken(self) -> tuple[Array, Array] | None:
        """Return (exact, noisy) of the position, float64 (entries,) each; None: no release."""
        releases, self._releases = self._releases, []
        if not releases:
            return None
        exact, noisy = (
            np.concatenate([part.double().cpu().numpy().ravel() for part in parts])
            for parts in ([r.exact for r in releases], [r.noisy for r in releases])
        )
        return exact, noisy


def step_alone(method: Method, position: int) -> tuple[Array, Array] | None:
    """Run one position of a method and return (exact, noisy) of its release."""
    watcher = Watcher()
    with watched_releases(watcher):
        method.run(position, position + 1)
    return watcher.taken()


def are_correlated(noises: Sequence[Array]) -> bool:
    """Say whether some two noises are not independent; None of no length are.

    >>> rng = np.random.default_rng(0)
    >>> one, two = rng.normal(size=(2, 500))
    >>> are_correlated([one, two]), are_correlated([one, two, -one])
    (False, True)
    """
    units = [_unit(noise) for noise in noises]
    return any(_is_close(a, b) for a, b in combinations([u for u in units if u is not None], 2))


def are_crosswise_correlated(some: Sequence[Array], others: Sequence[Array]) -> bool:
    """Say whether a noise of one list is not independent of one of the other."""
    left = [u for u in map(_unit, some) if u is not None]
    right = [u for u in map(_unit, others) if u is not None]
    return any(_is_close(a, b) for a in left for b in right)


def _unit(noise: Array) -> Array | None:
    part = noise[:_ENTRIES]
    norm = float(np.linalg.norm(part))
    return part / norm if norm > 0 else None


def _is_close(one: Array, other: Array) -> bool:
    size = min(len(one), len(other))
    bound = _DEVIATIONS / math.sqrt(size)
    return abs(float(one[:size] @ other[:size])) > min(bound, 1 - 1e-9) if size > 1 else False


def num_draws(sample_rate: float, num_records: int) -> int | None:
    """Return how many batches in a row tell whether they are drawn anew; None: too many.

    >>> num_draws(0.1, 500), num_draws(1.0, 500), num_draws(1e-5, 500)
    (1, None, None)
    """
    if sample_rate >= 1 or num_records == 0:
        return None
    same = num_records * math.log(sample_rate**2 + (1 - sample_rate) ** 2)
    needed = math.ceil(math.log(_COINCIDENCE) / same)
    return needed if needed <= _MOST_DRAWS else None


def twin_problems(
    prepared: Callable[[], Method], position: int, *, sample_rate: float, num_records: int
) -> list[str]:
    """Return what two preparations share that they should not.

    Both are brought to the same state again and again, and run the same position.

    Args:
        prepared: Prepares a method with the records that are in, at the state before ``position``.
        position: One with a release.
        sample_rate: Of that position.
        num_records: How many records are in.
    """
    twins = (prepared(), prepared())
    states = [twin.state_dict() for twin in twins]
    draws = num_draws(sample_rate, num_records)
    exacts: tuple[list[Array], list[Array]] = ([], [])
    noises: tuple[list[Array], list[Array]] = ([], [])
    for _ in range(max(draws or 1, 2)):
        for index, twin in enumerate(twins):
            step = step_alone(twin, position)
            assert step is not None
            exacts[index].append(step[0])
            if len(noises[index]) < 2:
                noises[index].append(step[1] - step[0])
            twin.load_state_dict(states[index])
    problems = []
    pairs = list(zip(*exacts))
    if draws is not None and all(_is_same(*pair) for pair in pairs[:draws]):
        problems.append(BATCHES)
    if are_crosswise_correlated(*noises):
        problems.append(NOISE_PUBLIC)
    if any(map(are_correlated, noises)):
        problems.append(NOISE_AGAIN)
    return problems


def _is_same(one: Array, other: Array) -> bool:
    size = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) <= 1e-9 * size
