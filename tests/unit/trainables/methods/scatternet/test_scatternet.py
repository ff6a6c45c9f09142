from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, NonPrivate, Plan, PoissonGaussian
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.features.spec import FeatureSpec
from dpsweep.trainables.gradients.linear_head import LinearHeadEngine
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.scatternet.non_private import ScatterNetNonPrivate
from dpsweep.trainables.methods.scatternet.normalize import clipped_channel_sum
from dpsweep.trainables.methods.scatternet.scatternet import ScatterNet
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.heads import LinearHeads

MakePlan = Callable[..., tuple[dict[str, Any], Plan]]
MakeBlobs = Callable[..., SweepData]
CONTEXT = RunContext(study_seed=0, trial=0)
RAW: dict[str, Any] = {"features__name": "none", "optim__lr_scaling": "none"}
STATISTICS = {
    "normalize__kind": "private_data",
    "normalize__mean_norm": 2.0,
    "normalize__square_norm": 4.0,
    "normalize__noise_multiplier": 8.0,
}


def started(
    method: Any,
    data: SweepData,
    hparams: dict[str, Any],
    plan: Plan,
    context: RunContext = CONTEXT,
) -> Any:
    instance = method()
    instance.prepare(data, hparams, plan, context)
    return instance


def weights(method: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in method._model.parameters()])


def info_of(shape: tuple[int, ...], num_private: int = 1000) -> DatasetInfo:
    return DatasetInfo("x", shape, 10, num_private, 0, 0, 0, tuple("abcdefghij"))


# Plans.


def test_the_noise_of_the_paper_s_best_row() -> None:
    """B 8192, 40 epochs, epsilon 3 on Fashion-MNIST; 3.6494 by dp_accounting's RDP accountant."""
    hparams = resolve(ScatterNet.hyperparameters, {})
    plan = ScatterNet.plan(hparams, PlanContext(PrivacyBudget(3.0, 1e-5), "rdp", 60_000))
    assert len(plan) == 293
    assert 3.6494 * 0.995 <= plan.at(0).noise_multiplier <= 3.6494 * (1 + 1e-4)


def test_statistics_come_first_and_are_paid_for(make_plan: MakePlan) -> None:
    _, plan = make_plan(ScatterNet, train__max_steps=30, **RAW, **STATISTICS)
    assert plan.runs[0] == EventRun(Gaussian(8.0), 2, phase="normalize")
    assert len(plan) == 32
    assert 0.99 * 3.0 <= epsilon_of(plan, delta=1e-5) <= 3.0
    _, plain = make_plan(ScatterNet, train__max_steps=30, **RAW)
    assert plan.at(2).noise_multiplier > plain.at(0).noise_multiplier


def test_a_given_noise_is_cut_at_the_budget_after_the_statistics(make_plan: MakePlan) -> None:
    given = {"noise__noise_multiplier": 4.0, "train__max_steps": 5000, **RAW}
    _, plain = make_plan(ScatterNet, **given)
    _, plan = make_plan(ScatterNet, **given, **STATISTICS)
    assert 3 < len(plan) < len(plain) < 5000
    assert plan.runs[0].phase == "normalize"
    one_more = plan + Plan((EventRun(plan.at(2)),))
    assert epsilon_of(plan, delta=1e-5) <= 3.0 < epsilon_of(one_more, delta=1e-5)
    with pytest.raises(InfeasibleBudgetError, match="after 2 other events"):
        make_plan(ScatterNet, **given, **{**STATISTICS, "normalize__noise_multiplier": 1.0})


@pytest.mark.parametrize("count", [2, 8, 32])
def test_heads_share_one_event(make_plan: MakePlan, count: int) -> None:
    _, one = make_plan(ScatterNet, train__max_steps=20, **RAW)
    _, many = make_plan(ScatterNet, train__max_steps=20, heads__count=count, **RAW)
    assert many == one  # calibrated: the joint noise is the same, so each head's is larger
    given = {"noise__noise_multiplier": 9.0, "train__max_steps": 3, "heads__count": count}
    _, plan = make_plan(ScatterNet, epsilon=50.0, **given, **RAW)
    shared = sum(1 / 9.0**2 for _ in range(count)) ** -0.5
    assert plan.at(0).noise_multiplier == pytest.approx(shared, rel=1e-12)


