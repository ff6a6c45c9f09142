"""Public records, checked before anything starts: their labels, and that they are no private ones.

Also what decides which records are private at all (``private_parts``).

What is read here is declared public: labels of another file, and of no record of the study's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError, Mistake
from dpsweep.spec.pretrain import RANDOM_PROCESS
from dpsweep.study.launched import is_new
from dpsweep.trainables.data.class_split import open_classes
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.kept.pixels import Inputs, blocks_of
from dpsweep.trainables.data.public.file import open_public_file
from dpsweep.trainables.data.public.rows import positions_digest
from dpsweep.trainables.data.raw.preparation import ImageRecords
from dpsweep.trainables.data.source import whole
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.hooks import ChecksRecords
from dpsweep.trainables.outside import asked

if TYPE_CHECKING:
    from dpsweep.spec.data.section import DataSpec
    from dpsweep.spec.study import SweepSpec
    from dpsweep.trainables.data.dataset import DatasetInfo
    from dpsweep.trainables.method import Method

#: A share of copies from which on two sets of records are taken for the same.
SAME = 0.5
#: A chance that shots lack records which is worth a word.
_LIKELY = 0.05
#: How many public records of each class a method of AdaMix draws.
SHOTS = "public.shots"
#: Datasets of which ``data.class_names`` says which class a label is.
_NAMES_ARE_LABELS = ("text", "image_folder")


def public_problems(
    spec: SweepSpec,
    methods: Mapping[str, type[Method]],
    values: Mapping[str, Sequence[Any]],
    info: DatasetInfo,
) -> list[Mistake]:
    """Return what is wrong about public records of another file, by its content and its labels.

    Guarantees:
        Reads labels of the file, which the spec declares public, and the whole of it where it is
        as long as the private file, to see whether the two are the same.

    Args:
        spec: A valid spec.
        methods: Those of its space.
        values: What the space can give each hyperparameter.
        info: Of the study's data.
    """
    public = spec.data.public
    if not public.is_of_file:
        return []
    key = "data.public.dataset" if public.path is None else "data.public.path"
    if is_same_content(spec.data.path, public.path):
        fix = "name another file, or declare a part of it: fraction, positions or per_class"
        return [Mistake(key, "has the content of the study's own data, which are private", fix)]
    if public.labels == "hidden" or info.task != "classification":
        return []
    try:
        file = open_public_file(spec.data, open_classes(spec.data))
        assert file is not None
        labels = file.read_labels()
    except DataError as error:
        return [Mistake(key, error.message, error.fix or "correct it")]
    parts = {"public": (np.empty((len(labels), 0), np.float32), labels)}
    data = SweepData(info, parts, "")
    problems = []
    for method in methods.values():
        if issubclass(method, ChecksRecords) and spec.episodes is None:
            try:
                asked(method, "check_records", values, data)
            except DataError as error:
                problems.append(Mistake("data.public", error.message, error.fix or "correct it"))
    return problems


def is_same_content(own: str | None, other: str | None) -> bool:
    """Say whether another file is the private one under another name."""
    if own is None or other is None:
        return False
    paths = [Path(path).expanduser() for path in (own, other)]
    if not all(path.is_file() for path in paths):
        return False
    if paths[0].stat().st_size != paths[1].stat().st_size:
        return False
    return _digest(paths[0]) == _digest(paths[1])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_overlap(spec: SweepSpec, data: SweepData) -> None:
    """Refuse public or polluting records of a file, or of pre-training, that are protected ones.

    Protected are private training records, and those of validation and test unless public.

    Guarantees:
        Looks at one bit of them for each file, in a study that is not there yet: whether half of
        the file, or half of one of their parts, is in both. Nothing about it is written down.

    Raises:
        DataError: They are; or the records of ``pretrain`` cannot be read.
    """
    if not is_new(spec):
        return
    own = _protected(spec, data)
    where = _other_file(data)
    if where and max(_shares(own, _others(data))) >= SAME:
        raise _is_private(where, "data.public")
    others = _pretrain_records(spec, own[0].shape[1:])
    if others is not None and max(_shares(own, others)) >= SAME:
        raise _is_private("pretrain", "pretrain")


def _protected(spec: SweepSpec, data: SweepData) -> list[Inputs]:
    """Return the parts of the study's own records that are not declared public."""
    parts = ["private"]
    for part, section in (("validation", spec.data.validation), ("test", spec.data.test)):
        if part in data.parts and section.visibility != "public":
            parts.append(part)
    return [data.parts[part][0] for part in parts]


def _is_private(where: str, key: str) -> DataError:
    return DataError(
        f"half of the records of {where} or more are records of the study's own data, which are "
        "private",
        because="what is declared public has no protection",
        fix=f"name a file of other records in {key}",
    )


