"""Carrying over: a configuration that was good on some records, for more of them.

A search on a part of the records (``search.on``) trains with sampling rate q and noise multiplier
sigma on N records, in expected batches of B = q N. The final run has N' records and a budget of its
own. What is the same in both is

- q, the epochs, the clipping norm C, momentum and schedule. So the batch grows with the records,
  B' = q N' to the nearest whole record, and the steps and the noise for an epsilon stay as they
  are but for that rounding.
- u / B, where u = rate C sigma (``noise_rates``): what the noise of a step moves the weights by.

So, of SGD, with sigma' for the noise of the final run:

    optim.noise_lr     u' = u B' / B
    optim.noise_scale  s' = s: it is divided by B already
    optim.lr           rate' = rate (B' / B) (sigma / sigma')
    others             as optim.lr: learning rates of a method's own phases

Koskela and Kulkarni 2023 (https://arxiv.org/abs/2301.11989) scale the rate with the records at
equal sigma, which is this. A rate that a method itself lets grow with the batch
(``optim.lr_scaling: batch``) is not scaled a second time. Adam and its kin divide by the size of
their gradients, so their rate plays the part of u / B and stays. ``optim.weight_decay`` is a term
of the loss, not a rate, and stays.

The noise is calibrated to the final run's whole budget: ``noise.noise_multiplier`` and
``noise.target_epsilon`` of a trial say what it may take of the search's, and are dropped.

Guarantees:
    Public numbers and a configuration that the search has released are all that is looked at.
    Not covered: that the result is the best configuration there. A part of share p has p times the
    signal at equal noise, so its best rate is that of a weaker signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.trainables.method import first_training_run
from dpsweep.trainables.methods.batches import sample_rate_of
from dpsweep.trainables.methods.hyperparameters import ADAMS
from dpsweep.trainables.methods.noise_rates import LR, NOISE_LR

if TYPE_CHECKING:
    from dpsweep.privacy.events import Plan
    from dpsweep.trainables.method import Method, PlanContext

_OWN_NOISE = ("noise.noise_multiplier", "noise.target_epsilon")


def carried_over(
    method: type[Method],
    hparams: Mapping[str, Any],
    plan: Plan,
    before: PlanContext,
    after: PlanContext,
    *,
    plain: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the hyperparameters for other records; see the module.

    Args:
        method: Samples by ``batch.*`` and adds Gaussian noise to sums of clipped gradients.
        hparams: Every hyperparameter with its value.
        plan: Of these hyperparameters, ``before``.
        before: What they were chosen with.
        after: What they are wanted for.
        plain: Further learning rates of the method.
    Raises:
        InfeasibleBudgetError: There is no plan for them.
    """
    carried = {**hparams, **{name: None for name in _OWN_NOISE if name in hparams}}
    if hparams["batch.sample_rate"] is None:
        rate = sample_rate_of(hparams, before.num_private)
        carried["batch.expected"] = max(1, round(rate * after.num_private))
    if hparams.get("optim.name") in ADAMS:
        return carried
    batches = _batch(carried, after) / _batch(hparams, before)
    noises = noise_of(plan) / noise_of(method.plan(carried, after))
    is_by_batch = hparams.get("optim.lr_scaling") == "batch"
    factors = {
        NOISE_LR: batches,
        LR: noises if is_by_batch else batches * noises,
        **dict.fromkeys(plain, batches * noises),
    }
    for name, factor in factors.items():
        if hparams.get(name) is not None:
            carried[name] = hparams[name] * factor
    return carried


def _batch(hparams: Mapping[str, Any], context: PlanContext) -> float:
    return sample_rate_of(hparams, context.num_private) * context.num_private


def noise_of(plan: Plan) -> float:
    """Return the noise multiplier of the first training step of a plan."""
    event: Any = first_training_run(plan).event
    return float(event.noise_multiplier)
