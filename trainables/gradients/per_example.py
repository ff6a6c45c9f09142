"""Sums of clipped per-example gradients, by the cheapest engine that fits the network.

All engines compute ``sum_i g_i * min(1, C / |g_i|)`` where g_i is the gradient of example i's
cross-entropy by all trainable parameters together (Abadi et al. 2016, algorithm 1).

Guarantees:
    Each example adds a vector of norm at most C (1 + 5e-5), whatever its values: an example whose
    gradient is not finite adds zero, as an infinite term would reveal its presence. Sums are
    float64 and chunks have one size, so that one example more or less changes a sum by no more than
    ``clipping.noise_margin`` allows (``dpsweep.trainables.gradients.sums``).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.losses import Loss, cross_entropy_sum
from dpsweep.trainables.devices.numerics import ForwardPass, full_float32
from dpsweep.trainables.gradients.check import check_gradients
from dpsweep.trainables.gradients.clipping import Factors, clip_factors
from dpsweep.trainables.gradients.layer_gradients import (
    ExampleSamples,
    LayerUse,
    Tried,
    Views,
    add_clipped,
    flat_rows,
    full_chunks,
    mean_over_views,
    no_gradient,
    refuse_overwritten,
    use_of,
)
from dpsweep.trainables.gradients.linear_head import LinearHeadEngine, ManyHeadsEngine
from dpsweep.trainables.gradients.rules.layers import Sample, rules_of
from dpsweep.trainables.gradients.sums import chunk_size, zero_sums
from dpsweep.trainables.networks.heads import LinearHeads
from dpsweep.trainables.networks.layers import set_training_mode


class GradientEngine(Protocol):
    """Computes the clipped sum over a batch of rows."""

    def clipped_gradient_sum(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray, max_grad_norm: float
    ) -> list[torch.Tensor]:
        """Return the sum of clipped gradients, one fresh tensor per trainable parameter, float64.

        Noise is to be added before that is rounded to float32.

        Args:
            x_source: All records, (records, *input_shape), on the CPU or the device; float32, or in
                half precision, which is widened chunk by chunk before anything is computed.
            y_source: Their labels, int64 (records,).
            rows: Rows of the batch, int64 (batch,); may be empty, which gives zeros.
            max_grad_norm: Bound C > 0 on the norm of one example's gradient.
        """
        ...


def make_engine(
    model: nn.Module,
    physical_batch: int,
    *,
    loss: Loss = cross_entropy_sum,
    factors: Factors = clip_factors,
    expected_batch: float = math.inf,
    views: Views | None = None,
    precision: str = "float32",
) -> GradientEngine:
    """Return the closed form for linear heads, else Opacus in chunks.

    Args:
        model: Classifier on the device where the gradients are wanted.
        physical_batch: Most examples per chunk where per-example gradients are held in memory.
        loss: From outputs and labels to the sum of the losses of the examples; the closed form is
            that of the cross-entropy.
        factors: From norms (chunk,) and C to the factor of each example, at most C / norm.
        expected_batch: Expected examples of a batch, which chunks are to suit.
        views: An example's gradient is the mean over these views of it; the closed form has none.
        precision: Of the forward and backward pass of networks (``devices.numerics``).
    Raises:
        ModelError: Opacus cannot handle the network.
    """
    device = next(model.parameters()).device
    physical_batch = chunk_size(expected_batch, physical_batch, device)
    if loss is not cross_entropy_sum or views is not None or precision != "float32":
        return OpacusEngine(
            model, physical_batch, loss=loss, factors=factors, views=views, precision=precision
        )
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    front = None
    if isinstance(layers[0], _BatchNorm) and not layers[0].affine:
        front, *layers = layers
        assert isinstance(front, _BatchNorm)
    if len(layers) == 2 and type(layers[0]) is nn.Flatten and layers[0].start_dim == 1:
        layers = layers[1:]
    head = layers[0]
    if len(layers) == 1 and all(p.requires_grad for p in head.parameters()):
        if type(head) is nn.Linear:
            return LinearHeadEngine(head, front, expected_batch=expected_batch, factors=factors)
        if type(head) is LinearHeads:
            return ManyHeadsEngine(
                head.layers, front, expected_batch=expected_batch, factors=factors
            )
    return OpacusEngine(model, physical_batch, factors=factors)


class OpacusEngine:
    """Per-example gradients by Opacus' rule for each layer, in chunks of a physical batch.

    Large weights of convolutions and linear layers are measured and summed without holding their
    gradients per example (``dpsweep.trainables.gradients.weight_products``). Where Opacus has no
    rule, it differentiates the layer by functorch, in float32. Inputs are noted by forward hooks,
    and gradients of outputs asked from autograd: unlike Opacus' own backward hooks, this allows the
    in-place sums of residual networks and spares the summed weight gradients. Before the first
    batch the engine checks its gradients against autograd on random inputs.
    """

    def __init__(
        self,
        model: nn.Module,
        physical_batch: int,
        *,
        loss: Loss = cross_entropy_sum,
        factors: Factors = clip_factors,
        views: Views | None = None,
        precision: str = "float32",
    ) -> None:
        self._model, self._forward = model, ForwardPass(model, precision)
        self._physical = physical_batch
        self._loss, self._factors, self._views = loss, factors, views
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._uses: list[LayerUse] | Tried | None = None
        self._checked_shape: torch.Size | None = None
        set_training_mode(model)
        self._rules = rules_of(model)
        for module in self._rules:
            module.register_forward_hook(self._after_forward, with_kwargs=True)

    @full_float32()
    def clipped_gradient_sum(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray, max_grad_norm: float
    ) -> list[torch.Tensor]:
        """See ``GradientEngine``.

        Raises:
            ModelError: The gradients cannot be told apart by example for this network.
        """
        if self._checked_shape != x_source.shape[1:]:
            self._check(x_source, y_source)
            self._checked_shape = x_source.shape[1:]
        sums = zero_sums(self._parameters)
        for x, y, count in full_chunks(x_source, y_source, rows, self._physical, self._device):
            samples = self._samples(x, y)
            add_clipped(sums, samples, max_grad_norm, self._factors, count)
        return sums

    def try_forward(self, x: torch.Tensor) -> None:
        """Run records forward alone, which takes little time and memory and tells much.

        Args:
            x: Any records, at least one.
        Raises:
            ModelError: A layer cannot have gradients per example.
        """
        tried = Tried(len(x))
        with self._noting(tried), torch.enable_grad():
            self._forward(x)
        tried.refuse_others(self._parameters)

    @contextmanager
    def _noting(self, uses: list[LayerUse] | Tried) -> Iterator[None]:
        """Note there, for a forward pass, which layers are called."""
        self._uses = uses
        try:
            yield
        finally:
            self._uses = None

    def _samples(self, x: torch.Tensor, y: torch.Tensor) -> Sequence[Sample]:
        """Return what is clipped of each example, as ``_per_example_gradients`` does."""
        if self._views is None:
            return self._per_example_gradients(x, y)
        return mean_over_views(lambda x: self._per_example_gradients(x, y), x, self._views)

    def _per_example_gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[Sample]:
        """Return each parameter's gradients, (chunk, number of weights) or as products."""
        uses: list[LayerUse] = []
        with self._noting(uses):
            loss = self._loss(self._forward(x), y)
        refuse_overwritten(uses)
        # Asking for the gradients of outputs alone, autograd forms none of a weight on its own.
        gradients = torch.autograd.grad(loss, [use.output for use in uses], allow_unused=True)
        samples: dict[nn.Parameter, Sample] = {}
        calls = [*zip(uses, gradients)]
        del uses, gradients
        with torch.no_grad():
            while calls:
                use, gradient = calls.pop(0)  # let go of: its samples may take its place
                if gradient is None:
                    continue
                rule = self._rules[use.layer]
                for parameter, sample in rule(use.layer, *use.widened(gradient)).items():
                    if parameter.requires_grad:
                        before = samples.get(parameter)
                        samples[parameter] = sample if before is None else _both(before, sample)
        ordered = []
        for parameter in self._parameters:
            if parameter not in samples or len(samples[parameter]) != len(x):
                raise no_gradient()
            sample = samples.pop(parameter)
            ordered.append(flat_rows(sample) if isinstance(sample, torch.Tensor) else sample)
        return ordered

    def _after_forward(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
    ) -> torch.Tensor | None:
        if self._uses is None:
            return None
        if not isinstance(output, torch.Tensor):
            raise ModelError(
                f"a {type(layer).__name__} layer returns {type(output).__name__}, not a tensor",
                fix="use layers that return one tensor; an nn.LSTM cannot be trained this way",
            )
        tensors = _tensors(layer, args, kwargs)
        if not tensors:
            raise ModelError(
                f"a {type(layer).__name__} layer with parameters is called without a tensor",
                because="then no example has a gradient of its own by them",
                fix="let its forward take the records, or what the layers before make of them",
            )
        if isinstance(self._uses, Tried):
            return self._uses.note(layer, output)
        versions = [tensor._version for tensor in tensors]
        if not output.requires_grad:
            raise no_gradient()
        self._uses.append(use_of(layer, [t.detach() for t in tensors], versions, output))
        return None

    def _check(self, x_source: torch.Tensor, y_source: torch.Tensor) -> None:
        """Compare with autograd on random examples (``check``)."""
        check_gradients(
            self._forward,
            self._loss,
            (x_source, y_source),
            trained={n: p for n, p in self._model.named_parameters() if p.requires_grad},
            per_example=lambda x, y: ExampleSamples(self._per_example_gradients(x, y)),
            chunk=self._physical,
            failure="Opacus cannot compute per-example gradients of this model",
        )


def _both(first: Sample, second: Sample) -> torch.Tensor:
    """Return the gradients of a weight that is used twice: their sum for each example."""
    parts = [s if isinstance(s, torch.Tensor) else s.each() for s in (first, second)]
    return flat_rows(parts[0]) + flat_rows(parts[1])


def _tensors(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a layer is called with; those by name as its forward orders them.

    Raises:
        ModelError: In the first places of its forward they would not be what they are.
    """
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    named = {name for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
    are_first = all(isinstance(value, torch.Tensor) for value in args[: len(tensors)])
    if named:
        parameters = inspect.signature(layer.forward).parameters.values()
        places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        names = places[len(args) :][: len(named)]
        tensors += [kwargs[name] for name in names if name in named]
        are_first = len(tensors) == len(args) + len(named)
    if not are_first:
        raise ModelError(
            f"a {type(layer).__name__} layer is called with tensors that are not the first "
            "arguments of its forward",
            because="to differentiate it by example it is run again with the tensors alone, in "
            "order",
            fix="let its forward take all tensors first, each by its own name, and leave none out",
        )
    return tensors
