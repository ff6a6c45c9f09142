"""From the data section of a spec to declared sizes and records, split by a public rule.

The split is a function of the declared number of records alone (never of a record), so it costs
no privacy, and the private part is disjoint from every part that is evaluated on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.words import counted
from dpsweep.trainables.data.class_split import open_classes
from dpsweep.trainables.data.dataset import (
    SPLIT_SEED,
    DatasetInfo,
    SweepData,
    is_far_below,
)
from dpsweep.trainables.data.episodes import Episodes
from dpsweep.trainables.data.kept.hashes import remembered_hashes
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.kept.pixels import taken
from dpsweep.trainables.data.public.file import (
    PollutionFile,
    PublicFile,
    open_pollution,
    open_public_file,
)
from dpsweep.trainables.data.public.pollution import check_pollution, polluted
from dpsweep.trainables.data.public.rows import declared_positions, first_of_each
from dpsweep.trainables.data.raw.reading import reading
from dpsweep.trainables.data.source import PARTS, Arrays, Source

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec, SweepSpec


def describe_dataset(spec: DataSpec) -> DatasetInfo:
    """Return the public facts of a spec's ``data`` section; opens no private record.

    Of a study of episodes that is the pool they are drawn from.

    Names, headers and existence of files are read, so that a missing dataset is found early.
    A dataset with a validation part of its own uses it instead of ``validation.fraction``.

    Raises:
        DataError: The data is missing or not as declared, or the fractions leave nothing private.
    """
    source = open_classes(spec)
    return _describe(spec, source, *_others(spec, source))


def load_dataset(
    spec: DataSpec,
    episodes: Episodes | None = None,
    *,
    searched_share: float | None = None,
    keep: Keep | None = None,
) -> SweepData:
    """Return the records, split by a rule that depends on the declared sizes alone.

    Let N be the declared number of records. Slots 0..N-1 are permuted by a fixed public seed and
    dealt to validation, test, public and private, in that order; the record in slot i follows its
    slot. Records from slot N on are private (unless ``max_private`` limits the private slots),
    and slots without a record stay empty. Rows of ``data.public.positions`` are dealt to no other
    part; with ``data.public.per_class`` the first slots of each class are public, of those that
    come after validation and test (``public.rows.first_of_each``). Public records of another file
    are read from there, all others are then private. Pollution is mixed into the public part.

    Args:
        spec: The ``data`` section of a spec.
        episodes: How the records of a trial are drawn from these, if they are.
        searched_share: See ``SweepData``.
        keep: Where decoded images are kept; None: in memory, as bytes.
    Raises:
        DataError: See ``describe_dataset``; or the files cannot be read; or they lack records for
            some episode.
    """
    source = open_classes(spec)
    public, pollution = _others(spec, source)
    info = _describe(spec, source, public, pollution)
    with reading(spec.dataset):
        read = source.records(keep)
        inputs, labels = read["train"]
        parts: dict[str, Arrays] = {}
        for part, slots in _slots(spec, info, source, labels).items():
            if part == "private" and spec.max_private is None:
                slots = np.concatenate([slots, np.arange(source.num_records, len(labels))])
            rows = slots[slots < len(labels)]
            parts[part] = (taken(inputs, rows), np.ascontiguousarray(labels[rows]))
        for part in ("validation", "test"):
            if part in read:
                parts[part] = read[part]
        if public is not None:
            parts |= public.read()
        is_polluted = None
        if spec.public.pollution is not None:
            parts["public"], is_polluted = polluted(
                parts["public"],
                spec.public.pollution,
                info.num_classes,
                records=info.num_polluted,
                others=None if pollution is None else pollution.read(),
            )
        if spec.public.labels == "hidden":
            inputs, labels = parts["public"]
            parts["public"] = (inputs, np.full_like(labels, -1))
        hashes, content_hash, old_hash = remembered_hashes(parts, info.class_names, keep)
        data = SweepData(
            info,
            parts,
            content_hash,
            hashes=hashes,
            episodes=episodes,
            polluted=is_polluted,
            old_hash=old_hash,
            searched_share=searched_share,
        )
        if episodes is not None:
            episodes.check(data)
    return data


def load_records(spec: SweepSpec) -> SweepData:
    """Return the records of a study; images that are many from where they are kept.

    Raises:
        DataError: See ``load_dataset``.
        ResourceError: There is no room for decoded images.
    """
    return load_dataset(
        spec.data,
        Episodes.of(spec),
        searched_share=spec.searched_share,
        keep=Keep.of(spec.storage),
    )


def public_inputs(spec: DataSpec, *, most: int, keep: Keep | None = None) -> np.ndarray:
    """Return the inputs of records that a spec declares public, float32 (records, *input_shape).

    Those of ``data.public``, without pollution; where there are none, validation records that are
    public. Of more than ``most`` so many, always the same ones.

    Guarantees:
        No private record is among them, and which ones they are depends on declared numbers alone.
        The file is read as a whole, since public records have none of their own.

    Raises:
        DataError: There are none, or the files cannot be read.
    """
    source = open_classes(spec)
    public, pollution = _others(spec, source)
    info = _describe(spec, source, public, pollution)
    part = "public" if info.num_public - info.num_polluted else "validation"
    inputs: np.ndarray = np.empty((0, *source.input_shape), np.float32)
    if public is not None:
        inputs = public.read()[part][0]
    elif part == "public" or spec.validation.visibility == "public":
        with reading(spec.dataset):
            read = source.records(keep)
            inputs, labels = read["train"]
            slots = _slots(spec, info, source, labels)[part]
            inputs = read[part][0] if part in read else inputs[slots[slots < len(inputs)]]
    if len(inputs) == 0:
        raise DataError(
            f"{spec.dataset} has no public records",
            because="none are in data.public, and no validation records are public",
            fix="declare records that are public, for example data.public.fraction: 0.1",
        )
    chosen = np.random.default_rng(SPLIT_SEED + 3).permutation(len(inputs))[:most]
    return np.ascontiguousarray(inputs[np.sort(chosen)])


def split_slots(
    info: DatasetInfo,
    source: Source,
    max_private: int | None,
    *,
    positions: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    per_class: int | None = None,
) -> dict[str, np.ndarray]:
    """Return the sorted slots (int64, below the declared number of records) of every part.

    Args:
        info: Declared facts.
        source: Of the training records.
        max_private: At most so many are private.
        positions: Rows that are public, dealt to no other part; None: a share of all is.
        labels: Classes of the training records, int64; only read for ``per_class``.
        per_class: Public are the first so many slots of each class, among ``positions`` if given.
    """
    order = np.random.default_rng(SPLIT_SEED).permutation(source.num_records)
    own_public = 0 if info.public_from else info.num_public - info.num_polluted
    public = np.zeros(0, np.int64)
    if positions is not None:
        is_public = np.isin(order, positions)
        public, order = order[is_public], order[~is_public]
    slots, begin = {}, 0
    for part, count, is_own in (
        ("validation", info.num_validation, info.has_own_validation),
        ("test", info.num_test, source.own_test is not None),
        ("public", own_public, positions is not None or per_class is not None),
    ):
        end = begin if is_own else begin + count
        slots[part] = order[begin:end]
        begin = end
    rest = order[begin:]
    if per_class is not None:
        assert labels is not None
        among = rest if positions is None else public
        among = among[among < len(labels)]
        classes, names = range(info.num_classes), info.class_names
        public = first_of_each(among, labels, per_class, classes, names)
        rest = rest[~np.isin(rest, public)]
    if positions is not None or per_class is not None:
        slots["public"] = public
    slots["private"] = rest[:max_private]
    return {part: np.sort(slots[part]) for part in PARTS}


def _slots(
    spec: DataSpec, info: DatasetInfo, source: Source, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the slots of every part of a spec's own records, whose classes are ``labels``."""
    if info.public_from:
        return split_slots(info, source, spec.max_private)
    return split_slots(
        info,
        source,
        spec.max_private,
        positions=declared_positions(spec, source.num_records),
        labels=labels,
        per_class=spec.public.per_class,
    )


