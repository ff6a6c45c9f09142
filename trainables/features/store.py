"""Frozen features on disk: computed once, found by their content, shared as mapped memory.

ROOT/                 mode 0700: features tell as much about a record as the record itself
  ENTRY.npy           features of one part of a dataset, (records, *feature_shape)
  ENTRY.json          written last: an entry without it is not finished
  ENTRY.lock          held by whoever computes the entry, and removed with the lock
  ENTRY.XXXX.part     rows under construction; waste if nobody holds the lock
  max_bytes, lock     the bound of the whole store; held by whoever makes room in it

ENTRY is a hash of the part's records and of everything else its features depend on. A mapped
entry is locked against eviction until nobody maps it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import ResourceError
from dpsweep.foundation.file_paths import FilePath, cache_of
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.hashes import part_hash
from dpsweep.trainables.data.kept.files import Entry, locked, make_private, new_array
from dpsweep.trainables.data.kept.room import Room
from dpsweep.trainables.data.source import PARTS, Arrays
from dpsweep.trainables.features.blocks import (
    BLOCK_ROWS,
    BlockJob,
    compute_block,
    compute_rows,
    feature_blocks,
    write_rows,
)
from dpsweep.trainables.features.bucket import fetch, is_published, publish
from dpsweep.trainables.features.spec import FeatureSpec

#: Part of every address: a change of how features are computed needs a change of it.
_FORMAT = 2
_TRIES = 3

#: Calls a function on every job, in any order, and yields what it returns, like ``map``.
MapBlocks = Callable[[Callable[[BlockJob], Any], Iterable[BlockJob]], Iterable[Any]]


class FeatureParts:
    """The parts of a dataset as features, each opened when it is first asked for.

    So a trial that computes its own features computes those it reads, and no others.

    Args:
        raw: Raw records.
        spec: What to make of them.
        root: Directory of the feature store, or its folder in a bucket; None: features are computed
            in memory.
    """

    def __init__(self, raw: SweepData, spec: FeatureSpec, root: FilePath | None = None) -> None:
        self.raw, self.spec, self.root = raw, spec, root
        self._opened: dict[str, tuple[np.ndarray, SweepData]] = {}

    def __getitem__(self, part: str) -> SweepData:
        """Return the data with this part alone, as features.

        Raises:
            Whatever ``FeatureStore.open`` raises.
        """
        source = self.raw.parts[part]
        before = self._opened.get(part)
        if before is not None and before[0] is source[0]:
            return before[1]
        alone = dataclasses.replace(self.raw, parts={part: source})
        opened = FeatureStore(self.root).open(alone, self.spec)
        self._opened[part] = (source[0], opened)
        return opened


class FeatureStore:
    """The feature store of a directory, or features in memory without one.

    Guarantees:
        An entry is whole or it is not found: it is put in place once every row is on disk, and
        found only with its sidecar and with the size and the header that this says. Files can be
        read by their owner alone. A feature is a function of one record, so computing and keeping
        it costs no privacy; it stays as private as the record.

    Args:
        root: Directory, made on first use; a folder in a bucket, of which each node keeps copies
            (``cache_of``); None computes features at each ``open``.
        max_bytes: Most bytes the store may occupy, which holds for all who open it after this;
            None leaves the bound as it is (at first: the disk's).
    """

    def __init__(self, root: FilePath | None, max_bytes: int | None = None) -> None:
        self.bucket = root if isinstance(root, BucketPath) else None
        self.root = cache_of(root) if isinstance(root, BucketPath) else root
        if self.root is not None and max_bytes is not None and max_bytes != self.max_bytes:
            make_private(self.root)
            write_atomically(self.root / "max_bytes", f"{max_bytes}\n".encode())
            if self.bucket is not None:
                write_atomically(self.bucket / "max_bytes", f"{max_bytes}\n".encode())

    @property
    def max_bytes(self) -> int | None:
        """Most bytes the store may occupy on this node; None without a bound."""
        if self.root is None:
            return None
        for place in (self.root, self.bucket):  # what a driver has set holds on all nodes
            if place is not None:
                with contextlib.suppress(FileNotFoundError):
                    return int((place / "max_bytes").read_text())
        return None

    def open(self, data: SweepData, spec: FeatureSpec) -> SweepData:
        """Return the same data with features in the place of raw records.

        What is not in the store is computed first, or waited for if somebody is computing it.
        Features are read-only, (records, *feature_shape) of ``spec.dtype``, infinite where float16
        cannot hold them; labels and ``content_hash`` stay as they are. Data that are these features
        come back unchanged. Features of an episode are rows of its pool's, where there is a store:
        they are computed once for all episodes.

        Raises:
            ModelError: The extractor cannot be built for these records.
            ResourceError: The store or the disk has no room for the features.
        """
        if data.info.features == spec.key:
            return data
        assert not data.info.features, "the records are features already, of another kind"
        info = spec.describe(data.info)
        if data.pool is not None and self.root is not None:
            parts = self._rows_of_pool(data, data.pool, spec)
            return dataclasses.replace(data, info=info, parts=parts, hashes={})
        parts = {
            name: (self._features(data, spec, name), labels)
            for name, (_, labels) in data.parts.items()
        }
        return dataclasses.replace(data, info=info, parts=parts, hashes={})

    def _rows_of_pool(
        self, data: SweepData, pool: SweepData, spec: FeatureSpec
    ) -> dict[str, Arrays]:
        asked = {name: pool.parts[name] for name in data.parts}
        opened = self.open(dataclasses.replace(pool, parts=asked), spec)
        parts = {}
        for name, (_, labels) in data.parts.items():
            features = opened.parts[name][0][data.rows[name]]
            features.flags.writeable = False
            parts[name] = (features, labels)
        return parts

    def _features(self, data: SweepData, spec: FeatureSpec, part: str) -> np.ndarray:
        inputs, shape = data.parts[part][0], _shape(data, spec, part)
        if spec.is_raw:
            return inputs.reshape(shape)
        if self.root is None or len(inputs) == 0:
            features = np.empty(shape, spec.dtype)
            for start, block in feature_blocks(spec, data.info, inputs):
                features[start : start + len(block)] = block
            features.flags.writeable = False
            return features
        entry = self._entry(data, spec, part)
        for _ in range(_TRIES):  # it may be evicted between its creation and its use
            kept = entry.read(shape, spec.dtype, is_use=False)
            if kept is not None:
                return kept
            with self.creating(data, spec, part) as creation:
                if creation is not None:
                    for _ in creation.fill():
                        pass
        raise ResourceError(
            f"features cannot be kept in {self.root}",
            because=f"they were computed {_TRIES} times and lost or damaged each time",
            fix="raise storage.features_gb, or set storage.features to another disk",
        )

    def missing(
        self, data: SweepData, spec: FeatureSpec, parts: Sequence[str] = PARTS
    ) -> list[str]:
        """Return the parts whose features are not in the store; what is there counts as used."""
        if self.root is None or spec.is_raw:
            return []
        return [
            part for part in parts if len(data.parts[part][0]) and not self._has(data, spec, part)
        ]

    def _has(self, data: SweepData, spec: FeatureSpec, part: str) -> bool:
        entry = self._entry(data, spec, part)
        if entry.read(_shape(data, spec, part), spec.dtype) is None:
            return False
        return self.bucket is None or is_published(entry, self.bucket)

    @contextlib.contextmanager
    def creating(
        self,
        data: SweepData,
        spec: FeatureSpec,
        part: str,
        on_wait: Callable[[], None] | None = None,
    ) -> Iterator[Creation | None]:
        """Hold the right to compute one part's features; None if they have appeared meanwhile.

        Those that a bucket has are copied, and those that this node alone has are given to it.
        Leaving drops what was computed, unless ``Creation.fill`` has come to its end.

        Args:
            data: Raw records.
            spec: What to make of them.
            part: Name of the part, which has records.
            on_wait: Called if somebody else is computing these features, before waiting.
        Raises:
            ResourceError: The store or the disk has no room for the features.
        """
        assert self.root is not None
        entry, shape = self._entry(data, spec, part), _shape(data, spec, part)
        make_private(self.root)
        with locked(entry.lock, on_wait=on_wait):
            if entry.read(shape, spec.dtype) is not None:
                if self.bucket is not None and not is_published(entry, self.bucket):
                    publish(entry, self.bucket)
                yield None
                return
            entry.remove()  # damaged, or left by a killed process
            row_bytes = math.prod(shape[1:]) * np.dtype(spec.dtype).itemsize
            declared = getattr(data.info, f"num_{part}") * row_bytes
            if self.bucket is not None and is_published(entry, self.bucket):
                with locked(self.root / "lock", keep=True):
                    self._make_room(shape[0] * row_bytes, declared)
                fetch(entry, self.bucket)
                if entry.read(shape, spec.dtype) is not None:
                    yield None
                    return
            partial = entry.new_partial()
            try:
                with locked(self.root / "lock", keep=True):
                    self._make_room(shape[0] * row_bytes, declared)
                    begin = new_array(partial, shape, spec.dtype)
                yield Creation(entry, partial, begin, data, spec, part)
                if self.bucket is not None and entry.read(shape, spec.dtype) is not None:
                    publish(entry, self.bucket)
            finally:
                partial.unlink(missing_ok=True)

    def _make_room(self, size: int, declared: int) -> None:
        """Make room for features (``Room.make``)."""
        room = Room(self._root, self.max_bytes)
        room.make(size, name="features", declared=declared, smaller="set features.dtype: float16")

    def num_bytes(self) -> int:
        """Return the bytes of all features, finished or not."""
        return 0 if self.root is None else Room(self.root, None).num_bytes()

    def num_entries(self) -> int:
        """Return the number of finished entries, one for each part of a dataset."""
        return len(self._entries())

    def clean(self) -> int:
        """Remove what nobody computes or holds open; return the bytes that this gives back."""
        if self.root is None or not self.root.is_dir():
            return 0
        with locked(self.root / "lock", keep=True):
            before = self.num_bytes()
            ends = ("npy", "json", "part", "lock")
            paths = [path for end in ends for path in self.root.glob(f"*.{end}")]
            for entry in {Entry(path).path: Entry(path) for path in paths}.values():
                entry.evict()
            return before - self.num_bytes()

    def _entries(self) -> list[Entry]:
        return [] if self.root is None else Room(self.root, None).entries()

    @property
    def _root(self) -> Path:
        assert self.root is not None
        return self.root

    def _entry(self, data: SweepData, spec: FeatureSpec, part: str) -> Entry:
        assert self.root is not None
        records = data.hashes.get(part) or part_hash(data.parts[part][0])
        address = hashlib.sha256(f"{_FORMAT} {records} {spec.key}".encode()).hexdigest()[:32]
        return Entry(self.root / address)


class Creation:
    """The features of one part while they are computed (``FeatureStore.creating``)."""

    def __init__(
        self, entry: Entry, partial: Path, begin: int, data: SweepData, spec: FeatureSpec, part: str
    ) -> None:
        self._entry, self._partial, self._begin = entry, partial, begin
        self._data, self._spec, self._part = data, spec, part
        self._shape = _shape(data, spec, part)

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return self._shape[0]

    def jobs(self) -> Iterator[BlockJob]:
        """Yield the blocks, each with its own records; together they are all rows."""
        inputs = self._data.parts[self._part][0]
        row_bytes = math.prod(self._shape[1:]) * np.dtype(self._spec.dtype).itemsize
        for start in range(0, self.num_rows, BLOCK_ROWS):
            offset = self._begin + start * row_bytes
            block = inputs[start : start + BLOCK_ROWS]
            yield BlockJob(self._partial, offset, self._spec, self._data.info, block)

    def fill(
        self, map_blocks: MapBlocks = map, *, is_shared: bool = True
    ) -> Generator[int, None, None]:
        """Compute all blocks; yield the number of rows done, and put the entry in place at the end.

        Args:
            map_blocks: Who computes them: ``map`` in this process, or ``ClusterTarget.map``.
            is_shared: False where those do not see this node's files, and hand rows over instead.
        """
        done = 0
        compute = compute_block if is_shared else compute_rows
        for result in map_blocks(compute, self.jobs()):
            done += result if isinstance(result, int) else write_rows(self._partial, *result)
            yield done
        assert done == self.num_rows, (done, self.num_rows)
        self._entry.finish(
            self._partial,
            {
                "extractor": self._spec.extractor,
                "settings": dict(self._spec.settings),
                "dtype": self._spec.dtype,
                "shape": list(self._shape),
                "rows": done,
            },
        )


def _shape(data: SweepData, spec: FeatureSpec, part: str) -> tuple[int, ...]:
    return (len(data.parts[part][0]), *spec.describe(data.info).input_shape)
