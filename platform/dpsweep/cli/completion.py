"""Completion in a shell: studies, methods, presets, strategies. Nothing heavy is loaded."""

from __future__ import annotations

import typer

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.file_paths import file_path
from dpsweep.planning.strategies import STRATEGIES
from dpsweep.search_spaces import preset_titles
from dpsweep.study.roots import default_root
from dpsweep.trainables import TRAINABLES


def study_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the studies below ``--root``, or where studies are by default."""
    root = context.params.get("root") or default_root()
    if isinstance(file_path(root), BucketPath):
        return []  # a key is no moment to ask an object store
    names = sorted(path.parent.name for path in file_path(root).glob("*/spec.yaml"))
    return [name for name in names if name.startswith(incomplete)]


def method_names(incomplete: str) -> list[str]:
    """Return the training methods."""
    return [name for name in TRAINABLES if name.startswith(incomplete)]


def preset_names(incomplete: str) -> list[str]:
    """Return the papers' studies."""
    return [name for name in preset_titles() if name.startswith(incomplete)]


def strategy_names(incomplete: str) -> list[str]:
    """Return the strategies of search."""
    return [strategy.name for strategy in STRATEGIES if strategy.name.startswith(incomplete)]
