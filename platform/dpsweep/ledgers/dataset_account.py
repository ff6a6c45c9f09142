"""The account of a dataset: what its ledger says that its studies were charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StudyCharge:
    """The declared cost of one study.

    Attributes:
        study_id: Random name of the study; a study that is deleted and run again has another.
        name: Its name, for people.
        directory: Where it was first launched.
        accounting: Its accounting mode.
        epsilon: Declared for the whole study.
        delta: Of that epsilon.
        day: When it was charged, as 2026-11-23 (UTC); None in ledgers of earlier versions.
    """

    study_id: str
    name: str
    directory: str
    accounting: str
    epsilon: float
    delta: float
    day: str | None = None


@dataclass(frozen=True)
class DatasetAccount:
    """The content of a dataset ledger.

    Attributes:
        dataset: Declared name of the dataset, or None: the file is not there yet.
        parts: What all its studies declare of the records: which are public, which are shown.
        cap_epsilon: Largest epsilon of all studies together, or None.
        cap_delta: Largest delta of all studies together, or None.
        epsilon: Sum of the studies' epsilons.
        delta: Sum of their deltas.
        studies: Every study that was ever charged, in order.
        broken: Why the sum is no bound any more, or None.
        trials: Trials of each study, by its ``study_id``, that were admitted to private records,
            and how often each: more than once where nothing had run of it before.
    """

    dataset: str | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    cap_epsilon: float | None = None
    cap_delta: float | None = None
    epsilon: float = 0.0
    delta: float = 0.0
    studies: tuple[StudyCharge, ...] = ()
    broken: str | None = None
    trials: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
