"""Places of datasets: whether two sections of a spec mean the same records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpsweep.spec.base import peek, peek_word
from dpsweep.spec.data.datasets import BUILT_IN


def kind_beside(block: Any, data: Any) -> str:
    """Return the dataset that a raw section names which stands beside the raw section ``data``.

    Without a name it is npz for a path that ends so, else the kind of ``data`` itself, of which a
    text reads .npz files, too.

    >>> kind_beside({"path": "a.npz"}, {"dataset": "digits"})
    'npz'
    >>> kind_beside({"path": "photos"}, {"dataset": "image_folder"})
    'image_folder'
    """
    own = peek_word(data, "dataset")
    if peek(block, "dataset") is not None:
        return peek_word(block, "dataset")
    return "npz" if str(peek(block, "path")).endswith(".npz") and own != "text" else own


def about_file(block: Any, data: Any) -> str:
    """Return other records in words: their kind, and their path as the spec has it.

    >>> about_file({"path": "a.npz"}, {"dataset": "digits"})
    'npz a.npz'
    """
    path = peek(block, "path")
    return kind_beside(block, data) if path is None else f"{kind_beside(block, data)} {path}"


def is_same_data(block: Any, data: Any) -> bool:
    """Say whether the records of a raw section are those of the raw section ``data``."""
    if peek(block, "dataset") is None and peek(block, "path") is None:
        return False  # it names none
    dataset = kind_beside(block, data)
    if dataset != peek_word(data, "dataset"):
        return False
    if dataset in BUILT_IN and (peek(block, "path") is None or peek(data, "path") is None):
        return True  # wherever its files are
    one, other = (_training_place(str(peek(section, "path"))) for section in (block, data))
    if one.exists() and other.exists() and one.samefile(other):
        return True  # by a link
    return one == other or one in other.parents or other in one.parents


def _training_place(path: str) -> Path:
    """Return the file or folder that training records are read from."""
    root = Path(path).expanduser().resolve()
    return root / "train" if (root / "train").is_dir() else root
