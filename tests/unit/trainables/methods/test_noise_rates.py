"""Learning rates that follow from the noise: what a step does, and which ones are refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.method import Method, PlanContext, RunContext
from dpsweep.trainables.methods.adamix.adamix import AdaMix
from dpsweep.trainables.methods.bitfit.bitfit import BiTFiT
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.noise_rates import noise_lr_of
from dpsweep.trainables.methods.scatternet.scatternet import ScatterNet
from dpsweep.trainables.methods.sparse.sparse import SparseFinetuning

MakePlan = Callable[..., tuple[dict[str, Any], Plan]]
CONTEXT = RunContext(study_seed=0, trial=0)
MOVING = {"noise__shape": "exponential", "noise__end_ratio": 4.0, "clip__shape": "linear",
          "clip__end_ratio": 0.5}  # fmt: skip


def hyperparameters(method: type[Method], **given: Any) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in given.items()}
    return resolve(method.hyperparameters, named)


def completed(method: type[Method], **given: Any) -> dict[str, Any]:
    """The hyperparameters of a configuration that names ``given``, as an admission has them."""
    names = frozenset(key.replace("__", ".") for key in given)
    context = PlanContext(PrivacyBudget(3.0, 1e-5), "rdp", 1000, given=names)
    return method.complete(hyperparameters(method, **given), context)


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Noise of a seed, from its start again whenever the result is called."""
    generator = torch.Generator()

    def like(self: SecretNoise, t: torch.Tensor, scale: float) -> torch.Tensor:
        return scale * torch.randn(t.shape, generator=generator, dtype=torch.float64)

    monkeypatch.setattr(SecretNoise, "like", like)
    return lambda: generator.manual_seed(0) and None


@pytest.fixture
def no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps see no record: what moves the weights is noise alone."""
    nobody = np.zeros(0, dtype=np.int64)
    monkeypatch.setattr(DPSGD, "_draw_batch", lambda self, generator, rate: nobody)


def vector(method: Any) -> torch.Tensor:
    state = method.state_dict()["model"].values()
    return torch.cat([value.double().flatten() for value in state])


def walked(method: type[Method], data: Any, hparams: dict[str, Any], plan: Plan) -> torch.Tensor:
    """Return how far the weights move over the plan."""
    instance = method()
    instance.prepare(data, hparams, plan, CONTEXT)
    before = vector(instance)
    instance.run(0, len(plan))
    return vector(instance) - before


# The rate and the plan.


def test_a_plan_asks_for_no_learning_rate(make_plan: MakePlan) -> None:
    _, plan = make_plan(DPSGD, optim__lr=0.3)
    for given in ({"noise_lr": 0.1}, {"noise_lr": 9.0}, {"noise_scale": 5.0, "input_norm": 2.0}):
        assert make_plan(DPSGD, **{f"optim__{k}": v for k, v in given.items()})[1] == plan


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_u_is_the_same_by_every_accountant(accountant: Any) -> None:
    """The plan's own noise divides: rate times clip times noise multiplier is u, whoever counts."""
    hparams = completed(DPSGD, optim__noise_lr=7.0, clip__max_grad_norm=0.25)
    plan = DPSGD.plan(hparams, PlanContext(PrivacyBudget(3.0, 1e-5), accountant, 1000))
    rate = DPSGD.peak_rate(hparams, plan, 1000)
    assert rate is not None
    assert rate * 0.25 * plan.at(0).noise_multiplier == pytest.approx(7.0, rel=1e-12)


def test_accountants_do_differ_in_the_rate() -> None:
    """Else the test above would hold for a rate that no noise enters."""
    hparams = completed(DPSGD, optim__noise_lr=7.0)
    budget = PrivacyBudget(3.0, 1e-5)
    plans = [DPSGD.plan(hparams, PlanContext(budget, name, 1000)) for name in ("rdp", "pld")]
    rdp, pld = (DPSGD.peak_rate(hparams, plan, 1000) for plan in plans)
    assert rdp is not None
    assert pld is not None
    assert pld > 1.01 * rdp  # tighter, so there is less noise


def test_s_carries_over_to_another_batch_and_length(make_plan: MakePlan) -> None:
    """eta = s B (1 - m) / (C sigma X R), with R of the schedule's own factors, by hand."""
    for batch, steps, momentum in ((50, 40, 0.9), (100, 10, 0.0), (25, 160, 0.5)):
        hparams, plan = make_plan(
            DPSGD, batch__expected=batch, train__max_steps=steps, optim__momentum=momentum,
            optim__schedule="cosine", optim__noise_scale=5.0, optim__input_norm=3.0,
            clip__max_grad_norm=0.1,
        )  # fmt: skip
        factors = [(1 + math.cos(math.pi * t / steps)) / 2 for t in range(steps)]
        spread = math.sqrt(sum(f * f for f in factors))
        noise = 0.1 * plan.at(0).noise_multiplier
        expected = 5.0 * batch * (1 - momentum) / (noise * 3.0 * spread)
        assert DPSGD.peak_rate(hparams, plan, 200) == pytest.approx(expected, rel=1e-9)


