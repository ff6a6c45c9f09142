"""Image-text pairs: where they are, their image tower as a backbone, their text encoder.

A pair is a CLIP-like model of transformers, given as a directory that ``save_pretrained`` wrote or
as a name on the Hugging Face hub, or one of open_clip, given as ``open_clip/ARCHITECTURE/TAG``
(TAG: one of open_clip's, or a checkpoint file). Its weights must be public.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.networks.pretrained.weights import WeightsHash, download_pair, find_weights

if TYPE_CHECKING:
    import torch
    from torch import nn

_OPEN_CLIP = "open_clip/"
#: What stands for a directory's name in settings: a name is not what is in it.
_DIRECTORY = "transformers"


def tower_settings(name: str) -> dict[str, Any]:
    """Return a pair's part of ``backbone_settings``: the settings of its image tower.

    Args:
        name: The pair, as above.
    Raises:
        BadInputError: It is not there, or its normalisation of images is not written down.
        ModelError: It cannot be downloaded, or its package is missing.
    """
    if name.startswith(_OPEN_CLIP):
        return _open_clip_settings(name)
    directory = _find_pair(name)
    facts = _preprocessing(directory)
    config = _transformers().AutoConfig.from_pretrained(directory, local_files_only=True)
    is_local = Path(name).is_dir()
    return {
        "model": f"clip/{_DIRECTORY if is_local else name}",
        "weights": "checkpoint" if is_local else "hub",
        "sha256": WeightsHash.of(directory),
        "image_size": int(config.vision_config.image_size),
        "mean": tuple(map(float, facts["image_mean"])),
        "std": tuple(map(float, facts["image_std"])),
    }


def build_tower(settings: Mapping[str, Any]) -> nn.Module:
    """Return the image tower: (images, 3, size, size), normalised -> (images, d).

    Raises:
        ModelError: The weights are gone or changed, or the pair has no such tower.
    """
    name, size = str(settings["model"]).removeprefix("clip/"), int(settings["image_size"])
    if name.startswith(_OPEN_CLIP):
        return _open_clip_tower(settings, name, size)
    candidates = [] if settings["weights"] == "checkpoint" else [_find_pair(name)]
    pair = _load_transformers(find_weights(settings["sha256"], candidates, f"clip/{name}"))
    return _transformers_tower(pair, size)


def encode_texts(name: str, texts: Sequence[str]) -> torch.Tensor:
    """Return a pair's text encodings, (texts, d) float32 on the CPU, not normalised.

    Raises:
        BadInputError: A text is longer than the encoder takes, or the pair is not there.
        ModelError: The pair cannot be loaded.
    """
    import torch

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        if name.startswith(_OPEN_CLIP):
            architecture, tag = _open_clip_name(name)
            open_clip = _open_clip()
            model = _load_open_clip(architecture, tag)
            tokens = open_clip.get_tokenizer(architecture)(list(texts))
            encoded: torch.Tensor = model.encode_text(tokens)
            return encoded.float()
        directory = _find_pair(name)
        pair = _load_transformers(directory)
        tokenizer = _transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True)
        longest = int(pair.config.text_config.max_position_embeddings)
        for text, tokens in zip(texts, tokenizer(list(texts))["input_ids"]):
            if len(tokens) > longest:
                raise BadInputError(
                    f"the text {text!r} has {len(tokens)} tokens, the encoder takes {longest}",
                    fix="shorten the class name or the prompt",
                )
        batch = tokenizer(
            list(texts), padding="max_length", max_length=longest, return_tensors="pt"
        )
        return _pooled(pair.get_text_features(**batch)).float()


def _find_pair(name: str) -> Path:
    """Return the directory of a pair of transformers, downloaded if it is a name on the hub."""
    place = Path(name)
    if place.is_dir():
        return place
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        _transformers()  # before a download that nothing could read
        return download_pair(name)
    raise BadInputError(
        f"no image-text pair {name}",
        because="it is neither a directory here nor OWNER/NAME on the hub",
        fix="give a directory written by save_pretrained, OWNER/NAME, or open_clip/ARCH/TAG",
    )


def _preprocessing(directory: Path) -> Mapping[str, Any]:
    """Return what the image processor of a pair writes down: ``image_mean``, ``image_std``."""
    for file in ("preprocessor_config.json", "processor_config.json"):
        if (directory / file).is_file():
            facts = json.loads((directory / file).read_text(encoding="utf-8"))
            facts = facts.get("image_processor", facts)
            if all(len(facts.get(key) or ()) == 3 for key in ("image_mean", "image_std")):
                return dict(facts)
    raise BadInputError(
        f"{directory} does not say how images are normalised",
        because="no image_mean and image_std in preprocessor_config.json or processor_config.json",
        fix="save the pair's image processor into it (save_pretrained)",
    )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            "image-text pairs need the package transformers, which is not installed",
            fix="pip install 'dpsweep[text]'",
        ) from error
    return transformers


def _load_transformers(directory: Path) -> Any:
    transformers = _transformers()
    logging = transformers.utils.logging
    shows_progress = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        pair, report = transformers.AutoModel.from_pretrained(
            directory, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"cannot load the image-text pair in {directory}",
            because=" ".join(str(error).split())[:300],
            fix="give a directory written by save_pretrained",
        ) from error
    finally:
        if shows_progress:
            logging.enable_progress_bar()
    missing = sorted(map(str, report["missing_keys"]))
    if missing:
        # transformers would fill them with random numbers.
        raise ModelError(
            f"weights are missing in {directory}: {', '.join(missing[:5])}",
            fix="give the complete pair",
        )
    if not hasattr(pair, "vision_model") or not hasattr(pair, "get_text_features"):
        raise ModelError(
            f"{type(pair).__name__} is not an image-text pair",
            because="it has no vision_model, or no text features",
            fix="use a CLIP-like model",
        )
    return pair.float().eval()


def _pooled(output: Any) -> torch.Tensor:
    """Return the features of a tower, which transformers hands out bare or in a record."""
    pooled: torch.Tensor = getattr(output, "pooler_output", output)
    return pooled


def _transformers_tower(pair: Any, size: int) -> nn.Module:
    """Return ``get_image_features`` as a network of its own, and check that it is the same.

    It is written as a graph, so that no class of this package is in an exported model.
    """
    import torch
    from torch import fx, nn

    trained = int(pair.config.vision_config.image_size)
    options = {} if size == trained else {"interpolate_pos_encoding": True}
    parts = {"vision_model": pair.vision_model}
    graph = fx.Graph()
    images = graph.placeholder("images")
    record = graph.call_module("vision_model", kwargs={"pixel_values": images, **options})
    features = graph.call_function(getattr, (record, "pooler_output"))
    if isinstance(getattr(pair, "visual_projection", None), nn.Module):
        parts["visual_projection"] = pair.visual_projection
        features = graph.call_module("visual_projection", (features,))
    graph.output(features)
    tower = fx.GraphModule(nn.ModuleDict(parts), graph, class_name="ImageTower").eval()
    example = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            own, wanted = tower(example), _pooled(pair.get_image_features(example, **options))
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{type(pair).__name__} fails on {size} x {size} images",
            because=" ".join(str(error).split())[:200],
            fix=f"leave features.image_size out (it was trained at {trained})",
        ) from error
    if not isinstance(own, torch.Tensor) or not torch.equal(own, wanted):
        raise ModelError(
            f"the image tower of {type(pair).__name__} is not built like CLIP's",
            fix="use a CLIP or SigLIP model",
        )
    return tower


def _open_clip() -> Any:
    try:
        import open_clip
    except ImportError as error:
        raise ModelError(
            "names that begin with open_clip/ need that package, which is not installed",
            fix="pip install open_clip_torch, or use a model of transformers",
        ) from error
    return open_clip


def _open_clip_name(name: str) -> tuple[str, str]:
    """Return architecture and tag (or checkpoint file) of ``open_clip/ARCHITECTURE/TAG``."""
    architecture, _, tag = name.removeprefix(_OPEN_CLIP).partition("/")
    open_clip = _open_clip()
    if open_clip.get_model_config(architecture) is None:
        raise BadInputError(
            f"open_clip has no architecture {architecture!r}", fix="see open_clip.list_models()"
        )
    if not open_clip.is_pretrained_cfg(architecture, tag) and not Path(tag).is_file():
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(architecture))
        raise BadInputError(
            f"open_clip has no weights {tag!r} for {architecture}",
            fix=f"give a checkpoint file, or one of: {tags}",
        )
    return architecture, tag


def _open_clip_settings(name: str) -> dict[str, Any]:
    architecture, tag = _open_clip_name(name)
    open_clip = _open_clip()
    is_file = Path(tag).is_file()
    facts = {} if is_file else open_clip.get_pretrained_cfg(architecture, tag)
    size = open_clip.get_model_config(architecture)["vision_cfg"]["image_size"]
    return {
        "model": f"clip/{_OPEN_CLIP}{architecture}" + ("" if is_file else f"/{tag}"),
        "weights": "checkpoint" if is_file else "hub",
        "sha256": WeightsHash.of(_open_clip_file(architecture, tag)),
        "image_size": int(size[0] if isinstance(size, (tuple, list)) else size),
        "mean": tuple(map(float, facts.get("mean", open_clip.OPENAI_DATASET_MEAN))),
        "std": tuple(map(float, facts.get("std", open_clip.OPENAI_DATASET_STD))),
    }


def _open_clip_file(architecture: str, tag: str) -> Path:
    """Return the file with the weights, downloaded if it is not in open_clip's cache."""
    if Path(tag).is_file():
        return Path(tag)
    open_clip = _open_clip()
    try:
        return Path(open_clip.download_pretrained(open_clip.get_pretrained_cfg(architecture, tag)))
    except Exception as error:  # the hub and the network each raise their own kinds
        raise ModelError(
            f"cannot download {architecture}/{tag} of open_clip: {type(error).__name__}",
            because=str(error).split("\n")[0][:200],
            fix=f"give a file: open_clip/{architecture}/PATH",
        ) from error


def _load_open_clip(architecture: str, tag: str, **options: Any) -> Any:
    open_clip = _open_clip()
    _open_clip_file(architecture, tag)  # says clearly what cannot be downloaded
    try:
        return open_clip.create_model(
            architecture, pretrained=tag, require_pretrained=True, **options
        ).eval()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"cannot load {architecture}/{tag} of open_clip",
            because=" ".join(str(error).split())[:300],
            fix="use weights that were made for this architecture",
        ) from error


def _open_clip_tower(settings: Mapping[str, Any], name: str, size: int) -> nn.Module:
    architecture, _, tag = name.removeprefix(_OPEN_CLIP).partition("/")
    candidates = [_open_clip_file(architecture, tag)] if tag else []
    path = find_weights(settings["sha256"], candidates, name)
    model = _load_open_clip(architecture, tag or str(path), force_image_size=size)
    tower: nn.Module = model.visual
    return tower
