"""Files of a study: where each lies, what they say, and how a study is found."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml

from dpsweep.foundation.durable import (
    read_log,
)
from dpsweep.foundation.errors import StudyError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.study.journal import StudyView, fold
from dpsweep.study.trial import TrialTask, read_task


class StudyFiles:
    """The paths of a study; reading needs no lock."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.path = root.resolve() / name
        self.journal = self.path / "journal.jsonl"
        self.ledger = self.path / "ledger"
        self.spec = self.path / "spec.yaml"
        self.optuna = self.path / "optuna.db"
        self.tracking = self.path / "tracking.json"
        self.pictures = self.path / "pictures"
        self.page = self.path / "report.html"
        self.confusion = self.path / "confusion.json"

    def trial(self, trial: int) -> Path:
        """Return the directory of one trial."""
        return self.path / "trials" / f"{trial:04d}"

    def task(self, trial: int) -> TrialTask:
        """Return an admitted trial.

        Raises:
            StudyError: Its directory was deleted or damaged.
        """
        path = self.trial(trial) / "trial.json"
        return read_task(path)

    def view(self) -> StudyView:
        """Return what the journal says now."""
        return fold(read_log(self.journal))

    def frozen(self) -> dict[str, Any]:
        """Return the frozen spec as plain data, whatever version of this package wrote it.

        Raises:
            StudyError: Its file is damaged.
        """
        try:
            raw = yaml.safe_load(self.spec.read_text())
        except (OSError, ValueError, yaml.YAMLError):
            raw = None
        if not isinstance(raw, dict):
            raise StudyError(
                f"{self.spec} is damaged: it is not the spec that was written there",
                because="what the study may claim is read from it",
                fix="restore it; the tracking store has a copy, sweep.yaml of the study's run",
            )
        return raw

    @classmethod
    def find(cls, name: str, root: Path) -> StudyFiles:
        """Return an existing study.

        Raises:
            StudyError: There is none of that name under ``root``.
        """
        files = cls(root, name)
        # A sealed study has another name than its directory, and is nobody's to open.
        if not files.spec.exists() or files.frozen().get("name") != name:
            names = sorted(path.parent.name for path in root.glob("*/spec.yaml"))
            hint = did_you_mean(name, names)
            raise StudyError(
                f"no study {name!r} in {root}/",
                because=f"studies there: {_nearest(name, names) or 'none'}",
                fix=(hint + " " if hint else "") + "run `dpsweep run SPEC`, or give --root DIR",
            )
        return files


def _nearest(name: str, names: list[str]) -> str:
    """Return all names where they are few, else those nearest to one, and how many others."""
    if len(names) <= _FEW:
        return ", ".join(names)
    near = difflib.get_close_matches(name, names, n=_FEW, cutoff=0.4) or names[:_FEW]
    return f"{', '.join(near)} and {len(names) - len(near)} more"


#: Names of studies that are listed where another one is asked for.
_FEW = 5
