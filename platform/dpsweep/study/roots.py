"""Where studies lie when nobody says where; loads nothing, for a shell asks it at each key."""

from __future__ import annotations

import os
from pathlib import Path


def default_root() -> Path:
    """Return the folder of studies: ``DPSWEEP_STUDIES``, or ``studies`` in this directory."""
    return Path(os.environ.get("DPSWEEP_STUDIES", "studies"))
