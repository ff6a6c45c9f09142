"""Published networks, built from the settings of ``backbones``: frozen ones and ones to finetune.

They are built of torch's, timm's and transformers' classes alone, so that an exported model loads
anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.networks.pretrained.backbones import LITE0, lite0_file
from dpsweep.trainables.networks.pretrained.image_front import normalize_layer, resize_layers
from dpsweep.trainables.networks.pretrained.image_text import build_tower
from dpsweep.trainables.networks.pretrained.weights import download, find_weights
from dpsweep.trainables.networks.pretrained.weights_file import misfit, read_weights
from dpsweep.trainables.networks.probe import mixes


def build_backbone(settings: Mapping[str, Any], info: DatasetInfo) -> nn.Module:
    """Return a frozen network: (records, C, h, w) float32 in [0, 1] -> (records, d) float32.

    Images are stretched to a square: enlarged bilinearly, shrunk by averaging. Grey becomes RGB.
    On the CPU, in eval mode, nothing to train, and every record is treated alone (checked).

    Args:
        settings: What ``backbone_settings`` returned; other keys are left alone.
        info: Shape of the records.
    Raises:
        ModelError: Records are not grey or colour images, or the network fails on them.
    """
    if len(info.input_shape) != 3 or info.input_shape[0] not in (1, 3):
        shape = "x".join(map(str, info.input_shape))
        raise ModelError(
            f"{settings['model']} needs grey or colour images, the records are {shape}",
            fix="use features.name: none",
        )
    with torch.random.fork_rng(devices=[]):
        if str(settings["model"]).startswith("clip/"):
            network = build_tower(settings)
        else:
            network = timm_network(settings, num_classes=0)
        resized = resize_layers(info.input_shape, int(settings["image_size"]))
        normalized = normalize_layer(info.input_shape[0], settings["mean"], settings["std"])
        model = nn.Sequential(*resized, normalized, network)
    # Channels last halves the time of convolutions on a CPU.
    model.eval().to(memory_format=torch.channels_last)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    _probe(model, settings, info)
    return model


def timm_network(
    settings: Mapping[str, Any], *, num_classes: int, options: Mapping[str, Any] | None = None
) -> Any:
    """Return timm's network with its published or given weights and a new classifier.

    It is built with the classifier that the weights have, for only then does timm refuse weights
    that do not fit; the classifier is replaced afterwards.

    Args:
        settings: What ``backbone_settings`` or ``published_settings`` returned.
        num_classes: Outputs of the new, random classifier; 0: none, the features.
        options: Further arguments of ``timm.create_model``.
    Raises:
        BadInputError: The file of weights cannot be read.
        ModelError: The weights are missing, have changed, or do not fit the network.
    """
    import timm

    name, size = str(settings["model"]), settings["image_size"]
    path = _timm_weights(settings)
    state = None if path.suffix == ".npz" else read_weights(path)
    if settings["weights"] == "package":
        assert state is not None
        state = _renamed(state, timm.create_model(name).state_dict(), name)
    try:
        network = load_as_timm(name, path if state is None else state, size, 3, options)
    except ModelError as error:
        raise ModelError(
            f"the weights of timm/{name} do not fit it at {_of_pixels(size)}",
            because=error.because,
            fix="use the model that they were made with, or leave features.image_size out",
        ) from error
    network.reset_classifier(num_classes)
    return network


def load_as_timm(
    name: str,
    source: Path | Mapping[str, torch.Tensor],
    image_size: int | tuple[int, ...] | None,
    channels: int,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Return timm's network with weights, and the classifier that they have, by timm's own rules.

    Layers that have been renamed since are found, the grid of position embeddings is resized, and
    a first layer for colour is summed over colours for grey images.

    Args:
        name: Name of the network in timm.
        source: A state dict, or a file of numpy's (``.npz``) that timm reads itself.
        image_size: Height and width of the images, or one number for both, pixels; None: as timm
            has it.
        channels: 1 or 3.
        options: Further arguments of ``timm.create_model``.
    Raises:
        ModelError: They do not fit.
    """
    import timm

    overlay: dict[str, Any] = {"label_offset": 0}
    arguments: dict[str, Any] = {"in_chans": channels, **(options or {})}
    if isinstance(source, Path):
        overlay["file"] = str(source)
    else:
        overlay["state_dict"] = dict(source)
        overlay["num_classes"] = _num_classes(source, timm.get_pretrained_cfg(name).classifier)
        arguments["num_classes"] = overlay["num_classes"]
    try:
        network = with_size(
            name, image_size, pretrained=True, pretrained_cfg_overlay=overlay, **arguments
        )
    except Exception as error:  # timm's rules each raise their own kinds
        reason = " ".join(str(error).split())[:300]
        if not isinstance(source, Path):
            reason = misfit(with_size(name, image_size, **arguments), source) or reason
        raise ModelError(
            f"the weights do not fit timm/{name}",
            because=reason,
            fix="name the network that they were trained in",
        ) from error
    # Neither a second copy of the weights nor the place where they lay belongs into an export.
    for facts in (network.pretrained_cfg, network.default_cfg):
        facts.pop("state_dict", None)
        facts.pop("file", None)
    return network


