from __future__ import annotations

import pytest

from dpsweep.foundation.errors import StorageError
from dpsweep.tracking.base import TrackingRefusedError
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.updates import read_events


def test_the_state_makes_no_folder_in_the_place_of_a_study_that_was_moved(tmp_path):
    with pytest.raises(StorageError, match="No such file or directory"):
        TrackingState(seq=3).save(tmp_path / "digits" / "tracking.json")
    assert list(tmp_path.iterdir()) == []


def test_a_study_becomes_a_parent_and_children(story) -> None:
    tracker = MemoryTracker()
    tracker.handle(story.whole(trials=3, reports=4))
    assert set(tracker.runs) == {None, 0, 1, 2}
    parent, child = tracker.runs[None], tracker.runs[1]
    assert child.parent_run_id == tracker.parent_run_id == parent.run_id
    assert parent.status == child.status == "FINISHED"
    assert parent.history("best/value") == [(1, 0.9), (2, 0.91), (3, 0.92)]
    assert parent.history("search/finished") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert parent.texts["privacy_card.md"] == "## Final card\n"
    assert [step for step, _ in child.history("dp/epsilon")] == [25, 50, 75, 100]
    assert [step for step, _ in child.history("curve/validation/accuracy")] == [25, 50, 75, 100]
    assert child.history("validation/accuracy") == [(100, 0.91)]  # once, of the delivered model
    assert child.params["optim.lr"] == "1.5"
    assert child.tags["plan.steps"] == "100"
    assert "model.checkpoint" not in child.params
    assert child.tags["dp.delta"] == "1e-05"
    assert child.tags["dpsweep.trial"] == "1"


def test_an_end_that_repeats_the_last_report_adds_no_point(story) -> None:
    story.start()
    story.start_trial(0)
    story.report(0, 100, 1.99, 0.9)
    story.end_trial(0, step=100, epsilon=1.99, accuracy=0.9)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert tracker.runs[0].history("validation/accuracy") == [(100, 0.9)]
    assert tracker.runs[0].history("dp/epsilon") == [(100, 1.99)]


def test_any_split_and_replay_gives_the_same_runs(story) -> None:
    events = story.whole()
    whole = MemoryTracker()
    whole.handle(events)
    for cut in range(len(events) + 1):
        tracker = MemoryTracker()
        tracker.handle(events[:cut])
        tracker.handle(events)
        tracker.handle(events)
        assert tracker.runs == whole.runs


@pytest.mark.parametrize(
    ("state", "status"), [("finished", "FINISHED"), ("pruned", "KILLED"), ("failed", "FAILED")]
)
def test_end_states_are_told_truthfully(story, state: str, status: str) -> None:
    story.start()
    story.start_trial(0)
    story.end_trial(0, state=state, reason="because")
    tracker = MemoryTracker()
    tracker.handle(story.events)
    run = tracker.runs[0]
    assert (run.status, run.tags["dpsweep.state"]) == (status, state)
    assert run.tags["dpsweep.reason"] == "because"
    assert tracker.runs[None].history(f"search/{state}") == [(1, 1.0)]


def test_infeasible_configurations_have_no_run(story) -> None:
    story.start()
    story.add("trial_infeasible", trial=0, hparams={}, reason="over budget")
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert set(tracker.runs) == {None}
    assert tracker.runs[None].history("search/infeasible") == [(1, 1.0)]


def test_an_interrupted_study_leaves_nothing_running_and_resumes(story) -> None:
    story.start()
    story.start_trial(0)
    story.end_trial(0)
    story.start_trial(1)
    story.report(1, 25, 0.5, 0.6)
    story.end("interrupted")
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert {run.status for run in tracker.runs.values()} == {"FINISHED", "KILLED"}
    assert tracker.runs[1].tags["dpsweep.state"] == "interrupted"
    before = {trial: run.run_id for trial, run in tracker.runs.items()}

    story.start()
    story.start_trial(1)
    tracker.handle(story.events)
    assert tracker.runs[None].status == tracker.runs[1].status == "RUNNING"
    assert tracker.runs[0].status == "FINISHED"
    story.report(1, 25, 0.9, 0.61)  # the repeated segment was charged again
    story.end_trial(1)
    story.end()
    tracker.handle(story.events)
    assert {run.status for run in tracker.runs.values()} == {"FINISHED"}
    assert {trial: run.run_id for trial, run in tracker.runs.items()} == before
    assert tracker.runs[1].history("dp/epsilon") == [(25, 0.5), (25, 0.9), (100, 1.99)]


