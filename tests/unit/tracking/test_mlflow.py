from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dpsweep.foundation.errors import BadInputError
from dpsweep.study.model_graph import ModelGraph
from dpsweep.tracking import open_spool
from dpsweep.tracking.base import StoreRefusedError, TrackingRefusedError
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.mlflow_models import logged_name, requirements, save_graph
from dpsweep.tracking.spool import Spool
from dpsweep.tracking.state import TrackingState, read_run_ids


def runs_of(client, experiment: str = "digits") -> dict:
    """Parent under None, children by trial; fails if a trial has two runs."""
    found = client.get_experiment_by_name(experiment)
    runs = {}
    for run in client.search_runs([found.experiment_id], max_results=1000):
        trial = run.data.tags.get("dpsweep.trial")
        key = None if trial is None else int(trial)
        assert key not in runs, f"trial {key} has two runs"
        runs[key] = run
    return runs


def picture(client) -> dict:
    """Everything a user can see, run ids left out."""
    seen = {}
    for trial, run in runs_of(client).items():
        history = {
            name: [
                (m.step, m.value, m.timestamp)
                for m in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }
        tags = {k: v for k, v in run.data.tags.items() if k != "mlflow.parentRunId"}
        artifacts = sorted(f.path for f in client.list_artifacts(run.info.run_id))
        info = (run.info.status, run.info.start_time, run.info.end_time, run.info.run_name)
        seen[trial] = (info, run.data.params, tags, history, artifacts)
    return seen


def test_parent_children_params_metrics_and_files(
    story, store_uri, state_path, client, tmp_path
) -> None:
    ledger = tmp_path / "trial-0001.jsonl"
    ledger.write_text("{}\n")
    story.start()
    for trial in range(2):
        story.start_trial(trial)
        story.report(trial, 50, 1.2, 0.8)
        story.end_trial(trial, artifacts=[str(ledger)])
    story.end(metrics={"best/value": 0.9}, tags={"dpsweep.trials.finished": 2})
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)
    tracker.close()

    runs = runs_of(client)
    assert set(runs) == {None, 0, 1}
    parent, child = runs[None], runs[1]
    assert parent.info.run_name == "digits"
    assert parent.info.status == child.info.status == "FINISHED"
    note = parent.data.tags["mlflow.note.content"]
    assert note.startswith("## Final card\n\nBest: [trial-0000](#/experiments/")
    assert runs[0].info.run_id in note
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id == tracker.parent_run_id
    assert child.info.run_name == "trial-0001"
    assert child.info.run_id == tracker.run_id_of(1) == read_run_ids(state_path)[1]
    assert child.data.params["optim.lr"] == "1.5"
    assert child.data.metrics == {
        "validation/accuracy": 0.9,
        "curve/validation/accuracy": 0.9,
        "dp/epsilon": 1.99,
        "time/train_s": 10.0,
        "search/objective": 0.9,
    }
    epsilon = client.get_metric_history(child.info.run_id, "dp/epsilon")
    assert [(m.step, m.value) for m in epsilon] == [(50, 1.2), (100, 1.99)]
    assert epsilon[0].timestamp == next(
        e["time_ms"] for e in story.events if e.get("trial") == 1 and e.get("step") == 50
    )
    assert [f.path for f in client.list_artifacts(child.info.run_id)] == ["trial-0001.jsonl"]
    assert {f.path for f in client.list_artifacts(parent.info.run_id)} == {
        "privacy_card.md",
        "sweep.yaml",
    }
    assert not (Path.cwd() / "mlruns").exists()


