import errno
import fcntl
import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from other_user import without_rights

from dpsweep.foundation import durable, records
from dpsweep.foundation.durable import DurableLog, write_atomically
from dpsweep.foundation.errors import LedgerError, StorageError, StudyError
from dpsweep.foundation.locks import FileLock, is_locked
from dpsweep.foundation.logs import LogReader, begins_as_log, read_log


def test_records_come_back_in_order(tmp_path):
    path = tmp_path / "deep" / "log.jsonl"
    with DurableLog(path) as log:
        log.append({"a": 1})
        log.append({"b": 'quote " and , comma'})
    with DurableLog(path) as log:
        assert log.append({"c": None})["seq"] == 2
    assert [r["seq"] for r in read_log(path)] == [0, 1, 2]
    assert read_log(path)[1]["b"] == 'quote " and , comma'


@pytest.mark.parametrize("cut", range(2, 30))
def test_a_torn_tail_is_an_append_that_never_happened(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    with DurableLog(path) as log:
        log.append({"kept": True})
        log.append({"torn": "x" * 40})
    os.truncate(path, path.stat().st_size - cut)
    assert [r.get("kept") for r in read_log(path)] == [True]
    with DurableLog(path) as log:
        log.append({"after": 1})
    assert [list(r)[1] for r in read_log(path)] == ["kept", "after"]


@pytest.mark.parametrize("behind", [b"", b"\0\0"])
def test_a_record_that_lacks_its_newline_alone_stays(tmp_path, behind):
    """Editors and copies take it away; what is charged must not be forgotten with it."""
    path = tmp_path / "log.jsonl"
    with DurableLog(path) as log:
        log.append({"a": 1})
        log.append({"charged": 2})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + behind)
    assert [list(r)[1] for r in read_log(path)] == ["a", "charged"]
    DurableLog(path).close()
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-1] + behind)
    with DurableLog(path) as log:
        log.append({"after": 1})
    assert [list(r)[1] for r in read_log(path)] == ["a", "charged", "after"]


def test_a_whole_record_out_of_order_is_no_last_one(tmp_path):
    path = tmp_path / "log.jsonl"
    with DurableLog(path) as log:
        log.append({"a": 1})
        log.append({"b": 2})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[0].rstrip())
    with pytest.raises(LedgerError, match="its last line is no record"):
        read_log(path)


@pytest.mark.parametrize("content", [b"not weights", b"x", b'{"seq": 0, "a": 1}', b"PK\x03\x04"])
@pytest.mark.parametrize("records", [0, 2])
def test_a_file_of_somebody_else_is_refused_and_kept(tmp_path, content, records):
    """A line without an end is an unfinished record only where it begins as one."""
    path = tmp_path / "notes.txt"
    with DurableLog(path) as log:
        for number in range(records):
            log.append({"a": number})
    whole = path.read_bytes() + content
    path.write_bytes(whole)
    with pytest.raises(LedgerError, match=r"notes.txt: its last line is no record"):
        read_log(path)
    with pytest.raises(LedgerError, match=r"notes.txt: its last line is no record"):
        DurableLog(path)
    assert path.read_bytes() == whole


def test_zeros_of_an_append_that_was_never_written_are_dropped(tmp_path):
    path = tmp_path / "log.jsonl"
    with DurableLog(path) as log:
        log.append({"a": 1})
    path.write_bytes(path.read_bytes() + b'{"se\0\0\0')
    with DurableLog(path) as log:
        assert [record["a"] for record in log.records] == [1]


def test_a_full_disk_is_no_damage(tmp_path, monkeypatch):
    """A line that is cut off is taken back; as damage it would cost the study its claim."""
    path = tmp_path / "log.jsonl"
    write = os.write
    with DurableLog(path) as log:
        log.append({"kept": True})
        monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:7]))
        with pytest.raises(StorageError, match=f"cannot write {path}: No space left"):
            log.append({"lost": True})
        monkeypatch.undo()
        assert log.append({"after": 1})["seq"] == 1
    assert [list(r)[1] for r in read_log(path)] == ["kept", "after"]


@pytest.mark.parametrize("damage", ["flip", "drop", "swap"])
def test_damaged_history_is_refused(tmp_path, damage):
    path = tmp_path / "log.jsonl"
    with DurableLog(path) as log:
        for number in range(3):
            log.append({"value": number})
    lines = path.read_text().splitlines(keepends=True)
    if damage == "flip":
        lines[1] = lines[1].replace('"value":1', '"value":0')
    elif damage == "drop":
        del lines[0]
    else:
        lines[0], lines[1] = lines[1], lines[0]
    path.write_text("".join(lines))
    with pytest.raises(LedgerError, match="cannot be trusted"):
        read_log(path)
    with pytest.raises(LedgerError, match="cannot be trusted"):
        DurableLog(path)


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "log.jsonl"
    with DurableLog(path):
        with pytest.raises(LedgerError, match="written by another process"):
            DurableLog(path)
        assert read_log(path) == []
    DurableLog(path).close()


