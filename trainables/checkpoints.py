"""Checkpoints of one trial: last, best and releases, with checksums; never with the ledger."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpsweep.durable import write_atomically
from dpsweep.errors import CheckpointError

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
    sha256: str = ""


class CheckpointStore:
    """Writes and reads the checkpoints of one trial.

    A checkpoint is two files: the tensors (``last-000120.ckpt``), and a small JSON file that names
    them with their SHA-256. The JSON file is replaced atomically after the tensors are on disk, so
    a kill at any moment leaves the previous checkpoint or the new one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, which: Which, checkpoint: Checkpoint) -> str:
        """Write a checkpoint durably, drop the one it replaces, and return its SHA-256."""
        buffer = io.BytesIO()
        torch.save(checkpoint.state, buffer)
        content = buffer.getvalue()
        name = f"{which}-{checkpoint.step:06d}.ckpt"
        write_atomically(self.directory / name, content)
        digest = hashlib.sha256(content).hexdigest()
        meta = {
            "file": name,
            "sha256": digest,
            "step": checkpoint.step,
            "value": checkpoint.value,
            "best_step": checkpoint.best_step,
            "charged": checkpoint.charged,
            "metrics": checkpoint.metrics,
            "rung": checkpoint.rung,
            "paused": checkpoint.paused,
            "is_scored": checkpoint.is_scored,
        }
        write_atomically(self.directory / f"{which}.json", json.dumps(meta).encode())
        for old in self.directory.glob(f"{which}-*.ckpt"):
            if old.name != name:
                old.unlink()
        return digest

    def mark_paused(self) -> None:
        """Note durably that the trial was paused on its last checkpoint."""
        pointer = self.directory / "last.json"
        meta = json.loads(pointer.read_text())
        write_atomically(pointer, json.dumps({**meta, "paused": True}).encode())

    def discard(self) -> None:
        """Drop every checkpoint: the trial starts anew."""
        for pattern in ("*.json", "*.ckpt"):  # first the files that name the others
            for which in ("last", "best"):
                for path in self.directory.glob(f"{which}{pattern}"):
                    path.unlink()

    def load(self, which: Which) -> Checkpoint | None:
        """Return a checkpoint on the CPU, or None if the trial has none yet.

        Raises:
            CheckpointError: The file is missing or not what was written.
        """
        pointer = self.directory / f"{which}.json"
        if not pointer.exists():
            return None
        meta: Mapping[str, Any] = json.loads(pointer.read_text())
        path = self.directory / meta["file"]
        if not path.exists():
            raise CheckpointError(f"{path} is missing", fix=_remedy(pointer))
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != meta["sha256"]:
            raise CheckpointError(
                f"{path} is damaged: its SHA-256 is not the one that was written",
                fix=_remedy(pointer),
            )
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return Checkpoint(
            step=meta["step"],
            value=meta["value"],
            best_step=meta["best_step"],
            charged=meta["charged"],
            metrics=meta["metrics"],
            state=state,
            rung=meta["rung"],
            paused=meta["paused"],
            is_scored=meta.get("is_scored", True),  # of before there were others
            sha256=meta["sha256"],
        )


def _remedy(pointer: Path) -> str:
    return (
        f"restore the file; an unfinished trial without {pointer} starts anew (what it has spent "
        "stays spent), a finished one keeps its score without a model"
    )
