"""States of training as they are saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def copy_to_cpu(value: Any) -> Any:
    """Return a nested state with every tensor copied to the CPU."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy_to_cpu(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [copy_to_cpu(entry) for entry in value]
    return value
