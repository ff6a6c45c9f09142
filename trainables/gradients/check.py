"""The check of gradients per example against autograd, which every engine passes before it is used.

An engine has rules for layers, and a network may use a layer in a way that a rule does not know of.
So three random examples are differentiated once by the engine, together, and once by autograd, each
alone, and the two are compared parameter by parameter.

Mixing is looked for apart, since rounding hides a little of it there: with other records in the
places beside it, an example's gradient must stay as it was, within ``MIXED`` of its norm. The
batches have one size, so that an example is computed alike in both.

The tolerance against autograd, one for all engines: an example's gradient by one parameter may be
off by ``OF_ITS_OWN`` of its own norm, by ``OF_ALL`` of the norm of its gradient by all parameters
(a bias before a softmax has a gradient of zero and rounding), and by ``ABSOLUTE``; norms and losses
by ``OF_ITS_OWN`` of themselves. A wrong rule is off by the size of what it gets wrong; rounding at
the kinks of deep networks of random weights is why the tolerance is no smaller.

All that is looked at in float32, whatever a trial's precision is: rules and mixing have none. What
trains in bfloat16 is compared a second time, autograd running in bfloat16 too, after it is seen
that no example's gradient moves with its place (``devices.places``). Autograd and the engine then
start from the same gradients by outputs, to the last bit, and differ by a weight's own product
alone: autograd rounds its result once, by u = 2^-8 of it, and the layer's input before, by u of
each term |g_t||a_t| of the sum over positions. The first is within ``OF_ITS_OWN``, 7 u; for the
second, which does not follow from the sum where terms cancel, there is ``OF_ALL_ROUNDED``, 4 u of
all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.losses import Loss
from dpsweep.trainables.devices.failures import has_broken_device, is_out_of_memory
from dpsweep.trainables.devices.numerics import BFLOAT16_EPSILON, ForwardPass
from dpsweep.trainables.devices.places import (
    refuse_moving,
    refuse_products_over_positions,
)
from dpsweep.trainables.gradients.sums import zero_sums
from dpsweep.trainables.networks.no_dropout import refuse_random

OF_ITS_OWN = 3e-2
OF_ALL = 1e-3
OF_ALL_ROUNDED = 4 * BFLOAT16_EPSILON
ABSOLUTE = 1e-6
MIXED = 1e-5
_NUM_EXAMPLES = 3


class ExampleGradients(Protocol):
    """The gradients of a few examples, in whatever form an engine has them."""

    def norms(self) -> torch.Tensor:
        """Return the norm of each example's gradient, float (examples,)."""
        ...

    def add_to(self, sums: list[torch.Tensor], factors: torch.Tensor) -> None:
        """Add the examples times their factors (examples,) to float64 sums, in place."""
        ...

    @property
    def consists_of(self) -> list[torch.Tensor]:
        """Return what the gradients are computed from, float (examples, ...) each."""
        ...


PerExample: TypeAlias = Callable[[torch.Tensor, torch.Tensor], ExampleGradients]
ByAutograd: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]]
_Compared: TypeAlias = tuple[list[list[torch.Tensor]], list[float]]


