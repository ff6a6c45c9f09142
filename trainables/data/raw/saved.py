"""Directories that Hugging Face ``datasets`` wrote, as texts and images alike are read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import DataError


def saved_splits(path: Path, *, instead: str, fix: str) -> dict[str, Any]:
    """Return the splits of a directory by name; one without a name is ``train``.

    Files are mapped into memory, and no record is read.

    Args:
        path: What ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote.
        instead: How such records can be stored for who has no ``datasets``.
        fix: What to name if the directory is none.
    Raises:
        DataError: ``datasets`` is not installed, or it cannot read the directory.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{path} is read by the package datasets, which is not installed",
            fix=f"pip install 'dpsweep[text]', or {instead}",
        ) from error
    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # datasets, pyarrow and the file system raise their own kinds
        raise DataError(
            f"{path} was not written by save_to_disk of datasets: {type(error).__name__}", fix=fix
        ) from error
    return dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}
