"""Checkpoints of one trial: the last two, best and releases, with checksums; never the ledger."""

from __future__ import annotations

import hashlib
import io
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import CheckpointError, SweepError
from dpsweep.foundation.file_paths import FilePath, set_aside
from dpsweep.foundation.records import checked_json
from dpsweep.trainables.execution.checkpoint_files import Found, Resumption, find, find_resumption

#: ``last``, ``best``, or the name of a release (``starts.release_name``).
Which = str


@dataclass(frozen=True)
class Checkpoint:
    """A restored checkpoint.

    Attributes:
        step: Plan position of the model.
        value: Best value of the study's metric when it was written, or None.
        best_step: Step of the best checkpoint at that time.
        charged: Events charged to the trial when it was written; the ledger has at least these.
        metrics: Metrics at ``step``.
        delivered: Metrics of the best checkpoint at that time, test scores among them once they
            are known; None of before they were kept.
        state: What the method's ``state_dict`` returned.
        rung: Number of the scheduler's rungs that the trial had reached.
        paused: True if the trial was paused on it, so that its report is known to have arrived.
        is_scored: False if it was kept between reports; its metrics are then those of an earlier
            model.
        sha256: Of the file with the tensors, once it is one.
    """

    step: int
    value: float | None
    best_step: int
    charged: int
    metrics: dict[str, float]
    state: dict[str, Any]
    rung: int = 0
    paused: bool = False
    is_scored: bool = True
    delivered: dict[str, float] | None = None
    sha256: str = ""


class CheckpointStore:
    """Writes and reads the checkpoints of one trial.

    A checkpoint is two files: the tensors (``last-000120.ckpt``), and a small JSON file that names
    them with their SHA-256 and ends with a checksum of itself. The JSON file is replaced atomically
    after the tensors are on disk, so a kill at any moment leaves the previous checkpoint or the new
    one. The last checkpoint but one is kept too, under ``previous.json``.
    """

    def __init__(self, directory: FilePath) -> None:
        self.directory = directory
        self._last: Mapping[str, Any] | None = None  # of the newest last checkpoint that is whole
        self._has_written = False  # so its folder is there, unless somebody has moved it

    def save(self, which: Which, checkpoint: Checkpoint) -> str:
        """Write a checkpoint durably, drop the one it replaces, and return its SHA-256."""
        buffer = io.BytesIO()
        torch.save(checkpoint.state, buffer)
        content = buffer.getvalue()
        name = f"{which}-{checkpoint.step:06d}.ckpt"
        write_atomically(self.directory / name, content, makes_folder=not self._has_written)
        self._has_written = True
        digest = hashlib.sha256(content).hexdigest()
        meta = {
            "file": name,
            "sha256": digest,
            "step": checkpoint.step,
            "value": checkpoint.value,
            "best_step": checkpoint.best_step,
            "charged": checkpoint.charged,
            "metrics": dict(checkpoint.metrics),
            "rung": checkpoint.rung,
            "paused": checkpoint.paused,
            "is_scored": checkpoint.is_scored,
            "delivered": checkpoint.delivered,
        }
        kept = {name}
        if which == "last":
            kept |= self._keep_previous(name)
            self._last = meta
        self._point(which, meta)
        for old in self.directory.glob(f"{which}-*.ckpt"):
            if old.name not in kept:
                old.unlink()
        return digest

    def _keep_previous(self, name: str) -> set[str]:
        """Let ``previous.json`` name what is the last checkpoint now; return its file."""
        if self._last is None or self._last["file"] == name:
            (self.directory / "previous.json").unlink(missing_ok=True)
            return set()
        self._point("previous", self._last)
        return {self._last["file"]}

    def _point(self, which: str, meta: Mapping[str, Any]) -> None:
        path = self.directory / f"{which}.json"
        write_atomically(path, checked_json(meta), makes_folder=False)

    def mark_paused(self) -> None:
        """Note durably that the trial was paused on its last checkpoint."""
        assert self._last is not None, "nothing was saved"
        self._last = {**self._last, "paused": True}
        self._point("last", self._last)

    def discard(self) -> None:
        """Drop every checkpoint: the trial starts anew."""
        for pattern in ("*.json", "*.ckpt"):  # first the files that name the others
            for which in ("last", "previous", "best"):
                for path in self.directory.glob(f"{which}{pattern}"):
                    path.unlink()

    def load(self, which: Which) -> Checkpoint | None:
        """Return a checkpoint on the CPU, or None if the trial has none yet.

        Raises:
            CheckpointError: The file is missing or not what was written.
        """
        file = find(self.directory, which)
        return None if file is None else _loaded(file)

    def load_best(self, last: Checkpoint | None, metric: str) -> Checkpoint | None:
        """Return the best checkpoint, or the last one in the place of a damaged or missing one.

        A better model has been lost then: the trial has the score of one that is there.

        Args:
            last: The checkpoint at which the trial goes on.
            metric: Name of the study's score.
        """
        with suppress(CheckpointError):  # the resumption names it
            best = self.load("best")
            if best is not None:
                return best
        if last is None or last.value is None or not last.is_scored or metric not in last.metrics:
            return None
        best = replace(last, value=last.metrics[metric], best_step=last.step)
        self.save("best", best)
        return best

    def resume(self) -> tuple[Checkpoint | None, Resumption]:
        """Return the checkpoint at which the trial goes on, and how it was found.

        That is the last one; if it is damaged, the latest whole one, which is made the last one;
        None if there is none.
        """
        resumption = find_resumption(self.directory)
        for path in [*self.directory.glob("*.json"), *self.directory.glob("*.ckpt")]:
            if path.is_dir():
                set_aside(path)
        if resumption.found is None:
            return None, resumption
        checkpoint = _loaded(resumption.found)
        if resumption.name == "best":
            self.save("last", checkpoint)
        else:
            self._last = resumption.found.meta
            if resumption.name == "previous":
                self._point("last", self._last)
        return checkpoint, resumption


