"""Checks of a user's own network beyond those of every network (``probe``)."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.study.model_graph import trace
from dpsweep.trainables.devices.failures import is_out_of_memory
from dpsweep.trainables.gradients.per_example import OpacusEngine, make_engine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.networks.layers import head_layers
from dpsweep.trainables.networks.own_models import is_own

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import DatasetInfo
    from dpsweep.trainables.gradients.per_example import GradientEngine


def check_own(model: nn.Module, again: nn.Module, name: str, info: DatasetInfo) -> None:
    """Check that a network is a function of its weights and can be handed on without its code.

    Trials are rebuilt from weights: after a crash, and to be exported.

    Args:
        model: The network, built for training.
        again: The same, built once more with the same seed.
        name: What it is called in errors.
        info: Shape of the records, number of classes.
    Raises:
        ModelError: It differs from call to call or from run to run, has parameters without a use,
            cannot be exported, or does not say what its classifier is although it seems to.
    """
    first, second = model.state_dict(), again.state_dict()
    if {k: v.shape for k, v in first.items()} != {k: v.shape for k, v in second.items()}:
        raise ModelError(
            f"{name} returns another network at each call",
            fix="let it depend on input_shape and num_classes alone",
        )
    if not all(torch.equal(first[key], second[key]) for key in first):
        raise ModelError(
            f"{name} returns other weights at each call, with the same seed of torch",
            fix="draw them from torch's own generator, or load them from a public file",
        )
    records = torch.randn((3, *info.input_shape), generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            outputs = [model(records), model(records), again(records)]
    except Exception as error:  # the user's code, on another number of records than before
        said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise ModelError(
            f"{name} fails on {len(records)} records: {said}", fix="correct its forward"
        ) from error
    if not all(torch.allclose(outputs[0], other, rtol=1e-4, atol=1e-5) for other in outputs):
        raise ModelError(
            f"{name} has other outputs from the same weights: something besides parameters and "
            "buffers decides",
            because="a trial that continues is rebuilt from its weights",
            fix="register what it needs as a buffer, and keep nothing of what it was run on",
        )
    _check_used(model, name, records)
    _check_head(model, name)
    _check_export(model, name, info)


def _check_used(model: nn.Module, name: str, records: torch.Tensor) -> None:
    trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
    gradients = torch.autograd.grad(model(records).sum(), list(trained.values()), allow_unused=True)
    unused = [key for key, gradient in zip(trained, gradients) if gradient is None]
    if unused:
        raise ModelError(
            f"{name} does not use its parameter {unused[0]}",
            because="it has no gradient",
            fix="remove it, or freeze it (requires_grad_(False))",
        )


def _check_head(model: nn.Module, name: str) -> None:
    says = [module for module in model.modules() if hasattr(module, "get_classifier")]
    try:
        is_wrong = bool(says) and not head_layers(model)
    except Exception as error:  # it is the user's code
        raise ModelError(
            f"get_classifier() of {name} raised {type(error).__name__}",
            fix="let it return the last layer",
        ) from error
    if is_wrong:
        raise ModelError(
            f"get_classifier() of {name} returns no layer of the network",
            fix="let it return the last layer, a module, or several in a tuple",
        )


def _check_export(model: nn.Module, name: str, info: DatasetInfo) -> None:
    """Try what MLflow gets: a graph, for any number of records."""
    network = copy.deepcopy(model).eval()
    records = torch.zeros(2, *info.input_shape)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            trace(network, records).module()(torch.zeros(3, *info.input_shape))
        except Exception as error:  # torch and the user's code each raise their own kinds
            said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            raise ModelError(
                f"{name} cannot be exported for any number of records: {said}",
                because="models are handed on as graphs of torch.export, without code",
                fix="let its forward depend on shapes alone, not on values, and take the number of "
                "records from x.shape[0], not len(x)",
            ) from error


def try_engine(engine: GradientEngine, info: DatasetInfo) -> None:
    """Let an engine check itself on random records, without an example to clip.

    Args:
        engine: With a loss that asks nothing of labels (``stand_in_loss``).
        info: Shape of the records.
    Raises:
        ModelError: It cannot compute the gradients of its network by example.
    """
    x = torch.zeros(1, *info.input_shape)
    engine.clipped_gradient_sum(x, torch.zeros(1, dtype=torch.int64), np.arange(0), 1.0)


def try_forward(engine: GradientEngine, info: DatasetInfo) -> None:
    """Let an engine run two records of zeros forward, where that tells what it refuses.

    Where there is no memory for it nothing is said: that is no fault of the network, and the trial
    checks itself.

    Args:
        engine: Any, with a loss that asks nothing of labels (``stand_in_loss``).
        info: Shape of the records.
    Raises:
        ModelError: It cannot compute the gradients of its network by example.
    """
    if not isinstance(engine, (OpacusEngine, SparseEngine)):
        return
    kind = torch.float32 if info.text is None else torch.int64
    try:
        engine.try_forward(torch.zeros(2, *info.input_shape, dtype=kind))
    except (RuntimeError, IndexError, ValueError, TypeError, AttributeError, MemoryError) as error:
        if is_out_of_memory(error):
            return
        raise ModelError(
            f"per-example gradients of this model cannot be computed: {error}",
            fix="use another model",
        ) from error


def stand_in_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return a loss for checks, as only gradients by example are asked about."""
    return outputs.square().sum()


def check_gradients(model: nn.Module, name: str, info: DatasetInfo) -> None:
    """Check that all of a network can be trained by gradients of single examples.

    Those of a user's own are computed. Others, which may be large, are run forward alone: a trial
    computes theirs before anything is charged.

    Args:
        model: The network; it gets the hooks of an engine.
        name: Value of ``model.name``.
        info: Shape of the records.
    Raises:
        ModelError: A layer cannot.
    """
    (try_engine if is_own(name) else try_forward)(make_engine(model, 1, loss=stand_in_loss), info)
