"""Files of a study: where each lies, what they say, and how a study is found."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import yaml

from dpsweep.foundation.database_path import DatabasePath, LogPath, check_server
from dpsweep.foundation.errors import BadInputError, DamagedStudyError, StudyError
from dpsweep.foundation.file_paths import FilePath, read_file
from dpsweep.foundation.logs import read_log
from dpsweep.foundation.registry import did_you_mean
from dpsweep.spec.document.nodes import QuickLoader, refuse_foreign
from dpsweep.spec.study import NAME, SweepSpec
from dpsweep.study.journal import StudyView, fold
from dpsweep.study.trial import TrialTask, read_task


class StudyFiles:
    """The paths of a study; reading needs no lock.

    Args:
        root: Folder of studies, on disk or in a bucket.
        name: Of the study.
        database: Address of the database that has its ledgers, journal, lock and Optuna's study;
            None: they are files, too.
    """

    def __init__(self, root: FilePath, name: str, database: str | None = None) -> None:
        self.name = name
        self.path = root.resolve() / name
        self.database = database
        logs: LogPath
        if database is not None:
            logs = DatabasePath(database, name)
        else:
            assert isinstance(self.path, Path), "a study in a bucket has a database"
            logs = self.path
        self.journal = logs / "journal.jsonl"
        self.ledger = logs / "ledger"
        self.lock = logs / "lock"
        self.optuna: LogPath = logs / "optuna.db" if database is None else logs
        self.spec = self.path / SPEC_FILE
        self.tracking = self.path / "tracking.json"
        self.pictures = self.path / "pictures"
        self.page = self.path / "report.html"
        self.confusion = self.path / "confusion.json"

    def there(self) -> StudyFiles:
        """Return itself, while the study's folder is there; in a bucket nobody is asked.

        Raises:
            StudyError: It was moved or removed since it was opened.
        """
        if isinstance(self.path, Path) and not self.path.is_dir():
            raise StudyError(
                f"the folder of study {self.name!r} is no longer there: {self.path}",
                fix="load_sweep it where it lies now",
            )
        return self

    def trial(self, trial: int) -> FilePath:
        """Return the directory of one trial."""
        return self.path / "trials" / f"{trial:04d}"

    def task(self, trial: int) -> TrialTask:
        """Return an admitted trial.

        Raises:
            DamagedStudyError: Its directory was deleted or damaged.
        """
        path = self.trial(trial) / "trial.json"
        return read_task(path)

    def view(self) -> StudyView:
        """Return what the journal says now."""
        return fold(read_log(self.journal))

    def frozen(self) -> dict[str, Any]:
        """Return the frozen spec as plain data, whatever version of this package wrote it.

        Raises:
            DamagedStudyError: Its file is damaged, lost, or closed to this user.
        """
        return _frozen(self.spec)

    @classmethod
    def of(cls, spec: SweepSpec) -> StudyFiles:
        """Return the paths of a spec's study, whether it is there or not."""
        database = spec.storage.database
        server = None if database is None else check_server(database)
        return cls(spec.storage.root, spec.name, server)

    @classmethod
    def at(cls, path: FilePath) -> StudyFiles:
        """Return the paths of the study in a directory; its frozen spec says where its logs are."""
        spec = path / SPEC_FILE
        if isinstance(path, Path) and not _exists(spec):
            return cls(path.parent, path.name)
        storage = _frozen(spec).get("storage")
        database = storage.get("database") if isinstance(storage, dict) else None
        if database is None and isinstance(path, Path):
            return cls(path.parent, path.name)
        try:
            return cls(path.parent, path.name, check_server(str(database)))
        except BadInputError as error:
            raise DamagedStudyError(
                f"{spec} is damaged: storage.database: {error.message}", fix=_RESTORE
            ) from error

    @classmethod
    def find(cls, name: str, root: FilePath) -> StudyFiles:
        """Return an existing study.

        Raises:
            StudyError: There is none of that name under ``root``, or no study can have it.
            DamagedStudyError: Its files are damaged, or closed to this user.
        """
        if re.fullmatch(NAME, name) is None:  # nor a way out of the folder of studies
            raise StudyError(
                f"{name!r} is no name of a study",
                because="one has 1 to 64 of a-z 0-9 . _ -, first a letter or a digit",
                fix="give the name alone, and root (`--root DIR`) for the folder that its own "
                "folder is in",
            )
        # A sealed study has another name than its directory, and is nobody's to open.
        spec = root / name / SPEC_FILE
        has_spec = _exists(spec)
        if not has_spec and _exists(root / name / "ledger"):
            _frozen(spec)  # which says that it is lost
        if has_spec and (held := _frozen(spec).get("name")) != name:
            raise StudyError(
                f"{root / name}/ holds study {held!r:.80}, and no study {name!r}",
                because="a study goes by the name of its own spec",
                fix=f"rename the directory to {held:.80}, if it is no copy",
            )
        if not has_spec:
            names = sorted(path.parent.name for path in root.glob(f"*/{SPEC_FILE}"))
            names = [other for other in names if re.fullmatch(NAME, other)]
            hint = did_you_mean(name, names)
            raise StudyError(
                f"no study {name!r} in {root}/",
                because=f"studies there: {_nearest(name, names) or 'none'}",
                fix=(hint + " " if hint else "")
                + "run `dpsweep run SPEC`, or give root (`--root DIR`)",
            )
        return cls.at(root.resolve() / name)


