import errno
import multiprocessing
import os

import pytest

from dpsweep.durable import DurableLog, FileLock, is_locked, read_log, write_atomically
from dpsweep.errors import LedgerError, StudyError


def test_records_come_back_in_order(tmp_path):
    path = tmp_path / "deep" / "log.jsonl"
    with DurableLog(path) as log:
        log.append({"a": 1})
        log.append({"b": 'quote " and , comma'})
    with DurableLog(path) as log:
        assert log.append({"c": None})["seq"] == 2
    assert [r["seq"] for r in read_log(path)] == [0, 1, 2]
    assert read_log(path)[1]["b"] == 'quote " and , comma'


@pytest.mark.parametrize("cut", range(1, 30))
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


def test_a_full_disk_is_no_damage(tmp_path, monkeypatch):
    """A line that is cut off is taken back; as damage it would cost the study its claim."""
    path = tmp_path / "log.jsonl"
    write = os.write
    with DurableLog(path) as log:
        log.append({"kept": True})
        monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:7]))
        with pytest.raises(OSError, match="disk full") as caught:
            log.append({"lost": True})
        assert caught.value.errno == errno.ENOSPC
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


def test_atomic_write_replaces_whole(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_file_lock_names_its_holder(tmp_path):
    lock = FileLock(tmp_path / "lock", holder="study 'x'")
    with pytest.raises(StudyError, match=f"study 'x' is already running .process {os.getpid()}"):
        FileLock(tmp_path / "lock", holder="study 'x'")
    assert is_locked(tmp_path / "lock")
    lock.release()
    assert not is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "nothing")
    FileLock(tmp_path / "lock", holder="study 'x'").release()
