"""Files of numpy arrays: headers without records, and arrays without surprises."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.trainables.data.raw.preparation import ArrayRecords, RecordError
from dpsweep.trainables.data.source import (
    OWN_PARTS,
    Arrays,
    Source,
    checked_labels,
    declared_size,
    path_of,
)

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

#: Numbers of channels that images have, and the least side of one whose axes tell which is which.
_CHANNELS, _SIDE = (1, 3, 4), 8
#: What reading a damaged file of arrays raises: of an encrypted one RuntimeError, of another
#: compression NotImplementedError, which is one, and of a header TokenError.
DAMAGES = (
    *(OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error),
    tokenize.TokenError,
)


def npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of every array of an .npz file, without reading a record.

    Raises:
        DataError: The file is no .npz file.
    """
    headers = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                with archive.open(entry) as file:
                    version = np.lib.format.read_magic(file)
                    if version == (1, 0):
                        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                    else:
                        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
                headers[entry.removesuffix(".npy")] = (shape, dtype)
    except DAMAGES as error:
        raise DataError(
            f"{path} is not an .npz file, or cut short: {error}",
            fix="get the file again, or save it anew with numpy.savez",
        ) from error
    return headers


def shown_shape(shape: tuple[int, ...]) -> str:
    """Return a shape without the number of records, which is private.

    >>> shown_shape((587, 3)), shown_shape((587,)), shown_shape(())
    ('(records, 3)', '(records,)', '()')
    """
    if len(shape) < 2:
        return "(records,)" if shape else "()"
    return f"(records, {', '.join(map(str, shape[1:]))})"


def check_label_shape(
    label_shape: tuple[int, ...], shape: tuple[int, ...], num_classes: int, task: str, part: str
) -> None:
    """Check that there is one label, or one row of attributes, for each record.

    Raises:
        DataError: There is not; the true numbers of records stay unsaid.
    """
    width = (num_classes,) if task == "multi_label" else ()
    if len(label_shape) != 1 + len(width) or label_shape[1:] != width:
        fix = "store one class number a record"
        if task == "multi_label":
            fix = "store one row of attributes a record; data.num_classes is their number"
        wanted = shown_shape((0, *width))
        raise DataError(f"y_{part} has shape {shown_shape(label_shape)}, not {wanted}", fix=fix)
    if label_shape[0] != shape[0]:
        raise DataError(
            f"x_{part} and y_{part} have different numbers of records",
            fix="store one label for each record, in the same order",
        )


def check_label_kind(dtype: np.dtype[Any], kinds: str, task: str, part: str) -> None:
    """Check that labels are numbers, before any of them is read.

    Args:
        dtype: Of ``y_`` of the part.
        kinds: Letters of the kinds that class numbers may have; attributes are any real numbers.
        task: As ``data.task`` names it.
        part: What follows ``y_``.
    Raises:
        DataError: They are not, as objects and records of several fields are none.
    """
    is_attributes = task == "multi_label"
    if dtype.kind not in ("biuf" if is_attributes else kinds):
        fix = "store attributes that are 0 or 1" if is_attributes else "store class numbers from 0"
        shown = "of several fields" if dtype.names else dtype
        raise DataError(f"y_{part} has dtype {shown}", fix=fix)


