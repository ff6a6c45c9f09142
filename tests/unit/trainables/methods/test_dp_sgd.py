from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dpsweep.foundation.errors import BadInputError, DataError, InfeasibleBudgetError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import calibrate_noise_multiplier
from dpsweep.privacy.events import EventRun, Gaussian, NonPrivate, Plan, PoissonGaussian
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.gradients.clipping import TOLERANCE
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.method import Method, PlanContext, RunContext
from dpsweep.trainables.methods.classifier import ClassifierMethod
from dpsweep.trainables.methods.dp_sgd import DPSGD

MakePlan = Callable[..., tuple[dict[str, Any], Plan]]
CONTEXT = RunContext(study_seed=0, trial=0)


def started(method: type[Method], data: SweepData, hparams: dict[str, Any], plan: Plan) -> Any:
    instance = method()
    instance.prepare(data, hparams, plan, CONTEXT)
    return instance


def weights(method: Any) -> torch.Tensor:
    return torch.cat([value.flatten() for value in method.state_dict()["model"].values()])


# Plans.


def test_calibrated_plan_spends_the_budget(make_plan: MakePlan) -> None:
    _, plan = make_plan(DPSGD, train__epochs=10.0)
    assert len(plan) == 40
    assert {run.event.sample_rate for run in plan.runs} == {0.25}
    assert 0.99 * 3.0 <= epsilon_of(plan, delta=1e-5) <= 3.0


@pytest.mark.parametrize("shape", ["linear", "cosine", "exponential", "step"])
def test_noise_schedule_is_in_the_plan(make_plan: MakePlan, shape: str) -> None:
    _, plan = make_plan(DPSGD, train__max_steps=30, noise__shape=shape, noise__end_ratio=0.5)
    assert plan.at(29).noise_multiplier == pytest.approx(0.5 * plan.at(0).noise_multiplier)
    assert 0.99 * 3.0 <= epsilon_of(plan, delta=1e-5) <= 3.0


def test_end_ratio_has_no_meaning_for_a_constant_shape(make_plan: MakePlan) -> None:
    plain = make_plan(DPSGD)[1]
    assert make_plan(DPSGD, noise__end_ratio=0.5)[1].merged() == plain.merged()


def test_given_noise_ends_the_plan_within_the_budget(make_plan: MakePlan) -> None:
    given = {"noise__noise_multiplier": 1.0, "batch__sample_rate": 0.01, "train__max_steps": 5000}
    _, plan = make_plan(DPSGD, num_private=60_000, epsilon=2.0, **given)
    assert len(plan) == 881  # issue 1, acceptance
    one_more = Plan((EventRun(PoissonGaussian(1.0, 0.01), 882),))
    assert epsilon_of(plan, delta=1e-5) <= 2.0 < epsilon_of(one_more, delta=1e-5)
    _, short = make_plan(
        DPSGD, num_private=60_000, epsilon=2.0, **{**given, "train__max_steps": 100}
    )
    assert len(short) == 100


@pytest.mark.parametrize("shape", ["constant", "cosine", "linear"])
@pytest.mark.parametrize("target", [0.3, 1.7, 3.0])
def test_noise_is_calibrated_to_its_own_target(
    make_plan: MakePlan, shape: str, target: float
) -> None:
    given = {"noise__shape": shape, "noise__end_ratio": 0.5, "train__max_steps": 30}
    _, plan = make_plan(DPSGD, noise__target_epsilon=target, **given)
    assert len(plan) == 30
    assert 0.99 * target <= epsilon_of(plan, delta=1e-5) <= target
    _, capped = make_plan(DPSGD, epsilon=target, **given)
    assert plan == capped


