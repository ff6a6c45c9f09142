"""Hashes of records: of each part of a study's data, and of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from dpsweep.trainables.data.kept.pixels import blocks_of
from dpsweep.trainables.data.source import PARTS, Arrays


def hash_of_parts(parts: dict[str, Arrays], class_names: Sequence[str] = ()) -> str:
    """Return the SHA-256 of records with the names of their classes; without names, as it was."""
    digest = hashlib.sha256()
    if class_names:
        digest.update(json.dumps(list(class_names)).encode())
    for part in PARTS:
        for array in parts[part]:
            digest.update(f"{part} {array.dtype.str} {array.shape}\n".encode())
            for block in blocks_of(array):
                digest.update(block.data)
    return digest.hexdigest()


def hashes_of(
    parts: dict[str, Arrays], class_names: Sequence[str]
) -> tuple[dict[str, str], str, str]:
    """Return ``part_hash`` of each part, and ``hash_of_parts`` with and without class names.

    All of them in one pass, since the records may be many.
    """
    named, bare = hashlib.sha256(), hashlib.sha256()
    if class_names:
        named.update(json.dumps(list(class_names)).encode())
    hashes: dict[str, str] = {}
    for part in PARTS:
        for number, array in enumerate(parts[part]):
            alone = hashlib.sha256(f"{array.dtype.str} {array.shape}\n".encode())
            for digest in (named, bare):
                digest.update(f"{part} {array.dtype.str} {array.shape}\n".encode())
            for block in blocks_of(array):
                for digest in (named, bare) if number else (named, bare, alone):
                    digest.update(block.data)
            if number == 0:
                hashes[part] = alone.hexdigest()
    return hashes, named.hexdigest(), bare.hexdigest()


def part_hash(inputs: np.ndarray) -> str:
    """Return the SHA-256 of C-contiguous records, their shape and their type, as hex digits."""
    digest = hashlib.sha256(f"{inputs.dtype.str} {inputs.shape}\n".encode())
    for block in blocks_of(inputs):
        digest.update(block.data)
    return digest.hexdigest()
