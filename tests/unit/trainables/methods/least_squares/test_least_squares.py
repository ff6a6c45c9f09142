"""The method of least squares: its plan, its weights, its state and what it refuses."""

from __future__ import annotations

import copy
import io
import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from sklearn.linear_model import Ridge

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError, ModelError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.testing.conformance import tiny_data
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.least_squares import solving
from dpsweep.trainables.methods.least_squares.knobs import CLOSED, RIDGE_SCALES, STEPS
from dpsweep.trainables.methods.least_squares.least_squares import LeastSquares

DELTA = 1e-5
TINY = 1e-9
WITHOUT = {"features.name": "none"}
OF_STEPS = {**WITHOUT, "least_squares.variant": STEPS}


def planned(
    epsilon: float = 1.0, accountant: Any = "pld", **given: Any
) -> tuple[dict[str, Any], Plan]:
    named = {name.replace("__", "."): value for name, value in given.items()}
    hparams = resolve(LeastSquares.hyperparameters, {**WITHOUT, **named})
    budget = PrivacyBudget(target_epsilon=epsilon, delta=DELTA)
    return hparams, LeastSquares.plan(hparams, PlanContext(budget, accountant, 400))


def started(plan: Plan, given: dict[str, Any], data: Any = None) -> LeastSquares:
    instance = LeastSquares()
    hparams = resolve(LeastSquares.hyperparameters, given)
    instance.prepare(data or tiny_data(), hparams, plan, RunContext(0, 0))
    return instance


def exact_noise(epsilon: float) -> float:
    """sigma of one Gaussian at DELTA, by the formula of Balle & Wang 2018."""

    def excess(sigma: float) -> float:
        mu = 1 / sigma
        one = stats.norm.cdf(mu / 2 - epsilon / mu)
        return one - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - DELTA

    return float(optimize.brentq(excess, 0.1, 1000))


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_closed_form_is_two_gaussians_that_are_together_one(
    epsilon: float, share: float
) -> None:
    _, plan = planned(epsilon, least_squares__covariance_share=share)
    targets, covariance = plan.runs
    assert [run.phase for run in plan.runs] == ["targets", "covariance"]
    sigma = exact_noise(epsilon)
    assert covariance.event.noise_multiplier == pytest.approx(sigma / math.sqrt(share), rel=1e-6)
    assert targets.event.noise_multiplier == pytest.approx(sigma / math.sqrt(1 - share), rel=1e-6)
    assert 0.999 * epsilon < epsilon_of(plan, delta=DELTA, accountant="pld") <= epsilon


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_steps_share_what_the_covariance_leaves(accountant: Any) -> None:
    _, plan = planned(2.0, accountant, least_squares__variant=STEPS, train__max_steps=7)
    covariance, steps = plan.runs
    assert (covariance.phase, steps.phase, steps.count) == ("covariance", "train", 7)
    first, each = (1 / run.event.noise_multiplier**2 for run in plan.runs)
    assert 4 * first == pytest.approx(7 * each)
    assert 0.999 * 2.0 < epsilon_of(plan, delta=DELTA, accountant=accountant) <= 2.0


def test_plans_of_the_defaults_stay_as_they_are() -> None:
    """Their epsilons are rows of tests/golden/known_epsilons.json."""
    noises = [run.event.noise_multiplier for run in planned(1.0)[1].runs]
    assert noises == pytest.approx([5.27591, 5.27591], rel=1e-5)
    covariance, steps = planned(3.0, least_squares__variant=STEPS)[1].runs
    assert (covariance.count, steps.count) == (1, 10)
    noises = [run.event.noise_multiplier for run in (covariance, steps)]
    assert noises == pytest.approx([3.10951, 4.91656], rel=1e-4)


def test_a_noise_multiplier_is_that_of_all_releases_together() -> None:
    _, plan = planned(3.0, noise__noise_multiplier=2.0)
    assert sum(1 / run.event.noise_multiplier**2 for run in plan.runs) == pytest.approx(1 / 4)
    with pytest.raises(InfeasibleBudgetError, match=r"noise_multiplier=0\.5 costs") as caught:
        planned(3.0, noise__noise_multiplier=0.5)
    assert ">= 1.391" in caught.value.fix
    with pytest.raises(InfeasibleBudgetError, match="over privacy"):
        planned(1.0, noise__target_epsilon=2.0)


