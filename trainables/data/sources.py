"""Where records come from: digits, fashion_mnist, npz files, folders of images, and text.

A source says its public facts (shape, classes, declared number of records) without opening a
private record, and reads the arrays when asked. Loads no torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.foundation.words import counted
from dpsweep.trainables.data.built_in import open_digits, open_fashion_mnist
from dpsweep.trainables.data.images import open_image_folder
from dpsweep.trainables.data.npz import (
    open_npz,
)
from dpsweep.trainables.data.source import (
    Source,
)

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec


def open_source(spec: DataSpec) -> Source:
    """Return the source that a spec's ``data`` section names; reads headers and names only.

    Raises:
        DataError: It is missing, incomplete or not as declared.
    """
    openers = {
        "digits": open_digits,
        "fashion_mnist": open_fashion_mnist,
        "npz": open_npz,
        "image_folder": open_image_folder,
        "text": _text,
    }
    if spec.dataset not in openers:
        hint = did_you_mean(spec.dataset, list(openers))
        raise DataError(
            f"unknown dataset {spec.dataset!r}",
            fix=(hint + " " if hint else "") + f"known: {', '.join(openers)}",
        )
    source = openers[spec.dataset](spec)
    if spec.class_names is None:
        return source
    if len(spec.class_names) != source.num_classes:
        raise DataError(
            f"data.class_names has {len(spec.class_names)} names, and {spec.dataset} has "
            f"{counted(source.num_classes, 'class')}",
            fix="give one name for each, in the order of their numbers",
        )
    return replace(source, class_names=spec.class_names)


def _text(spec: DataSpec) -> Source:
    from dpsweep.trainables.data.text import open_text

    return open_text(spec)
