"""Files of pictures: PNG beside CSV, for the tracking store and for papers."""

from __future__ import annotations

from collections.abc import Iterable

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.file_paths import FilePath
from dpsweep.results.pictures.base import Picture


def write_pictures(pictures: Iterable[Picture], folder: FilePath) -> list[FilePath]:
    """Write each picture and its table; return the files.

    Raises:
        StorageError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture in pictures:
        for ending, content in (("png", picture.png()), ("csv", picture.csv().encode())):
            path = folder / f"{picture.name}.{ending}"
            write_atomically(path, content)
            paths.append(path)
    return paths
