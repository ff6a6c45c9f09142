"""Networks of transformers on text: where they are, and how they load.

``DIRECTORY`` was written by ``save_pretrained``; ``NAME`` or ``OWNER/NAME`` is on the Hugging Face
hub, and is taken from the cache of this machine where it is there whole. Weights must be public.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError, ModelError

#: What the name of such a network begins with.
TEXT = "text/"
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_FACTS = ("*.json", "*.txt", "*.model")
_POOLING = Path("1_Pooling", "config.json")


def find_directory(name: str, *, with_weights: bool = True) -> Path:
    """Return the directory of ``text/DIRECTORY`` or ``text/OWNER/NAME``, downloaded if need be.

    Args:
        name: As in ``model.name``.
        with_weights: False if its configuration is enough.
    Raises:
        BadInputError: It is neither an absolute path of such a directory nor a name on the hub.
        ModelError: It cannot be downloaded.
    """
    named = name.removeprefix(TEXT)
    directory = Path(named).expanduser()
    if not directory.is_absolute():
        if directory.is_dir():
            raise BadInputError(
                f"{directory} is a relative path, and trials run in directories of their own",
                fix=f"give {TEXT}{directory.absolute()}",
            )
        if named.count("/") > 1 or named.startswith((".", "~")):
            raise BadInputError(
                f"there is no directory {named} here, and no name on the hub is like that",
                fix=f"give {TEXT}/ABSOLUTE/DIRECTORY, {TEXT}NAME or {TEXT}OWNER/NAME",
            )
        place = _download(named, with_weights)
        if isinstance(place, ModelError):
            raise place
        directory = place
    if not (directory / "config.json").is_file():
        raise BadInputError(
            f"no network of transformers in {directory}",
            because="there is no config.json",
            fix="give text/DIRECTORY, with a directory written by save_pretrained",
        )
    return directory


def has_weights(directory: Path) -> bool:
    """Say whether a directory holds weights beside its configuration."""
    return any(any(directory.glob(pattern)) for pattern in _WEIGHTS)


@lru_cache(maxsize=32)  # without a network each try takes half a minute
def _download(name: str, with_weights: bool) -> Path | ModelError:
    """Return the directory of a name on the hub, or why there is none."""
    import huggingface_hub
    from huggingface_hub.utils import logging

    def fetched(patterns: tuple[str, ...], **options: Any) -> Path:
        return Path(
            huggingface_hub.snapshot_download(
                name, allow_patterns=list(patterns), ignore_patterns="*/*.safetensors", **options
            )
        )

    try:
        place = fetched((*_FACTS, *_WEIGHTS), local_files_only=True)
        if (place / "config.json").is_file() and (has_weights(place) or not with_weights):
            return place
    except (OSError, ValueError):
        pass  # nothing of it is in the cache
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it says of each retry that there is no network
    try:
        for pattern in _WEIGHTS if with_weights else ("config.json",):
            place = fetched((*_FACTS, pattern))
            if not with_weights or has_weights(place):
                return place
    except Exception as error:  # the hub and the network each raise their own kinds
        return ModelError(
            f"cannot load {TEXT}{name} from the hub: {type(error).__name__}",
            because=" ".join(str(error).split())[:200],
            fix="check the name, or give text/DIRECTORY, an absolute path of a directory that "
            "save_pretrained wrote where the hub is reachable",
        )
    finally:
        logging.set_verbosity(verbosity)
    return ModelError(f"{TEXT}{name} has no weights that can be loaded", fix="use another network")


def asks_for_mean(directory: Path) -> bool:
    """Say whether sentence-transformers trained an encoder for the mean of its outputs."""
    file = directory / _POOLING
    if not file.is_file():
        return False
    facts = json.loads(file.read_text(encoding="utf-8"))
    return bool(facts.get("pooling_mode_mean_tokens") or facts.get("pooling_mode") == "mean")


def configuration(directory: Path, *, pad_id: int, num_labels: int | None) -> Any:
    """Return the configuration of a network: no dropout, and as many classes as are needed.

    Args:
        directory: Of ``find_directory``.
        pad_id: Id of padding.
        num_labels: Classes; None for a language model.
    """
    transformers = _transformers()
    config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    config.pad_token_id = pad_id
    config.use_cache = False
    if num_labels is not None:
        config.num_labels = num_labels
    for key, value in config.to_dict().items():
        if "drop" in key and type(value) is float:
            setattr(config, key, 0.0)
    return config


def load_network(
    kind: str, directory: Path, *, pad_id: int, num_labels: int | None
) -> tuple[Any, set[str]]:
    """Return a network of transformers, and the names of its weights that are random.

    Args:
        kind: Its class, as ``AutoModel``.
        directory: Of ``find_directory``.
        pad_id: Id of padding.
        num_labels: Classes; None for a language model.
    Raises:
        ModelError: It cannot be loaded.
    """
    transformers = _transformers()
    try:
        with quiet(transformers):
            network, report = getattr(transformers, kind).from_pretrained(
                directory,
                config=configuration(directory, pad_id=pad_id, num_labels=num_labels),
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
            )
    except Exception as error:  # each architecture and file format raises its own kinds
        raise _unloadable(kind, directory, error) from error
    wrong_size = {key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]}
    return network, {*map(str, report["missing_keys"]), *wrong_size}


def random_network(kind: str, directory: Path, *, num_labels: int | None) -> nn.Module:
    """Return a network by its configuration alone: to be looked at, under torch's meta device.

    Raises:
        ModelError: There is no such network.
    """
    transformers = _transformers()
    try:
        with quiet(transformers):
            config = configuration(directory, pad_id=0, num_labels=num_labels)
            network: nn.Module = getattr(transformers, kind).from_config(config)
    except Exception as error:  # each architecture raises its own kinds
        raise _unloadable(kind, directory, error) from error
    return network


def names_language_model(directory: Path) -> bool:
    """Say whether a configuration is that of a network which predicts the next token."""
    facts = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    names = facts.get("architectures") or ()
    return any(str(name).endswith(("LMHeadModel", "ForCausalLM")) for name in names)


def _unloadable(kind: str, directory: Path, error: Exception) -> ModelError:
    return ModelError(
        f"cannot load {kind.removeprefix('Auto')} from {directory}",
        because=" ".join(str(error).split())[:300],
        fix="give a directory written by save_pretrained, of an encoder or a language model",
    )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            "text/DIRECTORY needs the package transformers, which is not installed",
            fix="pip install 'dpsweep[text]'",
        ) from error
    return transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers' table of missing weights and its progress bar off the screen."""
    logging = transformers.utils.logging
    level, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows_progress:
            logging.enable_progress_bar()
