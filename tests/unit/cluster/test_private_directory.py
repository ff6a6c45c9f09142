"""The directory of a Ray that keeps secrets: closed to others, and gone after a kill at any point."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpsweep.cli.doctor import _left_behind
from dpsweep.cluster import private_directory as module
from dpsweep.cluster.private_directory import (
    place,
    private_directory,
    refuse_open,
    remove_left_behind,
)
from dpsweep.foundation.errors import ResourceError

LONG_AGO = 1_600_000_000


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "place", lambda: tmp_path)
    return tmp_path


def mode(path):
    return path.stat().st_mode & 0o777


def run_and_die(root, body):
    """Run a program on a private directory, which kills itself, and return its directory."""
    code = f"""
        import os, shutil, signal
        from pathlib import Path
        from dpsweep.cluster import private_directory as module
        module.place = lambda: Path({str(root)!r})

        def die(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)

        {body}
        with module.private_directory() as path:
            (path / "ray").mkdir(mode=0o777)
            (path / "ray" / "scores").write_text("0.75")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    (path,) = root.iterdir()
    return path


def test_nobody_else_can_enter_it_whatever_is_opened_inside(root):
    before = os.umask(0)
    try:
        with private_directory() as path:
            inside = path / "ray"
            inside.mkdir()
            inside.chmod(0o777)
            assert path.parent == root
            assert mode(path) == 0o700
            refuse_open(path)
            (inside / "scores").write_text("0.75")
    finally:
        os.umask(before)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("bits", [0o777, 0o711, 0o750])
def test_one_that_was_opened_is_refused(bits):
    with private_directory() as path:
        path.chmod(bits)
        with pytest.raises(ResourceError, match="not closed to other users") as error:
            refuse_open(path)
        assert f"{bits:o}" in error.value.because


def test_so_is_one_of_another_user(monkeypatch):
    with private_directory() as path, monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
        with pytest.raises(ResourceError, match="not closed"):
            refuse_open(path)


def test_it_may_be_gone_before_its_end():
    with private_directory() as path:
        shutil.rmtree(path)
    assert not path.exists()


def test_that_of_a_living_process_stays():
    with private_directory() as path:
        (path / "ray").mkdir()
        assert remove_left_behind() == []
        assert (path / "ray").is_dir()


@pytest.mark.parametrize(
    "body",
    [
        "module.shutil.rmtree = die",  # as it is removed, and before
        "module._is_in_use = die",
        "os.rmdir = die; Path.rmdir = die",  # when all that was in it is gone
        "module.os.rename = die",  # when it was just made
        "module.FileLock = die",
    ],
)
def test_what_a_kill_leaves_is_closed_and_found(root, body):
    path = run_and_die(root, body)
    assert mode(path) == 0o700
    if not (path / "lock").exists():
        assert {entry.name for entry in path.iterdir()} <= {"starting"}
        assert remove_left_behind() == []
        assert path.exists()  # perhaps another process is making it
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert remove_left_behind() == []
    assert not path.exists()


def test_what_a_process_still_uses_is_emptied_and_goes_after_its_end(root):
    path = run_and_die(root, "module.shutil.rmtree = die")
    with (path / "ray" / "log").open("w") as log:
        other = subprocess.Popen(["sleep", "60"], stdout=log)
    try:
        assert remove_left_behind() == [path]
        assert {entry.name for entry in path.iterdir()} == {"lock"}
        row = _left_behind()
        assert (row["status"], row["detail"]) == ("note", f"private ones in use: {path}")
        (path / "ray" / "session").mkdir(parents=True)  # it makes its folder again
        assert mode(path) == 0o700
    finally:
        other.kill()
        other.wait()
    assert _left_behind()["status"] == "ok"
    assert not path.exists()


def test_it_is_waited_for_where_that_was_asked_for(root):
    path = run_and_die(root, "module.shutil.rmtree = die")
    with (path / "ray" / "log").open("w") as log:
        other = subprocess.Popen(["sleep", "1"], stdout=log)
    try:
        assert remove_left_behind(patience_s=0.2) == [path]
        began = time.monotonic()
        other.wait()
        assert remove_left_behind(patience_s=30) == []
        assert time.monotonic() - began < 20
    finally:
        other.kill()
        other.wait()
    assert not path.exists()


