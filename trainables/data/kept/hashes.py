"""Hashes of records, which are remembered for images in files: those are read but once for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from dpsweep.foundation.durable import write_atomically
from dpsweep.trainables.data.hashes import hashes_of
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.kept.pixels import PixelFile, Pixels
from dpsweep.trainables.data.source import PARTS, Arrays

#: ``dataset.hashes_of``: of each part, of all with class names, and without.
Hashes = tuple[dict[str, str], str, str]


def remembered_hashes(
    parts: dict[str, Arrays], class_names: Sequence[str], keep: Keep | None
) -> Hashes:
    """Return ``hashes_of`` these parts; of images in files, what it has returned before.

    They are found again by the SHA-256 of the files, which whoever opens one has checked, by the
    rows of each part, and by the labels. They are kept where the files are, and as private.
    """
    address = _address(parts, class_names)
    if keep is None or address is None:
        return hashes_of(parts, class_names)
    path = keep.root / f"{address}.json"
    try:
        stored = json.loads(path.read_text())
        return {part: stored[part] for part in PARTS}, stored["named"], stored["bare"]
    except (OSError, ValueError, KeyError, TypeError):
        hashes, named, bare = hashes_of(parts, class_names)
    write_atomically(path, json.dumps({**hashes, "named": named, "bare": bare}).encode())
    return hashes, named, bare


def _address(parts: Mapping[str, Arrays], class_names: Sequence[str]) -> str | None:
    """Return what the hashes depend on, hashed; None where no part is in a file."""
    digest = hashlib.sha256(json.dumps(["hashes", *class_names]).encode())
    has_file = False
    for part in PARTS:
        inputs, labels = parts[part]
        digest.update(f"{part} {inputs.shape} {labels.dtype.str} {labels.shape}\n".encode())
        digest.update(np.ascontiguousarray(labels).data)
        if isinstance(inputs, Pixels) and isinstance(inputs.source, PixelFile):
            has_file = True
            digest.update(inputs.source.sha256.encode())
            digest.update(inputs.rows.data)
        elif len(inputs):
            return None  # to hash it here is no less than to hash it there
    return digest.hexdigest()[:32] if has_file else None
