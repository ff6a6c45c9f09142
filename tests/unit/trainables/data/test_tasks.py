from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError, DataError, SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec
from dpsweep.tracking.labels import why_unreleased
from dpsweep.tracking.schema import UnloggableError, check_loggable
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.loading import describe_dataset
from dpsweep.trainables.data.losses import cross_entropy_sum
from dpsweep.trainables.data.tasks import IGNORED, task_of
from dpsweep.trainables.method import RunContext

CLASSES, MULTI, LM = task_of("classification"), task_of("multi_label"), task_of("causal_lm")
LENGTH, VOCABULARY = 5, 7


def batch(task: str, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if task == "causal_lm":
        logits = torch.randn(count, LENGTH, VOCABULARY, generator=generator)
        labels = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
        labels[torch.rand(count, LENGTH, generator=generator) < 0.3] = IGNORED
        return logits, labels
    logits = torch.randn(count, 4, generator=generator)
    if task == "multi_label":
        return logits, torch.randint(0, 2, (count, 4), generator=generator).float()
    return logits, torch.randint(0, 4, (count,), generator=generator)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["classification", "multi_label", "causal_lm"]), st.integers(1, 6))
def test_the_loss_is_the_sum_over_examples_and_scores_do_not_depend_on_blocks(
    name: str, count: int
) -> None:
    task = task_of(name)
    logits, labels = batch(name, count, seed=count)
    alone = [task.loss_sum(logits[i : i + 1], labels[i : i + 1]) for i in range(count)]
    assert torch.allclose(task.loss_sum(logits, labels), torch.stack(alone).sum(), atol=1e-5)
    names = tuple("abcd")
    if name == "causal_lm" and not (labels != IGNORED).any():
        return
    whole = task.scores([task.tally(logits, labels)], names)
    parts = [task.tally(logits[i : i + 1], labels[i : i + 1]) for i in range(count)]
    assert task.scores(parts, names) == pytest.approx(whole)
    assert set(whole) == set(task.metric_names(names))


def test_classification_keeps_the_loss_that_engines_have_a_closed_form_for() -> None:
    assert CLASSES.loss_sum is cross_entropy_sum