def test_a_noisy_prefix_comes_before_the_shape(make_plan: MakePlan) -> None:
    given = {"noise__prefix_factor": 4.0, "train__max_steps": 40}
    _, plan = make_plan(DPSGD, epsilon=2.0, **given)
    loud, base = plan.runs
    assert (loud.count, base.count, plan.prefix_end) == (6, 34, 6)
    assert (loud.phase, base.phase) == ("prefix", "train")
    assert loud.event.noise_multiplier == 4 * base.event.noise_multiplier
    assert 0.99 * 2 <= epsilon_of(plan, delta=1e-5) <= 2.0
    _, moved = make_plan(DPSGD, epsilon=2.0, noise__shape="linear", noise__end_ratio=0.5, **given)
    noises = [moved.at(t).noise_multiplier for t in (5, 6, 39)]
    assert [noise / noises[1] for noise in noises] == pytest.approx([4, 1, 0.5])
    assert 0.99 * 2 <= epsilon_of(moved, delta=1e-5) <= 2.0


def test_a_target_that_is_absent_changes_no_plan(make_plan: MakePlan) -> None:
    """The start values of ``calibrate_noise_schedule``'s documentation, to all digits."""
    given = {"batch__sample_rate": 0.01, "train__max_steps": 480}
    for target in ({}, {"noise__target_epsilon": None}, {"noise__target_epsilon": 2.0}):
        _, plan = make_plan(DPSGD, epsilon=2.0, **given, **target)
        expected = calibrate_noise_multiplier(PrivacyBudget(2.0, 1e-5), sample_rate=0.01, steps=480)
        assert plan == Plan((EventRun(PoissonGaussian(expected, 0.01), 480),))


def test_a_given_noise_multiplier_wins_over_the_target(make_plan: MakePlan) -> None:
    given = {"noise__noise_multiplier": 2.0, "train__max_steps": 30}
    _, plan = make_plan(DPSGD, **given)
    for target in (0.01, 99.0):
        assert make_plan(DPSGD, noise__target_epsilon=target, **given)[1] == plan
    declared = {parameter.name: parameter for parameter in DPSGD.hyperparameters}
    assert "noise_multiplier wins" in declared["noise.target_epsilon"].doc


def test_rate_and_steps(make_plan: MakePlan) -> None:
    _, plan = make_plan(DPSGD, num_private=200, batch__expected=30, train__epochs=1.0)
    assert len(plan) == round(200 / 30)
    assert plan.at(0).sample_rate == 30 / 200
    _, plan = make_plan(DPSGD, batch__sample_rate=0.5, train__epochs=0.1)
    assert len(plan) == 1
    assert plan.at(0).sample_rate == 0.5


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"batch__expected": 201}, "larger than the 200"),
        ({"noise__noise_multiplier": 0.1, "train__max_steps": 9}, "first step already costs"),
        (
            {"noise__target_epsilon": 3.5},
            r"noise\.target_epsilon=3\.5 is over privacy\.trial_epsilon=3 \(delta=1e-05",
        ),
    ],
)
def test_plans_that_are_refused(make_plan: MakePlan, given: dict[str, Any], word: str) -> None:
    with pytest.raises(InfeasibleBudgetError, match=word):
        make_plan(DPSGD, **given)


def test_non_private_plan_says_so(make_plan: MakePlan) -> None:
    method = TRAINABLES["non_private"]
    _, plan = make_plan(method, train__epochs=2.0)
    assert plan.runs == (EventRun(NonPrivate(), 8),)
    assert not method.is_private
    assert math.isinf(epsilon_of(plan, delta=1e-5))


@pytest.mark.parametrize("name", ["dp_sgd", "non_private"])
def test_hyperparameters_are_well_formed(name: str) -> None:
    declared = TRAINABLES[name].hyperparameters
    names = [parameter.name for parameter in declared]
    assert len(set(names)) == len(names)
    assert [p.name for p in declared if p.problem(p.default)] == []
    privacy = {p.name for p in declared if p.changes_privacy}
    always = {
        "batch.expected",
        "batch.sample_rate",
        "train.epochs",
        "train.max_steps",
        "train.num_private",
    }
    noise = {
        "noise.shape",
        "noise.end_ratio",
        "noise.prefix_factor",
        "noise.prefix_share",
        "noise.noise_multiplier",
        "noise.target_epsilon",
        "noise.bands",
    }
    assert privacy == always | (noise if name == "dp_sgd" else set())


