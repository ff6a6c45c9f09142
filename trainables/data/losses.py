"""Losses, summed over examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

#: From outputs of a network and labels to the sum of the losses of the examples.
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of (batch, classes) logits, summed over the batch."""
    return nn.functional.cross_entropy(logits, labels, reduction="sum")
