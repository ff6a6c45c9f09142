"""The caps of a dataset: whose records a study must share with the others, and how much is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from dpsweep.foundation import validate
from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import exact
from dpsweep.ledgers.dataset_account import DatasetAccount


class DatasetBudgetError(BadInputError):
    """A study would take a dataset over its cap, or the dataset's sum is not known any more."""


def total(values: Iterable[float]) -> Decimal:
    """Add numbers as they are written: three times 0.1 is 0.3."""
    return sum((Decimal(repr(float(value))) for value in values), Decimal(0))


def refuse_other_records(
    path: LogPath, account: DatasetAccount, dataset: str, parts: Mapping[str, Any]
) -> None:
    """Refuse a study of another dataset, or one for which other records of it are private.

    Raises:
        BadInputError: It is.
    """
    if account.dataset is None:
        return
    if account.dataset != dataset:
        raise BadInputError(
            f"{path} is the ledger of dataset {account.dataset!r}, not of {dataset!r}",
            fix="give each dataset a ledger of its own",
        )
    names = [*account.parts, *(name for name in parts if name not in account.parts)]
    differ = [name for name in names if account.parts.get(name) != parts.get(name)]
    if differ:
        declared = ", ".join(f"{name}: {_yaml(account.parts.get(name))}" for name in differ)
        raise BadInputError(
            f"this study would have other records private than those in {path}, where {declared}",
            because="what one study shows of a record for free has no epsilon in another one",
            fix="declare the same; with a ledger of its own nothing holds for both together",
        )


def _yaml(value: Any) -> str:
    """Return a value as people write it in a spec."""
    return "null" if value is None else exact(value) if isinstance(value, float) else str(value)


def caps_of(
    path: LogPath,
    account: DatasetAccount,
    dataset: str,
    cap_epsilon: float | None,
    cap_delta: float | None,
) -> tuple[float, float]:
    """Return the caps that hold: those of the file, or on first use those of the study.

    Raises:
        BadInputError: The file has others, or neither has any.
    """
    if account.dataset is None or account.cap_epsilon is None or account.cap_delta is None:
        if cap_epsilon is None or cap_delta is None:
            raise BadInputError(
                f"{path} has no caps yet: it is used for the first time",
                fix="set privacy.dataset_epsilon and privacy.dataset_delta, what all studies on "
                f"{dataset!r} may cost together",
            )
        epsilon = validate.positive("dataset_epsilon", cap_epsilon)
        return epsilon, validate.in_unit_interval("dataset_delta", cap_delta)
    for key, asked, holds in (
        ("dataset_epsilon", cap_epsilon, account.cap_epsilon),
        ("dataset_delta", cap_delta, account.cap_delta),
    ):
        if asked is not None and asked != holds:
            raise BadInputError(
                f"privacy.{key} is {exact(asked)}, and {path} was made with {exact(holds)}",
                because="the cap of a dataset is fixed by the first study that names the ledger",
                fix=f"{key}: {exact(holds)}, or leave it out",
            )
    return account.cap_epsilon, account.cap_delta


def refuse_over_cap(
    path: LogPath,
    account: DatasetAccount,
    caps: tuple[float, float],
    epsilon: float,
    delta: float,
) -> None:
    """Refuse a study for which less is left than it declares, or nobody knows how much.

    Raises:
        DatasetBudgetError: It is.
        BadInputError: It declares no numbers that can be added.
    """
    if account.broken is not None:
        raise DatasetBudgetError(
            f"{path} accepts no study any more: what the dataset has cost is unknown",
            because=account.broken,
            fix="other records, or accounting: unaccounted without a dataset ledger, which claims "
            "nothing",
        )
    if not epsilon >= 0 or not delta >= 0:
        raise BadInputError(f"epsilon and delta must be >= 0, got {epsilon!r} and {delta!r}")
    total_epsilon = total([*(study.epsilon for study in account.studies), epsilon])
    total_delta = total([*(study.delta for study in account.studies), delta])
    fits = total_epsilon <= Decimal(repr(caps[0])) and total_delta <= Decimal(repr(caps[1]))
    if not fits:
        names = ", ".join(
            f"{s.name} ({exact(s.epsilon)}, {exact(s.delta)})" for s in account.studies
        )
        raise DatasetBudgetError(
            f"a study of epsilon={exact(epsilon)} at delta={exact(delta)} does not fit into the "
            f"dataset's budget: epsilon={exact(account.epsilon)} at delta={exact(account.delta)} "
            f"of epsilon={exact(caps[0])} at delta={exact(caps[1])} are spent",
            because=f"basic composition, add_or_remove_one (all terms: `dpsweep budget {path}`); "
            f"(epsilon, delta) of studies: {names or 'none'}; deleting one gives nothing back",
            fix=_what_fits(_left(caps[0], account.epsilon), _left(caps[1], account.delta)),
        )


def _what_fits(epsilon: float, delta: float) -> str:
    """Return what may still be run on records of which so much is left."""
    if not (epsilon > 0 and delta > 0):
        return "other records"
    return f"a study of epsilon <= {exact(epsilon)} and delta <= {exact(delta)}, or other records"


def _left(cap: float, spent: float) -> float:
    return float(Decimal(repr(cap)) - Decimal(repr(spent)))
