"""The space that is recommended for the nearest noisy mean, whatever the data."""

from __future__ import annotations

from dpsweep.search_spaces import Recommended

RECOMMENDED = Recommended(
    spaces={
        "*": {
            "method": "pebble_means",
            "release.count": {"int": [1, 8]},
            "clip.max_norm": {"loguniform": [0.5, 4]},
        }
    },
    why={"clip.max_norm": "below the usual norm of a record"},
)
