"""Zero-shot initialisation: a linear head made of the names of the classes.

An image-text pair puts images and descriptions into one space, so the encoding of "a photo of a
cat" is a usable weight vector for cats before any record is seen (Radford et al. 2021,
https://arxiv.org/abs/2103.00020; Golatkar et al. 2022, https://arxiv.org/abs/2203.11481, section
3.3). Names are public, so it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.networks.pretrained.image_text import encode_texts

if TYPE_CHECKING:
    import torch


def class_prompts(class_names: Sequence[str], prompt: str = "a photo of a {}") -> list[str]:
    """Return one description per class; underscores of a name are read as spaces.

    >>> class_prompts(["ankle_boot", "Bag"])
    ['a photo of a ankle boot', 'a photo of a Bag']

    Raises:
        BadInputError: There is no class, a name is empty or given twice, all of them are numbers,
            or the prompt has not one place for it.
    """
    if prompt.count("{}") != 1:
        raise BadInputError(
            f"the prompt {prompt!r} must have one {{}}, where the name of the class goes",
            fix="for example 'a photo of a {}'",
        )
    if class_names and all(name.isdecimal() for name in class_names):
        raise BadInputError(
            "text initialisation needs the names of the classes, and these are numbers",
            because=f"the names are {', '.join(map(repr, class_names))}",
            fix="name them, data.class_names: [cat, dog, ...], or use init.kind: public",
        )
    words = [name.replace("_", " ").strip() for name in class_names]
    if not words or not all(words) or len(set(words)) < len(words):
        raise BadInputError(
            "text initialisation needs a different name for every class",
            because=f"the names are {', '.join(map(repr, class_names)) or 'none'}",
            fix="name the classes, or use init.kind: public",
        )
    return [prompt.replace("{}", word) for word in words]


def text_weights(
    class_names: Sequence[str],
    *,
    model: str,
    prompt: str = "a photo of a {}",
    scale: float = 100.0,
) -> torch.Tensor:
    """Return the weights of a linear head: scale times the normalised encoding of each class.

    On L2-normalised image features x of the same pair, the logits are scale * cos(x, text), which
    is the pair's own zero-shot classifier. Guarantees: reads class names only, no record.

    Args:
        class_names: One name per class.
        model: The pair (see ``image_text``), that is ``features.name`` without ``clip/``.
        prompt: Description with ``{}`` for the name.
        scale: Inverse temperature beta > 0; 100 is what CLIP was trained to.
    Returns:
        (classes, d) float32 on the CPU; d is the width of the pair's image features.
    Raises:
        BadInputError: Names, prompt or scale do not fit, or the pair is not there.
        ModelError: The pair cannot be loaded, or gives no direction for a class.
    """
    scale = validate.positive("scale", scale)
    encoded = encode_texts(model.removeprefix("clip/"), class_prompts(class_names, prompt))
    norms = encoded.norm(dim=1, keepdim=True)
    if not all(math.isfinite(norm) and norm > 0 for norm in norms.flatten().tolist()):
        raise ModelError(
            f"{model} encodes a class as zero, or not as a number", fix="use another model"
        )
    return scale * encoded / norms


def text_head(
    hparams: Mapping[str, Any], class_names: Sequence[str], like: torch.Tensor
) -> torch.Tensor:
    """Return the text weights of a configuration, for a head of the shape and place of ``like``.

    Raises:
        BadInputError: The features are not those of an image-text pair, or of another width.
    """
    features = hparams["features.name"]
    if not features.startswith("clip/"):
        raise BadInputError(
            f"init.kind=text needs features of an image-text pair, not {features}",
            fix="features.name: clip/NAME",
        )
    weights = text_weights(
        class_names,
        model=features.removeprefix("clip/"),
        prompt=hparams["init.prompt"],
        scale=hparams["init.scale"],
    )
    if weights.shape != like.shape:
        raise BadInputError(
            f"text weights have shape {tuple(weights.shape)}, features need {tuple(like.shape)}",
            fix="use the image tower that belongs to the text tower",
        )
    return weights.to(like)
