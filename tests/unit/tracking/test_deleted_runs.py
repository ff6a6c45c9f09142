"""Experiments and runs that were deleted in MLflow by hand, and tags that were edited there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dpsweep.foundation.errors import BadInputError
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.model_label import NO_CLAIM
from dpsweep.tracking.spool import Spool
from dpsweep.tracking.state import TrackingState

FAST = {"poll_s": 0.01, "first_retry_s": 0.05, "max_retry_s": 0.1}


@pytest.fixture
def open_tracker(store_uri, state_path):
    return lambda: MLflowTracker(store_uri, "digits", state_path)


def number_of(client) -> str:
    return client.get_experiment_by_name("digits").experiment_id


def add_model(client, run_id: str, folder: Path) -> tuple:
    """A logged model of a run, and a version of it in the registry, which make a claim."""
    claim = {"dp.claim": "epsilon=3 of the study", "dpsweep.trial": "0"}
    model = client.create_logged_model(number_of(client), source_run_id=run_id, tags=claim)
    (folder / "MLmodel").write_text("metadata: {dpsweep: {claim_in_words: epsilon=3}}\n")
    client.log_model_artifacts(model.model_id, str(folder))
    client.finalize_logged_model(model.model_id, "READY")
    client.create_registered_model("best")
    version = client.create_model_version(
        "best", model.artifact_location, run_id=run_id, tags=claim
    )
    return model.model_id, version.version


def test_models_of_a_deleted_experiment_lose_a_claim_that_is_lost(
    story, open_tracker, state_path, client, tmp_path
) -> None:
    tracker = open_tracker()
    tracker.handle(story.journal_of("composed"))
    run_id = tracker.run_id_of(2)
    (tmp_path / "model").mkdir()
    model, version = add_model(client, run_id, tmp_path / "model")
    client.delete_experiment(number_of(client))
    story.start_as("composed")
    for _ in range(2):
        with pytest.raises(BadInputError, match=r"is deleted in \S+\.db\n  fix: mlflow"):
            open_tracker().handle(story.events)
    assert client.get_logged_model(model).tags["dp.claim"] == "epsilon=3 of the study"
    story.downgrade("a pruner was attached")
    with pytest.raises(BadInputError) as caught:
        open_tracker().handle(story.events)
    assert caught.value.message.endswith("have lost the study's claim")
    assert "restore" in caught.value.fix
    assert client.get_logged_model(model).tags["dp.claim"] == NO_CLAIM
    (file,) = tmp_path.rglob("mlartifacts/**/MLmodel")
    assert f"claim_in_words: '{NO_CLAIM}'" in file.read_text()
    stored = client.get_model_version("best", version)
    assert (stored.tags["dp.claim"], stored.tags["dp.accounting"]) == (NO_CLAIM, "unaccounted")
    assert "The claim was given up" in stored.description
    assert TrackingState.load(state_path).seq < story.events[-2]["seq"]  # its runs have not heard

    client.restore_experiment(number_of(client))
    for trial in (2, None):
        assert (
            "dp.downgraded"
            not in client.get_run(run_id if trial else tracker.parent_run_id).data.tags
        )
    again = open_tracker()
    again.handle([event for event in story.events if event["seq"] > again.last_seq])
    assert client.get_run(run_id).data.tags["dp.downgraded"] == "a pruner was attached"


def test_a_deleted_experiment_is_told_once_with_its_fix_until_it_is_restored(
    story, open_tracker, client, tmp_path
) -> None:
    journal, messages = tmp_path / "journal.jsonl", []
    story.start()
    story.start_trial(0)
    open_tracker().handle(story.events)
    client.delete_experiment(number_of(client))
    story.end_trial(0)
    story.end()
    story.write(journal)
    with Spool(journal, open_tracker, on_message=messages.append, **FAST) as spool:
        deadline = time.monotonic() + 60
        while not messages and time.monotonic() < deadline:
            time.sleep(0.01)
        assert spool.is_down
        assert not spool.flush(0.3)
        client.restore_experiment(number_of(client))
        assert spool.flush(60)
    assert len(messages) == 2
    assert "experiment 'digits' is deleted in" in messages[0]
    assert "fix: mlflow experiments restore --experiment-id" in messages[0]
    assert "cannot be reached" not in messages[0]
    assert messages[1].endswith("is back; all events are delivered")
    runs = client.search_runs([number_of(client)])
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_trials_are_shown_under_the_run_that_their_study_has_now(
    story, open_tracker, client
) -> None:
    events = story.whole(trials=2)
    tracker = open_tracker()
    tracker.handle(events)
    first, trials = tracker.parent_run_id, [tracker.run_id_of(0), tracker.run_id_of(1)]
    client.delete_run(first)
    again = open_tracker()
    again.handle(events)
    assert again.parent_run_id != first
    assert [again.run_id_of(0), again.run_id_of(1)] == trials
    for run_id in trials:
        assert client.get_run(run_id).data.tags["mlflow.parentRunId"] == again.parent_run_id
    client.restore_run(first)
    open_tracker().handle([story.start()])
    for run_id in trials:
        assert client.get_run(run_id).data.tags["mlflow.parentRunId"] == again.parent_run_id


@pytest.mark.sampled(2)
@pytest.mark.parametrize("remembers", [True, False])
def test_runs_under_the_studys_own_run_go_on(
    remembers, story, open_tracker, client, state_path
) -> None:
    """All were deleted, and delivered anew; the first ones were restored."""
    story.journal_of("composed")
    first = open_tracker()
    first.handle(story.events[:4])
    runs = [first.parent_run_id, *map(first.run_id_of, (0, 1, 2))]
    runs = [run_id for run_id in runs if run_id is not None]
    for run_id in runs:
        client.delete_run(run_id)
    second = open_tracker()
    second.handle(story.events)
    for run_id in runs:
        client.restore_run(run_id)
    if not remembers:
        state_path.unlink()
    third = open_tracker()
    third.handle(story.events)
    assert third.parent_run_id == second.parent_run_id
    for trial in range(3):
        assert third.run_id_of(trial) == second.run_id_of(trial) not in runs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", ["done", "9" * 4500], ids=["word", "digits"])
@pytest.mark.parametrize(("tag", "of"), [("dpsweep.seq", None), ("dpsweep.trial", 0)])
def test_a_tag_that_was_edited_by_hand_holds_up_nothing(
    tag, of, value, story, open_tracker, client
) -> None:
    events = story.whole(trials=1)
    tracker = open_tracker()
    tracker.handle(events)
    run_id = tracker.parent_run_id if of is None else tracker.run_id_of(0)
    client.set_tag(run_id, tag, value)
    again = open_tracker()
    again.handle([*events, story.start()])
    assert again.last_seq == story.events[-1]["seq"]
