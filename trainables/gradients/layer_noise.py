"""How the noise of a step compares with its gradient, layer by layer, on public records.

Figures 3 and 4 of Luo et al. 2021 ("Scalable Differential Privacy with Sparse Network Finetuning"):
the noise-to-gradient ratio, and the share of a layer's entries that train.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.networks.layers import Kind, layer_kinds, own_parameters

if TYPE_CHECKING:
    from dpsweep.trainables.gradients.per_example import GradientEngine


@dataclass(frozen=True)
class LayerNoise:
    """One layer of a network: what trains in it, and what one step does to that.

    Attributes:
        layer: Dotted name; empty for parameters of the network itself.
        kind: ``cls`` (the classifier), ``norm``, ``conv`` or ``other``.
        num_parameters: Entries of its own parameters.
        num_trainable: Those of them that train.
        noise_norm: Root mean square of the L2 norm of the noise that one step adds to them; None
            where nothing trains.
        gradient_norm: L2 norm of the sum of clipped gradients in an expected batch, estimated.
    """

    layer: str
    kind: Kind
    num_parameters: int
    num_trainable: int
    noise_norm: float | None
    gradient_norm: float | None

    @property
    def ratio(self) -> float | None:
        """Noise over gradient (figure 3); infinite for a gradient of zero, None if none trains."""
        if self.noise_norm is None or self.gradient_norm is None:
            return None
        return self.noise_norm / self.gradient_norm if self.gradient_norm else math.inf

    @property
    def share(self) -> float:
        """Share of its entries that train, in [0, 1] (figure 4)."""
        return self.num_trainable / self.num_parameters

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data; its keys stay as they are."""
        return {
            "layer": self.layer,
            "kind": self.kind,
            "num_parameters": self.num_parameters,
            "num_trainable": self.num_trainable,
            "share": self.share,
            "noise_norm": self.noise_norm,
            "gradient_norm": self.gradient_norm,
            "ratio": self.ratio,
        }


@dataclass(frozen=True)
class NoiseFigures:
    """Figures of one step of a trial, by layer.

    Attributes:
        step: The step, counted from 0.
        noise_multiplier: Its noise over the bound C.
        max_grad_norm: Its bound C on one record's gradient.
        expected_batch: Expected number of records in it.
        num_records: Public records that the gradient is estimated from.
        layers: Every layer with parameters, in the order of the network.
    """

    step: int
    noise_multiplier: float
    max_grad_norm: float
    expected_batch: float
    num_records: int
    layers: tuple[LayerNoise, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data; its keys stay as they are."""
        return {**vars(self), "layers": [layer.to_dict() for layer in self.layers]}


def layer_noise(
    model: nn.Module,
    engine: GradientEngine,
    layers: Sequence[str],
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    expected_batch: float,
) -> list[LayerNoise]:
    """Return noise and gradient of one step in every layer with parameters.

    The noise in d trainable entries has norm sigma C sqrt(d) (root mean square). The sum of the
    clipped gradients over an expected batch is estimated by the mean over the given records times
    the expected batch. Of m records, the mean has a sampling error of its own, which no layer's
    norm shows less than: where gradients cancel, a few records make the ratio look too small.

    Guarantees:
        None: the norms are exact figures of the given records, without noise. They must be public;
        for private records this is not covered by any plan, whatever epsilon the model has.

    Args:
        model: The network, in the state in which it is looked at.
        engine: What computes clipped sums for it; each record is clipped over all that trains.
        layers: Name of the layer that each tensor of the engine's sums belongs to, in order.
        inputs: Public records, (m, *input_shape), m at least 1.
        labels: Their labels, (m, ...).
        noise_multiplier: sigma, noise over C.
        max_grad_norm: C, the bound on one record's gradient.
        expected_batch: Expected number of records of a step.
    Raises:
        BadInputError: There is no record.
        ModelError: The engine cannot handle the network.
    """
    if len(inputs) == 0:
        raise BadInputError("no public record is given to estimate gradients from")
    sums = engine.clipped_gradient_sum(inputs, labels, np.arange(len(inputs)), max_grad_norm)
    assert len(sums) == len(layers)
    entries, squares = dict.fromkeys(layers, 0), dict.fromkeys(layers, 0.0)
    for layer, total in zip(layers, sums):
        entries[layer] += total.numel()
        squares[layer] += float(total.double().square().sum())
    sizes: dict[str, int] = {}
    for path, _, _, parameter in own_parameters(model):
        sizes[path] = sizes.get(path, 0) + parameter.numel()
    kinds = layer_kinds(model)
    scale = expected_batch / len(inputs)
    rows = []
    for path, size in sizes.items():
        count = entries.get(path, 0)
        noise = noise_multiplier * max_grad_norm * math.sqrt(count) if count else None
        gradient = scale * math.sqrt(squares[path]) if count else None
        rows.append(LayerNoise(path, kinds[path], size, count, noise, gradient))
    return rows
