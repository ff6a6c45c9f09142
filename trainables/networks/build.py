"""Networks: a linear head, the tanh CNNs of DP-SGD papers on images or ScatterNet features, timm.

Every network here lets each example's gradient be computed alone: none mixes the examples of a
batch, and none draws random numbers (``no_dropout``). All are built of torch's and timm's own
classes, so that an exported one loads anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.networks.cnns import CNNS
from dpsweep.trainables.networks.layers import lay_out, set_training_mode
from dpsweep.trainables.networks.no_dropout import remove_dropout
from dpsweep.trainables.networks.own_models import is_own, own_network, unended
from dpsweep.trainables.networks.pretrained.backbones import published_settings
from dpsweep.trainables.networks.pretrained.image_front import (
    IMAGENET,
    figures_of,
    normalize_layer,
    resize_layers,
)
from dpsweep.trainables.networks.pretrained.published_networks import (
    load_as_timm,
    timm_network,
)
from dpsweep.trainables.networks.pretrained.timm_classifier import (
    OPTIONS,
    STEM,
    options_of,
    timm_classifier,
)
from dpsweep.trainables.networks.pretrained.weights import PUBLISHED
from dpsweep.trainables.networks.pretrained.weights_file import fits, load_weights, read_weights
from dpsweep.trainables.networks.probe import probe
from dpsweep.trainables.networks.standardized import standardize_weights
from dpsweep.trainables.networks.text import TEXT, build_text

NORMS = ("refuse", "group", "frozen")


def build_model(
    name: str,
    info: DatasetInfo,
    *,
    norm: str = "refuse",
    seed: int,
    checkpoint: str | None = None,
    image_size: int | None = None,
    normalize: str | None = None,
    standardize: bool = False,
    options: str | None = None,
    stem: str | None = None,
    is_initial: bool = True,
) -> nn.Module:
    """Return a classifier on the CPU: (batch, *input_shape) float32 -> (batch, classes) logits.

    Networks on text are others: see ``dpsweep.trainables.networks.text.build_text``.

    Args:
        name: ``linear``; ``tanh_cnn``, ``tanh_cnn_deep`` or ``tanh_cnn_small`` (Tramer & Boneh
            2021, https://arxiv.org/abs/2011.11660, tables 6, 7 and 20); ``scatter_cnn`` or
            ``scatter_cnn_deep`` on ScatterNet features (ibid., tables 8 and 9); ``timm/NAME`` for
            a timm classifier with random weights; ``PACKAGE.MODULE:FUNCTION`` for the user's own
            (``own_models``); ``text/DIRECTORY`` for a network of transformers with its weights.
        info: Input shape and number of classes.
        norm: What becomes of BatchNorm, which mixes examples: ``refuse`` it, rebuild it as
            GroupNorm (``group``), or keep its statistics and weights as they are (``frozen``).
        seed: Seed of the initial weights; the global generator is left as it was.
        checkpoint: Public initial weights: a file (torch or safetensors state dict), whose
            classifier may be missing or have another size, and is then random, and which fits a
            network of timm's by timm's rules (``load_as_timm``); or ``published``, timm's own
            weights with a random classifier, behind the normalisation they were trained with.
        image_size: Images are resized to this many pixels in the network; None: as they are.
        normalize: Grey or colour images become RGB and are normalised in the network as ImageNet's
            (``imagenet``), as timm says of the network's own weights (``timm``), or by figures,
            MEAN/STD of images in [0, 1], one number each or one for each of three channels; None:
            they stay as they are. ``published`` weights have theirs already.
        standardize: Weights of convolutions are standardised (``standardized``).
        options: Further arguments of timm's network, as JSON (``model.options``).
        stem: ``cifar`` for a ResNet's first layers as small images want them (``small_stem``).
        is_initial: False if a state dict follows: no initial weights are read.
    Raises:
        ModelError: The network cannot be built for this data, or examples influence each other.
        BadInputError: Unknown name, or a checkpoint that does not fit.
    """
    if norm not in NORMS:
        raise BadInputError(f"unknown model.norm {norm!r}", fix=f"one of {', '.join(NORMS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if info.text is not None or name.startswith(TEXT):
            names = ("checkpoint", "image_size", "normalize", "options", "stem")
            values = (checkpoint, image_size, normalize, options, stem)
            key = next((f"model.{n}" for n, v in zip(names, values) if v is not None), None)
            if key is not None:
                raise BadInputError(
                    f"{key} has no meaning for text: the directory holds network and weights",
                    fix="leave it out",
                )
            return build_text(name, info)
        arguments = options_of(options)
        if (options is not None or stem is not None) and not name.startswith("timm/"):
            key = OPTIONS if options is not None else STEM
            raise BadInputError(
                f"{key} is for networks of timm's, not {name}", fix="leave it out, or use timm/NAME"
            )
        if checkpoint == PUBLISHED:
            if stem is not None:
                raise BadInputError(
                    f"{STEM}: {stem} has no published weights", fix="leave one of the two out"
                )
            if normalize is not None:
                raise BadInputError(
                    f"model.normalize: {normalize} has no meaning for published weights, which "
                    "have a normalisation of their own",
                    fix="leave it out",
                )
            model = _published(name, info, image_size, arguments, with_weights=is_initial)
            _treat_batch_norm(model, name, norm)
        else:
            front = [] if image_size is None else _resize(name, info, image_size)
            seen = _resized(info, image_size)
            if normalize is not None:
                front.append(_normalization(name, info, normalize))
                seen = replace(seen, input_shape=(3, *seen.input_shape[1:]))
            model = _build(name, seen, arguments, stem)
            if standardize:
                standardize_weights(model, name)
            path = Path(checkpoint) if checkpoint and is_initial else None
            _start_from(model, name, norm, path, seen, None if stem else arguments)
            model = nn.Sequential(*front, model) if front else model
        for module in model.modules():
            # Opacus' backward hooks hand out views, which in-place activations may not write to.
            if getattr(module, "inplace", False) is True:
                module.inplace = False  # type: ignore[assignment]
        remove_dropout(model)
        set_training_mode(model)
        lay_out(model, "cpu")
        with unended(name):
            probe(model, name, info)
    return model


def build_untreated(
    name: str, num_classes: int, *, channels: int = 3, image_size: int | None = None
) -> nn.Module:
    """Return a network as its definition says: BatchNorm and all, nothing checked or run.

    For looking at, not for training (see ``build_model``). Under ``torch.device("meta")`` its
    weights take no memory.

    Args:
        name: As in ``build_model``.
        num_classes: Outputs of the classifier.
        channels: Channels of an image.
        image_size: Height and width of an image, pixels; None: as timm defines the network.
    Raises:
        ModelError: The network cannot be built for such images.
        BadInputError: Unknown name, or a built-in network without a size.
    """
    if name.startswith("timm/"):
        size = None if image_size is None else (image_size, image_size)
        return timm_classifier(name.removeprefix("timm/"), num_classes, channels, size)
    if image_size is None:  # also of the user's own
        raise BadInputError(f"the size of {name} follows from its images; give an image size")
    shape = (channels, image_size, image_size)
    return _build(name, DatasetInfo("", shape, num_classes, 0, 0, 0, 0, ()))


def _build(
    name: str,
    info: DatasetInfo,
    options: Mapping[str, Any] | None = None,
    stem: str | None = None,
) -> nn.Module:
    if is_own(name):
        return own_network(name, info)
    if name == "linear":
        features = int(torch.Size(info.input_shape).numel())
        return nn.Sequential(nn.Flatten(), nn.Linear(features, info.num_classes))
    if len(info.input_shape) != 3:
        raise ModelError(
            f"{name} needs images, but the records have shape {info.input_shape}",
            fix="use model.name: linear",
        )
    if name in CNNS:
        return CNNS[name](info)
    if name.startswith("timm/"):
        channels, *size = info.input_shape
        plain = name.removeprefix("timm/")
        return timm_classifier(
            plain, info.num_classes, channels, tuple(size), options=options, stem=stem
        )
    kinds = (*BUILT_IN, "timm/NAME", "text/DIRECTORY", "PACKAGE.MODULE:FUNCTION")
    hint = did_you_mean(name, kinds)
    raise BadInputError(
        f"unknown model {name!r}", fix=(hint + " " if hint else "") + f"known: {', '.join(kinds)}"
    )


#: Networks that need no timm; their size follows from the shape of the records.
BUILT_IN = ("linear", *CNNS)


def _published(
    name: str,
    info: DatasetInfo,
    image_size: int | None,
    options: Mapping[str, Any],
    *,
    with_weights: bool,
) -> nn.Sequential:
    """Return timm's network with its published weights behind resizing and normalisation."""
    plain = name.removeprefix("timm/")
    if plain == name:
        raise BadInputError(
            f"model.checkpoint: {PUBLISHED} needs one of timm's networks, not {name}",
            fix="use model.name: timm/NAME, or name a file",
        )
    if len(info.input_shape) != 3 or info.input_shape[0] not in (1, 3):
        shape = "x".join(map(str, info.input_shape))
        raise ModelError(
            f"{name} with published weights needs grey or colour images, not {shape}",
            fix="start from other weights",
        )
    front = [] if image_size is None else _resize(name, info, image_size)
    channels, height, width = _resized(info, image_size).input_shape
    settings = published_settings(name, image_size=(height, width), with_weights=with_weights)
    if with_weights:
        network = timm_network(settings, num_classes=info.num_classes, options=options)
    else:
        network = timm_classifier(plain, info.num_classes, 3, (height, width), options=options)
    front.append(normalize_layer(channels, settings["mean"], settings["std"]))
    return nn.Sequential(*front, network)


def _resize(name: str, info: DatasetInfo, size: int) -> list[nn.Module]:
    if len(info.input_shape) != 3:
        raise ModelError(
            f"model.image_size: the records of shape {info.input_shape} are no images",
            fix="leave it out",
        )
    return resize_layers(info.input_shape, size)


def _normalization(name: str, info: DatasetInfo, how: str) -> nn.Module:
    """Return the layer that normalises images, and makes grey ones RGB, before a network."""
    if len(info.input_shape) != 3 or info.input_shape[0] not in (1, 3):
        shape = "x".join(map(str, info.input_shape))
        raise ModelError(
            f"model.normalize: {how} needs grey or colour images, not {shape}", fix="leave it out"
        )
    if how == "imagenet":
        return normalize_layer(info.input_shape[0], *IMAGENET)
    if "/" in how:
        return normalize_layer(info.input_shape[0], *figures_of(how))
    if not name.startswith("timm/"):
        raise BadInputError(
            f"model.normalize: {how} needs one of timm's networks, not {name}",
            fix="use model.normalize: imagenet, or leave it out",
        )
    try:
        facts = published_settings(name, image_size=info.input_shape[1:], with_weights=False)
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(
            f"model.normalize: {how}: timm publishes no weights of {name}, and so no normalisation",
            fix="use model.normalize: imagenet, or leave it out",
        ) from error
    return normalize_layer(info.input_shape[0], facts["mean"], facts["std"])


def _resized(info: DatasetInfo, size: int | None) -> DatasetInfo:
    """Return the facts of the same images in another size."""
    return info if size is None else replace(info, input_shape=(info.input_shape[0], size, size))


def _start_from(
    model: nn.Module,
    name: str,
    norm: str,
    path: Path | None,
    info: DatasetInfo,
    options: Mapping[str, Any] | None,
) -> None:
    """Load weights, if any, and treat BatchNorm: which is first depends on the weights.

    Weights of a network that was trained with GroupNorm in its place hold no statistics. Those
    that do not fit a network of timm's as they are may fit it by timm's rules.

    Args:
        options: Further arguments of timm's network; None if it is timm's no more.
    """
    if path is None:
        _treat_batch_norm(model, name, norm)
        return
    is_timms = name.startswith("timm/") and options is not None and info.input_shape[0] in (1, 3)
    if is_timms and path.suffix == ".npz":
        state = _in_timms_names(name, path, path, info, options)
    else:
        state = read_weights(path)
        if norm == "group" and not _has_statistics(state):
            _treat_batch_norm(model, name, norm)
            load_weights(model, state, path)
            return
        if is_timms and not fits(model, state):
            state = _in_timms_names(name, state, path, info, options)
    load_weights(model, state, path)
    _treat_batch_norm(model, name, norm)


def _in_timms_names(
    name: str,
    source: Path | Mapping[str, torch.Tensor],
    path: Path,
    info: DatasetInfo,
    options: Mapping[str, Any] | None,
) -> Mapping[str, torch.Tensor]:
    """Return weights as the network of this size has them."""
    channels, *size = info.input_shape
    plain = name.removeprefix("timm/")
    try:
        network: nn.Module = load_as_timm(plain, source, tuple(size), channels, options)
    except ModelError as error:
        raise BadInputError(
            f"{path} does not fit the model: {error.because}",
            fix="use the model that the weights were made with",
        ) from error
    return network.state_dict()


def _has_statistics(state: Mapping[str, torch.Tensor]) -> bool:
    return any(key.endswith("running_mean") for key in state)


def _batch_norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    for path, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield path, module


def _treat_batch_norm(model: nn.Module, name: str, norm: str) -> None:
    norms = list(_batch_norms(model))
    if norms and norm == "refuse":
        path, module = norms[0]
        raise ModelError(
            f"{name} has BatchNorm: layer {path} ({type(module).__name__})"
            + (f" and {len(norms) - 1} more" if len(norms) > 1 else ""),
            because="it mixes the examples of a batch, so that no example has a gradient alone",
            fix="set model.norm to group (rebuild as GroupNorm) or frozen (keep its statistics)",
        )
    for path, module in norms:
        if norm == "frozen":
            for parameter in module.parameters():
                parameter.requires_grad_(False)
        else:
            parent = model.get_submodule(path.rpartition(".")[0])
            setattr(parent, path.rpartition(".")[2], _group_norm(module))


def _group_norm(old: _BatchNorm) -> nn.Module:
    """Return GroupNorm in the largest number of groups, up to 32, that divides the channels.

    Groups have two channels at least: torch refuses to normalise a single value, which a batch of
    one example would have wherever the image has shrunk to one pixel.
    """
    channels = old.num_features
    most = max(1, min(32, channels // 2))
    groups = next(count for count in range(most, 0, -1) if channels % count == 0)
    new = nn.GroupNorm(groups, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        with torch.no_grad():
            new.weight.copy_(old.weight)
            new.bias.copy_(old.bias)
    # timm's BatchNorm classes also drop and activate.
    rest = [
        getattr(old, part)
        for part in ("drop", "act")
        if isinstance(getattr(old, part, None), nn.Module)
    ]
    return nn.Sequential(new, *rest) if rest else new


def device_summary() -> str:
    """Return the devices torch can use, in words."""
    if not torch.cuda.is_available():
        return f"CPU (torch {torch.__version__})"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"CUDA: {', '.join(names)} (torch {torch.__version__})"
