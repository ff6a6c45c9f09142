"""Learning rates that follow from the noise: one number to search, whatever the budget.

A step of noisy SGD moves the weights by noise of standard deviation ``rate C sigma / B`` in every
coordinate (C the clipping norm, sigma the noise multiplier, B the divisor of the sum). What a
search should look for is therefore

    u = rate * C * sigma                  (``optim.noise_lr``)

which hardly depends on epsilon as long as batch, steps, momentum and schedule stay, while the best
rate itself moves with sigma. What carries over between batches and lengths too is the standard
deviation that the noise of all steps has in one output of a linear layer,

    s = u X R / (B (1 - m)),  R = sqrt(sum_t f_t^2)      (``optim.noise_scale``)

with X the mean norm of that layer's inputs (``optim.input_norm``), m the momentum, and f_t the
factor of the schedule at step t, 1 at the peak. s = 5 is a start for linear layers; for other
networks u = .4 B (1 - m) / R is, which is s = .4 at X = 1. Both assume that most gradients are
clipped. Adam and AdamW divide by the noise itself: their rate plays the part of u, and noise
moves a weight by the rate times sqrt((1 - b1) / (1 + b1)) in a step, whatever C, sigma and B. With
DP-AdamBC, whose least divisor is a part of the noise too, it is that over sqrt(``optim.floor``) at
most, so that its rate keeps its meaning as well. ``optim.noise_scale`` has none for the three.

Guarantees:
    The noise is calibrated first, and no plan depends on u or s. C, sigma, B, m and f_t are public,
    so the rate is post-processing of public numbers. X must be public as well: a declared bound or
    a mean over public records, never one over private records. Nothing here can check that.

Loads no torch until there is an optimizer to rescale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake
from dpsweep.trainables.method import PlanContext
from dpsweep.trainables.methods.hyperparameters import ADAMS

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]
LR, NOISE_LR, NOISE_SCALE = "optim.lr", "optim.noise_lr", "optim.noise_scale"
INPUT_NORM = "optim.input_norm"
_NO_RATE = f"is null, and neither {NOISE_LR} nor {NOISE_SCALE} has a value"
_ONE_RATE = "give one of the three"


def follows_noise(hparams: Mapping[str, Any]) -> bool:
    """Say whether the learning rate of a configuration follows from its noise.

    >>> follows_noise({"optim.lr": 0.1}), follows_noise({"optim.lr": None, "optim.noise_lr": 2.0})
    (False, True)
    """
    return any(hparams.get(name) is not None for name in (NOISE_LR, NOISE_SCALE))


def noise_lr_of(
    hparams: Mapping[str, Any], factors: Array, *, expected_batch: float = 1.0
) -> float:
    """Return u: ``optim.noise_lr``, or what ``optim.noise_scale`` comes to for these steps.

    >>> hparams = {"optim.noise_lr": None, "optim.noise_scale": 5.0, "optim.momentum": 0.9}
    >>> round(noise_lr_of(hparams | {"optim.input_norm": 4.0}, np.ones(25), expected_batch=512), 6)
    12.8

    Args:
        hparams: Values of a configuration that ``follows_noise``. A method without
            ``optim.momentum`` has none.
        factors: Factor of the schedule at each step, (steps,).
        expected_batch: Divisor B of a sum of gradients; 1 where sums are not divided.
    """
    if hparams[NOISE_LR] is not None:
        return float(hparams[NOISE_LR])
    spread = math.sqrt(float(np.square(factors).sum()))
    left = 1.0 - float(hparams.get("optim.momentum", 0.0))
    scale, input_norm = float(hparams[NOISE_SCALE]), float(hparams[INPUT_NORM])
    return scale * expected_batch * left / (input_norm * spread)


def noise_rates(
    hparams: Mapping[str, Any], factors: Array, noise_stds: Array, *, expected_batch: float = 1.0
) -> Array:
    """Return the learning rate of every step, (steps,): u f_t / (C_t sigma_t); Adam's: u f_t.

    >>> hparams = {"optim.noise_lr": 2.0, "optim.name": "sgd"}
    >>> noise_rates(hparams, np.ones(3), np.array([1.0, 2.0, 4.0])).tolist()
    [2.0, 1.0, 0.5]

    Args:
        hparams: As for ``noise_lr_of``.
        factors: As for ``noise_lr_of``.
        noise_stds: Standard deviation C_t sigma_t of the noise in the sum of each step, (steps,).
        expected_batch: As for ``noise_lr_of``.
    """
    rates = noise_lr_of(hparams, factors, expected_batch=expected_batch) * factors
    return rates if hparams.get("optim.name") in ADAMS else rates / noise_stds


def rescale_momentum(optimizer: torch.optim.Optimizer, ratio: float) -> None:
    """Multiply the momentum of SGD by the ratio of a step's noise to that of the step before.

    With a rate that is divided by the same ratio, what earlier steps still contribute to the
    weights stays as it was; without it the noise of a louder step would be heard twice.
    """
    if ratio == 1.0:
        return
    for state in optimizer.state.values():
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"].mul_(ratio)


def settled(
    hparams: Mapping[str, Any], context: PlanContext, *, plain: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the hyperparameters with ``optim.lr`` null where the rate follows from the noise.

    Args:
        hparams: Every hyperparameter with its value.
        context: Says which of them the configuration names.
        plain: Further learning rates of a method, which would not follow the noise.
    Raises:
        InfeasibleBudgetError: Two rates are there, or none, or one that cannot be had.
    """
    hparams = dict(hparams)
    if not follows_noise(hparams):
        if hparams[LR] is None:
            raise InfeasibleBudgetError(f"{LR} {_NO_RATE}", fix=_ONE_RATE)
        return hparams
    is_named = context.given is None or LR in context.given
    rates = [name for name in (NOISE_LR, NOISE_SCALE) if hparams[name] is not None]
    if is_named and hparams[LR] is not None:
        raise InfeasibleBudgetError(
            f"optim.lr={hparams[LR]:g} and {rates[0]}={hparams[rates[0]]:g} both say the learning "
            "rate",
            fix="leave one of the two out",
        )
    values = {name: [value] for name, value in hparams.items()}
    for mistake in rate_problems(values, plain=plain):
        raise InfeasibleBudgetError(f"{mistake.key} {mistake.what}", fix=mistake.fix)
    hparams[LR] = None
    return hparams


