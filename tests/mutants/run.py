"""Mutation run: every edit of the lists must make each of its tests fail.

    python tests/mutants/run.py [WORDS ...] [--workers 2]

Works on copies in a temporary directory; the tree stays as it is. Words choose the mutants whose
name or file holds one of them. Ends with 1 if a mutant survives, or if a test fails without any.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from mutant import Mutant
from mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
#: Where the folders of a checkout lie in the package (``tool.setuptools.package-dir``).
ROOMS = {
    "platform/dpsweep": "dpsweep",
    "trainables": "dpsweep/trainables",
    "search_spaces": "dpsweep/search_spaces",
    "cluster": "dpsweep/cluster",
}
#: Of pytest; 2 to 5 are interruptions, errors of collection and no tests at all.
TESTS_FAILED = 1
_NOISE = shutil.ignore_patterns("__pycache__", ".pytest_cache", ".hypothesis")


class Copy:
    """A copy of package and tests that may be edited, and a process that runs tests in it.

    The package is laid out as it is installed and stands first on the path, before the finder of an
    editable install; the nursery makes sure of it.
    """

    def __init__(self, directory: Path) -> None:
        self.root, self._site = directory, directory / "site"
        for source, target in ROOMS.items():
            shutil.copytree(ROOT / source, self._site / target, ignore=_NOISE, dirs_exist_ok=True)
        shutil.copytree(ROOT / "tests", directory / "tests", ignore=_NOISE)
        shutil.copy(ROOT / "pyproject.toml", directory)
        compileall.compile_dir(self._site, quiet=1)  # what is not edited compiles once
        more = {
            "PYTHONPATH": str(self._site),  # for processes that tests start
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._nursery = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py")), str(directory)],
            env={**os.environ, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def test(self, *tests: str) -> tuple[int, str]:
        """Run tests in a fresh process; return its exit code and what it said."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "--import-mode=importlib"]
        self._nursery.stdin.write(json.dumps([*options, "--strict-markers", *tests]) + "\n")
        self._nursery.stdin.flush()
        code, said = json.loads(self._nursery.stdout.readline())
        return code, said

    @contextmanager
    def edited(self, mutant: Mutant) -> Iterator[None]:
        """Put an edit in place, and take it back."""
        room = next(room for room in ROOMS if mutant.file.startswith(f"{room}/"))
        path = self._site / ROOMS[room] / mutant.file.removeprefix(f"{room}/")
        source = path.read_text()
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()  # it tells versions apart by size and second alone
        path.write_text(mutant.applied(source))
        try:
            yield
        finally:
            path.write_text(source)

    def survivors(self, mutant: Mutant) -> list[str]:
        """Return the tests that do not fail under a mutant, and how each ended."""
        found = []
        with self.edited(mutant):
            for test in mutant.tests:
                code, said = self.test(test)
                if code != TESTS_FAILED:
                    last = said.strip().splitlines()[-1:] or ["no output"]
                    found.append(f"{test}: exit code {code}: {last[0]}")
        return found

    def close(self) -> None:
        """End its process."""
        assert self._nursery.stdin is not None
        self._nursery.stdin.close()
        self._nursery.wait()


def chosen(words: list[str]) -> list[Mutant]:
    """Return the mutants whose name or file holds one of the words; all without words."""
    return [m for m in MUTANTS if not words or any(w in m.name or w in m.file for w in words)]


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="of names or files of mutants; all without")
    parser.add_argument("--workers", type=int, default=2, help="processes at once")
    given = parser.parse_args()
    mutants = chosen(given.words)
    if not mutants:
        raise SystemExit(f"no mutant is named after {', '.join(given.words)}")
    for mutant in mutants:
        mutant.applied_in(ROOT)  # before anything runs
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copies = [Copy(Path(directory) / str(number)) for number in range(given.workers)]
        try:
            tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
            what = f"{len(mutants)} mutants, {len(tests)} tests"
            print(f"{what}; first these tests without any mutant", flush=True)
            code, said = copies[0].test(*tests)
            if code != 0:
                print(said)
                return 1
            return _run_all(mutants, copies, started)
        finally:
            for copy in copies:
                copy.close()


def _run_all(mutants: list[Mutant], copies: list[Copy], started: float) -> int:
    free: queue.Queue[Copy] = queue.Queue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> list[str]:
        copy = free.get()
        try:
            return copy.survivors(mutant)
        finally:
            free.put(copy)

    begun, survived = time.monotonic(), {}
    with ThreadPoolExecutor(len(copies)) as pool:
        running = {pool.submit(one, mutant): mutant for mutant in mutants}
        for number, future in enumerate(as_completed(running), start=1):
            mutant, found = running[future], future.result()
            left = (time.monotonic() - begun) / number * (len(mutants) - number)
            word = "SURVIVED" if found else "killed"
            place = f"{number:3}/{len(mutants)}  {word:8}  {mutant.name} ({mutant.file})"
            print(f"{place}; {left:.0f} s left", flush=True)
            if found:
                survived[mutant] = found
                print("\n".join(f"    {line}" for line in found), flush=True)
    took = time.monotonic() - started
    print(f"{len(mutants) - len(survived)} of {len(mutants)} killed in {took:.0f} s")
    for mutant, found in survived.items():
        print(f"SURVIVED {mutant.name}: {mutant.why}\n    " + "\n    ".join(found))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
