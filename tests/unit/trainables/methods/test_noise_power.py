"""Every mechanism's noise, in what it releases: 1% too little fails, and so does 1% too much.

Each test makes a release twice from the same state and looks at the difference, in which the
private sum cancels; none looks at noise before it is added. ``test_checks_see_one_per_cent`` says
what the checks can see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from released_noise import check_gaussian, check_laplace, check_size
from torch import nn

from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan, PoissonGaussian
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.linear_head import LinearHeadEngine, ManyHeadsEngine
from dpsweep.trainables.gradients.noise import SecretNoise, noisy_accuracy
from dpsweep.trainables.gradients.per_example import OpacusEngine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.method import Method, RunContext
from dpsweep.trainables.methods.active_learning import label_choice, nearest_votes
from dpsweep.trainables.methods.active_learning.label_choice import LabelChoice
from dpsweep.trainables.methods.adamix.adamix import AdaMix
from dpsweep.trainables.methods.bitfit.bitfit import BiTFiT
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.least_squares import solving
from dpsweep.trainables.methods.least_squares.least_squares import LeastSquares
from dpsweep.trainables.methods.scatternet.scatternet import ScatterNet
from dpsweep.trainables.methods.sparse.sparse import SparseFinetuning
from dpsweep.trainables.networks import build as models

CONTEXT = RunContext(study_seed=0, trial=0)
RECORDS, SIGMA, CLIP = 4, 0.8, 0.3


# --- What the checks can see ------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("factor", "passes"), [(0.99, False), (1.0, True), (1.01, False)])
@pytest.mark.parametrize("seed", range(3))
def test_checks_see_one_per_cent(factor: float, passes: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gaussian = rng.normal(3.0, 2.0 * factor, (2, 1_000_000))
    laplace = rng.laplace(3.0, 2.0 * factor, (2, 1_000_000))
    for check, (first, second) in ((check_gaussian, gaussian), (check_laplace, laplace)):
        if passes:
            check(first, second, 2.0)
        else:
            with pytest.raises(AssertionError, match="of what is charged"):
                check(first, second, 2.0)


def test_checks_see_noise_of_another_kind_or_used_twice() -> None:
    rng = np.random.default_rng(0)
    uniform = rng.uniform(-math.sqrt(3), math.sqrt(3), (2, 1_000_000))
    twice = np.tile(rng.normal(size=(2, 500_000)), 2)
    for first, second in (uniform, twice):
        with pytest.raises(AssertionError):
            check_gaussian(first, second, 1.0)
    with pytest.raises(AssertionError):
        check_laplace(*rng.normal(0.0, 1.0, (2, 1_000_000)), 1.0)
    with pytest.raises(AssertionError, match="no power"):
        check_gaussian(*rng.normal(size=(2, 999_999)), 1.0)


# --- The source of noise ----------------------------------------------------------------------

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_secret_noise(device: str, dtype: torch.dtype) -> None:
    noise, like = SecretNoise(device), torch.zeros(1000, 1000, dtype=dtype, device=device)
    check_gaussian(*(noise.like(like, 1.7).cpu() for _ in range(2)), 1.7)


# --- DP-SGD, with every engine ----------------------------------------------------------------


def records(shape: tuple[int, ...], classes: int, task: str = "classification") -> SweepData:
    """A few records; there are as many public ones, and as many of validation."""
    rng = np.random.default_rng(0)
    parts = {}
    for part in ("private", "public", "validation"):
        labels = np.arange(RECORDS) % classes
        inputs = rng.normal(size=(RECORDS, *shape)).astype(np.float32)
        parts[part] = (inputs, labels.astype(np.int64))
    parts["test"] = (inputs[:0], labels[:0])
    names = tuple(map(str, range(classes)))
    info = DatasetInfo("few", shape, classes, RECORDS, RECORDS, 0, RECORDS, names, task=task)
    return SweepData(info, parts, "0")


def prepared(method: type[Method], data: SweepData, plan: Plan, given: Mapping[str, Any]) -> Any:
    hparams = resolve(method.hyperparameters, given)
    instance = method()
    instance.prepare(data, hparams, plan, CONTEXT)
    return instance


def releases(instance: Any, position: int, look: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Run a position twice from the state before it; return what is seen after each."""
    instance.run(0, position)
    before = instance.state_dict()
    found = []
    for _ in range(2):
        instance.load_state_dict(before)
        instance.run(position, position + 1)
        found.append(look().double())
    return found


