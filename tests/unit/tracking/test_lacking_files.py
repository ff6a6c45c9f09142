"""Files that an artifact store did not take are stored by a later launch."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dpsweep.privacy.modes import CLAIMS
from dpsweep.tracking import mlflow_runs
from dpsweep.tracking.base import TrackingRefusedError
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.state import TrackingState

BUSY = "503 Server Error: Service Unavailable for url: http://host/api/artifacts/privacy_card.md"


class Artifacts:
    """The artifacts of a store that fail while ``error`` is set; keeps what was tried."""

    def __init__(self, monkeypatch) -> None:
        self.error: Exception | None = None
        self.tried: list[str] = []
        for method, named in (("log_text", 3), ("log_artifact", 2), ("log_artifacts", 2)):
            monkeypatch.setattr(MlflowClient, method, self._failing(method, named))

    def _failing(self, method: str, named: int):
        stored = getattr(MlflowClient, method)

        def log(*arguments, **options):
            self.tried.append(Path(arguments[named]).name)
            if self.error is not None:
                raise self.error
            return stored(*arguments, **options)

        return log


@pytest.fixture
def artifacts(monkeypatch) -> Artifacts:
    return Artifacts(monkeypatch)


@pytest.fixture
def launch(store_uri, state_path):
    """A launch that delivers events, as the spool does; the lines that it tells."""

    def deliver(events) -> list[str]:
        tracker = MLflowTracker(store_uri, "digits", state_path)
        new = [event for event in events if event["seq"] > tracker.last_seq]
        try:
            tracker.handle(new)
        except TrackingRefusedError as error:
            return [*tracker.notes, *error.refused]
        return list(tracker.notes)

    return deliver


def text_of(client, name: str, folder: Path, trial: str | None = None) -> str:
    """A file of the study's run, or of a trial's."""
    experiment = client.get_experiment_by_name("digits")
    runs = client.search_runs([experiment.experiment_id])
    (run,) = [run for run in runs if run.data.tags.get("dpsweep.trial") == trial]
    return Path(client.download_artifacts(run.info.run_id, name, str(folder))).read_text()


def test_the_card_of_a_lost_claim_is_stored_by_the_next_launch(
    story, launch, artifacts, client, tmp_path
) -> None:
    claim = f"> **{CLAIMS['composed']}.** epsilon <= 6\n"
    story.journal_of("composed")
    story.end(card=claim)
    assert launch(story.events) == []
    assert text_of(client, "privacy_card.md", tmp_path) == claim
    story.downgrade("a pruner was attached")
    artifacts.error = MlflowException(BUSY)
    for _ in range(2):  # each launch says so, once
        (line,) = launch(story.events)
        assert line.startswith(f"the artifact store cannot be written ({BUSY}): files and models")
        assert line.endswith("fix: run the study's command again, which stores them")
    artifacts.error = None
    assert launch(story.events) == []
    card = text_of(client, "privacy_card.md", tmp_path)
    assert [each for each in CLAIMS.values() if each in card] == [CLAIMS["unaccounted"]]
    artifacts.tried.clear()
    assert launch(story.events) == []
    assert artifacts.tried == []


def test_a_file_that_cannot_be_read_is_not_laid_to_the_store(
    story, launch, monkeypatch, client, tmp_path
) -> None:
    paths = {name: tmp_path / name for name in ("closed.json", "open.json", "figures")}
    for name in ("closed.json", "open.json", "figures/one.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    story.start()
    story.start_trial(0)
    story.end_trial(0, artifacts=[str(path) for path in paths.values()])
    with monkeypatch.context() as patch:
        for method, name in (
            ("log_artifact", "closed.json"),
            ("log_artifacts", "figures/one.svg"),
        ):
            stored, closed = getattr(MlflowClient, method), tmp_path / name

            def log(self, run_id, path, *rest, stored=stored, closed=closed):
                if closed.is_relative_to(path):
                    raise PermissionError(13, "Permission denied", str(closed))
                return stored(self, run_id, path, *rest)

            patch.setattr(MlflowClient, method, log)
        launch(story.events)
        lines = launch(story.events)
    assert len(lines) == 2
    for line, name in zip(lines, ("closed.json", "figures/one.svg"), strict=True):
        assert line == (
            f"trial 0: artifact {tmp_path / name} cannot be read (Permission denied); fix: let "
            "this user read it, and run the study's command again, which stores them"
        )
    assert text_of(client, "open.json", tmp_path / "had", "0") == "{}\n"
    assert launch(story.events) == []
    for name in ("closed.json", "figures/one.svg"):
        assert text_of(client, name, tmp_path / "had", "0") == "{}\n"


def test_files_of_each_run_are_stored_by_the_next_launch(
    story, launch, artifacts, client, tmp_path
) -> None:
    task, folder = tmp_path / "trial.json", tmp_path / "figures"
    task.write_text("{}\n")
    folder.mkdir()
    (folder / "one.svg").write_text("<svg/>")
    story.start()
    for trial in range(2):
        story.start_trial(trial)
        story.end_trial(trial, artifacts=[str(task), str(folder), str(tmp_path / "gone.json")])
    artifacts.error = PermissionError(13, "Permission denied")
    (line,) = launch(story.events)
    assert "let the server keep artifacts (--serve-artifacts)" in line
    artifacts.error = None
    task.write_text("{1}\n")  # what is there when it is stored
    refused = launch(story.events)
    assert refused == [f"trial {n}: artifact {tmp_path}/gone.json does not exist" for n in range(2)]
    assert text_of(client, "sweep.yaml", tmp_path / "a") == "name: digits\n"
    for trial in "01":
        place = tmp_path / f"of{trial}"
        assert text_of(client, "trial.json", place, trial) == "{1}\n"
        assert text_of(client, "figures/one.svg", place, trial) == "<svg/>"
    assert launch(story.events) == []


def test_a_launch_tries_them_once_and_at_the_end_of_the_study(
    story, store_uri, state_path, artifacts, client, tmp_path
) -> None:
    tracker = MLflowTracker(store_uri, "digits", state_path)
    story.start()
    artifacts.error = TimeoutError("timed out")
    with pytest.raises(TrackingRefusedError, match=r"written \(timed out\)"):
        tracker.handle(story.events)
    tries = []
    for trial in range(3):
        story.start_trial(trial)
        artifacts.tried.clear()
        tracker.handle(story.events)
        tries.append(len(artifacts.tried))
    assert tries == [2, 0, 0]
    artifacts.error = None
    story.end()
    tracker.handle(story.events)
    assert text_of(client, "sweep.yaml", tmp_path) == "name: digits\n"
    assert TrackingState.load(state_path).lacking == {}


def test_a_newer_text_takes_the_place_of_one_that_waits(
    story, launch, artifacts, client, tmp_path
) -> None:
    story.start(card="## First\n")
    artifacts.error = MlflowException(BUSY)
    assert len(launch(story.events)) == 1
    artifacts.error = None
    story.end(card="## Last\n")
    assert launch(story.events) == []
    assert text_of(client, "privacy_card.md", tmp_path) == "## Last\n"
    assert text_of(client, "sweep.yaml", tmp_path) == "name: digits\n"


def test_a_store_that_keeps_silent_is_not_asked_for_each_file(
    story, launch, artifacts, tmp_path, monkeypatch
) -> None:
    artifacts.error = TimeoutError("timed out")
    story.whole(trials=3)
    launch(story.events)
    clock = itertools.count(step=15.0)
    monkeypatch.setattr(mlflow_runs.time, "monotonic", lambda: next(clock))
    artifacts.tried.clear()
    assert len(launch(story.events)) == 1
    assert len(artifacts.tried) == 2


def test_a_run_that_is_gone_for_good_lacks_nothing(
    story, launch, artifacts, state_path, client
) -> None:
    story.whole(trials=1)
    launch(story.events)
    state = TrackingState.load(state_path)
    state.lacking = {"0" * 32: {"privacy_card.md": "x"}}
    state.save(state_path)
    assert launch(story.events) == []
    assert TrackingState.load(state_path).lacking == {}


def test_a_first_run_that_is_restored_gets_the_card_of_a_lost_claim_later(
    story, launch, artifacts, store_uri, state_path, client, tmp_path
) -> None:
    story.start_as("composed")
    launch(story.events)
    first = TrackingState.load(state_path).parent_run_id
    client.delete_run(first)
    story.downgrade("a pruner was attached")
    launch(story.events)
    client.restore_run(first)
    artifacts.error = MlflowException(BUSY)
    MLflowTracker(store_uri, "digits", state_path)  # and it is killed
    assert list(TrackingState.load(state_path).lacking) == [first]
    for _ in range(2):
        assert len(launch(story.events)) == 1
    artifacts.error = None
    assert launch(story.events) == []
    card = Path(client.download_artifacts(first, "privacy_card.md", str(tmp_path))).read_text()
    assert "a pruner was attached" in card
