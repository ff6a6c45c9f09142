"""Embeddings: what the classifier of a network sees, beside what it says."""

from __future__ import annotations

import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.devices.numerics import full_float32
from dpsweep.trainables.devices.places import filled


@torch.no_grad()
@full_float32()
def embed(
    model: nn.Module, inputs: torch.Tensor, *, block: int, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the activations before the logits, and the logits.

    >>> embed(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
    ...       torch.ones(5, 2, 2), block=2, device="cpu")[0].shape
    torch.Size([5, 3])

    Guarantees:
        A row is a function of its record, of the network and of ``block``, to the last bit: every
        block has the same size, the last one is filled up, and a record is in the same block
        whoever comes after it. What one record adds to noisy counts therefore is its own vote.
        Not covered: kernels of a GPU that round a row otherwise at another place, and a record that
        enters in front of others and moves them by a place.

    Args:
        model: A classifier whose logits are the outputs of a linear layer; left in its mode.
        inputs: Records, (n, ...), on the CPU or the device.
        block: Records that are computed at once.
        device: Where the model is.
    Returns:
        float32 (n, d) and (n, classes), on the CPU.
    Raises:
        ModelError: The logits do not come out of a linear layer.
    """
    layer = last_linear(model)
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(1)))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    rows, logits = [], []
    try:
        for begin in range(0, len(inputs), block):
            seen.clear()
            chosen = inputs[begin : begin + block]
            count = len(chosen)
            said = model(filled(chosen.to(device).float(), block))
            if len(seen) != 1:
                raise ModelError("the classifier of this network is used more than once a record")
            logits.append(said[:count].float().cpu())
            rows.append(seen[0][:count].float().cpu())
    finally:
        hook.remove()
        for module, mode in modes:
            module.training = mode
    if not rows:
        size = layer.in_features
        return torch.empty(0, size), torch.empty(0, layer.out_features)
    return torch.cat(rows), torch.cat(logits)


def project(rows: torch.Tensor, directions: torch.Tensor, *, block: int) -> torch.Tensor:
    """Return ``rows @ directions`` with each row computed as if it were alone, as ``embed`` does.

    Args:
        rows: (n, d), any float dtype, on the CPU.
        directions: float64 (d, p).
        block: Rows that are computed at once.
    Returns:
        float64 (n, p).
    """
    blocks = []
    for begin in range(0, len(rows), block):
        chosen = rows[begin : begin + block]
        blocks.append((filled(chosen.double(), block) @ directions)[: len(chosen)])
    return torch.cat(blocks) if blocks else rows.double() @ directions


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the linear layer that the logits come from: the last module with parameters.

    Raises:
        ModelError: It is no linear layer.
    """
    layers = [module for module in model.modules() if list(module.parameters(recurse=False))]
    if not layers or not isinstance(layers[-1], nn.Linear):
        kind = type(layers[-1]).__name__ if layers else "nothing"
        raise ModelError(
            f"embeddings are what a linear classifier sees, and this network ends with {kind}",
            fix="use a network whose last layer is linear",
        )
    return layers[-1]