def test_a_trial_that_is_delivered_whole_takes_few_requests(
    story, store_uri, state_path, client, tmp_path, monkeypatch
) -> None:
    ledger = tmp_path / "trial-0000.jsonl"
    ledger.write_text("{}\n")
    tracker = MLflowTracker(store_uri, "digits", state_path)
    story.start()
    tracker.handle(story.events)
    asked = []

    def note(name):
        method = getattr(MlflowClient, name)

        def noted(self, *args, **kwargs):
            asked.append(name)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(MlflowClient, name, noted)

    for name in ("create_run", "log_batch", "log_inputs", "set_tag", "log_artifact", "update_run"):
        note(name)
    story.start_trial(0)
    for step in (25, 50, 75):
        story.report(0, step, 1.2, 0.8)
    story.end_trial(0, artifacts=[str(ledger)])
    tracker.handle(story.events)
    monkeypatch.undo()

    # The first and the last are of the study's own run: its figures, and how far the store is.
    assert asked == ["log_batch", "create_run", "log_batch", "log_artifact", "set_tag"]
    run = runs_of(client)[0]
    assert run.data.params["optim.lr"] == "0.5"
    assert run.data.metrics["dp/epsilon"] == 1.99
    assert run.data.tags["dp.adjacency"] == "add_or_remove_one"
    assert run.data.tags["mlflow.note.content"]


def test_a_replay_from_any_point_changes_nothing(story, store_uri, state_path, client) -> None:
    events = story.whole(trials=2, reports=3)
    MLflowTracker(store_uri, "digits", state_path).handle(events)
    before = picture(client)
    ids = {trial: run.info.run_id for trial, run in runs_of(client).items()}

    tracker = MLflowTracker(store_uri, "digits", state_path)
    assert tracker.last_seq == len(events) - 1
    tracker.handle(events)
    assert picture(client) == before

    state_path.unlink()  # the whole journal is delivered again
    tracker = MLflowTracker(store_uri, "digits", state_path)
    assert tracker.last_seq == -1
    for start in range(0, len(events), 3):
        tracker.handle(events[start : start + 3])
    assert picture(client) == before
    assert {trial: run.info.run_id for trial, run in runs_of(client).items()} == ids


def test_killed_between_create_run_and_save(
    story, store_uri, state_path, client, monkeypatch
) -> None:
    events = story.whole(trials=2, reports=2)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(events[:1])

    def die(self, path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TrackingState, "save", die)
    with pytest.raises(KeyboardInterrupt):
        tracker.handle(events[1:3])
    assert set(runs_of(client)) == {None, 0}
    assert read_run_ids(state_path) == {}
    monkeypatch.undo()
    again = MLflowTracker(store_uri, "digits", state_path)
    assert again.last_seq == 0
    again.handle(events)
    assert set(runs_of(client)) == {None, 0, 1}


def test_a_full_disk_is_named(story, store_uri, state_path, monkeypatch) -> None:
    tracker = MLflowTracker(store_uri, "digits", state_path)

    def fill(*arguments, **options) -> None:
        raise MlflowException("(sqlite3.OperationalError) database or disk is full [SQL: INSERT")

    monkeypatch.setattr(MlflowClient, "log_batch", fill)
    with pytest.raises(StoreRefusedError, match="has no room: its disk is full") as caught:
        tracker.handle(story.whole(trials=1, reports=1))
    assert caught.value.fix.startswith("make room")


def test_a_lost_answer_makes_no_second_run(
    story, store_uri, state_path, client, monkeypatch
) -> None:
    from mlflow import MlflowClient

    events = story.whole(trials=3, reports=2)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    create = MlflowClient.create_run
    calls = []

    def create_and_lose_the_answer(self, *args, **kwargs):
        run = create(self, *args, **kwargs)
        calls.append(run)
        if len(calls) in (1, 3):
            raise ConnectionError("answer lost")
        return run

    monkeypatch.setattr(MlflowClient, "create_run", create_and_lose_the_answer)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            tracker.handle(events)
    tracker.handle(events)
    assert len(calls) == 4
    assert set(runs_of(client)) == {None, 0, 1, 2}


def test_outage_and_recovery_through_the_spool(
    story, store_uri, state_path, client, tmp_path
) -> None:
    journal = tmp_path / "journal.jsonl"
    story.whole(trials=2)
    story.write(journal)
    database = tmp_path / "mlflow.db"
    hidden = database.rename(tmp_path / "away.db")
    database.mkdir()  # sqlite cannot open a directory
    messages: list[str] = []

    def factory() -> MLflowTracker:
        return MLflowTracker(store_uri, "digits", state_path)

    spool = Spool(
        journal,
        factory,
        on_message=messages.append,
        poll_s=0.02,
        first_retry_s=0.1,
        max_retry_s=0.2,
    )
    deadline = time.monotonic() + 60
    while not messages and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(messages) == 1
    assert "mlflow.db cannot be written (unable to open database file)" in messages[0]
    assert spool.lag() == len(story.events)
    database.rmdir()
    hidden.rename(database)
    assert spool.flush(60)
    assert spool.stop()
    assert len(messages) == 2
    assert "is back" in messages[1]
    assert {run.info.status for run in runs_of(client).values()} == {"FINISHED"}


