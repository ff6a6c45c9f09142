from __future__ import annotations

import json

import pytest

from dpsweep.study.trial import NO_BUDGET_LEFT
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.views import addresses, saved_view, trials_filter, with_links

SEARCHED = ["method", "optim.lr"]
RECORDS = [
    {"name": "digits training", "context": "private", "records": 1078},
    {"name": "digits public", "context": "public", "records": 50},
]


def start(story, **changes) -> None:
    params = {"search.mode": "max", "search.metric": "validation/accuracy"}
    constants = {"train.epochs": 5, "model.name": "linear"}
    said = {"searched": SEARCHED, "constants": constants, "datasets": RECORDS, **changes}
    story.start(params=params, **said)


def state_of(**changes) -> TrackingState:
    values = {
        "store": "http://host#7", "study": "digits", "study_id": "abc", "parent_run_id": "p",
        "mode": "max", "metric": "validation/accuracy", "searched": SEARCHED, "started_ms": 5,
    }  # fmt: skip
    return TrackingState(**{**values, **changes})


def test_only_what_varies_is_a_parameter_of_a_trial(story) -> None:
    start(story)
    hparams = {"method": "dp_sgd", "optim.lr": 0.5, "train.epochs": 5, "model.name": "linear"}
    story.start_trial(0, hparams=hparams)
    story.start_trial(1, hparams={**hparams, "train.epochs": 9})  # against what was announced
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert tracker.runs[0].params == {"method": "dp_sgd", "optim.lr": "0.5"}
    assert tracker.runs[1].params == {**tracker.runs[0].params, "train.epochs": "9"}
    parent = tracker.runs[None].params
    assert (parent["train.epochs"], parent["model.name"]) == ("5", "linear")
    assert tracker.runs[0].tags["plan.steps"] == "100"


def test_a_study_of_an_earlier_version_goes_on_in_its_own_runs(
    story, store_uri, state_path, client
) -> None:
    """Its first trial has all hyperparameters; launched again, it has them still."""
    hparams = {"method": "dp_sgd", "optim.lr": 0.5, "train.epochs": 5}
    story.start()
    story.start_trial(0, hparams=hparams)
    MLflowTracker(store_uri, "digits", state_path).handle(story.events)
    before = json.loads(state_path.read_text())
    new = ("metric", "searched", "constants", "datasets", "started_ms", "best_trial", "intros")
    assert set(new) <= set(before)
    start(story)
    story.start_trial(0, hparams=hparams)
    story.end_trial(0)
    story.start_trial(1, hparams=hparams)
    story.end_trial(1)
    story.end()
    tracker = MLflowTracker(store_uri, "digits", state_path)
    tracker.handle(story.events)  # refuses nothing
    first = client.get_run(tracker.run_id_of(0)).data.params
    second = client.get_run(tracker.run_id_of(1)).data.params
    assert first == {"method": "dp_sgd", "optim.lr": "0.5", "train.epochs": "5"}
    assert second == {"method": "dp_sgd", "optim.lr": "0.5"}


ENDS = [
    ("finished", "plan complete", "FINISHED", "finished", "It finished"),
    ("pruned", "0.6 is below the median", "KILLED", "pruned", "The scheduler stopped it"),
    ("pruned", f"place 3 of 9, but {NO_BUDGET_LEFT}", "KILLED", "over budget", "budget was used"),
    ("failed", "ran out of memory", "FAILED", "failed", "It failed"),
]


@pytest.mark.parametrize(("state", "reason", "status", "tag", "words"), ENDS)
def test_ends_are_told_apart_by_status_tag_and_description(
    story, state: str, reason: str, status: str, tag: str, words: str
) -> None:
    start(story)
    story.start_trial(0)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert "It runs." in tracker.runs[0].note
    story.end_trial(0, state=state, reason=reason)
    story.end()
    tracker.handle(story.events)
    run, parent = tracker.runs[0], tracker.runs[None]
    assert (run.status, run.tags["dpsweep.state"]) == (status, tag)
    assert words in run.note
    assert f"Reason:\n\n    {reason}\n" in run.note
    assert run.note.startswith("Trial 0 of study digits: method=dp_sgd, optim.lr=0.5. ")
    assert "1.99" not in run.note  # its terms may change, and a description would not
    counted = {p.name: p.value for p in parent.metrics if p.name.startswith("search/")}
    assert counted[f"search/{tag.replace(' ', '_')}"] == 1
    assert ("search/over_budget" in counted) == (tag == "over budget")


def test_an_interrupted_trial_says_so_and_runs_again(story) -> None:
    start(story)
    story.start_trial(0)
    story.end("interrupted")
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert "interrupted with the study" in tracker.runs[0].note
    story.start_trial(0)
    tracker.handle(story.events)
    assert "It runs." in tracker.runs[0].note


def test_the_parent_has_the_best_score_and_epsilon_while_the_study_runs(story) -> None:
    start(story)
    for trial, accuracy in ((0, 0.7), (1, 0.9), (2, 0.8)):
        story.start_trial(trial)
        story.end_trial(trial, accuracy=accuracy, epsilon=1.0 + trial / 10)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    last = {point.name: point.value for point in tracker.runs[None].metrics}
    assert (last["best/value"], last["best/epsilon"], last["best/trial"]) == (0.9, 1.1, 1)
    assert tracker.runs[None].tags["dp.sampling"] == "poisson"  # the terms stand beside it


def test_a_trial_without_a_claim_gives_the_parent_no_epsilon(story) -> None:
    start(story)
    story.start_trial(0, private=False)
    story.end_trial(0, epsilon=None)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    assert not [p for p in tracker.runs[None].metrics if p.name.endswith("epsilon")]


