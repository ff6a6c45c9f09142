"""Words that say nothing where a name should: what breaks the rule, file by file.

``python tests/helpers/words_of_code.py`` writes today's offenders to offending_words.json, which may
only ever get shorter.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("platform", "trainables", "search_spaces", "cluster")
LISTED = ROOT / "tests" / "golden" / "offending_words.json"
#: Names that a local variable must not have: each says that there is a value, not which.
EMPTY = frozenset({"found", "known", "given", "told", "what"})
DOCSTRING = "docstring begins with What"


def offences(source: str) -> list[str]:
    """Return the empty names that a module binds, sorted, and whether its docstring is no noun."""
    tree = ast.parse(source)
    bound = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    begins = (ast.get_docstring(tree) or "").startswith("What")
    return sorted(bound & EMPTY) + [DOCSTRING] * begins


def offenders() -> dict[str, list[str]]:
    """Return path -> offences for each module that has some."""
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    by_path = {str(path.relative_to(ROOT)): offences(path.read_text()) for path in paths}
    return {path: words for path, words in by_path.items() if words}


if __name__ == "__main__":
    LISTED.write_text(json.dumps(offenders(), indent=0) + "\n")