def test_heads_that_are_refused(make_plan: MakePlan) -> None:
    with pytest.raises(InfeasibleBudgetError, match="needs linear models"):
        make_plan(ScatterNet, heads__count=2, model__name="scatter_cnn")
    hparams, _ = make_plan(ScatterNet, heads__count=2, **RAW)
    for validation in ("public", "exact"):
        context = PlanContext(PrivacyBudget(3.0, 1e-5), "rdp", 200, validation)
        assert ScatterNet.plan(hparams, context)
    context = PlanContext(PrivacyBudget(3.0, 1e-5), "rdp", 200, "noisy")
    with pytest.raises(InfeasibleBudgetError, match="noisy validation"):
        ScatterNet.plan(hparams, context)


def test_non_private_plan_says_so(make_plan: MakePlan) -> None:
    _, plan = make_plan(ScatterNetNonPrivate, train__max_steps=5, normalize__kind="private_data")
    assert plan.runs == (EventRun(NonPrivate(), 2, "normalize"), EventRun(NonPrivate(), 5))
    assert math.isinf(epsilon_of(plan, delta=1e-5))


@pytest.mark.parametrize("method", [ScatterNet, ScatterNetNonPrivate])
def test_hyperparameters_that_change_the_plan_are_marked(method: Any) -> None:
    marked = {p.name for p in method.hyperparameters if p.changes_privacy}
    own = {"normalize.kind"}
    if method is ScatterNet:
        own |= {"normalize.noise_multiplier", "heads.count"}
    assert own == {name for name in marked if name.startswith(("normalize", "heads", "features"))}


# Features and preflight.


@pytest.mark.parametrize(
    ("given", "norm"),
    [
        ({}, "group:27"),
        ({"normalize.groups": 9}, "group:9"),
        ({"normalize.kind": "private_data"}, "none"),
        ({"normalize.kind": "none"}, "none"),
    ],
)
def test_extractor(given: dict[str, Any], norm: str) -> None:
    hparams = resolve(ScatterNet.hyperparameters, given)
    expected = FeatureSpec.of("scatternet", depth=2, angles=8, norm=norm)
    assert ScatterNet.extractor(hparams, info_of((1, 28, 28))) == expected
    assert expected.describe(info_of((1, 28, 28))).input_shape == (81, 7, 7)


@pytest.mark.parametrize(
    ("given", "shape", "where"),
    [
        ({}, (1, 28, 28), []),
        ({"normalize.groups": [9, 27, 81]}, (1, 8, 8), []),
        ({"normalize.groups": [9, 26]}, (1, 8, 8), ["normalize.groups"]),
        ({"normalize.groups": [26], "normalize.kind": ["none"]}, (1, 8, 8), []),
        ({"normalize.groups": [243]}, (3, 32, 32), []),
        ({"batch.expected": [8192]}, (1, 8, 8), ["batch.expected"]),
        ({}, (1, 3, 3), ["features.name"]),
        ({}, (20,), ["features.name"]),
        ({"features.name": ["none"]}, (20,), []),
        ({"features.name": ["none"], "model.name": ["scatter_cnn"]}, (20,), ["model.name"]),
        ({"model.name": ["linear", "scatter_cnn", "scatter_cnn_deep"]}, (1, 8, 8), []),
        ({"heads.count": [8], "model.name": ["scatter_cnn"]}, (1, 8, 8), ["heads.count"]),
    ],
)
def test_preflight(given: dict[str, list[Any]], shape: tuple[int, ...], where: list[str]) -> None:
    problems = ScatterNet.preflight({"batch.expected": [512], **given}, info_of(shape))
    assert [name for name, _, _ in problems] == where
    assert all(what and fix for _, what, fix in problems)


