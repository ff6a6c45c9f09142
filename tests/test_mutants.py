"""The lists of `make mutants` are up to date: every edit fits, every test it names is there."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from mutant import Mutant
from mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[1]


@cache
def names_of_tests(path: Path) -> frozenset[str]:
    """Return the names of a file's tests, those of a class as ``Class::test``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            found |= {f"{node.name}::{method.name}" for method in methods}
    return frozenset(found)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source_and_names_tests(mutant: Mutant) -> None:
    """Whoever moves or rewords such a line moves the mutant along, in tests/mutants."""
    assert mutant.applied_in(ROOT) != (ROOT / mutant.file).read_text()
    assert mutant.tests
    assert mutant.why
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in names_of_tests(ROOT / file), f"there is no {test}"


def test_names_tell_mutants_apart() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)
    edits = Counter((mutant.file, mutant.old, mutant.new) for mutant in MUTANTS)
    assert max(names.values()) == max(edits.values()) == 1


def test_a_text_that_is_not_there_once_is_refused() -> None:
    mutant = Mutant("twice", "none.py", "a = 1", "a = 2", ("tests/none.py::test",), "nothing")
    assert mutant.applied("a = 1\n") == "a = 2\n"
    for source in ("b = 1\n", "a = 1\na = 1\n"):
        with pytest.raises(ValueError, match=r"twice: its old text stands [02] times in none\.py"):
            mutant.applied(source)
    with pytest.raises(SyntaxError):
        Mutant("broken", "none.py", "a", "a =", (), "").applied("a\n")
