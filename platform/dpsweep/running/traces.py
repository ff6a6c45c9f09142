"""Traces of Ray Tune in a study: closed to others while they are there, gone once it has finished.

They tell how long each trial ran, and so of its batches. Nothing reads them after a launch: a study
goes on by its journal and its own checkpoints.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.errors import StorageError
from dpsweep.foundation.file_paths import FilePath

#: The folder in a study that Tune has its files in.
TRACES = "ray"


def closed(folder: FilePath) -> FilePath:
    """Return a folder of Tune's, made or closed so that nobody else can enter it.

    A bucket has no modes: who may read it is decided there.

    Raises:
        StorageError: It cannot be made, as where the study was moved away.
    """
    if isinstance(folder, Path):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{folder} cannot be made",
                because=error.strerror,
                fix="put the study back where it was, or make room, and run the same command again",
            ) from error
        with contextlib.suppress(PermissionError):  # a file system without modes
            folder.chmod(0o700)
    return folder


def remove_traces(folder: FilePath, say: Callable[[str], None]) -> None:
    """Remove a folder of Tune's, if it is there; what cannot be removed ends no study.

    Args:
        folder: Of a study that has finished, whose Ray has ended.
        say: Hears that it is still there.
    """
    problem = ""
    if isinstance(folder, BucketPath):
        try:
            folder.remove_all()
        except StorageError as error:
            problem = f": {error.because or error.message}"
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if problem or (isinstance(folder, Path) and folder.exists()):
        say(
            f"{folder} could not be removed{problem}; Tune's own files there tell how long each "
            "trial ran, and nothing needs them any more: remove it by hand"
        )
