"""Trials of several methods with shares of their own, on real Ray."""

import pytest
from ray.util.placement_group import placement_group, remove_placement_group
from whole_studies import make_spec

import dpsweep
from dpsweep import SweepSpec
from dpsweep.running import tuner
from dpsweep.running.nodes import waiting
from dpsweep.study.study import Observer


@pytest.mark.slow
@pytest.mark.ray
def test_each_method_asks_for_its_own_share(ray_cluster, tmp_path, monkeypatch):
    asked = {}

    class Noting(waiting.Waiting):
        def on_step_begin(self, iteration, trials, **info):
            for trial in trials:
                asked[trial.config["trial"]] = trial.placement_group_factory.required_resources

    monkeypatch.setattr(tuner, "Waiting", Noting)
    spec = make_spec(
        tmp_path,
        resources={"cpu": 0.5, "by_method": {"non_private": {"cpu": 2}}},
        search__sampler="grid",
        search__num_trials=4,
        search__space={
            "method": {"choice": ["dp_sgd", "non_private"]},
            "optim.lr": {"choice": [0.5, 1.0]},
            "train.epochs": 3,
        },
    )
    result = dpsweep.run_sweep(SweepSpec(**spec))
    assert [trial.state for trial in result.results] == ["finished"] * 4
    wanted = {"dp_sgd": {"CPU": 0.5}, "non_private": {"CPU": 2}}
    assert asked == {t.trial_id: wanted[t.config["method"]] for t in result.results}


class Hearing(Observer):
    def __init__(self, act):
        self.said, self.act = [], act

    def on_message(self, text):
        self.said.append(text)
        if "none runs" in text:
            self.act()


@pytest.mark.slow
@pytest.mark.ray
def test_a_study_says_that_a_full_cluster_is_what_it_waits_for(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE_S", 1.0)
    group = placement_group([{"CPU": 2}])
    ray_cluster.get(group.ready(), timeout=30)
    hearing = Hearing(lambda: remove_placement_group(group))
    spec = make_spec(tmp_path, search__num_trials=1)
    spec["search"]["space"] = {"method": "dp_sgd", "optim.lr": 1.0, "train.epochs": 3}
    result = dpsweep.run_sweep(SweepSpec(**spec), observer=hearing)
    assert [trial.state for trial in result.results] == ["finished"]
    (line,) = [text for text in hearing.said if "none runs" in text]
    assert line.startswith("1 trial waiting for 0:0")
    assert "one asks for 2 CPUs and 0 GPUs; free are 0 of 2 CPUs and 0 of 0 GPUs" in line
    assert any(text.startswith("trials run, after ") for text in hearing.said)
