"""Values that all finetuning of images shares, whichever of the weights it trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A public network that knows photographs; small images are enlarged for it.
NETWORK: Mapping[str, Any] = {
    "model.name": "timm/tf_efficientnet_lite0",
    "model.checkpoint": "published",
    "model.norm": "frozen",
    "model.image_size": 64,
}
#: One configuration whose learning rate follows from the noise (``methods.noise_rates``).
WITHOUT_SEARCH: Mapping[str, Any] = {
    "optim.noise_scale": 0.4,
    "optim.input_norm": 1,
    "optim.momentum": 0.9,
    "optim.schedule": "cosine",
    "clip.max_grad_norm": 0.1,
    "batch.expected": 256,
    "train.epochs": 5,
}
