"""Contents that take long to make, made once and kept whole."""

import os
import socket
from pathlib import Path

import pytest

from dpsweep.foundation.kept import keep_compiled, kept


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Return how to ask for a content, where it is kept, and the makings, in an empty cache."""
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "cache"))
    makings = []

    def make() -> bytes:
        makings.append(1)
        return b"one\n\xfftwo"

    return lambda: kept("kind", "1.2.bin", make), tmp_path / "cache" / "kind" / "1.2.bin", makings


def test_it_is_made_once_and_nobody_else_may_read_its_place(asked) -> None:
    ask, path, makings = asked
    assert [ask(), ask()] == [b"one\n\xfftwo"] * 2
    assert len(makings) == 1
    assert path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["cut", "edited", "emptied", "other content, old digest"])
def test_what_is_not_whole_is_made_again(asked, damage: str) -> None:
    ask, path, makings = asked
    ask()
    digest, _, content = path.read_bytes().partition(b"\n")
    path.write_bytes({
        "cut": path.read_bytes()[:-3],
        "edited": path.read_bytes().replace(b"one", b"0ne"),
        "emptied": b"",
        "other content, old digest": digest + b"\n" + content + b";",
    }[damage])  # fmt: skip
    assert ask() == b"one\n\xfftwo"
    assert len(makings) == 2
    assert path.read_bytes() == digest + b"\n" + content


def test_a_place_of_others_is_not_used(asked) -> None:
    ask, path, makings = asked
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o777)
    assert [ask(), ask()] == [b"one\n\xfftwo"] * 2
    assert len(makings) == 2
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_place_that_cannot_be_written_is_no_reason_to_fail(asked) -> None:
    ask, path, makings = asked
    path.parent.mkdir(parents=True, mode=0o700)
    path.parent.chmod(0o500)
    assert ask() == b"one\n\xfftwo"
    assert len(makings) == 1
    assert not Path(path).exists()


@pytest.mark.parametrize("named", ["", "/somewhere"])
def test_torchs_compiler_has_a_private_place_unless_one_is_named(tmp_path, monkeypatch, named):
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", named)
    monkeypatch.setattr(socket, "gethostname", lambda: "../node-7.cluster")
    keep_compiled()
    place = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    assert place == (named or str(tmp_path / "cache" / "torch-.._node-7.cluster"))
    if not named:
        assert Path(place).stat().st_mode & 0o077 == 0


def test_machines_that_share_a_home_share_nothing_that_is_compiled(tmp_path, monkeypatch):
    """What one has made for its CPU may be an illegal instruction on another."""
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "cache"))
    places = set()
    for host in ("old-node", "new-node"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        keep_compiled()
        places.add(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert len(places) == 2


def test_without_a_private_place_it_has_its_own(tmp_path, monkeypatch):
    place = tmp_path / "cache" / "torch-here"
    place.mkdir(parents=True)
    place.chmod(0o755)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    keep_compiled()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