def test_a_killed_driver_leaves_no_running_run_after_the_resume(
    story, store_uri, state_path, client
) -> None:
    story.start()
    story.start_trial(0)
    story.report(0, 25, 0.5, 0.6)
    MLflowTracker(store_uri, "digits", state_path).handle(story.events)
    assert {run.info.status for run in runs_of(client).values()} == {"RUNNING"}
    before = {trial: run.info.run_id for trial, run in runs_of(client).items()}
    story.end("interrupted")
    story.start()
    story.start_trial(0)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events[3:4])
    assert {run.info.status for run in runs_of(client).values()} == {"KILLED"}
    tracker.handle(story.events[4:])
    assert {run.info.status for run in runs_of(client).values()} == {"RUNNING"}
    story.end_trial(0)
    story.end()
    tracker.handle(story.events[6:])
    runs = runs_of(client)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {trial: run.info.run_id for trial, run in runs.items()} == before
    assert (
        runs[0].info.end_time
        == next(e for e in story.events[::-1] if e["event"] == "trial_ended")["time_ms"]
    )


def test_a_param_keeps_its_first_value_and_says_so(story, store_uri, state_path, client) -> None:
    story.start()
    story.start(params={"search.num_trials": 24, "search.mode": "max", "resources.cpu": 1})
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events[:1])
    with pytest.raises(
        TrackingRefusedError, match=r"'search.num_trials' as it was first, '12'; it is '24' now"
    ):
        tracker.handle(story.events[1:])
    assert runs_of(client)[None].data.params == {
        "search.num_trials": "12",
        "search.mode": "max",
        "resources.cpu": "1",
    }
    assert tracker.last_seq == 1


def test_a_deleted_run_is_not_made_again(story, store_uri, state_path, client) -> None:
    story.start()
    story.start_trial(0)
    story.start_trial(1)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)
    client.delete_run(tracker.run_id_of(0))
    story.end_trial(0)
    story.end_trial(1)
    again = MLflowTracker(store_uri, "digits", state_path)
    with pytest.raises(TrackingRefusedError, match="trial 0: its run was deleted"):
        again.handle(story.events)
    assert set(runs_of(client)) == {None, 1}
    assert runs_of(client)[1].info.status == "FINISHED"


def test_a_deleted_parent_gives_a_new_study_from_the_whole_journal(
    story, store_uri, state_path, client
) -> None:
    story.whole(trials=1)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)
    for run in runs_of(client).values():
        client.delete_run(run.info.run_id)
    again = MLflowTracker(store_uri, "digits", state_path)
    assert again.last_seq == -1
    again.handle(story.events)
    assert set(runs_of(client)) == {None, 0}


def test_another_store_gets_the_whole_journal(story, store_uri, state_path, client) -> None:
    story.whole(trials=1)
    MLflowTracker(store_uri, "elsewhere", state_path).handle(story.events)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    assert tracker.last_seq == -1
    tracker.handle(story.events)
    assert set(runs_of(client)) == {None, 0}


def test_a_second_study_of_the_same_name_gets_its_own_runs(
    new_story, store_uri, tmp_path, client
) -> None:
    first, second = new_story(), new_story(start_ms=1_800_000_000_000)
    for number, each in enumerate((first, second)):
        MLflowTracker(store_uri, "digits", tmp_path / f"{number}.json").handle(each.whole(trials=1))
    found = client.get_experiment_by_name("digits")
    assert len(client.search_runs([found.experiment_id])) == 4


