"""Weight standardisation: convolutions whose weights have mean 0 and one size in each output.

Qiao et al. 2019 (https://arxiv.org/abs/1903.10520), scaled by the fan-in and with a gain that
trains, as Brock et al. 2021 (https://arxiv.org/abs/2101.08692) and De et al. 2022
(https://arxiv.org/abs/2204.13650) have it. A function of weights alone: no example meets another.
"""

from __future__ import annotations

import torch
from torch import nn

from dpsweep.foundation.errors import ModelError


def standardize_weights(model: nn.Module, name: str) -> None:
    """Rebuild every convolution of a network as timm's ``ScaledStdConv2d``, with its weights.

    Args:
        model: The network; changed in place.
        name: What it is called in errors.
    Raises:
        ModelError: It has no convolution, or one that cannot be rebuilt.
    """
    from timm.layers import ScaledStdConv2d

    convs = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    if not convs:
        raise ModelError(
            f"model.weight_standardization: {name} has no convolution", fix="leave it out"
        )
    for path, conv in convs:
        if type(conv) is not nn.Conv2d or conv.padding_mode != "zeros":
            raise ModelError(
                f"model.weight_standardization: layer {path} of {name} is a {type(conv).__name__} "
                "of its own, which has no standardised counterpart here",
                fix="use another model, or leave it out",
            )
        if conv.weight[0].numel() < 2:
            raise ModelError(
                f"model.weight_standardization: layer {path} of {name} has one weight per output, "
                "of which nothing is left",
                fix="use another model, or leave it out",
            )
        assert not isinstance(conv.padding, str)
        new = ScaledStdConv2d(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            conv.dilation,  # type: ignore[arg-type]
            conv.groups,
            conv.bias is not None,
        )
        with torch.no_grad():
            new.weight.copy_(conv.weight)
            if conv.bias is not None:
                assert new.bias is not None
                new.bias.copy_(conv.bias)
        parent, _, own = path.rpartition(".")
        setattr(model.get_submodule(parent), own, new)
