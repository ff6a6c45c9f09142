"""A command that is ended by a library, or by Ctrl-C: it says so."""

import os
import subprocess
import sys

import pytest
import yaml
from whole_studies import cli_here, make_spec


@pytest.mark.parametrize("code", [0, 1])
def test_a_library_that_ends_the_process_is_named(tmp_path, monkeypatch, code: int) -> None:
    def end(*_: object, **__: object) -> None:
        sys.exit(code)

    monkeypatch.setattr("dpsweep.running.nodes.cluster.LaunchCluster.begin", lambda self: None)
    monkeypatch.setattr("dpsweep.sweep.run_checked", end)
    spec = tmp_path / "sweep.yaml"
    spec.write_text(yaml.safe_dump(make_spec(tmp_path)))
    done = cli_here("run", str(spec))
    assert done.returncode != 0
    assert "error: a library has ended this command" in done.stderr
    assert "SystemExit at test_ended.py:" in " ".join(done.stderr.split())
    assert "run the same command again" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "read", ["dpsweep.cli.verbs.run.load_checked", "typer.core.TyperGroup.parse_args"]
)
def test_ctrl_c_while_a_spec_or_a_command_line_is_read_is_answered(monkeypatch, read) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(read, interrupted)
    done = cli_here("validate", "sweep.yaml")
    assert done.returncode == 130
    assert done.stderr.startswith("interrupted; nothing is lost")


@pytest.mark.parametrize("arguments", [["-m", "dpsweep"], ["-c", "import dpsweep.__main__"]])
def test_ctrl_c_while_the_program_loads_is_answered(arguments, tmp_path) -> None:
    """As a module, and as the script that an installation makes."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing has begun\n")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("nothing", 2)])
def test_a_command_ends_quickly_and_whole(words: str, code: int) -> None:
    """Threads end, exit handlers run and all is printed, but memory is left to the system."""
    program = f"""
import atexit, sys, threading, time, weakref
class Kept: pass
kept = Kept()
weakref.finalize(kept, print, "finalized at exit")
kept.itself = kept
class Loud:
    def __del__(self): print("cleared up")
loud = Loud()
begun = threading.Event()
late = lambda: (begun.wait(), time.sleep(2), print("thread done"))
threading.Thread(target=late).start()
from dpsweep.cli.app import command
sys.argv = ["dpsweep", {words!r}]
begun.set()
command()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code
    assert done.stdout.splitlines()[-2:] == ["thread done", "finalized at exit"]
    assert (done.stderr != "") is (code != 0)


def test_last_words_of_a_library_are_printed() -> None:
    program = """
import sys
from dpsweep.cli import app
app.main = lambda: sys.exit("no such device")
app.command()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "no such device\n")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    program = "from dpsweep.cli.app import command; command()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--help"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 0


def test_another_pipe_that_breaks_is_told(monkeypatch) -> None:
    """Typer would end the process with 1, without a word."""

    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("dpsweep.cli.verbs.run.load_checked", broken)
    with pytest.raises(BrokenPipeError):
        cli_here("validate", "sweep.yaml")
