"""Several linear classifiers of the same records, as one network."""

from __future__ import annotations

import torch
from torch import nn


class LinearHeads(nn.Module):
    """Several linear classifiers of the same records.

    (records, ...) -> (records, heads, classes) logits.
    """

    def __init__(self, heads: list[nn.Linear]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    @property
    def layers(self) -> list[nn.Linear]:
        """The heads as they are."""
        return [head for head in self.heads if isinstance(head, nn.Linear)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of every head."""
        layers = self.layers
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        logits = nn.functional.linear(x.flatten(1), weight, bias)
        return logits.unflatten(1, (len(layers), -1))