def weights(instance: LeastSquares) -> np.ndarray:
    return instance._weight.numpy()


@pytest.mark.parametrize("alpha", [0.5, 30.0])
def test_without_noise_it_is_ridge_regression(alpha: float) -> None:
    data = tiny_data()
    plan = Plan((EventRun(Gaussian(TINY), 1, "targets"), EventRun(Gaussian(TINY), 1, "covariance")))
    instance = started(plan, {**WITHOUT, "least_squares.ridge_scale": alpha / TINY})
    instance.run(0, 2)
    x, y = data.parts["private"]
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    model = Ridge(alpha=alpha, fit_intercept=False).fit(unit, np.eye(2)[y])
    assert weights(instance) == pytest.approx(model.coef_, rel=1e-6)


def test_without_noise_a_step_is_the_gradient_over_the_covariance() -> None:
    data = tiny_data()
    plan = Plan((EventRun(Gaussian(TINY), 1, "covariance"), EventRun(Gaussian(TINY), 2)))
    scale = 3.0 / (2.0 * 1e3 * math.sqrt(2) * TINY)  # of a rate of 2, a clip of 1e3 and two steps
    given = {**OF_STEPS, "least_squares.ridge_scale": scale, "optim.lr": 2.0}
    instance = started(plan, {**given, "clip.max_grad_norm": 1e3})
    instance.run(0, 3)
    x, y = (torch.from_numpy(part) for part in data.parts["private"])
    unit = x.double() / x.double().norm(dim=1, keepdim=True)
    inverse = torch.linalg.inv(unit.T @ unit + 3.0 * torch.eye(6))
    weight = torch.zeros(2, 6, dtype=torch.float64)
    for _ in range(2):
        weight.requires_grad_()
        torch.nn.functional.cross_entropy(unit @ weight.T, y, reduction="sum").backward()
        weight = (weight - 2.0 * weight.grad @ inverse).detach()
    assert weights(instance) == pytest.approx(weight.numpy(), rel=1e-4)


def test_before_the_covariance_the_head_is_that_of_an_infinite_ridge() -> None:
    _, plan = planned(3.0)
    instance = started(plan, WITHOUT)
    instance.run(0, 1)
    assert instance.evaluate("validation")["accuracy"] > 0.8
    with pytest.raises(ValueError, match="cannot run positions"):
        instance.run(0, 1)


@pytest.mark.parametrize("given", [WITHOUT, OF_STEPS], ids=[CLOSED, STEPS])
def test_a_killed_trial_goes_on_from_its_state_and_keeps_nothing_exact(
    given: dict[str, Any],
) -> None:
    """The state of one position is enough, is small in the closed form, and survives a file."""
    _, plan = planned(3.0, **{k.replace(".", "__"): v for k, v in given.items()})
    data = tiny_data()
    first = started(plan, given, data)
    first.run(0, 1)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    state = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    assert state.keys() == {"weight", "inverse", "position"}
    assert (state["inverse"] is None) == (given is WITHOUT)
    second = started(plan, given, data)
    second.load_state_dict(state)
    second.run(1, len(plan))
    assert second.evaluate("validation")["accuracy"] > 0.8
    x, y = data.parts["private"]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    for kept in (value for value in state.values() if isinstance(value, torch.Tensor)):
        for exact in (np.eye(2)[y].T @ unit, unit.T @ unit):
            assert kept.shape != exact.shape or np.abs(kept.numpy() - exact).max() > 0.01


def test_records_are_chosen_without_looking_at_them() -> None:
    data = tiny_data()
    instance = started(planned()[1], {**WITHOUT, "train.num_private": 100}, data)
    assert len(instance._releases.labels) == 100
    assert instance._releases.num_private == 100


def test_what_is_exported_takes_raw_records() -> None:
    _, plan = planned(3.0)
    data = tiny_data()
    instance = started(plan, WITHOUT, data)
    instance.run(0, 2)
    network = instance.export()
    inputs, labels = data.parts["test"]
    outputs = network(torch.from_numpy(inputs))
    assert outputs.shape == (100, 2)
    is_right = (outputs.argmax(dim=1).numpy() == labels).mean()
    assert is_right == instance.evaluate("test")["accuracy"]
    assert torch.allclose(network(7 * torch.from_numpy(inputs)), outputs, atol=1e-6)
    assert all(
        name.startswith("torch.nn") for name in (type(m).__module__ for m in network.modules())
    )