# Preflight.


def info_of(shape: tuple[int, ...], num_private: int = 1000) -> DatasetInfo:
    return DatasetInfo("x", shape, 10, num_private, 0, 0, 0, tuple("abcdefghij"))


@pytest.mark.parametrize(
    ("values", "shape", "where"),
    [
        ({"model.name": ["linear", "tanh_cnn"]}, (1, 8, 8), []),
        ({"model.name": ["linear"], "batch.expected": [64, 1000]}, (8,), []),
        ({"batch.expected": [64, 1001]}, (8,), ["batch.expected"]),
        ({"batch.expected": [64, 1001], "batch.sample_rate": [0.1]}, (8,), []),
        ({"model.name": ["linear", "tanh_cnn"]}, (8,), ["model.name"]),
        ({"model.name": ["timm/resnet10t"]}, (3, 32, 32), ["model.norm"]),
        ({"model.name": ["timm/resnet10t"], "model.norm": ["group"]}, (3, 32, 32), []),
        ({"model.name": ["timm/nothing_like_it"]}, (3, 32, 32), ["model.name"]),
        ({"model.checkpoint": ["/no/such/file"]}, (8,), ["model.checkpoint"]),
        ({"model.checkpoint": [os.path.relpath(__file__)]}, (8,), ["model.checkpoint"]),
    ],
)
def test_preflight(values: dict[str, list[Any]], shape: tuple[int, ...], where: list[str]) -> None:
    problems = DPSGD.preflight(values, info_of(shape))
    assert [name for name, _, _ in problems] == where
    assert all(what and fix for _, what, fix in problems)


# Training.


def test_one_step_is_the_clipped_sum_plus_noise_over_declared_numbers(
    make_plan: MakePlan, make_blobs: Callable[..., SweepData]
) -> None:
    data = make_blobs(num_private=150)
    declared = DatasetInfo(**{**data.info.__dict__, "num_private": 200})
    data = SweepData(declared, data.parts, "0")
    hparams, plan = make_plan(
        DPSGD, batch__sample_rate=1.0, train__max_steps=1, optim__momentum=0.0, optim__lr=0.5
    )
    noise: list[torch.Tensor] = []
    method = DPSGD()
    method.noise_observer = lambda tensor: noise.append(tensor.clone())
    method.prepare(data, hparams, plan, CONTEXT)
    before = weights(method).clone()
    weight, bias = before[:18].view(3, 6).double(), before[18:].double()
    x, y = (torch.from_numpy(array.copy()) for array in data.parts["private"])
    residual = torch.softmax(x.double() @ weight.T + bias, dim=1) - torch.eye(3)[y]
    gradients = torch.cat([residual[:, :, None] * x[:, None, :], residual[:, :, None]], dim=2)
    norms = gradients.flatten(1).norm(dim=1)
    assert (norms > 1).any()
    assert (norms < 1).any()
    total = (gradients / norms.clamp(min=1.0)[:, None, None]).sum(dim=0)
    method.run(0, 1)
    noisy = torch.cat([total[:, :6].flatten(), total[:, 6]]) + torch.cat(
        [n.flatten() for n in noise]
    )
    expected = before - 0.5 * noisy / 200  # declared, not the 150 records that are there
    torch.testing.assert_close(weights(method), expected.float(), rtol=1e-4, atol=1e-6)


def test_training_learns(make_plan: MakePlan, data: SweepData) -> None:
    hparams, plan = make_plan(DPSGD, epsilon=8.0, train__epochs=20.0, optim__lr=0.2)
    method = started(DPSGD, data, hparams, plan)
    before = method.evaluate("validation")
    method.run(0, len(plan))
    after = method.evaluate("validation")
    assert after["accuracy"] > max(0.8, before["accuracy"])
    assert after["loss"] < before["loss"]


