"""Files that verbs write where they are told to."""

from __future__ import annotations

from pathlib import Path

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import BadInputError, StorageError

_FIX = "name a file in a directory that is there"


def refuse_no_folder(path: Path) -> None:
    """Refuse a file whose directory is not there, before what it is to hold is made.

    Raises:
        BadInputError: There is no such directory.
    """
    if not path.parent.is_dir():
        raise BadInputError(f"{path} cannot be written: no such directory", fix=_FIX)


def write_file(path: Path, content: bytes) -> None:
    """Write a file as a whole, in a directory that is there.

    Raises:
        BadInputError: There is no such directory, or the file cannot be written.
    """
    refuse_no_folder(path)
    try:
        write_atomically(path, content)
    except StorageError as error:
        raise BadInputError(f"{path} cannot be written", because=error.message, fix=_FIX) from error
