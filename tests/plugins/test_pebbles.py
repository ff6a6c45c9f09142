"""A package that dpsweep has never heard of brings a method, its space, a dataset, a sampler, ...

Wheels of both are installed into a fresh environment; a sweep is run there by the command line.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dpsweep.testing.conformance import MethodConformance
from dpsweep.testing.datasets import DatasetConformance
from dpsweep.testing.samplers import SamplerConformance
from dpsweep.testing.spaces import RecommendedConformance
from dpsweep.testing.trackers import TrackerConformance

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).parent / "pebbles"
SOURCES = ("platform", "trainables", "search_spaces", "cluster", "pyproject.toml", "README.md")
SPEC = """
name: heaps
data:
  dataset: pebbles
  num_records: 1000
  validation: {fraction: 0.2, visibility: public}
  test: {visibility: public}
privacy: {trial_epsilon: 1.0, study_epsilon: 3.0, accounting: composed}
search:
  sampler: grid
  num_trials: 2
  space: {method: pebble_means, release.count: {choice: [1, 4]}}
tracking: {kind: pebble_csv, uri: heaps.csv}
cluster: {target: doorstep, num_cpus: 2}
"""


def method() -> Any:
    """Return the method, from the source of its package."""
    source = str(PACKAGE / "src")
    if source not in sys.path:
        sys.path.append(source)
    from dpsweep_pebbles.means import PebbleMeans

    return PebbleMeans


class TestPebbleMeans(MethodConformance):
    method = method()
    given = {"release.count": 20}  # noqa: RUF012


class TestPebbles(DatasetConformance):
    @staticmethod
    def opener(spec: Any) -> Any:
        from dpsweep_pebbles.records import open_pebbles

        return open_pebbles(spec)

    data: ClassVar[dict[str, Any]] = {"num_records": 300}


class TestPebbleSpaces(RecommendedConformance):
    method = method()

    @property
    def recommended(self) -> Any:
        from dpsweep_pebbles.spaces import RECOMMENDED

        return RECOMMENDED


class TestPebbleDraws(SamplerConformance):
    @staticmethod
    def build(seed: int) -> Any:
        from dpsweep_pebbles.draws import build_draws

        return build_draws(seed)


class TestCsvTracker(TrackerConformance):
    def make(self, folder: Path) -> Any:
        from dpsweep_pebbles.rows import CsvTracker

        return CsvTracker(str(folder / "runs.csv"), "heaps", folder / "state.json")


def test_no_file_of_ours_names_the_package() -> None:
    folders = [ROOT / name for name in SOURCES]
    files = [path for folder in folders if folder.is_dir() for path in folder.rglob("*.py")]
    files += [path for path in folders if path.is_file()]
    assert len(files) > 200
    words = ("pebble", "doorstep")
    assert [path for path in files if any(word in path.read_text() for word in words)] == []


def build_wheel(source: Path, names: tuple[str, ...], folder: Path) -> Path:
    """Build a wheel of a copy of ``source``, as building leaves files there; needs no network."""
    copy = folder / f"{source.name}-source"
    copy.mkdir()
    for name in names:
        if (source / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source / name, copy / name, ignore=ignored)
        else:
            shutil.copy(source / name, copy)
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(copy)
    return max(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of a fresh environment with both packages; all else is borrowed from this one."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("outside")
    wheels = [
        build_wheel(ROOT, (*SOURCES, "LICENSE"), folder),
        build_wheel(PACKAGE, ("src", "pyproject.toml"), folder),
    ]
    home = folder / "venv"
    venv.create(home, symlinks=True)
    install = ["--python", str(home), "install", "-q", "--no-index", "--no-deps", *map(str, wheels)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *install],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (site,) = home.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("-packages")]
    (site / "zz_borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return home / "bin" / "dpsweep"


def run(program: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DPSWEEP_STUDIES")}
    return subprocess.run(
        [str(program), *words], cwd=folder, env=kept, capture_output=True, text=True, timeout=300
    )


@pytest.mark.ray
def test_a_sweep_with_parts_of_another_package(program: Path, tmp_path: Path) -> None:
    (tmp_path / "heaps.yaml").write_text(SPEC)
    refused = run(program, tmp_path, "validate", "heaps.yaml", "--set", "tracking.uri=heaps")
    assert (refused.returncode, "'heaps' is no .csv file" in refused.stderr) == (2, True)
    done = run(program, tmp_path, "run", "heaps.yaml")
    assert done.returncode == 0, done.stderr
    study = tmp_path / "studies" / "heaps"
    assert (study / "doorstep.txt").read_text() == "was here\n"
    for trial, count in (("0000", 1), ("0001", 4)):
        lines = (study / "ledger" / f"trial-{trial}.jsonl").read_text().splitlines()
        charges = [event for line in lines for event in json.loads(line).get("events", [])]
        assert sum(event["count"] for event in charges) == count
        assert {event["event"] for event in charges} == {"gaussian"}
    best = json.loads(run(program, tmp_path, "best", "heaps", "-f", "json").stdout)
    assert best["config"]["method"] == "pebble_means"
    assert 0 < best["epsilon"] <= 1.0
    with (tmp_path / "heaps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["trial"] for row in rows} == {"study", "0", "1"}
    scores = [
        float(row["value"])
        for row in rows
        if (row["kind"], row["name"]) == ("metric", "validation/accuracy")
    ]
    assert max(scores) > 0.9
    assert list(tmp_path.glob("heaps.*.pt"))
    # Where the package is gone, the study can be read; it cannot be run.
    without = Path(sys.executable).with_name("dpsweep")
    assert json.loads(run(without, tmp_path, "best", "heaps", "-f", "json").stdout) == best
    refused = run(without, tmp_path, "run", "heaps.yaml")
    assert (refused.returncode, "unknown value 'pebbles'" in refused.stderr) == (2, True)
    doctor = json.loads(run(program, tmp_path, "doctor", "-f", "json").stdout)
    added = {row["check"]: row["detail"] for row in doctor if "pebbles" in row["detail"]}
    assert added == dict.fromkeys(
        (
            "method pebble_means", "recommended space pebble_means", "dataset pebbles",
            "sampler pebble_draws", "tracker pebble_csv", "cluster target doorstep",
        ),
        "dpsweep-pebbles 0.3",
    )  # fmt: skip


def test_a_starter_and_a_sampler_of_another_package(program: Path, tmp_path: Path) -> None:
    written = run(
        program, tmp_path, "init", "new.yaml", "--dataset", "pebbles", "--method", "pebble_means"
    )
    assert written.returncode == 0, written.stderr
    text = (tmp_path / "new.yaml").read_text()
    assert "    # below the usual norm of a record\n    clip.max_norm: {" in text
    own = ("--set", "search.sampler=pebble_draws", "--set", "scheduler={type: fifo}")
    fine = run(program, tmp_path, "validate", "new.yaml", *own)
    assert fine.returncode == 0, fine.stderr
    sealed = ("--set", "privacy.accounting=select", "--set", "privacy.study_epsilon=null")
    refused = run(program, tmp_path, "validate", "new.yaml", *own, *sealed)
    assert refused.returncode == 2
    assert (
        "'pebble_draws' learns from other trials, and select needs them independent"
        in refused.stderr
    )
    network = ("--set", "pretrain={dataset: pebbles, model: tanh_cnn}")
    refused = run(program, tmp_path, "validate", "new.yaml", *network)
    assert (refused.returncode, "unknown value 'pebbles'" in refused.stderr) == (2, False)