def of_an_earlier_version(root):
    """Make what versions before left, all of it Ray's and open to everybody."""
    path = root / "dpsweep-abc_1234"
    session = path / "session_2026-11-23_08-08-00_000001_4711"
    session.mkdir(parents=True)
    (session / "experiment_state.json").write_text("0.75")
    (path / "session_latest").symlink_to(session)
    path.chmod(0o777)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_what_an_earlier_version_left_is_removed(root):
    path = of_an_earlier_version(root)
    assert remove_left_behind() == []
    assert not path.exists()


def test_unless_it_is_new_or_in_use(root):
    path = of_an_earlier_version(root)
    os.utime(path)
    remove_left_behind()
    assert (path / "session_latest" / "experiment_state.json").exists()
    os.utime(path, (LONG_AGO, LONG_AGO))
    other = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        other.stdout.readline()  # its command line can be read a moment after it was started
        remove_left_behind()
        assert (path / "session_latest" / "experiment_state.json").exists()
    finally:
        other.kill()
        other.communicate()
    remove_left_behind()
    assert not path.exists()


def test_nothing_of_anybody_else_is_touched(root, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "lock").write_text("")
    (elsewhere / "thesis").write_text("dear")
    (root / "dpsweep-abcdefgh").symlink_to(elsewhere)
    for name in ("dpsweep-results", "dpsweep-ijklmnop"):  # made by hand
        (root / name).mkdir()
        (root / name / "table.csv").write_text("dear")
        os.utime(root / name, (LONG_AGO, LONG_AGO))
    foreign = of_an_earlier_version(root)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: foreign.stat().st_uid + 1)
        assert remove_left_behind() == []
    assert foreign.is_dir()
    assert mode(foreign) == 0o777
    remove_left_behind()
    assert not foreign.exists()
    assert (elsewhere / "thesis").read_text() == "dear"
    assert (root / "dpsweep-results" / "table.csv").exists()
    assert (root / "dpsweep-ijklmnop" / "table.csv").exists()


def test_a_link_inside_is_not_followed(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "thesis").write_text("dear")
    path = run_and_die(root, "module.shutil.rmtree = die")
    (path / "outside").symlink_to(elsewhere)
    (path / "ray" / "outside").symlink_to(elsewhere)
    assert remove_left_behind() == []
    assert not path.exists()
    assert (elsewhere / "thesis").read_text() == "dear"


