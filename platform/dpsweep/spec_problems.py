"""What is wrong with a spec in view of its data, its methods and this machine's folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpsweep.spec import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data import DatasetInfo
from dpsweep.trainables.feature_files import is_open_to_others
from dpsweep.trainables.method import Method


def space_problems(
    spec: SweepSpec, values: Mapping[str, Sequence[Any]], info: DatasetInfo | None
) -> list[tuple[str, str, str]]:
    """Return what is wrong whatever the method: (key of the spec, what, how to fix it)."""
    problems = []
    wanted = [n for n in values.get("train.num_private", []) if isinstance(n, (int, float))]
    if info is not None and wanted and max(wanted) > info.num_private:
        what = f"{max(wanted)} is more than the {info.num_private} declared private records"
        key = "search.space.train.num_private"
        problems.append((key, what, f"at most {info.num_private}, or leave it out for all"))
    reports = [n for n, given in values.items() if n.endswith(".private_report") and True in given]
    if spec.privacy.accounting == "select":
        what = "accounting select keeps no figure of a trial, and so no private report"
        problems += [(f"search.space.{name}", what, "leave it out") for name in reports]
    methods = [TRAINABLES[name] for name in values["method"] if name in TRAINABLES]
    if any(method.extractor.__func__ is not Method.extractor.__func__ for method in methods):  # type: ignore[attr-defined]
        found = _folder_problems(spec.storage.features_path)
        problems += [("storage.features", what, fix) for what, fix in found]
    return problems


def task_problems(name: str, method: type[Method], info: DatasetInfo) -> list[tuple[str, str, str]]:
    """Return why a method cannot learn the task of the data, as ``Method.preflight`` does."""
    if info.task not in method.tasks:
        what = f"{name} cannot learn {info.task}"
        able = [other for other in TRAINABLES if info.task in TRAINABLES[other].tasks]
    elif info.text is not None and not method.reads_text:
        what = f"{name} cannot learn from text"
        able = [other for other in TRAINABLES if TRAINABLES[other].reads_text]
    else:
        return []
    return [("method", what, f"use one of {', '.join(able)}")]


def _folder_problems(folder: Path) -> list[tuple[str, str]]:
    """Return why features cannot be kept in a folder: (what, how to fix it)."""
    if folder.exists() and not folder.is_dir():
        return [(f"{folder} is a file", "name a directory, or one that is not there yet")]
    if not is_writable(folder):
        return [(f"{folder} cannot be written to", "name a directory of yours")]
    if folder.exists() and is_open_to_others(folder):
        what = f"others may list {folder}, and features are as private as records"
        return [(what, f"chmod 700 {folder}, or name a directory that is not there yet")]
    return []


def is_writable(path: Path) -> bool:
    """Say whether a directory exists, or could be made, where one may write."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK)