def test_batches_ignore_every_known_seed(make_plan: MakePlan, data: SweepData) -> None:
    """Whoever knows who was in a batch has no amplification by sampling."""
    hparams, plan = make_plan(DPSGD)
    batches = []
    for _ in range(2):
        np.random.seed(0)
        method = started(DPSGD, data, hparams, plan)
        batches.append(method._draw_batch(method._batches, 0.5).tolist())
    assert batches[0] != batches[1]


@pytest.mark.parametrize("shape", ["constant", "cosine"])
def test_noise_has_the_plan_s_scale_and_no_other(
    make_plan: MakePlan, shape: str, data: SweepData
) -> None:
    hparams, plan = make_plan(
        DPSGD,
        train__max_steps=60,
        noise__shape=shape,
        noise__end_ratio=0.5,
        clip__max_grad_norm=0.3,
        clip__shape="linear",
        clip__end_ratio=0.1,
    )
    seen: list[np.ndarray] = []
    method = DPSGD()
    method.noise_observer = lambda tensor: seen.append(tensor.numpy().ravel().copy())
    method.prepare(data, hparams, plan, CONTEXT)
    method.run(0, 60)
    noise = np.stack([np.concatenate(seen[2 * step : 2 * step + 2]) for step in range(60)])
    clips = np.linspace(0.3, 0.03, 60)
    scales = [plan.at(step).noise_multiplier * clips[step] for step in range(60)]
    standard = (noise / np.array(scales)[:, None]).ravel()
    assert len(standard) == 60 * 21
    assert stats.kstest(standard, "norm").pvalue > 1e-4
    assert stats.kstest(standard * 2 / 3, "norm").pvalue < 1e-6
    assert stats.kstest(standard * 3 / 2, "norm").pvalue < 1e-6


