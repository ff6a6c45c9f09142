"""Average of a network's weights over its steps, which is evaluated in the place of the last ones.

De et al. 2022 (https://arxiv.org/abs/2204.13650, section 3): an exponential moving average with
decay d takes min(d, (1 + t) / (10 + t)) at step t, so that the first weights are soon forgotten.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def decay_at(step: int, decay: float) -> float:
    """Return the share of the average that stays at a step, counted from 0.

    >>> [round(decay_at(step, 0.99), 2) for step in (0, 8, 10_000)]
    [0.1, 0.5, 0.99]
    """
    return min(decay, (1 + step) / (10 + step))


class Average:
    """Average of the parameters of a network; its buffers are those of the network.

    Guarantees:
        Post-processing of what the steps have released. An entry that never changes keeps its bits.

    Args:
        model: The network before its first step, without hooks; it is copied.
        decay: d in (0, 1).
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self._model, self._decay = copy.deepcopy(model), decay

    def add(self, model: torch.nn.Module, step: int) -> None:
        """Add the parameters that a step has led to; ``step`` is counted from 0."""
        import torch

        share = 1 - decay_at(step, self._decay)
        with torch.no_grad():
            for mean, parameter in zip(self._model.parameters(), model.parameters()):
                mean.lerp_(parameter, share)

    def of(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the network with averaged parameters, and the buffers that ``model`` has now."""
        for own, buffer in zip(self._model.buffers(), model.buffers()):
            own.copy_(buffer)
        return self._model