def test_events_of_another_method_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot execute"):
        started(Plan((EventRun(Laplace(1.0)),)), WITHOUT)


def info(*shape: int) -> DatasetInfo:
    return DatasetInfo("few", shape, 10, 500, 50, 0, 0, tuple("0123456789"))


def mistakes(shape: tuple[int, ...] = (1, 8, 8), **given: Any) -> list[tuple[str, str]]:
    values = {name.replace("__", "."): [value] for name, value in given.items()}
    problems = LeastSquares.preflight({"features.name": ["none"], **values}, info(*shape))
    return [(mistake.key, mistake.what) for mistake in problems]


def test_what_cannot_work_is_refused_before_anything_starts() -> None:
    assert mistakes() == []
    (one,) = mistakes((3, 64, 64))
    assert one == (
        "features.name",
        "none has 12288 features of a record, and least squares forms their covariance, of at "
        "most 10000",
    )
    keys = [key for key, _ in mistakes(optim__lr=1.0, train__max_steps=3, clip__max_grad_norm=1.0)]
    assert keys == ["optim.lr", "clip.max_grad_norm", "train.max_steps"]
    assert mistakes(least_squares__variant=STEPS, optim__lr=1.0) == []
    (one,) = mistakes((64,), normalize__kind="group", normalize__groups=7)
    assert "7 groups do not divide the 64 channels" in one[1]
    with pytest.raises(ModelError, match="12288 features"):
        started(planned()[1], WITHOUT, tiny_data(features=12288, num_private=4))


def test_features_are_normalised_by_group_or_by_their_norm() -> None:
    def norm(**given: Any) -> str:
        named = {name.replace("__", "."): value for name, value in given.items()}
        hparams = resolve(LeastSquares.hyperparameters, named)
        return LeastSquares.extractor(hparams, info(1, 8, 8)).norm

    assert norm(features__name="none") == "l2"
    assert norm(features__name="scatternet") == "group:27"
    assert norm(features__name="scatternet", normalize__kind="none") == "l2"
    assert norm(features__name="none", normalize__kind="group", normalize__groups=1) == "group:1"


def test_a_configuration_is_carried_over_with_new_noise() -> None:
    hparams, plan = planned(1.0, noise__target_epsilon=0.5, least_squares__ridge_scale=0.2)
    before = copy.deepcopy(hparams)
    context = PlanContext(PrivacyBudget(target_epsilon=1.0, delta=DELTA), "pld", 400)
    carried = LeastSquares.carried_over(hparams, plan, context, context)
    assert hparams == before
    assert carried == {**before, "noise.target_epsilon": None}


@pytest.mark.parametrize("variant", [CLOSED, STEPS])
def test_the_ridge_holds_noise_down_whatever_the_number_of_features(variant: str) -> None:
    """Records of norm 1 in directions that no private record has: the noise of their outputs."""
    expected, inverted = 1 / RIDGE_SCALES[variant], solving.inverse
    for features in (20, 500):
        data = tiny_data(features=features)
        for inputs, _ in data.parts.values():
            inputs[:, 10:] = 0.0
        _, plan = planned(1.0, least_squares__variant=variant)
        instance = started(plan, {**WITHOUT, "least_squares.variant": variant}, data)
        with mock.patch.object(
            solving, "inverse", lambda matrix, ridge: inverted(0 * matrix, ridge)
        ):
            instance.run(0, len(plan))
        outputs = weights(instance)[:, 10:].ravel()
        assert np.sqrt(np.mean(outputs**2)) == pytest.approx(
            expected, rel=6 / np.sqrt(len(outputs))
        )


def test_an_audit_that_would_fill_the_memory_is_refused() -> None:
    _, plan = planned()
    instance = started(plan, WITHOUT, tiny_data(features=9000, num_private=30))
    assert instance.contributions(0).rows.shape == (30, 18_000)
    with pytest.raises(BadInputError, match=r"30 canaries .* takes 4\.5 GiB") as caught:
        instance.contributions(1)
    assert caught.value.fix.startswith("--canaries 26,")
