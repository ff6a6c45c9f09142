"""The rest of a dataset's budget, as a study on it is planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation.errors import BadInputError, LedgerError, StorageError
from dpsweep.ledgers.dataset import read_dataset_ledger
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.study.launched import is_new


@dataclass(frozen=True)
class DatasetLeft:
    """Rest of a dataset's budget, for the studies on it, before a study is charged.

    Attributes:
        path: The dataset's ledger.
        cap_epsilon: Of all studies together; None: nothing is declared, so the study is refused.
        cap_delta: Likewise.
        epsilon: What is charged already.
        delta: Likewise.
        asked: Epsilon of the study, or None where it has none.
        asked_delta: Its delta.
        is_charged: Whether the study itself is among those that are charged.
        broken: Why no further study is accepted, or None.
        refused: Why `run` would refuse the study as it is charged, or None.
    """

    path: str
    cap_epsilon: float | None
    cap_delta: float | None
    epsilon: float
    delta: float
    asked: float | None
    asked_delta: float
    is_charged: bool
    broken: str | None
    refused: str | None = None

    @property
    def fits(self) -> bool:
        """Whether `run` will accept the study: its records, its caps and the sums."""
        if self.broken is not None or self.refused is not None:
            return False
        return self.is_charged or self.asked is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the record of ``dpsweep plan --json``."""
        return {
            "path": self.path,
            "cap_epsilon": self.cap_epsilon,
            "cap_delta": self.cap_delta,
            "charged_epsilon": self.epsilon,
            "charged_delta": self.delta,
            "this_study_epsilon": self.asked,
            "this_study_delta": self.asked_delta,
            "is_charged": self.is_charged,
            "fits": self.fits,
            "broken": self.broken,
            "refused": self.refused,
        }

    def __str__(self) -> str:
        if self.broken:
            return f"The dataset's ledger {self.path} accepts no study any more: {self.broken}."
        if self.cap_epsilon is None or self.cap_delta is None:
            return f"The dataset's ledger {self.path} has no cap yet: run will ask for one."
        left = shown_epsilon(max(self.cap_epsilon - self.epsilon, 0.0), is_left=True)
        left_delta = shown_delta(max(self.cap_delta - self.delta, 0.0), is_left=True)
        text = (
            f"The dataset's ledger {self.path} has (epsilon, delta)=({left}, {left_delta}) "
            f"left of ({self.cap_epsilon:g}, {self.cap_delta:g}) for all studies together"
        )
        if self.is_charged:
            return f"{text}; this study is charged already."
        verdict = ""
        if self.refused is not None:
            verdict = f", and does NOT fit: run will refuse it. The reason: {self.refused}"
        if self.asked is None:
            return f"{text}; this study has no price that could be charged{verdict}."
        takes = f"({shown_epsilon(self.asked)}, {shown_delta(self.asked_delta)})"
        return f"{text}; this study takes {takes}{verdict}."


def dataset_left(checked: Preflight, study_epsilon: float | None) -> DatasetLeft | None:
    """Return what a spec's dataset ledger has left; None where the spec names none.

    Args:
        checked: A checked spec.
        study_epsilon: What the study is planned to cost; None: it has no price.
    """
    spec, privacy = checked.spec, checked.spec.privacy
    if privacy.dataset_ledger is None:
        return None
    account = read_dataset_ledger(privacy.dataset_ledger)
    directory = str((spec.storage.root / spec.name).resolve())
    first = account.dataset is None
    asked = privacy.trial_epsilon if privacy.mode.is_public_search else study_epsilon
    is_charged = not is_new(spec) and any(study.directory == directory for study in account.studies)
    return DatasetLeft(
        path=privacy.dataset_ledger,
        cap_epsilon=privacy.dataset_epsilon if first else account.cap_epsilon,
        cap_delta=privacy.dataset_delta if first else account.cap_delta,
        epsilon=account.epsilon,
        delta=account.delta,
        asked=asked,
        asked_delta=privacy.delta,
        is_charged=is_charged,
        broken=account.broken,
        refused=None if is_charged else _refusal(checked, asked),
    )


def dataset_left_of(checked: Preflight) -> DatasetLeft | None:
    """Return what a spec's dataset ledger has left, the study priced as `run` prices it.

    Args:
        checked: A checked spec.
    """
    if checked.spec.privacy.dataset_ledger is None:
        return None
    try:
        price = checked.declared_epsilon(choose_selection(checked))
    except BadInputError:  # a selection that its own cap or its space does not allow
        return dataset_left(checked, None)
    return dataset_left(checked, price)


def left_or_why(ask: Callable[[], DatasetLeft | None]) -> DatasetLeft | str | None:
    """Return what a ledger has left, or in words why it cannot be asked now.

    For what needs no ledger, and must not be lost for one that is away.

    Args:
        ask: Asks it.
    """
    try:
        return ask()
    except (StorageError, LedgerError) as error:
        return f"The dataset's ledger cannot be asked now: {error.message}"


def ledger_columns(left: DatasetLeft | str | None) -> dict[str, Any]:
    """Return what is left as a column of a record; none of a ledger that there is not, or away."""
    return {"dataset_ledger": left.to_dict()} if isinstance(left, DatasetLeft) else {}


def _refusal(checked: Preflight, asked: float | None) -> str | None:
    """Return why the charge of a new study would be refused; None if it would not."""
    try:
        checked.check_dataset_price(asked or 0.0)  # records and caps are asked about anyway
    except BadInputError as error:
        return error.message
    return None
