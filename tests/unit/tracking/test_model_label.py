"""The claim travels with the model: whoever gets the model alone meets it first."""

import contextlib
import json

import pytest
import yaml

from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.tracking.base import TrackingRefusedError
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.model_label import CARD_FILE, METADATA, label_model
from dpsweep.tracking.schema import check_loggable


def statement(epsilon, mode, released):
    return PrivacyStatement(
        epsilon=epsilon, delta=1e-5, accountant="rdp", neighboring_relation="add_or_remove_one",
        sampling="poisson", privacy_unit="example", accounting=mode, released=released,
    )  # fmt: skip


ALONE = {"composed": "this trial alone, as if it were the only one", "unaccounted": "one trial"}


def label_of(mode, *, downgrade=None):
    """A trial of 0.99; a study of 12 where the mode adds up, of 3.9375 where it selects."""
    claim = None
    if mode in ("composed", "select", "public") and downgrade is None:
        epsilon = {"composed": 12.0, "select": 3.9375, "public": 2.0}[mode]
        claim = statement(epsilon, mode, f"what {mode} releases")
    present = mode if downgrade is None else "unaccounted"
    alone = claim
    if claim is None or mode == "composed":
        alone = statement(0.99, present, ALONE.get(present, "one trial"))
    facts = {
        "study": "browse", "trial": 18, "method": "dp_sgd", "version": "1.0", "config_hash": "ab",
        "metric": "validation/accuracy", "scores": {"test/accuracy": 0.74}, "step": 105,
        "num_steps": 150, "claim": claim, "alone": alone, "asked": mode, "downgrade": downgrade,
    }  # fmt: skip
    return label_model(facts, "## Privacy card\n")


TERMS = ("dp.delta", "dp.unit", "dp.adjacency", "dp.sampling", "dp.accountant", "dp.accounting")


@pytest.mark.parametrize(
    ("mode", "epsilon", "others"),
    [("composed", "12.0", True), ("select", "3.9375", False), ("public", "2.0", False)],
)
def test_a_claim_is_what_a_reader_meets_first(mode, epsilon, others):
    label = label_of(mode)
    assert label.tags["dp.study_epsilon"] == epsilon
    assert label.tags["dp.released"] == f"what {mode} releases"
    assert all(label.tags[name] for name in TERMS)
    assert label.tags["dp.claim"].startswith(f"epsilon={float(epsilon):.4f} at delta=1e-05")
    assert "dp.trial_epsilon" not in label.tags  # a cap, beside a claim that it is not about
    found = label.description.index(f"epsilon={float(epsilon):.4f}")
    assert ("epsilon=0.9900" in label.description) is others
    assert ("dp.trial_alone_epsilon" in label.tags) is others
    if others:
        assert label.description.index("epsilon=0.9900") > found
        assert "which is *not* the claim: epsilon=0.9900" in label.description
        assert label.tags["dp.trial_alone_epsilon"].endswith("this trial alone, not the claim")
    assert label.metadata["claim"]["epsilon"] == float(epsilon)
    assert label.metadata["trial_alone"]["is_the_claim"] is not others


@pytest.mark.parametrize("downgrade", [None, "a pruner was attached"])
def test_where_nothing_is_claimed_the_label_says_so_first(downgrade):
    label = label_of("unaccounted" if downgrade is None else "composed", downgrade=downgrade)
    assert label.tags["dp.claim"].startswith("none: no epsilon covers the search")
    assert label.tags["dp.study_epsilon"].startswith("none")
    assert label.tags["dp.accounting"] == label.metadata["accounting"] == "unaccounted"
    assert label.tags.get("dp.downgraded") == label.metadata["downgraded"] == downgrade
    assert label.metadata["claim"] is None
    told = label.description
    assert told.index("No epsilon covers the search") < told.index("epsilon=0.9900")
    assert (downgrade or "Search cost NOT included") in told
    assert "12" not in json.dumps([dict(label.tags), label.metadata, told])


@pytest.mark.parametrize("mode", ["composed", "select", "public", "unaccounted"])
def test_every_tag_is_in_the_schema(mode):
    for name in label_of(mode).tags:
        check_loggable(name, "tag")


@pytest.fixture
def logged(story, store_uri, state_path, client):
    """Log the model of trial 2 of a composed study; returns what its store and files say."""
    import torch

    story.journal_of("composed")
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    uri = tracker.log_model(2, model, torch.zeros(2, 1, 8, 8), label_of("composed"))

    def read():
        import mlflow
        from mlflow.artifacts import download_artifacts

        mlflow.set_tracking_uri(store_uri)
        entry = client.get_logged_model(uri.removeprefix("models:/"))
        folder = download_artifacts(artifact_uri=uri, tracking_uri=store_uri)
        with open(f"{folder}/MLmodel") as file:
            stored = yaml.safe_load(file)
        with open(f"{folder}/{CARD_FILE}") as file:
            return entry, stored["metadata"][METADATA], file.read()

    return tracker, uri, read


