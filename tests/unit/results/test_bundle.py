"""The JavaScript of pages, made once and kept whole."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest
import vl_convert

from dpsweep.results.page.bundle import vega_bundle


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return where the bundle is kept, in a cache that is empty; each making of one is counted."""
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "cache"))
    made = []

    def make() -> str:
        made.append(1)
        return "let vega = 'β';"

    monkeypatch.setattr(vl_convert, "javascript_bundle", make)
    path = tmp_path / "cache" / "vega" / f"{version('vl-convert-python')}.js"
    return path, made


def test_it_is_made_once_and_nobody_else_may_read_its_place(kept) -> None:
    path, made = kept
    assert [vega_bundle(), vega_bundle()] == ["let vega = 'β';"] * 2
    assert len(made) == 1
    assert path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "damage", ["cut", "edited", "emptied", "not text", "other text, old digest"]
)
def test_what_is_not_whole_is_made_again(kept, damage: str) -> None:
    path, made = kept
    vega_bundle()
    digest, _, text = path.read_text().partition("\n")
    path.write_bytes({
        "cut": path.read_bytes()[:-3],
        "edited": path.read_bytes().replace(b"vega", b"evil"),
        "emptied": b"",
        "not text": b"\xff\xfe",
        "other text, old digest": f"{digest}\n{text};".encode(),
    }[damage])  # fmt: skip
    assert vega_bundle() == "let vega = 'β';"
    assert len(made) == 2
    assert path.read_text() == f"{digest}\n{text}"


def test_a_place_of_others_is_not_used(kept, tmp_path: Path) -> None:
    path, made = kept
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o777)
    assert [vega_bundle(), vega_bundle()] == ["let vega = 'β';"] * 2
    assert len(made) == 2
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_place_that_cannot_be_written_is_no_reason_to_fail(kept) -> None:
    path, made = kept
    path.parent.mkdir(parents=True, mode=0o700)
    path.parent.chmod(0o500)
    assert vega_bundle() == "let vega = 'β';"
    assert len(made) == 1
