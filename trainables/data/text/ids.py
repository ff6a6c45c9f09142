"""Token ids of texts in an .npz file, and the labels that follow from ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.npz import (
    check_label_kind,
    check_label_shape,
    npz_array,
    npz_headers,
    shown_shape,
    unused_note,
)
from dpsweep.trainables.data.tasks import IGNORED
from dpsweep.trainables.data.text.tables import PARTS

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec


def next_tokens(ids: np.ndarray, pad_id: int) -> np.ndarray:
    """Return the label of every position: the token after it, ``IGNORED`` for padding.

    >>> next_tokens(np.array([[5, 7, 6, 0, 0]]), pad_id=0).tolist()
    [[7, 6, -100, -100, -100]]

    Args:
        ids: Token ids (records, length), int64, padded on the right.
        pad_id: Id of padding.
    """
    labels = np.full_like(ids, IGNORED)
    labels[:, :-1] = np.where(ids[:, 1:] == pad_id, IGNORED, ids[:, 1:])
    return labels


def open_ids(
    spec: DataSpec, path: Path
) -> tuple[dict[str, int], Callable[[], dict[str, tuple[np.ndarray, Any]]], tuple[str, ...]]:
    """Return the sizes of the parts, how to read their ids and labels, and notes.

    Raises:
        DataError: Arrays are missing, or not of the shapes that the spec declares.
    """
    headers = npz_headers(path)
    stored = {
        part: key for part, keys in PARTS.items() for key in keys if f"x_{key}" in headers
    }  # "validation" and "val" both: the latter wins
    if "train" not in stored:
        raise DataError(f"{path.name} has no x_train", fix="save it with numpy.savez")
    has_labels = spec.task != "causal_lm"
    for key in stored.values():
        shape, dtype = headers[f"x_{key}"]
        if len(shape) != 2 or shape[1] != spec.max_length:
            raise DataError(
                f"x_{key} has shape {shown_shape(shape)}, and data.max_length={spec.max_length}",
                fix="store token ids (records, max_length)",
            )
        if dtype.kind not in "iu":
            raise DataError(f"x_{key} has dtype {dtype}", fix="store token ids, which are integers")
        if has_labels and f"y_{key}" not in headers:
            raise DataError(f"{path.name} has no y_{key}", fix="store the labels beside the ids")
        if has_labels:
            label_shape, label_dtype = headers[f"y_{key}"]
            check_label_kind(label_dtype, "biufSU", spec.task, key)  # names may be declared
            check_label_shape(label_shape, shape, spec.declared_classes, spec.task, key)

    def read() -> dict[str, tuple[np.ndarray, Any]]:
        with np.load(path, allow_pickle=False) as file:
            return {
                part: (
                    np.ascontiguousarray(npz_array(file, f"x_{key}", path), dtype=np.int64),
                    npz_array(file, f"y_{key}", path) if has_labels else None,
                )
                for part, key in stored.items()
            }

    sizes = {part: headers[f"x_{key}"][0][0] for part, key in stored.items()}
    notes = unused_note(path, [name for name in headers if name[0] == "x"], stored.values())
    return sizes, read, notes
