"""Budget of a dataset, as whoever answers for its records reads it: who spent what, what is left.

What the ledger says is the authority. Of studies whose directory is still here, their state and
the terms of their epsilon are told beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from dpsweep.foundation.database_path import LogPath, log_path
from dpsweep.foundation.errors import BadInputError, SweepError
from dpsweep.foundation.file_paths import file_path
from dpsweep.foundation.logs import begins_as_log
from dpsweep.ledgers.dataset import read_dataset_ledger
from dpsweep.ledgers.dataset_account import DatasetAccount, StudyCharge
from dpsweep.privacy.budget import ADD_OR_REMOVE_ONE
from dpsweep.results.study import SweepResult
from dpsweep.study.files import StudyFiles

#: Where a study's directory is gone; what it was charged stays charged.
GONE = "not on this machine"
#: How the sums are bounds: Dwork & Roth 2014, Theorem 3.16, which holds for studies that were
#: chosen after looking at others.
COMPOSITION = "basic composition: epsilons add up, and deltas"


@dataclass(frozen=True)
class DatasetBudget:
    """The content of a dataset's ledger, with what is known of its studies.

    Attributes:
        path: Of the ledger.
        account: What it says.
        studies: A row for each study that was charged, in order.
    """

    path: LogPath
    account: DatasetAccount
    studies: Sequence[Mapping[str, Any]]

    @property
    def left(self) -> tuple[float, float]:
        """Epsilon and delta that further studies may cost; nothing once the sum is no bound."""
        account = self.account
        if account.broken is not None or account.cap_epsilon is None or account.cap_delta is None:
            return 0.0, 0.0
        return (
            _difference(account.cap_epsilon, account.epsilon),
            _difference(account.cap_delta, account.delta),
        )

    @property
    def units(self) -> str:
        """Whose data one record is, as the studies that are here declare it."""
        units = {row["privacy_unit"] for row in self.studies if row["privacy_unit"]}
        return ", ".join(sorted(units)) or "as each study declares it"

    @property
    def parts(self) -> dict[str, Any]:
        """Keys of a spec that say which records are private, but for those that say nothing."""
        return {key: value for key, value in self.account.parts.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as a record (a stable interface)."""
        account, left = self.account, self.left
        return {
            "ledger": str(self.path),
            "dataset": account.dataset,
            "parts": dict(account.parts),
            "epsilon": account.epsilon,
            "delta": account.delta,
            "cap_epsilon": account.cap_epsilon,
            "cap_delta": account.cap_delta,
            "left_epsilon": left[0],
            "left_delta": left[1],
            "neighboring_relation": ADD_OR_REMOVE_ONE,
            "privacy_unit": self.units,
            "accountant": COMPOSITION,
            "broken": account.broken,
            "studies": [dict(row) for row in self.studies],
            "meaning": self.meaning(),
            "not_covered": self.not_covered(),
        }

    def meaning(self) -> list[str]:
        """Return what the sums promise, in plain words; where they promise nothing, that."""
        account = self.account
        if account.broken is not None:
            return [
                "The sum is NO bound any more: a study that was charged here lost its claim "
                f"({account.broken}). Nobody can say what the dataset has cost, and no study is "
                "admitted.",
            ]
        return [
            "Whoever sees everything that these studies release learns hardly more about one "
            "record than if it had never been in the dataset: seeing them changes the odds of any "
            "guess about it by a factor of at most e to the power of the sum of epsilons, but for "
            "a chance of the sum of deltas.",
            "Each study was charged all that it may spend before it trained on a private record; "
            "what a launch tells of them while it checks them is not charged (docs: concepts). "
            "Deleting a study gives nothing back.",
        ]

    def not_covered(self) -> list[str]:
        """Return what no sum here is about."""
        return [
            "studies on the same records that do not name this file",
            "records that were changed or put in another order under the same name, and people "
            "with more than one record, unless the unit says so",
            "this file once it is deleted, edited or replaced by an older copy: back it up",
            "records that the specs declare public or show for free: see the parts above",
        ]


def read_budget(path: LogPath | str) -> DatasetBudget:
    """Return what a dataset's ledger says, and what is known of its studies.

    Raises:
        BadInputError: There is no such file, or it is no dataset's ledger.
        LedgerError: It is damaged.
    """
    path = log_path(path) if isinstance(path, str) else path
    if not (path.is_file() if isinstance(path, Path) else path.exists()):
        raise BadInputError(f"{path}: no such file", fix="give privacy.dataset_ledger of a spec")
    account = read_dataset_ledger(path) if begins_as_log(path) else None
    if account is None or account.dataset is None:
        raise BadInputError(
            f"{path} is no dataset's ledger, or no study was ever charged to it",
            fix="give privacy.dataset_ledger of a spec",
        )
    return DatasetBudget(path, account, [_row(study) for study in account.studies])


def _row(study: StudyCharge) -> dict[str, Any]:
    row: dict[str, Any] = {
        "study": study.name,
        "epsilon": study.epsilon,
        "delta": study.delta,
        "accounting": study.accounting,
        "accountant": None,
        "neighboring_relation": ADD_OR_REMOVE_ONE,
        "sampling": None,
        "privacy_unit": None,
        "charged": study.day,
        "state": GONE,
        "directory": study.directory,
        "study_id": study.study_id,
    }
    directory = file_path(study.directory)
    try:
        if not (directory / "spec.yaml").exists():
            return row
        files = StudyFiles.at(directory)
    except SweepError as error:
        return {**row, "state": f"damaged: {error.message}"}
    except (OSError, ValueError):  # no path that a file system has
        return row
    try:
        result = SweepResult(files)
    except SweepError as error:
        return {**row, "state": f"damaged: {error.message}"}
    if result.claims.account.study_id != study.study_id:
        return {**row, "state": "deleted; another study stands in its directory"}
    statement = result.study_statement()
    terms = result.claims.epsilon_terms()
    first = datetime.fromtimestamp(result.view.first_ms / 1000, tz=UTC)
    return {
        **row,
        "accountant": terms["accountant"] if statement is None else statement.accountant,
        "sampling": None if statement is None else statement.sampling,
        "privacy_unit": terms["privacy_unit"],
        "charged": study.day or (first.strftime("%Y-%m-%d") if result.view.first_ms else None),
        "state": result.state if not result.claims.downgraded else "lost its claim",
    }


def _difference(cap: float, spent: float) -> float:
    return max(float(Decimal(repr(cap)) - Decimal(repr(spent))), 0.0)
