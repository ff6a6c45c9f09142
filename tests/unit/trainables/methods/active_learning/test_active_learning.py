"""Active learning on images: what it asks for, what it buys, what it draws, what it resumes."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from begun import Begun

from dpsweep.foundation.errors import CheckpointError, InfeasibleBudgetError
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.spec.study import DataSpec
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.execution.checkpoints import Checkpoint, CheckpointStore
from dpsweep.trainables.execution.starts import Release, Starts, release_name
from dpsweep.trainables.execution.trial_data import records_for
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.active_learning.active_learning import ActiveLearning
from dpsweep.trainables.methods.active_learning.embeddings import embed
from dpsweep.trainables.methods.active_learning.start_network import build_start
from dpsweep.trainables.methods.dp_sgd import DPSGD

START = Plan((EventRun(PoissonGaussian(2.0, 0.1), 20),))
MODEL = resolve(DPSGD.hyperparameters, {"model.name": "tanh_cnn"})
GIVEN = {
    "start.epsilon": 1.0,
    "labels.max": 40,
    "select.candidates": 200,
    "select.clusters": 8,
    "finetune.distill_epochs": 2,
    "finetune.epochs": 3,
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    public = {"fraction": 0.5, "pollution": {"records": 50, "kinds": ["noise"]}}
    validation = {"fraction": 0.2, "visibility": "public"}
    data = load_dataset(DataSpec(dataset="digits", validation=validation, public=public))
    network = build_start(MODEL, data.info, seed=77)
    path = tmp_path_factory.mktemp("start")
    saved = Checkpoint(7, None, 0, 7, {}, {"model": network.state_dict()})
    digest = CheckpointStore(path).save(release_name(0), saved)
    release = Release(path, release_name(0), digest)
    return Begun.of(data, Starts(MODEL, {(0, 1.0): release}))


def prepared(data: Begun, trial: int = 3, **given: Any) -> tuple[ActiveLearning, Plan]:
    named = {key.replace("__", "."): value for key, value in given.items()}
    hparams = resolve(ActiveLearning.hyperparameters, {**GIVEN, **named})
    context = PlanContext(PrivacyBudget(4.0, 1e-5), "rdp", 500, starts={(0, 1.0): START})
    plan = ActiveLearning.plan(hparams, context)
    instance = ActiveLearning()
    instance.prepare(
        data, hparams, plan, RunContext(0, trial, supplies=Supplies(starts=data.starts))
    )
    return instance, plan


def rows_of(instance: ActiveLearning) -> list[int]:
    return sorted(instance.state_dict()["rows"].tolist())


@pytest.mark.parametrize("by", ["random", "entropy", "margin", "diverse_public", "near_private"])
def test_each_selector_buys_what_it_may_and_no_more(digits: Begun, by: str) -> None:
    instance, plan = prepared(digits, select__by=by)
    assert instance.public_scores() == {"labels": 0.0}
    instance.run(0, len(plan) - 3)
    assert instance.public_scores()["labels"] == 0  # distilled, and nobody asked yet
    assert instance.public_scores() == {"labels": 0.0}  # votes may have chosen, and none is bought
    instance.run(len(plan) - 3, len(plan))
    assert len(set(rows_of(instance))) == 40
    assert digits.polluted is not None
    share = digits.polluted[rows_of(instance)].mean()
    assert instance.public_scores() == {"labels": 40.0, "polluted_share": share}


@pytest.mark.parametrize("by", ["diverse_public", "near_private"])
def test_no_configuration_wants_more_labels_than_candidates(digits: Begun, by: str) -> None:
    with pytest.raises(InfeasibleBudgetError, match="=201 is more than select"):
        prepared(digits, select__by=by, labels__max=201)
    prepared(digits, select__by="margin", labels__max=201)


@pytest.mark.parametrize("by", ["random", "near_private"])
def test_without_labels_it_distils_and_asks_nobody(digits: Begun, by: str) -> None:
    inputs, labels = digits.parts["public"]
    hidden = {**digits.parts, "public": (inputs, np.full_like(labels, -1))}
    instance, plan = prepared(replace(digits, parts=hidden), select__by=by, labels__max=0)
    assert [(run.phase, run.part, run.count) for run in plan.runs] == [("distill", "public", 2)]
    before = instance.evaluate("validation")["loss"]
    instance.run(0, len(plan))
    assert instance.public_scores() == {"labels": 0.0}
    assert instance.evaluate("validation")["loss"] != before
    with pytest.raises(InfeasibleBudgetError, match=r"leaves finetune\.recipe=plain nothing"):
        prepared(digits, labels__max=0, finetune__recipe="plain")


def test_hidden_labels_cannot_be_bought(digits: Begun) -> None:
    info = replace(digits.info, public_labels="hidden")
    values = {"labels.max": [0, 40], "select.by": ["random"]}
    (mistake,) = ActiveLearning.preflight(values, info)
    assert str(mistake).startswith("labels.max: 40 labels are to be bought, and data.public.labels")
    assert ActiveLearning.preflight({**values, "labels.max": [0]}, info) == []
    assert ActiveLearning.preflight(values, replace(info, public_labels="bought")) == []
    alone = {**values, "labels.max": [0], "finetune.recipe": ["plain"]}
    (mistake,) = ActiveLearning.preflight(alone, info)
    assert "nothing else is learned from but labels" in mistake.what


def test_labels_for_each_cluster_are_within_what_may_be_bought(digits: Begun) -> None:
    with pytest.raises(InfeasibleBudgetError, match=r"select.each=6 labels in select.clusters=8"):
        prepared(digits, select__each=6)
    prepared(digits, select__each=5)
    prepared(digits, select__each=6, select__by="margin")
    prepared(digits, select__each=6, labels__max=0)


def test_what_is_searched_in_vain_is_noted() -> None:
    values = {"select.by": ["margin", "random"], "split.pca": [0.2, 0.8], "select.clusters": [9]}
    (note,) = ActiveLearning.notes(values)
    assert note.startswith("split.pca is searched, but has an effect with select.by: near_private")
    assert ActiveLearning.notes({**values, "select.by": ["margin", "near_private"]}) == []
    recipe = {"finetune.recipe": ["labels_only"], "finetune.replay": [0, 1]}
    assert len(ActiveLearning.notes({**values, **recipe})) == 2


@pytest.mark.parametrize("clusters", [7, 30])
def test_clusters_share_all_labels_that_may_be_bought(digits: Begun, clusters: int) -> None:
    """40 = 7 * 5 + 5 = 30 + 10: none is left over, and no cluster has two more than another."""
    instance, plan = prepared(digits, select__clusters=clusters)
    instance.run(0, len(plan))
    assert len(set(rows_of(instance))) == instance.public_scores()["labels"] == 40


def test_selectors_are_compared_on_the_same_network_and_seeds(digits: Begun) -> None:
    def first(trial: int, **given: Any) -> tuple[torch.Tensor, list[int]]:
        instance, plan = prepared(digits, trial, **given)
        weights = next(instance._model.parameters()).detach().clone()
        instance.run(0, len(plan))
        return weights, instance.state_dict()["rows"].tolist()

    weights, rows = first(3, select__by="random")
    for trial, given in ((4, {"select__by": "margin"}), (5, {"labels__max": 30})):
        assert torch.equal(first(trial, **given)[0], weights)
    assert first(6, select__by="random", labels__max=30)[1] == rows[:30]
    again, others = first(3, select__by="random", train__repeat=1)
    assert not torch.equal(again, weights)
    assert others != rows


@pytest.mark.parametrize(("by", "rows"), [("margin", 0), ("near_private", 540)])
def test_only_who_asks_private_records_is_handed_them(digits: Begun, by: str, rows: int) -> None:
    instance, plan = prepared(digits, select__by=by)
    task = TrialTask(3, "active_learning", instance._hparams, plan, 1.0, True)
    handed = records_for(digits, task)
    assert [len(array) for array in handed.parts["private"]] == [rows, rows]
    assert handed.info == digits.info
    for part in ("public", "validation", "test"):
        assert handed.parts[part] is digits.parts[part]


def test_no_method_is_handed_records_that_its_plan_does_not_ask(digits: Begun) -> None:
    """Of another package's, one that calls its events free by mistake, too."""
    free = Plan((EventRun(PoissonGaussian(1.0, 0.1), 3, part="public"),))
    task = TrialTask(3, "dp_sgd", {}, free, 0.0, True)
    assert [len(array) for array in records_for(digits, task).parts["private"]] == [0, 0]
    asked = TrialTask(3, "dp_sgd", {}, Plan((EventRun(PoissonGaussian(1.0, 0.1), 3),)), 1.0, True)
    assert records_for(digits, asked).parts["private"] is digits.parts["private"]