@pytest.mark.parametrize("mode", ["select", "public"])
def test_a_view_tells_no_more_than_the_claim_allows(story, mode: str) -> None:
    story.journal_of(mode)
    story.events[0] |= {"searched": SEARCHED, "datasets": RECORDS, "constants": {}}
    tracker = MemoryTracker()
    tracker.handle(story.events)
    shown = {point.name for point in tracker.runs[None].metrics}
    if mode == "select":  # nothing that tells how many trials there were
        assert shown == {"best/value", "best/epsilon"}
        assert tracker.runs[0].note.startswith("Released model of study digits")
        assert "trial" not in tracker.runs[0].note.lower().replace("dp.trial", "")
    else:  # trials on public records read no private ones
        assert [d["context"] for d in tracker.runs[0].datasets] == ["public"]
        assert [d["context"] for d in tracker.runs[3].datasets] == ["private", "public"]


def test_the_saved_view_sorts_trials_by_score_and_shows_what_was_searched() -> None:
    state = state_of()
    envelope = json.loads(saved_view(state))
    view = json.loads(envelope["state"])
    assert envelope["name"] == "digits: trials by validation/accuracy"
    assert (envelope["createdAt"], envelope["updatedAt"]) == (5, 5)
    assert view["searchFilter"] == trials_filter(state)
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`validation/accuracy`", False)
    assert view["selectedColumns"] == [
        "metrics.`validation/accuracy`", "metrics.`dp/epsilon`", "tags.`dp.delta`",
        "tags.`dp.accounting`", "params.`method`", "tags.`dpsweep.state`", "params.`optim.lr`",
        "tags.`dp.unit`", "tags.`dp.adjacency`", "tags.`dp.sampling`", "tags.`dp.accountant`",
        "tags.`dp.records`",
    ]  # fmt: skip
    scatter, parallel = view["compareRunCharts"]
    assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == (
        "dp/epsilon",
        "validation/accuracy",
    )
    assert parallel["selectedParams"] == SEARCHED
    least = json.loads(json.loads(saved_view(state_of(mode="min", searched=["a.b"])))["state"])
    assert least["orderByAsc"] is True
    assert "tags.`dpsweep.method`" in least["selectedColumns"]


def test_a_wide_space_fits_into_a_tag_of_an_experiment() -> None:
    names = [f"model.hyperparameter_number_{number}" for number in range(300)]
    text = saved_view(state_of(searched=names))
    assert len(text) <= 5000
    assert json.loads(json.loads(text)["state"])["compareRunCharts"]


def test_addresses_hold_no_password_and_need_a_run() -> None:
    shown = addresses("https://me:sesame@host/mlflow/", state_of())
    assert shown["trials"] == (
        "https://host/mlflow/#/experiments/7/runs?workflowType=machine_learning"
        "&viewStateShareKey=dpsweep-abc"
    )
    assert shown["study"].startswith("https://host/mlflow/#/experiments/7/runs/p?workflowType=")
    assert addresses("http://host", TrackingState()) == {}


def test_a_query_stands_before_the_fragment() -> None:
    shown = addresses("http://127.0.0.1:5000", state_of(), "?token=t")
    for address in shown.values():
        assert address.startswith("http://127.0.0.1:5000/?token=t#/experiments/7/runs")


def test_links_come_below_the_heading_of_the_card_and_replace_older_ones() -> None:
    state = state_of(best_trial=3, run_ids={3: "r3", 4: "r4"}, model_uris={3: "models:/m-1"})
    card = "## Privacy card: digits\n\n> **A claim.**\n"
    linked = with_links(card, state)
    heading, _, link, _, claim = linked.splitlines()
    assert (heading, claim) == ("## Privacy card: digits", "> **A claim.**")
    assert "[trial-0003](#/experiments/7/runs/r3?" in link
    assert "[its model](#/experiments/7/models/m-1?" in link
    again = with_links(linked, state_of(best_trial=4, run_ids={4: "r4"}))
    assert again.count("Best: ") == 1
    assert "r4" in again
    assert "r3" not in again
    assert with_links(linked, state) == linked
    assert with_links(card, state_of()) == card


def test_mlflow_has_view_datasets_and_descriptions(story, store_uri, state_path, client) -> None:
    start(story)
    story.start_trial(0)
    story.end_trial(0)
    story.end()
    tracker = MLflowTracker(store_uri, "digits", state_path)
    for _ in range(2):
        tracker.handle(story.events)
    state_path.unlink()
    again = MLflowTracker(store_uri, "digits", state_path)
    again.handle(story.events)  # a replay adds nothing
    found = client.get_experiment_by_name("digits")
    (view,) = [v for k, v in found.tags.items() if k.startswith("mlflow.sharedViewState.dpsweep-")]
    wanted = json.loads(json.loads(view)["state"])
    (trial,) = client.search_runs(
        [found.experiment_id], wanted["searchFilter"], order_by=[f"{wanted['orderByKey']} DESC"]
    )
    assert trial.info.run_id == again.run_id_of(0)
    for run_id in (again.parent_run_id, again.run_id_of(0)):
        inputs = client.get_run(run_id).inputs.dataset_inputs
        seen = sorted((i.dataset.name, i.tags[0].value, i.dataset.profile) for i in inputs)
        assert seen == [
            ("digits public", "public", '{"declared_records": 50}'),
            ("digits training", "private", '{"declared_records": 1078}'),
        ]
    assert "Trial 0 of study digits" in trial.data.tags["mlflow.note.content"]
    note = client.get_run(again.parent_run_id).data.tags["mlflow.note.content"]
    assert again.run_id_of(0) in note