def test_preflight_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from dpsweep.trainables.features import spec as features

    features._feature_shape.cache_clear()
    monkeypatch.setitem(sys.modules, "kymatio.scattering2d.frontend.torch_frontend", None)
    values = {"batch.expected": [512], "normalize.groups": [27]}
    ((name, what, fix),) = ScatterNet.preflight(values, info_of((1, 12, 12)))
    assert name == "features.name"
    assert "kymatio" in what
    assert fix == "pip install 'dpsweep[scatternet]'"


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("scatter_cnn", (81, 7, 7), 33_066),
        ("scatter_cnn_deep", (243, 8, 8), 187_210),
        ("scatter_cnn_small", (243, 8, 8), 56_346),
        ("scatter_cnn", (81, 2, 2), None),
        ("scatter_cnn_deep", (81, 2, 3), None),
    ],
)
def test_models_of_tables_8_and_9(name: str, shape: tuple[int, ...], count: int | None) -> None:
    model = build_model(name, info_of(shape), seed=0)
    assert model(torch.zeros(2, *shape)).shape == (2, 10)
    if count is not None:
        assert sum(p.numel() for p in model.parameters()) == count


# Training.


def test_without_noise_and_clipping_it_is_sgd_on_the_features(
    make_plan: MakePlan, make_blobs: MakeBlobs
) -> None:
    """ScatterNet, group norm, a linear head, momentum, base rate: all against plain torch."""
    data = make_blobs(num_private=60, shape=(1, 8, 8))
    hparams, _ = make_plan(ScatterNet, num_private=60, clip__max_grad_norm=1e6, optim__lr=2.0)
    plan = Plan((EventRun(PoissonGaussian(0.0, 1.0), 6),))
    hparams["batch.sample_rate"] = 1.0
    method = started(ScatterNet, data, hparams, plan)
    extractor = FeatureSpec.of("scatternet", depth=2, angles=8, norm="group:27").build(data.info)
    x, y = (torch.from_numpy(array.copy()) for array in data.parts["private"])
    features = extractor(x)
    head = nn.Sequential(nn.Flatten(), nn.Linear(81 * 4, 3))
    state = {key: value.clone() for key, value in method._model.state_dict().items()}
    head.load_state_dict(state)
    optimizer = torch.optim.SGD(head.parameters(), lr=2.0 * 60 / 512, momentum=0.9)
    method.run(0, 6)
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), y).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in head.parameters()])
    torch.testing.assert_close(weights(method), expected, rtol=1e-5, atol=1e-6)


