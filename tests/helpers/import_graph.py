"""The graph of imports in the source tree, lazy and type-only ones counted."""

import ast
import graphlib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {
    "dpsweep": ROOT / "platform" / "dpsweep",
    "dpsweep.trainables": ROOT / "trainables",
    "dpsweep.search_spaces": ROOT / "search_spaces",
    "dpsweep.cluster": ROOT / "cluster",
}


def modules():
    """Yield the name of every module, and its path."""
    for package, folder in ROOMS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join([package, *(p for p in parts if p != "__init__")]), path


def imports(path):
    """Yield the name of everything that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph(named=None):
    """Return module -> modules of ours that it imports; of a name, the longest that is a module."""
    named = dict(modules()) if named is None else named
    found = {}
    for name, path in named.items():
        targets = {t for t in imports(path) if t in named and t != "dpsweep"}
        # `from a.b import c` names a.b too; where a.b.c is a module, that one is meant.
        inner = {t.rpartition(".")[0] for t in targets}
        used = {t for t in targets if t not in inner or t in _read_from(path, named)}
        found[name] = used - {name}
    return found


def _read_from(path, named):
    """Return the modules of which a file imports something that is no module itself."""
    return {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in named
        and any(f"{node.module}.{alias.name}" not in named for alias in node.names)
    }  # fmt: skip


def circle(edges):
    """Return the modules of a circle, or nothing."""
    try:
        list(graphlib.TopologicalSorter(edges).static_order())
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def rooms():
    """Return the name of every package directly below ``dpsweep``."""
    return {
        name.split(".")[1] for name, path in modules() if "." in name and path.name == "__init__.py"
    }


def files_by_folder():
    """Return folder -> number of modules in it, without the ``__init__``."""
    return Counter(path.parent for _, path in modules() if path.name != "__init__.py")
