"""Decoded images of a dataset, made once and kept beside the frozen features.

A set of images whose numbers take more than ``EAGER_BYTES`` is decoded into one file of bytes, an
entry of the feature store's directory, from which rows are read as they are asked for. It is as
private as the images: nobody but its owner may enter the directory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.errors import DataError, ResourceError
from dpsweep.foundation.file_paths import cache_of
from dpsweep.trainables.data.kept.files import Entry, locked, make_private, new_array
from dpsweep.trainables.data.kept.pixels import PixelFile, Pixels
from dpsweep.trainables.data.kept.room import Room
from dpsweep.trainables.data.raw.preparation import ImageRecords, RecordError

if TYPE_CHECKING:
    from dpsweep.spec.storage import StorageSpec

#: Images that take more as float32 stay bytes; what takes less is as fast as it can be.
EAGER_BYTES = 2**28
#: Part of every address: a change of how images are decoded needs a change of it.
_FORMAT = 1
_BLOCK, _TRIES = 256, 3


@dataclass(frozen=True)
class Keep:
    """Where decoded images are kept.

    Attributes:
        root: Directory of the feature store.
        max_bytes: Most bytes of all that is kept there; None: the disk's.
        is_shared: Whether all nodes see the directory. If not, images are only decoded once, and
            then handed to them as bytes.
    """

    root: Path
    max_bytes: int | None = None
    is_shared: bool = True

    @classmethod
    def of(cls, storage: StorageSpec) -> Keep:
        """Return the place that a spec's ``storage`` names."""
        path, most = storage.features_path, int(storage.features_gb * 2**30)
        if isinstance(path, BucketPath):
            return cls(cache_of(path), most, is_shared=False)
        return cls(path, most)


@dataclass(frozen=True)
class Encoded:
    """Images of one part that are not decoded yet.

    Attributes:
        images: A slice of it is a list of what ``ImageRecords.read`` takes.
        stamp: What changes when one of them does: names, sizes and times of files.
    """

    images: Sequence[Any]
    stamp: Callable[[], str]


def stamp_of(paths: Sequence[Path]) -> str:
    """Return a hash of the names, sizes and times of files: of what is in them, if nobody cheats.

    The time at which the file system has last changed a file is among them, which no copy and no
    archive sets.
    """
    digest = hashlib.sha256()
    for path in paths:
        facts = path.stat()
        name = os.fsencode(os.path.abspath(path))
        digest.update(
            name + f"\0{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}\n".encode()
        )
    return digest.hexdigest()


def decoded(
    parts: dict[str, Encoded], preparation: ImageRecords, keep: Keep | None, *, declared: int
) -> dict[str, np.ndarray]:
    """Return the images of each part, as float32 or, of many, as ``Pixels``.

    Args:
        parts: Images by the name of their part.
        preparation: How they are read.
        keep: Where they are kept once they are decoded; None: in memory, as bytes.
        declared: Number of training records, for an error.
    Raises:
        DataError: An image cannot be read; which one stays unsaid, as it is private.
        ResourceError: There is no room for them.
    """
    size = int(np.prod(preparation.shape))
    count = sum(len(part.images) for part in parts.values())
    inputs: dict[str, Any] = {}
    for name, part in parts.items():
        if keep is not None and 4 * size * count > EAGER_BYTES and len(part.images):
            inputs[name] = Pixels(_kept(part, preparation, keep, declared * size))
            if not keep.is_shared:
                inputs[name] = Pixels(inputs[name].source.read(inputs[name].rows))
            continue
        values = np.empty((len(part.images), *preparation.shape), np.uint8)
        for begin, block in _blocks(part.images, preparation):
            values[begin : begin + len(block)] = block
        pixels = Pixels(values)
        inputs[name] = pixels if 4 * size * count > EAGER_BYTES else np.asarray(pixels)
    return cast("dict[str, np.ndarray]", inputs)


