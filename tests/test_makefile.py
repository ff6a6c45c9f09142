"""What the Makefile may delete, and when `make coverage` fails."""

import importlib.util
import json
import shutil
import subprocess

import pytest
from import_graph import ROOT

KEPT = (
    "studies/first/ledger/study.jsonl",
    "studies/first/code/__pycache__/own.pyc",
    "dataset-ledger.jsonl",
    "mlflow.db",
    "mlartifacts/1/model/data.pt",
    "mlruns/0/meta.yaml",
)
REMOVED = ("build/check/site/dpsweep.py", "dist/dpsweep.whl", "tests/__pycache__/test.pyc")


def test_clean_names_no_study_ledger_or_tracking_store():
    commands = subprocess.check_output(["make", "-n", "clean"], text=True, cwd=ROOT)
    removals = [line for line in commands.splitlines() if line.startswith("rm ")]
    assert len(removals) == 1
    assert set(removals[0].split()[2:]) == {
        "build",
        "dist",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
    }


def test_clean_keeps_what_was_spent_and_removes_what_can_be_made_again(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in KEPT + REMOVED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    subprocess.run(["make", "clean"], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert [name for name in KEPT if not (tmp_path / name).is_file()] == []
    assert [name for name in REMOVED if (tmp_path / name).exists()] == []


@pytest.mark.parametrize(
    ("privacy", "ledgers", "code"), [(95, 100, 0), (94, 100, 1), (100, 94, 1), (0, 100, 1)]
)
def test_coverage_fails_below_a_floor_of_either_room(privacy, ledgers, code, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("floors", ROOT / "tests" / "branch_floors.py")
    floors = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(floors)
    files = {
        f"platform/dpsweep/{room}/{name}.py": {
            "summary": {"num_branches": 50, "covered_branches": taken},
            "missing_branches": [[7, -3]] if taken < 50 else [],
        }
        for room, share in (("privacy", privacy), ("ledgers", ledgers))
        for name, taken in (("a", 50 if share else 0), ("b", max(share - 50, 0)))
    }
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"files": files}))
    assert floors.main(path) == code
    assert f"dpsweep/privacy: {privacy:.1f}% of branches, at least 95%" in capsys.readouterr().out