def test_labels_that_are_not_bought_change_nothing(digits: Begun) -> None:
    def weights(data: SweepData) -> torch.Tensor:
        instance, plan = prepared(data)
        instance.run(0, len(plan))
        parts = [value.flatten() for value in instance.export().state_dict().values()]
        return torch.cat([*parts, torch.tensor(rows_of(instance), dtype=torch.float32)])

    first = weights(digits)
    inputs, labels = digits.parts["public"]
    others = np.setdiff1d(np.arange(len(labels)), first[-40:].long().numpy())
    hidden = labels.copy()
    hidden[others] = (hidden[others] + 1) % 10
    changed = replace(digits, parts={**digits.parts, "public": (inputs, hidden)})
    assert torch.equal(weights(changed), first)
    hidden[first[-40:].long().numpy()] = 0
    assert not torch.equal(weights(changed), first)


def test_uncertain_records_are_bought_first(digits: Begun) -> None:
    instance, plan = prepared(digits, select__by="margin")
    instance.run(0, len(plan))
    _, logits = embed(instance._start, instance._public, block=64, device="cpu")
    two = logits.topk(2).values
    margins = two[:, 0] - two[:, 1]
    kept = torch.ones(len(margins), dtype=torch.bool)
    kept[rows_of(instance)] = False
    assert margins[rows_of(instance)].max() <= margins[kept].min()


