"""The command line as a whole."""

import io
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from dpsweep.cli import app as cli


def test_the_version_is_the_installed_one() -> None:
    done = CliRunner().invoke(cli.app, ["--version"])
    assert done.exit_code == 0
    assert done.output == f"dpsweep {version('dpsweep')}\n"


def test_without_a_command_there_is_help() -> None:
    done = CliRunner().invoke(cli.app, [])
    assert done.exit_code == 2
    assert "with an honest ledger" in " ".join(done.output.split())
    assert "Run a sweep, or continue it" in done.output


def test_what_stdout_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report with a spread, or a class with an accent, was a traceback in an ASCII terminal."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(cli, "app", lambda **_: print("0.91 \u00b10.01", flush=True))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert written.getvalue() == rb"0.91 \xb10.01" + b"\n"