def test_many_metrics_go_in_batches(story, store_uri, state_path, client) -> None:
    story.start()
    story.start_trial(0, hparams={f"model.p{i}": i for i in range(230)})
    for step in range(1, 701):
        story.report(0, step, step / 1000, step / 1000)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)
    run = runs_of(client)[0]
    assert len(client.get_metric_history(run.info.run_id, "dp/epsilon")) == 700
    assert len(run.data.params) == 230


def test_oversized_values_and_missing_files_are_told(story, store_uri, state_path, client) -> None:
    story.start(card="line\n" * 3000)
    story.start_trial(0, hparams={"model.name": "x" * 7000, "optim.lr": 1.0})
    story.end_trial(0, artifacts=["no/such/file"])
    tracker = MLflowTracker(store_uri, "digits", state_path)
    with pytest.raises(TrackingRefusedError) as caught:
        tracker.handle(story.events)
    told = "\n".join(caught.value.refused)
    assert "longer than 6000" in told
    assert "no/such/file" in told
    runs = runs_of(client)
    assert runs[0].data.params["optim.lr"] == "1.0"
    note = runs[None].data.tags["mlflow.note.content"]
    assert len(note) <= 8000
    assert note.endswith("(continued in the artifact privacy_card.md)")


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "file:///tmp/mlruns"])
def test_file_stores_are_refused(uri: str, state_path: Path) -> None:
    with pytest.raises(BadInputError, match="file store") as caught:
        MLflowTracker(uri, "digits", state_path)
    assert "sqlite" in str(caught.value.fix)


def test_a_deleted_experiment_is_a_clear_word(story, store_uri, state_path, client) -> None:
    MLflowTracker(store_uri, "digits", state_path)
    client.delete_experiment(client.get_experiment_by_name("digits").experiment_id)
    with pytest.raises(BadInputError, match="is deleted") as caught:
        MLflowTracker(store_uri, "digits", state_path)
    assert "restore" in str(caught.value.fix)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("since", ["", "another has the name", "an earlier version", "it moved"])
def test_a_renamed_experiment_keeps_the_study(
    since, story, store_uri, state_path, client, tmp_path
) -> None:
    story.start()
    story.start_trial(0)
    MLflowTracker(store_uri, "digits", state_path).handle(story.events)
    experiment = client.get_experiment_by_name("digits").experiment_id
    client.rename_experiment(experiment, "numbers")
    if since == "another has the name":
        client.create_experiment("digits")
    elif since == "an earlier version":
        state = TrackingState.load(state_path)
        replace(state, experiment="").save(state_path)
    elif since == "it moved":
        store_uri = f"sqlite:///{shutil.copy(tmp_path / 'mlflow.db', tmp_path / 'moved.db')}"
    story.end_trial(0)
    story.end()
    for _ in range(2):
        again = MLflowTracker(store_uri, "digits", state_path)
        assert "'digits' is called 'numbers' in MLflow now" in again.notes[0]
        again.handle(story.events)
    runs = runs_of(MlflowClient(store_uri), "numbers")
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert set(runs) == {None, 0}
    names = {each.name for each in MlflowClient(store_uri).search_experiments()}
    expected = {"numbers", *(["digits"] if since == "another has the name" else [])}
    assert names - {"Default", "unused"} == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "since", ["another name is asked for", "and by an earlier version", "the file is a new one"]
)
def test_another_experiment_is_not_taken_for_a_renamed_one(
    since, story, store_uri, state_path, client, tmp_path
) -> None:
    MLflowTracker(store_uri, "digits", state_path).handle(story.whole(trials=1))
    asked, experiment = "digits", client.get_experiment_by_name("digits").experiment_id
    if since != "the file is a new one":
        asked = "numbers"
        if since == "and by an earlier version":  # which did not note what was asked for
            replace(TrackingState.load(state_path), experiment="").save(state_path)
    else:  # in which another study is under the same number
        store_uri = f"sqlite:///{tmp_path}/new.db"
        names = ("first", "other")
        assert [MlflowClient(store_uri).create_experiment(n) for n in names][1] == experiment
    tracker = MLflowTracker(store_uri, asked, state_path)
    assert (tracker.last_seq, tracker.notes) == (-1, [])
    tracker.handle(story.events)
    assert set(runs_of(MlflowClient(store_uri), asked)) == {None, 0}


