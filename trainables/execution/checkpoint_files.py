"""The files of a trial's checkpoints: which of them are whole, and what is wrong with the others.

Loads no torch, so that a driver can look at them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import CheckpointError, SweepError
from dpsweep.foundation.file_paths import FilePath, read_file
from dpsweep.foundation.records import read_checked_json
from dpsweep.foundation.shapes import fits

#: Keys of the JSON file of a checkpoint.
KEYS = (
    "file", "sha256", "step", "value", "best_step", "charged", "metrics", "rung", "paused",
    "is_scored", "delivered",
)  # fmt: skip
#: Where a trial may go on; of equal steps the first is taken.
RESUMABLE = ("last", "previous", "best")
#: What to do where the model of a release is damaged or missing: no trial can begin without it.
LOST_RELEASE = "restore it, or start a new study under another name"
_SHOWN = 12


#: Types of those that every version has written.
_SHAPES = {
    "file": str, "sha256": str, "step": int, "value": Any, "best_step": int, "charged": int,
    "metrics": Mapping[str, Any], "rung": int, "paused": bool,
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A whole checkpoint: what its JSON file says, and its tensors as they are in their file."""

    meta: Mapping[str, Any]
    content: bytes


def kept_step(directory: FilePath) -> int:
    """Return the step that a trial's last checkpoint is said to be of; 0 where nothing says it."""
    try:
        return int(_meta(directory / "last.json")["step"])
    except (OSError, SweepError, ValueError, KeyError, TypeError):
        return 0


def find(directory: FilePath, which: str) -> Found | None:
    """Return a checkpoint if it is whole, or None if there is none of that name.

    Raises:
        CheckpointError: One of its two files is damaged, or that of the tensors is missing.
    """
    pointer = directory / f"{which}.json"
    try:
        meta = _meta(pointer)
        path = directory / meta["file"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = _remedy(pointer, which)
        raise CheckpointError(f"{pointer} is damaged: {error}", fix=fix) from error
    try:
        content = read_file(path)
    except OSError as error:
        state = "missing" if isinstance(error, FileNotFoundError) else f"damaged: {error.strerror}"
        raise CheckpointError(f"{path} is {state}", fix=_remedy(pointer, which)) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != meta["sha256"]:
        raise CheckpointError(
            f"{path} is damaged: its SHA-256 is {digest[:_SHOWN]}..., not "
            f"{meta['sha256'][:_SHOWN]}..., which was written",
            fix=_remedy(pointer, which),
        )
    return Found(meta, content)


def _meta(pointer: FilePath) -> Mapping[str, Any]:
    """Return what a checkpoint's JSON file says.

    Refused is what none says, a name outside of its folder above all.
    """
    meta = read_checked_json(read_file(pointer), known=KEYS)
    for key, shape in _SHAPES.items():
        if not fits(meta[key], shape):
            raise ValueError(f"{key} is {meta[key]!r:.40}")
    if Path(meta["file"]).name != meta["file"]:
        raise ValueError(f"{meta['file']!r:.40} is no file beside it")
    return meta


@dataclass(frozen=True)
class Resumption:
    """Where a trial can go on.

    Attributes:
        name: Of the checkpoint in ``RESUMABLE``, or None: there is none, the trial starts anew.
        found: That checkpoint.
        damages: What is wrong with others, one line each, file and checksum named.
    """

    name: str | None
    found: Found | None
    damages: tuple[str, ...]

    @property
    def step(self) -> int:
        """Plan position at which the trial goes on."""
        return 0 if self.found is None else int(self.found.meta["step"])

    @property
    def note(self) -> str:
        """A line on what was damaged, and what is used instead; empty if nothing was."""
        if not self.damages:
            return ""
        where = "it starts anew, with what is left of its budget"
        if self.name is not None:
            where = f"it goes on from its {self.name} checkpoint, at step {self.step}"
        return f"{'; '.join(self.damages)}; {where}"


def find_resumption(directory: FilePath) -> Resumption:
    """Return where a trial goes on: at its last checkpoint, or at the latest whole one."""
    whole: dict[str, Found] = {}
    damages = []
    for which in RESUMABLE:
        try:
            found_now = find(directory, which)
        except CheckpointError as error:
            damages.append(error.message)
            continue
        if found_now is not None:
            whole[which] = found_now
        elif which == "last" and any(directory.glob("last-*.ckpt")):
            damages.append(f"{directory / 'last.json'} is missing")
    if "last" in whole:
        name: str | None = "last"
    else:
        name = max(whole, key=lambda which: int(whole[which].meta["step"]), default=None)
    newest = whole[name] if name is not None else None
    best = directory / "best.json"
    if newest is not None and newest.meta["value"] is not None and not best.exists():
        damages.append(f"{best} is missing")
    return Resumption(name, newest, tuple(damages))


def _remedy(pointer: FilePath, which: str) -> str:
    if which not in RESUMABLE:
        return LOST_RELEASE
    return (
        f"restore the file; an unfinished trial goes on from another whole checkpoint or, without "
        f"{pointer}, starts anew (what it has spent stays spent), a finished one keeps its score "
        "without a model"
    )
