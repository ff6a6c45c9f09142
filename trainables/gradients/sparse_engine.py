"""Clipped per-example gradients of a few convolution weights and of all that is not frozen.

The gradient of example n by a convolution's weight is G_n A_n^T, G_n the gradient by its output and
A_n its unfolded input. Sparse finetuning (Luo et al. 2021, section 4.4) needs few entries of it:
mask * (G_n A_n^T), a sampled product of two dense matrices, which is computed without the rest.
Convolution weights stay frozen for autograd, so that no weight gradient is ever formed.

Guarantees:
    Those of ``dpsweep.trainables.gradients.per_example``, for the entries that train: frozen
    entries are
    neither in the sum nor in the norm that is clipped. How products are computed depends on shapes,
    masks and the device, never on records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from dpsweep.foundation.errors import ModelError
from dpsweep.foundation.validate import whole
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
from dpsweep.trainables.gradients.masked_conv import MaskedConv
from dpsweep.trainables.gradients.rules.functorch import LayerRule, by_functorch
from dpsweep.trainables.gradients.sparse_mask import MaskedWeight
from dpsweep.trainables.gradients.sums import zero_sums
from dpsweep.trainables.networks.layers import (
    dropout_within,
    is_channels_first_norm,
    set_training_mode,
)


class SparseEngine:
    """Clipped sums over masked convolution weights and every parameter that is not frozen.

    Convolutions with a mask, biases, linear and normalisation layers have rules of their own; the
    parameters of any other layer are differentiated one example at a time by ``torch.func``. Before
    the first batch the engine checks its gradients against autograd on random inputs.

    Args:
        model: Network on the device where the gradients are wanted. Its masked weights are frozen
            and hooks are added, which do nothing outside of ``clipped_gradient_sum``.
        masks: Entries of convolution weights that train, of different layers of ``model``.
        physical_batch: Examples per chunk whose gradients are held in memory, at least 1
            (``sums.chunk_size``).
        loss: From outputs and labels to the sum of the losses of the examples.
        factors: From norms (chunk,) and C to the factor of each example, at most C / norm.
        views: An example's gradient is the mean over these views of it; None: that of itself.
        precision: Of the forward and backward pass (``devices.numerics``).
    Raises:
        ModelError: A layer's gradients per example cannot be computed, or nothing trains.
    """

    def __init__(
        self,
        model: nn.Module,
        masks: Sequence[MaskedWeight],
        physical_batch: int,
        *,
        loss: Loss = cross_entropy_sum,
        factors: Factors = clip_factors,
        views: Views | None = None,
        precision: str = "float32",
    ) -> None:
        self._model, self._views = model, views
        self._forward = ForwardPass(model, precision)
        self._masks = list(masks)
        self._physical = whole("physical_batch", physical_batch, low=1)
        self._loss = loss
        self._factors = factors
        for mask in self._masks:
            mask.layer.weight.requires_grad_(False)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._masks and not self._parameters:
            raise ModelError("this model has nothing to train", fix="use a larger density")
        self._device = next(model.parameters()).device
        self._uses: list[LayerUse] | Tried | None = None
        self._entered: dict[nn.Module, tuple[list[torch.Tensor], list[int]]] = {}
        self._checked_shape: torch.Size | None = None
        set_training_mode(model)
        self._masked = {mask.layer for mask in self._masks}
        self._rules = _rules(model, self._masks)
        for layer in self._rules:
            layer.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            drop = dropout_within(layer)
            if drop is None:
                layer.register_forward_hook(self._after_forward)
            else:
                drop.register_forward_pre_hook(self._at_inner_drop(layer))

    @full_float32()
    def clipped_gradient_sum(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray, max_grad_norm: float
    ) -> list[torch.Tensor]:
        """Return the sums, float64: (nnz,) for each mask, then like each unfrozen parameter.

        See ``dpsweep.trainables.gradients.per_example.GradientEngine``; here ``x_source`` may hold
        integers,
        which stay integers, and ``y_source`` whatever the loss takes.

        Raises:
            ModelError: The gradients cannot be told apart by example for this network.
        """
        if self._checked_shape != x_source.shape[1:]:
            self._check(x_source, y_source)
            self._checked_shape = x_source.shape[1:]
        values = [torch.empty(mask.nnz, device=self._device) for mask in self._masks]
        sums = zero_sums([*values, *self._parameters])
        for x, y, count in full_chunks(x_source, y_source, rows, self._physical, self._device):
            samples = self._samples(x, y)
            add_clipped(sums, samples, max_grad_norm, self._factors, count)
        return sums

    def try_forward(self, x: torch.Tensor) -> None:
        """See ``OpacusEngine``.

        Raises:
            ModelError: A layer cannot have gradients per example.
        """
        tried = Tried(len(x))
        with self._noting(tried), torch.enable_grad():
            self._forward(x)
        tried.refuse_others([*(mask.layer.weight for mask in self._masks), *self._parameters])

    @contextmanager
    def _noting(self, uses: list[LayerUse] | Tried) -> Iterator[None]:
        """Note there, for a forward pass, which layers are called."""
        self._uses = uses
        try:
            yield
        finally:
            self._uses = None
            self._entered.clear()

    def _samples(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """Return what is clipped of each example, as ``_per_example_gradients`` does."""
        if self._views is None:
            return self._per_example_gradients(x, y)
        return mean_over_views(lambda x: self._per_example_gradients(x, y), x, self._views)

    def _per_example_gradients(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients of masks, then parameters: (chunk, number of weights) each."""
        uses: list[LayerUse] = []
        with self._noting(uses), torch.enable_grad():
            loss = self._loss(self._forward(x), y)
        refuse_overwritten(uses)
        if not uses or not loss.requires_grad:
            raise no_gradient()
        # Asking for the gradients of outputs alone, autograd forms none of a weight on its own.
        gradients = list(torch.autograd.grad(loss, [u.output for u in uses], allow_unused=True))
        samples: dict[object, torch.Tensor] = {}
        with torch.no_grad():
            while uses:
                use, gradient = uses.pop(), gradients.pop()
                if gradient is None:
                    continue
                for key, sample in self._rules[use.layer](*use.widened(gradient)).items():
                    before = samples.get(key)
                    samples[key] = sample if before is None else before + sample
        ordered = []
        for key in (*self._masks, *self._parameters):
            if key not in samples or len(samples[key]) != len(x):
                raise no_gradient()
            ordered.append(flat_rows(samples.pop(key)))
        return ordered

    def _before_forward(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._uses is None:
            return None
        if kwargs or not args or not all(isinstance(value, torch.Tensor) for value in args):
            raise ModelError(
                f"a {type(layer).__name__} layer is called with more than tensors in order",
                fix="use another model",
            )
        if layer in self._masked and not args[0].requires_grad:
            # The graph begins here; without this a frozen layer's output would not be in it.
            args = (args[0].detach().requires_grad_(True), *args[1:])
        inputs = [value.detach() for value in args]
        self._entered[layer] = (inputs, [value._version for value in inputs])
        return args, kwargs

    def _after_forward(
        self, layer: nn.Module, args: tuple[Any, ...], output: object
    ) -> torch.Tensor | None:
        if self._uses is None:
            return None
        if not isinstance(output, torch.Tensor):
            raise ModelError(
                f"a {type(layer).__name__} layer returns {type(output).__name__}, not a tensor",
                fix="use layers that return one tensor; an nn.LSTM cannot be trained this way",
            )
        entered = self._entered.pop(layer)
        if isinstance(self._uses, Tried):
            return self._uses.note(layer, output)
        if not output.requires_grad:
            raise no_gradient()
        self._uses.append(use_of(layer, *entered, output))
        return None

    def _at_inner_drop(self, layer: nn.Module) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
        return lambda drop, args: self._after_forward(layer, (), args[0])

    def _check(self, x_source: torch.Tensor, y_source: torch.Tensor) -> None:
        """Compare with autograd on random examples (``check``)."""
        named = self._model.named_parameters()
        entries = {f"{m.name}.weight": m.layer.weight.new_empty(m.nnz) for m in self._masks}
        check_gradients(
            self._forward,
            self._loss,
            (x_source, y_source),
            trained={**entries, **{name: p for name, p in named if p.requires_grad}},
            per_example=lambda x, y: ExampleSamples(self._per_example_gradients(x, y)),
            by_autograd=self._summed_by_autograd,
            chunk=self._physical,
            failure="per-example gradients of this model cannot be computed",
        )

    def _summed_by_autograd(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """Return the sums over all examples, flat, as torch differentiates the whole weights."""
        weights: dict[nn.Parameter, torch.Tensor | None] = dict.fromkeys(self._parameters)
        weights.update({m.layer.weight: m.index.to(self._device) for m in self._masks})
        sums: dict[nn.Parameter, torch.Tensor] = {}
        kept = {parameter: parameter.grad for parameter in weights}

        def take(parameter: nn.Parameter) -> None:
            # Within the backward pass, so that whole gradients are there one layer at a time.
            gradient, index = parameter.grad, weights[parameter]
            assert gradient is not None
            sums[parameter] = gradient.flatten() if index is None else gradient.take(index)
            parameter.grad = None

        hooks = []
        try:
            for parameter in weights:
                parameter.grad = None
                parameter.requires_grad_(True)
                hooks.append(parameter.register_post_accumulate_grad_hook(take))
            with torch.enable_grad():
                self._loss(self._forward(x), y).backward(inputs=list(weights))
        finally:
            for hook in hooks:
                hook.remove()
            for parameter, gradient in kept.items():
                parameter.grad = gradient
                parameter.requires_grad_(weights[parameter] is None)
        order = [*(mask.layer.weight for mask in self._masks), *self._parameters]
        return [sums[parameter] for parameter in order]


def _rules(model: nn.Module, masks: Sequence[MaskedWeight]) -> dict[nn.Module, LayerRule]:
    """Return a rule for every layer that has something of its own to train."""
    by_layer = {mask.layer: mask for mask in masks}
    if len(by_layer) != len(masks) or not by_layer.keys() <= set(model.modules()):
        raise ModelError("masks must belong to different layers of the model")
    rules: dict[nn.Module, LayerRule] = {}
    for name, module in model.named_modules():
        own = {key: p for key, p in module.named_parameters(recurse=False) if p.requires_grad}
        if isinstance(module, nn.Conv2d) and module in by_layer:
            rules[module] = MaskedConv(by_layer[module])
        elif own:
            rules[module] = _rule(name, module, own)
    return rules


def _rule(name: str, module: nn.Module, own: dict[str, nn.Parameter]) -> LayerRule:
    weight, bias = own.get("weight"), own.get("bias")
    is_first = is_channels_first_norm(module)

    def conv_bias(inputs: list[torch.Tensor], gradient: torch.Tensor) -> dict[object, torch.Tensor]:
        return {bias: gradient.flatten(2).sum(dim=2)}

    def linear(inputs: list[torch.Tensor], gradient: torch.Tensor) -> dict[object, torch.Tensor]:
        samples: dict[object, torch.Tensor] = {}
        if weight is not None:
            samples[weight] = torch.einsum("n...i,n...j->nij", gradient, inputs[0])
        if bias is not None:
            samples[bias] = torch.einsum("n...i->ni", gradient)
        return samples

    def norm(inputs: list[torch.Tensor], gradient: torch.Tensor) -> dict[object, torch.Tensor]:
        x, dims = inputs[0], _affine_dims(module, gradient, is_first)
        others = [d for d in range(1, gradient.ndim) if d not in dims]
        samples: dict[object, torch.Tensor] = {}
        if weight is not None:
            samples[weight] = gradient * _normalized(module, x, is_first)
        if bias is not None:
            samples[bias] = gradient
        return {key: value.sum(others) if others else value for key, value in samples.items()}

    if isinstance(module, nn.Conv2d) and own.keys() == {"bias"}:
        return conv_bias
    if type(module) is nn.Linear:
        return linear
    if isinstance(module, _BatchNorm) and module.running_mean is None:
        raise ModelError(
            f"layer {name} ({type(module).__name__}) mixes the examples of a batch",
            fix="set model.norm to group or frozen",
        )
    if isinstance(module, (_BatchNorm, nn.GroupNorm, nn.LayerNorm)):
        return norm
    return by_functorch(name, module, own)


def _affine_dims(module: nn.Module, output: torch.Tensor, is_first: bool) -> tuple[int, ...]:
    """Return the dimensions of an output along which a norm layer's weight lies."""
    if isinstance(module, nn.LayerNorm) and not is_first:
        return tuple(range(output.ndim - len(module.normalized_shape), output.ndim))
    return (1,)


def _normalized(module: nn.Module, x: torch.Tensor, is_first: bool) -> torch.Tensor:
    """Return what a norm layer multiplies by its weight."""
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    if isinstance(module, nn.LayerNorm):
        if is_first:
            swapped = F.layer_norm(x.movedim(1, -1), module.normalized_shape, eps=module.eps)
            return swapped.movedim(-1, 1)
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    assert isinstance(module, _BatchNorm)
    return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
