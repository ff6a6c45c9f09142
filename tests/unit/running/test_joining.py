"""A launch whose cluster cannot be had has charged nothing, and its study is as if it were not."""

import pytest
import yaml
from whole_studies import cli_here, make_spec

from dpsweep.foundation.errors import ResourceError, StorageError
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.planning.preflight import preflight
from dpsweep.running.nodes.cluster import LaunchCluster
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.launched import has_begun


@pytest.fixture
def raw(tmp_path):
    privacy = {
        "delta": 1e-5, "trial_epsilon": 2.0, "study_epsilon": 4.2, "accounting": "composed",
        "dataset_ledger": str(tmp_path / "digits.budget"), "dataset_epsilon": 6.0,
        "dataset_delta": 1e-4,
    }  # fmt: skip
    return make_spec(tmp_path, "unjoined", tracking={"uri": None}, privacy=privacy)


def run(tmp_path, raw):
    spec = tmp_path / "sweep.yaml"
    spec.write_text(yaml.safe_dump(raw))
    return cli_here("run", str(spec))


@pytest.fixture
def unreachable(monkeypatch):
    def refuse(self, say):
        raise ResourceError("no Ray cluster answers", fix="start one")

    monkeypatch.setattr(LaunchCluster, "begin", lambda self: None)
    monkeypatch.setattr(LaunchCluster, "join", refuse)


def test_a_cluster_that_does_not_answer_costs_the_dataset_nothing(tmp_path, raw, unreachable):
    done = run(tmp_path, raw)
    assert done.returncode == 2
    assert "no Ray cluster answers" in done.stderr
    assert not (tmp_path / "digits.budget").exists()
    assert not has_begun(StudyFiles.at(tmp_path / "studies" / "unjoined"))


@pytest.mark.slow
def test_until_something_is_charged_a_spec_may_change(tmp_path, raw, unreachable):
    run(tmp_path, raw)
    raw["search"]["space"]["optim.lr"] = 0.123
    raw["data"]["max_private"] = 500
    done = run(tmp_path, raw)
    assert "no Ray cluster answers" in done.stderr
    frozen = yaml.safe_load((tmp_path / "studies" / "unjoined" / "spec.yaml").read_text())
    assert frozen["search"]["space"]["optim.lr"] == 0.123


@pytest.mark.parametrize("way", ["closed", "spent"])
def test_a_launch_that_its_dataset_refuses_late_leaves_a_study_that_is_new(
    tmp_path, raw, unreachable, monkeypatch, way
):
    """Its ledger is closed meanwhile, or another study has taken the rest of the budget."""
    ledger = tmp_path / "digits.budget"
    spec = preflight(SweepSpec(**raw))
    other = {
        "directory": tmp_path / "other", "dataset": spec.dataset_name, "accounting": "composed",
        "parts": spec.dataset_parts, "delta": 1e-5, "cap_epsilon": 6.0, "cap_delta": 1e-4,
    }  # fmt: skip
    DatasetLedger(ledger).reserve("a", "other", epsilon=1.0, **other)

    def meanwhile(*_):
        if way == "spent":
            DatasetLedger(ledger).reserve("b", "quick", epsilon=4.0, **other)
            return
        monkeypatch.setattr("dpsweep.ledgers.dataset.open_log", refuse)

    def refuse(path, **options):
        raise StorageError(f"cannot write {path}: Permission denied", fix="make room")

    monkeypatch.setattr("dpsweep.sweep.join_cluster", meanwhile)
    done = run(tmp_path, raw)
    assert done.returncode == 2
    assert ("does not fit" in done.stderr) == (way == "spent"), done.stderr
    assert ("chmod g+rw" in done.stderr) == (way == "closed"), done.stderr
    assert not has_begun(StudyFiles.at(tmp_path / "studies" / "unjoined"))


def test_a_damaged_ledger_is_told_before_its_cluster_is_asked(tmp_path, raw, unreachable):
    run(tmp_path, raw)
    ledger = tmp_path / "studies" / "unjoined" / "ledger"
    ledger.mkdir()
    (ledger / "study.jsonl").write_text("no record\n")
    done = run(tmp_path, raw)
    assert done.returncode == 1
    assert "study.jsonl" in done.stderr
    assert "no Ray cluster answers" not in done.stderr
