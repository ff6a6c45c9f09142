"""Settings that every trial of a study shares when it is executed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpsweep.foundation.database_path import LogPath
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.rungs import RungUnit
from dpsweep.privacy.terms import AccountantName
from dpsweep.trainables.data.supplies import NO_SUPPLIES, Supplies

#: End of the line on scores that stay in an actor; of a study it is said once.
NOT_RELEASED = "of names that a study like this does not release; the trial goes on without"


@dataclass(frozen=True)
class ExecutionSettings:
    """Settings that every trial of a study shares.

    Attributes:
        ledger: Directory of the study's ledger files.
        budget: Cap of one trial.
        accountant: Accountant of the cap and of every reported epsilon.
        study_seed: Seed of everything that may be known.
        metric: Name of the score, e.g. ``validation/accuracy``.
        maximize: True when a larger score is better.
        report_every: Steps between reports, or None for ``report_points`` of them.
        report_points: Evenly spaced reports per trial.
        validation: How validation scores leave the actor: ``exact``; ``noisy``, by the Gaussian
            mechanism, charged; or ``hidden``, not at all.
        show_test: True when exact test scores may leave the actor, once, at the end.
        rungs: The scheduler's rungs, ascending: amounts of training epsilon at which a trial
            reports, whatever its grid of report points.
        rung_unit: ``share``: rungs are shares of what the trial's whole plan costs.
        composition: What all trials together may spend, or None. With one, no trial is charged
            more of it than its own whole plan takes.
        validation_noise: Noise multiplier of one noisy score: the standard deviation of the noise
            on a count of records. Given exactly for ``noisy``.
        fresh_attempts: True when a trial that finds charges of an earlier process starts anew
            instead of continuing: a selected trial is one complete run with its own randomness.
        is_timed: True when run times may leave the actor: they tell of the sizes of batches.
        is_process_told: False when host and number of the process stay out of the trial's ledger:
            they tell of others that ran before it (accounting select).
        device: ``cpu`` or ``cuda``.
        started_in: Directory where dpsweep was started: that of own networks' modules.
        supplies: What the study has prepared for its trials besides the records.
        released: Names of the scores that may leave the actor; None: whatever its study screens.
        recall: Word by which Ctrl-C calls trials back (``dpsweep.study.recall``); "": nothing does.

    Raises:
        ValueError: The rungs do not ascend, or noise is given without ``noisy`` or the other way
            round: scores would leave exactly, or be charged for nothing.
    """

    ledger: LogPath
    budget: PrivacyBudget
    accountant: AccountantName
    study_seed: int
    metric: str
    maximize: bool
    report_every: int | None
    report_points: int
    validation: Literal["exact", "noisy", "hidden"]
    show_test: bool
    rungs: tuple[float, ...] = ()
    rung_unit: RungUnit = "epsilon"
    composition: Composition | None = None
    validation_noise: float | None = None
    fresh_attempts: bool = False
    is_timed: bool = False
    is_process_told: bool = True
    device: str = "cpu"
    started_in: Path | None = None
    supplies: Supplies = NO_SUPPLIES
    released: frozenset[str] | None = None
    recall: str = ""

    def __post_init__(self) -> None:
        # Raised, not asserted: python -O would let exact scores out for noisy ones.
        if list(self.rungs) != sorted(self.rungs):
            raise ValueError(f"rungs must ascend: {self.rungs}")
        if (self.validation == "noisy") != (self.validation_noise is not None):
            raise ValueError(
                f"validation {self.validation!r} does not go with validation_noise="
                f"{self.validation_noise}"
            )