def test_s_counts_the_records_that_train(make_plan: MakePlan) -> None:
    given = {"optim__noise_scale": 5.0, "optim__input_norm": 3.0, "batch__sample_rate": 0.1}
    whole, plan = make_plan(DPSGD, **given)
    half = {**whole, "train.num_private": 100}
    assert DPSGD.peak_rate(half, plan, 200) == pytest.approx(
        DPSGD.peak_rate(whole, plan, 200) / 2, rel=1e-12  # type: ignore[operator]
    )  # fmt: skip


@pytest.mark.usefixtures("no_records")
@pytest.mark.parametrize(
    "moving",
    [
        {},
        {"optim__schedule": "cosine", "optim__warmup_fraction": 0.2},
        {"optim__schedule": "cosine", **MOVING},
    ],
)
def test_s_is_the_noise_in_a_logit(
    make_plan: MakePlan, make_blobs: Callable[..., Any], moving: dict[str, Any]
) -> None:
    """The weights' own noise, measured: s / X in each, so s in a logit of an input of norm X."""
    data = make_blobs(shape=(2000,))
    hparams, plan = make_plan(
        DPSGD, model__name="linear", train__max_steps=60, optim__momentum=0.5,
        optim__noise_scale=2.0, optim__input_norm=8.0, **moving,
    )  # fmt: skip
    measured = float(walked(DPSGD, data, hparams, plan).std())
    assert measured == pytest.approx(2.0 / 8.0, rel=0.05)


# Steps of SGD.


