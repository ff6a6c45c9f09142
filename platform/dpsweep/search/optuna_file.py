"""Where Optuna's study lies: damage, contradictions to the journal, and terms of its epsilons."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import tempfile
import time
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError

from dpsweep.foundation.database_path import DatabasePath, LogPath
from dpsweep.foundation.durable import damage_of_sqlite
from dpsweep.foundation.errors import FOLDER_GONE, SweepError
from dpsweep.foundation.file_paths import set_aside
from dpsweep.foundation.kept import kept
from dpsweep.foundation.postgres.sessions import PATIENCE_S, SCHEMA, making_tables
from dpsweep.foundation.servers import (
    MORE_CONNECTIONS,
    brief,
    innermost,
    is_full,
    missing_right,
)

_Result = TypeVar("_Result")

#: User attributes of a trial that has ended: its epsilon, and all that this depends on.
EPSILON, MEANING = "dp/epsilon", "dp/epsilon_is"
#: What its storages raise when they cannot be had, or are not what they were.
STORAGE_ERRORS = (SQLAlchemyError, optuna.exceptions.OptunaError, sqlite3.Error)


class OptunaPlace(ABC):
    """A place for the Optuna study of a sweep, in the form that Optuna's own tools open."""

    @abstractmethod
    def storage(self) -> optuna.storages.RDBStorage:
        """Return what ``optuna.create_study`` takes; made where it is not there yet."""

    @abstractmethod
    def exists(self) -> bool:
        """Say whether something is there."""

    @abstractmethod
    def problem(self) -> str:
        """Say what is wrong with it as such; empty if nothing is, or it is not there.

        Raises:
            sqlite3.OperationalError: Another program holds it.
        """

    @abstractmethod
    def make_way(self) -> None:
        """Make room for a study that is written anew."""

    @abstractmethod
    def keep(self) -> None:
        """Let what is there reach the disk."""

    @abstractmethod
    def relabel(self, meaning: str) -> None:
        """Give all epsilons other terms, where there is a study.

        Optuna itself changes nothing of a trial that has ended, so this writes to the table in
        which its storage keeps user attributes.

        Args:
            meaning: What to say of each epsilon from now on.
        Raises:
            sqlite3.Error: Another program holds the file, or it is damaged.
            SQLAlchemyError: The database does not answer.
        """


class OptunaFile(OptunaPlace):
    """A SQLite file; one that makes way is set aside."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def storage(self) -> optuna.storages.RDBStorage:
        """Return a storage that leaves it to the system, until ``keep``, what reaches the disk.

        The journal has all that it says. A power cut may damage the file; then it is written anew
        when the study goes on.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_made = not self.path.exists() and self._put_empty()
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{self.path}", skip_compatibility_check=is_made, skip_table_creation=is_made
        )
        storage.engine.dispose()  # of the connection that has made the tables
        event.listen(storage.engine, "connect", _wait_for_no_disk)
        return storage

    def _put_empty(self) -> bool:
        """Put a copy of an empty file there, and say whether it is; else Optuna makes its own.

        It makes the tables, and reads all the migrations that they ever had, in .1 to .2 s.
        """
        partial = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        try:
            partial.write_bytes(kept("optuna", f"{optuna.__version__}.db", _empty))
            os.link(partial, self.path)  # whole or not at all, and never in place of another
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        return True

    def exists(self) -> bool:
        """Say whether the file is there."""
        return self.path.exists()

    def problem(self) -> str:
        """Let SQLite check the file."""
        if not self.path.is_file():
            return "is no file" if self.path.exists() else ""
        damage = damage_of_sqlite(self.path)
        return f"is damaged: {damage}" if damage else ""

    def make_way(self) -> None:
        """Set the file aside, with what SQLite has beside it and would play into a new one."""
        for path in self.path.parent.glob(f"{self.path.name}*"):
            if path.name.removeprefix(self.path.name) in ("", "-journal", "-wal", "-shm"):
                set_aside(path)

    def keep(self) -> None:
        """Wait for the disk; what it does not take is no worse than before."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            os.fsync(file)

    def relabel(self, meaning: str) -> None:
        """Write to the file; a process may have it open."""
        if not self.path.is_file():
            return
        with contextlib.closing(sqlite3.connect(self.path)) as database, database:
            database.execute(
                "update trial_user_attributes set value_json = ? where key = ?",
                (json.dumps(meaning), MEANING),
            )


def _empty() -> bytes:
    """Return a SQLite file with Optuna's tables, as this version of it makes them, and no study."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        optuna.storages.RDBStorage(f"sqlite:///{path}").engine.dispose()
        return path.read_bytes()


def _wait_for_no_disk(connection: sqlite3.Connection, _: object) -> None:
    connection.execute("pragma synchronous = off")


#: What a call ends with while a server is away. The second: Optuna has caught the first by itself,
#: and has gone on in the session that it broke.
_AWAY = (DBAPIError, PendingRollbackError)


def _while_away(call: Callable[[bool], _Result]) -> _Result:
    """Make a call of Optuna's storage, again while the server does not answer.

    Args:
        call: Is told whether it is made again: an earlier one may have done all but answer.
    """
    deadline, is_again = time.monotonic() + PATIENCE_S, False
    while True:
        try:
            return call(is_again)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            causes = (error, error.__cause__)
            is_away = any(isinstance(cause, _AWAY) for cause in causes)
            if not is_away or time.monotonic() >= deadline:
                raise
            is_again = True
            time.sleep(0.5)


def _patient(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(optuna.storages.RDBStorage, name))
    def wrapper(storage: optuna.storages.RDBStorage, *args: Any, **kwargs: Any) -> Any:
        def call(is_again: bool) -> Any:
            try:
                return getattr(optuna.storages.RDBStorage, name)(storage, *args, **kwargs)
            except optuna.exceptions.UpdateFinishedTrialError:
                if is_again:
                    return True  # the first call has ended the trial
                raise

        return _while_away(call)

    return wrapper