def test_no_global_state_is_touched(story, store_uri, state_path) -> None:
    import mlflow

    before = mlflow.get_tracking_uri()
    MLflowTracker(store_uri, "digits", state_path).handle(story.whole(trials=1))
    assert mlflow.active_run() is None
    assert mlflow.get_tracking_uri() == before


def test_a_study_of_twelve_trials_is_delivered_in_seconds(
    story, store_uri, state_path, tmp_path
) -> None:
    journal = tmp_path / "journal.jsonl"
    story.whole(trials=12, reports=10)
    story.write(journal)

    class Files:
        name = "digits"
        tracking = state_path

    Files.journal = journal

    class Choice:
        kind = "mlflow"
        uri = store_uri
        experiment = None

    started = time.process_time()
    with open_spool(Files(), Choice()) as spool:
        assert spool.flush(60)
        seconds = time.process_time() - started
    assert len(read_run_ids(state_path)) == 12
    assert seconds < 15  # 2 s on an idle core; a request per metric would take a minute


LOAD = """
import sys, warnings
import mlflow, torch
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pytorch.load_model(sys.argv[2])
assert "dpsweep" not in sys.modules
for batch in (1, 5):
    x = torch.arange(batch * 64, dtype=torch.float32).reshape(batch, 1, 8, 8) / 64
    print(" ".join(f"{v:.6f}" for v in model(x).flatten().tolist()))
"""


@pytest.mark.filterwarnings("ignore")  # torch.export and MLflow warn about themselves
def test_the_signature_has_the_rank_of_the_output(
    story, store_uri, state_path, client, label
) -> None:
    import torch

    story.start()
    story.start_trial(1)
    story.report(1, 50, 1.2, 0.8)
    story.end_trial(1, accuracy=0.7, value=0.8, best_step=50)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)
    tracker.log_model(
        1, torch.nn.Linear(4, 7), torch.zeros(1, 5, 4), label
    )  # a row for each position
    experiment = client.get_experiment_by_name("digits")
    [logged] = client.search_logged_models([experiment.experiment_id])
    stored = Path(logged.artifact_location.removeprefix("file://")) / "MLmodel"
    assert '"shape": [-1, -1, -1]' in yaml.safe_load(stored.read_text())["signature"]["outputs"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.export and MLflow warn about themselves
def test_a_model_is_logged_once_and_loads_in_a_fresh_process(
    story, store_uri, state_path, client, label
) -> None:
    import torch

    story.start()
    story.start_trial(1)
    story.report(1, 50, 1.2, 0.8)
    story.end_trial(1, accuracy=0.7, value=0.8, best_step=50)  # its best model is not its last
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    )
    example = torch.full((3, 1, 8, 8), 0.123456)
    uri = tracker.log_model(1, model, example, label)
    assert tracker.log_model(1, model, example, label) == uri
    other = MLflowTracker(store_uri, "digits", state_path)
    assert other.log_model(1, model, example, label) == uri
    assert TrackingState.load(state_path).model_uris == {1: uri}

    found = client.get_experiment_by_name("digits")
    [logged] = client.search_logged_models([found.experiment_id])
    assert logged.source_run_id == tracker.run_id_of(1)
    assert {m.key: m.value for m in logged.metrics} == {
        "validation/accuracy": 0.8,
        "search/objective": 0.8,
    }  # and no epsilon: of the trial alone it would be read as the claim
    [output] = client.get_run(tracker.run_id_of(1)).outputs.model_outputs
    assert (f"models:/{output.model_id}", output.step) == (uri, 50)

    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, store_uri, uri],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    for batch, line in zip((1, 5), answer.stdout.splitlines()[-2:], strict=True):
        x = torch.arange(batch * 64, dtype=torch.float32).reshape(batch, 1, 8, 8) / 64
        expected = model(x).flatten()
        assert torch.allclose(torch.tensor([float(v) for v in line.split()]), expected, atol=1e-5)

    stored = Path(logged.artifact_location.removeprefix("file://")) / "MLmodel"
    assert '"shape": [-1, -1]' in yaml.safe_load(stored.read_text())["signature"]["outputs"]

    # The example's values are a record's: only its shape may be stored.
    for path in Path(logged.artifact_location.removeprefix("file://")).rglob("*"):
        if path.suffix in (".json", ".npy", ".txt", ".yaml"):
            assert b"0.1234" not in path.read_bytes()


