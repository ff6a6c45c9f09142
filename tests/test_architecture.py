"""The structure that the README promises: import direction, doors, packages, lazy imports."""

import re
import subprocess
import sys

import import_graph
import pytest
from import_graph import ROOT, imports, modules

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


def test_there_is_no_circle():
    assert import_graph.circle(import_graph.graph()) == []


def test_a_circle_would_be_seen(tmp_path):
    """Also one of a lazy import and one for types."""
    (tmp_path / "a.py").write_text("def f():\n    from dpsweep.b import g\n")
    (tmp_path / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dpsweep.a import f\n"
    )
    edges = import_graph.graph({f"dpsweep.{n}": tmp_path / f"{n}.py" for n in "ab"})
    assert set(import_graph.circle(edges)) == {"dpsweep.a", "dpsweep.b"}


def test_the_page_about_the_structure_names_what_is_there():
    page = (ROOT / "docs" / "structure.md").read_text()
    named = {word for word in re.findall(r"`([a-z_/]+(?:/|\.py|\.md))`", page) if "/" in word}
    assert len(named) > 15
    for word in named:
        assert any((base / word).exists() for base in (ROOT, ROOT / "platform" / "dpsweep")), word
    for package in import_graph.rooms():
        assert package in page, package


def test_no_folder_is_too_full():
    counts = import_graph.files_by_folder()
    assert max(counts.values()) <= 16, counts.most_common(1)


def test_cleaning_keeps_what_was_spent():
    """A deleted ledger is forgotten privacy."""
    command = ["make", "-n", "clean"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "rm -rf" in said
    assert not any(word in said for word in ("studies", "mlflow", "mlartifacts", "ledger"))


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
