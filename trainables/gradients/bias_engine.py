"""Sums of clipped per-example gradients of biases, without storing activations (DP-BiTFiT).

A bias is added to the output of its layer at every position, so its gradient for example i is the
gradient of the output summed over the positions of example i: no input of the layer is needed
(Bu et al. 2024, https://arxiv.org/abs/2210.00036, section 3). The engine takes these sums while
autograd runs backward and keeps one row of all bias gradients per example; autograd stores and
computes what training the biases without privacy stores and computes.

The weight of a Linear layer may train along (a new classification head): its gradient is the sum
of g_t a_t^T over positions t, with g the gradient of the output and a the input. With one position
the norm is |g||a| and the clipped sum one product; else the sum is formed for each example, so
that norm and sum see the same rounding even where positions cancel.

Guarantees:
    Those of ``dpsweep.trainables.gradients.per_example``, whatever ``factors`` is: an example's
    factor is at most C / norm, the norm being that of all trainable entries together. Before the
    first batch of a shape the gradients are compared with autograd, by parameter, on random inputs.

    Not covered: a network that computes otherwise on other values or batch sizes than compared.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.losses import Loss, cross_entropy_sum
from dpsweep.trainables.devices.numerics import ForwardPass, full_float32, may_skip, widened
from dpsweep.trainables.gradients.check import check_gradients
from dpsweep.trainables.gradients.clipping import (
    Factors,
    clip_factors,
    exact_factors,
    product_of_norms,
    row_norms,
)
from dpsweep.trainables.gradients.layer_gradients import Views, full_chunks
from dpsweep.trainables.gradients.sums import add_product, add_rows, zero_sums
from dpsweep.trainables.networks.layers import (
    dropout_within,
    is_channels_first_norm,
    set_training_mode,
)

#: Layers that add their bias per channel, in dimension 1 of the output.
_CHANNELS_FIRST = (_ConvNd, nn.GroupNorm, _BatchNorm)


def can_bias_engine(model: nn.Module) -> bool:
    """Say whether ``BiasEngine`` has a rule for every trainable parameter.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    >>> can_bias_engine(model), can_bias_engine(model.requires_grad_(False))
    (False, False)
    >>> model[0].bias.requires_grad_(True) is None, can_bias_engine(model)
    (False, True)
    """
    return _problem(model) is None


class _Place(NamedTuple):
    """A layer that gradients are taken from.

    Attributes:
        name: Path of the layer in the model.
        inner: Submodule whose input is the biased output, for norms that also activate; or None.
        bias: Index of its trainable bias among the parameters, or None.
        trailing: Last dimensions of the output that the bias has; 0: channels in dimension 1.
        weight: The same for its weight.
    """

    name: str
    inner: nn.Module | None
    bias: int | None
    trailing: int
    weight: int | None


class _Gradients:
    """Per-example gradients of one chunk, as far as they are formed.

    Attributes:
        parts: Per bias that was used: float32 (examples, *shape).
        biases: The same of all biases side by side, (examples, entries), made in the end.
        factored: Per weight of one position: gradients (examples, out) and inputs (examples, in).
        formed: Per weight of several positions: float32 (examples, out, in).
        starts: Edges of the first biased outputs; nothing before them is differentiated.
        latest: Edge of the output noted last, until its layer is known to be a start or not.
    """

    def __init__(self, count: int, bias_sizes: dict[int, int]) -> None:
        self.count = count
        self._sizes = bias_sizes
        self.parts: dict[int, torch.Tensor] = {}
        self.biases = torch.empty(0)
        self.factored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.formed: dict[int, torch.Tensor] = {}
        self.starts: list[torch.autograd.graph.GradientEdge] = []
        self.latest: torch.autograd.graph.GradientEdge | None = None

    def take(self, place: _Place, held: list[Any], gradient: torch.Tensor) -> None:
        """Take what is wanted from the gradient of a layer's output; let go of its input."""
        gradient = widened(gradient)
        if place.bias is not None:
            first, end = (1, gradient.dim() - place.trailing) if place.trailing else (2, None)
            positions = tuple(range(gradient.dim())[first:end])
            summed = gradient.sum(dim=positions) if positions else gradient
            before = self.parts.get(place.bias)
            self.parts[place.bias] = summed if before is None else before + summed
        if place.weight is not None:
            inputs, version = held.pop()
            if inputs._version != version:
                raise ModelError(
                    f"the input of layer {place.name} is overwritten after its use",
                    fix=f"freeze its weight: {place.name}.weight.requires_grad_(False)",
                )
            self._add_weight(place.weight, gradient, widened(inputs))

    def _add_weight(self, index: int, gradient: torch.Tensor, inputs: torch.Tensor) -> None:
        if gradient.dim() == 2 and index not in self.factored and index not in self.formed:
            self.factored[index] = (gradient, inputs)
            return
        new = _outer(gradient, inputs)
        if index in self.factored:  # the layer is used twice
            new += _outer(*self.factored.pop(index))
        before = self.formed.get(index)
        self.formed[index] = new if before is None else before.add_(new)

    def join(self, like: torch.Tensor) -> None:
        """Put the biases' gradients side by side; zeros where a layer was not called."""
        parts = [like.new_zeros(self.count, 0)]
        for index, size in self._sizes.items():
            part = self.parts.pop(index, None)
            parts.append(like.new_zeros(self.count, size) if part is None else part.flatten(1))
        self.biases = torch.cat(parts, dim=1)

    def add(self, other: _Gradients) -> None:
        """Add the gradients of another view of the same examples."""
        self.biases += other.biases
        for index in list(self.factored):
            self.formed[index] = _outer(*self.factored.pop(index))
        for index, pair in other.factored.items():
            self.formed[index] += _outer(*pair)
        for index, sample in other.formed.items():
            self.formed[index] += sample

    def divide(self, count: int) -> None:
        """Divide the gradients, which are sums over views, by the number of these."""
        for part in (self.biases, *self.formed.values()):
            part /= count

    def norms(self) -> torch.Tensor:
        """Return the norm of each example's gradient, float32 (examples,)."""
        norm = torch.linalg.vector_norm
        parts = [row_norms(self.biases)]
        for pair in self.factored.values():
            parts.append(product_of_norms(*(norm(p, dim=1, dtype=torch.float64) for p in pair)))
        parts += [row_norms(sample.flatten(1)) for sample in self.formed.values()]
        return norm(torch.stack(parts, dim=1), dim=1, dtype=torch.float64).to(parts[0].dtype)

    def clear(self, broken: torch.Tensor) -> None:
        """Set the examples marked in ``broken`` to zero; a factor of 0 leaves NaN as it is."""
        self.biases.masked_fill_(broken[:, None], 0.0)
        for key, pair in self.factored.items():
            # Not in place: a gradient may be a buffer that autograd lent.
            g, a = (part.masked_fill(broken[:, None], 0.0) for part in pair)
            self.factored[key] = g, a
        for sample in self.formed.values():
            sample.masked_fill_(broken[:, None, None], 0.0)

    @property
    def consists_of(self) -> list[torch.Tensor]:
        """See ``check.ExampleGradients``."""
        return [self.biases, *sum(self.factored.values(), ()), *self.formed.values()]

    def add_to(self, sums: list[torch.Tensor], factors: torch.Tensor) -> None:
        """Add the examples times their factors to the sums, one per parameter, float64."""
        total = factors.new_zeros(self.biases.shape[1], dtype=torch.float64)
        add_rows(total, self.biases, factors)
        for index, part in zip(self._sizes, total.split(list(self._sizes.values()))):
            sums[index] += part.view_as(sums[index])
        for index, (g, a) in self.factored.items():
            add_product(sums[index], (g * factors[:, None]).T, a)
        for index, sample in self.formed.items():
            add_rows(sums[index], sample.flatten(1), factors)


