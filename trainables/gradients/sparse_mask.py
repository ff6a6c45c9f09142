"""Masks of the convolution weights that train in sparse finetuning, and the values of those.

Luo et al. 2021 ("Scalable Differential Privacy with Sparse Network Finetuning", section 4.4,
procedure 2) train, on private data, the normalisation layers, the classifier and the fraction p of
convolution weights that are largest in magnitude in the public network. The others stay as they
are and are no part of any gradient's norm.

Guarantees:
    A mask is a function of the weights it is made from, the density and the scope. If these
    weights are public, as they must be, it costs no privacy, and epsilon does not depend on p.
    Not covered: a mask made from weights that were trained on private records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.foundation.validate import in_unit_interval

Scope = Literal["global", "layer"]
SCOPES = ("global", "layer")


@dataclass(frozen=True, eq=False)
class MaskedWeight:
    """The entries of one convolution's weight that train.

    Attributes:
        name: Path of the layer in its model.
        layer: The layer itself.
        index: Positions in ``layer.weight.flatten()``, int64 (nnz,), ascending, at least one; on
            the CPU.
    """

    name: str
    layer: nn.Conv2d
    index: torch.Tensor

    @property
    def nnz(self) -> int:
        """Number of entries that train."""
        return self.index.numel()


def magnitude_mask(
    model: nn.Module,
    density: float,
    *,
    scope: Scope = "global",
    among: Collection[str] | None = None,
) -> list[MaskedWeight]:
    """Return the convolution weights of largest magnitude (Luo et al. 2021, section 4.4).

    Exactly ``round(density * total)`` entries, counted over all Conv2d weights together or in each
    of them; among equal magnitudes the first positions win, in the order of
    ``model.named_modules()``. Layers without a chosen entry are left out.

    >>> layer = nn.Conv2d(1, 1, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[[[1.0, -4.0], [2.0, 3.0]]]]))
    >>> [mask.index.tolist() for mask in magnitude_mask(nn.Sequential(layer), 0.5)]
    [[1, 3]]

    Args:
        model: Network with its public weights, on any device; it is left as it is.
        density: Fraction p of convolution weights that train, in [0, 1].
        scope: ``global``: one threshold for all layers, as in the paper. ``layer``: the fraction p
            of every layer.
        among: Names of the layers that may be chosen from; None: every Conv2d.
    Raises:
        BadInputError: ``density`` or ``scope`` is out of range.
        ModelError: A convolution weight is not finite, so that magnitudes have no order.
    """
    share = in_unit_interval("density", density, zero=True, one=True)
    if scope not in SCOPES:
        raise BadInputError(f"unknown mask scope {scope!r}", fix=f"one of {', '.join(SCOPES)}")
    layers = [(n, c) for n, c in _convolutions(model) if among is None or n in among]
    magnitudes = []
    for name, layer in layers:
        magnitude = layer.weight.detach().flatten().to("cpu", torch.float32).abs()
        if not bool(magnitude.isfinite().all()):
            raise ModelError(
                f"layer {name} has weights that are not finite",
                fix="start from a checkpoint with finite weights",
            )
        magnitudes.append(magnitude)
    if not layers:
        return []
    if scope == "global":
        sizes = [len(magnitude) for magnitude in magnitudes]
        chosen = _largest(torch.cat(magnitudes), round(share * sum(sizes)))
        parts = [part.nonzero().flatten() for part in chosen.split(sizes)]
    else:
        parts = [_largest(m, round(share * len(m))).nonzero().flatten() for m in magnitudes]
    return [
        MaskedWeight(name, layer, index)
        for (name, layer), index in zip(layers, parts)
        if len(index)
    ]


def _convolutions(model: nn.Module) -> Iterator[tuple[str, nn.Conv2d]]:
    """Yield every Conv2d once, by its first path; a weight that two layers share, once."""
    seen = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and id(module.weight) not in seen:
            seen.add(id(module.weight))
            yield name, module


def _largest(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    """Return a boolean mask of the ``count`` largest values; of equal ones, the first."""
    if count == 0:
        return torch.zeros(len(magnitudes), dtype=torch.bool)
    threshold = magnitudes.kthvalue(len(magnitudes) - count + 1).values
    chosen = magnitudes > threshold
    ties = (magnitudes == threshold).nonzero().flatten()
    chosen[ties[: count - int(chosen.sum())]] = True
    return chosen


class SparseValues:
    """The chosen entries of frozen weights as parameters of their own.

    An optimizer over ``parameters`` keeps its state (momentum, moments) for the chosen entries
    alone. The layers see its steps after ``write``; all other entries keep their bits.

    >>> layer = nn.Conv2d(1, 1, 2, bias=False)
    >>> values = SparseValues(magnitude_mask(nn.Sequential(layer), 0.25))
    >>> _ = values.parameters[0].data.fill_(9.0)
    >>> values.write()
    >>> int((layer.weight == 9.0).sum())
    1

    Attributes:
        parameters: One float (nnz,) parameter per mask, on its layer's device.
    """

    def __init__(self, masks: Sequence[MaskedWeight]) -> None:
        """Copy the chosen entries and freeze the weights that they come from.

        Args:
            masks: Masks of different layers, which are already on their device.
        """
        self._masks = list(masks)
        self._indices = [mask.index.to(mask.layer.weight.device) for mask in self._masks]
        for mask in self._masks:
            mask.layer.weight.requires_grad_(False)
        self.parameters = [nn.Parameter(value) for value in self._taken()]

    def _taken(self) -> list[torch.Tensor]:
        return [
            torch.take(mask.layer.weight.detach(), index)
            for mask, index in zip(self._masks, self._indices)
        ]

    @torch.no_grad()
    def write(self) -> None:
        """Copy the parameters into the weights, in place."""
        for mask, index, value in zip(self._masks, self._indices, self.parameters):
            mask.layer.weight.put_(index, value)

    @torch.no_grad()
    def read(self) -> None:
        """Copy the weights into the parameters, in place: after a state dict was loaded."""
        for value, taken in zip(self.parameters, self._taken()):
            value.copy_(taken)


def shares(model: nn.Module, masks: Sequence[MaskedWeight]) -> list[tuple[str, int, int]]:
    """Return (layer name, trainable entries, all entries) of every layer with parameters.

    The trainable share per layer is figure 4 of Luo et al. 2021. A masked weight counts with its
    chosen entries, any other parameter wholly or not at all; a shared one counts once.

    >>> model = nn.Sequential(nn.Conv2d(1, 1, 2), nn.Flatten(), nn.Linear(1, 2))
    >>> shares(model, magnitude_mask(model, 0.5))
    [('0', 3, 5), ('2', 4, 4)]
    """
    chosen = {id(mask.layer.weight): mask.nnz for mask in masks}
    seen = set()
    rows = []
    for name, module in model.named_modules():
        trainable = total = 0
        for parameter in module.parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            total += parameter.numel()
            whole = parameter.numel() if parameter.requires_grad else 0
            trainable += chosen.get(id(parameter), whole)
        if total:
            rows.append((name, trainable, total))
    return rows