def check_step(instance: Any, position: int, *, scale: float) -> None:
    """Check the noise in the weights after a step of plain gradient descent at rate 1."""

    def weights() -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in instance._parameters])

    first, second = releases(instance, position, weights)
    # A step is rate * (sum + noise) / expected batch.
    check_gaussian(first * RECORDS, second * RECORDS, scale)


STEP = {
    "batch.sample_rate": 1.0,
    "optim.lr": 1.0,
    "optim.momentum": 0.0,
    "clip.max_grad_norm": CLIP,
    "train.max_steps": 1,
}
ONE_STEP = Plan((EventRun(PoissonGaussian(SIGMA, 1.0), 1),))


def layer_norm_and_head() -> nn.Module:
    """No product of gradients and inputs is known for the norm: Opacus holds every gradient."""
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(360_000), nn.Linear(360_000, 2))


def large_layers() -> nn.Module:
    """Large weights: sums without gradients per example."""
    return nn.Sequential(nn.Flatten(), nn.Linear(2000, 500), nn.Tanh(), nn.Linear(500, 10))


def biases_and_head() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(50, 100_000), nn.Tanh(), nn.Linear(100_000, 10))


def masked_convolution() -> nn.Module:
    conv = nn.Conv2d(256, 512, 3)
    return nn.Sequential(conv, nn.GroupNorm(1, 512), nn.Flatten(), nn.Linear(512, 4))