@pytest.mark.filterwarnings("ignore")  # torch.export and MLflow warn about themselves
def test_a_graph_lies_there_as_mlflow_itself_would_lay_it(tmp_path) -> None:
    """So that a new version of MLflow that lays it otherwise is noticed here."""
    import mlflow.pytorch
    import numpy as np
    import torch

    network, example = torch.nn.Linear(4, 3), np.zeros((2, 4), np.float32)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    save_graph(ModelGraph.of(network, example), ours)
    described = yaml.safe_load((ours / "MLmodel").read_text())
    mlflow.pytorch.save_model(
        network,
        str(theirs),
        signature=mlflow.models.ModelSignature.from_dict(described["signature"]),
        input_example=example,
        serialization_format="pt2",
        pip_requirements=requirements(),
    )
    files = {path.relative_to(theirs) for path in theirs.rglob("*")}
    assert {path.relative_to(ours) for path in ours.rglob("*")} == files
    for file in files - {Path("MLmodel"), Path("data"), Path("data/model.pt2")}:
        assert (ours / file).read_text() == (theirs / file).read_text(), file
    expected = yaml.safe_load((theirs / "MLmodel").read_text())
    own = {"model_uuid", "utc_time_created", "model_size_bytes"}
    for name in own:
        assert type(described[name]) is type(expected[name]), name
    assert {k: v for k, v in described.items() if k not in own} == {
        k: v for k, v in expected.items() if k not in own
    }


@pytest.mark.slow
def test_a_graph_is_stored_without_torch(store_uri, state_path, tmp_path, story, label) -> None:
    """In a process of its own: this one has loaded it."""
    import torch

    story.start()
    story.start_trial(1)
    story.report(1, 50, 1.2, 0.8)
    story.end_trial(1, accuracy=0.7, value=0.8, best_step=50)
    graph = ModelGraph.of(torch.nn.Linear(4, 3), torch.zeros(1, 4))
    (tmp_path / "all.pickle").write_bytes(pickle.dumps((story.events, graph, label)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STORE, store_uri, state_path, tmp_path],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    uri, loaded = done.stdout.split()
    assert uri.startswith("models:/m-")
    assert loaded == "False"


STORE = """
import pickle, sys
from pathlib import Path
from dpsweep.tracking.mlflow import MLflowTracker
events, graph, label = pickle.loads(Path(sys.argv[3], "all.pickle").read_bytes())
tracker = MLflowTracker(sys.argv[1], "digits", Path(sys.argv[2]))
tracker.handle(events)
print(tracker.log_model(1, graph, None, label), "torch" in sys.modules)
"""


@pytest.mark.parametrize("study", ["digits", "v1.2", "a_b-c.d.e"])
def test_mlflow_takes_the_name_of_the_model_of_any_study(client, study) -> None:
    experiment = client.create_experiment("names")
    entry = client.create_logged_model(experiment, name=logged_name(study, 3))
    assert entry.name == f"{study.replace('.', '-')}-trial-0003"


def test_a_model_needs_a_run(store_uri, state_path, label) -> None:
    tracker = MLflowTracker(store_uri, "digits", state_path)
    with pytest.raises(BadInputError, match="no tracking run"):
        tracker.log_model(3, object(), object(), label)


@pytest.mark.slow
def test_nothing_is_printed(store_uri: str, tmp_path: Path) -> None:
    """A new database is migrated without a line on the terminal."""
    code = (
        "import sys; from pathlib import Path; from dpsweep.tracking.mlflow import MLflowTracker\n"
        "t = MLflowTracker(sys.argv[1], 'x', Path(sys.argv[2]))\n"
        "e = {'seq': 0, 'time_ms': 1, 'event': 'study_started', 'name': 'x'}\n"
        "t.handle([e, {'seq': 1, 'time_ms': 2, 'event': 'study_ended', 'state': 'finished'}])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{tmp_path}/new.db", str(tmp_path / "s.json")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