def test_statistics_are_the_noisy_ones_of_algorithm_2(
    make_plan: MakePlan, make_blobs: MakeBlobs
) -> None:
    data = make_blobs(num_private=150)
    data = replace(data, info=replace(data.info, num_private=200))
    hparams, plan = make_plan(ScatterNet, train__max_steps=4, **RAW, **STATISTICS)
    noise: list[torch.Tensor] = []
    method = ScatterNet()
    method.noise_observer = lambda tensor: noise.append(tensor.clone())
    method.prepare(data, hparams, plan, CONTEXT)
    start = weights(method).clone()
    x = torch.from_numpy(data.parts["private"][0].copy())
    sums = [
        clipped_channel_sum(x, np.arange(150), power=power, max_norm=bound, device="cpu")
        for power, bound in ((1, 2.0), (2, 4.0))
    ]
    method.run(0, 1)
    assert torch.equal(method._model[0].running_var, torch.ones(6))
    method.run(1, 2)
    assert torch.equal(weights(method), start)
    mean = (sums[0] + noise[0]) / 200  # declared, not the 150 records that are there
    variance = ((sums[1] + noise[1]) / 200 - mean.square()).clamp(min=1e-5)
    torch.testing.assert_close(method._model[0].running_mean.double(), mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(method._model[0].running_var.double(), variance, rtol=1e-4, atol=0)
    method.run(2, 6)
    assert torch.equal(method._model[0].running_mean, mean.float())
    assert not torch.equal(weights(method), start)


def test_every_noise_has_the_scale_of_its_event(make_plan: MakePlan, make_blobs: MakeBlobs) -> None:
    data = make_blobs(shape=(2000,))
    given = {"train__max_steps": 4, "clip__max_grad_norm": 0.2, "heads__count": 4}
    hparams, plan = make_plan(ScatterNet, **given, **RAW, **STATISTICS)
    seen: list[np.ndarray] = []
    method = ScatterNet()
    method.noise_observer = lambda tensor: seen.append(tensor.numpy().ravel().copy())
    method.prepare(data, hparams, plan, CONTEXT)
    method.run(0, len(plan))
    assert len(seen) == 2 + 4 * 4 * 2
    # Each of 4 heads has twice the noise that the joint event states.
    scale = 0.2 * 2 * plan.at(2).noise_multiplier
    heads = [(np.concatenate(seen[i : i + 2]), scale) for i in range(2, len(seen), 2)]
    for noise, scale in [(seen[0], 8 * 2.0), (seen[1], 8 * 4.0), *heads]:
        assert stats.kstest(noise / scale, "norm").pvalue > 1e-6
        assert stats.kstest(noise / scale * 2 / 3, "norm").pvalue < 1e-6
        assert stats.kstest(noise / scale * 3 / 2, "norm").pvalue < 1e-6


def test_noise_of_statistics_is_drawn_anew(make_plan: MakePlan, data: SweepData) -> None:
    hparams, plan = make_plan(ScatterNet, train__max_steps=4, **RAW, **STATISTICS)
    means = []
    for _ in range(2):
        method = started(ScatterNet, data, hparams, plan)
        method.run(0, 1)
        means.append(method._model[0].running_mean.clone())
    assert not torch.equal(*means)


def test_state_holds_the_statistics(make_plan: MakePlan, data: SweepData) -> None:
    hparams, plan = make_plan(
        ScatterNetNonPrivate, train__max_steps=10, normalize__kind="private_data", **RAW
    )
    whole = started(ScatterNetNonPrivate, data, hparams, plan)
    whole.run(0, len(plan))
    for stop in (1, 2, 7):
        first = started(ScatterNetNonPrivate, data, hparams, plan)
        first.run(0, stop)
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = started(ScatterNetNonPrivate, data, hparams, plan)
        second.load_state_dict(torch.load(file, weights_only=True))
        second.run(stop, len(plan))
        assert torch.equal(weights(whole), weights(second))
        assert torch.equal(whole._model[0].running_var, second._model[0].running_var)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", ["linear", "scatter_cnn"])
@pytest.mark.parametrize("kind", ["group", "private_data"])
@pytest.mark.parametrize("heads", [1, 3])
def test_export_takes_raw_records(
    make_plan: MakePlan, make_blobs: MakeBlobs, model: str, kind: str, heads: int
) -> None:
    if heads > 1 and model != "linear":
        return
    data = make_blobs(shape=(1, 8, 8), num_private=60)
    given = {"model__name": model, "normalize__kind": kind, "heads__count": heads}
    hparams, plan = make_plan(ScatterNet, num_private=60, train__max_steps=3, **given)
    method = started(ScatterNet, data, hparams, plan)
    method.run(0, len(plan))
    exported = method.export()
    inputs, labels = data.parts["test"]
    with torch.no_grad():
        logits = exported(torch.from_numpy(inputs.copy()))
    scores = method.evaluate("test")
    assert float((logits.argmax(dim=1).numpy() == labels).mean()) == scores["accuracy"]
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels.copy()))
    assert float(loss) == pytest.approx(scores["loss"], rel=1e-4)
    assert not exported.training
    assert not any(p.requires_grad for p in exported.parameters())
    modules = {type(m).__module__.partition(".")[0] for m in exported.modules()}
    assert modules <= {"torch", "kymatio"}


def test_half_precision_features(make_plan: MakePlan, make_blobs: MakeBlobs) -> None:
    data = make_blobs(shape=(1, 8, 8), num_private=60)
    results = []
    for dtype in ("float32", "float16"):
        hparams, plan = make_plan(
            ScatterNetNonPrivate, num_private=60, train__max_steps=5, features__dtype=dtype
        )
        method = started(ScatterNetNonPrivate, data, hparams, plan)
        assert str(method._inputs.dtype) == f"torch.{dtype}"
        method.run(0, 5)
        results.append(method.evaluate("test"))
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-2)


