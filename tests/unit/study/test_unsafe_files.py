"""Names and links that lead out of a study's folder, and checkpoints that hold code."""

import hashlib
import json
import os
import pickle
import shutil
import signal
import zlib
from pathlib import Path

import pytest
import torch
from import_graph import ROOT
from stored_studies import copy_studies
from whole_studies import cli_here

from dpsweep.cli.doctor import feature_stores
from dpsweep.foundation.durable import DurableLog
from dpsweep.foundation.errors import CheckpointError, LedgerError, StudyError
from dpsweep.foundation.locks import FileLock
from dpsweep.foundation.records import checked_json
from dpsweep.planning.deltas import with_launched_delta
from dpsweep.results.pictures.confusion import confusion
from dpsweep.results.study import load_sweep
from dpsweep.results.tables.overview import overview
from dpsweep.spec.document.reading import read_document
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.trial import read_task
from dpsweep.tracking.state import TrackingState
from dpsweep.trainables.execution.checkpoints import CheckpointStore

NAMES = [
    "../outside", "/etc", "", ".", "..", "a/b", "a\nb", "x;y", "$(touch here)", "..\\outside",
    "-rf", ".hidden", "a" * 65, "Name", "a\x00b", "composed/../composed",
]  # fmt: skip


@pytest.fixture
def studies(tmp_path):
    root = copy_studies(tmp_path, ["composed"])
    # One that a name with dots would lead to, and whose spec has that very name.
    shutil.copytree(root / "composed", tmp_path / "outside")
    spec = tmp_path / "outside" / "spec.yaml"
    spec.write_text(spec.read_text().replace("name: composed", "name: ../outside", 1))
    return root


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_study_can_have_opens_nothing(studies, name):
    with pytest.raises(StudyError, match="is no name of a study"):
        load_sweep(name, root=studies)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "verb", ["status", "best", "show", "report", "pareto", "decisions", "logs", "export"]
)
def test_every_verb_refuses_the_way_out(studies, verb):
    trial = ["0"] if verb == "show" else []
    done = cli_here(verb, "../outside", *trial, "--root", studies)
    assert done.returncode == 2
    assert "'../outside' is no name of a study" in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("trial", ["99", "99999999999999999999", "../0", "0/../1", "0x1"])