def npz_array(file: Mapping[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    """Return one array of an open .npz file.

    Raises:
        DataError: It is no array of numbers or texts, or damaged: cut short, or with another
            checksum than it was stored with.
    """
    try:
        values = file[name]
    except DAMAGES as error:
        if "allow_pickle" in str(error):  # numpy's words for arrays of objects
            raise DataError(f"{path.name}: {name} holds objects", fix="store numbers") from None
        raise DataError(
            f"{path.name}: {name} is damaged ({type(error).__name__})", fix="get the file again"
        ) from None
    if not isinstance(values, np.ndarray):  # numpy's answer where a file has no mark of an array
        raise DataError(f"{path.name}: {name} is no array", fix="write it by numpy.savez")
    return values


def open_npz(spec: DataSpec, *, has_labels: bool = True) -> Source:
    """Return the source of ``dataset: npz``; every label is -1 of one that nobody has labelled."""
    path = path_of(spec, "an .npz file with x_train and y_train")
    if spec.num_classes is None:
        raise DataError(
            "data.num_classes is missing for npz",
            because="the labels are private, so the number of classes must be declared",
            fix="declare how many classes there are",
        )
    if not path.is_file():
        where = f"{path}" if path.is_absolute() else f"{path}, that is {path.resolve()}"
        wrong = f"{where} is a directory" if path.is_dir() else f"no file {where}"
        raise DataError(wrong, fix="set data.path to an .npz file")
    num_classes = int(spec.num_classes)
    headers = npz_headers(path)
    if not has_labels:
        headers = {key: header for key, header in headers.items() if key == "x_train"}
    for key in ("x_train", "y_train") if has_labels else ("x_train",):
        if key not in headers:
            # Records are no labels, however alike their names are.
            hint = did_you_mean(key, [name for name in headers if name[:1].lower() == key[0]])
            raise DataError(
                f"{path.name} has no {key}",
                fix=hint or f"store one with numpy.savez(..., {key}=...)",
            )
    keys = _keys_of_parts(path, headers)
    raw_shape = headers["x_train"][0][1:]
    for key in keys.values():
        _check_headers(key, headers, num_classes, spec)
    preparation = _preparation(raw_shape, headers["x_train"][1], spec)

    def read() -> dict[str, Arrays]:
        arrays = {}
        with np.load(path, allow_pickle=False) as file:
            for part, key in keys.items():
                inputs = _inputs(preparation, npz_array(file, f"x_{key}", path), f"{path}: x_{key}")
                if not has_labels:
                    arrays[part] = (inputs, np.full(len(inputs), -1, np.int64))
                    continue
                labels = npz_array(file, f"y_{key}", path)
                arrays[part] = (
                    inputs,
                    checked_labels(labels, num_classes, f"{path}: y_{key}", spec.task),
                )
        return arrays

    def read_labels(part: str) -> np.ndarray:
        name = f"y_{keys[part]}"
        with np.load(path, allow_pickle=False) as file:
            return checked_labels(
                npz_array(file, name, path), num_classes, f"{path}: {name}", spec.task
            )

    sizes = {part: headers[f"x_{key}"][0][0] for part, key in keys.items()}
    names = tuple(str(label) for label in range(num_classes))
    return Source(
        preparation.shape,
        num_classes,
        names,
        declared_size(spec),
        sizes.get("validation"),
        sizes.get("test"),
        read,
        read_labels,
        num_found=sizes["train"],
        tasks=frozenset({spec.task}),  # the spec has checked that they can be
        preparation=preparation,
        notes=unused_note(path, headers, keys.values()),
    )


def _keys_of_parts(path: Path, headers: Collection[str]) -> dict[str, str]:
    """Return the parts that a file has, each with what follows ``x_`` and ``y_`` in its arrays.

    Of two names of one part the first counts.

    Raises:
        DataError: A part lacks its records or its labels.
    """
    keys = {"train": "train"}
    for part, names in OWN_PARTS.items():
        stored = [key for key in names if {f"x_{key}", f"y_{key}"} & {*headers}]
        for key in stored[:1]:
            lacking = [name for name in (f"x_{key}", f"y_{key}") if name not in headers]
            if lacking:
                raise DataError(
                    f"{path.name} needs both x_{key} and y_{key}, or neither",
                    because=f"it has no {lacking[0]}",
                    fix=f"add {lacking[0]}, or save the file without the other one",
                )
            keys[part] = key
    return keys


def unused_note(path: Path, headers: Collection[str], keys: Collection[str]) -> tuple[str, ...]:
    """Return a line on arrays that are named as a part is and are none, or nothing.

    >>> unused_note(Path("d.npz"), ["x_train", "y_train", "x_dev", "y_dev"], ["train"])
    ('arrays of d.npz that are not used: x_dev, y_dev; parts are called train, val and test',)
    """
    used = {f"{kind}_{key}" for kind in "xy" for key in keys}
    unused = [name for name in headers if name.startswith(("x_", "y_")) and name not in used]
    if not unused:
        return ()
    named = ", ".join(unused[:10])
    return (
        f"arrays of {path.name} that are not used: {named}; parts are called train, val and test",
    )


def _check_headers(
    part: str,
    headers: Mapping[str, tuple[tuple[int, ...], Any]],
    num_classes: int,
    spec: DataSpec,
) -> None:
    shape, dtype = headers[f"x_{part}"]
    task = spec.task if f"y_{part}" in headers else "classification"
    if f"y_{part}" in headers:
        label_shape, label_dtype = headers[f"y_{part}"]
    else:  # nobody has labelled them
        label_shape, label_dtype = shape[:1], np.dtype(np.int64)
    if len(shape) not in (2, 4) or 0 in shape[1:]:
        raise DataError(
            f"x_{part} has shape {shown_shape(shape)}",
            fix="give (records, features), (records, channels, height, width), or images with "
            "their channels last",
        )
    train_shape, train_dtype = headers["x_train"]
    if shape[1:] != train_shape[1:]:
        raise DataError(
            f"x_{part} has records of shape {shape[1:]}, x_train of {train_shape[1:]}",
            fix="store both in one shape",
        )
    if dtype.kind != train_dtype.kind:
        raise DataError(
            f"x_{part} has dtype {dtype}, and x_train has {train_dtype}", fix="store both in one"
        )
    if dtype.kind != "f" and dtype != np.uint8:
        raise DataError(
            f"x_{part} has dtype {dtype}",
            fix="store uint8 from 0 to 255, or scale it and store floats, for example x / 255",
        )
    check_label_kind(label_dtype, "iu", task, part)
    check_label_shape(label_shape, shape, num_classes, task, part)


def _preparation(shape: tuple[int, ...], dtype: np.dtype[Any], spec: DataSpec) -> ArrayRecords:
    """Return the way from records of ``x_train`` to (channels, height, width) or (features,).

    Raises:
        DataError: Where the channels are cannot be told, or they are not where it is declared.
    """
    if len(shape) != 3:
        if spec.layout is not None:
            raise DataError(
                f"data.layout={spec.layout} is for images, and x_train has shape (records, "
                f"{shape[0]})",
                fix="remove it",
            )
        is_last = False
    elif spec.layout is not None:
        is_last = spec.layout == "channels_last"
        channels = shape[2] if is_last else shape[0]
        other = shape[0] if is_last else shape[2]
        if channels not in _CHANNELS and other in _CHANNELS:
            raise DataError(
                f"data.layout={spec.layout} makes images of {channels} channels of x_train, whose "
                f"shape is {shown_shape((0, *shape))}",
                fix="use the other layout, or remove it",
            )
    else:
        side = channels_side(shape)
        if side is None:
            raise DataError(
                f"x_train has shape {shown_shape((0, *shape))}, and which axis has the channels "
                "cannot be told",
                fix="set data.layout: channels_last, or channels_first",
            )
        is_last = side == "last"
    read = (shape[2], *shape[:2]) if is_last else shape
    if dtype == np.uint8:
        return ArrayRecords(shape, "uint8", read, scale=1 / 255, is_channels_last=is_last)
    return ArrayRecords(shape, "float32", read, is_channels_last=is_last)


def channels_side(shape: tuple[int, ...]) -> str | None:
    """Say where records of three axes have their channels: ``first`` or ``last``; None: unclear.

    The last axis has them if it is 1, 3 or 4 and the first is not, in images of at least 8 x 8
    pixels that are square or have three channels.

    >>> channels_side((32, 32, 3)), channels_side((178, 218, 3)), channels_side((8, 8, 1))
    ('last', 'last', 'last')
    >>> channels_side((3, 32, 32)), channels_side((512, 7, 7)), channels_side((512, 1, 1))
    ('first', 'first', 'first')
    >>> channels_side((28, 20, 1)), channels_side((3, 32, 3))
    (None, None)
    """
    first, second, last = shape
    if last not in _CHANNELS or second < _SIDE:
        is_last = first == second and last in _CHANNELS and first not in _CHANNELS
        return "last" if is_last else "first"
    if first in _CHANNELS:
        return None
    if first == second or (last == 3 and first >= _SIDE):
        return "last"
    return None if first >= _SIDE else "first"


def _inputs(preparation: ArrayRecords, values: np.ndarray, name: str) -> np.ndarray:
    try:
        return preparation.prepare(values)
    except RecordError:
        # Which records and which values stay unsaid: they are private.
        raise DataError(
            f"{name} has values that are not finite (as float32)",
            fix="replace NaN and infinities, by a rule that looks at one record at a time",
        ) from None
