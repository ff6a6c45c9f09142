"""Where a study keeps its files: places that can be written to, none of them in another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dpsweep.foundation.bucket_path import BucketPath, probe
from dpsweep.foundation.database_path import (
    DatabasePath,
    check_server,
    is_database_address,
    log_path,
)
from dpsweep.foundation.errors import (
    BadInputError,
    LedgerError,
    Mistake,
    SpecError,
    StorageError,
    SweepError,
)
from dpsweep.foundation.file_paths import is_writable
from dpsweep.foundation.logs import begins_as_log, read_log
from dpsweep.foundation.postgres.sessions import refuse_unwritable
from dpsweep.ledgers.dataset import DatasetLedger, why_closed
from dpsweep.spec.study import SweepSpec
from dpsweep.spec.tracking import database_of, masked
from dpsweep.study.launched import is_new
from dpsweep.tracking import refuse_unreachable, refuse_uri

_SECRETS = (
    "leave it out; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or "
    "MLFLOW_TRACKING_TOKEN for a server, PGPASSWORD or ~/.pgpass for PostgreSQL"
)


def place_problems(spec: SweepSpec) -> list[Mistake]:
    """Return which places a study cannot have.

    They must be writable, and not among its records: a folder of the study's own beside class
    folders would be a class from the second launch on.
    """
    problems = []
    uri = spec.tracking.uri
    if uri is not None and masked(uri) != uri:
        problem = f"{masked(uri)!r} has a secret in it, which the study's own spec.yaml would keep"
        problems.append(Mistake("tracking.uri", problem, _SECRETS))
    root = spec.storage.root
    if isinstance(root, Path) and not is_writable(root):
        problem = f"{spec.storage.path!r} cannot be written to"
        problems.append(Mistake("storage.path", problem, "name a directory of yours"))
    for key, file in _written(spec):
        if key not in ("tracking.uri", "privacy.dataset_ledger"):
            continue  # a folder
        if file.is_dir():
            problems.append(Mistake(key, f"{file} is a directory", "name a file in it"))
        elif key == "privacy.dataset_ledger" and _is_other_log(file):
            problem = f"{file} is no dataset ledger: it holds something else"
            problems.append(
                Mistake(key, problem, "name a dataset ledger, or a file that is not there yet")
            )
        elif key == "privacy.dataset_ledger" and os.path.exists(file):
            if not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
                why, fix = why_closed(file)
                problems.append(Mistake(key, f"{file} {why}", fix))
        elif not is_writable(file.parent):
            problem = f"{str(file)!r} cannot be written"
            problems.append(Mistake(key, problem, "name a file in a directory of yours, or null"))
    try:
        refuse_uri(spec.tracking)
    except BadInputError as error:
        because = f": {error.because}" if error.because else ""
        problems.append(Mistake("tracking.uri", error.message + because, error.fix or ""))
    if spec.data.path is None:
        return problems
    data = Path(spec.data.path).expanduser().resolve()
    problems += [
        Mistake(key, f"{place} is written inside data.path, {data}", "name a place outside of it")
        for key, place in _written(spec)
        if data.is_dir() and spec.data.dataset != "npz" and place.is_relative_to(data)
    ]
    study = (root / spec.name).resolve()
    if isinstance(study, Path) and data.is_relative_to(study):
        problem = f"{data} lies inside the study's own folder, {study}"
        problems.append(Mistake("data.path", problem, "move the data, or set another storage.path"))
    return problems


def make_places(spec: SweepSpec) -> None:
    """Make the folder of a new study's SQLite tracking store, or ask its server, before anything is
    spent.

    Of a study that was launched the store may be gone: it goes on, and events wait. Databases of
    ledgers, and a bucket, must answer at each launch.

    Raises:
        SpecError: The folder cannot be made, the file is something else, a server is away, or the
            study's experiment is deleted.
    """
    for key, server in _databases(spec):
        try:
            refuse_unwritable(server, has_optuna=key == "storage.database")
        except SweepError as error:
            because = f"; {error.because}" if error.because else ""
            mistake = Mistake(key, error.message + because, error.fix or "")
            raise SpecError([mistake.at(spec.where)]) from error
    if isinstance(spec.storage.root, BucketPath):
        try:
            probe(spec.storage.root)
        except StorageError as error:
            mistake = Mistake("storage.path", f"{error.message}: {error.because}", error.fix or "")
            raise SpecError([mistake.at(spec.where)]) from error
    if not is_new(spec):
        return
    database = database_of(spec.tracking.uri)
    if database is not None:
        _make_folder_of(database, spec)
    try:
        refuse_unreachable(spec.tracking, spec.name)
    except BadInputError as error:
        because = f": {error.because}" if error.because else ""
        problem, fix = error.message + because, error.fix or ""
        raise SpecError([Mistake("tracking.uri", problem, fix).at(spec.where)]) from error


def _make_folder_of(database: Path, spec: SweepSpec) -> None:
    """Make the folder of a SQLite tracking store; refuse a file that is none."""
    if database.is_file() and not _is_sqlite(database):
        problem, fix = f"{database} is a file, and no SQLite database", "name another file, or null"
        raise SpecError([Mistake("tracking.uri", problem, fix).at(spec.where)])
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{database.parent} cannot be made: {error.strerror}"
        fix = "name a file in a directory of yours, or null"
        raise SpecError([Mistake("tracking.uri", problem, fix).at(spec.where)]) from error


def probe_dataset_ledger(spec: SweepSpec) -> None:
    """Open a study's dataset ledger for writing, if it names one that is there, and write nothing.

    Raises:
        BadInputError: It cannot be written.
        LedgerError: It is damaged.
        LockedError: Another process has held it for half a minute.
        StorageError: Its database does not answer.
    """
    if spec.privacy.dataset_ledger is not None:
        DatasetLedger(spec.privacy.dataset_ledger).probe()


def new_dataset_ledger(spec: SweepSpec) -> Iterator[str]:
    """Say where a new dataset ledger begins: studies that name another file do not add up."""
    name = spec.privacy.dataset_ledger
    place = None if name is None else log_path(name)
    if place is not None and not place.exists():
        where = place.resolve() if isinstance(place, Path) else place
        yield f"{where} is a new dataset ledger: nothing is spent yet"


def _is_sqlite(path: Path) -> bool:
    """Say whether a file is empty or begins as SQLite databases do."""
    with path.open("rb") as file:
        return file.read(16) in (b"", b"SQLite format 3\0")


def _is_other_log(path: Path) -> bool:
    """Say whether a file is no dataset ledger; a damaged one is told where it is opened."""
    if path.is_file() and not begins_as_log(path):
        return True
    try:
        first = read_log(path)[:1]
    except LedgerError:
        return False
    return any(record.get("kind") != "dataset" for record in first)


def _written(spec: SweepSpec) -> Iterator[tuple[str, Path]]:
    """Yield every place that a study writes to, with the key that names it."""
    for key, folder in (
        ("storage.path", (spec.storage.root / spec.name).resolve()),
        ("storage.features", spec.storage.features_path),
    ):
        if isinstance(folder, Path) and (key == "storage.path" or spec.storage.features):
            yield key, folder
    database = database_of(spec.tracking.uri)
    if database is not None:
        yield "tracking.uri", database
    ledger = spec.privacy.dataset_ledger
    if ledger is not None and not is_database_address(ledger):
        yield "privacy.dataset_ledger", Path(ledger).resolve()


def _databases(spec: SweepSpec) -> Iterator[tuple[str, str]]:
    """Yield the databases that a study's ledgers are in, with the key that names each."""
    if spec.storage.database is not None:
        yield "storage.database", check_server(spec.storage.database)
    ledger = spec.privacy.dataset_ledger
    place = None if ledger is None else log_path(ledger)
    if isinstance(place, DatabasePath):
        yield "privacy.dataset_ledger", place.server