def test_attributes_by_hand() -> None:
    logits = torch.tensor([[2.0, -1.0], [0.5, 3.0], [-4.0, 1.0]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    losses = [math.log1p(math.exp(-x)) for x in (2, 1, -0.5, 3, 4, -1)]
    found = MULTI.scores([MULTI.tally(logits, labels)], ("x", "y"))
    assert found["loss"] == pytest.approx(sum(losses) / 2 / 3)
    assert found["accuracy/x"] == pytest.approx(2 / 3)
    assert found["accuracy/y"] == pytest.approx(2 / 3)
    assert found["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["classification", "multi_label", "causal_lm"])
def test_an_output_that_is_no_number_answers_nothing(name: str) -> None:
    """Else a network that has diverged would be as good as always saying 0."""
    task = task_of(name)
    logits, labels = batch(name, 4, seed=0)
    tally = task.tally(torch.full_like(logits, math.nan), torch.zeros_like(labels))
    assert not torch.as_tensor(tally.correct).any()
    scored = task.scores([tally], tuple("abcd"))
    assert {value for key, value in scored.items() if "accuracy" in key} == {0.0}
    half = logits.clone()
    half[:2] = math.nan
    whole = task.tally(logits[2:], labels[2:])
    assert torch.equal(
        torch.as_tensor(task.tally(half, labels).correct), torch.as_tensor(whole.correct)
    )


def test_a_text_weighs_as_one_record_and_scores_are_over_tokens() -> None:
    logits = torch.zeros(2, 3, 4)
    logits[0, 0, 1] = 2.0
    labels = torch.tensor([[1, IGNORED, IGNORED], [2, 3, 0]])
    first = -math.log(math.exp(2) / (math.exp(2) + 3))
    loss = LM.loss_sum(logits, labels)
    assert float(loss) == pytest.approx(first + math.log(4))  # a mean for each record
    found = LM.scores([LM.tally(logits, labels)], ())
    assert found["loss"] == pytest.approx((first + 3 * math.log(4)) / 4)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["accuracy"] == 0.5  # all logits equal: the first token, right once, and token 1


def test_a_text_without_a_token_that_counts_has_no_gradient() -> None:
    logits = torch.randn(2, 3, 4, requires_grad=True)
    labels = torch.tensor([[IGNORED] * 3, [1, 2, 3]])
    (gradient,) = torch.autograd.grad(LM.loss_sum(logits, labels), logits)
    assert bool(gradient.isfinite().all())
    assert not bool(gradient[0].any())
    assert bool(gradient[1].any())


def test_nothing_to_score_is_said() -> None:
    none = LM.tally(torch.zeros(1, 2, 3), torch.full((1, 2), IGNORED))
    with pytest.raises(DataError, match="nothing to score"):
        LM.scores([none], ())
    with pytest.raises(BadInputError, match=r"unknown data\.task"):
        task_of("regression")


def attributes(count: int = 120, size: int = 6) -> SweepData:
    """Grey images whose three attributes are signs of three pixels."""
    rng = np.random.default_rng(0)
    parts = {}
    for part, number in (("private", count), ("validation", 60), ("test", 40), ("public", 0)):
        inputs = rng.normal(size=(number, 1, size, size)).astype(np.float32)
        labels = (inputs.reshape(number, size * size)[:, [0, 7, 14]] > 0).astype(np.float32)
        parts[part] = (inputs, labels)
    names = ("left", "middle", "right")
    info = DatasetInfo("x", (1, size, size), 3, count, 60, 40, 0, names, task="multi_label")
    return SweepData(info, parts, "0")


@pytest.mark.parametrize(("method", "best"), [("dp_sgd", 0.75), ("non_private", 0.85)])
def test_attributes_are_learned(method: str, best: float, make_plan: Any) -> None:
    data, trainable = attributes(), TRAINABLES[method]
    hparams, plan = make_plan(
        trainable,
        num_private=120,
        epsilon=1000.0,  # at 50 the noise alone can undo what is learned
        batch__expected=60,
        train__max_steps=40,
        optim__lr=1.0,
    )
    run = trainable()
    run.prepare(data, hparams, plan, RunContext(0, 0))
    before = run.evaluate("validation")
    run.run(0, len(plan))
    after = run.evaluate("validation")
    assert after["accuracy"] > best > before["accuracy"]
    assert after["loss"] < before["loss"]
    single = [after[f"accuracy/{name}"] for name in data.info.class_names]
    assert after["accuracy"] == pytest.approx(sum(single) / 3)


def spec_of(tmp_path: Path, method: str = "dp_sgd", **data: Any) -> SweepSpec:
    shape = (50, 1, 8, 8)
    arrays = {"x_train": np.zeros(shape, np.float32), "y_train": np.zeros((50, 3), np.uint8)}
    np.savez(tmp_path / "d.npz", **arrays)
    given: dict[str, Any] = {
        "dataset": "npz",
        "task": "multi_label",
        "path": str(tmp_path / "d.npz"),
        "num_records": 50,
        "num_classes": 3,
        "validation": {"fraction": 0.2, "visibility": "public"},
    }
    return SweepSpec(
        name="x",
        data={**given, **data},
        privacy={"delta": 1e-3, "trial_epsilon": 2.0, "accounting": "unaccounted"},
        search={
            "sampler": "random",
            "num_trials": 1,
            "space": {"method": method} | ({} if method == "adamix" else {"batch.expected": 10}),
        },
        storage={"path": str(tmp_path)},
    )


def test_accuracies_of_attributes_leave_the_actor_where_scores_are_public(tmp_path: Path) -> None:
    names = preflight(spec_of(tmp_path)).admission.released_metrics
    each = {f"validation/accuracy/{label}" for label in "012"}
    assert names == {"validation/accuracy", "validation/loss"} | each
    for name in names:
        assert check_loggable(name).visibility == "public"
    shown = preflight(spec_of(tmp_path, test={"fraction": 0.2, "visibility": "public"}))
    assert {f"test/accuracy/{label}" for label in "012"} < shown.admission.released_metrics


def test_the_noise_of_one_count_does_not_cover_several(tmp_path: Path) -> None:
    noisy = {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.1}
    with pytest.raises(SpecError, match="noisy scores are for classification"):
        spec_of(tmp_path, validation=noisy)
    for name in ("validation/accuracy/0", "validation/perplexity", "validation/loss"):
        assert why_unreleased(name, {"dp.validation": "noisy"})
        tags = {"dp.validation": "exact", "dp.accounting": "composed"}
        assert why_unreleased(name, tags)
    with pytest.raises(UnloggableError):
        check_loggable("train/accuracy/0")


def test_methods_that_train_another_head_refuse_other_tasks(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="adamix cannot learn multi_label") as caught:
        preflight(spec_of(tmp_path, "adamix", public={"fraction": 0.2}))
    assert "dp_sgd" in str(caught.value)
    able = {name for name in TRAINABLES if "causal_lm" in TRAINABLES[name].tasks}
    assert {"dp_sgd", "non_private"} <= able
    assert not able & {"adamix", "adamix_paragon", "scatternet", "scatternet_non_private"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "digits", "path": None, "num_records": None, "num_classes": None},
         "multi_label needs the attributes"),
        ({"task": "causal_lm", "num_classes": None}, "causal_lm needs texts"),
        ({"task": "causal_lm"}, "the next token is the label"),
        ({"task": "regression"}, "regression"),
        ({"max_length": 8}, "has no meaning for npz"),
    ],
)  # fmt: skip
def test_tasks_that_data_do_not_have(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        spec_of(tmp_path, **changes)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.zeros(50, np.int64), r"y_train has shape \(records,\), not \(records, 3\)"),
        (np.full((50, 3), 2), "not 0 or 1"),
        (np.full((50, 3), np.nan), "not 0 or 1"),
    ],
)
def test_attributes_must_be_attributes(
    tmp_path: Path, labels: np.ndarray, words: str, make_spec: Any
) -> None:
    from dpsweep.trainables.data.loading import load_dataset

    path = tmp_path / "d.npz"
    np.savez(path, x_train=np.zeros((50, 4), np.float32), y_train=labels)
    spec = make_spec(
        dataset="npz", task="multi_label", path=str(path), num_records=50, num_classes=3
    )
    with pytest.raises(DataError, match=words):
        load_dataset(spec)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [(object, "object"), (complex, "complex128"), ("U1", "<U1"), ([("a", "i4")], "several fields")],
)
def test_attributes_that_are_no_numbers_are_told_by_the_header(
    tmp_path: Path, kind: Any, shown: str, make_spec: Any
) -> None:
    path = tmp_path / "d.npz"
    spec = make_spec(
        dataset="npz", task="multi_label", path=str(path), num_records=50, num_classes=3
    )
    for fine in (bool, np.uint8, np.float32):
        np.savez(path, x_train=np.ones((50, 4)), y_train=np.zeros((50, 3), fine))
        assert describe_dataset(spec).num_classes == 3
    np.savez(path, x_train=np.ones((50, 4)), y_train=np.zeros((50, 3), kind))
    with pytest.raises(DataError, match=f"y_train has dtype .*{shown}") as caught:
        describe_dataset(spec)
    assert caught.value.fix == "store attributes that are 0 or 1"