@pytest.mark.parametrize("recipe", ["distill", "plain", "labels_only"])
def test_recipes_start_where_they_say(digits: Begun, recipe: str) -> None:
    instance, plan = prepared(digits, finetune__recipe=recipe)
    assert [run.phase for run in plan.runs] == (
        ["distill", "finetune"] if recipe == "distill" else ["finetune"]
    )
    start, model = instance._start.state_dict(), instance._model.state_dict()
    is_same = all(torch.equal(start[name], model[name]) for name in start)
    assert is_same is (recipe == "plain")


@pytest.mark.slow
def test_distilling_makes_the_network_say_what_the_start_says(digits: Begun) -> None:
    instance, plan = prepared(digits, finetune__distill_epochs=30, finetune__lr=0.003)
    instance.run(0, 30)
    _, said = embed(instance._start, instance._public, block=64, device="cpu")
    _, says = embed(instance._model, instance._public, block=64, device="cpu")
    assert float((said.argmax(1) == says.argmax(1)).float().mean()) > 0.9
    assert len(plan) == 33


@pytest.mark.parametrize("position", [1, 2, 4, 6])
def test_a_resumed_trial_never_asks_twice(digits: Begun, position: int) -> None:
    """What was released is in its state; what is public is computed again, bit by bit."""
    first, plan = prepared(digits, select__by="near_private")
    first.run(0, position)
    state = copy.deepcopy(first.state_dict())
    first.run(position, len(plan))
    second, _ = prepared(digits, select__by="near_private")
    second.load_state_dict(state)
    if position >= 2:
        digits_without = replace(
            digits, parts={**digits.parts, "private": (np.full((3, 1, 8, 8), np.nan), np.zeros(3))}
        )
        second._data = digits_without
    second.run(position, len(plan))
    if position >= 2:  # then nothing secret is left to happen
        assert rows_of(first) == rows_of(second)
        for mine, theirs in zip(
            first.export().parameters(), second.export().parameters(), strict=True
        ):
            assert torch.equal(mine, theirs)
    assert second.public_scores()["labels"] == 40


def test_the_release_is_what_the_trial_starts_from(digits: Begun, tmp_path: Path) -> None:
    expected = build_start(MODEL, digits.info, seed=77).state_dict()
    started = prepared(digits)[0]._start.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in started.items())
    with pytest.raises(CheckpointError, match="run 1 of the start has released nothing at 1"):
        prepared(digits, start__run=1)
    assert digits.starts is not None
    release = digits.starts.releases[0, 1.0]
    lost = Starts(MODEL, {(0, 1.0): replace(release, directory=tmp_path)})
    with pytest.raises(CheckpointError, match="has no release-0 "):
        prepared(replace(digits, starts=lost))
    other = Starts(MODEL, {(0, 1.0): replace(release, sha256="0" * 64)})
    with pytest.raises(CheckpointError, match="has another release-0 than the ledger"):
        prepared(replace(digits, starts=other))


def test_pictures_show_bought_records_only(digits: Begun, tmp_path: Path) -> None:
    instance, plan = prepared(digits)
    assert instance.pictures(tmp_path) == []
    instance.run(0, len(plan))
    (path,) = instance.pictures(tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert instance.public_scores()["labels"] == 40


def test_there_are_no_pictures_of_what_no_start_has_said(digits: Begun, tmp_path: Path) -> None:
    instance, plan = prepared(digits, select__by="random", finetune__recipe="labels_only")
    instance.run(0, len(plan))
    assert instance.pictures(tmp_path) == []


def test_the_export_scores_as_the_trial_does(digits: Begun) -> None:
    instance, plan = prepared(digits)
    instance.run(0, len(plan))
    inputs, labels = digits.parts["validation"]
    outputs = instance.export()(torch.from_numpy(inputs))
    share = float((outputs.argmax(1).numpy() == labels).mean())
    assert instance.evaluate("validation")["accuracy"] == pytest.approx(share)
