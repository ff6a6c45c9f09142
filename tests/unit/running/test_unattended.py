"""A launch that began by itself, after one that only failed, starts nothing; a person's goes on."""

import pytest
from no_cluster import execute_here
from studies_here import run_here
from whole_studies import make_spec

from dpsweep.foundation.errors import StudyError, SweepError
from dpsweep.foundation.logs import read_log
from dpsweep.results.study import load_sweep
from dpsweep.running.failing import FailingSource
from dpsweep.study.trial import TrialReport


@pytest.fixture
def raw(tmp_path):
    raw = make_spec(tmp_path, "fails", search__num_trials=30, tracking={"uri": None})
    raw["search"]["space"] = {"method": "dp_sgd", "model.name": "linear", "train.max_steps": 5}
    return raw


def fail(stage, source, target):
    """Stand for ``Stage.execute``, with trials that all fail."""
    source = FailingSource(source, is_hidden=stage.fresh_attempts)
    stage.begin(source)
    while (task := source.next_task(num_running=0)) is not None:
        stage.on_report(TrialReport(task.trial, 0, {}, 0.0, done=True, failure="broken"))
        stage.on_end(task.trial)


def launch(monkeypatch, raw, execute):
    def patch(owner, name, value):
        monkeypatch.setattr(owner, name, execute if name == "execute" else value)

    return run_here(patch, raw)


def test_an_automatic_launch_after_one_that_only_failed_starts_nothing(raw, monkeypatch):
    raw["search"]["num_trials"] = 12
    with pytest.raises(SweepError, match="10 of 10 trials failed") as first:
        launch(monkeypatch, raw, fail)
    assert first.value.exit_code == 1
    result = load_sweep("fails", root=raw["storage"]["path"])
    assert (result.state, result.view.end_reason) == ("failed", "nearly all of its trials failed")
    before = read_log(result.files.journal)

    monkeypatch.setenv("DPSWEEP_UNATTENDED", "1")
    for _ in range(2):
        with pytest.raises(
            StudyError, match="nearly all trials of its last launch failed"
        ) as error:
            launch(monkeypatch, raw, fail)
        assert error.value.exit_code == 2
        assert "--set cluster.kuberay.retries=0" in error.value.fix
        assert read_log(result.files.journal) == before

    monkeypatch.delenv("DPSWEEP_UNATTENDED")  # a person's
    assert len(launch(monkeypatch, raw, execute_here).view.trials) == 12


def test_an_automatic_launch_after_any_other_end_goes_on(raw, monkeypatch):
    def break_off(stage, source, target):
        raise SweepError("something else")

    monkeypatch.setenv("DPSWEEP_UNATTENDED", "1")
    with pytest.raises(SweepError, match="something else"):
        launch(monkeypatch, raw, break_off)
    with pytest.raises(SweepError, match="10 of 10 trials failed"):
        launch(monkeypatch, raw, fail)
    for none in ("", "0"):
        monkeypatch.setenv("DPSWEEP_UNATTENDED", none)
        with pytest.raises(SweepError, match="10 of 10 trials failed"):
            launch(monkeypatch, raw, fail)
    with pytest.raises(SweepError, match="something else"):
        launch(monkeypatch, raw, break_off)
    monkeypatch.setenv("DPSWEEP_UNATTENDED", "1")
    with pytest.raises(SweepError, match="something else"):
        launch(monkeypatch, raw, break_off)
