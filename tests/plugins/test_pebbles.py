"""Packages that dpsweep has never heard of bring methods, an event, a dataset, a sampler, a target.

Wheels of all are installed into a fresh environment, with one of a package that does not load; a
sweep is run there by the command line.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.testing.conformance import MethodConformance
from dpsweep.testing.datasets import DatasetConformance
from dpsweep.testing.samplers import SamplerConformance
from dpsweep.testing.spaces import RecommendedConformance
from dpsweep.testing.trackers import TrackerConformance

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).parent / "pebbles"
JUNIPERS = Path(__file__).parent / "junipers"
SOURCES = ("platform", "trainables", "search_spaces", "cluster", "pyproject.toml", "README.md")
SPEC = """
name: heaps
data:
  dataset: pebbles
  num_records: 1000
  validation: {fraction: 0.2, visibility: public}
  test: {visibility: public}
  public: {fraction: 0.2}
privacy: {trial_epsilon: 1.0, study_epsilon: 4.0, accounting: composed}
search:
  sampler: grid
  num_trials: 4
  space:
    method: {choice: [pebble_means, juniper_votes, juniper_sums]}
    release.count: {choice: [1, 4], when: {method: pebble_means}}
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
    words = ("pebble", "doorstep", "juniper", "thistle")
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