class PatientStorage(optuna.storages.RDBStorage):
    """Optuna's storage in a database that may restart meanwhile.

    A call whose answer was lost is made again; nobody else writes to the study.
    """

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create one trial, also where it takes several calls."""
        make = super().create_new_trial
        before = _while_away(lambda is_again: self._num_trials(study_id))

        def call(is_again: bool) -> int:
            if is_again and self._num_trials(study_id) > before:
                trials: list[FrozenTrial] = self.get_all_trials(study_id)
                return trials[before]._trial_id
            return make(study_id, template_trial)

        return _while_away(call)

    def _num_trials(self, study_id: int) -> int:
        with self.engine.connect() as connection:
            count = text("select count(*) from trials where study_id = :study")
            return int(connection.execute(count, {"study": study_id}).scalar_one())


for _name in sorted(optuna.storages.BaseStorage.__abstractmethods__ - vars(PatientStorage).keys()):
    setattr(PatientStorage, _name, _patient(_name))


class OptunaDatabase(OptunaPlace):
    """A study of that name in PostgreSQL, in our schema; one that makes way is deleted.

    The journal has all that it says.
    """

    def __init__(self, path: DatabasePath) -> None:
        self.path = path

    def __str__(self) -> str:
        return f"Optuna's study in {self.path}"

    def storage(self) -> PatientStorage:
        """Return a storage that waits for a server that is away."""
        return self._storage

    @functools.cached_property
    def _storage(self) -> PatientStorage:
        with making_tables(self.path.server):  # Optuna makes its own when it finds none
            storage = PatientStorage(self._url, engine_kwargs={"pool_pre_ping": True})
        weakref.finalize(storage, storage.engine.dispose)
        return storage

    @property
    def _url(self) -> str:
        """The address as SQLAlchemy has it, with our schema as the one that is searched."""
        join = "&" if "?" in self.path.server else "?"
        server = self.path.server.replace("postgresql://", "postgresql+psycopg://", 1)
        return f"{server}{join}options=-csearch_path%3D{SCHEMA}"

    def exists(self) -> bool:
        """Say whether a study of that name is there."""
        return self.path.key in optuna.get_all_study_names(self.storage())

    def problem(self) -> str:
        """Nothing: a server keeps its tables whole, or does not answer."""
        return ""

    def make_way(self) -> None:
        """Delete the study, if it is there."""
        if self.exists():
            optuna.delete_study(study_name=self.path.key, storage=self.storage())

    def keep(self) -> None:
        """Nothing to do: the server has it."""

    def relabel(self, meaning: str) -> None:
        """Write to the tables of all studies, for the trials of this one."""
        engine = create_engine(self._url)
        try:
            with engine.begin() as connection:
                connection.execute(
                    text(
                        "update trial_user_attributes set value_json = :value where key = :key and "
                        "trial_id in (select trial_id from trials join studies using (study_id) "
                        "where study_name = :name)"
                    ),
                    {"value": json.dumps(meaning), "key": MEANING, "name": self.path.key},
                )
        finally:
            engine.dispose()


def place_of(path: LogPath) -> OptunaPlace:
    """Return the place of a study whose ``StudyFiles.optuna`` is ``path``."""
    return OptunaDatabase(path) if isinstance(path, DatabasePath) else OptunaFile(path)


def unusable(place: OptunaPlace | None, error: Exception) -> SweepError:
    """Return what says that a storage has raised one of ``STORAGE_ERRORS``.

    Nothing depends on what is stored there, so nothing is lost.
    """
    if not isinstance(place, OptunaDatabase):
        # The journal, since something may have made a folder in the place of one that is gone.
        if isinstance(place, OptunaFile) and not (place.path.parent / "journal.jsonl").exists():
            return SweepError(
                f"{place} cannot be used: the study's folder is not there any more",
                because="somebody has moved or removed it while the study ran",
                fix=FOLDER_GONE,
            )
        return SweepError(
            f"{place} cannot be used: {brief(innermost(error))}",
            because="another program holds it, the disk is full, or it was damaged just now",
            fix="run the same command again: what is damaged is written anew from the journal",
        )
    cause, because = innermost(error), "the database does not answer, or refuses"
    fix = missing_right(cause) or "see that it answers"
    if is_full(cause):
        because, fix = "the database has no free connection", MORE_CONNECTIONS
    return SweepError(
        f"{place} cannot be used: {brief(cause)}",
        because=because,
        fix=f"{fix}; then run the same command again: the study is written from the journal",
    )


def difference(study: optuna.Study, known: Mapping[int, optuna.trial.FrozenTrial]) -> str:
    """Say where a study contradicts the journal; empty if it only lacks an end or nothing."""
    trials = study.get_trials(deepcopy=False)
    for number, wanted in known.items():
        if number >= len(trials):
            return f"does not know trial {number}"
        trial = trials[number]
        is_behind = trial.state is OptunaState.RUNNING and wanted.state.is_finished()
        if wanted.params and trial.params != wanted.params:
            return f"has another configuration for trial {number}"
        if trial.state is not wanted.state and not is_behind:
            return f"says that trial {number} is {trial.state.name.lower()}"
        is_scored = wanted.state is OptunaState.COMPLETE and not is_behind
        if is_scored and trial.values != wanted.values:
            return f"has another score for trial {number}"
        meanings = {
            each.user_attrs[MEANING] for each in (trial, wanted) if MEANING in each.user_attrs
        }
        if len(meanings) > 1:
            return f"has other terms for the epsilon of trial {number}"
    return ""
