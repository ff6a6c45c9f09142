"""Room in a directory of entries: what is in use stays, what was used longest ago goes."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from dpsweep.foundation.errors import ResourceError
from dpsweep.trainables.data.kept.files import Entry, size_of

_MAX_HEADER = 4096


@dataclass(frozen=True)
class Room:
    """The space that a directory of entries may take.

    Attributes:
        root: The directory.
        bound: Most bytes of all its entries; None: the disk's.
    """

    root: Path
    bound: int | None

    def entries(self) -> list[Entry]:
        """Return the finished entries."""
        return [Entry(path) for path in self.root.glob("*.npy")]

    def num_bytes(self) -> int:
        """Return the bytes of all entries, finished or not."""
        paths = [*self.root.glob("*.npy"), *self.root.glob("*.part")]
        return sum(size_of(path) for path in paths)

    def make(self, size: int, *, name: str, declared: int, smaller: str) -> None:
        """Evict what was used longest ago and nobody holds open, until ``size`` bytes fit.

        An error tells the size of the declared number of records, ``declared``: the actual one is
        private. The lock of the directory must be held.

        Args:
            size: Bytes that are wanted.
            name: What needs them, for an error.
            declared: Bytes of the declared number of records.
            smaller: What would make it smaller, for an error.
        Raises:
            ResourceError: There is no room.
        """
        parts = self.root.glob("*.part")
        for entry in {Entry(path).path: Entry(path) for path in parts}.values():
            entry.clear_partials()
        for entry in sorted(self.entries(), key=lambda entry: entry.used_at()):
            if self._fits(size):
                break
            entry.evict()
        if self._fits(size):
            return
        if self.bound is not None and self.num_bytes() + size > self.bound:
            raise ResourceError(
                f"{name} of {_gib(declared)} do not fit in {self.root}",
                because=f"storage.features_gb allows {self.bound / 2**30:g} GiB for all that are "
                "in use",
                fix=f"raise storage.features_gb, or {smaller}",
            )
        raise ResourceError(
            f"{name} of {_gib(declared)} do not fit on the disk of {self.root}",
            because=f"{_gib(shutil.disk_usage(self.root).free)} are free there",
            fix=f"free some, set storage.features to a directory on another disk, or {smaller}",
        )

    def _fits(self, size: int) -> bool:
        is_allowed = self.bound is None or self.num_bytes() + size <= self.bound
        return is_allowed and size + _MAX_HEADER <= shutil.disk_usage(self.root).free


def _gib(size: int) -> str:
    """Return a size in tenths of a GiB, rounded up."""
    return f"{math.ceil(size / 2**30 * 10) / 10:g} GiB"