def _pretrain_records(spec: SweepSpec, shape: tuple[int, ...]) -> Inputs | None:
    """Return another dataset's records that weights are trained on, read as the study's own are.

    None: there are none, or none that can be compared. Images of any size, which are resized as
    they are read, are resized to the study's; of others, whose shape is told without reading them,
    none is the same as one of another shape.
    """
    block = spec.pretrain
    if block is None or block.dataset in (None, RANDOM_PROCESS):
        return None
    section = block.as_data()
    source = open_source(section)
    if source.input_shape != shape and isinstance(source.preparation, ImageRecords):
        own = spec.data
        if not isinstance(open_source(own).preparation, ImageRecords):
            return None
        sizes = {"image_size": own.image_size, "channels": own.channels, "resize": own.resize}
        source = open_source(section.model_copy(update=sizes))
    is_alike = source.input_shape == shape
    return whole(source.records(Keep.of(spec.storage))["train"][0]) if is_alike else None


def copies_note(spec: SweepSpec, data: SweepData) -> list[str]:
    """Return a line on private records that are in a public file, too; it tells of single ones."""
    where = _other_file(data)
    if not where or max(_shares(_protected(spec, data), _others(data))) == 0:
        return []
    return [f"note: some private records are in {where} too, and have no protection there"]


def _other_file(data: SweepData) -> str:
    """Return which public records are none of the training source, in words; empty: none are."""
    of_pollution = "" if data.polluted is None else "data.public.pollution"
    return data.info.public_from or of_pollution


def _others(data: SweepData) -> Inputs:
    """Return the public records that are none of the training source."""
    public = data.parts["public"][0]
    if not data.info.public_from and data.polluted is not None:
        return public[data.polluted]  # the rest are of the training source, as they should be
    return public


def _shares(own: Sequence[Inputs], others: Inputs) -> list[float]:
    """Return which share of each of our parts is among others, then which share of them is ours."""
    parts, theirs = [_digests(part) for part in own], _digests(others)
    ours = [digest for part in parts for digest in part]
    return [
        sum(digest in among for digest in digests) / max(len(digests), 1)
        for digests, among in [*((part, set(theirs)) for part in parts), (theirs, set(ours))]
    ]


def _digests(inputs: Inputs) -> list[bytes]:
    """Return a hash of each record as a method reads it; of images kept as bytes all are read."""
    return [
        hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()
        for block in blocks_of(inputs)
        for row in block
    ]


def blind_note(
    spec: SweepSpec, values: Mapping[str, Sequence[Any]], info: DatasetInfo | None
) -> str:
    """Return a line on shots that a share drawn whatever the class may lack, or nothing.

    The chance is that of the union of classes, each with an even share of the public records; no
    label is read.
    """
    shots = [n for n in values.get(SHOTS, ()) if isinstance(n, int)]
    if info is None or not shots or spec.data.public.fraction <= 0:
        return ""
    from scipy.stats import binom

    num_public, num_classes = info.num_public - info.num_polluted, info.num_classes
    chance = num_classes * float(binom.cdf(max(shots) - 1, num_public, 1 / num_classes))
    if chance < _LIKELY:
        return ""
    return (
        f"data.public.fraction draws {num_public} records whatever their class, and one of "
        f"{num_classes} even classes has fewer than {SHOTS}={max(shots)} of them with a chance of "
        f"{'more than half' if chance > SAME else f'{chance:.0%}'}; data.public.per_class takes "
        "as many of each, and leaves the others private"
    )


def private_parts(spec: SweepSpec) -> dict[str, Any]:
    """Return the keys that decide which records are private, and their values as JSON has them.

    A key that an older ledger does not know is None in every study that could be on it.
    """
    data, pretrain = spec.data, spec.pretrain
    per_class = None if data.public.is_of_file else data.public.per_class
    declared: dict[str, Any] = {
        "data.num_records": data.num_records,
        "data.classes": data.classes,
        "data.validation.fraction": 0.0 if data.public.validation else data.validation.fraction,
        "data.validation.visibility": data.validation.visibility,
        "data.test.fraction": data.test.fraction,
        "data.test.visibility": data.test.visibility,
        "data.public.fraction": data.public.fraction,
        "data.public.positions": positions_digest(data),
        "data.public.per_class": per_class,
        "pretrain.classes": None if pretrain is None else pretrain.classes,
        "data.splits": _named_splits(data),
    }
    # Where classes decide, so does what is taken for a record's class.
    deciding = (per_class, data.classes, None if pretrain is None else pretrain.classes)
    if any(key is not None for key in deciding):
        is_default = data.dataset == "text" and data.label_column == "label"
        declared["data.label_column"] = None if is_default else data.label_column
        declared["data.attributes"] = data.attributes
        if data.dataset in _NAMES_ARE_LABELS:
            declared["data.class_names"] = data.class_names
    return {k: list(v) if isinstance(v, tuple) else v for k, v in declared.items()}


def _named_splits(data: DataSpec) -> dict[str, str] | None:
    """Return which split is which part, as far as it is named: train and test may be exchanged."""
    return None if data.splits is None else data.splits.model_dump(exclude_none=True) or None
