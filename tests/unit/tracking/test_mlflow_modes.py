"""The accounting modes in a real MLflow store."""

from __future__ import annotations

import contextlib

import pytest

from dpsweep.privacy.modes import CLAIMS
from dpsweep.tracking.base import TrackingRefusedError
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.state import read_run_ids


def runs_of(client) -> dict:
    """Parent under None, children by trial."""
    found = client.get_experiment_by_name("digits")
    runs = client.search_runs([found.experiment_id], max_results=1000)
    by_trial = {run.data.tags.get("dpsweep.trial"): run for run in runs}
    assert len(by_trial) == len(runs)
    return by_trial


def test_a_downgrade_reaches_all_runs_and_stays(story, store_uri, state_path, client) -> None:
    story.journal_of("composed")
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)
    before = runs_of(client)
    assert {run.data.tags["dp.accounting"] for run in before.values()} == {"composed"}
    assert before[None].data.tags["dp.study_epsilon"] == "3.0"
    spent = client.get_metric_history(before[None].info.run_id, "dp/study_spent_epsilon")
    assert [(m.step, m.value) for m in spent] == [(1, 0.5), (2, 2.2), (3, 2.9)]

    story.downgrade("trial 2 charged more than its reservation")
    tracker.handle(story.events)
    story.start(tags={"dp.accounting": "composed", "dp.study_epsilon": 3.0})
    story.start_trial(3)
    state_path.unlink()  # not even a tracker that starts anew forgets it
    for each in (tracker, MLflowTracker(store_uri, "digits", state_path)):
        each.handle(story.events)
        runs = runs_of(client)
        assert set(runs) == {None, "0", "1", "2", "3"}
        for run in runs.values():
            assert run.data.tags["dp.accounting"] == "unaccounted"
            assert run.data.tags["dp.downgraded"] == "trial 2 charged more than its reservation"
            assert run.data.tags["dp.study_epsilon"] == "none: downgraded"
    note = runs[None].data.tags["mlflow.note.content"]
    assert [claim for claim in CLAIMS.values() if claim in note] == [CLAIMS["unaccounted"]]
    assert {name: run.info.status for name, run in runs.items()} == {
        None: "RUNNING",
        "0": "KILLED",  # pruned
        "1": "FINISHED",
        "2": "FINISHED",
        "3": "RUNNING",
    }


def test_the_decision_log_is_an_artifact_of_the_study(
    story, store_uri, state_path, client, tmp_path
) -> None:
    log = tmp_path / "decisions.csv"
    log.write_text("trial,rung,value,cutoff,verdict\n0,1,0.6,0.7,stop\n")
    story.start()
    story.start_trial(0)
    story.verdict(0, 25, "stop")
    story.end_trial(0, 25, 0.5, 0.6, state="pruned", reason="rung 1: stop at 0.6, cut-off 0.7")
    story.end(artifacts=[str(log)])
    MLflowTracker(store_uri, "digits", state_path).handle(story.events)
    runs = runs_of(client)
    of_study = {f.path for f in client.list_artifacts(runs[None].info.run_id)}
    assert of_study == {"decisions.csv", "privacy_card.md", "sweep.yaml"}
    copy = client.download_artifacts(runs[None].info.run_id, "decisions.csv", str(tmp_path))
    with open(copy) as file:
        assert file.read() == log.read_text()
    assert client.list_artifacts(runs["0"].info.run_id) == []
    assert runs["0"].data.tags["dpsweep.verdict"] == "rung 1: stop at 0.6, cut-off 0.7"
    assert runs["0"].data.tags["dpsweep.reason"] == "rung 1: stop at 0.6, cut-off 0.7"


def test_select_has_exactly_one_child(story, store_uri, state_path, client) -> None:
    MLflowTracker(store_uri, "digits", state_path).handle(story.journal_of("select"))
    runs = runs_of(client)
    assert set(runs) == {None, "0"}
    assert set(runs[None].data.metrics) == {"best/value", "best/epsilon"}
    assert set(runs["0"].data.metrics) == {
        "validation/accuracy",
        "curve/validation/accuracy",
        "dp/epsilon",
        "search/objective",
    }
    assert "dp.trial_epsilon" not in runs["0"].data.tags  # below what the winner costs
    assert runs["0"].data.tags["dp.accounting"] == "select"
    assert runs["0"].data.metrics["dp/epsilon"] == 2.1


