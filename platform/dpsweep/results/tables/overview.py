"""Overview of many studies: all below a folder, or all of a tracking store, a row each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import BadInputError, NothingWithinBudgetError, SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.privacy.modes import MODES
from dpsweep.privacy.terms import COLUMNS, TAGS
from dpsweep.results.study import SweepResult
from dpsweep.results.tracked.claims import bound_of
from dpsweep.study.files import StudyFiles
from dpsweep.tracking.mlflow_reader import MLflowReader, names_of
from dpsweep.tracking.schema import BEST_OBJECTIVE, finite

#: Columns of an overview. ``epsilon`` is what the study claims as a whole; None: it claims nothing.
KEYS = (
    "study", "state", "mode", "epsilon", *COLUMNS, "released", "trials", "metric", "best",
    "started", "where", "problem",
)  # fmt: skip
#: State of a study that cannot be read; ``problem`` says why.
DAMAGED = "damaged"
#: State of a directory that this user may not list, whatever is in it.
CLOSED = "closed"
_ENDED = ("search/finished", "search/pruned", "search/failed")


def studies_below(
    folder: FilePath, on_closed: Callable[[OSError], None] | None = None
) -> Iterator[FilePath]:
    """Yield the directories of studies below a folder, or the folder itself, sorted.

    Nothing inside a study's directory is one: a sealed study is nobody's to open. In a bucket,
    studies are right below their folder. ``on_closed`` hears of directories that this user may not
    list.
    """
    if isinstance(folder, BucketPath):
        yield from (path.parent for path in folder.glob("*/spec.yaml"))
        return
    for path, folders, files in os.walk(folder, onerror=on_closed):
        # The hash is all that one has here whose ledgers are in a database.
        names = {*files, *folders}
        is_launched = "spec.yaml" in files and {"journal.jsonl", "ledger", "data.sha256"} & names
        if is_launched or {"journal.jsonl", "ledger"} <= names:  # its spec is lost
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def overview(folder: FilePath) -> list[dict[str, Any]]:
    """Return a row for every study below a folder; one that is damaged says why.

    Guarantees:
        Of a study in ``select`` neither the number of its trials nor a losing score is told.

    Args:
        folder: Folder of studies, or of such folders.
    Raises:
        BadInputError: There is no such folder.
    """
    if not folder.is_dir():
        raise BadInputError(f"no folder {folder}", fix="give the folder that the studies are in")
    closed: list[OSError] = []
    rows = [_row_of_directory(path) for path in studies_below(folder, closed.append)]
    return rows + [_row(Path(e.filename), CLOSED, e.strerror or str(e)) for e in closed]


def _row(path: FilePath, state: str, problem: str) -> dict[str, Any]:
    row = {"study": path.name, "state": state, "where": str(path), "problem": problem}
    return dict.fromkeys(KEYS) | row


def _row_of_directory(path: FilePath) -> dict[str, Any]:
    where: FilePath | LogPath = path
    try:
        files = StudyFiles.at(path)
        where = files.journal
        if files.frozen().get("name") != path.name:  # a copy, which nobody may continue
            return _row(path, DAMAGED, f"{files.spec} is of a study of another name")
        return _row(path, DAMAGED, "") | _cells(SweepResult(files))
    except SweepError as error:
        state = CLOSED if isinstance(error.__cause__, PermissionError) else DAMAGED
        return _row(path, state, error.message.split("\n")[0])
    except PermissionError as error:
        return _row(path, CLOSED, f"{error.filename}: {error.strerror}")
    except KeyError as error:  # of a journal: a key that every version has written
        return _row(path, DAMAGED, f"{where}: an event has no {error}")


def _cells(result: SweepResult) -> dict[str, Any]:
    is_sealed = result.spec.privacy.mode.is_sealed
    statement = result.study_statement()
    terms = dict.fromkeys(COLUMNS) if statement is None else statement.columns()
    return {
        "state": result.state,
        "mode": result.claims.accounting,
        "epsilon": None if statement is None else statement.epsilon,
        **terms,
        "released": None if statement is None else statement.released,
        "trials": None if is_sealed else len(result.view.trials),
        "metric": result.spec.search.metric,
        "best": _best(result),
        "started": _moment(result.view.first_ms, is_sealed),
        "problem": result.claims.downgraded,
    }


def _best(result: SweepResult) -> float | None:
    """Return the score that ``best`` shows, without the epsilons of all trials where it can."""
    if result.spec.episodes is None:
        views = [
            view
            for view in result.view.finished()
            if not result.spec.has_final_run or result.claims.is_final(view)
        ]
        scores = [view.value for view in views if view.value is not None]
        return (max if result.is_maximized else min)(scores, default=None)
    try:
        return result.choose().score
    except NothingWithinBudgetError:
        return None


def _moment(time_ms: int, is_sealed: bool) -> str | None:
    """Return a time in UTC; of a selection the day alone, as its journal has it."""
    if not time_ms:
        return None
    moment = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    return moment.strftime("%Y-%m-%d" if is_sealed else "%Y-%m-%d %H:%M")


def stored_overview(tracking_uri: str | None) -> list[dict[str, Any]]:
    """Return a row for every study of a tracking store, newest first, by its own run alone.

    ``trials`` are those that have ended; claims are what tags say (``results.tracked``).

    Args:
        tracking_uri: None: ``MLFLOW_TRACKING_URI`` or ``sqlite:///mlflow.db``.
    Raises:
        BadInputError: The store cannot be read.
    """
    runs = MLflowReader(tracking_uri).studies()
    rows = []
    for run, where in zip(runs, names_of(runs)):
        tags = run.tags
        asked = run.params.get("privacy.accounting", tags.get("dp.accounting", ""))
        is_sealed = asked in MODES and MODES[asked].is_sealed
        epsilon = _claimed(tags)
        cells = {
            "study": run.study,
            "state": tags.get("dpsweep.state"),
            "mode": tags.get("dp.accounting"),
            "epsilon": epsilon,
            **_terms(tags if epsilon is not None else {}),
            "trials": None if is_sealed else sum(int(run.metrics.get(n, 0)) for n in _ENDED),
            "metric": run.params.get("search.metric"),
            "best": run.metrics.get(BEST_OBJECTIVE),
            "started": _moment(run.start_ms, is_sealed),
            "where": where,
            "problem": tags.get("dp.downgraded"),
        }
        rows.append({**dict.fromkeys(KEYS), **cells})
    return rows


def _terms(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return what stands beside the epsilon of a study's run."""
    cells: dict[str, Any] = {name: tags.get(tag) for name, tag in TAGS.items()}
    return {
        **cells,
        "delta": finite(bound_of(tags.get("dp.delta"))),
        "released": tags.get("dp.released"),
    }


def _claimed(tags: Mapping[str, str]) -> float | None:
    """Return the epsilon that a study's run claims: none without all its terms."""
    if "dp.downgraded" in tags or not all(tags.get(tag) for tag in (*TAGS.values(), "dp.released")):
        return None
    if finite(bound_of(tags["dp.delta"])) is None:
        return None
    return finite(bound_of(tags.get("dp.study_epsilon")))