class BiasEngine:
    """Clipped gradient sums of biases and Linear weights; see ``GradientEngine``.

    Trainable are the parameters that require a gradient when the engine is made. The model is used
    as it is: in-place activations and sums may stay, except on a view of a layer's result.

    Args:
        model: Network on the device where the gradients are wanted, one row per example in every
            trainable layer. BatchNorm is put in eval mode: its statistics stay as they are.
        physical_batch: Examples per chunk (``sums.chunk_size``).
        loss: (outputs of the model, labels) -> sum of the examples' losses.
        factors: (norms, C) -> factor per example, ``clip_factors`` or ``automatic_factors``.
        views: An example's gradient is the mean over these views of it; None: that of itself.
        precision: Of the forward and backward pass (``devices.numerics``).
    Raises:
        ModelError: A trainable parameter has no rule.
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
        if (problem := _problem(model)) is not None:
            raise problem
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._forward, self._physical = ForwardPass(model, precision), physical_batch
        self._loss, self._factors, self._views = loss, factors, views
        self._names, self._parameters = list(named), list(named.values())
        self._device = self._parameters[0].device
        self._gradients: _Gradients | None = None
        self._checked: set[tuple[object, ...]] = set()
        self._bias_sizes = {
            index: parameter.numel()
            for index, (name, parameter) in enumerate(named.items())
            if name.rpartition(".")[2] == "bias"
        }
        set_training_mode(model)
        for name, layer in model.named_modules():
            if any(p.requires_grad for p in layer.parameters(recurse=False)):
                self._watch(name, layer)

    @full_float32()
    def clipped_gradient_sum(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray, max_grad_norm: float
    ) -> list[torch.Tensor]:
        """See ``GradientEngine``; integer records, such as token ids, stay integers.

        Raises:
            ModelError: The gradients cannot be told apart by example for this network.
        """
        self._check(x_source, y_source)
        sums = zero_sums(self._parameters)
        for x, y, count in full_chunks(x_source, y_source, rows, self._physical, self._device):
            gradients = self._of_views(x, y)
            norms = gradients.norms()
            broken = ~norms.isfinite()
            if not may_skip(broken):
                gradients.clear(broken)
                norms = norms.masked_fill(broken, 0.0)
            norms[count:] = math.inf
            factors = self._factors(norms, max_grad_norm).minimum(max_grad_norm / norms)
            factors = exact_factors(factors, norms)
            factors[count:] = 0.0
            gradients.add_to(sums, factors)
        return sums

    def _watch(self, name: str, layer: nn.Module) -> None:
        order = {parameter: index for index, parameter in enumerate(self._parameters)}
        own = {e: order.get(p) for e, p in layer.named_parameters(recurse=False)}
        first = isinstance(layer, _CHANNELS_FIRST) or is_channels_first_norm(layer)
        place = _Place(
            name,
            inner=dropout_within(layer),
            bias=own.get("bias"),
            trailing=0 if first or "bias" not in own else layer.bias.dim(),
            weight=own.get("weight"),
        )
        if place.inner is not None:
            place.inner.register_forward_pre_hook(lambda _, args: self._note(place, args[0], []))
        layer.register_forward_hook(partial(self._after_layer, place), with_kwargs=True)

    def _after_layer(
        self,
        place: _Place,
        layer: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: torch.Tensor,
    ) -> None:
        gradients = self._gradients
        if gradients is None:
            return
        if isinstance(layer, _BatchNorm) and layer.training:
            raise ModelError(
                f"layer {place.name} ({type(layer).__name__}) is in training mode",
                fix="keep it in eval mode: in training mode it mixes the examples of a batch",
            )
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        if place.inner is None:
            self._note(place, output, tensors[:1] if place.weight is not None else [])
        # Where no input needs a gradient, no layer before has trainable parameters.
        if gradients.latest is not None and not any(tensor.requires_grad for tensor in tensors):
            gradients.starts.append(gradients.latest)
        gradients.latest = None

    def _note(self, place: _Place, output: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        """Ask for an output's gradient. Without trainable weight, nothing of a layer is kept."""
        gradients = self._gradients
        if gradients is None or not output.requires_grad:
            return
        if output.dim() < 2 or len(output) != gradients.count:
            raise ModelError(
                f"layer {place.name} has no gradient per example",
                because=f"its output has {len(output)} rows for {gradients.count} examples",
                fix="use another model; windowed attention cannot be trained this way",
            )
        # Hook and edge stay with this layer's result, also if the model writes to it later.
        held = [(tensor.detach(), tensor._version) for tensor in inputs]
        output.register_hook(partial(gradients.take, place, held))
        gradients.latest = torch.autograd.graph.get_gradient_edge(output)

    def _of_views(self, x: torch.Tensor, y: torch.Tensor) -> _Gradients:
        """Return what is clipped of each example."""
        if self._views is None:
            return self._per_example_gradients(x, y)
        first, *others = self._views(x)
        gradients = self._per_example_gradients(first, y)
        for view in others:
            gradients.add(self._per_example_gradients(view, y))
        gradients.divide(len(others) + 1)
        return gradients

    def _per_example_gradients(self, x: torch.Tensor, y: torch.Tensor) -> _Gradients:
        """Return the gradients of a chunk."""
        gradients = _Gradients(len(x), self._bias_sizes)
        self._gradients = gradients
        try:
            loss = self._loss(self._forward(x), y)
            self._gradients = None
            if gradients.starts:
                # Asking for the first outputs alone, autograd forms no gradient of a parameter.
                torch.autograd.grad(loss, gradients.starts, allow_unused=True)
        finally:
            self._gradients = None
            gradients.starts.clear()  # their hooks hold ``gradients``: a ring that may stay
        # Only now, when the activations are gone, so that the peak of memory stays where it was.
        gradients.join(loss.detach())
        return gradients

    def _check(self, x_source: torch.Tensor, y_source: torch.Tensor) -> None:
        """Compare with autograd on random examples, once for every kind of input (``check``)."""
        kind = (x_source.shape[1:], x_source.is_floating_point(), y_source.shape[1:])
        if kind in self._checked:
            return
        check_gradients(
            self._forward,
            self._loss,
            (x_source, y_source),
            trained=dict(zip(self._names, self._parameters)),
            per_example=self._per_example_gradients,
            chunk=self._physical,
            failure="the gradients of this model's biases cannot be computed",
            fix="use another model or another choice of trainable parameters",
            may_vanish=False,
        )
        self._checked.add(kind)


