"""Tune's own files in a study are closed to others while they are there, and go at its end."""

import os
import shutil

import pytest
from no_cluster import NoCluster, execute_here
from studies_here import run_here
from whole_studies import make_spec

from dpsweep.foundation.errors import StorageError
from dpsweep.running import stage as stages
from dpsweep.running.stage import Stage
from dpsweep.running.traces import closed, remove_traces


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def raw(tmp_path):
    raw = make_spec(tmp_path, "short", search__num_trials=1, tracking={"uri": None})
    raw["search"]["space"] = {"method": "dp_sgd", "model.name": "linear", "train.max_steps": 2}
    return raw


def mode_of(path):
    return path.stat().st_mode & 0o777


def leave_traces(study):
    """Leave what Tune has left in studies of earlier versions, open to everybody."""
    (study / "ray" / "tune" / "636866ba").mkdir(parents=True)
    (study / "ray" / "tune" / "experiment_state-1.json").write_text('{"time_total_s": 3}')
    return study / "ray"


def launch(monkeypatch, raw, execute):
    def patch(owner, name, value):
        monkeypatch.setattr(owner, name, execute if name == "execute" else value)

    return run_here(patch, raw)


def test_a_new_folder_is_closed_and_so_is_an_open_one(tmp_path):
    assert closed(tmp_path / "ray") == tmp_path / "ray"
    assert mode_of(tmp_path / "ray") == 0o700
    old = leave_traces(tmp_path / "old")
    assert mode_of(old) == 0o755
    closed(old)
    assert mode_of(old) == 0o700
    assert (old / "tune" / "experiment_state-1.json").exists()


def test_the_folder_of_a_study_that_was_moved_is_not_made_again(tmp_path):
    with pytest.raises(StorageError, match="ray cannot be made"):
        closed(tmp_path / "moved" / "ray")
    assert not (tmp_path / "moved").exists()


def test_a_stage_closes_the_folder_before_tune_has_it(tmp_path, raw, monkeypatch):
    class Begun(Exception):
        """Tune would begin."""

    modes = []

    def make_tuner(*args, storage, **more):
        modes.append((storage.relative_to(tmp_path).as_posix(), mode_of(storage)))
        raise Begun

    monkeypatch.setattr(stages, "make_tuner", make_tuner)
    monkeypatch.setattr(NoCluster, "slots", lambda self: 1, raising=False)
    execute = Stage.execute
    for before in (None, 0o755):
        if before is not None:
            (tmp_path / "studies" / "short" / "ray").chmod(before)
        with pytest.raises(Begun):
            launch(monkeypatch, raw, execute)
    assert modes == [("studies/short/ray", 0o700)] * 2


def test_what_tune_has_left_goes_with_the_end_of_a_study(tmp_path, raw, monkeypatch):
    def execute(stage, source, target):
        leave_traces(stage.study.files.path)
        return execute_here(stage, source, target)

    result = launch(monkeypatch, raw, execute)
    assert result.state == "finished"
    assert not (result.files.path / "ray").exists()

    leave_traces(result.files.path)  # as a study that an earlier version has finished
    launch(monkeypatch, raw, execute)
    assert not (result.files.path / "ray").exists()


def test_an_interrupted_study_keeps_them(raw, monkeypatch, tmp_path):
    def execute(stage, source, target):
        leave_traces(stage.study.files.path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(monkeypatch, raw, execute)
    assert (tmp_path / "studies" / "short" / "ray" / "tune").exists()


def test_it_is_said_where_they_cannot_be_removed(tmp_path, monkeypatch):
    said = []
    remove_traces(tmp_path / "none", said.append)
    assert said == []
    left = leave_traces(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, **options: None)
        remove_traces(left, said.append)
    (line,) = said
    assert line.startswith(f"{left} could not be removed")
    assert "how long each trial ran" in line
