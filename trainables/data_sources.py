"""Where records come from: digits, fashion_mnist, npz files, folders of images, and text.

A source says its public facts (shape, classes, declared number of records) without opening a
private record, and reads the arrays when asked. Loads no torch.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.foundation.words import counted
from dpsweep.trainables.npz_files import check_label_shape, npz_array, npz_headers, shown_shape

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec
    from dpsweep.trainables.text_data import TextInfo

#: Where the Debian package dataset-fashion-mnist puts its files.
FASHION_MNIST_PATH = Path("/usr/share/datasets/fashion-mnist")
FASHION_MNIST_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Source:
    """The public facts of a dataset, and how to read it.

    Attributes:
        input_shape: Shape of one record: (channels, height, width), (features,) or (tokens,).
        num_classes: Number of classes or attributes; the vocabulary for ``causal_lm``.
        class_names: One name per class.
        num_records: Declared (public) number of records in the training source.
        own_validation: Records of a separate validation part, or None without one.
        own_test: Records of a separate test part, or None without one.
        read: Returns ``train`` and the own parts as inputs (float32, or int64 token ids) and
            labels (int64; float32 for ``multi_label``).
        read_labels: Returns the labels of an own part, ``validation`` or ``test``, alone; None
            where nothing needs them.
        text: What must be known of token ids; None for other records.
        num_found: Records of the training source by headers or names, an upper bound; None where
            only reading them tells. It is private: it is compared with ``num_records``, not shown.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    class_names: tuple[str, ...]
    num_records: int
    own_validation: int | None
    own_test: int | None
    read: Callable[[], dict[str, Arrays]]
    read_labels: Callable[[str], np.ndarray] | None = None
    text: TextInfo | None = None
    num_found: int | None = None


