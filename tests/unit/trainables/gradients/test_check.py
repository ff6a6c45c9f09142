"""The check of gradients per example: what it lets pass, what it refuses, what it leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.losses import cross_entropy_sum
from dpsweep.trainables.devices.numerics import ForwardPass
from dpsweep.trainables.gradients.check import OF_ITS_OWN, check_gradients
from dpsweep.trainables.gradients.layer_gradients import ExampleSamples


class Engine:
    """Right gradients by a loop over examples, times a factor for each parameter."""

    def __init__(self, model: nn.Module, **factors: float) -> None:
        self.model, self.factors = model, factors
        self.named = dict(model.named_parameters())

    def by_autograd(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        loss = cross_entropy_sum(self.model(x), y)
        parameters = list(self.named.values())
        return list(torch.autograd.grad(loss, parameters, materialize_grads=True))

    def per_example(self, x: torch.Tensor, y: torch.Tensor) -> ExampleSamples:
        rows = [self.by_autograd(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
        wrong = [self.factors.get(name, 1.0) for name in self.named]
        together = [torch.stack([part.flatten() for part in column]) for column in zip(*rows)]
        return ExampleSamples([part * factor for part, factor in zip(together, wrong)])

    def check(self, loss: Any = cross_entropy_sum, **options: Any) -> None:
        check_gradients(
            ForwardPass(self.model),
            loss,
            (torch.zeros(5, 6), torch.zeros(5, dtype=torch.int64)),
            trained=self.named,
            per_example=self.per_example,
            by_autograd=self.by_autograd,
            chunk=4,
            failure="it cannot be done",
            **options,
        )


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "2.bias"])
@pytest.mark.parametrize("sign", [1, -1])
def test_one_parameter_alone_is_seen(name: str, sign: int) -> None:
    """Also one with a small part in the gradient: the others do not hide it."""
    Engine(small_model(), **{name: 1 + sign * OF_ITS_OWN / 2}).check()
    with pytest.raises(ModelError, match=f"parameter {name} disagree with autograd"):
        Engine(small_model(), **{name: 1 + sign * 3 * OF_ITS_OWN}).check()


class Mixing(Engine):
    """Every example's gradient has a little of another one's, or of all."""

    def __init__(self, model: nn.Module, share: float, *, cyclic: bool) -> None:
        super().__init__(model)
        self.share, self.cyclic = share, cyclic

    def per_example(self, x: torch.Tensor, y: torch.Tensor) -> ExampleSamples:
        samples = super().per_example(x, y).samples
        for part in samples:
            others = part.roll(1, 0)
            if not self.cyclic:
                others[0] = 0
            part += self.share * others
        return ExampleSamples(samples)


@pytest.mark.parametrize("cyclic", [True, False])
@pytest.mark.parametrize("share", [1e-4, 1e-3, 1e-2])
def test_a_little_mixing_is_seen(share: float, cyclic: bool) -> None:
    """Less than what rounding may be off by; of neighbors in a row too."""
    Mixing(small_model(), 0.0, cyclic=cyclic).check()
    with pytest.raises(ModelError, match="depends on the other examples in the batch"):
        Mixing(small_model(), share, cyclic=cyclic).check()


def test_norms_are_compared_too() -> None:
    class Shorter(ExampleSamples):
        def norms(self) -> torch.Tensor:
            return super().norms() * (1 - 2 * OF_ITS_OWN)

    engine = Engine(small_model())
    right = engine.per_example
    engine.per_example = lambda x, y: Shorter(right(x, y).samples)  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="norms of the gradients per example disagree"):
        engine.check()


def test_a_mean_of_losses_is_no_sum() -> None:
    with pytest.raises(ModelError, match="not the sum of the losses"):
        Engine(small_model()).check(nn.functional.cross_entropy)


def test_zeros_are_filled_for_the_while_and_are_zeros_afterwards() -> None:
    model = small_model()
    nn.init.zeros_(model[2].weight)  # behind it, every gradient is zero, right or wrong
    with pytest.raises(ModelError, match=r"parameter 0\.weight"):
        Engine(model, **{"0.weight": 2.0}).check()
    assert not bool(model[2].weight.any())


def test_gradients_that_vanish_are_refused_where_they_must_not() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Threshold(1e9, 0.0))
    Engine(model).check()
    with pytest.raises(ModelError, match="vanish on random inputs"):
        Engine(model).check(may_vanish=False)


def test_an_engine_that_fails_says_how() -> None:
    engine = Engine(small_model())

    def fail(x: torch.Tensor, y: torch.Tensor) -> ExampleSamples:
        raise RuntimeError("no rule")

    engine.per_example = fail  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="it cannot be done: no rule"):
        engine.check()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 bytes"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    ],
)
def test_what_a_device_lacks_says_nothing_of_the_model(monkeypatch, error):
    """Where memory is short, a trial has a smaller batch to try."""

    def fail(*_: Any) -> None:
        raise error

    engine = Engine(small_model())
    monkeypatch.setattr(engine, "per_example", fail)
    with pytest.raises(type(error)):
        engine.check()
