"""From the data section of a spec to declared sizes and records, split by a public rule.

The split is a function of the declared number of records alone (never of a record), so it costs
no privacy, and the private part is disjoint from every part that is evaluated on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.class_split import open_classes
from dpsweep.trainables.data.dataset import (
    PARTS,
    SPLIT_SEED,
    DatasetInfo,
    SweepData,
    hash_of_parts,
    is_far_below,
    part_hash,
)
from dpsweep.trainables.data.pollution import check_pollution, polluted
from dpsweep.trainables.data.source import Arrays, Source

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec
    from dpsweep.trainables.data.episodes import Episodes


def describe_dataset(spec: DataSpec) -> DatasetInfo:
    """Return the public facts of a spec's ``data`` section; opens no private record.

    Of a study of episodes that is the pool they are drawn from.

    Names, headers and existence of files are read, so that a missing dataset is found early.
    A dataset with a validation part of its own uses it instead of ``validation.fraction``.

    Raises:
        DataError: The data is missing or not as declared, or the fractions leave nothing private.
    """
    return _describe(spec, open_classes(spec))


def load_dataset(
    spec: DataSpec, episodes: Episodes | None = None, *, searched_share: float | None = None
) -> SweepData:
    """Return the records, split by a rule that depends on the declared sizes alone.

    Let N be the declared number of records. Slots 0..N-1 are permuted by a fixed public seed and
    dealt to validation, test, public and private, in that order; the record in slot i follows its
    slot. Records from slot N on are private (unless ``max_private`` limits the private slots),
    and slots without a record stay empty. Pollution is then mixed into the public part.

    Args:
        spec: The ``data`` section of a spec.
        episodes: How the records of a trial are drawn from these, if they are.
        searched_share: See ``SweepData``.
    Raises:
        DataError: See ``describe_dataset``; or the files cannot be read; or they lack records for
            some episode.
    """
    source = open_classes(spec)
    info = _describe(spec, source)
    read = source.read()
    inputs, labels = read["train"]
    parts: dict[str, Arrays] = {}
    for part, slots in split_slots(info, source, spec.max_private).items():
        if part == "private" and spec.max_private is None:
            slots = np.concatenate([slots, np.arange(source.num_records, len(labels))])
        rows = slots[slots < len(labels)]
        parts[part] = (np.ascontiguousarray(inputs[rows]), np.ascontiguousarray(labels[rows]))
    for part in ("validation", "test"):
        if part in read:
            parts[part] = read[part]
    pollution, is_polluted = spec.public.pollution, None
    if pollution is not None:
        parts["public"], is_polluted = polluted(parts["public"], pollution, info.num_classes)
    hashes = {part: part_hash(arrays[0]) for part, arrays in parts.items()}
    data = SweepData(
        info,
        parts,
        hash_of_parts(parts, info.class_names),
        hashes=hashes,
        episodes=episodes,
        polluted=is_polluted,
        old_hash=hash_of_parts(parts),
        searched_share=searched_share,
    )
    if episodes is not None:
        episodes.check(data)
    return data


def public_inputs(spec: DataSpec, *, most: int) -> np.ndarray:
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
    info = _describe(spec, source)
    part = "public" if info.num_public - info.num_polluted else "validation"
    inputs: np.ndarray = np.empty((0, *source.input_shape), np.float32)
    if part == "public" or spec.validation.visibility == "public":
        read = source.read()
        inputs = read["train"][0]
        slots = split_slots(info, source, spec.max_private)[part]
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
    info: DatasetInfo, source: Source, max_private: int | None
) -> dict[str, np.ndarray]:
    """Return the sorted slots (int64, below the declared number of records) of every part."""
    order = np.random.default_rng(SPLIT_SEED).permutation(source.num_records)
    counts = {
        "validation": 0 if source.own_validation is not None else info.num_validation,
        "test": 0 if source.own_test is not None else info.num_test,
        "public": info.num_public - info.num_polluted,
    }
    slots = {}
    begin = 0
    for part, count in counts.items():
        slots[part] = np.sort(order[begin : begin + count])
        begin += count
    end = None if max_private is None else begin + max_private
    slots["private"] = np.sort(order[begin:end])
    return {part: slots[part] for part in PARTS}


def _describe(spec: DataSpec, source: Source) -> DatasetInfo:
    total = source.num_records
    if source.own_test is not None and spec.test.fraction > 0:
        raise DataError(
            f"{spec.dataset} has a test part of its own, but data.test.fraction="
            f"{spec.test.fraction:g}",
            fix="leave data.test.fraction out",
        )
    dealt = {
        "validation": 0.0 if source.own_validation is not None else spec.validation.fraction,
        "test": spec.test.fraction,
        "public": spec.public.fraction,
    }
    counts = {part: round(share * total) for part, share in dealt.items()}
    num_private = total - sum(counts.values())
    if num_private < 1:
        shares = ", ".join(f"data.{part}.fraction={share:g}" for part, share in dealt.items())
        raise DataError(
            f"no private record is left of {total}", because=shares, fix="lower the fractions"
        )
    pollution = spec.public.pollution
    check_pollution(pollution, source.input_shape, counts["public"])
    num_polluted = 0 if pollution is None else pollution.records
    if spec.max_private is not None:
        num_private = min(num_private, spec.max_private)
    own_validation, own_test = source.own_validation, source.own_test
    return DatasetInfo(
        name=spec.dataset,
        input_shape=source.input_shape,
        num_classes=source.num_classes,
        num_private=num_private,
        has_own_validation=own_validation is not None,
        num_validation=counts["validation"] if own_validation is None else own_validation,
        num_test=counts["test"] if own_test is None else own_test,
        num_public=counts["public"] + num_polluted,
        num_polluted=num_polluted,
        class_names=source.class_names,
        task=spec.task,
        text=source.text,
        is_far_smaller=source.num_found is not None and is_far_below(source.num_found, total),
        notes=source.notes,
    )
