"""DP-AdamBC: Adam whose second moment is freed of the noise that is known to be in it.

Tang, Shpilevskiy and Lecuyer 2024, "DP-AdamBC: Your DP-Adam is actually DP-SGD (unless you apply
bias correction)", AAAI (https://arxiv.org/abs/2312.14334), algorithm 1. Of a gradient with noise of
variance phi in each entry, Adam's second moment is that of the gradient plus phi. The update is

    theta - rate m^ / sqrt(max(v^ - phi^, gamma'))

with the bias-corrected moments m^ and v^. Where phi is (sigma C / B)^2 at every step, so is phi^.
Where noise or bound move, phi^ is the average of phi with the weights that v^ gives to its steps,
which is what v^ holds of the noise in expectation. gamma' is ``floor`` times phi^ here: a number
without a unit, that keeps its meaning at another epsilon, batch or bound.

Guarantees:
    Post-processing of noisy gradients and of phi, which is public.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class AdamBC(Optimizer):
    """Update rule of DP-AdamBC, with decoupled weight decay as AdamW has it.

    Before each step whoever trains sets ``noise_std`` of every group: the standard deviation of the
    noise in each entry of its gradients (``optim.tell_noise``).

    Args:
        params: What trains, or groups of it.
        lr: Learning rate.
        betas: Decay of the first and of the second moment.
        weight_decay: Times the rate, the share of a weight that a step takes away.
        floor: gamma' / phi^ > 0.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        floor: float,
    ) -> None:
        own = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "floor": floor}
        super().__init__(params, {**own, "noise_std": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step; ``closure`` has no meaning here."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state.update(step=0, noise=0.0)
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["noise"] = beta2 * state["noise"] + (1 - beta2) * group["noise_std"] ** 2
        whole = 1 - beta2 ** state["step"]
        noise = state["noise"] / whole
        size = (state["square"] / whole - noise).clamp_(min=group["floor"] * noise).sqrt_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] / (1 - beta1 ** state["step"])
        parameter.addcdiv_(state["mean"], size, value=-rate)