def test_a_trial_is_a_number_that_the_journal_knows(studies, trial):
    done = cli_here("show", "composed", trial, "--root", studies)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_a_lock_that_is_a_link_empties_no_other_file(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(tmp_path / "lock", holder="study 'x'")
    assert precious.read_text() == "keep me"


def with_right_sums(path, value, end="\n"):
    """Add a record to a log, or put a document, whose checksum is right and which holds a value."""
    if path.suffix != ".jsonl":
        body = f'{{"x": {value}}}'
        path.write_text(f'{body[:-1]}, "crc": "{zlib.crc32(body.encode()):08x}"}}')
        return
    seq = len(path.read_text().splitlines())
    body = f'{{"seq":{seq},"event":"study_spent","kind":"broken","x":{value}}}'
    crc = f',"crc":"{zlib.crc32(body.encode()):08x}"}}'
    path.write_text(f"{path.read_text()}{body[:-1]}{crc}{end}")


DEEP = "[" * 100_000 + "]" * 100_000
LONG = "1" * 6000


@pytest.fixture
def soon():
    signal.alarm(40)
    yield
    signal.alarm(0)


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(("value", "end"), [(DEEP, "\n"), (LONG, "\n"), (DEEP, ""), (LONG, "")])
@pytest.mark.parametrize("file", ["journal.jsonl", "ledger/study.jsonl", "ledger/trial-0000.jsonl"])
def test_a_log_with_a_value_that_cannot_be_read_is_damaged(studies, file, value, end):
    path = studies / "composed" / file
    with_right_sums(path, value, end)
    before = path.read_bytes()
    done = cli_here("status", "composed", "--root", studies)
    assert done.returncode == 1
    assert f"{file}:{before.count(b'crc')}: record damaged" in done.stderr.replace("\n    ", " ")
    with pytest.raises(LedgerError, match="damaged"):  # it is no torn tail that may be cut off
        DurableLog(path)
    assert path.read_bytes() == before


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("value", [DEEP, LONG])
@pytest.mark.parametrize("file", ["trials/0000/trial.json", "tracking.json"])
def test_a_document_with_such_a_value_is_damaged(studies, file, value):
    path = studies / "composed" / file
    with_right_sums(path, value)
    for verb in ("status", "best", "report"):
        assert cli_here(verb, "composed", "--root", studies).returncode == 0
    assert TrackingState.is_damaged(path)
    with pytest.raises(StudyError, match="is damaged"):
        read_task(path)


@pytest.mark.sampled(51)
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize(
    "file",
    [
        "spec.yaml", "journal.jsonl", "tracking.json", "lock", "ledger/study.jsonl",
        "ledger/trial-0000.jsonl", "trials/0000/trial.json", "trials/0000/best.json",
        "confusion.json",
    ],
)  # fmt: skip
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(studies, tmp_path, file, kind):
    path = studies / "composed" / file
    path.unlink(missing_ok=True)
    kind(path)
    page = ("report", "--html", tmp_path / "page.html")
    for verb in (("status",), ("show", "0"), ("report",), page):
        done = cli_here(verb[0], "composed", *verb[1:], "--root", studies)
        assert done.returncode in (0, 1, 2)
        assert "Traceback" not in done.stderr
    done = cli_here("list", studies, "-f", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["where"] == str(studies / "composed")


NAMED = {"part": "test", "names": ["a"], "counts": [[1]]}
NO_MATRICES = [
    {}, {"names": 3, "counts": [[1]]}, {"names": ["a"], "counts": [["x"]]},
    {**NAMED, "counts": 3}, {**NAMED, "counts": [3]}, {**NAMED, "counts": [[{}]]},
    {**NAMED, "names": [[]]}, {**NAMED, "names": {"a": 1}}, {**NAMED, "part": ["test"]},
    {**NAMED, "counts": [[-1]]}, {**NAMED, "counts": [[1e999]]}, {**NAMED, "names": ["a"] * 51},
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("forged", NO_MATRICES)
def test_a_confusion_matrix_that_is_none_is_not_drawn(studies, tmp_path, forged):
    result, page = load_sweep("composed", root=studies), tmp_path / "page.html"
    best = result.best().trial_id
    result.files.confusion.write_text(json.dumps({"trial": best} | forged))
    assert confusion(result) is None
    if not forged:  # the command, once
        done = cli_here("report", "composed", "--root", studies, "--html", page)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    result.files.confusion.write_text(json.dumps({"trial": best} | NAMED))
    assert confusion(result) is not None


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_a_spec_with_aliases_is_none_that_a_study_keeps(studies):
    path = studies / "composed" / "spec.yaml"
    row = "x{}: &x{} [{}]\n"
    bomb = row.format(0, 0, ",".join("a" * 10))
    bomb += "".join(row.format(i, i, ",".join([f"*x{i - 1}"] * 10)) for i in range(1, 9))
    path.write_text(path.read_text().replace("name: composed\n", f"{bomb}name: *x8\n", 1))
    assert "damaged" in cli_here("status", "composed", "--root", studies).stderr
    (row,) = json.loads(cli_here("list", studies, "-f", "json").stdout)
    assert row["state"] == "damaged"
    path.write_text(f"name: {DEEP}")
    assert "damaged" in cli_here("status", "composed", "--root", studies).stderr
    path.write_text(f"name: {['a' * 60] * 1000}")
    assert len(cli_here("status", "composed", "--root", studies).stderr) < 500


HEX = "0x" + "f" * 5000  # of more digits than Python writes
NO_SPECS = [
    "x: !!timestamp foo", "x: !!bool foo", "x: !!int ''", "x: !!float ''", "x: ! foo",
    "x: !!set {a}", f"x: {HEX}", f"x: 1{':59' * 5000}", f"x: 1{':59' * 5000}.0", f"{HEX}: 1",
    "x: 9999-99-99", "x: &a 1\ny: *a",
]  # fmt: skip
NO_NAMES = ["1", "null", "2001-01-01", "true", "[composed]", "{a: 1}", HEX, f"[{HEX}]"]


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("old", "new"),
    [("", f"{line}\n") for line in NO_SPECS]
    + [("name: composed\n", f"name: {name}\n") for name in NO_NAMES],
)
def test_a_forged_spec_is_damaged_and_hides_no_other_study(studies, old, new):
    shutil.copytree(studies / "composed", studies / "other")
    spec = studies / "other" / "spec.yaml"
    spec.write_text(spec.read_text().replace("name: composed", "name: other", 1))
    path = studies / "composed" / "spec.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
    done = cli_here("list", studies, "-f", "json")
    rows = {row["study"]: row for row in json.loads(done.stdout)}
    assert rows["composed"]["state"] == "damaged"
    assert "is not the spec that was written there" in rows["composed"]["problem"]
    assert rows["other"]["state"] == "finished"
    done = cli_here("status", "composed", "--root", studies)
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert len(done.stderr) < 500
    assert feature_stores(studies)
    raw = read_document(spec).value
    raw["privacy"].pop("delta", None)
    forged = SweepSpec(**raw | {"name": "composed", "storage": {"path": str(studies)}})
    assert with_launched_delta(forged) == forged


@pytest.mark.parametrize("folder", ["3", "[a]", "true", "2001-01-01"])
def test_a_folder_of_features_that_is_none_is_not_looked_at(studies, folder):
    path = studies / "composed" / "spec.yaml"
    path.write_text(f"storage: {{features: {folder}}}\n")
    assert len(feature_stores(studies)) == 1


def test_a_key_that_an_event_lacks_is_told_wherever_it_was_looked_for(studies, monkeypatch):
    def lacking(path):
        raise KeyError("x")

    monkeypatch.setattr(StudyFiles, "at", lacking)
    (row,) = overview(studies)
    assert row["problem"] == f"{studies / 'composed'}: an event has no 'x'"


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def plant(directory, content, file="last-000024.ckpt"):
    """Put content into a checkpoint, with a pointer whose sums are right."""
    pointer = directory / "last.json"
    meta = json.loads(pointer.read_text())
    meta.pop("crc", None)
    (directory / file).write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    pointer.write_bytes(checked_json({**meta, "file": file, "sha256": sha256}))


def test_code_in_a_checkpoint_is_not_run(studies, tmp_path):
    directory, mark = studies / "composed" / "trials" / "0000", tmp_path / "ran"
    plain = tmp_path / "state.pt"
    torch.save({"model": Evil(mark)}, plain)
    for content in (pickle.dumps(Evil(mark)), plain.read_bytes(), b"", b"PK\x03\x04"):
        plant(directory, content)
        with pytest.raises(CheckpointError, match="holds no tensors that may be loaded"):
            CheckpointStore(directory).load("last")
        assert not mark.exists()


def test_a_checkpoint_outside_of_its_folder_is_not_opened(studies, tmp_path):
    directory = studies / "composed" / "trials" / "0000"
    content = (directory / "last-000024.ckpt").read_bytes()
    for file in ("../0001/mine.ckpt", str(tmp_path / "mine.ckpt")):
        plant(directory, content, file)
        with pytest.raises(CheckpointError, match="is no file beside it"):
            CheckpointStore(directory).load("last")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_storage_path_of_another_user_is_refused():
    spec = ROOT / "tests/examples/digits.yaml"
    done = cli_here("validate", spec, "--set", "storage.path=/root/x")
    assert done.returncode == 2
    assert "storage.path" in done.stderr
