"""The structure that the README promises: import direction, doors, packages, lazy imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    "dpsweep": ROOT / "platform" / "dpsweep",
    "dpsweep.trainables": ROOT / "trainables",
    "dpsweep.search_spaces": ROOT / "search_spaces",
    "dpsweep.cluster": ROOT / "cluster",
}
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
        "dpsweep.running.stage",
    },
}
PARALLEL = ("trainables", "search_spaces", "schedulers", "tracking", "cluster")


def modules():
    for package, folder in ROOMS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join([package, *(p for p in parts if p != "__init__")]), path


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def allowed(module, doors):
    return any(
        module == door or (door.endswith(".*") and module.startswith(door[:-2])) for door in doors
    )


def test_the_walk_sees_the_code():
    names = {name for name, _ in modules()}
    assert {"dpsweep.sweep", "dpsweep.trainables.methods.dp_sgd", "dpsweep.ledgers.trial"} <= names


@pytest.mark.parametrize("dependency", sorted(DOORS))
def test_one_door_per_dependency(dependency):
    intruders = [
        name
        for name, path in modules()
        if any(i == dependency or i.startswith(dependency + ".") for i in imports(path))
        and not allowed(name, DOORS[dependency])
    ]
    assert intruders == []


@pytest.mark.parametrize("room", PARALLEL)
def test_rooms_do_not_import_each_other(room):
    intruders = [
        (name, target)
        for name, path in modules()
        if name.startswith(f"dpsweep.{room}")
        for target in imports(path)
        for other in PARALLEL
        if other != room and target.startswith(f"dpsweep.{other}")
    ]
    assert intruders == []


def test_the_privacy_core_imports_nothing_above_it():
    lower = ("dpsweep.privacy", "dpsweep.foundation")
    intruders = [
        (name, target)
        for name, path in modules()
        if name.startswith("dpsweep.privacy")
        for target in imports(path)
        if target.startswith("dpsweep.") and not target.startswith(lower)
    ]
    assert intruders == []


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


def test_platform_is_the_standard_library():
    assert not (ROOT / "platform" / "__init__.py").exists()
    code = "import platform; print(platform.system())"
    answer = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    assert answer.strip() == "Linux"
    import platform

    assert platform.system() == "Linux"


def test_every_folder_with_code_is_packaged():
    text = (ROOT / "pyproject.toml").read_text()
    for name, path in modules():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        assert f'"{package}"' in text, package


def test_no_file_is_too_long_and_the_core_loop_is_short():
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules()}
    assert max(lengths.values()) <= 500, max(lengths, key=lengths.__getitem__)
    assert lengths["dpsweep.sweep"] < 300
