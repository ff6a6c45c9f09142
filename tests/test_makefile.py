"""What the Makefile may delete."""

import shutil
import subprocess

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
