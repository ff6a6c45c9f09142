"""Numbers that no trial has: configurations that did not fit into the study's budget."""

from studies_here import run_here
from whole_studies import make_spec

from dpsweep.foundation.logs import read_log
from dpsweep.results.study import load_sweep
from dpsweep.study.events import TrialInfeasible, event_of


def grid(root, epsilons):
    space = {"method": "dp_sgd", "noise.target_epsilon": {"choice": epsilons}}
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
    assert hparams["method"] == "dp_sgd"  # as of a trial that was started
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
