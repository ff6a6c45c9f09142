"""What an installed package adds, without installing one."""

from __future__ import annotations

from importlib import metadata
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from dpsweep.foundation.registry import Registry


def install(monkeypatch: pytest.MonkeyPatch, group: str, table: Registry, **places: str) -> None:
    """Let ``places``, name -> ``module:attribute``, be what packages add to a group."""
    points = [EntryPoint(name, place, group) for name, place in places.items()]
    found = metadata.entry_points

    def entry_points(**chosen: Any) -> Any:
        return points if chosen == {"group": group} else found(**chosen)

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    monkeypatch.setattr(table, "_outside", None)
