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
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.losses import Loss
from dpsweep.trainables.gradients.sums import zero_sums
from dpsweep.trainables.networks.no_dropout import refuse_random

OF_ITS_OWN = 3e-2
OF_ALL = 1e-3
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


def check_gradients(
    model: nn.Module,
    loss: Loss,
    x_source: torch.Tensor,
    y_source: torch.Tensor,
    *,
    trained: dict[str, torch.Tensor],
    per_example: Callable[[torch.Tensor, torch.Tensor], ExampleGradients],
    by_autograd: Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]],
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
        model: In the mode that it trains in.
        loss: (outputs of the model, labels) -> sum of the examples' losses.
        x_source: Records, (records, *shape), of the kind that is to be trained on.
        y_source: Their labels, (records, ...).
        trained: Name -> tensor like the gradient, of all that trains, in the order of the sums.
        per_example: (records, labels) -> their gradients, as the engine computes them.
        by_autograd: (records, labels) -> the summed gradients, in the same order.
        failure: Beginning of the error where the engine fails.
        fix: What to do then.
        may_vanish: Whether gradients of zero, which say little, are let pass.
    Raises:
        ModelError: They disagree, or the gradients cannot be computed.
    """
    device = next(iter(trained.values())).device
    generator = torch.Generator().manual_seed(0)
    x, y = _random_records(model, x_source, y_source, device, generator)
    try:
        with _zeros_filled(model, generator):
            refuse_random(model, x)
            gradients = per_example(x, y)
            rows = _rows(gradients, len(x), trained)
            norms = gradients.norms().tolist()
            sizes = _compare_each(model, loss, x, y, list(trained), norms, rows, by_autograd)
            others, _ = _random_records(model, x_source, y_source, device, generator)
            _refuse_mixing(x, others, y, trained, rows, per_example)
    except (RuntimeError, IndexError, ValueError) as error:
        raise ModelError(f"{failure}: {error}", fix=fix) from error
    if not (may_vanish or all(sizes)):
        raise ModelError(
            "this model's gradients vanish on random inputs, so that they cannot be checked",
            fix="use other initial weights",
        )


def _compare_each(
    model: nn.Module,
    loss: Loss,
    x: torch.Tensor,
    y: torch.Tensor,
    names: list[str],
    norms: list[float],
    rows: list[list[torch.Tensor]],
    by_autograd: Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]],
) -> list[float]:
    """Compare each example of a batch with the example alone; return the norms of autograd's."""
    sizes, losses = [], 0.0
    for row, actual in enumerate(rows):
        copies = x[row].expand_as(x).contiguous(), y[row].expand_as(y).contiguous()
        expected = [gradient / len(x) for gradient in by_autograd(*copies)]
        sizes.append(_compare(names, actual, expected))
        with torch.no_grad():
            losses += float(loss(model(x[row : row + 1]), y[row : row + 1]))
    if not all(abs(n - size) <= OF_ITS_OWN * size + ABSOLUTE for n, size in zip(norms, sizes)):
        raise ModelError("norms of the gradients per example disagree with autograd")
    with torch.no_grad():
        together = float(loss(model(x), y))
    if not abs(together - losses) <= OF_ITS_OWN * abs(losses) + ABSOLUTE:
        raise ModelError("the loss is not the sum of the losses of the examples alone")
    return sizes


def _refuse_mixing(
    x: torch.Tensor,
    others: torch.Tensor,
    y: torch.Tensor,
    trained: dict[str, torch.Tensor],
    rows: list[list[torch.Tensor]],
    per_example: Callable[[torch.Tensor, torch.Tensor], ExampleGradients],
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


def _compare(names: list[str], actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Compare one example's gradients, by parameter; return the norm of autograd's together."""
    size = float(_flat(expected).norm())
    for name, one, other in zip(names, actual, expected):
        distance, own = float((one.flatten() - other.flatten()).norm()), float(other.norm())
        if not distance <= OF_ITS_OWN * own + OF_ALL * size + ABSOLUTE:
            raise ModelError(
                f"the gradients per example of parameter {name} disagree with autograd",
                because=f"they are off by {distance:.2g} of {own:.2g} on random inputs; a layer"
                " may use it in a way of its own, or mix examples",
                fix=f"use another model, or freeze it: {name}.requires_grad_(False)",
            )
    return size


def summed_by_autograd(
    loss: torch.Tensor, parameters: Sequence[nn.Parameter]
) -> list[torch.Tensor]:
    """Return the gradients of a summed loss; zeros by a parameter that it does not depend on."""
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [p.new_zeros(p.shape) if g is None else g for p, g in zip(parameters, gradients)]


def _random_records(
    model: nn.Module,
    x_source: torch.Tensor,
    y_source: torch.Tensor,
    device: torch.device,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return three random records and their labels; always the same ones."""
    shape = (_NUM_EXAMPLES, *x_source.shape[1:])
    if x_source.is_floating_point():
        x = torch.randn(shape, generator=generator)
    else:
        limit = _smallest_vocabulary(model)
        x = torch.randint(0, limit, shape, generator=generator).to(x_source.dtype)
    y = torch.zeros((_NUM_EXAMPLES, *y_source.shape[1:]), dtype=y_source.dtype, device=device)
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
