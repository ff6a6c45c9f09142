"""Where studies lie when nobody says where; loads nothing, for a shell asks it at each key."""

from __future__ import annotations

import os

from dpsweep.foundation.file_paths import FilePath, file_path


def default_root() -> FilePath:
    """Return the folder of studies: ``DPSWEEP_STUDIES``, or ``studies`` in this directory."""
    return file_path(os.environ.get("DPSWEEP_STUDIES", "studies"))