ENGINES: dict[str, tuple[Any, ...]] = {
    "linear head": (DPSGD, None, (100_000,), 10, {}, LinearHeadEngine),
    "opacus": (DPSGD, layer_norm_and_head, (360_000,), 2, {"batch.physical": 3}, OpacusEngine),
    "weight products": (DPSGD, large_layers, (2000,), 10, {}, OpacusEngine),
    "full": (BiTFiT, large_layers, (2000,), 10, {"bitfit.variant": "full"}, OpacusEngine),
    "biases": (BiTFiT, biases_and_head, (50,), 10, {}, BiasEngine),
    "biases, automatic": (
        BiTFiT, biases_and_head, (50,), 10, {"clip.rule": "automatic"}, BiasEngine,
    ),
    "sparse": (
        SparseFinetuning, masked_convolution, (256, 3, 3), 4, {"sparse.density": 0.9}, SparseEngine,
    ),
    "sparse, automatic": (
        SparseFinetuning, masked_convolution, (256, 3, 3), 4,
        {"sparse.density": 0.9, "clip.rule": "automatic"}, SparseEngine,
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENGINES)
def test_a_step_of_dp_sgd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, network, shape, classes, given, engine = ENGINES[name]
    if network is not None:

        def build_model(*args: Any, seed: int, **more: Any) -> nn.Module:
            torch.manual_seed(seed % 2**31)
            return network()

        monkeypatch.setattr(models, "build_model", build_model)
        given = {**given, "model.name": "tanh_cnn"}
    instance = prepared(method, records(shape, classes), ONE_STEP, {**STEP, **given})
    assert type(instance._engine) is engine
    check_step(instance, 0, scale=SIGMA * CLIP)


@pytest.mark.parametrize(("position", "sigma", "clip"), [(0, 0.8, 0.3), (2, 0.5, 0.15)])
def test_a_step_follows_its_plan_and_the_clip_schedule(
    position: int, sigma: float, clip: float
) -> None:
    steps = [EventRun(PoissonGaussian(z, 1.0), 1) for z in (0.8, 0.7, 0.5)]
    given = {**STEP, "train.max_steps": 3, "clip.shape": "linear", "clip.end_ratio": 0.5}
    instance = prepared(DPSGD, records((100_000,), 10), Plan(tuple(steps)), given)
    check_step(instance, position, scale=sigma * clip)


def test_a_step_of_many_heads() -> None:
    """The event of M heads has noise multiplier sigma / sqrt(M); each gets sigma, of its own."""
    given = {**STEP, "features.name": "none", "heads.count": 4, "optim.lr_scaling": "none"}
    plan = Plan((EventRun(PoissonGaussian(SIGMA / 2, 1.0), 1),))
    instance = prepared(ScatterNet, records((65_000,), 4), plan, given)
    assert type(instance._engine) is ManyHeadsEngine
    check_step(instance, 0, scale=SIGMA * CLIP)


# --- The two statistics of normalize.private_data ---------------------------------------------


def test_channel_means_and_mean_squares() -> None:
    """Few enough channels for the squares to stand above their noise: none meets the floor."""
    channels, sigma, pairs = 50_000, 0.001, 20
    means, squares = 0.3, 0.15
    plan = Plan((EventRun(Gaussian(sigma), 2, "normalize"), EventRun(PoissonGaussian(1.0, 1.0), 1)))
    given = {
        **STEP,
        "features.name": "none",
        "normalize.kind": "private_data",
        "normalize.noise_multiplier": sigma,
        "normalize.mean_norm": means,
        "normalize.square_norm": squares,
        "normalize.min_variance": 1e-12,
    }
    data = records((channels,), 2)
    for inputs, _ in data.parts.values():
        np.copyto(inputs, 1 + 0.1 * inputs)  # so that all squares are about 1
    instance = prepared(ScatterNet, data, plan, given)
    before = instance.state_dict()
    found: dict[str, list[np.ndarray]] = {"mean": [], "square": []}
    for _ in range(2 * pairs):
        instance.load_state_dict(before)
        instance.run(0, 1)
        front = instance._model[0]
        found["mean"].append(front.running_mean.double().numpy().copy())
        # The squares are seen less the square of the mean, which is released.
        front.running_mean.zero_()
        instance.run(1, 2)
        assert front.running_var.min() > 1e-11
        found["square"].append(front.running_var.double().numpy().copy())
    for name, bound in (("mean", means), ("square", squares)):
        values = RECORDS * np.stack(found[name])
        check_gaussian(values[::2], values[1::2], sigma * bound)


# --- AdaMix and its baselines -----------------------------------------------------------------

PLAIN = {
    "features.name": "none",
    "regularize.weight": 0.0,
    "clip.max_grad_norm": CLIP,
    "optim.step_over_clip": False,
    "optim.lr": 1.0,
    "public.shots": 1,
    "public.epochs": 1,
}


def descent(features: int, classes: int, **given: Any) -> AdaMix:
    named = {key.replace("__", "."): value for key, value in given.items()}
    plan = Plan((EventRun(Gaussian(SIGMA), 1),))
    return prepared(AdaMix, records((features,), classes), plan, {**PLAIN, **named})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("variant", ["ngd", "ppgd", "fully_private"])
def test_a_step_of_noisy_gradient_descent(variant: str) -> None:
    instance = descent(260_000, 4, adamix__variant=variant)
    check_gaussian(*releases(instance, 0, lambda: instance._weight), SIGMA * CLIP)


@pytest.mark.slow
def test_a_step_of_adamix_without_projection() -> None:
    """The clipping norm, from public gradients, is divided out: what is left is sigma alone."""
    instance = descent(260_000, 4, adamix__projection=False, optim__step_over_clip=True)
    check_gaussian(*releases(instance, 0, lambda: instance._weight), SIGMA)


def test_a_step_of_adamix_in_the_public_subspace() -> None:
    """All of the noise within the subspace, and nothing beyond it."""
    classes, features, kept = 4, 1000, 950
    instance = descent(
        features, classes, projection__fraction=kept / features, optim__step_over_clip=True
    )
    before = instance.state_dict()
    differences = []
    for _ in range(270):
        pair = []
        for _ in range(2):
            instance.load_state_dict(before)
            instance.run(0, 1)
            pair.append(instance._weight.double())
        differences.append((pair[0] - pair[1]) / (SIGMA * math.sqrt(2)))
    found = torch.cat(differences)  # rows of the subspace, up to the rounding of float32
    check_size(float(found.square().sum()), kept * len(found))
    values = torch.linalg.svdvals(found)
    assert float(values[kept]) < 1e-3 * float(values[kept - 1])


# --- Least squares ----------------------------------------------------------------------------

SUMS = Plan((EventRun(Gaussian(SIGMA), 1, "targets"), EventRun(Gaussian(0.5), 1, "covariance")))


def test_the_targets_of_least_squares() -> None:
    instance = prepared(LeastSquares, records((9_000,), 112), SUMS, {"features.name": "none"})
    check_gaussian(*releases(instance, 0, lambda: instance._weight), SIGMA)


def test_the_covariance_of_least_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symmetric, with smaller noise beside the diagonal, where each entry stands twice."""
    seen, invert = [], solving.inverse

    def inverse(covariance: torch.Tensor, ridge: float) -> solving.Inverse:
        seen.append(covariance)
        return invert(torch.eye(1420, dtype=torch.float64), ridge)

    monkeypatch.setattr(solving, "inverse", inverse)
    instance = prepared(LeastSquares, records((1420,), 2), SUMS, {"features.name": "none"})
    releases(instance, 1, lambda: instance._weight)
    for matrix in seen:
        assert torch.equal(matrix, matrix.T)
    beside, on = np.triu_indices(1420, 1), np.diag_indices(1420)
    parts = [np.concatenate([math.sqrt(2) * m.numpy()[beside], m.numpy()[on]]) for m in seen]
    check_gaussian(*parts, 0.5)


def test_a_step_over_the_covariance() -> None:
    plan = Plan((EventRun(Gaussian(SIGMA), 1, "covariance"), EventRun(Gaussian(0.5), 1)))
    given = {"least_squares.variant": "feature_covariance", "optim.lr": 1.0}
    given |= {"features.name": "none", "clip.max_grad_norm": CLIP}
    instance = prepared(LeastSquares, records((100,), 10_100), plan, given)
    instance.run(0, 1)
    instance._inverse = torch.eye(100, dtype=torch.float64)
    check_gaussian(*(_stepped(instance) for _ in range(2)), 0.5 * CLIP)


def _stepped(instance: Any) -> torch.Tensor:
    instance._weight = torch.zeros_like(instance._weight)
    instance._execute(1)
    return instance._weight


# --- What near_private asks -------------------------------------------------------------------


def querying(num_public: int, **given: Any) -> LabelChoice:
    """The part of active learning that asks private records, without networks."""
    data = records((1,), 2)
    public = np.zeros((num_public, 1), np.float32), np.zeros(num_public, np.int64)
    data = replace(data, parts={**data.parts, "public": public})
    hparams = {
        "select.components": 2,
        "select.uncertainty": "entropy",
        "select.candidates": 1_000_000,
        "labels.max": 10,
        **given,
    }
    return LabelChoice(None, data, hparams, seed=len, block=512, device="cpu")  # type: ignore[arg-type]


def test_the_matrix_of_dp_pca(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its components are computed from: symmetric, its triangle with independent noise."""
    rows, seen = torch.randn(20, 1420), []
    instance = querying(1)
    monkeypatch.setattr(label_choice, "embed", lambda *args, **more: (rows, None))
    monkeypatch.setattr(
        label_choice, "principal_components", lambda moment, num: seen.append(moment)
    )
    for _ in range(2):
        instance.release_directions(Gaussian(SIGMA))
    above = torch.triu_indices(1420, 1420)
    for matrix in seen:
        assert torch.equal(matrix, matrix.T)
    check_gaussian(*(matrix[tuple(above)] for matrix in seen), SIGMA)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("voters", "sensitivity"), [("all", 1), ("threshold", 1), ("top_k", 2)])
