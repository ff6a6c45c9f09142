"""Norm of what enters a linear layer, from public records or by construction.

``optim.input_norm`` is X of ``noise_rates``. A spec may say ``public`` in the place of a number.

Guarantees:
    Nothing here sees a private record: a method is handed declared facts and public records alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.methods.noise_rates import INPUT_NORM

if TYPE_CHECKING:
    import torch

#: Public inputs, float32 (records, *input_shape), read when they are asked for.
PublicInputs = Callable[[], np.ndarray]

_BLOCK = 512
_OF_OTHERS = "for other networks optim.noise_scale: 0.4 and optim.input_norm: 1 are a start"


def only_value(values: Sequence[Any], name: str) -> Any:
    """Return the one value that a hyperparameter has in a space.

    Raises:
        BadInputError: It has several.
    """
    if len(values) == 1:
        return values[0]
    several = ", ".join(map(str, values))
    raise BadInputError(
        f"public needs one value of {name}, which may be {several}", fix=f"fix it, or {_declare()}"
    )


def check_linear(names: Sequence[Any]) -> None:
    """Refuse networks that are no linear model: what enters their last layer is learned.

    Raises:
        BadInputError: There is one.
    """
    name = only_value(names, "model.name")
    if name != "linear":
        raise BadInputError(
            f"public is the norm of what enters a linear model, and model.name is {name}",
            fix=_OF_OTHERS,
        )


def mean_norm(inputs: np.ndarray) -> float:
    """Return the mean L2 norm of records (n, ...), n >= 1, in float64.

    >>> mean_norm(np.array([[3.0, 4.0], [0.0, 1.0]]))
    3.0
    """
    total = 0.0
    for start in range(0, len(inputs), _BLOCK):
        rows = inputs[start : start + _BLOCK].reshape(len(inputs[start : start + _BLOCK]), -1)
        total += float(np.sqrt(np.square(rows, dtype=np.float64).sum(axis=1)).sum())
    return total / len(inputs)


def norm_before_linear(
    possible: Callable[[str], Sequence[Any]],
    network: Callable[..., torch.nn.Module],
    public: PublicInputs,
) -> float:
    """Return the mean norm of public records where they enter a linear network.

    Args:
        possible: Returns the values that a hyperparameter can have in a space.
        network: Builds the network with ``image_size`` and ``normalize``, as ``build_model`` has
            them.
        public: Reads public records.
    Raises:
        BadInputError: The network is none, or it is not the same in each configuration.
    """
    check_linear(possible("model.name"))
    names = {key: f"model.{key}" for key in ("image_size", "normalize")}
    front = {key: only_value(possible(name), name) for key, name in names.items()}
    inputs = public()
    return norm_in_network(network(**front), inputs) if any(front.values()) else mean_norm(inputs)


def norm_in_network(network: torch.nn.Module, inputs: np.ndarray) -> float:
    """Return the mean norm of what enters a network's only linear layer.

    Args:
        network: A linear one, which may resize or normalise images before.
        inputs: Public records, float32 (n, ...), n >= 1.
    """
    import torch

    (linear,) = (layer for layer in network.modules() if isinstance(layer, torch.nn.Linear))
    norms: list[float] = []

    def note(layer: torch.nn.Module, entering: tuple[torch.Tensor, ...]) -> None:
        norms.extend(torch.linalg.vector_norm(entering[0].double(), dim=1).tolist())

    with linear.register_forward_pre_hook(note), torch.no_grad():
        for start in range(0, len(inputs), _BLOCK):
            network(torch.from_numpy(inputs[start : start + _BLOCK]))
    return math.fsum(norms) / len(norms)


def norm_by_construction(shape: Sequence[int]) -> float:
    """Return the norm of features of this shape that are normalised to mean square 1.

    >>> norm_by_construction((4, 5, 5))
    10.0
    """
    return math.sqrt(math.prod(shape))


def _declare() -> str:
    return f"declare {INPUT_NORM}, a public number"