def test_features_come_from_the_store(
    make_plan: MakePlan, make_blobs: MakeBlobs, tmp_path: Any
) -> None:
    """A second trial computes no feature, and no part that nobody scores on is computed."""
    data = make_blobs(shape=(1, 8, 8), num_private=60)
    context = replace(CONTEXT, supplies=Supplies(feature_root=tmp_path))
    hparams, plan = make_plan(ScatterNet, num_private=60, train__max_steps=2)
    method = started(ScatterNet, data, hparams, plan, context)
    assert len(list(tmp_path.glob("*.npy"))) == 1
    method.evaluate("test")
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    assert len(files) == 2
    again = started(ScatterNet, data, hparams, plan, context)
    assert torch.equal(again._inputs, method._inputs)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")} == files


def test_foreign_events_are_refused(make_plan: MakePlan, data: SweepData) -> None:
    hparams, plan = make_plan(ScatterNet, train__max_steps=4, **RAW, **STATISTICS)
    for wrong in (
        plan.slice(2, 6),
        Plan((EventRun(NonPrivate(), 2, phase="normalize"),)) + plan.slice(2, 6),
        plan + plan.slice(0, 1),
    ):
        with pytest.raises(ValueError, match="scatternet cannot execute"):
            started(ScatterNet, data, hparams, wrong)


@pytest.mark.parametrize("scaling", ["batch", "none"])
def test_learning_rate_scales_with_the_batch(
    make_plan: MakePlan, data: SweepData, scaling: str
) -> None:
    given = {**RAW, "optim__lr_scaling": scaling, "optim__lr": 2.0, "optim__schedule": "cosine"}
    hparams, plan = make_plan(ScatterNet, train__max_steps=3, **given, **STATISTICS)
    method = started(ScatterNet, data, hparams, plan)
    expected = 2.0 * (50 / 512 if scaling == "batch" else 1.0)
    assert len(method._learning_rates) == 3  # the statistics are no steps
    method.run(0, 3)
    assert method._optimizer.param_groups[0]["lr"] == pytest.approx(expected)


# Many heads.


def test_heads_have_their_own_rates_and_weights(make_plan: MakePlan, data: SweepData) -> None:
    given = {"heads__count": 5, "heads__lr_span": 16.0, "optim__lr": 0.5}
    hparams, plan = make_plan(ScatterNet, train__max_steps=3, **given, **RAW)
    method = started(ScatterNet, data, hparams, plan)
    first = [head.weight.clone() for head in method._model[0].layers]
    assert not torch.equal(first[0], first[1])
    method.run(0, 1)
    rates = [group["lr"] for group in method._optimizer.param_groups]
    assert rates == pytest.approx([0.125, 0.25, 0.5, 1.0, 2.0])


def test_heads_train_like_single_ones(make_plan: MakePlan, data: SweepData) -> None:
    """Without noise and with all records in a batch, each head is its own trial."""
    hparams, _ = make_plan(ScatterNet, heads__count=3, heads__lr_span=4.0, **RAW)
    plan = Plan((EventRun(PoissonGaussian(0.0, 1.0), 5),))
    hparams["batch.sample_rate"] = 1.0
    many = started(ScatterNet, data, hparams, plan)
    initial = [copy.deepcopy(head) for head in many._model[0].layers]
    many.run(0, 5)
    assert isinstance(many._model[0], LinearHeads)
    for index, head in enumerate(initial):
        lr = hparams["optim.lr"] * 4.0 ** (index / 2 - 0.5)
        one = {**hparams, "heads.count": 1, "heads.lr_span": 1.0, "optim.lr": lr}
        single = started(ScatterNet, data, one, plan)
        assert type(single._engine) is LinearHeadEngine
        single._model[-1].load_state_dict(head.state_dict())
        single.run(0, 5)
        for key, value in single._model[-1].state_dict().items():
            mine = many._model[0].layers[index].state_dict()[key]
            torch.testing.assert_close(mine, value, rtol=1e-4, atol=1e-6)


