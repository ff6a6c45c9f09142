"""The import graph of the source tree; imports inside functions and for types alone count."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = {
    "dpsweep": ROOT / "platform" / "dpsweep",
    "dpsweep.trainables": ROOT / "trainables",
    "dpsweep.search_spaces": ROOT / "search_spaces",
    "dpsweep.cluster": ROOT / "cluster",
}


def floors_in_pyproject():
    """Return each contract's floors from above to below; a floor's rooms do not know each other."""
    text = (ROOT / "pyproject.toml").read_text()
    return [
        [floor.split(" | ") for floor in ast.literal_eval(found)]
        for found in re.findall(r"^layers = (\[.*?\])$", text, re.DOTALL | re.MULTILINE)
    ]


FLOORS, FLOORS_OF_TRAINABLES = floors_in_pyproject()


def modules():
    """Return the path of every module by its name."""
    found = {}
    for package, folder in ROOMS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *(p for p in parts if p != "__init__")])] = path
    return found


@functools.cache
def imports(source):
    """Return what a source imports: (module, names taken from it, or nothing)."""
    imported = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            imported.append((node.module, tuple(alias.name for alias in node.names)))
    return imported


def import_graph(sources):
    """Return the modules that each module imports, from a mapping of names to sources."""
    graph = {name: set() for name in sources}
    for name, source in sources.items():
        for module, taken in imports(source):
            children = {f"{module}.{child}" for child in taken}
            targets = children & graph.keys()
            if not taken or children - targets:
                targets |= {module} & graph.keys()
            graph[name] |= targets - {name}
    return graph


def circle(graph):
    """Return modules of which each imports the next and the last the first; [] without any."""
    state = dict.fromkeys(graph, "new")

    def visit(name, path):
        state[name] = "open"
        for target in sorted(graph[name]):
            if state[target] == "open":
                return path[path.index(target) :]
            if state[target] == "new" and (around := visit(target, [*path, target])):
                return around
        state[name] = "done"
        return []

    for name in sorted(graph):
        if state[name] == "new" and (around := visit(name, [name])):
            return around
    return []


def arrows_up(graph, floors, package="dpsweep"):
    """Return the imports inside ``package`` that do not go down its floors, and homeless modules."""
    level = {room: i for i, floor in enumerate(floors) for room in floor}

    def room_of(name):
        return name.removeprefix(package + ".").split(".")[0]

    inside = {n: targets for n, targets in graph.items() if n.startswith(package + ".")}
    homeless = [(name, "stands on no floor") for name in inside if room_of(name) not in level]
    if homeless:
        return homeless
    return [
        (name, target)
        for name, targets in inside.items()
        for target in sorted(targets & inside.keys())
        if room_of(name) != room_of(target) and level[room_of(target)] <= level[room_of(name)]
    ]