@pytest.mark.filterwarnings("ignore")  # torch.export and MLflow warn about themselves
def test_store_and_files_have_the_claim_and_lose_it_together(story, logged, client):
    tracker, uri, read = logged
    entry, metadata, card = read()
    label = label_of("composed")
    assert entry.tags["dp.study_epsilon"] == "12.0"
    assert entry.tags["mlflow.note.content"] == label.description
    assert metadata == label.metadata
    assert card == "## Privacy card\n"
    assert "dp/epsilon" not in {metric.key for metric in entry.metrics}
    parent = client.get_run(tracker.parent_run_id)
    assert [f"models:/{o.model_id}" for o in parent.outputs.model_outputs] == [uri]

    story.downgrade("a pruner was attached")
    tracker.handle(story.events)
    entry, metadata, card = read()
    assert entry.tags["dp.downgraded"] == metadata["downgraded"] == "a pruner was attached"
    assert metadata["claim"] is None
    assert "12" not in json.dumps([metadata["claim_in_words"], card, entry.tags["dp.claim"]])
    assert entry.tags["dp.study_epsilon"] == "none: downgraded"
    assert "The claim was given up" in entry.tags["mlflow.note.content"]
    assert "epsilon=12" not in entry.tags["mlflow.note.content"]

    tracker.label_model(2, label)  # of a launch that did not know yet
    entry, metadata, _ = read()
    assert (entry.tags["dp.accounting"], metadata["claim"]) == ("unaccounted", None)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore")  # torch.export and MLflow warn about themselves
@pytest.mark.parametrize("when", ["before the launch", "during it", "and made again"])
def test_models_of_a_deleted_run_lose_the_claim(when, story, logged, client, store_uri, state_path):
    """As a version in the registry outlives its run, and is what people load."""
    tracker, uri, read = logged
    run_id, model_id = tracker.run_id_of(2), uri.removeprefix("models:/")
    client.create_registered_model("digits")
    source, ours = read()[0].artifact_location, {"dpsweep.trial": "2"}
    client.create_model_version("digits", source, run_id, tags=ours, model_id=model_id)
    client.delete_run(run_id)
    if when == "and made again":
        client.delete_run(tracker.parent_run_id)
    if when != "during it":
        tracker = MLflowTracker(store_uri, "digits", state_path)
    story.downgrade("a pruner was attached")
    with contextlib.suppress(TrackingRefusedError):
        tracker.handle(story.events)
    assert client.get_run(run_id).info.lifecycle_stage == "deleted"
    assert "dp.downgraded" not in client.get_run(run_id).data.tags
    for launch in range(2):
        if launch:
            tracker.label_model(2, label_of("composed"))  # of one that did not know yet
        entry, metadata, card = read()
        version = client.get_model_version("digits", "1")
        for tags in (entry.tags, version.tags, metadata):
            assert "a pruner was attached" in (tags.get("dp.downgraded"), tags.get("downgraded"))
        assert (entry.tags["dp.accounting"], metadata["claim"]) == ("unaccounted", None)
        assert "given up" in version.description
        assert "12" not in json.dumps([metadata["claim_in_words"], card, version.tags["dp.claim"]])


@pytest.mark.filterwarnings("ignore")  # torch.export and MLflow warn about themselves
def test_a_later_launch_labels_models_of_a_deleted_run(logged, client, store_uri, state_path):
    """Where the claim was lost before, and all events were delivered."""
    tracker, _, read = logged
    client.delete_run(tracker.run_id_of(2))
    again = MLflowTracker(store_uri, "digits", state_path)
    again.label_model(2, label_of("composed", downgrade="the ledgers add up to more"))
    entry, metadata, _ = read()
    assert entry.tags["dp.downgraded"] == metadata["downgraded"] == "the ledgers add up to more"
    assert metadata["claim"] is None


@pytest.mark.filterwarnings("ignore")  # torch.export and MLflow warn about themselves
def test_a_model_of_an_earlier_version_gets_its_label_at_the_next_launch(logged, client):
    tracker, uri, read = logged
    model_id = uri.removeprefix("models:/")
    for name in label_of("composed").tags:
        client.delete_logged_model_tag(model_id, name)
    client.set_logged_model_tags(model_id, {"dp.trial_epsilon": "4.0"})
    tracker.label_model(2, label_of("composed"))
    tags = read()[0].tags
    assert tags["dp.study_epsilon"] == "12.0"
    assert "dp.trial_epsilon" not in tags


@pytest.mark.filterwarnings("ignore")  # torch.export and MLflow warn about themselves
def test_a_registered_version_has_the_claim_in_its_files(logged, store_uri, monkeypatch):
    import mlflow

    _, uri, _ = logged
    mlflow.set_tracking_uri(store_uri)
    mlflow.register_model(uri, "digits")
    found = mlflow.models.get_model_info("models:/digits/1").metadata
    assert found[METADATA]["claim"]["epsilon"] == 12.0


def test_a_model_that_was_never_logged_needs_no_label(story, store_uri, state_path):
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.journal_of("composed"))
    tracker.label_model(2, label_of("composed"))
    memory = MemoryTracker()
    memory.handle(story.events)
    assert memory.labels == {}