@pytest.fixture
def calls(monkeypatch):
    """What is written, synced and renamed, in order: (operation, inode or name)."""
    seen = []

    def watched(name, what):
        real = getattr(os, name)

        def call(first, *rest, **more):
            seen.append((name, what(first, *rest)))
            return real(first, *rest, **more)

        monkeypatch.setattr(durable.os, name, call)

    watched("write", lambda file, *rest: os.fstat(file).st_ino)
    watched("fsync", lambda file: os.fstat(file).st_ino)
    watched("replace", lambda old, new: os.stat(old).st_ino)
    return seen


def test_a_record_is_on_disk_before_append_returns(tmp_path, calls):
    with DurableLog(tmp_path / "log.jsonl") as log:
        file = (tmp_path / "log.jsonl").stat().st_ino
        for number in range(3):
            calls.clear()
            log.append({"number": number})
            assert calls == [("write", file), ("fsync", file)]


def test_a_record_that_cannot_be_synced_is_not_taken_for_written(tmp_path, monkeypatch):
    def fails(file):
        raise OSError(errno.EIO, "no disk")

    with DurableLog(tmp_path / "log.jsonl") as log:
        monkeypatch.setattr(durable.os, "fsync", fails)
        with pytest.raises(Exception, match="no disk"):
            log.append({"charge": 1})
        assert log.records == []


def test_a_new_log_and_its_directories_have_entries_on_disk(tmp_path, calls):
    with DurableLog(tmp_path / "deep" / "er" / "log.jsonl"):
        synced = {inode for name, inode in calls if name == "fsync"}
    wanted = (tmp_path, tmp_path / "deep", tmp_path / "deep" / "er")
    assert {path.stat().st_ino for path in wanted} <= synced


