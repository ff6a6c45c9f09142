"""Probes of a network, whether its examples can be clipped one by one: tried, not looked up."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.networks.no_dropout import refuse_random


def probe(model: nn.Module, name: str, info: DatasetInfo) -> None:
    """Run two random examples: shapes must fit, none may influence the other, nothing is drawn.

    This finds what no list of layer types can: a class that mixes the examples of a batch, or keeps
    statistics of them in its state. It is a trial, not a proof: a network that is made to pass it
    can mix examples all the same.

    Args:
        model: A classifier of images or features, in the mode that it is trained in.
        name: What it is called in errors.
        info: Shape of the records, number of classes.
    Raises:
        ModelError: It cannot be trained privately, or not at all.
    """
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    versions = [parameter._version for parameter in model.parameters()]
    inputs = torch.randn(2, *info.input_shape, requires_grad=True)
    try:
        logits = model(inputs)
    except Exception as error:  # the network may be the user's own
        shape = "x".join(map(str, info.input_shape))
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(
            f"{name} fails on {shape} records: {said}",
            fix="correct its forward"
            if ":" in name  # the user's own
            else "use another model, or larger images (model.image_size)",
        ) from error
    refuse_not_finite(model, name, logits)
    if not isinstance(logits, torch.Tensor) or logits.shape != (2, info.num_classes):
        is_tensor = isinstance(logits, torch.Tensor)
        got = tuple(logits.shape) if is_tensor else type(logits).__name__
        raise ModelError(
            f"{name} does not return one logit per class: {got} for 2 records, not "
            f"{(2, info.num_classes)}",
            fix="use another model",
        )
    if [parameter._version for parameter in model.parameters()] != versions:
        raise ModelError(
            f"{name} changes its own weights when it is run",
            because="what its inputs do to them would be released without noise",
            fix="use a model whose weights change by training alone",
        )
    if ":" in name:  # the user's own; now, as what a run without gradients leaves can be copied
        refuse_uncopied(model, name)
    refuse_random(model, inputs)
    refuse_statistics(model, name, buffers)  # first: what changes looks mixed below
    if mixes(model, inputs, logits):
        raise ModelError(
            f"{name} mixes the examples of a batch: one example's output depends on another",
            because="then no example has a gradient of its own to clip",
            fix="use a model whose layers treat every example alone",
        )
    refuse_statistics(model, name, buffers)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            f"{name} has nothing to train with this model.norm",
            fix="set another model.norm, or use another model",
        )


def refuse_not_finite(model: nn.Module, name: str, outputs: object) -> None:
    """Check that weights are finite, and that what they make of random records are numbers.

    Raises:
        ModelError: They are not.
    """
    for key, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ModelError(
                f"{name} has weights that are NaN or infinite: {key}",
                fix="initialise them anew, or give other weights",
            )
    if isinstance(outputs, torch.Tensor) and torch.isnan(outputs).any():
        raise ModelError(
            f"{name} returns NaN for random records",
            fix="look for a division, a logarithm or an overflow in its layers",
        )


def refuse_statistics(model: nn.Module, name: str, buffers: Mapping[str, torch.Tensor]) -> None:
    """Check that a network has its buffers as they were, whatever it has been run on.

    Args:
        model: Any network.
        name: What it is called in errors.
        buffers: Copies from before, by name.
    Raises:
        ModelError: One has changed.
    """
    for key, value in model.named_buffers():
        if key not in buffers or not torch.equal(value, buffers[key]):
            raise ModelError(
                f"{name} changes at each call: buffer {key}",
                because="statistics of its inputs would be released with the model, without noise",
                fix="use a model whose buffers stay as they are",
            )


def refuse_uncopied(model: nn.Module, name: str) -> None:
    """Check that a network can be copied, as checks, averages of weights and engines do.

    Raises:
        ModelError: It cannot.
    """
    try:
        copy.deepcopy(model)
    except Exception as error:  # the network is the user's own
        computed = [
            f"{path}.{key}" if path else key
            for path, module in model.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, torch.Tensor) and not value.is_leaf
        ]
        said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        raise ModelError(
            f"{name} cannot be copied: "
            + (f"{computed[0]} is computed from other tensors" if computed else said),
            fix="keep no tensors but parameters and buffers; in the place of "
            "torch.nn.utils.weight_norm use torch.nn.utils.parametrizations.weight_norm"
            if computed
            else "keep nothing in it that Python's copy.deepcopy refuses",
        ) from error


def mixes(model: nn.Module, inputs: torch.Tensor, outputs: torch.Tensor) -> bool:
    """Say whether one of two examples has a part in the output of the other.

    By gradients either way, and by a much larger and a much smaller other example, and one that is
    no number at all: what is kept out of gradients, such as a scale taken over the batch, shows
    there alone, and times a small factor only in the last.

    Args:
        model: Any network.
        inputs: Two examples, float32, that require gradients.
        outputs: What the network makes of them, (2, ...).
    """
    is_number = False  # whether inputs are taken for numbers, not for ids
    for row in range(2 if outputs.requires_grad else 0):
        (gradient,) = torch.autograd.grad(
            outputs[row].square().sum(), inputs, retain_graph=True, allow_unused=True
        )  # None where inputs are taken for ids
        is_number |= gradient is not None
        if gradient is not None and bool(gradient[1 - row].any()):
            return True
    with torch.no_grad():
        for scale in (0.01, 100.0):
            others = torch.stack([inputs[0], scale * inputs[1]])
            if not torch.allclose(model(others)[0], outputs[0], rtol=1e-3, atol=1e-4):
                return True
        if not is_number:
            return False
        others = torch.stack([inputs[0], torch.full_like(inputs[1], torch.nan)])
        try:
            beside = model(others)[0]
        except Exception:  # a network may refuse it
            return False
        return not torch.allclose(beside, outputs[0], rtol=1e-3, atol=1e-4)