def _loaded(file: Found) -> Checkpoint:
    meta = file.meta
    return Checkpoint(
        step=meta["step"],
        value=meta["value"],
        best_step=meta["best_step"],
        charged=meta["charged"],
        metrics=meta["metrics"],
        state=_state_of(file),
        rung=meta["rung"],
        paused=meta["paused"],
        is_scored=meta.get("is_scored", True),  # of before there were others
        delivered=meta.get("delivered"),
        sha256=meta["sha256"],
    )


def _state_of(file: Found) -> dict[str, Any]:
    """Return the tensors of a checkpoint; nothing that it holds is run.

    Raises:
        CheckpointError: It holds something else.
    """
    try:
        state = torch.load(io.BytesIO(file.content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch, zipfile and pickle raise on bytes of somebody else
        raise CheckpointError(
            f"checkpoint {file.meta['file']} holds no tensors that may be loaded",
            because=f"{type(error).__name__}; its checksum is right, so it was written so",
            fix="restore the file of the study, or delete it with the .json file that names it: "
            "what the trial has spent stays spent",
        ) from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {file.meta['file']} holds no state of a method")
    return state


def check_readable(state: Any, name: str) -> None:
    """Refuse a state that a checkpoint would take and not give back, before anything is charged.

    Args:
        state: Of a method.
        name: Of the method's class.
    Raises:
        SweepError: It is no dict, or something in it is neither tensor, number nor text.
    """
    strange = _unreadable(state, "state") if isinstance(state, dict) else "it is no dict"
    if strange:
        raise SweepError(
            f"what {name}.state_dict returns is not read back from a checkpoint: {strange}",
            fix="let it hold tensors, numbers, texts, None, and dicts, lists and tuples of these",
        )


def read_back(state: Any) -> Any:
    """Return a state as a checkpoint's file gives it back; raises whatever torch does."""
    content = io.BytesIO()
    torch.save(state, content)
    return torch.load(io.BytesIO(content.getvalue()), weights_only=True)


def _unreadable(state: Any, place: str) -> str:
    """Return where a state holds something that torch does not load as tensors; "" if nowhere.

    Keys are not told, as they might be words of records.

    >>> _unreadable({"model": {"weight": torch.ones(2)}, "seen": [1, 2.5, None, "a"]}, "state")
    ''
    >>> _unreadable({"log": {"where": slice(3)}}, "state")
    'state[..][..] is a slice'
    """
    if type(state) in (torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)):
        return ""
    if type(state) in (dict, OrderedDict, list, tuple):
        keys = state if isinstance(state, dict) else ()
        values = state.values() if isinstance(state, dict) else state
        strange = (
            *(_unreadable(key, f"a key of {place}") for key in keys),
            *(_unreadable(value, f"{place}[..]") for value in values),
        )
        return next(filter(None, strange), "")
    try:
        read_back(state)
    except Exception:  # whatever pickle and torch raise at objects of somebody else
        return f"{place} is a {type(state).__name__}"
    return ""


def is_finite(state: Any) -> bool:
    """Say whether every floating-point tensor of a state is finite, however deep it lies.

    >>> is_finite({"model": {"weight": torch.ones(2)}, "position": 3})
    True
    >>> is_finite({"model": [torch.tensor([1.0, float("nan")])]})
    False
    """
    if isinstance(state, torch.Tensor):
        return not state.is_floating_point() or bool(torch.isfinite(state).all())
    if isinstance(state, Mapping):
        return all(map(is_finite, state.values()))
    if isinstance(state, (list, tuple)):
        return all(map(is_finite, state))
    return True
