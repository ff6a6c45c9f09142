"""The structure that docs/structure.md promises: import direction, doors, packages, lazy imports."""

import ast
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
MAX_INNER_IMPORTS = 101
STRUCTURE = ROOT / "docs" / "structure.md"
DOORS = {
    "mlflow": {"dpsweep.tracking.mlflow", "dpsweep.tracking.mlflow_models"},
    "dp_accounting": {"dpsweep.privacy.*"},
    "optuna": {"dpsweep.search_spaces.*", "dpsweep.search.suggestions"},
    "torch": {"dpsweep.trainables.*", "dpsweep.tracking.mlflow_models"},
    "timm": {"dpsweep.trainables.*"},
    "opacus": {"dpsweep.trainables.*"},
    "ray": {
        "dpsweep.trainables.execution.actor",
        "dpsweep.schedulers.ray_adapter",
        "dpsweep.cluster.*",
        "dpsweep.search.searcher",
        "dpsweep.running.tuner",
    },
}


@pytest.fixture(scope="module")
def sources():
    return {name: path.read_text() for name, path in modules().items()}


@pytest.fixture(scope="module")
def graph(sources):
    return import_graph(sources)


def allowed(module, doors):
    return any(
        module == door or (door.endswith(".*") and module.startswith(door[:-2])) for door in doors
    )


def test_the_walk_sees_the_code(graph):
    assert {"dpsweep.sweep", "dpsweep.trainables.methods.dp_sgd"} <= graph.keys()
    assert "dpsweep.running.entries" in graph["dpsweep.sweep"]
    assert ["planning", "results"] in FLOORS
    assert FLOORS_OF_TRAINABLES[-1] == ["data"]


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
        (name, node.lineno, node.module)
        for name, source in sources.items()
        for function in ast.walk(ast.parse(source))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("dpsweep.")
    }


def test_imports_inside_functions_are_the_exception(sources):
    """They hide circles; outside `trainables` only what loads a heavy package is imported so."""
    inner = inner_imports(sources)
    assert len(inner) <= MAX_INNER_IMPORTS
    outside = {module for name, _, module in inner if not name.startswith("dpsweep.trainables.")}
    code = (
        "import sys, importlib; importlib.import_module(sys.argv[1]); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'optuna', 'timm') if m in sys.modules])"
    )
    light = [
        module
        for module in sorted(outside)
        if subprocess.check_output([sys.executable, "-c", code, module], text=True).strip() == "[]"
    ]
    assert light == []


def test_inner_imports_are_seen():
    source = "import dpsweep.spec\ndef f():\n    def g():\n        from dpsweep.sweep import x\n"
    assert inner_imports({"a": source}) == {("a", 4, "dpsweep.sweep")}


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
