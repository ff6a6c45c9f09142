"""Folders and files that modes, or a file system, close to whoever asks."""

import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

import pytest
from other_user import without_rights
from stored_studies import NAMES, copy_studies
from whole_studies import cli_here

from dpsweep.cli.app import main
from dpsweep.foundation.errors import LedgerError, StudyError
from dpsweep.foundation.file_paths import is_writable
from dpsweep.foundation.logs import read_log
from dpsweep.results.tables.overview import overview
from dpsweep.study.files import StudyFiles
from dpsweep.tracking.base import StoreRefusedError
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.mlflow_database import refuse_unwritable

STUDY = NAMES[0]


@pytest.fixture
def studies():
    """Return a folder of one study, where every user may be, and of which no user may change it."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield copy_studies(folder, [STUDY])
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700)
    shutil.rmtree(folder)


def test_a_study_that_is_closed_is_told_and_not_called_damaged(studies):
    (studies / STUDY).chmod(0)
    with without_rights(), pytest.raises(StudyError, match="Permission denied") as caught:
        StudyFiles.find(STUDY, studies)
    assert "damaged" not in str(caught.value)
    assert "as the user whose study it is" in str(caught.value)


def test_so_is_one_whose_spec_is_closed(studies):
    (studies / STUDY / "spec.yaml").chmod(0)
    with (
        without_rights(),
        pytest.raises(StudyError, match=r"spec\.yaml cannot be read: Permission"),
    ):
        StudyFiles.find(STUDY, studies)


@pytest.mark.parametrize("closed", ["", "spec.yaml", "journal.jsonl"])
def test_the_list_says_which_folders_are_closed(studies, closed):
    (studies / STUDY / closed).chmod(0)
    with without_rights():
        (row,) = overview(studies)
    assert row["study"] == STUDY
    assert row["where"] == str(studies / STUDY)
    assert "Permission denied" in row["problem"]
    assert row["state"] == "closed"


def test_a_study_that_has_lost_its_spec_is_no_study_that_is_not_there(studies):
    (studies / STUDY / "spec.yaml").unlink()
    with pytest.raises(StudyError, match=r"spec\.yaml is missing") as caught:
        StudyFiles.find(STUDY, studies)
    assert "the tracking store has a copy" in str(caught.value)
    (row,) = overview(studies)
    assert (row["study"], row["state"]) == (STUDY, "damaged")
    assert row["problem"].endswith("spec.yaml is missing")


def test_a_closed_log_is_not_to_be_restored(studies):
    journal = studies / STUDY / "journal.jsonl"
    journal.chmod(0)
    with without_rights(), pytest.raises(LedgerError, match="Permission denied") as caught:
        read_log(journal)
    assert "backup" not in str(caught.value)


@pytest.mark.parametrize(
    ("verb", "closed"),
    [("status", ""), ("best", "spec.yaml"), ("logs", "journal.jsonl"), ("status", "ledger")],
)
def test_a_command_says_so_in_a_line(studies, closed, verb, monkeypatch, capsys):
    (studies / STUDY / closed).chmod(0)
    monkeypatch.setattr(sys, "argv", ["dpsweep", verb, STUDY, "--root", str(studies)])
    with without_rights(), pytest.raises(SystemExit) as end:
        main()
    told_ = capsys.readouterr().err
    assert end.value.code == 1
    assert "Permission denied" in told_
    assert "fix: " in told_


@pytest.mark.parametrize("verb", ["status", "best"])
@pytest.mark.parametrize("name", ["spec.yaml", "journal.jsonl"])
@pytest.mark.parametrize("damage", ["[]", "{}\n{}\n", None])
def test_a_script_tells_a_damaged_study_from_one_that_is_not_there(studies, name, damage, verb):
    if damage is None:
        (studies / STUDY / name).unlink()
    else:
        (studies / STUDY / name).write_text(damage)
    done = cli_here(verb, STUDY, "--root", studies)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert cli_here(verb, "none-of-this-name", "--root", studies).returncode == 2


@pytest.mark.parametrize("verb", ["status", "best", "report", "logs", "pareto"])
def test_a_study_whose_ledgers_and_journal_are_lost_is_not_new(studies, verb):
    """It was "new; no trials yet", with exit 0, while its trials lay there."""
    shutil.rmtree(studies / STUDY / "ledger")
    (studies / STUDY / "journal.jsonl").unlink()
    (studies / STUDY / "trials" / "0000").mkdir(parents=True, exist_ok=True)
    done = cli_here(verb, STUDY, "--root", studies)
    assert done.returncode == 1, done.stdout
    assert "of a study, and no privacy ledger" in done.stderr
    assert "study.jsonl was deleted; what that study has spent is not known" in done.stderr
    (row,) = overview(studies)
    assert (row["study"], row["state"], row["epsilon"]) == (STUDY, "damaged", None)
    assert "has trials" in row["problem"]
    assert cli_here("list", studies).returncode == 0


def test_a_study_that_never_began_is_new(studies):
    for path in (studies / STUDY).iterdir():
        if path.name != "spec.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = cli_here("status", STUDY, "--root", studies)
    assert done.returncode == 0, done.stderr
    assert ": new; " in done.stdout + done.stderr


def test_where_files_can_be_made(studies):
    assert is_writable(studies)
    assert is_writable(studies / "not" / "there" / "yet")
    assert not is_writable(studies / STUDY / "spec.yaml" / "below a file")
    assert list(studies.iterdir()) == [studies / STUDY]
    studies.chmod(0o555)
    (studies / STUDY).chmod(0)
    with without_rights():
        assert not is_writable(studies)
        assert not is_writable(studies / STUDY / "inside")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no file system of processes")
def test_where_modes_allow_it_and_the_file_system_does_not():
    assert not is_writable(Path("/proc"))
    assert not is_writable(Path("/proc/studies"))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no file system of processes")
def test_the_tracker_does_not_try_for_minutes_there(tmp_path):
    with pytest.raises(StoreRefusedError, match=r"any\.db cannot be written"):
        MLflowTracker("sqlite:////proc/any.db", "any", tmp_path / "tracking.json")


def test_a_store_that_another_program_writes_is_waited_for(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as other:
        other.execute("begin exclusive")
        refuse_unwritable(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.parametrize("closed", ["folder", "file", "both"])
def test_a_store_that_cannot_be_written_is_told_at_once(studies, closed):
    store = studies / "mlflow.db"
    sqlite3.connect(store).execute("create table any (number)").connection.close()
    if closed != "folder":
        store.chmod(0o444)
    else:
        store.chmod(0o666)
    if closed != "file":
        studies.chmod(0o555)
    else:
        studies.chmod(0o777)
    before = store.read_bytes()
    with without_rights(), pytest.raises(StoreRefusedError, match="cannot be written") as caught:
        refuse_unwritable(f"sqlite:///{store}")
    assert "let this user write" in str(caught.value)
    assert store.read_bytes() == before