def restored(tracker, client, trial, story, store_uri, state_path):
    """A trial's run is deleted, events come, and it is restored."""
    run_id = tracker.run_id_of(trial)
    client.delete_run(run_id)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    assert tracker.run_id_of(trial) is None
    assert trial not in read_run_ids(state_path)  # nothing had to be delivered for that
    story.downgrade("a pruner was attached")
    with pytest.raises(TrackingRefusedError, match="restore the run in MLflow"):
        tracker.handle(story.events)
    client.restore_run(run_id)
    assert "dp.downgraded" not in client.get_run(run_id).data.tags
    return run_id


def test_a_restored_run_gets_what_it_missed(story, store_uri, state_path, client) -> None:
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.journal_of("composed"))
    other = tracker.run_id_of(0)
    client.delete_run(other)
    run_id = restored(tracker, client, 2, story, store_uri, state_path)

    again = MLflowTracker(store_uri, "digits", state_path)
    assert "deleted in MLflow are there again (trial 2)" in again.notes[0]
    with pytest.raises(TrackingRefusedError, match="trial 0: its run was deleted"):
        again.handle(story.events)
    run = client.get_run(run_id)
    assert run.data.tags["dp.downgraded"] == "a pruner was attached"
    assert run.info.status == "FINISHED"
    ids = read_run_ids(state_path)
    assert (ids[2], ids.get(0)) == (run_id, None)  # the other one is not made again

    client.restore_run(other)
    last = MLflowTracker(store_uri, "digits", state_path)
    last.handle(story.events)
    assert client.get_run(other).data.tags["dp.downgraded"] == "a pruner was attached"
    assert read_run_ids(state_path)[0] == other
    assert MLflowTracker(store_uri, "digits", state_path).notes == []


def test_a_run_that_comes_back_during_a_launch_waits_for_the_next(
    story, store_uri, state_path, client, monkeypatch
) -> None:
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.journal_of("composed"))
    run_id = tracker.run_id_of(2)
    client.delete_run(run_id)
    story.downgrade("a pruner was attached")
    with pytest.raises(TrackingRefusedError, match="trial 2: refused by MLflow"):
        tracker.handle(story.events)  # it was there when the launch began
    assert 2 not in read_run_ids(state_path)
    client.restore_run(run_id)
    monkeypatch.setattr(tracker, "_is_synced", False)  # as after an outage
    story.start_trial(2)  # as after a pause
    story.end()
    with contextlib.suppress(TrackingRefusedError):
        tracker.handle(story.events)
    again = MLflowTracker(store_uri, "digits", state_path)
    again.handle(story.events)
    assert again.run_id_of(2) == run_id
    assert set(runs_of(client)) == {None, "0", "1", "2"}
    assert client.get_run(run_id).data.tags["dp.downgraded"] == "a pruner was attached"


def delivered(events, store_uri, state_path):
    """Events are delivered by a launch of their own; its tracker, and what was refused."""
    tracker = MLflowTracker(store_uri, "digits", state_path)
    try:
        tracker.handle(events)
    except TrackingRefusedError as error:
        return tracker, "; ".join(error.refused)
    return tracker, ""


def test_a_trial_that_goes_on_gets_no_second_run(story, store_uri, state_path, client) -> None:
    story.start_as("composed")
    story.start_trial(0)
    run_id = delivered(story.events, store_uri, state_path)[0].run_id_of(0)
    client.delete_run(run_id)
    story.start_as("composed")
    story.start_trial(0)
    story.downgrade("a pruner was attached")
    tracker, refused = delivered(story.events, store_uri, state_path)
    assert "trial 0: its run was deleted in MLflow" in refused
    assert tracker.run_id_of(0) is None
    client.restore_run(run_id)
    tracker, refused = delivered(story.events, store_uri, state_path)
    assert (tracker.run_id_of(0), refused) == (run_id, "")
    assert set(runs_of(client)) == {None, "0"}
    assert client.get_run(run_id).data.tags["dp.downgraded"] == "a pruner was attached"


