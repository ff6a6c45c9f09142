"""The structure that docs/structure.md promises: import direction, doors, packages, lazy imports."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter

import pytest
from import_graph import (
    FLOORS,
    FLOORS_OF_TRAINABLES,
    ROOT,
    arrows_up,
    circle,
    import_graph,
    imports,
    modules,
)

#: A longer file holds a second concept; a fuller folder is two rooms.
MAX_LINES = 400
MAX_LINES_OF_THE_CORE_LOOP = 299
MAX_FILES = 16
#: Imports of our own modules inside functions; each keeps a heavy package out of a light command.
MAX_INNER_IMPORTS = 69
HEAVY = {"torch", "ray", "mlflow", "optuna", "timm", "opacus"}
STRUCTURE = ROOT / "docs" / "structure.md"
DOORS = {
    "mlflow": {
        "dpsweep.cli.ui_door",
        "dpsweep.tracking.mlflow",
        "dpsweep.tracking.mlflow_database",
        "dpsweep.tracking.mlflow_models",
        "dpsweep.tracking.mlflow_reach",
        "dpsweep.tracking.mlflow_runs",
        "dpsweep.tracking.mlflow_reader",
        "dpsweep.tracking.registry.*",
    },
    "dp_accounting": {"dpsweep.privacy.*"},
    "optuna": {"dpsweep.search_spaces.*", "dpsweep.search.*"},
    "torch": {
        "dpsweep.trainables.*",
        "dpsweep.testing.conformance",
        "dpsweep.study.model_graph",
        "dpsweep.tracking.registry.served",
    },
    "timm": {"dpsweep.trainables.*"},
    "opacus": {"dpsweep.trainables.*"},
    "ray": {
        "dpsweep.trainables.execution.actor",
        "dpsweep.schedulers.hanging",
        "dpsweep.schedulers.ray_adapter",
        "dpsweep.cluster.*",
        "dpsweep.search.searcher",
        "dpsweep.running.tuner",
        "dpsweep.running.nodes.waiting",
    },
}


@pytest.fixture(scope="module")
def sources():
    return {name: path.read_text() for name, path in modules().items()}


@pytest.fixture(scope="module")
def graph(sources):
    return import_graph(sources)


@pytest.fixture(scope="module")
def heavy(sources):
    return heavy_packages(sources)


@functools.cache
def parsed(source):
    return ast.parse(source)


def allowed(module, doors):
    return any(
        module == door or (door.endswith(".*") and module.startswith(door[:-2])) for door in doors
    )


def test_the_walk_sees_the_code(graph):
    assert {"dpsweep.sweep", "dpsweep.trainables.methods.dp_sgd"} <= graph.keys()
    assert "dpsweep.running.entries" in graph["dpsweep.sweep"]
    assert ["planning", "results", "auditing"] in FLOORS
    assert FLOORS_OF_TRAINABLES[-2:] == [["data"], ["devices"]]


@pytest.mark.parametrize("dependency", sorted(DOORS))
def test_one_door_per_dependency(sources, dependency):
    intruders = [
        name
        for name, source in sources.items()
        if any(f"{module}.".startswith(f"{dependency}.") for module, _ in imports(source))
        and not allowed(name, DOORS[dependency])
    ]
    assert intruders == []


def test_no_import_runs_up_the_floors(graph):
    assert arrows_up(graph, FLOORS) == []


def test_no_import_runs_up_the_floors_of_trainables(graph):
    assert arrows_up(graph, FLOORS_OF_TRAINABLES, "dpsweep.trainables") == []


def test_no_modules_import_each_other_in_a_circle(graph):
    assert circle(graph) == []


def test_the_graph_sees_lazy_and_typed_imports_up_and_around():
    graph = import_graph(
        {
            "dpsweep.foundation.words": "def f():\n    from dpsweep.spec import study",
            "dpsweep.spec.study": "if TYPE_CHECKING:\n    import dpsweep.foundation.words",
            "dpsweep.spec": "",
            "dpsweep.privacy.rdp": "from dpsweep.spec.study import StudySpec",
        }
    )
    assert circle(graph) == ["dpsweep.foundation.words", "dpsweep.spec.study"]
    assert arrows_up(graph, FLOORS) == [
        ("dpsweep.foundation.words", "dpsweep.spec.study"),
        ("dpsweep.privacy.rdp", "dpsweep.spec.study"),
    ]
    assert arrows_up({"dpsweep.attic.old": set()}, FLOORS) == [
        ("dpsweep.attic.old", "stands on no floor")
    ]


def test_bare_import_is_light():
    code = (
        "import sys, time; t = time.perf_counter(); import dpsweep; "
        "print(time.perf_counter() - t); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'optuna', 'numpy') if m in sys.modules])"
    )
    best = min(
        (subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)),
        key=lambda out: float(out.split()[0]),
    )
    seconds, loaded = best.strip().split("\n")
    assert float(seconds) < 0.3
    assert loaded == "[]"


def test_checking_a_spec_loads_neither_torch_nor_ray():
    spec = ROOT / "tests" / "examples" / "digits.yaml"
    code = (
        "import sys; from dpsweep.planning.preflight import preflight; from dpsweep.planning.reading import read_spec; "
        f"from pathlib import Path; preflight(read_spec(Path({str(spec)!r}))); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'optuna') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "heavy"), [("validate", []), ("plan", ["torch"])])
def test_a_light_verb_loads_only_what_it_measures_with(verb, heavy, tmp_path):
    """`plan` measures a few training steps, with torch; neither verb needs Ray or a store."""
    spec = ROOT / "tests" / "examples" / "digits.yaml"
    code = (
        "import sys; from dpsweep.cli.app import app; "
        f"app([{verb!r}, {str(spec)!r}], standalone_mode=False); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'optuna') if m in sys.modules])"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path)
    assert said.strip().splitlines()[-1] == str(heavy)


def test_platform_is_the_standard_library():
    assert not (ROOT / "platform" / "__init__.py").exists()
    code = "import platform; print(platform.system())"
    answer = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    assert answer.strip() == "Linux"
    import platform

    assert platform.system() == "Linux"


def test_every_folder_with_code_is_packaged():
    text = (ROOT / "pyproject.toml").read_text()
    for name, path in modules().items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        assert f'"{package}"' in text, package


def test_no_file_is_too_long_and_the_core_loop_is_short(sources):
    lengths = {name: len(source.splitlines()) for name, source in sources.items()}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}
    assert lengths["dpsweep.sweep"] <= MAX_LINES_OF_THE_CORE_LOOP


def inner_imports(sources):
    """Return (module, line, what it imports there inside a function) of our own modules."""
    return {
        (name, node.lineno, target)
        for name, source in sources.items()
        for function in ast.walk(parsed(source))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("dpsweep.")
        for target in [submodule(node, sources)]
    }


def submodule(node, sources):
    """Return the module that ``from a import b`` loads last: ``a.b`` where that is one."""
    inside = [f"{node.module}.{alias.name}" for alias in node.names]
    return next((name for name in inside if name in sources), node.module)


def imported_at_once(source):
    """Return what a module imports when it is imported itself: not in functions, not for types."""
    nodes, names = list(parsed(source).body), []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            continue
        else:
            nodes += ast.iter_child_nodes(node)
    return names


def heavy_packages(sources):
    """Return the heavy packages that each module loads when it is imported, by its own imports
    and by those of all modules of ours that it loads."""
    at_once = {name: imported_at_once(source) for name, source in sources.items()}
    loaded = {}
    for name in sources:
        heavy, seen, waiting = set(), set(), [name]
        while waiting:
            parts = waiting.pop().split(".")
            heavy |= {parts[0]} & HEAVY
            for end in range(1, len(parts) + 1):  # packages are loaded before what is in them
                part = ".".join(parts[:end])
                if part in at_once and part not in seen:
                    seen.add(part)
                    waiting += at_once[part]
        loaded[name] = heavy
    return loaded


def test_imports_inside_functions_are_the_exception(sources, heavy):
    """They hide circles; each loads a heavy package that its own module does not load."""
    inner = inner_imports(sources)
    assert len(inner) <= MAX_INNER_IMPORTS
    needless = [place for place in sorted(inner) if not heavy[place[2]] - heavy[place[0]]]
    assert needless == []


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "module",
    [
        "dpsweep.sweep",
        "dpsweep.planning.preflight",
        "dpsweep.trainables.methods.dp_sgd",
        "dpsweep.trainables.networks.build",
    ],
)
def test_heavy_packages_are_those_that_are_loaded(heavy, module):
    """What is read off the sources is what Python does; packages load others of their own."""
    code = (
        "import sys, importlib; importlib.import_module(sys.argv[1]); "
        f"print(' '.join(m for m in {sorted(HEAVY)} if m in sys.modules))"
    )
    said = subprocess.check_output([sys.executable, "-c", code, module], text=True)
    assert set(said.split()) == heavy[module]


def test_inner_imports_are_seen():
    sources = {
        "dpsweep": "",
        "dpsweep.a": "import dpsweep.b\ndef f():\n    def g():\n        from dpsweep.c import x\n",
        "dpsweep.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray\n",
        "dpsweep.c": "from dpsweep import d\nif True:\n    import torch.nn\n",
        "dpsweep.d": "def f():\n    import optuna\ntry:\n    import mlflow\nfinally:\n    pass\n",
    }
    assert inner_imports(sources) == {("dpsweep.a", 4, "dpsweep.c")}
    assert inner_imports({**sources, "dpsweep.c.x": ""}) == {("dpsweep.a", 4, "dpsweep.c.x")}
    loaded = heavy_packages(sources)
    assert (loaded["dpsweep.a"], loaded["dpsweep.b"]) == (set(), set())
    assert (loaded["dpsweep.c"], loaded["dpsweep.d"]) == ({"torch", "mlflow"}, {"mlflow"})


def test_no_folder_is_too_full():
    files = Counter(p.parent for p in modules().values() if p.name != "__init__.py")
    assert {str(folder): n for folder, n in files.items() if n > MAX_FILES} == {}


def test_every_package_says_its_purpose_and_the_page_repeats_it():
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", STRUCTURE.read_text(), re.MULTILINE))
    packages = {n: p for n, p in modules().items() if p.name == "__init__.py" and n != "dpsweep"}
    purposes = {
        name.removeprefix("dpsweep."): ast.get_docstring(ast.parse(path.read_text()))
        for name, path in packages.items()
    }
    assert rows == purposes
    assert [name for name, purpose in purposes.items() if not purpose.endswith(".")] == []


def test_the_picture_shows_the_floors_that_are_checked():
    _, whole, trainables = re.split(
        r"^floors of .*$", STRUCTURE.read_text().partition("```\n\n")[0], flags=re.MULTILINE
    )
    for drawn, floors in ((whole, FLOORS), (trainables, FLOORS_OF_TRAINABLES)):
        lines = [line.strip() for line in drawn.splitlines() if line.startswith("  ")]
        assert [re.split(r"\s{2,}", line)[0].split(" | ") for line in lines] == floors
