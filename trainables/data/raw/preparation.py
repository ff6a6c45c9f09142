"""Preparation of records: from what their files hold to what a network reads.

Readers of data prepare records by it, and a registered model brings a copy of this file: so it
imports numpy and the standard library, Pillow and transformers where records need them, and nothing
of this package.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

#: The file that ``save`` writes, and the folder of a tokenizer beside it.
FILE, TOKENIZER = "preparation.json", "tokenizer"
#: Texts that are given to a tokenizer at once.
_BLOCK = 1000
_MODES = {2: "LA", 3: "RGB", 4: "RGBA"}


class RecordError(ValueError):
    """A record is not what the preparation takes; the message tells nothing of its values."""


class DeepImageError(RecordError):
    """An image has more bits than a model takes."""


class TooLongError(RecordError):
    """The one text of a record that may be cut is too short for it."""


def too_long(truncation: str) -> TooLongError:
    """Return the error of a record that has too many tokens still when it is cut."""
    return TooLongError(f"a record does not fit, however much is cut ({truncation})")


@dataclass(frozen=True)
class ArrayRecords:
    """Records that are arrays of one shape.

    Attributes:
        raw_shape: Of one record, as its file has it.
        raw_dtype: Name of numpy's type of the file's numbers, such as ``uint8``.
        shape: Of one record, as a method reads it; as many numbers as ``raw_shape``.
        scale: Factor from the file's numbers to those that are read, both float32.
        dtype: ``float32``; ``int64`` for token ids, which have scale 1.
        is_channels_last: Whether ``raw_shape`` is (height, width, channels) of images, which are
            read as (channels, height, width).
    """

    kind: ClassVar[str] = "array"
    raw_shape: tuple[int, ...]
    raw_dtype: str
    shape: tuple[int, ...]
    scale: float = 1.0
    dtype: Literal["float32", "int64"] = "float32"
    is_channels_last: bool = False

    @classmethod
    def as_read(
        cls, shape: Sequence[int], dtype: Literal["float32", "int64"] = "float32"
    ) -> ArrayRecords:
        """Return the preparation of records that their files hold as a method reads them."""
        return cls(tuple(shape), dtype, tuple(shape), dtype=dtype)

    @property
    def zero(self) -> np.ndarray:
        """A record of zeros, which is nobody's."""
        return np.zeros(self.raw_shape, self.raw_dtype)

    def prepare(self, records: Any) -> np.ndarray:
        """Return records as a method reads them: ``dtype``, (records, *shape), C-contiguous.

        >>> pixels = ArrayRecords((2, 2), "uint8", (1, 2, 2), scale=0.5)
        >>> pixels.prepare([[[0, 2], [4, 6]]]).tolist()
        [[[[0.0, 1.0], [2.0, 3.0]]]]
        >>> colours = ArrayRecords((1, 2, 3), "float32", (3, 1, 2), is_channels_last=True)
        >>> colours.prepare([[[[1, 2, 3], [4, 5, 6]]]]).tolist()
        [[[[1.0, 4.0]], [[2.0, 5.0]], [[3.0, 6.0]]]]

        Args:
            records: Numbers, (records, *raw_shape).
        Raises:
            RecordError: They have another shape or kind, or are not finite.
        """
        try:
            values = np.asarray(records)
        except ValueError as error:  # rows of different lengths
            raise RecordError(f"records are no array: {error}") from None
        if not len(values) and values.ndim < 2:
            values = np.zeros((0, *self.raw_shape), self.raw_dtype)
        if values.shape[1:] != self.raw_shape:
            raise RecordError(f"a record has shape {values.shape[1:]}, not {self.raw_shape}")
        kinds = "biuf" if self.dtype == "float32" else "biu"
        if values.dtype.kind not in kinds:
            numbers = "numbers" if self.dtype == "float32" else "whole numbers"
            raise RecordError(f"records are of {values.dtype}, and must be {numbers}")
        is_finite = values.dtype.kind in "biu" and abs(self.scale) <= 1
        with np.errstate(over="ignore"):
            if self.scale == 1:
                values = np.asarray(values, self.dtype)
            else:
                values = np.multiply(values, np.float32(self.scale), dtype=np.float32)
        if not is_finite and not np.isfinite(values).all():
            raise RecordError("records have values that are not finite (as float32)")
        if self.is_channels_last:
            values = values.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(values.reshape(-1, *self.shape))


