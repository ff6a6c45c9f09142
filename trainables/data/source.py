"""Source of records: the facts that every dataset says of itself, and what its reader needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.words import counted
from dpsweep.trainables.data.raw.preparation import ArrayRecords, Preparation
from dpsweep.trainables.data.raw.unprepared import Unprepared

if TYPE_CHECKING:
    from dpsweep.spec.data.generation import GenerationSpec
    from dpsweep.spec.study import DataSpec
    from dpsweep.trainables.data.kept.keep import Keep


@dataclass(frozen=True)
class TextInfo:
    """Facts about records that are token ids, which a network must know.

    Attributes:
        vocabulary_size: Every id is below it.
        pad_id: Id of what fills a record up to its length. A tokenizer without a pad token pads
            with its end of text.
        separator_id: Of pairs: tokens after the first such id are of the second text, where the
            tokenizer tells networks so; None where it does not.
        end_id: Of prompts with targets: id that ends both of them; None for other records.
        tokenizer: Where texts are written: what ``data.tokenizer`` names; else empty.
        generation: How texts are written for the prompts of the test part; None: none are.
    """

    vocabulary_size: int
    pad_id: int
    separator_id: int | None = None
    end_id: int | None = None
    tokenizer: str = ""
    generation: GenerationSpec | None = None


PartName = Literal["private", "public", "validation", "test"]
PARTS: tuple[PartName, ...] = ("private", "public", "validation", "test")

#: Own part -> names of its folder, or of its arrays; of several that are there the first counts.
OWN_PARTS = {"validation": ("val", "validation"), "test": ("test",)}
#: Inputs and labels. Inputs of many images are ``kept.pixels.Pixels``, which index as arrays do.
#: From ``Source.records`` they may be ``Unprepared``, of which ``whole`` makes an array.
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class KeptRead:
    """A ``Source.read_kept`` that reads what one ``read`` reads, and goes where that is replaced.

    Attributes:
        goes_with: The ``read``.
        call: What reads its records from where they are kept.
    """

    goes_with: Callable[[], dict[str, Arrays]]
    call: Callable[[Keep], dict[str, Arrays]]

    def __call__(self, keep: Keep) -> dict[str, Arrays]:
        """Return what ``goes_with`` returns."""
        return self.call(keep)


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
        tasks: What its labels are for, as ``data.task`` names it.
        preparation: The way from a record as its file has it to ``read``'s inputs, which goes with
            a registered model; ``read`` had better use it, too. None: inputs are the records as
            they are.
        read_kept: ``read`` of images that are decoded once and kept in a directory, or of records
            that are prepared as they are asked for; None where neither is, and where it is the
            ``KeptRead`` of another ``read``, since replaced.
        notes: What whoever launches a study should know of it, one line each; nothing of private
            records.
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
    tasks: frozenset[str] = frozenset({"classification"})
    preparation: Preparation | None = None
    read_kept: Callable[[Keep], dict[str, Arrays]] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.read_kept, KeptRead) and self.read_kept.goes_with != self.read:
            object.__setattr__(self, "read_kept", None)

    def records(self, keep: Keep | None = None) -> dict[str, Arrays]:
        """Return what ``read`` returns; images that are many from where they are kept.

        Records of ``train`` may be ``Unprepared``: rows of them are an array, and so is ``whole``.
        """
        if keep is None or self.read_kept is None:
            return self.read()
        return self.read_kept(keep)

    @property
    def prepared_by(self) -> Preparation:
        """The ``preparation``; that of arrays as a method reads them where there is none."""
        if self.preparation is not None:
            return self.preparation
        return ArrayRecords.as_read(self.input_shape, "int64" if self.text else "float32")


def whole(inputs: Any) -> Any:
    """Return inputs of ``Source.records``: ``Unprepared`` ones as an array, others unchanged."""
    return np.asarray(inputs) if isinstance(inputs, Unprepared) else inputs


def known_size(spec: DataSpec, num_records: int) -> int:
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
