"""The command line as a whole."""

from importlib.metadata import version

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
