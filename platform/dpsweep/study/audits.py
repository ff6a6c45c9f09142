"""Audits of a study's trials, the latest of each: ``audits/trial-0003.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import DamagedStudyError
from dpsweep.foundation.file_paths import FilePath, matching, read_file
from dpsweep.foundation.records import checked_json, read_checked_json
from dpsweep.foundation.words import counted
from dpsweep.privacy.statement import PrivacyStatement, shown_epsilon

FOLDER = "audits"
FAIL, CONSISTENT, NOTHING = "FAIL", "consistent", "not audited"


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """The outcome of one audit; no bound in it is the privacy of a model.

    Attributes:
        study: Name of the study; empty for a method of the table.
        trial: Number of the trial.
        method: Its method.
        claim: Epsilon that the positions which were run are charged for, with its terms; None where
            nothing was audited.
        lower_bound: Largest epsilon that the guesses refute, at the confidence.
        ceiling: The same, had all guesses been right.
        canaries: m, each of them in the data with probability 1/2.
        guesses: r, fixed before the scores were looked at.
        correct: v, how many of them were right.
        confidence: Of the bound.
        positions: Positions of the plan that were run.
        planned: Positions of the whole plan.
        is_refuted: Whether the guesses refute the claim.
        problems: What else was seen that the claim does not allow.
        without_sampling: The claim had batches been known, where they were; else None.
        at_bound: Share of the canaries whose gradient was cut to the clipping norm, at the first
            release that was followed; None: none was.
        not_audited: What of the plan was not followed.
        version: Of dpsweep.
    """

    study: str
    trial: int
    method: str
    claim: PrivacyStatement | None
    lower_bound: float
    ceiling: float
    canaries: int
    guesses: int
    correct: int
    confidence: float
    positions: int
    planned: int
    is_refuted: bool
    problems: tuple[str, ...]
    without_sampling: PrivacyStatement | None
    at_bound: float | None
    not_audited: tuple[str, ...]
    version: str

    @property
    def verdict(self) -> str:
        """``FAIL``, ``consistent`` or ``not audited``."""
        if self.is_refuted or self.problems:
            return FAIL
        return NOTHING if self.claim is None else CONSISTENT

    @property
    def could_fail(self) -> bool:
        """Whether guesses that are all right would have refuted the claim."""
        return self.claim is not None and self.ceiling > self.claim.epsilon

    @property
    def lead(self) -> str:
        """The words before the claim in a sentence on the verdict."""
        return "FAIL: not consistent with" if self.verdict == FAIL else "consistent with"

    @property
    def finding(self) -> str:
        """The words after it: guesses, and problems."""
        about = counted(self.canaries, "canary")
        guesses = f"{self.correct} of {self.guesses} guesses about {about} are right"
        if self.is_refuted:
            guesses += f", which refutes it at {100 * self.confidence:g}% confidence"
        if self.verdict == FAIL:
            return "; ".join((*self.problems, guesses))
        return f"{guesses}; this proves nothing"

    def sentence(self) -> str:
        """Return the verdict in a sentence; a claim never stands without its terms."""
        if self.claim is None:
            return f"{NOTHING}, which is no pass: {'; '.join(self.not_audited)}"
        claim = f"epsilon={shown_epsilon(self.claim.epsilon)} ({self.claim.line()})"
        return f"{self.lead} {claim}: {self.finding}"

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data, the verdict first (a stable interface)."""
        claims = {name: getattr(self, name) for name in _CLAIMS}
        claims = {name: None if c is None else c.to_json() for name, c in claims.items()}
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {"verdict": self.verdict, **asdict(self), **claims, **lists}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> AuditRecord:
        """Rebuild what ``to_dict`` made."""
        values = {field.name: raw[field.name] for field in fields(cls)}
        lists = {name: tuple(values[name]) for name in _LISTS}
        claims = {name: _statement(values[name]) for name in _CLAIMS}
        return cls(**{**values, **claims, **lists})


_CLAIMS, _LISTS = ("claim", "without_sampling"), ("problems", "not_audited")


def _statement(raw: Mapping[str, Any] | None) -> PrivacyStatement | None:
    if raw is None:
        return None
    return PrivacyStatement(**{**raw, "epsilon": float(raw["epsilon"])})


def audit_file(study: FilePath, trial: int) -> FilePath:
    """Return where the record of a trial's audit lies.

    >>> from pathlib import Path
    >>> audit_file(Path("studies/a"), 3).as_posix()
    'studies/a/audits/trial-0003.json'
    """
    return study / FOLDER / f"trial-{trial:04d}.json"


def write_audit(study: FilePath, record: AuditRecord) -> FilePath:
    """Write a record durably, in the place of an earlier one of the trial; return its file."""
    path = audit_file(study, record.trial)
    write_atomically(path, checked_json(record.to_dict()))
    return path


def read_audits(study: FilePath) -> list[AuditRecord]:
    """Return the records of a study's audits, by trial.

    Raises:
        DamagedStudyError: A file is damaged.
    """
    records = []
    for path in matching(study / FOLDER, "trial-*.json"):
        try:
            raw = read_checked_json(read_file(path), known=())
            records.append(AuditRecord.from_dict(raw))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedStudyError(
                f"{path} is damaged: it is not the record that was written there",
                fix="audit the trial again, which replaces it",
            ) from error
    return sorted(records, key=lambda record: record.trial)