def _outer(gradient: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return (examples, out, in): the sum over positions of g a^T."""
    g, a = (v.reshape(len(v), -1, v.shape[-1]) for v in (gradient, inputs))
    return torch.bmm(g.transpose(1, 2), a)


def _rule(layer: nn.Module, entry: str) -> bool:
    """Say whether there is a rule for a layer's parameter of this name."""
    if entry == "weight":
        return isinstance(layer, nn.Linear)
    # GPT-2's Conv1D is a linear layer with a transposed weight; no import for its sake.
    names = {f"{c.__module__}.{c.__name__}" for c in type(layer).__mro__}
    is_known = isinstance(layer, (*_CHANNELS_FIRST, nn.Linear, nn.LayerNorm))
    return entry == "bias" and (is_known or "transformers.pytorch_utils.Conv1D" in names)


def _problem(model: nn.Module) -> ModelError | None:
    """Return an error if no parameter is trainable, or one has no rule in one of its layers."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return ModelError("the model has nothing to train", fix="let its biases require gradients")
    for path, layer in model.named_modules():
        for entry, parameter in layer.named_parameters(recurse=False):
            if parameter.requires_grad and not _rule(layer, entry):
                name = f"{path}.{entry}" if path else entry
                return ModelError(
                    f"the bias engine has no rule for parameter {name}",
                    because=f"layer {path or 'at the root'} is a {type(layer).__name__}; it can"
                    " train biases added per channel, and weights of Linear layers",
                    fix=f"freeze it ({name}.requires_grad_(False)), or train this model in full",
                )
    return None