def test_a_paused_trial_stays_open_until_it_goes_on(story) -> None:
    story.start()
    story.start_trial(0)
    story.report(0, 25, 0.5, 0.6)
    story.verdict(0, 25, "pause")
    story.pause(0, 25)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    run, parent = tracker.runs[0], tracker.runs[None]
    assert (run.status, run.tags["dpsweep.state"]) == ("RUNNING", "paused")
    assert run.tags["dpsweep.verdict"] == "rung 1: pause at 0.6, cut-off 0.7"
    assert run.history("dp/epsilon") == [(25, 0.5)]
    assert parent.history("search/paused") == [(0, 1.0)]

    story.report(0, 50, 1.0, 0.7)  # within one launch it goes on without a new start
    tracker.handle(story.events)
    assert run.tags["dpsweep.state"] == "running"
    assert parent.history("search/paused") == [(0, 1.0), (0, 0.0)]
    story.pause(0, 50, epsilon=1.0)
    story.end_trial(0, 50, 1.0, 0.7, state="pruned", reason="never continued")
    story.end()
    tracker.handle(story.events)
    assert (run.status, run.tags["dpsweep.state"]) == ("KILLED", "pruned")
    assert [value for _, value in parent.history("search/paused")] == [1.0, 0.0, 1.0, 0.0, 0.0]


def test_a_trial_that_is_paused_at_the_end_of_the_study_is_interrupted(story) -> None:
    story.start()
    story.start_trial(0)
    story.pause(0, 25)
    story.end("interrupted")
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert (tracker.runs[0].status, tracker.runs[0].tags["dpsweep.state"]) == (
        "KILLED",
        "interrupted",
    )
    story.start()
    story.start_trial(0)
    tracker.handle(story.events)
    assert tracker.runs[0].tags["dpsweep.state"] == "running"
    story.end_trial(0)
    story.end()
    tracker.handle(story.events)
    assert {run.status for run in tracker.runs.values()} == {"FINISHED"}


def test_a_study_says_why_it_started_nothing_more(story) -> None:
    story.start()
    story.end(end_reason="no further trial fits into the budget")
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert tracker.runs[None].tags["dpsweep.reason"] == "no further trial fits into the budget"


def test_a_pause_of_a_trial_that_does_not_run_is_refused(story) -> None:
    story.start()
    story.pause(0, 25)
    story.start_trial(1)
    story.end_trial(1)
    story.pause(1, 25)
    story.verdict(7, 25, "stop")
    tracker = MemoryTracker()
    with pytest.raises(TrackingRefusedError) as caught:
        tracker.handle(story.events)
    assert caught.value.refused == (
        "trial 0: paused while it was not running",
        "trial 1: paused while it was not running",
        "trial 7: verdict before its start",
    )
    assert tracker.runs[1].tags["dpsweep.state"] == "finished"


def test_the_latest_verdict_is_a_tag_and_a_stop_is_the_reason(story) -> None:
    story.start()
    story.start_trial(0)
    story.verdict(0, 25, "continue", rung=1)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    tags = tracker.runs[0].tags
    assert tags["dpsweep.verdict"] == "rung 1: continue at 0.6, cut-off 0.7"
    assert "dpsweep.reason" not in tags
    story.verdict(0, 50, "stop", rung=2)
    tracker.handle(story.events)
    assert tags["dpsweep.verdict"] == tags["dpsweep.reason"]
    assert tags["dpsweep.reason"] == "rung 2: stop at 0.6, cut-off 0.7"
    assert tracker.runs[0].metrics == []


def test_no_epsilon_without_its_statement(story) -> None:
    story.start(tags={"dp.delta": 1e-05})
    story.start_trial(0)
    story.report(0, 25, 0.5, 0.6)
    tracker = MemoryTracker()
    with pytest.raises(TrackingRefusedError, match=r"without dp.unit, dp.adjacency"):
        tracker.handle(story.events)
    assert tracker.runs[0].history("dp/epsilon") == []
    assert tracker.runs[0].history("curve/validation/accuracy") == [(25, 0.6)]


def test_epsilon_that_goes_down_is_refused(story) -> None:
    story.start()
    story.start_trial(0)
    story.report(0, 50, 1.0, 0.6)
    story.report(0, 75, 0.8, 0.7)
    tracker = MemoryTracker()
    with pytest.raises(TrackingRefusedError, match=r"went down from 1 to 0\.8 at step 75"):
        tracker.handle(story.events)
    assert tracker.runs[0].history("dp/epsilon") == [(50, 1.0)]
    assert tracker.last_seq == 3


