"""A few labelled public records per class: drawing them, and the linear head they give alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.privacy.randomness import public_seed

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.methods.adamix.noisy_gd import HeadRecords


def draw_shots(
    labels: np.ndarray, class_names: Sequence[str], *, shots: int, draw: int, study_seed: int
) -> np.ndarray:
    """Return the sorted rows, int64, of ``shots`` public records of every class.

    A function of the study's seed, the number of the draw and the public labels: every trial and
    every variant with the same draw gets the same records, and fewer shots are a part of more.

    >>> labels = np.array([0, 1, 0, 1, 0, 1])
    >>> rows = draw_shots(labels, ("cat", "dog"), shots=2, draw=0, study_seed=0)
    >>> labels[rows].tolist().count(0), len(rows)
    (2, 4)

    Args:
        labels: Classes of the public records, int64 (records,).
        class_names: One name per class.
        shots: Records per class, at least 1.
        draw: Number of the draw.
        study_seed: Seed of the study.
    Raises:
        DataError: A class has fewer public records.
    """
    chosen = []
    for label, name in enumerate(class_names):
        rows = np.flatnonzero(labels == label)
        if len(rows) < shots:
            raise DataError(
                f"class {name!r} has {len(rows)} public records, fewer than public.shots={shots}",
                because=f"there are {len(labels)} public records in all",
                fix="raise data.public.fraction, use data.public.per_class, or lower public.shots",
            )
        seed = public_seed(study_seed, draw, f"public shots of class {label}")
        chosen.append(np.random.default_rng(seed).permutation(rows)[:shots])
    return np.sort(np.concatenate(chosen))


#: Learning rates of the few-shot solution that are compared where none is named.
RATES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def best_rate(records: HeadRecords, start: torch.Tensor, *, epochs: int) -> float:
    """Return the learning rate whose few-shot solution explains left-out shots best.

    Golatkar et al. 2022 (https://arxiv.org/abs/2203.11481, appendix A) train the few-shot solution
    with several rates and keep the best. Here each shot of every class is left out in its turn, the
    head is trained on the others, and the rate of ``RATES`` with the least mean cross-entropy of
    the left-out shots is taken; of equal ones the smallest. A solution trained to convergence would
    separate few shots without any error, and drive the public gradients, and with them the adaptive
    clip, to 0.

    Guarantees:
        A function of public records alone: free.

    Args:
        records: The shots, the same number of each class, at least 2.
        start: Initial weights, (classes, features); not changed.
        epochs: Iterations of each solution.
    """
    import torch

    labels = records.labels.cpu()
    turn = torch.zeros_like(labels)
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        turn[rows] = torch.arange(len(rows))
    turns = range(int(turn.max()) + 1)
    folds = [
        tuple(records.chosen(rows.nonzero().flatten()) for rows in (turn != n, turn == n))
        for n in turns
    ]
    losses = []
    for rate in RATES:
        weights = [fit_few_shot(others, start, epochs=epochs, lr=rate) for others, _ in folds]
        each = [left.losses(weight).double().sum() for (_, left), weight in zip(folds, weights)]
        losses.append(float(sum(each)))
    return RATES[int(np.argmin(losses))]


def fit_few_shot(
    records: HeadRecords, start: torch.Tensor, *, epochs: int, lr: float, pull: float = 0.0
) -> torch.Tensor:
    """Return a linear head trained on public records alone, (classes, features).

    Full-batch gradient descent on the mean cross-entropy, without a penalty (Golatkar et al. 2022,
    https://arxiv.org/abs/2203.11481, appendix A: 200 epochs, which are as many iterations), or
    with one that pulls back to the start (Wang & Zhou 2020: model reuse).

    Args:
        records: The public records.
        start: Initial weights, (classes, features); not changed.
        epochs: Iterations.
        lr: Learning rate.
        pull: Weight of the pull to the start, beside the sum of the records' gradients.
    """
    weight = start.clone()
    # More than the whole way back would swing ever wider.
    back = min(lr * pull / len(records), 1.0)
    for _ in range(epochs):
        descent = lr * records.gradient_sum(weight)[0] / len(records)
        if back:
            weight += back * (start - weight)
        weight -= descent
    return weight