def check_gradients(
    forward: ForwardPass,
    loss: Loss,
    records: tuple[torch.Tensor, torch.Tensor],
    *,
    trained: dict[str, torch.Tensor],
    per_example: PerExample,
    by_autograd: ByAutograd | None = None,
    chunk: int,
    failure: str,
    fix: str = "use another model",
    may_vanish: bool = True,
) -> None:
    """Compare an engine's gradients with autograd's on random examples.

    Nothing is read from the records but shapes and types. An example alone is a batch of its
    copies: another batch size rounds otherwise, and rounding at the kinks of a deep ReLU network
    can change its gradients by per cents. Parameters of nothing but zeros are filled at random for
    the while.

    Args:
        forward: What the engine runs its model by, in the mode that it trains in.
        loss: (outputs of the model, labels) -> sum of the examples' losses.
        records: (records, *shape), of the kind that is to be trained on, and labels (records, ...).
        trained: Name -> tensor like the gradient, of all that trains, in the order of the sums.
        per_example: (records, labels) -> their gradients, as the engine computes them.
        by_autograd: (records, labels) -> the summed gradients, in the same order; None: by what
            trains, which are the parameters themselves.
        chunk: Rows of each chunk in training.
        failure: Beginning of the error where the engine fails.
        fix: What to do then.
        may_vanish: Whether gradients of zero, which say little, are let pass.
    Raises:
        ModelError: They disagree, or the gradients cannot be computed.
    """
    _refuse_other_types(trained)
    model, generator = forward.model, torch.Generator().manual_seed(0)
    device = next(iter(trained.values())).device
    if by_autograd is None:

        def by_autograd(x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
            return _summed(loss(forward(x), y), list(trained.values()))

    def random(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _random_records(model, *records, device, generator, count)

    def compare(x: torch.Tensor, y: torch.Tensor, of_all: float) -> _Compared:
        return _compare_each(model, loss, x, y, trained, per_example, by_autograd, of_all)

    x, y = random(_NUM_EXAMPLES)
    try:
        with _zeros_filled(model, generator):
            with forward.in_float32():
                refuse_random(model, x)
                rows, sizes = compare(x, y, OF_ALL)
                _refuse_mixing(x, random(_NUM_EXAMPLES)[0], y, trained, rows, per_example)
            if forward.is_rounded:
                (whole, labels), (others, _) = random(chunk), random(chunk)
                if device.type == "cuda":
                    refuse_products_over_positions(forward, model, whole)
                refuse_moving(lambda x: per_example(x, labels).consists_of, whole, others)
                with _fixed_by_float32():
                    compare(x, y, OF_ALL_ROUNDED)
    except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
        if is_out_of_memory(error) or has_broken_device(error):
            raise  # it says nothing of the model, and a smaller batch may do
        raise ModelError(f"{failure}: {error}", fix=fix) from error
    if not (may_vanish or all(sizes)):
        raise ModelError(
            "this model's gradients vanish on random inputs, so that they cannot be checked",
            fix="use other initial weights",
        )


def _refuse_other_types(trained: dict[str, torch.Tensor]) -> None:
    """Refuse to train parameters that are not float32, as sums and noise come back."""
    for name, value in trained.items():
        if value.dtype != torch.float32:
            kind = str(value.dtype).removeprefix("torch.")
            raise ModelError(
                f"parameter {name} is {kind}, and gradients of examples are float32",
                fix="build the network in float32 (model.float()), or freeze it: "
                f"{name}.requires_grad_(False)",
            )


@contextmanager
def _fixed_by_float32() -> Iterator[None]:
    """Say of what was right in float32 that it is wrong in bfloat16 alone."""
    try:
        yield
    except ModelError as error:
        raise ModelError(
            f"in bfloat16 {error.message}", because=error.because, fix="model.precision: float32"
        ) from error


def _compare_each(
    model: nn.Module,
    loss: Loss,
    x: torch.Tensor,
    y: torch.Tensor,
    trained: dict[str, torch.Tensor],
    per_example: PerExample,
    by_autograd: ByAutograd,
    of_all: float,
) -> _Compared:
    """Compare each example of a batch with the example alone.

    Returns:
        The engine's gradients of each example, and the norms of autograd's.
    """
    gradients = per_example(x, y)
    norms, rows = gradients.norms().tolist(), _rows(gradients, len(x), trained)
    sizes, losses = [], 0.0
    for row, actual in enumerate(rows):
        copies = x[row].expand_as(x).contiguous(), y[row].expand_as(y).contiguous()
        expected = [gradient / len(x) for gradient in by_autograd(*copies)]
        sizes.append(_compare(list(trained), actual, expected, of_all))
        with torch.no_grad():
            losses += float(loss(model(x[row : row + 1]), y[row : row + 1]))
    if not all(abs(n - size) <= OF_ITS_OWN * size + ABSOLUTE for n, size in zip(norms, sizes)):
        raise ModelError("norms of the gradients per example disagree with autograd")
    with torch.no_grad():
        together = float(loss(model(x), y))
    if not abs(together - losses) <= OF_ITS_OWN * abs(losses) + ABSOLUTE:
        raise ModelError("the loss is not the sum of the losses of the examples alone")
    return rows, sizes


def _refuse_mixing(
    x: torch.Tensor,
    others: torch.Tensor,
    y: torch.Tensor,
    trained: dict[str, torch.Tensor],
    rows: list[list[torch.Tensor]],
    per_example: PerExample,
) -> None:
    """Refuse gradients that depend on which other examples are in the batch."""
    for exchanged in ([0], list(range(1, len(x)))):
        changed = x.clone()
        changed[exchanged] = others[exchanged]
        after = _rows(per_example(changed, y), len(x), trained)
        for row in set(range(len(x))) - set(exchanged):
            before = _flat(rows[row])
            distance, size = float((_flat(after[row]) - before).norm()), float(before.norm())
            if not distance <= MIXED * size + MIXED * ABSOLUTE:
                raise ModelError(
                    "an example's gradient depends on the other examples in the batch",
                    because=f"with others beside it, it is off by {distance:.2g} of {size:.2g}",
                    fix="use another model: clipping bounds nothing where examples are mixed",
                )


def _rows(
    gradients: ExampleGradients, count: int, trained: dict[str, torch.Tensor]
) -> list[list[torch.Tensor]]:
    """Return the gradients of each example, by parameter, float64."""
    rows = []
    for factors in torch.eye(count, device=next(iter(trained.values())).device):
        sums = zero_sums(list(trained.values()))
        gradients.add_to(sums, factors)
        rows.append(sums)
    return rows


def _flat(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts])


def _compare(
    names: list[str], actual: list[torch.Tensor], expected: list[torch.Tensor], of_all: float
) -> float:
    """Compare one example's gradients, by parameter; return the norm of autograd's together."""
    size = float(_flat(expected).norm())
    for name, one, other in zip(names, actual, expected):
        distance, own = float((one.flatten() - other.flatten()).norm()), float(other.norm())
        if not distance <= OF_ITS_OWN * own + of_all * size + ABSOLUTE:
            raise ModelError(
                f"the gradients per example of parameter {name} disagree with autograd",
                because=f"they are off by {distance:.2g} of {own:.2g} on random inputs; a layer"
                " may use it in a way of its own, or mix examples",
                fix=f"use another model, or freeze it: {name}.requires_grad_(False)",
            )
    return size


def _summed(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of a summed loss; zeros by a parameter that it does not depend on."""
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [p.new_zeros(p.shape) if g is None else g for p, g in zip(parameters, gradients)]


def _random_records(
    model: nn.Module,
    x_source: torch.Tensor,
    y_source: torch.Tensor,
    device: torch.device,
    generator: torch.Generator,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random records and their labels; in one order always the same ones."""
    shape = (count, *x_source.shape[1:])
    if x_source.is_floating_point():
        x = torch.randn(shape, generator=generator)
    else:
        limit = _smallest_vocabulary(model)
        x = torch.randint(0, limit, shape, generator=generator).to(x_source.dtype)
    y = torch.zeros((count, *y_source.shape[1:]), dtype=y_source.dtype, device=device)
    return x.to(device), y


def _smallest_vocabulary(model: nn.Module) -> int:
    """Return a number of ids that every embedding knows, tables of up to two kinds aside."""
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return min((size for size in sizes if size > 2), default=2)


@contextmanager
def _zeros_filled(model: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Fill parameters of nothing but zeros at random for a while.

    Behind a new head of zeros, or a residual branch that starts at zero, every gradient is zero,
    and a wrong one would look right.
    """
    empty = [p for p in model.parameters() if p.numel() and not bool(p.any())]
    try:
        with torch.no_grad():
            for parameter in empty:
                values = torch.randn(parameter.shape, generator=generator)
                fan_in = parameter[0].numel() if parameter.dim() else 1
                parameter.copy_(0.5 * values / fan_in**0.5)
        yield
    finally:
        with torch.no_grad():
            for parameter in empty:
                parameter.zero_()
