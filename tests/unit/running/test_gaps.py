"""Numbers that no trial has: configurations that did not fit into the study's budget."""

import optuna
import pytest
from studies_here import run_here
from whole_studies import make_spec

from dpsweep.foundation.logs import read_log
from dpsweep.results.study import load_sweep
from dpsweep.running.stage import Stage
from dpsweep.search.suggestions import Suggestions
from dpsweep.study.events import TrialInfeasible, event_of

EPSILON = "noise.target_epsilon"


def grid(root, epsilons):
    space = {"method": "dp_sgd", EPSILON: {"choice": epsilons}}
    space |= {"train.max_steps": 3, "batch.expected": 64}
    privacy = {"accounting": "composed", "trial_epsilon": 3, "study_epsilon": 3, "delta": 1e-4}
    raw = make_spec(root, "grid", tracking={"uri": None}, privacy=privacy)
    raw["search"] |= {"sampler": "grid", "space": space, "num_trials": len(epsilons)}
    return raw


def refused(result):
    events = map(event_of, read_log(result.files.journal))
    return [(e.trial, e.reason, e.hparams) for e in events if isinstance(e, TrialInfeasible)]


def test_a_point_of_a_grid_that_did_not_fit_is_told_and_is_none_that_was_tried(
    tmp_path, monkeypatch
):
    result = run_here(monkeypatch.setattr, grid(tmp_path, [1.0, 2.9, 1.1]))
    lacking = {*range(3)} - {*result.view.trials}
    assert len(lacking) == 1
    ((number, reason, hparams),) = refused(result)
    space = {EPSILON: hparams[EPSILON], "train.max_steps": 3, "batch.expected": 64}
    assert hparams == {"method": "dp_sgd", **space}
    assert {number} == lacking
    assert "does not fit into what is left of the study's budget" in reason
    assert result.view.num_infeasible == 1
    again = load_sweep("grid", root=result.files.path.parent)
    assert "but 1, which did not fit into the budget" in again.status_line()


def test_a_whole_grid_was_tried(tmp_path, monkeypatch):
    result = run_here(monkeypatch.setattr, grid(tmp_path, [0.5, 0.6]))
    assert sorted(result.view.trials) == [0, 1]
    assert refused(result) == []
    assert "but" not in result.status_line()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("owner", [Stage, Suggestions], ids=["journal", "Optuna"])
def test_a_gap_is_told_by_the_launch_after_one_that_was_killed_just_then(
    tmp_path, monkeypatch, owner
):
    raw = grid(tmp_path, [1.0, 2.9, 1.1])

    def die(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, "refuse", die)
        with pytest.raises(Killed):
            run_here(patch.setattr, raw)
    result = run_here(monkeypatch.setattr, raw)
    assert len(result.view.trials) == 2
    ((number, _, hparams),) = refused(result)
    assert {number} == {*range(3)} - {*result.view.trials}
    epsilons = {trial.hparams[EPSILON] for trial in result.view.trials.values()}
    assert {hparams[EPSILON], *epsilons} == {1.0, 2.9, 1.1}
    assert "but 1, which did not fit into the budget" in result.status_line()
    study = optuna.load_study(study_name="grid", storage=f"sqlite:///{result.files.optuna}")
    assert [t.number for t in study.trials if "infeasible" in t.user_attrs] == [number]
    assert all(t.state.is_finished() for t in study.trials)
