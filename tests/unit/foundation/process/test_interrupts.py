"""Ctrl-C that Python loses is raised again where a command begins its next step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from whole_studies import make_spec
from yaml import safe_dump

# Python prints what a destructor raises as ignored, as it does for the import system's callbacks.
LOSE = """
import signal, sys
from dpsweep.foundation.process import interrupts

class Swallows:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def lose():
    Swallows()
"""


def ran(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOSE + code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def printed(code: str) -> tuple[list[str], str]:
    """Return the words on stdout, and stderr, of a program that ends well and passes none over."""
    done = ran(code)
    assert done.returncode == 0, done.stderr
    assert "ignored" not in done.stderr
    return done.stdout.split(), done.stderr


def test_a_lost_interruption_is_raised_at_the_next_step() -> None:
    done = ran(
        "interrupts.note_interrupts()\ninterrupts.raise_lost()\n"
        "with interrupts.answering('it ends'):\n    lose()\n    lose()\nprint('went on')\n"
        "try:\n    interrupts.raise_lost()\nexcept KeyboardInterrupt:\n    print('raised')\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["went on", "raised", ""]
    assert done.stderr.count("Exception ignored") == 2
    assert done.stderr.count("\nit ends\n") == 1


def test_whoever_has_a_handler_of_his_own_keeps_it() -> None:
    code = "def own(*_): print('own')\nsignal.signal(signal.SIGINT, own)\n"
    done = ran(code + "interrupts.note_interrupts()\nlose()\ninterrupts.raise_lost()\n")
    assert (done.returncode, done.stdout) == (0, "own\n")
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # of a shell's background
    done = ran(ignored + "interrupts.note_interrupts()\nlose()\ninterrupts.raise_lost()\n")
    assert done.returncode == 0


@pytest.mark.parametrize("where", ["before the command", "as the spec is checked"])
def test_a_run_that_has_lost_ctrl_c_spends_nothing(where: str, tmp_path: Path) -> None:
    """Before, it ran to its end: 28 seconds after Ctrl-C, with all of its epsilon."""
    raw = make_spec(tmp_path, "lost", tracking={"uri": None})
    (tmp_path / "lost.yaml").write_text(safe_dump(raw))
    code = "interrupts.note_interrupts()\nfrom dpsweep.cli.app import command\n"
    if where == "before the command":
        code += "lose()\n"
    else:
        code += (
            "from dpsweep.cli.verbs import run\nmake_places = run.make_places\n"
            "run.make_places = lambda spec: (make_places(spec), lose())\n"
        )
    done = ran(code + "command()\n", "run", "lost.yaml", cwd=tmp_path)
    assert done.returncode == 130
    assert "interrupted; nothing is lost" in done.stderr
    assert not list(tmp_path.rglob("journal.jsonl"))
    assert not list(tmp_path.rglob("ledger"))


@pytest.mark.parametrize("noted", ["interrupts.note_interrupts()", "pass"])
def test_a_step_that_is_held_ends_before_the_first_interruption(noted: str) -> None:
    words, told = printed(
        f"{noted}\nbefore = signal.getsignal(signal.SIGINT)\n"
        "try:\n    with interrupts.answering('it ends'), interrupts.held():\n"
        "        lose()\n        print('ended')\n"
        "except KeyboardInterrupt:\n    print('raised')\n"
        "print(signal.getsignal(signal.SIGINT) is before)\n"
        "try:\n    with interrupts.held():\n        signal.raise_signal(signal.SIGINT)\n"
        "        signal.raise_signal(signal.SIGINT)\n        print('went on')\n"
        "except KeyboardInterrupt:\n    print('raised again')\n"
    )
    assert words == ["ended", "raised", "True", "raised", "again"]
    assert told.count("it ends") == 1


def test_of_a_program_of_somebody_else_s_nothing_is_kept() -> None:
    words, _ = printed(
        "for _ in range(2):\n    try:\n        with interrupts.held():\n"
        "            signal.raise_signal(signal.SIGINT)\n            print('ended')\n"
        "    except KeyboardInterrupt:\n        print('raised')\n"
        "interrupts.raise_lost()\nwith interrupts.held():\n    print('quiet')\n"
    )
    assert words == ["ended", "raised", "ended", "raised", "quiet"]