def test_rounding_of_epsilon_is_no_decrease(story) -> None:
    story.start()
    story.start_trial(0)
    story.report(0, 50, 1.0, 0.6)
    story.report(0, 75, 1.0 - 1e-9, 0.7)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert tracker.runs[0].history("dp/epsilon") == [(50, 1.0), (75, 1.0)]


def test_a_trial_that_is_not_private_claims_nothing(story) -> None:
    story.start()
    story.start_trial(0, private=False, tags={"dp.private": False, "dp.delta": 1e-05})
    story.report(0, 50, None, 0.6)
    story.end_trial(0, epsilon=None)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    run = tracker.runs[0]
    assert run.history("dp/epsilon") == []
    assert (run.tags["dp.private"], run.tags["dp.epsilon"]) == ("false", "inf")
    assert not {"dp.delta", "dp.trial_epsilon", "dp.accountant"} & set(run.tags)
    assert "plan.epsilon" not in run.tags


@pytest.mark.parametrize("value", [None, "NaN", float("nan"), float("inf")])
def test_values_that_are_not_finite_become_no_number(story, value: object) -> None:
    """No journal has them (scores that are not finite stay in the actor); an edited one might."""
    story.start()
    story.start_trial(0)
    story.add("trial_report", trial=0, step=5, epsilon=0.1, metrics={"validation/loss": value})
    tracker = MemoryTracker()
    with pytest.raises(TrackingRefusedError, match="malformed trial_report"):
        tracker.handle(story.events)
    assert tracker.runs[0].history("curve/validation/loss") == []


def test_private_values_never_pass_and_the_rest_does(story) -> None:
    story.start()
    story.start_trial(0, hparams={"optim.lr": 1.0, "noise.seed": 7})
    metrics = {"train/loss": 0.3, "validation/accuracy": 0.7, "pid": 4242}
    story.add("trial_report", trial=0, step=5, epsilon=0.1, metrics=metrics)
    tracker = MemoryTracker()
    with pytest.raises(TrackingRefusedError) as caught:
        tracker.handle(story.events)
    assert len(caught.value.refused) == 3
    assert "noise.seed" not in tracker.runs[0].params
    assert {p.name for p in tracker.runs[0].metrics} == {"curve/validation/accuracy", "dp/epsilon"}


def test_malformed_events_hold_up_nothing(story) -> None:
    story.add("trial_report", trial=0, step=1, epsilon=0.1, metrics={})
    story.start()
    story.add("trial_started")
    story.add("coffee_break")
    story.report(7, 5, 0.1, 0.5)
    story.start_trial(0)
    tracker = MemoryTracker()
    with pytest.raises(TrackingRefusedError) as caught:
        tracker.handle(story.events)
    told = "\n".join(caught.value.refused)
    for word in ("before study_started", "malformed trial_started", "coffee_break", "trial 7"):
        assert word in told
    assert set(tracker.runs) == {None, 0}
    assert tracker.last_seq == 5


def test_reading_does_not_change_the_state_it_starts_from(story) -> None:
    state = TrackingState()
    reading = read_events(state, story.whole())
    assert state == TrackingState()
    assert reading.state.seq == len(story.events) - 1


def test_two_studies_of_one_name_are_two_studies(new_story) -> None:
    first, second = new_story(), new_story(start_ms=1_800_000_000_000)
    ids = [read_events(TrackingState(), [s.start()]).state.study_id for s in (first, second)]
    assert ids[0] != ids[1]
    again = first.start()
    state = read_events(TrackingState(), first.events).state
    assert state.study_id == ids[0]
    assert again["seq"] == 1


def test_state_survives_its_file(story, tmp_path) -> None:
    state = read_events(TrackingState(), story.whole()).state
    state.run_ids = {0: "a", 11: "b"}
    state.save(tmp_path / "tracking.json")
    assert TrackingState.load(tmp_path / "tracking.json") == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_ids": 3}', '{"run_ids": {"x": "y"}}'])
def test_a_damaged_state_file_starts_over(tmp_path, text: str) -> None:
    (tmp_path / "tracking.json").write_text(text)
    assert TrackingState.load(tmp_path / "tracking.json") == TrackingState()
