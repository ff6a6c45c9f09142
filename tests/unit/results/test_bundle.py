"""The JavaScript of pages, made once."""

from importlib.metadata import version
from pathlib import Path

import vl_convert

from dpsweep.results.page.bundle import vega_bundle


def test_it_is_made_once_for_a_version(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: "let vega = 'β';")
    assert vega_bundle() == "let vega = 'β';"
    assert [path.name for path in tmp_path.glob("*/*")] == [f"{version('vl-convert-python')}.js"]
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: "another one")
    assert vega_bundle() == "let vega = 'β';"
