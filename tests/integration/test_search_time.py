"""``search.max_time`` counts what launches ran, and a search that it has ended can go on."""

import time
from types import SimpleNamespace

import pytest
from whole_studies import make_spec

from dpsweep.foundation.logs import read_log
from dpsweep.spec.study import SweepSpec

pytestmark = pytest.mark.ray
DAY_NS = 86_400 * 10**9


@pytest.mark.slow
def test_a_pause_is_no_time_of_a_search_and_more_time_lets_it_go_on(
    tmp_path, ray_cluster, monkeypatch
):
    from dpsweep.sweep import run_sweep

    def launch(**search):
        raw = make_spec(tmp_path, "hurry", tracking={"uri": None})
        raw["search"] = {**raw["search"], **search}
        result = run_sweep(SweepSpec(**raw))
        assert result.state == "finished"
        begun = [r for r in read_log(result.files.journal) if r["event"] == "study_started"]
        return len(result.results), result.view.end_reason, len(begun)

    all_started, passed = "all trials were started", "search.max_time has passed"
    with monkeypatch.context() as yesterday:
        clock = SimpleNamespace(time_ns=lambda: time.time_ns() - DAY_NS)
        yesterday.setattr("dpsweep.study.study.time", clock)
        assert launch(num_trials=1) == (1, all_started, 1)
    assert launch(num_trials=2, max_time="1h") == (2, all_started, 2)
    assert launch(num_trials=3, max_time=0.001) == (2, passed, 3)
    assert launch(num_trials=3, max_time=0.001) == (2, passed, 3)  # it has finished
    assert launch(num_trials=3, max_time=0.002) == (2, passed, 3)  # so much has passed, too
    assert launch(num_trials=3, max_time="1h") == (3, all_started, 4)
    assert launch(num_trials=4, max_time=0.001) == (3, passed, 5)
    assert launch(num_trials=4, max_time=None) == (4, all_started, 6)