def test_the_votes_of_near_private(
    monkeypatch: pytest.MonkeyPatch, voters: str, sensitivity: int
) -> None:
    """When a record enters the top k, another leaves: two counts move, and both get noise."""
    seen: list[torch.Tensor] = []
    instance = querying(1_000_000, **{"select.voters": voters})
    instance._directions = torch.ones(1, 1, dtype=torch.float64)
    rows = {n: (torch.linspace(0, 1, n)[:, None], torch.zeros(n, 2)) for n in (RECORDS, 1_000_000)}
    monkeypatch.setattr(label_choice, "embed", lambda model, x, **more: rows[len(x)])

    def largest(noisy: torch.Tensor, num: int) -> torch.Tensor:
        seen.append(noisy)
        return torch.arange(num)

    monkeypatch.setattr(nearest_votes, "largest", largest)
    for _ in range(2):
        instance.release_votes(Laplace(0.7))
    check_laplace(*seen, 0.7 * sensitivity)


# --- Noisy validation scores ------------------------------------------------------------------


@pytest.mark.slow
def test_a_noisy_accuracy() -> None:
    declared, generator = 500, np.random.default_rng()

    def scores() -> np.ndarray:
        values = (
            noisy_accuracy(321, num_declared=declared, noise_multiplier=18.0, generator=generator)
            for _ in range(1_000_000)
        )
        return np.fromiter(values, float, 1_000_000)

    check_gaussian(declared * scores(), declared * scores(), 18.0)