def test_the_best_head_on_validation_is_the_result(make_plan: MakePlan, data: SweepData) -> None:
    hparams, plan = make_plan(ScatterNet, train__max_steps=4, heads__count=3, **RAW)
    method = started(ScatterNet, data, hparams, plan)
    method.run(0, 4)
    for head in method._model[0].layers:
        nn.init.zeros_(head.weight)
    good = started(ScatterNetNonPrivate, data, *make_plan(ScatterNetNonPrivate, **RAW))
    good.run(0, 80)
    method._model[0].layers[1].load_state_dict(good._model[-1].state_dict())
    expected = good.evaluate("test")
    assert method.evaluate("test") == pytest.approx(expected)
    assert method.evaluate("validation")["accuracy"] > 0.9
    restored = started(ScatterNet, data, hparams, plan)
    restored.evaluate("test")
    restored.load_state_dict(method.state_dict())
    assert restored.evaluate("test") == pytest.approx(expected)
    x, _ = data.parts["test"]
    x = torch.from_numpy(x.copy())
    torch.testing.assert_close(method.export()(x), good.export()(x))


# Without privacy.


@pytest.mark.parametrize("max_grad_norm", [None, 0.01])
def test_non_private_clips_only_where_asked(
    make_plan: MakePlan, data: SweepData, max_grad_norm: float | None
) -> None:
    hparams, plan = make_plan(
        ScatterNetNonPrivate,
        batch__sample_rate=1.0,
        train__max_steps=1,
        clip__max_grad_norm=max_grad_norm,
        optim__momentum=0.0,
        **RAW,
    )
    method = started(ScatterNetNonPrivate, data, hparams, plan)
    before = weights(method).clone()
    method.run(0, 1)
    moved = float((weights(method) - before).norm())
    assert moved > 0
    assert (moved <= 0.01) == (max_grad_norm is not None)
    again = started(ScatterNetNonPrivate, data, hparams, plan)
    again.run(0, 1)
    assert torch.equal(weights(again), weights(method))  # public randomness alone


def test_noiseless_statistics_normalise_exactly(make_plan: MakePlan, data: SweepData) -> None:
    given = {**STATISTICS, "normalize__mean_norm": 1e6, "normalize__square_norm": 1e6}
    del given["normalize__noise_multiplier"]
    hparams, plan = make_plan(ScatterNetNonPrivate, train__max_steps=2, **RAW, **given)
    method = started(ScatterNetNonPrivate, data, hparams, plan)
    method.run(0, 2)
    x = method._model[0](method._inputs)
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(6), rtol=0, atol=1e-4)
    torch.testing.assert_close(x.std(dim=0, correction=0), torch.ones(6), rtol=1e-3, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "given",
    [
        {"model__name": "scatter_cnn"},
        {"normalize__kind": "private_data", "features__dtype": "float16"},
        {"normalize__kind": "private_data", "model__name": "scatter_cnn"},
        {"heads__count": 3, "features__dtype": "float16", "normalize__kind": "private_data"},
    ],
)
def test_training_on_the_gpu(
    make_blobs: MakeBlobs, make_plan: MakePlan, given: dict[str, Any]
) -> None:
    data = make_blobs(shape=(1, 8, 8))
    hparams, plan = make_plan(ScatterNet, epsilon=8.0, train__epochs=10.0, **given)
    method = ScatterNet()
    method.prepare(data, hparams, plan, RunContext(0, 0, "cuda"))
    method.run(0, len(plan))
    again = ScatterNet()
    again.prepare(data, hparams, plan, RunContext(0, 0, "cpu"))
    again.load_state_dict(method.state_dict())
    expected = method.evaluate("validation")
    assert again.evaluate("validation")["loss"] == pytest.approx(expected["loss"], rel=1e-2)
    assert expected["accuracy"] > 0.5