def test_it_lies_where_ray_is_told_to_write(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert place() == tmp_path
    monkeypatch.setenv("RAY_TMPDIR", "")
    assert str(place()) == "/tmp"


@pytest.fixture
def shared(monkeypatch):
    """Return a path whose directories have modes and owners of their own, as a test says."""
    entries = {}
    of_path = Path.stat

    def stat_of(path, **options):
        if path not in entries:
            return of_path(path, **options)
        mode, owner = entries[path]
        return SimpleNamespace(st_mode=stat.S_IFDIR | mode, st_uid=owner)

    monkeypatch.setattr(Path, "stat", stat_of)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(module, "_uid_of_unmapped", lambda: None)

    def refuse(*modes_and_owners):
        entries.clear()
        path = Path("/")
        for number, each in enumerate(modes_and_owners):
            path = path / f"d{number}" if number else path
            entries[path] = each
        module._refuse_movable(path)

    return refuse


ROOT_DIR = (0o755, 0)


@pytest.mark.parametrize(
    "directories",
    [
        [ROOT_DIR, (0o1777, 0)],  # /tmp
        [ROOT_DIR, ROOT_DIR, (0o700, 1000)],  # a home
        [ROOT_DIR, ROOT_DIR, (0o755, 1000), (0o755, 1000)],
        [ROOT_DIR, (0o1777, 0), (0o700, 1000)],  # pytest's
        [ROOT_DIR, (0o1777, 0), (0o755, 1000)],  # /scratch/me
        [ROOT_DIR, (0o3775, 0), (0o2755, 1000)],
        [ROOT_DIR, (0o700, 1000), (0o775, 1000)],  # nobody else gets there
        [ROOT_DIR, (0o700, 1000), (0o777, 1001)],
    ],
)
def test_it_lies_where_nobody_can_move_it(shared, directories):
    shared(*directories)


@pytest.mark.parametrize(
    ("directories", "at_fault"),
    [
        ([ROOT_DIR, (0o777, 0)], "/d1 (mode 777, owner 0)"),
        ([ROOT_DIR, (0o1777, 0), (0o777, 1000)], "/d1/d2 (mode 777, owner 1000)"),
        ([ROOT_DIR, (0o2775, 1000)], "/d1 (mode 2775, owner 1000)"),
        ([ROOT_DIR, (0o2770, 1000)], "/d1 (mode 2770, owner 1000)"),
        ([ROOT_DIR, (0o702, 1000)], "/d1 (mode 702, owner 1000)"),
        ([ROOT_DIR, (0o777, 0), (0o755, 1000)], "/d1 (mode 777, owner 0)"),  # above it
        ([ROOT_DIR, (0o777, 0), (0o700, 1000)], "/d1 (mode 777, owner 0)"),
        ([ROOT_DIR, (0o1777, 1001), (0o755, 1000)], "/d1 (mode 1777, owner 1001)"),
        ([ROOT_DIR, (0o755, 1001), (0o755, 1000)], "/d1 (mode 755, owner 1001)"),
        ([ROOT_DIR, (0o700, 0), (0o777, 0)], "/d1/d2 (mode 777, owner 0)"),
        ([(0o755, 65534), (0o1777, 65534)], "/ (mode 755, owner 65534)"),
    ],
)
def test_where_somebody_could_move_it_is_refused(shared, monkeypatch, directories, at_fault):
    monkeypatch.setenv("RAY_TMPDIR", "/wherever")
    with pytest.raises(ResourceError, match="not safe from other users") as error:
        shared(*directories)
    assert at_fault in error.value.because
    assert "unset RAY_TMPDIR" in error.value.fix
    monkeypatch.delenv("RAY_TMPDIR")
    with pytest.raises(ResourceError) as error:
        shared(*directories)
    assert "set RAY_TMPDIR to" in error.value.fix
    assert "unset" not in error.value.fix


def test_a_container_that_does_not_map_root_has_its_directories(shared, monkeypatch):
    monkeypatch.setattr(module, "_uid_of_unmapped", lambda: 65534)
    shared((0o755, 65534), (0o1777, 65534))
    with pytest.raises(ResourceError):
        shared((0o755, 65534), (0o777, 65534))


@pytest.mark.parametrize(
    ("ids", "unmapped"),
    [
        (f"0 0 {2**32 - 1}\n", None),  # a machine, or Docker
        ("1000 1000 1\n", 65534),  # Apptainer
        ("0 1000 1\n1 100000 65533\n", 65534),
        ("0 100000 65536\n", None),  # nobody is a user here
        ("0 1000 1\n1 100000 65536\n", None),  # Podman
        ("0 1000 1\n65534 100000 1\n", None),
        ("", None),
        ("damaged", None),
    ],
)
def test_the_owner_of_what_is_not_mapped_is_no_user_of_this_namespace(monkeypatch, ids, unmapped):
    texts = {"/proc/self/uid_map": ids, "/proc/sys/kernel/overflowuid": "65534\n"}
    monkeypatch.setattr(Path, "read_text", lambda path: texts[str(path)])
    assert module._uid_of_unmapped() == unmapped


def test_none_is_made_where_somebody_could_move_it(root, monkeypatch):
    inner = root / "inner"
    inner.mkdir()
    root.chmod(0o777)
    monkeypatch.setattr(module, "place", lambda: inner)
    # pytest's folder above is closed to others; the walk begins below it here.
    monkeypatch.setattr(Path, "parents", property(lambda path: [path.parent]))
    with pytest.raises(ResourceError, match="not safe"), private_directory():
        pass
    assert list(inner.iterdir()) == []


def test_the_real_one_passes_here(monkeypatch):
    monkeypatch.undo()
    with private_directory() as path:
        refuse_open(path)


def test_links_on_the_way_are_resolved(tmp_path, monkeypatch):
    monkeypatch.undo()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "link"))
    assert place() == tmp_path / "real"


def test_a_set_group_id_bit_opens_nothing():
    with private_directory() as path:
        path.chmod(0o2700)
        refuse_open(path)