def with_size(name: str, image_size: int | tuple[int, ...] | None, **options: Any) -> Any:
    """Return ``timm.create_model``, told the size of images where the network asks for it."""
    import timm

    if image_size is not None:
        try:
            return timm.create_model(name, img_size=image_size, **options)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
    return timm.create_model(name, **options)


def _timm_weights(settings: Mapping[str, Any]) -> Path:
    name, sha256 = str(settings["model"]), settings["sha256"]
    if settings["weights"] == "package":
        place = lite0_file()
        return find_weights(sha256, [place], LITE0)
    try:
        return find_weights(sha256, [], f"timm/{name}")
    except ModelError:
        if settings["weights"] != "hub":
            raise
    import timm

    place = download(timm.get_pretrained_cfg(name).to_dict(), what=f"timm/{name}")
    return find_weights(sha256, [place], f"timm/{name}")


def _renamed(
    state: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor], name: str
) -> dict[str, torch.Tensor]:
    """Return entries under timm's names: both list the same layers in the same order."""

    def layout(entries: Mapping[str, torch.Tensor]) -> list[tuple[str, tuple[int, ...]]]:
        return [(key.rpartition(".")[2], tuple(entry.shape)) for key, entry in entries.items()]

    if layout(state) != layout(own):
        raise ModelError(
            f"the packaged weights do not map onto timm's {name}",
            because="the installed timm lists its layers in another order",
            fix="install the timm of constraints.txt",
        )
    return dict(zip(own, state.values()))


def _of_pixels(size: int | tuple[int, int]) -> str:
    height, width = (size, size) if isinstance(size, int) else size
    return f"{height} x {width} pixels"


def _num_classes(state: Mapping[str, torch.Tensor], classifier: Any) -> int:
    """Return the number of classes of the classifier in ``state``; 0 if there is none."""
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier or ())
    for name in names:
        weight = state.get(f"{name}.weight")
        if weight is not None:
            return int(weight.shape[0])
    return 0


def _probe(model: nn.Module, settings: Mapping[str, Any], info: DatasetInfo) -> None:
    """Run two random images: one vector each, and none may depend on the other image."""
    name = f"{settings['model']} at {_of_pixels(settings['image_size'])}"
    before = {key: value.clone() for key, value in model.named_buffers()}
    images = torch.rand(
        2, *info.input_shape, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    try:
        features = model(images)
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        raise ModelError(
            f"{name} fails: {' '.join(str(error).split())[:200]}",
            fix="use another features.image_size, or another features.name",
        ) from error
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != 2:
        raise ModelError(f"{name} does not give one vector per image", fix="use another network")
    is_mixed = mixes(model, images, features)
    changed = [k for k, value in model.named_buffers() if not torch.equal(value, before[k])]
    if is_mixed or changed:
        raise ModelError(
            f"{name} mixes the images of a batch: features of one depend on another",
            because=f"it keeps statistics in {changed[0]}" if changed else None,
            fix="use a network that treats every image alone",
        )
