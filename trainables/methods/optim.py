"""Update rules and learning rate schedules; all of it post-processing of noisy gradients.

Loads no torch until there is an optimizer to build.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.trainables.methods.hyperparameters import FLOOR
from dpsweep.trainables.networks.torch_process import uncompiled

if TYPE_CHECKING:
    import torch


def build_optimizer(
    parameters: Sequence[torch.nn.Parameter] | Sequence[dict[str, Any]], hparams: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Return SGD with momentum, Adam, AdamW or DP-AdamBC.

    Kingma & Ba 2015 (https://arxiv.org/abs/1412.6980); Loshchilov & Hutter 2019
    (https://arxiv.org/abs/1711.05101); ``extras.adam_bc``.

    Args:
        parameters: What trains, or groups of it as torch's optimizers take them.
        hparams: The hyperparameters whose names begin with ``optim.``.
    """
    import torch

    lr = hparams["optim.lr"]
    weight_decay = hparams["optim.weight_decay"]
    if hparams["optim.name"] == "sgd":
        return uncompiled(torch.optim.SGD)(
            parameters, lr=lr, momentum=hparams["optim.momentum"], weight_decay=weight_decay
        )
    shared = {
        "lr": lr,
        "betas": (hparams["optim.beta1"], hparams["optim.beta2"]),
        "weight_decay": weight_decay,
    }
    if hparams["optim.name"] == "adam_bc":
        from dpsweep.trainables.methods.extras.adam_bc import AdamBC

        return uncompiled(AdamBC)(parameters, floor=hparams[FLOOR.name], **shared)
    rules = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return uncompiled(rules[hparams["optim.name"]])(parameters, **shared)


def tell_noise(optimizer: torch.optim.Optimizer, std: float) -> None:
    """Tell an update rule that asks for it how much noise the next gradients have.

    Args:
        optimizer: What ``build_optimizer`` returned.
        std: Standard deviation of the noise in each entry of a mean gradient.
    """
    for group in optimizer.param_groups:
        if "noise_std" in group:
            group["noise_std"] = std


def learning_rates(hparams: Mapping[str, Any], num_steps: int) -> np.ndarray:
    """Return the learning rate of every step, float64 (num_steps,).

    Warm-up rises linearly and reaches the peak at its last step; then constant, or a half cosine
    that would reach zero one step after the last (so that the last step still moves).

    >>> hparams = {"optim.lr": 1.0, "optim.warmup_fraction": 0.5, "optim.schedule": "cosine"}
    >>> learning_rates(hparams, 4).round(3).tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    warmup = math.floor(hparams["optim.warmup_fraction"] * num_steps)
    rates = np.full(num_steps, float(hparams["optim.lr"]))
    rates[:warmup] *= np.arange(1, warmup + 1) / max(warmup, 1)
    if hparams["optim.schedule"] == "cosine":
        left = num_steps - warmup
        rates[warmup:] *= (1 + np.cos(np.pi * np.arange(left) / max(left, 1))) / 2
    return rates