def open_source(spec: DataSpec) -> Source:
    """Return the source that a spec's ``data`` section names; reads headers and names only.

    Raises:
        DataError: It is missing, incomplete or not as declared.
    """
    openers = {
        "digits": _digits,
        "fashion_mnist": _fashion_mnist,
        "npz": _npz,
        "image_folder": _image_folder,
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
    from dpsweep.trainables.text_data import open_text

    return open_text(spec)


def _known_size(spec: DataSpec, num_records: int) -> int:
    """Refuse a declared size that contradicts the published size of a built-in dataset."""
    if spec.num_records is not None and spec.num_records != num_records:
        raise DataError(
            f"data.num_records={spec.num_records}, but {spec.dataset} has "
            f"{counted(num_records, 'record')}",
            fix="leave data.num_records out; data.max_private limits the private records",
        )
    return num_records


def declared_size(spec: DataSpec) -> int:
    """Return ``data.num_records``, which a dataset without a published size needs.

    Raises:
        DataError: It is missing.
    """
    if spec.num_records is None or spec.num_records < 1:
        raise DataError(
            f"data.num_records is missing for {spec.dataset}",
            because="the number of records enters sampling rate and report, so it must be public",
            fix="declare a public number, exact or approximate",
        )
    return int(spec.num_records)


def path_of(spec: DataSpec, what: str) -> Path:
    """Return ``data.path``, which should name ``what``.

    Raises:
        DataError: It is missing.
    """
    if spec.path is None:
        raise DataError(f"data.path is missing for {spec.dataset}", fix=f"name {what}")
    return Path(spec.path).expanduser()


def _digits(spec: DataSpec) -> Source:
    def read() -> dict[str, Arrays]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        inputs = (digits.images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
        return {"train": (inputs, digits.target.astype(np.int64))}

    names = tuple(str(digit) for digit in range(10))
    return Source((1, 8, 8), 10, names, _known_size(spec, 1797), None, None, read)


def _fashion_mnist(spec: DataSpec) -> Source:
    folder = FASHION_MNIST_PATH if spec.path is None else Path(spec.path).expanduser()
    files = {
        part: (folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz")
        for part, prefix in (("train", "train"), ("test", "t10k"))
    }
    missing = [path.name for pair in files.values() for path in pair if not path.is_file()]
    if missing:
        raise DataError(
            f"fashion_mnist: {', '.join(missing)} not found in {folder}",
            fix="install the Debian package dataset-fashion-mnist, or set data.path to a directory "
            "that holds its share/datasets/fashion-mnist files",
        )

    def read() -> dict[str, Arrays]:
        parts = {}
        for part, (image_path, label_path) in files.items():
            images = _read_idx(image_path, dimensions=3)
            labels = _read_idx(label_path, dimensions=1)
            if images.shape[1:] != (28, 28) or len(images) != len(labels):
                raise DataError(f"fashion_mnist: {image_path.name} and its labels do not fit")
            inputs = np.multiply(images[:, None], np.float32(1 / 255), dtype=np.float32)
            parts[part] = (inputs, checked_labels(labels, 10, label_path.name))
        return parts

    size = _known_size(spec, 60_000)
    return Source((1, 28, 28), 10, FASHION_MNIST_CLASSES, size, None, 10_000, read)


def _read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes (format: http://yann.lecun.com/exdb/mnist/)."""
    try:
        with gzip.open(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}", fix="get the file again") from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(f"{path} is not an IDX file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != int(np.prod(shape)):
        raise DataError(f"{path} is cut short or too long", fix="get the file again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _npz(spec: DataSpec) -> Source:
    path = path_of(spec, "an .npz file with x_train and y_train")
    if spec.num_classes is None:
        raise DataError(
            "data.num_classes is missing for npz",
            because="the labels are private, so the number of classes must be declared",
        )
    if not path.is_file():
        where = f"{path}" if path.is_absolute() else f"{path}, that is {path.resolve()}"
        what = f"{where} is a directory" if path.is_dir() else f"no file {where}"
        raise DataError(what, fix="set data.path to an .npz file")
    num_classes = int(spec.num_classes)
    headers = npz_headers(path)
    for key in ("x_train", "y_train"):
        if key not in headers:
            hint = did_you_mean(key, list(headers))
            raise DataError(f"{path.name} has no {key}", fix=hint or "save it with numpy.savez")
    for part in ("val", "test"):
        if (f"x_{part}" in headers) != (f"y_{part}" in headers):
            lacking = next(n for n in (f"x_{part}", f"y_{part}") if n not in headers)
            raise DataError(
                f"{path.name} needs both x_{part} and y_{part}, or neither",
                because=f"it has no {lacking}",
                fix=f"add {lacking}, or save the file without the other one",
            )
    parts = [part for part in ("train", "val", "test") if f"x_{part}" in headers]
    input_shape = headers["x_train"][0][1:]
    for part in parts:
        _check_headers(part, headers, input_shape, num_classes, spec.task)

    def read() -> dict[str, Arrays]:
        arrays = {}
        with np.load(path, allow_pickle=False) as file:
            for part in parts:
                name = {"val": "validation"}.get(part, part)
                inputs = _checked_inputs(npz_array(file, f"x_{part}", path), f"x_{part}")
                labels = npz_array(file, f"y_{part}", path)
                arrays[name] = inputs, checked_labels(labels, num_classes, f"y_{part}", spec.task)
        return arrays

    def read_labels(part: str) -> np.ndarray:
        name = f"y_{'val' if part == 'validation' else part}"
        with np.load(path, allow_pickle=False) as file:
            return checked_labels(npz_array(file, name, path), num_classes, name, spec.task)

    sizes = {part: headers[f"x_{part}"][0][0] for part in parts}
    names = tuple(str(label) for label in range(num_classes))
    return Source(
        input_shape,
        num_classes,
        names,
        declared_size(spec),
        sizes.get("val"),
        sizes.get("test"),
        read,
        read_labels,
        num_found=sizes["train"],
    )


def _check_headers(
    part: str,
    headers: Mapping[str, tuple[tuple[int, ...], Any]],
    input_shape: tuple[int, ...],
    num_classes: int,
    task: str,
) -> None:
    shape, dtype = headers[f"x_{part}"]
    label_shape, label_dtype = headers[f"y_{part}"]
    if len(shape) not in (2, 4) or 0 in shape[1:]:
        raise DataError(
            f"x_{part} has shape {shown_shape(shape)}",
            fix="give (records, features) or (records, channels, height, width)",
        )
    if shape[1:] != input_shape:
        raise DataError(f"x_{part} has records of shape {shape[1:]}, x_train of {input_shape}")
    if dtype.kind != "f":
        raise DataError(
            f"x_{part} has dtype {dtype}", fix="scale it and store floats, for example x / 255"
        )
    if _is_channels_last(shape):
        raise DataError(
            f"x_{part} has shape {shown_shape(shape)}: images with their channels last, which "
            f"would be read as {shape[1]} channels of {shape[2]} x {shape[3]} pixels",
            fix="store (records, channels, height, width), that is x.transpose(0, 3, 1, 2)",
        )
    if task != "multi_label" and label_dtype.kind not in "iu":
        raise DataError(f"y_{part} has dtype {label_dtype}", fix="store class numbers from 0")
    check_label_shape(label_shape, shape, num_classes, task, part)


def _is_channels_last(shape: tuple[int, ...]) -> bool:
    """Say whether an array holds square images, or colour ones, with their channels last.

    >>> _is_channels_last((100, 32, 32, 3)), _is_channels_last((100, 178, 218, 3))
    (True, True)
    >>> _is_channels_last((100, 3, 32, 32)), _is_channels_last((100, 512, 7, 7))
    (False, False)
    """
    if len(shape) != 4:
        return False
    _, first, second, last = shape
    is_square = first == second and last in (1, 3, 4)
    return first not in (1, 3, 4) and (is_square or (last == 3 and min(first, second) >= 8))


def _checked_inputs(values: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        inputs = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(inputs).all():
        # Which records and which values stay unsaid: they are private.
        raise DataError(
            f"{name} has values that are not finite (as float32)",
            fix="replace NaN and infinities, by a rule that looks at one record at a time",
        )
    return inputs


def checked_labels(
    values: np.ndarray, num_classes: int, name: str, task: str = "classification"
) -> np.ndarray:
    """Return class numbers as int64; the attributes of ``multi_label``, 0 or 1, as float32.

    Raises:
        DataError: A label is none of these; which one stays unsaid, as labels are private.
    """
    if task == "multi_label":
        if not np.isin(values, (0, 1)).all():
            raise DataError(f"{name} has attributes that are not 0 or 1", fix="store 0 and 1")
        return np.ascontiguousarray(values, dtype=np.float32)
    if len(values) and (values.min() < 0 or values.max() >= num_classes):
        raise DataError(
            f"{name} has labels outside 0..{num_classes - 1}",
            fix="number the classes from 0, or correct data.num_classes",
        )
    return np.ascontiguousarray(values, dtype=np.int64)


def _image_folder(spec: DataSpec) -> Source:
    root = path_of(spec, "a directory with one folder per class")
    if not root.is_dir():
        raise DataError(f"no directory {root}", fix="set data.path to an existing directory")
    size = _image_size(spec)
    channels = 3 if spec.channels is None else int(spec.channels)
    if channels not in (1, 3):
        raise DataError(f"data.channels must be 1 or 3, got {channels}")
    folders = {"train": root / "train" if (root / "train").is_dir() else root}
    if folders["train"] != root:
        for part, name in (("validation", "val"), ("test", "test")):
            if (root / name).is_dir():
                folders[part] = root / name
    classes = tuple(sorted(p.name for p in folders["train"].iterdir() if _is_class_folder(p)))
    if len(classes) < 2:
        raise DataError(
            f"{folders['train']} has {len(classes)} class folders",
            fix="lay the images out as CLASS/NAME.png, or train/CLASS/NAME.png",
        )
    if spec.num_classes is not None and spec.num_classes != len(classes):
        raise DataError(
            f"data.num_classes={spec.num_classes}, but there are {len(classes)} class folders"
        )
    files = {part: _image_files(folder, classes) for part, folder in folders.items()}
    _refuse_empty_class(folders["train"], classes, files["train"])

    def read() -> dict[str, Arrays]:
        return {part: _read_images(found, size, channels) for part, found in files.items()}

    return Source(
        (channels, *size),
        len(classes),
        classes,
        declared_size(spec),
        len(files["validation"]) if "validation" in files else None,
        len(files["test"]) if "test" in files else None,
        read,
        lambda part: np.array([label for _, label in files[part]], np.int64),
        num_found=len(files["train"]),
    )


def _image_size(spec: DataSpec) -> tuple[int, int]:
    """Return (height, width); a single number stands for a square."""
    given = spec.image_size
    if given is None:
        raise DataError(
            "data.image_size is missing for image_folder",
            because="shapes must be known before an image is opened",
            fix="give the height and width to resize to",
        )
    height, width = (given, given) if isinstance(given, int) else given
    return int(height), int(width)


def _is_class_folder(path: Path) -> bool:
    """Say whether a folder may be a class: not one that an archive or an editor has left."""
    return path.is_dir() and not path.name.startswith(".") and path.name != "__MACOSX"


def _image_files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Return (path, class number) of every image, in the order of their relative paths."""
    unknown = [p.name for p in folder.iterdir() if _is_class_folder(p) and p.name not in classes]
    if unknown:
        raise DataError(f"{folder} has a class that train lacks: {sorted(unknown)[0]}")
    found = []
    for label, name in enumerate(classes):
        if (folder / name).is_dir():
            for path in (folder / name).iterdir():
                if path.suffix.lower() in IMAGE_SUFFIXES:
                    found.append((path, label))
    return sorted(found)


def _refuse_empty_class(
    folder: Path, classes: tuple[str, ...], found: list[tuple[Path, int]]
) -> None:
    """Refuse a folder without images: it would be a class that no record has."""
    filled = {label for _, label in found}
    empty = [name for label, name in enumerate(classes) if label not in filled]
    if found and empty:
        raise DataError(
            f"{folder / empty[0]} has no images, and every folder there is a class",
            fix="remove it, or put its images there",
        )


def _read_images(files: list[tuple[Path, int]], size: tuple[int, int], channels: int) -> Arrays:
    from PIL import Image, UnidentifiedImageError

    find = "its name stays unsaid, as it tells which record it is; open each of them with PIL"
    inputs = np.empty((len(files), channels, *size), np.float32)
    for row, (path, _) in enumerate(files):
        try:
            with Image.open(path) as image:
                if image.mode.startswith("I"):
                    raise DataError(
                        f"an image has more than 8 bits per channel (mode {image.mode})",
                        because="a conversion to 8 bits would cut its values off",
                        fix=f"convert such images to 8 bits, all by the same fixed scale; {find}",
                    )
                pixels = image.convert("L" if channels == 1 else "RGB")
                pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        except (OSError, UnidentifiedImageError, SyntaxError) as error:
            what = f"cannot read an image: {type(error).__name__}"
            raise DataError(what, fix=f"mend or remove it; {find}") from error
        array = np.asarray(pixels, np.float32) / 255
        inputs[row] = array[None] if channels == 1 else array.transpose(2, 0, 1)
    return inputs, np.array([label for _, label in files], np.int64)
