"""Configurations of a search on a part of the records, carried over to the final run."""

import math

import numpy as np
import pytest

from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.hooks import CarriesOver
from dpsweep.trainables.method import PlanContext
from dpsweep.trainables.methods.carrying_over import noise_of
from dpsweep.trainables.methods.noise_rates import noise_rates

BEFORE, AFTER = (
    PlanContext(PrivacyBudget(epsilon, 1e-5), "rdp", number)
    for epsilon, number in ((1.0, 1000), (3.0, 9000))
)
GIVEN = {"batch.expected": 50, "train.epochs": 4.0, "optim.lr": None}


def carried(name="dp_sgd", **given):
    method = TRAINABLES[name]
    hparams = resolve(method.hyperparameters, {**GIVEN, **given})
    hparams = method.complete(hparams, BEFORE)
    plan = method.plan(hparams, BEFORE)
    after = method.carried_over(hparams, plan, BEFORE, AFTER)
    return hparams, plan, after, method.plan(method.complete(after, AFTER), AFTER)


def push(hparams, plan, num_records):
    """Return by how much the noise of a step moves the weights: rate C sigma / B."""
    batch = hparams["batch.sample_rate"] or hparams["batch.expected"] / num_records
    batch *= num_records
    noise_std = noise_of(plan) * hparams["clip.max_grad_norm"]
    rate = hparams["optim.lr"]
    if rate is None:
        ones, stds = np.ones(len(plan)), np.full(len(plan), noise_std)
        rate = noise_rates(hparams, ones, stds, expected_batch=batch)[0]
    return rate * noise_std / batch


@pytest.mark.parametrize(
    "rate",
    [
        {"optim.lr": 0.3},
        {"optim.noise_lr": 2.0},
        {"optim.noise_scale": 5.0, "optim.input_norm": 8.0},
    ],
)
@pytest.mark.parametrize("batch", [{}, {"batch.sample_rate": 0.05}])
def test_what_the_noise_of_a_step_does_is_carried_over(rate, batch):
    hparams, plan, after, final = carried(**rate, **batch)
    assert push(after, final, 9000) == pytest.approx(push(hparams, plan, 1000), rel=1e-9)
    assert len(final) == len(plan) == 80
    sampled = {run.event.sample_rate for run in (*plan.runs, *final.runs)}
    assert sampled == {0.05}
    assert noise_of(final) < noise_of(plan)  # epsilon 3, not 1
    if "optim.noise_scale" in rate:
        assert after["optim.noise_scale"] == 5.0
    if "optim.noise_lr" in rate:
        assert after["optim.noise_lr"] == pytest.approx(2.0 * 9)


def test_at_the_same_epsilon_the_rate_grows_as_the_records_do():
    method = TRAINABLES["dp_sgd"]
    hparams = method.complete(resolve(method.hyperparameters, {**GIVEN, "optim.lr": 0.3}), BEFORE)
    same = PlanContext(BEFORE.budget, "rdp", 9000)
    plan = method.plan(hparams, BEFORE)
    after = method.carried_over(hparams, plan, BEFORE, same)
    assert noise_of(method.plan(after, same)) == noise_of(plan)
    assert after["optim.lr"] == pytest.approx(0.3 * 9)
    assert after["batch.expected"] == 450


def test_adam_keeps_its_rate():
    for rate in ({"optim.lr": 0.01}, {"optim.noise_lr": 0.01}):
        hparams, _, after, _ = carried(**rate, **{"optim.name": "adam"})
        assert {name: after[name] for name in rate} == rate
        assert after["batch.expected"] == 9 * hparams["batch.expected"]


@pytest.mark.parametrize("own", [{"noise.noise_multiplier": 5.0}, {"noise.target_epsilon": 0.2}])
def test_the_final_run_has_the_whole_budget_whatever_a_trial_took(own):
    hparams, plan, after, final = carried(**own, **{"optim.lr": 0.3})
    _, _, other, calibrated = carried(**{"optim.lr": 0.3})
    assert after["noise.noise_multiplier"] is None
    assert noise_of(final) == noise_of(calibrated)
    assert push(after, final, 9000) == pytest.approx(push(hparams, plan, 1000))
    assert (after["optim.lr"] == other["optim.lr"]) is False


def test_a_method_s_own_rates_follow_too():
    _, plan, after, final = carried(
        "bitfit", **{"optim.lr": 0.3, "bitfit.variant": "two_phase", "bitfit.full_lr": 0.02}
    )
    factor = 9 * noise_of(plan) / noise_of(final)
    assert after["bitfit.full_lr"] == pytest.approx(0.02 * factor)
    assert after["optim.lr"] == pytest.approx(0.3 * factor)


def test_a_rate_that_grows_with_the_batch_is_scaled_once():
    _, plan, after, final = carried("scatternet", **{"optim.lr": 1.0})
    assert after["optim.lr"] == pytest.approx(noise_of(plan) / noise_of(final))
    _, plan, after, final = carried("scatternet", **{"optim.lr": 1.0, "optim.lr_scaling": "none"})
    assert after["optim.lr"] == pytest.approx(9 * noise_of(plan) / noise_of(final))


def test_batches_are_of_whole_records():
    method = TRAINABLES["dp_sgd"]
    hparams = resolve(method.hyperparameters, {**GIVEN, "optim.lr": 0.3, "batch.expected": 7})
    few, more = (PlanContext(BEFORE.budget, "rdp", number) for number in (108, 971))
    after = method.carried_over(hparams, method.plan(hparams, few), few, more)
    assert after["batch.expected"] == 63  # 62.94
    assert math.isclose(63 / 971, 7 / 108, rel_tol=0.5 / 62)


def test_which_methods_can_be_carried_over():
    able = {name for name in TRAINABLES if issubclass(TRAINABLES[name], CarriesOver)}
    unclaimed = {name for name in able if not TRAINABLES[name].is_private}
    assert able - unclaimed == {
        "bitfit", "dope_sgd", "dp_sgd", "least_squares", "scatternet", "sparse",
    }  # fmt: skip
