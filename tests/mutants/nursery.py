"""A process that has imported what takes seconds, and forks one child for each run of tests.

    python nursery.py ROOT

ROOT holds ``tests``, ``pyproject.toml`` and, in ``site``, the package. Reads a JSON list of pytest's
arguments per line; answers each with a line ``[exit code, output]``. The package itself is imported
by children alone, so each run sees the files as they are then.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

#: Seconds after which a run is ended; it tells nothing then.
LIMIT_S = 300
TOO_LONG, OTHER_PACKAGE = -1, 99
#: What most tests import; one that is not installed is left to the tests that need it.
SLOW = (
    "pytest", "numpy", "scipy.stats", "torch", "pydantic", "yaml", "optuna", "dp_accounting",
    "dp_accounting.pld.privacy_loss_distribution", "opacus.grad_sample", "sklearn.datasets", "ray",
    "ray.tune",
)  # fmt: skip


def run(root: Path, arguments: list[str]) -> tuple[int, str]:
    """Run pytest in a child; return its exit code and what it said."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _become_a_run(root, arguments, said.fileno())
        code = _end_of(child)
        said.seek(0)
        return code, said.read().decode("utf-8", "replace")


def _become_a_run(root: Path, arguments: list[str], output: int) -> None:
    code = OTHER_PACKAGE
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        import pytest

        rooms = ("dpsweep", "dpsweep.trainables", "dpsweep.search_spaces", "dpsweep.cluster")
        found = [Path(importlib.import_module(name).__file__ or "") for name in rooms]
        if all(root / "site" in path.parents for path in found):
            code = int(pytest.main(arguments))
        else:
            print(f"imports do not find the copy, but {found}")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_of(child: int) -> int:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TOO_LONG


def main(root: Path) -> None:
    """Serve until the input ends."""
    os.chdir(root)
    sys.path.insert(0, str(root / "site"))
    for name in SLOW:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(root, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