def _kept(part: Encoded, preparation: ImageRecords, keep: Keep, declared: int) -> PixelFile:
    """Return the file of a part's images, made if it is not there whole."""
    import PIL

    facts = {"format": _FORMAT, **asdict(preparation), "pillow": PIL.__version__}
    text = json.dumps([facts, part.stamp()], sort_keys=True)
    entry = Entry(keep.root / hashlib.sha256(text.encode()).hexdigest()[:32])
    shape = (len(part.images), *preparation.shape)
    make_private(keep.root)
    for _ in range(_TRIES):  # it may be evicted between its creation and its use
        file = _file_of(entry, shape)
        if file is not None:
            return file
        with locked(entry.lock):
            if _file_of(entry, shape) is None:
                entry.remove()  # damaged, or left by a killed process
                _make(entry, part, preparation, keep, declared)
    raise ResourceError(
        f"decoded images cannot be kept in {keep.root}",
        because=f"they were decoded {_TRIES} times and lost or damaged each time",
        fix="raise storage.features_gb, or set storage.features to another disk",
    )


def _file_of(entry: Entry, shape: tuple[int, ...]) -> PixelFile | None:
    """Return the rows of an entry, held against eviction; None if it is not there whole."""
    mapped = entry.read(shape, "uint8")
    if mapped is None:
        return None
    sha256 = str(json.loads(entry.sidecar.read_text()).get("sha256"))
    file = PixelFile(entry.data, entry.data.stat().st_size - mapped.nbytes, shape, sha256)
    file.open()  # before the mapping ends, and its lock with it
    return file if file.computed_sha256() == sha256 else None


def _make(
    entry: Entry, part: Encoded, preparation: ImageRecords, keep: Keep, declared: int
) -> None:
    """Decode images into an entry, whose lock is held."""
    shape = (len(part.images), *preparation.shape)
    size, row = int(np.prod(shape)), int(np.prod(shape[1:]))
    partial = entry.new_partial()
    try:
        with locked(keep.root / "lock", keep=True):
            Room(keep.root, keep.max_bytes).make(
                size, name="decoded images", declared=declared, smaller="lower data.image_size"
            )
            offset = new_array(partial, shape, "uint8")
        digest = hashlib.sha256()
        with partial.open("r+b") as file:
            for begin, block in _blocks(part.images, preparation):
                file.seek(offset + begin * row)
                file.write(block.data)
                digest.update(block.data)
        facts = {**asdict(preparation), "dtype": "uint8", "shape": list(shape)}
        entry.finish(partial, {**facts, "sha256": digest.hexdigest()})
    finally:
        partial.unlink(missing_ok=True)


def _blocks(images: Sequence[Any], preparation: ImageRecords) -> Iterator[tuple[int, np.ndarray]]:
    """Yield decoded images in their order, on all cores, each block with its first row."""

    def pixels(image: Any) -> np.ndarray | RecordError:
        try:
            return preparation.pixels(image)
        except RecordError as error:
            return error

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for begin in range(0, len(images), _BLOCK):
            block = list(pool.map(pixels, images[begin : begin + _BLOCK]))
            for image in block:
                if isinstance(image, RecordError):
                    _refuse(image)
            yield begin, np.ascontiguousarray(np.stack(cast("list[np.ndarray]", block)))


def _refuse(error: RecordError) -> None:
    """Raise that an image cannot be read, without its name.

    Raises:
        DataError: Always.
    """
    find = "its name stays unsaid, as it tells which record it is; open each of them with PIL"
    if error.__cause__ is None:  # it can be read, and has 16 bits
        raise DataError(
            str(error),
            because="a conversion to 8 bits would cut its values off",
            fix=f"convert such images to 8 bits, all by the same fixed scale; {find}",
        ) from None
    # Not chained to Pillow's error, which names the file.
    raise DataError(str(error), fix=f"mend or remove it; {find}") from None