def _exists(path: FilePath) -> bool:
    """Say whether a file is there.

    Raises:
        DamagedStudyError: Its folder is closed to this user.
    """
    try:
        return path.exists()
    except PermissionError as error:
        raise closed_to_user(path, error) from error


def closed_to_user(path: FilePath, error: OSError) -> DamagedStudyError:
    """Return the error of a study's file that this user may not read."""
    return DamagedStudyError(
        f"{path} cannot be read: {error.strerror}",
        fix="ask as the user whose study it is",
    )


class _Plain(QuickLoader):  # type: ignore[misc, valid-type]  # one of two classes
    """Refuses an int of more digits than Python writes, which is an error wherever it is shown."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        str(number)  # a ValueError of one that cannot be written
        return number


_Plain.add_constructor("tag:yaml.org,2002:int", _Plain.construct_yaml_int)


def stored_yaml(path: FilePath) -> Any:
    """Return what the spec of a study says, which may be somebody else's.

    Raises:
        OSError: It cannot be read, or is no regular file.
        ValueError: It is damaged.
    """
    text, loader = read_file(path).decode(), None
    try:
        refuse_foreign(text)
        loader = _Plain(text)
        return loader.get_single_data()
    except _NOT_OURS as error:
        raise ValueError("it is no YAML that this package has written") from error
    finally:
        if loader is not None:
            loader.dispose()


def _frozen(path: FilePath) -> dict[str, Any]:
    problem = "is damaged: it is not the spec that was written there"
    try:
        raw = stored_yaml(path)
    except PermissionError as error:
        raise closed_to_user(path, error) from error
    except FileNotFoundError:
        raw, problem = None, "is missing"
    except (OSError, ValueError):
        raw = None
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise DamagedStudyError(
            f"{path} {problem}",
            because="what the study may claim is read from it",
            fix=_RESTORE,
        )
    return raw


def _nearest(name: str, names: list[str]) -> str:
    """Return all names where they are few, else those nearest to one, and how many others."""
    if len(names) <= _FEW:
        return ", ".join(names)
    near = difflib.get_close_matches(name, names, n=_FEW, cutoff=0.4) or names[:_FEW]
    return f"{', '.join(near)} and {len(names) - len(near)} more"


SPEC_FILE = "spec.yaml"
# What the constructors of PyYAML raise for a scalar that is not what it looks like, beside its own.
_NOT_OURS = (
    yaml.YAMLError, AttributeError, LookupError, OverflowError, RecursionError, TypeError,
)  # fmt: skip
_RESTORE = "restore it; the tracking store has a copy, sweep.yaml of the study's run"
#: Names of studies that are listed where another one is asked for.
_FEW = 5