@dataclass(frozen=True)
class ImageRecords:
    """Records that are images of any size, resized to one (bilinear) and scaled to [0, 1].

    Attributes:
        channels: 1: grey; 3: colour.
        height: In pixels, after resizing.
        width: In pixels, after resizing.
        resize: ``squash``: to this size, whatever their sides; ``crop``: until they cover it, of
            which the centre is kept.
    """

    kind: ClassVar[str] = "image"
    channels: int
    height: int
    width: int
    resize: Literal["squash", "crop"] = "squash"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record, as a method reads it."""
        return (self.channels, self.height, self.width)

    @property
    def zero(self) -> bytes:
        """A black image as a PNG, which is nobody's."""
        from PIL import Image

        file = io.BytesIO()
        size = (self.width, self.height)
        Image.new("L" if self.channels == 1 else "RGB", size).save(file, "PNG")
        return file.getvalue()

    def prepare(self, records: Iterable[Any]) -> np.ndarray:
        """Return records as a method reads them, float32 (records, channels, height, width).

        Args:
            records: Each as ``read`` takes it.
        Raises:
            RecordError: One of them is no such image.
        """
        images = [self.read(record) for record in records]
        return np.stack(images) if images else np.zeros((0, *self.shape), np.float32)

    def read(self, record: Any) -> np.ndarray:
        """Return one image, float32 (channels, height, width): its ``pixels`` / 255."""
        return np.asarray(self.pixels(record), np.float32) / 255

    def pixels(self, record: Any) -> np.ndarray:
        """Return one image, uint8 (channels, height, width).

        Args:
            record: Bytes of an encoded image, the path of its file, an image of Pillow, or pixels,
                uint8 (height, width) or (height, width, channels) of up to four channels.
        Raises:
            RecordError: It is no such image, or has more than 8 bits per channel.
        """
        from PIL import Image

        if isinstance(record, Image.Image):
            return self._read(record)
        if not isinstance(record, (bytes, bytearray, str, Path)):
            return self._read(Image.fromarray(*_pixels(record)))
        file = io.BytesIO(record) if isinstance(record, (bytes, bytearray)) else record
        try:
            with Image.open(file) as image:
                return self._read(image)
        except RecordError:
            raise
        except Exception as error:  # each format of Pillow raises its own kinds
            raise RecordError(f"cannot read an image: {type(error).__name__}") from error

    def _read(self, image: Any) -> np.ndarray:
        from PIL import Image, ImageOps

        refuse_deep(image)
        pixels = image.convert("L" if self.channels == 1 else "RGB")
        size, bilinear = (self.width, self.height), Image.Resampling.BILINEAR
        if self.resize == "crop":
            pixels = ImageOps.fit(pixels, size, bilinear)
        else:
            pixels = pixels.resize(size, bilinear)
        array = np.asarray(pixels)
        return array[None] if self.channels == 1 else array.transpose(2, 0, 1)


def refuse_deep(image: Any) -> None:
    """Refuse an image of Pillow with more than 8 bits per channel.

    Raises:
        DeepImageError: It has more; of colours Pillow reads 8 and says nothing.
    """
    if image.mode.startswith("I") or image.mode == "F":
        raise DeepImageError(f"an image has more than 8 bits per channel (mode {image.mode})")


def _pixels(record: Any) -> tuple[np.ndarray, str]:
    """Return pixels with Pillow's name of their mode."""
    pixels = np.asarray(record)
    if pixels.dtype != np.uint8 and pixels.dtype.kind == "i" and pixels.size:
        is_byte = 0 <= pixels.min() <= pixels.max() <= 255  # of JSON, which knows no uint8
        pixels = pixels.astype(np.uint8) if is_byte else pixels
    if pixels.dtype != np.uint8:
        raise RecordError(f"pixels are of {pixels.dtype}, and must be uint8")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    mode = "L" if pixels.ndim == 2 else _MODES.get(pixels.shape[-1], "")
    if pixels.ndim not in (2, 3) or not mode or not pixels.size:
        raise RecordError(
            f"pixels of shape {pixels.shape} are no image: (height, width) or (height, width, "
            "channels)"
        )
    return np.ascontiguousarray(pixels), mode