def test_a_launch_that_is_killed_remembers_what_is_deleted(
    story, store_uri, state_path, client
) -> None:
    story.journal_of("composed")
    first, _ = delivered(story.events, store_uri, state_path)
    runs = [first.run_id_of(0), first.run_id_of(2)]
    for run_id in runs:
        client.delete_run(run_id)
    story.end()
    delivered(story.events, store_uri, state_path)
    client.restore_run(runs[0])
    starts = [event.get("trial") == 2 for event in story.events].index(True)
    delivered(story.events[:starts], store_uri, state_path)  # of all events, and then it ended
    tracker, refused = delivered(story.events, store_uri, state_path)
    assert "trial 2: its run was deleted in MLflow" in refused
    assert tracker.run_id_of(2) is None
    client.restore_run(runs[1])
    tracker, refused = delivered(story.events, store_uri, state_path)
    assert (tracker.run_id_of(2), refused) == (runs[1], "")
    assert set(runs_of(client)) == {None, "0", "1", "2"}


@pytest.mark.parametrize("is_lost_first", [True, False])
def test_first_runs_that_are_restored_beside_second_ones_lose_the_claim(
    is_lost_first, story, store_uri, state_path, client
) -> None:
    story.journal_of("composed")
    first, _ = delivered(story.events, store_uri, state_path)
    runs = [first.parent_run_id, first.run_id_of(2)]
    for run_id in runs:
        client.delete_run(run_id)
    if is_lost_first:
        story.downgrade("a pruner was attached")
    delivered(story.events[:1], store_uri, state_path)  # a launch that is killed
    second, refused = delivered(story.events, store_uri, state_path)
    assert refused == ""
    assert second.run_id_of(2) not in (None, runs[1])
    for run_id in runs:
        client.restore_run(run_id)
    if not is_lost_first:
        story.downgrade("a pruner was attached")
    third, refused = delivered(story.events, store_uri, state_path)
    assert refused == ""
    assert third.parent_run_id == second.parent_run_id
    assert third.run_id_of(2) == second.run_id_of(2)
    for run in map(client.get_run, runs):
        assert run.data.tags["dp.downgraded"] == "a pruner was attached"
        assert run.data.tags["dp.accounting"] == "unaccounted"
        assert run.data.tags["dp.study_epsilon"] == "none: downgraded"
    assert CLAIMS["unaccounted"] in client.get_run(runs[0]).data.tags["mlflow.note.content"]


def test_a_study_whose_run_is_deleted_during_a_launch_goes_on(
    story, store_uri, state_path, client
) -> None:
    story.start_as("composed")
    story.start_trial(0)
    tracker, _ = delivered(story.events, store_uri, state_path)
    run_id = tracker.parent_run_id
    client.delete_run(run_id)
    story.report(0, 25, 0.5, 0.6)  # of the trial alone
    with pytest.raises(TrackingRefusedError, match="study: refused by MLflow"):
        tracker.handle(story.events)
    story.downgrade("a pruner was attached")
    with pytest.raises(TrackingRefusedError, match="study: its run was deleted in MLflow"):
        tracker.handle(story.events)
    story.start_trial(1)
    with pytest.raises(TrackingRefusedError, match=r"trial 1: it gets no run.*restore the study's"):
        tracker.handle(story.events)
    client.restore_run(run_id)
    tracker._is_synced = False  # as after an outage
    story.end_trial(0)
    with pytest.raises(TrackingRefusedError, match="study: its run was deleted in MLflow"):
        tracker.handle(story.events)  # it waits, as it has missed something
    again = MLflowTracker(store_uri, "digits", state_path)
    assert "deleted in MLflow are there again (study)" in again.notes[0]
    again.handle(story.events)
    runs = runs_of(client)
    assert set(runs) == {None, "0", "1"}
    assert runs[None].info.run_id == run_id
    assert {run.data.tags["dp.downgraded"] for run in runs.values()} == {"a pruner was attached"}
    assert MLflowTracker(store_uri, "digits", state_path).notes == []