def rate_problems(
    values: Mapping[str, Sequence[Any]], *, plain: Sequence[str] = ()
) -> list[Mistake]:
    """Return what keeps a rate that follows the noise from having a meaning in some configuration.

    That ``optim.lr`` stands beside it is told of every space (``SearchSpace.overruled``).

    Args:
        values: For each hyperparameter that is named, the values it can have.
        plain: As for ``settled``.
    """

    def always(name: str) -> bool:
        return name in values and None not in values[name]

    rates = [name for name in (NOISE_LR, NOISE_SCALE) if always(name)]
    if not rates:
        named = [*values.get(NOISE_LR, ()), *values.get(NOISE_SCALE, ())]
        is_none = list(values.get(LR, ())) == [None] and all(value is None for value in named)
        return [Mistake(LR, _NO_RATE, _ONE_RATE)] if is_none else []
    beside = f"leave it out, or write {LR} in the place of {rates[0]}"
    mistakes = [
        Mistake(
            name, f"is a learning rate beside {rates[0]} and would not follow the noise", beside
        )
        for name in plain
        if always(name)
    ]
    if not always(NOISE_SCALE):
        return mistakes
    if always(NOISE_LR):
        wrong = f"and {NOISE_LR} both say the learning rate"
        mistakes.append(Mistake(NOISE_SCALE, wrong, "leave one of the two out"))
    if None in values.get(INPUT_NORM, [None]):
        wrong = f"needs {INPUT_NORM}, the mean norm of what enters the linear layer"
        fix = "declare it: a public number, never the mean of private records"
        mistakes.append(Mistake(NOISE_SCALE, wrong, fix))
    rules = list(values.get("optim.name", ["sgd"]))
    if set(rules) <= set(ADAMS):
        wrong = f"has no meaning for {rules[0]}, which divides by the noise itself"
        mistakes.append(Mistake(NOISE_SCALE, wrong, f"give {NOISE_LR}, the rate of {rules[0]}"))
    return mistakes