def test_an_atomic_write_syncs_the_file_then_renames_it_then_syncs_its_directory(tmp_path, calls):
    write_atomically(tmp_path / "file", b"new")
    file, directory = (tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino
    assert calls == [("fsync", file), ("replace", file), ("fsync", directory)]


def test_infinity_is_no_json(tmp_path):
    with DurableLog(tmp_path / "log.jsonl") as log, pytest.raises(ValueError, match="JSON"):
        log.append({"x": float("inf")})


def _append_until_killed(path, ready):
    with DurableLog(path) as log:
        number = 0
        while True:
            log.append({"number": number, "fill": "y" * 500})
            number += 1
            if number == 20:
                ready.set()


def test_kill_9_leaves_a_log_that_opens(tmp_path):
    path = tmp_path / "log.jsonl"
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    writer = context.Process(target=_append_until_killed, args=(path, ready))
    writer.start()
    assert ready.wait(60)
    writer.kill()
    writer.join()
    with DurableLog(path) as log:
        numbers = [record["number"] for record in log.records]
    assert len(numbers) >= 20
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("is_made_meanwhile", [False, True])
def test_a_log_of_another_user_in_a_sticky_directory_is_opened(
    tmp_path, monkeypatch, is_made_meanwhile
):
    """There the kernel may refuse ``O_CREAT`` of it (``fs.protected_regular``)."""
    path, opened = tmp_path / "log.jsonl", os.open

    def protected(name, flags, *mode, **options):
        if Path(name) == path and flags & os.O_CREAT:
            os.close(opened(name, flags, *mode))
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(name, flags, *mode, **options)

    if not is_made_meanwhile:
        path.touch()
    monkeypatch.setattr(os, "open", protected)
    with DurableLog(path) as log:
        log.append({"a": 1})
    assert [record["a"] for record in read_log(path)] == [1]


def test_a_log_that_cannot_be_made_is_refused_for_that_reason():
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        with without_rights(), pytest.raises(StorageError, match="Permission denied"):
            DurableLog(folder / "log.jsonl")
    finally:
        shutil.rmtree(folder)


def test_atomic_write_replaces_whole(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600  # data.sha256 and private reports rely on it
    assert list(tmp_path.iterdir()) == [path]


def test_of_a_folder_that_is_gone_nothing_is_called_safe(tmp_path):
    with pytest.raises(StorageError, match="No such file or directory") as caught:
        write_atomically(tmp_path / "gone" / "file", b"content", makes_folder=False)
    assert not (tmp_path / "gone").exists()
    assert "put its folder back" in caught.value.fix
    assert "safe" not in str(caught.value)


def test_file_lock_names_its_holder(tmp_path):
    lock = FileLock(tmp_path / "lock", holder="study 'x'")
    with pytest.raises(
        StudyError,
        match=f"study 'x' is already running .process {os.getpid()} on {socket.gethostname()}",
    ):
        FileLock(tmp_path / "lock", holder="study 'x'")
    assert is_locked(tmp_path / "lock")
    lock.release()
    assert not is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "nothing")
    FileLock(tmp_path / "lock", holder="study 'x'").release()


def test_a_lock_is_nobody_elses_to_hold(tmp_path):
    before = os.umask(0)
    try:
        FileLock(tmp_path / "lock", holder="study 'x'").release()
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_a_process_that_has_ended_holds_no_lock(tmp_path):
    path = tmp_path / "lock"
    gone = subprocess.Popen(["true"])
    gone.wait()
    path.write_text(f"{gone.pid} {socket.gethostname()}\n")
    handle = os.open(path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(StudyError, match="held by another process") as caught:
        FileLock(path, holder="study 'x'")
    assert f"process {gone.pid}, which ran it last, is not seen from here" in caught.value.because
    path.write_text(f"{gone.pid} elsewhere\n")
    with pytest.raises(StudyError, match=f"is already running .process {gone.pid} on elsewhere"):
        FileLock(path, holder="study 'x'")
    os.close(handle)


def test_a_lock_that_is_closed_to_this_user_is_asked_of_the_kernel():
    path = Path(tempfile.mkdtemp()) / "lock"
    try:
        path.parent.chmod(0o755)
        lock = FileLock(path, holder="study 'x'")
        with without_rights():
            assert is_locked(path)
        lock.release()
        with without_rights():
            assert not is_locked(path)
    finally:
        shutil.rmtree(path.parent)


@pytest.mark.parametrize("opened", [DurableLog, lambda path: FileLock(path, holder="it")])
def test_whoever_asks_about_a_lock_keeps_nobody_from_it(tmp_path, opened):
    """Asking takes the lock for a moment, as ``dpsweep status`` does."""
    path = tmp_path / "file"
    path.touch()
    handle = os.open(path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    asked = threading.Timer(0.05, os.close, args=(handle,))
    asked.start()
    opened(path)
    asked.join()


def test_what_cannot_be_opened_is_told_where_it_is_read(tmp_path):
    assert begins_as_log(tmp_path)  # a directory: to open it fails, for root as well
    other = tmp_path / "other"
    other.write_text("no log")
    assert not begins_as_log(other)
    other.write_text("")
    assert begins_as_log(other)


def test_a_reader_decodes_only_what_is_new(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    decoded = []
    decode = records._decode
    monkeypatch.setattr(records, "_decode", lambda line: decoded.append(line) or decode(line))
    reader = LogReader(path)
    assert reader.read() == []
    with DurableLog(path) as log:
        for number in range(20):
            log.append({"trial": number})
            decoded.clear()
            assert [record["trial"] for record in reader.read()] == [*range(number + 1)]
            assert len(decoded) == 1
    assert reader.read() == read_log(path)


@pytest.mark.parametrize("damage", ["a byte", "a record less", "another log", "removed"])
def test_a_reader_sees_what_happens_to_what_it_has_read(tmp_path, damage):
    path = tmp_path / "log.jsonl"
    with DurableLog(path) as log:
        for number in range(5):
            log.append({"trial": number})
    reader = LogReader(path)
    assert len(reader.read()) == 5
    raw = path.read_bytes()
    if damage == "a byte":  # as many bytes as before, and the time of change put back
        times = path.stat()
        path.write_bytes(raw.replace(b'"trial":1', b'"trial":7'))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        for read in (reader.read, reader.read, lambda: read_log(path)):
            with pytest.raises(LedgerError, match=r":2: record damaged"):
                read()
        path.write_bytes(raw)
        assert len(reader.read()) == 5
        return
    if damage == "a record less":
        path.write_bytes(raw[: raw.rindex(b'{"seq":4')])
    if damage == "another log":
        path.unlink()
        with DurableLog(path) as log:
            for number in range(7):
                log.append({"trial": 10 + number})
    if damage == "removed":
        path.unlink()
    assert reader.read() == read_log(path)
    assert len(reader.read()) == {"a record less": 4, "another log": 7, "removed": 0}[damage]


def test_a_reader_takes_a_last_record_without_its_newline_once(tmp_path):
    path = tmp_path / "log.jsonl"
    with DurableLog(path) as log:
        log.append({"a": 1})
        log.append({"b": 2})
    whole = path.read_bytes()
    reader = LogReader(path)
    for raw in (whole[:-1], whole[:-9], whole, whole[:-1], whole):
        path.write_bytes(raw)
        assert reader.read() == read_log(path)
