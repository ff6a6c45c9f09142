"""Ray clusters that run on this machine, as ``cluster.address: auto`` looks for them.

Where no `ray start` has left a note, Ray joins whatever raylet runs here. That may be one which
another run of dpsweep has started for itself: it has a token, so Ray asks it for a minute, in vain.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ray._private.services import find_bootstrap_address

from dpsweep.cluster.private_directory import is_private
from dpsweep.foundation.errors import ResourceError

AUTO = "auto"
#: What to do where no cluster can be joined.
START_ONE = "start one (`ray start --head`), or use `cluster: {target: local}`"
_PROCESSES = Path("/proc")
_OPTION = re.compile(r"^--(gcs-address|temp_dir)=(.+)$", re.MULTILINE)


def address_here(address: str) -> str:
    """Return the address for Ray: what is given, or of ``auto`` the one cluster that can be joined.

    Raises:
        ResourceError: Only private Rays run here, or several clusters that no note tells apart.
    """
    if address != AUTO or os.environ.get("RAY_ADDRESS") or find_bootstrap_address(None):
        return address
    raylets = set(_raylets())
    public = sorted(gcs for gcs, folder in raylets if not is_private(folder))
    if len(public) > 1:
        raise ResourceError(
            f"several Ray clusters run here: {', '.join(public)}",
            fix="name one of them in cluster.address",
        )
    if raylets and not public:
        raise ResourceError(
            "no Ray cluster runs here that cluster.address='auto' could join",
            because="those that run are private ones, of other runs of dpsweep",
            fix=START_ONE,
        )
    return public[0] if public else address


def _raylets() -> Iterator[tuple[str, Path]]:
    """Yield the address of its cluster and the folder of every raylet of this machine."""
    for entry in _PROCESSES.glob("[0-9]*/cmdline"):
        words: list[str] = []
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = entry.read_bytes().decode(errors="replace").split("\0")
        if Path(words[0] if words else "").name != "raylet":
            continue
        options = dict(_OPTION.findall("\n".join(words)))
        if options.keys() == {"gcs-address", "temp_dir"}:
            yield options["gcs-address"], Path(options["temp_dir"])