def test_the_score_that_leaves_a_trial_has_the_noise_that_it_is_charged(lab: Any) -> None:
    """Its generator is replaced by known draws: the noise is seen to all digits."""
    scores = Plan((EventRun(Gaussian(18.0), 1, "score", "validation"),))
    settings = lab.settings(validation="noisy", validation_noise=18.0, report_points=1)
    task = lab.task(settings, {"train.max_steps": 1}, validation_plan=scores)
    seen = []
    for trial, drawn in enumerate((-1.0, 1.0)):
        execution = lab.open(settings, replace(task, trial=trial))
        execution.method.evaluate = lambda part: {"accuracy": 0.5}
        execution._scores._noise = SimpleNamespace(standard_normal=lambda value=drawn: value)
        seen.append(execution.advance().metrics["validation/accuracy"])
        execution.close()
    declared = lab.data.info.num_validation
    assert (seen[1] - seen[0]) * declared / 2 == pytest.approx(18.0, rel=1e-12)


# --- Rounding comes after the noise (DECISIONS 39) --------------------------------------------

#: A sum and noise whose float64 bits show in the float32 of their sum. If either of the two is
#: float32 before they are added, the result is another one.
TOTAL, DRAWN = 1 + 2.0**-40, -(1 + 2.0**-35)


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of one value, in the precision that is asked for."""
    monkeypatch.setattr(
        SecretNoise, "like", lambda self, tensor, scale: torch.full_like(tensor, DRAWN)
    )


class Summing:
    """An engine whose sums are given."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters

    def clipped_gradient_sum(self, *args: Any) -> list[torch.Tensor]:
        return [torch.full(p.shape, TOTAL, dtype=torch.float64) for p in self._parameters]


@pytest.mark.usefixtures("known_noise")
@pytest.mark.parametrize("method", [DPSGD, BiTFiT, SparseFinetuning, ScatterNet])
def test_sums_are_rounded_after_the_noise_is_in(method: type[Any]) -> None:
    given = {"features.name": "none"} if method is ScatterNet else {}
    given |= {"sparse.train": "cls"} if method is SparseFinetuning else {}
    instance = prepared(method, records((6,), 2), ONE_STEP, {**STEP, **given})
    instance._engine = Summing(instance._parameters)
    for gradient in instance._gradient(0):
        assert gradient.dtype == torch.float32
        assert set((gradient * RECORDS).flatten().tolist()) == {TOTAL + DRAWN}


@pytest.mark.usefixtures("known_noise")
def test_adamix_rounds_its_sum_after_the_noise_is_in() -> None:
    instance = descent(6, 2, adamix__variant="ppgd")
    total = torch.full_like(instance._weight, TOTAL, dtype=torch.float64)
    instance._private = SimpleNamespace(gradient_sum=lambda *args: (total, torch.zeros(RECORDS)))
    instance._weight = torch.zeros_like(instance._weight)
    instance.run(0, 1)
    assert set(instance._weight.flatten().tolist()) == {-(TOTAL + DRAWN)}


@pytest.mark.usefixtures("known_noise")
@pytest.mark.parametrize("position", [0, 1])
def test_statistics_are_rounded_after_the_noise_is_in(
    monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    from dpsweep.trainables.methods.scatternet import on_features

    plan = Plan((EventRun(Gaussian(1.0), 2, "normalize"), *ONE_STEP.runs))
    given = {"features.name": "none", "normalize.kind": "private_data"}
    given["normalize.min_variance"] = 1e-30
    instance = prepared(ScatterNet, records((6,), 2), plan, {**STEP, **given})
    sums = {0: torch.zeros(6, dtype=torch.float64), 1: torch.zeros(6, dtype=torch.float64)}
    # Noise that leaves a mean of 0, and a positive mean square.
    sums[0] -= DRAWN
    sums[position] = torch.full((6,), 1 + 2.0**-34, dtype=torch.float64)
    monkeypatch.setattr(
        on_features, "clipped_channel_sum", lambda *args, power, **more: sums[power - 1].clone()
    )
    instance.run(0, position + 1)
    front = instance._model[0]
    seen = front.running_mean if position == 0 else front.running_var
    assert set((seen * RECORDS).tolist()) == {1 + 2.0**-34 + DRAWN}
