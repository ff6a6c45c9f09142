"""Records of the ledgers: which kinds there are, and what each holds.

A record with a good checksum may still be none that was ever written: a file that somebody has
edited, or a newer version's. Whoever reads a ledger has its records looked at here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import LedgerError
from dpsweep.foundation.shapes import fits
from dpsweep.privacy.events import Plan


class Kind(NamedTuple):
    """What a record of one kind must hold, and what it may hold, as type hints."""

    needs: Mapping[str, Any] = {}
    may: Mapping[str, Any] = {}


_COST = Mapping[str, float | None] | None
_EVENTS = Sequence[Mapping[str, Any]]

#: Of a study's own ledger.
STUDY = {
    "study": Kind({"study_id": str}, {"terms": Mapping[str, Any] | None}),
    "filter": Kind(dict.fromkeys(("order", "budget", "target_epsilon", "delta"), float)),
    "gaussian_filter": Kind(dict.fromkeys(("budget", "target_epsilon", "delta"), float)),
    "declared": Kind(
        {"classes": _EVENTS, **dict.fromkeys(("target_epsilon", "delta", "epsilon"), float)}
    ),
    "split": Kind(
        {"search": Mapping[str, Any], "part": float, "final_accountant": str, "kept": _EVENTS}
    ),
    "reserve": Kind(
        {"trial": int},
        {
            "has_file": bool,
            "num_events": int,
            "num_reserved": int,
            "plan_sha256": str,
            "task_sha256": str,
            "epsilon": float | None,
            "cost": Mapping[str, float],
        },
    ),
    "settle": Kind({"trial": int, "state": str}, {"charged": int, "cost": _COST}),
    "num_trials": Kind({"num_trials": int}, {"part_seed": str}),
    "selection": Kind(
        {
            "mean": float,
            "shape": float | str,
            "delta": float,
            "epsilon": float,
        },
        {
            "curve": Sequence[float | None],
            "profile": Sequence[float],
            "step": float,
            "subset": Mapping[str, Any],
        },
    ),
    "begin_selection": Kind(),
    "dataset_charge": Kind(),
    "downgrade": Kind({"reason": str}),
}

#: Of a trial's ledger.
TRIAL = {
    "admit": Kind({}, {"study_id": str}),
    "open": Kind({}, {"host": str, "pid": int}),
    "inherit": Kind({"events": _EVENTS}),
    "charge": Kind({"events": _EVENTS}, {"start": int, "stop": int}),
    "release": Kind({"index": int, "charged": int, "sha256": str}),
}

#: Of a dataset's ledger.
DATASET = {
    "dataset": Kind(
        {"dataset": str, "parts": Mapping[str, Any], "cap_epsilon": float, "cap_delta": float}
    ),
    "study": Kind(
        {
            **dict.fromkeys(("study_id", "name", "directory", "accounting"), str),
            "epsilon": float,
            "delta": float,
        },
        {"day": str | None},
    ),
    "trial": Kind({"study_id": str, "trial": int}, {"attempt": int}),
    "broken": Kind({"study_id": str, "reason": str}),
}


def checked(
    path: LogPath,
    records: Iterable[Mapping[str, Any]],
    kinds: Mapping[str, Kind],
    *,
    num_checked: int = 0,
) -> list[Mapping[str, Any]]:
    """Return the records of a ledger, each of a kind that is known, with what its kind holds.

    Guarantees:
        No record is passed over: one of an unknown kind may be a charge. Not covered: a record
        whose values are other ones of the same types, but for what ``ledgers.history`` compares.

    Args:
        path: Of the ledger, for messages.
        records: In their order.
        kinds: ``STUDY``, ``TRIAL`` or ``DATASET``.
        num_checked: How many of the first ones were checked here before.
    Raises:
        LedgerError: With the line and the key.
    """
    kept = list(records)
    for number, record in enumerate(kept[num_checked:], start=num_checked + 1):
        flaw = _flaw(record, kinds)
        if flaw:
            raise LedgerError(
                f"{path}:{number}: {flaw}; the ledger cannot be trusted",
                because="the file was edited, or another version of dpsweep has written it",
                fix="restore the file from a backup, or use that version",
            )
    return kept


def plan_of(record: Mapping[str, Any]) -> Plan:
    """Return the events of a record of a trial's ledger.

    Raises:
        LedgerError: They are not as many as the positions that it says. More are taken in a charge
            from position 0 on: earlier versions wrote the noisy scores of a selection's winner
            into the charge of its positions, and more events never cost less.
    """
    plan = Plan.from_json(record["events"])
    size = record["stop"] - record["start"] if "start" in record else len(plan)
    if len(plan) < size or (len(plan) > size and record["start"] > 0):
        raise LedgerError(
            f"a charge of positions {record['start']} to {record['stop'] - 1} of a trial's ledger "
            f"has {len(plan)} events",
            because="the file was edited",
            fix="restore it; without it nothing true can be said of this trial's epsilon",
        )
    return plan


def events_of(records: Iterable[Mapping[str, Any]], kind: str) -> Plan:
    """Return the events of all records of one kind of a trial's ledger, in their order."""
    plans = [plan_of(record) for record in records if record["kind"] == kind]
    return Plan(tuple(run for plan in plans for run in plan.runs)).merged()


def positions_charged(records: Iterable[Mapping[str, Any]]) -> int:
    """Return how many positions of its plan a trial's records charge, repeats included."""
    charges = [record for record in records if record["kind"] == "charge" and "start" in record]
    return sum(record["stop"] - record["start"] for record in charges)


def charges_at_once(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the charges of a trial's ledger as one of all positions, and one of all else.

    Where one charge ends and the next begins tells how long steps took, so how large batches were.
    """
    charges = [record for record in records if record["kind"] == "charge"]
    at_positions = [record for record in charges if "start" in record]
    others = [record for record in charges if "start" not in record]
    place = {"start": 0, "stop": positions_charged(charges)}
    return [
        {"kind": "charge", **where, "events": events_of(chosen, "charge").to_json()}
        for where, chosen in ((place, at_positions), ({}, others))
        if chosen
    ]


def _flaw(record: Mapping[str, Any], kinds: Mapping[str, Kind]) -> str:
    name = record.get("kind")
    if not isinstance(name, str) or name not in kinds:
        return f"no kind of record is called {name!r:.40}"
    kind = kinds[name]
    for key, shape in kind.needs.items():
        if key not in record:
            return f"record {name!r} has no {key!r}"
        if not fits(record[key], shape):
            return f"record {name!r} has {record[key]!r:.40} for {key!r}"
    for key, shape in kind.may.items():
        if key in record and not fits(record[key], shape):
            return f"record {name!r} has {record[key]!r:.40} for {key!r}"
    if name == "charge" and ("start" in record) != ("stop" in record):
        return "record 'charge' says one end of its positions alone"
    return ""