class Silence(SecretNoise):
    """Noise of zeros that notes how large it should have been."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.scales: list[float] = []

    def like(self, tensor: torch.Tensor, scale: float) -> torch.Tensor:
        self.scales.append(scale)
        return torch.zeros_like(tensor)


def test_noise_covers_the_most_that_an_example_can_add(
    make_plan: MakePlan, data: SweepData
) -> None:
    hparams, plan = make_plan(DPSGD, train__max_steps=2, clip__max_grad_norm=0.3)
    method = DPSGD()
    method.prepare(data, hparams, plan, CONTEXT)
    method._noise = noise = Silence()
    method.run(0, 2)
    exact = plan.at(0).noise_multiplier * 0.3
    assert exact * (1 + 0.99 * TOLERANCE) < min(noise.scales) <= max(noise.scales) < exact * 1.001


def noise_hashes(
    data: SweepData, hparams: dict[str, Any], plan: Plan, state: dict[str, Any] | None
) -> list[str]:
    hashes: list[str] = []
    method = DPSGD()
    method.noise_observer = lambda tensor: hashes.append(
        hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    )
    method.prepare(data, hparams, plan, CONTEXT)
    if state is not None:
        method.load_state_dict(state)
    method.run(method._position, method._position + 5)
    return hashes


def test_noise_never_repeats_across_restores_and_equal_seeds(
    make_plan: MakePlan, data: SweepData
) -> None:
    hparams, plan = make_plan(DPSGD)
    state = started(DPSGD, data, hparams, plan).state_dict()
    hashes = [h for s in (None, None, state, state) for h in noise_hashes(data, hparams, plan, s)]
    assert len(hashes) == 4 * 5 * 2
    assert len(set(hashes)) == len(hashes)


def test_batches_are_poisson(make_plan: MakePlan, data: SweepData) -> None:
    hparams, plan = make_plan(DPSGD, batch__sample_rate=0.1, train__max_steps=1)
    method = started(DPSGD, data, hparams, plan)
    rng = np.random.default_rng(0)
    batches = [method._draw_batch(rng, 0.1) for _ in range(4000)]
    sizes = np.array([len(batch) for batch in batches])
    assert sizes.mean() == pytest.approx(20, abs=0.4)
    assert sizes.var() == pytest.approx(200 * 0.1 * 0.9, rel=0.15)
    counts = np.bincount(np.concatenate(batches), minlength=200)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert np.array_equal(method._draw_batch(rng, 1.0), np.arange(200))


@pytest.mark.parametrize("model", ["linear", "tanh_cnn"])
def test_empty_batch_takes_its_step(
    make_plan: MakePlan, make_blobs: Callable[..., SweepData], model: str
) -> None:
    data = make_blobs(shape=(1, 8, 8))
    hparams, plan = make_plan(
        DPSGD, model__name=model, batch__sample_rate=1e-9, train__max_steps=3, optim__momentum=0.0
    )
    seen: list[torch.Tensor] = []
    method = DPSGD()
    method.noise_observer = lambda tensor: seen.append(tensor.clone())
    method.prepare(data, hparams, plan, CONTEXT)
    before = weights(method).clone()
    method.run(0, 3)
    moved = weights(method) - before
    assert len(seen) == 3 * len(method._parameters)
    count = len(method._parameters)
    steps = [torch.cat([n.flatten() for n in seen[i : i + count]]) for i in (0, count, 2 * count)]
    drawn = torch.stack(steps).sum(dim=0)
    expected = -hparams["optim.lr"] * drawn / (1e-9 * 200)
    torch.testing.assert_close(
        moved, expected.float(), rtol=1e-3, atol=1e-3 * float(expected.abs().max())
    )


def test_physical_batch_changes_nothing_but_memory(
    make_plan: MakePlan, make_blobs: Callable[..., SweepData]
) -> None:
    data = make_blobs(shape=(1, 8, 8))
    results = []
    for physical in (7, 64, 1000):
        hparams, plan = make_plan(
            TRAINABLES["non_private"],
            model__name="tanh_cnn",
            batch__physical=physical,
            train__epochs=2.0,
        )
        method = started(TRAINABLES["non_private"], data, hparams, plan)
        method.run(0, len(plan))
        results.append(weights(method))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results[0], results[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_state_continues_exactly_where_it_was(
    make_plan: MakePlan, data: SweepData, optimizer: str
) -> None:
    method = TRAINABLES["non_private"]
    hparams, plan = make_plan(
        method, optim__name=optimizer, optim__schedule="cosine", optim__warmup_fraction=0.2
    )
    whole = started(method, data, hparams, plan)
    whole.run(0, len(plan))
    first = started(method, data, hparams, plan)
    first.run(0, 7)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    first.run(7, 9)  # what is saved is a copy
    file.seek(0)
    second = started(method, data, hparams, plan)
    second.load_state_dict(torch.load(file, weights_only=True))
    second.run(7, len(plan))
    assert torch.equal(weights(whole), weights(second))


def test_state_holds_no_secret_randomness(make_plan: MakePlan, data: SweepData) -> None:
    hparams, plan = make_plan(DPSGD)
    method = started(DPSGD, data, hparams, plan)
    method.run(0, 3)
    state = method.state_dict()
    assert set(state) == {"model", "optimizer", "position"}
    assert state["position"] == 3


def test_dropout_masks_are_a_function_of_the_position(
    make_plan: MakePlan, make_blobs: Callable[..., SweepData], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(name: str, info: DatasetInfo, *_: object) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
        )

    monkeypatch.setattr("dpsweep.trainables.networks.build._build", build)
    method = TRAINABLES["non_private"]
    hparams, plan = make_plan(method)
    results = []
    for pause in (False, True):
        instance = started(method, make_blobs(), hparams, plan)
        instance.run(0, 4)
        if pause:
            instance.evaluate("validation")
            torch.rand(17)
        instance.run(4, 8)
        results.append(weights(instance))
    assert torch.equal(*results)


@pytest.mark.parametrize(("start", "stop"), [(1, 2), (0, 10**6), (2, 1)])
def test_positions_must_be_the_next_ones(
    make_plan: MakePlan, data: SweepData, start: int, stop: int
) -> None:
    method = started(DPSGD, data, *make_plan(DPSGD))
    with pytest.raises(ValueError, match="cannot run positions"):
        method.run(start, stop)


def test_foreign_events_are_refused(make_plan: MakePlan, data: SweepData) -> None:
    hparams, plan = make_plan(DPSGD)
    with pytest.raises(ValueError, match="cannot execute"):
        started(DPSGD, data, hparams, plan + Plan((EventRun(Gaussian(1.0)),)))


def test_missing_part_is_named(make_plan: MakePlan, data: SweepData) -> None:
    method = started(DPSGD, data, *make_plan(DPSGD))
    with pytest.raises(DataError, match="no public part"):
        method.evaluate("public")


def test_export_predicts_the_same_without_this_package(
    make_plan: MakePlan, make_blobs: Callable[..., SweepData]
) -> None:
    data = make_blobs(shape=(1, 8, 8))
    hparams, plan = make_plan(DPSGD, model__name="tanh_cnn", train__max_steps=3)
    method = started(DPSGD, data, hparams, plan)
    method.run(0, 3)
    model = method.export()
    assert not model.training
    modules = {type(m).__module__.partition(".")[0] for m in model.modules()}
    assert modules == {"torch"}
    assert not any(m._forward_hooks for m in model.modules())
    inputs, labels = data.parts["validation"]
    predicted = model(torch.from_numpy(inputs.copy())).argmax(dim=1).numpy()
    assert (predicted == labels).mean() == pytest.approx(method.evaluate("validation")["accuracy"])


def test_every_trial_starts_from_its_own_public_weights(
    make_plan: MakePlan, data: SweepData
) -> None:
    hparams, plan = make_plan(DPSGD)
    starts = []
    for seed, trial in ((0, 0), (0, 0), (0, 1), (1, 0)):
        method = DPSGD()
        method.prepare(data, hparams, plan, RunContext(seed, trial))
        starts.append(weights(method))
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert not torch.equal(starts[0], starts[3])


def test_registry_names() -> None:
    assert set(TRAINABLES) >= {"dp_sgd", "non_private"}
    for name in ("dp_sgd", "non_private"):
        assert TRAINABLES[name].name == name
        assert issubclass(TRAINABLES[name], ClassifierMethod)
    with pytest.raises(BadInputError, match="dp_sdg"):
        TRAINABLES["dp_sdg"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("model", ["linear", "tanh_cnn"])
@pytest.mark.parametrize("name", ["dp_sgd", "non_private"])
def test_training_on_the_gpu(
    make_blobs: Callable[..., SweepData], make_plan: MakePlan, name: str, model: str
) -> None:
    method_class = TRAINABLES[name]
    data = make_blobs(shape=(1, 8, 8))
    hparams, plan = make_plan(method_class, epsilon=8.0, model__name=model)
    method = method_class()
    method.prepare(data, hparams, plan, RunContext(0, 0, "cuda"))
    method.run(0, len(plan))
    assert method.evaluate("validation")["accuracy"] > 0.6
    state = method.state_dict()
    assert not any(value.is_cuda for value in state["model"].values())
    again = method_class()
    again.prepare(data, hparams, plan, RunContext(0, 0, "cpu"))
    again.load_state_dict(state)
    expected = method.evaluate("validation")["loss"]
    assert again.evaluate("validation")["loss"] == pytest.approx(expected, rel=1e-2)


def test_defaults_plan_on_real_sizes() -> None:
    hparams = resolve(DPSGD.hyperparameters, {})
    plan = DPSGD.plan(hparams, PlanContext(PrivacyBudget(2.0, 1e-5), "rdp", 60_000))
    assert len(plan) == round(20 * 60_000 / 256)
