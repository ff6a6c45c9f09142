"""Studies that an earlier version made: they open, continue and report as they did then."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.sweep import run_sweep

GOLDEN = Path(__file__).parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))

import make_studies  # noqa: E402

NAMES = sorted(path.name for path in (GOLDEN / "old_studies").iterdir())
#: Scores are of the same numbers; the last digits of a mean may depend on who adds them up.
CLOSE = 1e-9


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The old studies below the current directory, as their specs say."""
    shutil.copytree(GOLDEN / "old_studies", tmp_path / "studies")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def alike(one, other):
    """Return whether two JSON values are the same, numbers closely."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=CLOSE)
    return bool(one == other) and type(one) is type(other)


def test_there_is_one_of_each_kind():
    assert set(NAMES) == set(make_studies.specs())


@pytest.mark.parametrize("name", NAMES)
def test_it_reads_as_it_did(here, name):
    before = json.loads((here / "studies" / name / "readings.json").read_text())
    now = make_studies.readings(name)
    assert now.keys() == before.keys()
    for verb, said in before.items():
        assert alike(now[verb], said), f"{verb}: {now[verb]} is not {said}"


def epsilons(name):
    """Return the epsilon that each trial has charged, by its ledger."""
    files = StudyFiles(Path("studies"), name)
    numbers = sorted(int(path.stem.split("-")[1]) for path in files.ledger.glob("trial-*.jsonl"))
    return {n: epsilon_of(trial_spent(files.ledger, n), delta=make_studies.DELTA) for n in numbers}


@pytest.mark.ray
@pytest.mark.parametrize("name", [name for name in NAMES if name != "select"])
def test_it_continues(here, name, ray_cluster):
    """A finished one spends nothing more; an interrupted one goes on where it was."""
    before = epsilons(name)
    result = run_sweep(SweepSpec.from_yaml(Path("studies", name, "spec.yaml")))
    assert result.state == "finished"
    after = epsilons(name)
    if name != "interrupted":
        assert after == before
        return
    trials = {trial.trial_id: trial.state.value for trial in result.results}
    assert trials == dict.fromkeys(range(4), "finished")
    assert {n: after[n] for n in (0, 1)} == {n: before[n] for n in (0, 1)}
    assert after[2] > before[2]
    assert all(epsilon <= 1.0 for epsilon in after.values())
    assert result.study_statement().epsilon == 3.0