def _others(spec: DataSpec, source: Source) -> tuple[PublicFile | None, PollutionFile | None]:
    """Return the other files that a spec names, opened.

    Raises:
        DataError: One is missing, or not as it must be.
    """
    with _named("data.public"):
        public = open_public_file(spec, source)
    with _named("data.public.pollution"):
        pollution = open_pollution(spec, source)
    return public, pollution


@contextlib.contextmanager
def _named(key: str) -> Iterator[None]:
    """Have errors about another file name the keys of its own section."""
    try:
        yield
    except DataError as error:
        about = error.message
        if not about.startswith("data.public"):
            about = about.replace("data.", f"{key}.")
        about = about if about.startswith("data.") else f"{key}: {about}"
        fix = None if error.fix is None else error.fix.replace("data.path", f"{key}.path")
        raise DataError(about, because=error.because, fix=fix) from error


def _describe(
    spec: DataSpec,
    source: Source,
    public: PublicFile | None,
    others: PollutionFile | None,
) -> DatasetInfo:
    total = source.num_records
    if source.own_test is not None and spec.test.fraction > 0:
        raise DataError(
            f"{spec.dataset} has a test part of its own, but data.test.fraction="
            f"{spec.test.fraction:g}",
            fix="leave data.test.fraction out",
        )
    own_validation, own_test = source.own_validation, source.own_test
    if public is not None and public.num_validation:
        if own_validation is not None:
            raise DataError(
                f"{spec.dataset} has a validation part of its own, but data.public.validation="
                f"{spec.public.validation:g}",
                fix="leave data.public.validation out",
            )
        own_validation = public.num_validation
    dealt = {
        "validation": 0.0 if own_validation is not None else spec.validation.fraction,
        "test": spec.test.fraction,
        "public": spec.public.fraction,
    }
    counts = {part: round(share * total) for part, share in dealt.items()}
    taken = dict(counts)
    positions = declared_positions(spec, total)
    per_class = spec.public.per_class
    if public is not None:
        counts["public"] = public.num_public
    elif positions is not None or per_class is not None:
        counts["public"] = taken["public"] = 0 if positions is None else len(positions)
        if per_class is not None:
            counts["public"] = per_class * source.num_classes
            taken["public"] = counts["public"] if positions is None else len(positions)
            if counts["public"] > (total if positions is None else len(positions)):
                raise DataError(
                    f"data.public.per_class={per_class} of {source.num_classes} classes are more "
                    f"than the records there are to choose from",
                    fix="lower data.public.per_class",
                )
    num_private = total - sum(taken.values())
    if num_private < 1:
        shares = ", ".join(f"data.{part}.fraction={share:g}" for part, share in dealt.items())
        if taken["public"] and not spec.public.fraction:
            shares += f", and data.public takes {counted(taken['public'], 'record')}"
        raise DataError(
            f"no private record is left of {total}", because=shares, fix="lower the fractions"
        )
    pollution = spec.public.pollution
    check_pollution(
        pollution,
        source.input_shape,
        counts["public"],
        None if others is None else others.num_records,
    )
    num_polluted = 0 if pollution is None else pollution.count(counts["public"])
    if spec.max_private is not None:
        num_private = min(num_private, spec.max_private)
    return DatasetInfo(
        name=spec.dataset,
        input_shape=source.input_shape,
        num_classes=source.num_classes,
        num_private=num_private,
        has_own_validation=own_validation is not None,
        has_own_test=own_test is not None,
        num_validation=counts["validation"] if own_validation is None else own_validation,
        num_test=counts["test"] if own_test is None else own_test,
        num_public=counts["public"] + num_polluted,
        num_polluted=num_polluted,
        public_from="" if public is None else public.about,
        public_labels=spec.public.labels,
        class_names=source.class_names,
        task=spec.task,
        text=source.text,
        is_far_smaller=source.num_found is not None and is_far_below(source.num_found, total),
        notes=source.notes,
    )