def thistles(folder: Path) -> Path:
    """Write a package whose one method cannot be imported."""
    home = folder / "thistles"
    (home / "src" / "dpsweep_thistles").mkdir(parents=True)
    (home / "src" / "dpsweep_thistles" / "__init__.py").write_text("import no_such_package\n")
    (home / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "dpsweep-thistles"\nversion = "0.1"\n'
        '[project.entry-points."dpsweep.trainables"]\nthistle = "dpsweep_thistles:Thistle"\n'
        '[project.entry-points."dpsweep.events"]\nthistle = "dpsweep_thistles:Prick"\n'
        '[project.entry-points."dpsweep.trainable"]\nteasel = "dpsweep_thistles:Teasel"\n'
    )
    return home


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of a fresh environment with the packages; all else is borrowed from this one."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("outside")
    wheels = [
        build_wheel(ROOT, (*SOURCES, "LICENSE"), folder),
        *(
            build_wheel(package, ("src", "pyproject.toml"), folder)
            for package in (PACKAGE, JUNIPERS, thistles(folder))
        ),
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
@pytest.mark.slow
def test_a_sweep_with_parts_of_another_package(program: Path, tmp_path: Path) -> None:
    (tmp_path / "heaps.yaml").write_text(SPEC)
    refused = run(program, tmp_path, "validate", "heaps.yaml", "--set", "tracking.uri=heaps")
    assert (refused.returncode, "'heaps' is no .csv file" in refused.stderr) == (2, True)
    done = run(program, tmp_path, "run", "heaps.yaml")
    assert done.returncode == 0, done.stderr
    study = tmp_path / "studies" / "heaps"
    assert (study / "doorstep.txt").read_text() == "was here\n"
    charged = Counter()
    for ledger in sorted((study / "ledger").glob("trial-*.jsonl")):
        lines = ledger.read_text().splitlines()
        charges = [event for line in lines for event in json.loads(line).get("events", [])]
        protected = [event for event in charges if event.get("part") != "public"]
        charged[protected[0]["event"], sum(event["count"] for event in protected)] += 1
    assert charged == {
        ("gaussian", 1): 1, ("gaussian", 4): 1, ("gaussian", 20): 1, ("juniper_tree", 1): 1
    }  # fmt: skip
    best = json.loads(run(program, tmp_path, "best", "heaps", "-f", "json").stdout)
    assert best["config"]["method"] in ("pebble_means", "juniper_votes", "juniper_sums")
    assert 0 < best["epsilon"] <= 1.0
    with (tmp_path / "heaps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["trial"] for row in rows} == {"study", "0", "1", "2", "3"}
    scores = [
        float(row["value"])
        for row in rows
        if (row["kind"], row["name"]) == ("metric", "validation/accuracy")
    ]
    assert max(scores) > 0.9
    assert min(scores) > 0.5
    assert list(tmp_path.glob("heaps.*.pt"))
    segment = {"event": "juniper_tree", "noise_multiplier": 10, "leaves": 8}
    (tmp_path / "tree.json").write_text(json.dumps([segment]))
    asked = ("account", "epsilon", "--delta", "1e-5", "-f", "json", "--events", "tree.json")
    tree = json.loads(run(program, tmp_path, *asked).stdout)
    gaussian = epsilon_of(Plan((EventRun(Gaussian(5.0)),)), delta=1e-5)
    assert tree["epsilon"] == pytest.approx(gaussian, rel=1e-6)
    assert tree["sampling"] == "full_batch"
    # Where the event's package is gone, its cost is not guessed.
    gone = run(Path(sys.executable).with_name("dpsweep"), tmp_path, "best", "heaps")
    assert (gone.returncode, "juniper_tree" in gone.stderr) == (2, True), gone.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_a_study_outlives_its_package(program: Path, tmp_path: Path) -> None:
    (tmp_path / "heaps.yaml").write_text(SPEC)
    fewer = ("--set", "search.space.method=pebble_means", "--set", "search.num_trials=2")
    done = run(program, tmp_path, "run", "heaps.yaml", *fewer)
    assert done.returncode == 0, done.stderr
    best = json.loads(run(program, tmp_path, "best", "heaps", "-f", "json").stdout)
    # Where the package is gone, the study can be read; it cannot be run.
    without = Path(sys.executable).with_name("dpsweep")
    assert json.loads(run(without, tmp_path, "best", "heaps", "-f", "json").stdout) == best
    refused = run(without, tmp_path, "run", "heaps.yaml")
    assert (refused.returncode, "unknown value 'pebbles'" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_doctor_lists_what_packages_add(program: Path, tmp_path: Path) -> None:
    doctor = run(program, tmp_path, "doctor", "-f", "json")
    assert doctor.returncode == 1
    rows = {row["check"]: row for row in json.loads(doctor.stdout)}
    added = {check: row["detail"] for check, row in rows.items() if row["status"] == "ok"}
    for names, package in (
        (("method pebble_means", "recommended space pebble_means", "dataset pebbles",
          "sampler pebble_draws", "tracker pebble_csv", "cluster target doorstep"),
         "dpsweep-pebbles 0.3"),
        (("method juniper_votes", "method juniper_sums", "event juniper_tree"),
         "dpsweep-junipers 0.1"),
    ):  # fmt: skip
        assert {added[name] for name in names} == {package}
    for check in ("method thistle", "event thistle"):
        assert rows[check]["status"] == "broken"
        assert rows[check]["detail"].startswith("dpsweep-thistles 0.1: ModuleNotFoundError")
    misplaced = rows["entry point teasel"]
    assert misplaced["status"] == "note"
    assert "dpsweep-thistles 0.1 adds it to dpsweep.trainable" in misplaced["detail"]
    assert misplaced["remedy"] == "did you mean 'dpsweep.trainables'?"


@pytest.mark.slow
def test_what_does_not_load_breaks_what_uses_it_alone(program: Path, tmp_path: Path) -> None:
    (tmp_path / "heaps.yaml").write_text(SPEC)
    done = run(program, tmp_path, "validate", "heaps.yaml")
    assert done.returncode == 0, done.stderr
    refused = run(
        program, tmp_path, "validate", "heaps.yaml", "--set", "search.space.method=thistle"
    )
    assert refused.returncode == 2
    said = " ".join(refused.stderr.split())
    assert "method 'thistle' of dpsweep-thistles 0.1 cannot be loaded" in said
    assert "No module named 'no_such_package'" in said
    listed = json.loads(run(program, tmp_path, "methods", "-f", "json").stdout)
    names = {row["method"] for row in listed}
    assert {"dp_sgd", "pebble_means", "juniper_sums"} <= names
    assert "thistle" not in names


@pytest.mark.slow
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