def _is_unicode(text: str) -> bool:
    """Say whether a text can be written, as half of a pair of surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class TextRecords:
    """Records that are texts, or pairs of them: token ids of one length, special tokens included.

    Attributes:
        length: Tokens of a record; longer ones are cut, shorter ones padded, both on the right.
        pad_id: Id of padding.
        column: Name of the texts in a file with columns.
        tokenizer: Of transformers.
        pair_column: Name of the second texts; None where a record is one text.
        truncation: Which text of a pair is cut, as transformers names it.
    """

    kind: ClassVar[str] = "text"
    length: int
    pad_id: int
    column: str = "text"
    tokenizer: Any = field(default=None, repr=False, compare=False)
    pair_column: str | None = None
    truncation: str = "longest_first"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record, as a method reads it."""
        return (self.length,)

    @property
    def zero(self) -> Any:
        """The empty text, which is nobody's, or a pair of it."""
        return "" if self.pair_column is None else ("", "")

    def prepare(self, records: Iterable[Any]) -> np.ndarray:
        """Return texts as a method reads them, int64 (records, length).

        Args:
            records: Texts; of pairs, two texts each.
        Raises:
            RecordError: One of them is no text, or no two.
        """
        texts = [*records]
        if self.pair_column is None:
            columns = [texts]
        elif any(isinstance(pair, (str, bytes)) or len(pair) != 2 for pair in texts):
            raise RecordError("there are records that are not two texts")
        else:
            columns = [[pair[place] for pair in texts] for place in (0, 1)]
        ids_of_all = np.full((len(texts), self.length), self.pad_id, np.int64)
        if not all(isinstance(text, str) for column in columns for text in column):
            raise RecordError("there are values that are not text")
        for begin in range(0, len(texts), _BLOCK):
            columns_now = [column[begin : begin + _BLOCK] for column in columns]
            try:
                block = self.tokenizer(
                    *columns_now, truncation=self.truncation, max_length=self.length
                )
            except Exception as error:  # tokenizers raise their own kinds, which may quote a text
                problem = f"the tokenizer cannot read a text: {type(error).__name__}"
                is_text = all(map(_is_unicode, itertools.chain(*columns_now)))
                if self.truncation == "longest_first" or not is_text:
                    raise RecordError(problem) from None
                problem += f" ({self.truncation} cuts one text, and the other may fill a record)"
                raise TooLongError(problem) from None
            for row, ids in enumerate(block["input_ids"], start=begin):
                if len(ids) > self.length:  # tokenizers written in Python log it, and cut nothing
                    raise too_long(self.truncation)
                ids_of_all[row, : len(ids)] = ids
        return ids_of_all


Preparation = ArrayRecords | ImageRecords | TextRecords
_KINDS: dict[str, type[Preparation]] = {
    kind.kind: kind for kind in (ArrayRecords, ImageRecords, TextRecords)
}


def save(preparation: Preparation, folder: Path, **more: Any) -> None:
    """Write a preparation to a folder, for ``load``.

    Args:
        preparation: What is written.
        folder: A directory that is there.
        more: What stands beside it in its file; plain data.
    """
    if isinstance(preparation, TextRecords):
        preparation.tokenizer.save_pretrained(folder / TOKENIZER)
        names: tuple[str, ...] = ("length", "pad_id", "column")
        if preparation.pair_column is not None:
            names += ("pair_column", "truncation")
        facts = {name: getattr(preparation, name) for name in names}
    else:
        facts = asdict(preparation)
    content = {"kind": preparation.kind, "preparation": facts, **more}
    (folder / FILE).write_text(json.dumps(content, indent=2) + "\n")


def load(folder: Path) -> tuple[Preparation, Mapping[str, Any]]:
    """Return what ``save`` has written: the preparation, and what stands beside it."""
    content = json.loads((folder / FILE).read_text())
    facts = content.pop("preparation")
    lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
    preparation = _KINDS[content["kind"]](**{**facts, **lists})
    if isinstance(preparation, TextRecords):
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder / TOKENIZER, local_files_only=True
        )
        preparation = TextRecords(**facts, tokenizer=tokenizer)
    return preparation, content
