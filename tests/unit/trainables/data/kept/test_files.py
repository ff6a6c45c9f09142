"""Locks of kept files, of which the last holder removes the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsweep.trainables.data.kept import files
from dpsweep.trainables.data.kept.files import locked


def test_a_lock_is_held_by_one_and_goes_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        with pytest.raises(BlockingIOError), locked(path, wait=False):
            pass
        assert path.exists()
    assert not path.exists()


def test_a_lock_on_a_file_that_its_last_holder_has_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process opens the path anew, and locks a file that this one has not."""
    path, take, taken = tmp_path / "lock", files.take, 0

    def removed_first(handle: int, operation: int, where: Path) -> None:
        nonlocal taken
        taken += 1
        if taken == 1:
            path.unlink()  # as the last holder does, before it lets go
        take(handle, operation, where)

    monkeypatch.setattr(files, "take", removed_first)
    with locked(path):
        assert taken == 2
        with pytest.raises(BlockingIOError), locked(path, wait=False):
            pass