@pytest.mark.usefixtures("no_records")
def test_twice_the_noise_at_half_the_rate_is_the_same_noise(
    make_plan: MakePlan, make_blobs: Callable[..., Any], same_noise: Callable[[], None]
) -> None:
    data, moves = make_blobs(), []
    hparams, _ = make_plan(DPSGD, optim__noise_lr=3.0, optim__momentum=0.9, model__name="linear")
    for noise in (1.0, 2.0):
        same_noise()
        plan = Plan((EventRun(PoissonGaussian(noise, 0.25), 12),))
        moves.append(walked(DPSGD, data, hparams, plan))
    assert moves[0].abs().min() > 0
    torch.testing.assert_close(moves[0], moves[1], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("no_records")
def test_noise_that_grows_within_a_run_moves_the_weights_as_constant_noise(
    make_plan: MakePlan, make_blobs: Callable[..., Any], same_noise: Callable[[], None]
) -> None:
    """Rate divided and momentum multiplied by the ratio: every step's noise counts the same."""
    data, moves = make_blobs(), []
    hparams, _ = make_plan(DPSGD, optim__noise_lr=3.0, optim__momentum=0.9, model__name="linear")
    loud = tuple(EventRun(PoissonGaussian(2.0**t, 0.25)) for t in range(12))
    for plan in (Plan((EventRun(PoissonGaussian(1.0, 0.25), 12),)), Plan(loud)):
        same_noise()
        moves.append(walked(DPSGD, data, hparams, plan))
    torch.testing.assert_close(moves[0], moves[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cut", [None, 7])
def test_steps_are_those_of_an_explicit_simulation(
    make_plan: MakePlan,
    make_blobs: Callable[..., Any],
    same_noise: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    cut: int | None,
) -> None:
    """eta <- eta / rho and v <- v rho at each change of the noise; across a checkpoint as well."""
    data, gradients = make_blobs(), []
    own = DPSGD._gradient

    def recorded(self: DPSGD, step: int) -> list[torch.Tensor]:
        gradient = own(self, step)
        gradients.append(torch.cat([g.double().flatten() for g in gradient]))
        return gradient

    monkeypatch.setattr(DPSGD, "_gradient", recorded)
    hparams, plan = make_plan(
        DPSGD, model__name="linear", train__max_steps=20, optim__momentum=0.8,
        optim__noise_lr=1.5, optim__schedule="cosine", optim__warmup_fraction=0.25, **MOVING,
    )  # fmt: skip
    same_noise()
    hparams["optim.lr"] = None  # as ``complete`` leaves it
    instance = DPSGD()
    instance.prepare(data, hparams, plan, CONTEXT)
    start = vector(instance)
    if cut is not None:
        instance.run(0, cut)
        state = copy.deepcopy(instance.state_dict())
        instance = DPSGD()
        instance.prepare(data, hparams, plan, CONTEXT)
        instance.load_state_dict(state)
    instance.run(cut or 0, 20)

    bounds = np.linspace(1.0, 0.5, 20)
    noises = [bounds[t] * plan.at(t).noise_multiplier for t in range(20)]
    warm = [(t + 1) / 5 for t in range(5)]
    factors = warm + [(1 + math.cos(math.pi * t / 15)) / 2 for t in range(15)]
    eta, v, w = 1.5 / noises[0], torch.zeros_like(start), start
    for t, gradient in enumerate(gradients):
        rho = noises[t] / noises[max(t - 1, 0)]
        eta, v = eta / rho, v * rho
        v = 0.8 * v + gradient
        w = w - eta * factors[t] * v
    torch.testing.assert_close(vector(instance), w, rtol=1e-4, atol=1e-5)


def test_a_plain_rate_stays_as_it_was(make_plan: MakePlan, make_blobs: Callable[..., Any]) -> None:
    hparams, plan = make_plan(DPSGD, optim__lr=0.3, train__max_steps=8, **MOVING)
    assert DPSGD.peak_rate(hparams, plan, 200) is None
    instance = DPSGD()
    instance.prepare(make_blobs(), hparams, plan, CONTEXT)
    assert instance._learning_rates.tolist() == [0.3] * 8
    assert instance._momentum_ratios is None


def test_older_records_have_a_plain_rate(
    make_plan: MakePlan, make_blobs: Callable[..., Any]
) -> None:
    hparams, plan = make_plan(DPSGD, train__max_steps=2)
    old = {n: v for n, v in hparams.items() if "noise_" not in n or not n.startswith("optim.")}
    assert len(old) == len(hparams) - 2
    instance = DPSGD()
    instance.prepare(make_blobs(), old, plan, CONTEXT)
    assert instance._learning_rates.tolist() == [0.1, 0.1]


# Adam, and other methods.


def test_the_rate_of_adam_is_u_itself(make_plan: MakePlan, make_blobs: Callable[..., Any]) -> None:
    hparams, plan = make_plan(
        DPSGD, optim__name="adam", optim__noise_lr=0.02, train__max_steps=6, **MOVING
    )
    instance = DPSGD()
    instance.prepare(make_blobs(), hparams, plan, CONTEXT)
    assert instance._learning_rates.tolist() == [0.02] * 6
    instance.run(0, 6)
    assert instance._optimizer.param_groups[0]["lr"] == 0.02
    assert DPSGD.peak_rate(hparams, plan, 200) == 0.02


def test_both_phases_of_bitfit_follow(make_plan: MakePlan) -> None:
    hparams, plan = make_plan(
        BiTFiT, bitfit__variant="two_phase", bitfit__full_epochs=1.0, train__max_steps=10,
        optim__noise_scale=5.0, optim__input_norm=2.0, optim__momentum=0.0,
    )  # fmt: skip
    first, last = 4, 6  # one pass of batches of 50 in 200
    spread = math.sqrt(first * 0.1**2 + last)
    expected = 5.0 * 50 / (plan.at(0).noise_multiplier * 2.0 * spread)
    assert BiTFiT.peak_rate(hparams, plan, 200) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("heads", [1, 4])
def test_a_head_of_many_has_the_noise_of_its_own(make_plan: MakePlan, heads: int) -> None:
    """Statistics before the steps are no steps; a batch scales no rate that follows the noise."""
    hparams, plan = make_plan(
        ScatterNet, features__name="none", heads__count=heads, optim__noise_lr=3.0,
        train__max_steps=5, normalize__kind="private_data", normalize__mean_norm=1.0,
        normalize__square_norm=1.0,
    )  # fmt: skip
    assert plan.runs[0].phase == "normalize"
    own = plan.at(2).noise_multiplier * math.sqrt(heads)
    assert ScatterNet.peak_rate(hparams, plan, 200) == pytest.approx(3.0 / (0.1 * own), rel=1e-12)


def test_no_batch_scales_a_rate_that_follows(
    make_plan: MakePlan, make_blobs: Callable[..., Any]
) -> None:
    hparams, plan = make_plan(
        ScatterNet, features__name="none", normalize__kind="none", optim__noise_lr=3.0,
        train__max_steps=5, optim__lr_scaling="batch",
    )  # fmt: skip
    instance = ScatterNet()
    instance.prepare(make_blobs(), {**hparams, "optim.lr": None}, plan, CONTEXT)
    rate = 3.0 / (0.1 * plan.at(0).noise_multiplier)
    assert instance._learning_rates.tolist() == pytest.approx([rate] * 5, rel=1e-12)


@pytest.mark.parametrize("over_clip", [True, False])
def test_a_step_of_adamix(
    make_blobs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, over_clip: bool
) -> None:
    """The noise moves each weight by u times a standard Gaussian, at whatever clipping norm."""
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(AdaMix, "noise_observer", staticmethod(lambda z: drawn.append(z.clone())))
    monkeypatch.setattr(
        "dpsweep.trainables.methods.adamix.noisy_gd.HeadRecords.gradient_sum",
        lambda self, weight, bound=None: (torch.zeros_like(weight, dtype=torch.float64),
                                          torch.zeros(len(self))),
    )  # fmt: skip
    data = make_blobs(num_public=60)
    hparams = hyperparameters(
        AdaMix, features__name="none", adamix__variant="fully_private", regularize__weight=0.0,
        clip__max_grad_norm=0.05, optim__noise_lr=0.3, optim__step_over_clip=over_clip,
    )  # fmt: skip
    instance, plan = AdaMix(), Plan((EventRun(Gaussian(20.0), 3),))
    instance.prepare(data, {**hparams, "optim.lr": None}, plan, CONTEXT)
    instance.run(0, 3)
    expected = -0.3 * sum(z.double() for z in drawn) / (0.05 * 20.0)
    torch.testing.assert_close(instance._weight.double(), expected, rtol=1e-5, atol=1e-7)
    assert AdaMix.peak_rate(hparams, plan, 200) == pytest.approx(0.3 / 20.0)


def test_adamix_divides_no_sum_and_knows_the_norm_of_its_inputs() -> None:
    hparams = completed(AdaMix, optim__noise_scale=5.0)
    assert hparams["optim.input_norm"] == 1.0
    plan = Plan((EventRun(Gaussian(20.0), 25),))
    for num_private in (200, 50_000):
        rate = AdaMix.peak_rate(hparams, plan, num_private)
        assert rate == pytest.approx(5.0 / (1.0 * math.sqrt(25)) / 20.0)
    assert AdaMix.peak_rate(hparams, Plan(()), 200) is None  # only_public


# Settings that exclude each other.


@pytest.mark.parametrize("method", [DPSGD, SparseFinetuning, BiTFiT, ScatterNet, AdaMix])
def test_a_rate_that_follows_is_null_and_stays_so(method: type[Method]) -> None:
    """A task is admitted once more from all that it has, by another budget: u is what carries."""
    hparams = completed(method, optim__noise_lr=2.0)
    assert hparams["optim.lr"] is None
    context = PlanContext(PrivacyBudget(1.0, 1e-5), "rdp", 1000, given=frozenset(hparams))
    assert method.complete(hparams, context) == hparams
    assert completed(method)["optim.lr"] is not None


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        (
            DPSGD,
            {"optim__lr": 0.1, "optim__noise_lr": 2.0},
            "optim.lr=0.1 and optim.noise_lr=2 bot",
        ),
        (AdaMix, {"optim__lr": 0.1, "optim__noise_lr": 2.0}, "optim.lr=0.1 and optim.noise_lr=2 b"),
        (
            ScatterNet,
            {"optim__lr": 1.0, "optim__noise_scale": 5.0, "optim__input_norm": 1.0},
            "optim.lr=1 and optim.noise_scale=5 both",
        ),
        (
            DPSGD,
            {"optim__noise_lr": 1.0, "optim__noise_scale": 5.0, "optim__input_norm": 1.0},
            "optim.noise_scale and optim.noise_lr both say",
        ),
        (DPSGD, {"optim__noise_scale": 5.0}, "optim.noise_scale needs optim.input_norm"),
        (
            DPSGD,
            {"optim__noise_scale": 5.0, "optim__input_norm": 1.0, "optim__name": "adam"},
            "optim.noise_scale has no meaning for adam",
        ),
        (DPSGD, {"optim__lr": None}, "optim.lr is null, and neither"),
        (
            SparseFinetuning,
            {"optim__noise_lr": 1.0, "sparse__body_lr": 0.1},
            "sparse.body_lr is a learning rate beside optim.noise_lr",
        ),
        (
            BiTFiT,
            {"optim__noise_lr": 1.0, "bitfit__full_lr": 0.1},
            "bitfit.full_lr is a learning rate beside optim.noise_lr",
        ),
    ],
)
def test_two_rates_or_none_are_refused(
    method: type[Method], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InfeasibleBudgetError) as error:
        completed(method, **given)
    assert error.value.message.startswith(said)
    assert error.value.fix


def test_a_warm_up_counts_in_the_length() -> None:
    hparams = {"optim.noise_lr": None, "optim.noise_scale": 6.0, "optim.input_norm": 2.0}
    assert noise_lr_of(hparams, np.array([0.6, 0.8])) == pytest.approx(3.0)
