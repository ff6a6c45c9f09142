"""A bound that follows a quantile: what a step releases costs what its event says, and no more."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from dpsweep.auditing.audit import AuditSettings, run_audit
from dpsweep.auditing.subject import built_in
from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.study.audits import CONSISTENT
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.gradients.noise import watched_releases
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.extras.quantile import joint_of, quantile_problems

CONTEXT = RunContext(study_seed=0, trial=0)
PLANNED = PlanContext(PrivacyBudget(3.0, 1e-5), "rdp", 200)
FOLLOWS = {"clip__rule": "quantile"}
#: Each kind of engine: closed form, Opacus, biases, masks, and a loss of its own.
METHODS = [
    ("dp_sgd", {}),
    ("dp_sgd", {"model__name": "tanh_cnn"}),
    ("dp_sgd", {"model__name": "tanh_cnn", "augment__multiplicity": 2, "augment__padding": 1}),
    ("bitfit", {"model__name": "tanh_cnn"}),
    ("bitfit", {"model__name": "tanh_cnn", "bitfit__variant": "two_phase"}),
    ("sparse", {"model__name": "tanh_cnn", "sparse__train": "cls+conv", "sparse__density": 0.1}),
    ("scatternet", {"features__name": "none", "optim__lr_scaling": "none"}),
]


def started(method, data, hparams, plan):
    instance = method()
    instance.prepare(data, hparams, plan, CONTEXT)
    return instance


def data_for(given, make_blobs):
    return make_blobs(num_private=60, shape=(1, 8, 8) if "model__name" in given else (6,))


def without(data: SweepData, row: int) -> SweepData:
    """The neighbour without a record; the declared number stays."""
    kept = np.arange(len(data.parts["private"][1])) != row
    return replace(
        data, parts={**data.parts, "private": tuple(a[kept] for a in data.parts["private"])}
    )


def released(method, position):
    seen = []
    with watched_releases(seen.append):
        method.run(position, position + 1)
    return seen


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "given"), METHODS)
def test_one_record_moves_gradients_and_count_by_the_joint_bound(
    name, given, make_plan, make_blobs
):
    """Add-or-remove-one, brute force, in units of each entry's own noise: at most 1 / z."""
    data, method = data_for(given, make_blobs), TRAINABLES[name]
    hparams, plan = make_plan(
        method,
        num_private=60,
        **{**FOLLOWS, **given, "batch__sample_rate": 1.0, "train__max_steps": 2},
        clip__count_noise=4.0,
        noise__noise_multiplier=5.0,
        clip__max_grad_norm=0.5,
        epsilon=50.0,
    )
    whole = released(started(method, data, hparams, plan), 0)
    stds = torch.cat([part.exact.new_full((part.exact.numel(),), part.scale) for part in whole])
    moved = []
    for row in range(0, 60, 7):
        rest = released(started(method, without(data, row), hparams, plan), 0)
        difference = torch.cat([(a.exact - b.exact).flatten() for a, b in zip(whole, rest)])
        moved.append(float((difference / stds).norm()))
        # The count alone, in examples, is moved by one half.
        unit = 5.0 * joint_of(5.0, 4.0) / 4.0 * 0.5
        assert abs(float(difference[-1]) / unit) == pytest.approx(0.5)
        assert stds[-1] / unit == pytest.approx(4.0, rel=2e-4)
    assert max(moved) <= 1 / 5.0
    if any(given):
        assert max(moved) > 0.999 / 5.0 / joint_of(5.0, 4.0)  # some gradient is at the bound


def test_the_bound_moves_as_in_the_paper(make_plan, data):
    hparams, plan = make_plan(
        DPSGD,
        **FOLLOWS,
        clip__count_noise=3.0,
        clip__quantile=0.3,
        clip__quantile_rate=0.5,
        batch__sample_rate=1.0,
        train__max_steps=5,
        epsilon=8.0,
    )
    method = started(DPSGD, data, hparams, plan)
    for step in range(5):
        bound, z = method.state_dict()["bound"] if step else 1.0, plan.at(step).noise_multiplier
        (*_, count) = released(method, step)
        unit = bound / math.sqrt(1 / z**2 - 1 / 6.0**2) / 3.0
        exact, noisy = float(count.exact) / unit, float(count.noisy) / unit
        assert exact + 100 == pytest.approx(round(exact + 100), abs=1e-6)  # a count of 200
        expected = bound * math.exp(-0.5 * (0.5 + noisy / 200 - 0.3))
        assert method.state_dict()["bound"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("start", "quantile"), [(100.0, 0.5), (0.01, 0.5), (1.0, 0.9)])
def test_it_comes_to_the_quantile(make_plan, data, start, quantile):
    hparams, plan = make_plan(
        DPSGD,
        **FOLLOWS,
        clip__max_grad_norm=start,
        clip__quantile=quantile,
        clip__quantile_rate=0.5,
        batch__sample_rate=1.0,
        train__max_steps=60,
        optim__lr=1e-6,
        epsilon=50.0,
    )
    method = started(DPSGD, data, hparams, plan)
    method.run(0, 60)
    x, y = (torch.from_numpy(array.copy()) for array in data.parts["private"])
    weight, bias = method._model[1].weight, method._model[1].bias
    residual = torch.softmax(x @ weight.T + bias, dim=1) - torch.eye(3)[y]
    norms = residual.norm(dim=1) * (x.square().sum(dim=1) + 1).sqrt()
    assert float((norms <= method.state_dict()["bound"]).float().mean()) == pytest.approx(
        quantile, abs=0.15
    )


def test_its_state_goes_on(make_plan, data):
    hparams, plan = make_plan(DPSGD, **FOLLOWS, train__max_steps=6)
    one, two = (started(DPSGD, data, hparams, plan) for _ in range(2))
    one.run(0, 3)
    two.load_state_dict(one.state_dict())
    assert two.state_dict()["bound"] == one.state_dict()["bound"] != 1.0
    assert two._bound_at(3) == one._bound_at(3)


@pytest.mark.parametrize("count_noise", [2.0, 10.0, 1e6])
def test_gradients_and_count_cost_what_the_event_says(count_noise):
    """Two Gaussian mechanisms on one batch are one of z: composed apart, for a batch of all."""
    z = 3.0
    own, count = z * joint_of(z, count_noise), 2 * count_noise
    apart = Plan((EventRun(PoissonGaussian(own, 1.0), 1), EventRun(PoissonGaussian(count, 1.0), 1)))
    together = Plan((EventRun(PoissonGaussian(z, 1.0), 1),))
    assert epsilon_of(apart, delta=1e-5, accountant="rdp") == pytest.approx(
        epsilon_of(together, delta=1e-5, accountant="rdp"), rel=1e-4
    )
    assert 1 / own**2 + 1 / count**2 <= 1 / z**2


def test_the_plan_is_that_of_a_fixed_bound(make_plan):
    assert make_plan(DPSGD, **FOLLOWS)[1] == make_plan(DPSGD)[1]


def test_a_count_that_takes_all_is_refused_with_the_plan(make_plan):
    with pytest.raises(InfeasibleBudgetError, match=r"clip\.count_noise=0\.4 is not above half"):
        make_plan(DPSGD, **FOLLOWS, clip__count_noise=0.4, noise__noise_multiplier=0.8)
    with pytest.raises(InfeasibleBudgetError, match=r"clip\.count_noise"):
        make_plan(DPSGD, **FOLLOWS, clip__count_noise=0.4, epsilon=1.0)
    make_plan(DPSGD, clip__count_noise=0.4, epsilon=1.0)  # without the rule it says nothing


@pytest.mark.parametrize(
    ("name", "given", "word"),
    [
        ("dp_sgd", {"clip__shape": "linear"}, "clip.shape"),
        ("dp_sgd", {"optim__noise_lr": 1.0}, "optim.noise_lr"),
        ("scatternet", {"heads__count": 4}, "heads.count"),
    ],
)
def test_what_cannot_stand_beside_it(name, given, word, make_plan):
    method = TRAINABLES[name]
    hparams, _ = make_plan(method, **given)
    with pytest.raises(InfeasibleBudgetError, match=word):
        method.complete({**hparams, "clip.rule": "quantile"}, PLANNED)
    values = {key.replace("__", "."): [value] for key, value in given.items()}
    said = quantile_problems({**values, "clip.rule": ["quantile"]})
    assert [problem.key for problem in said] == [word]
    assert quantile_problems({**values, "clip.rule": ["quantile", "abadi"]}) == []


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_an_audit_of_it_passes(epsilon):
    subject = built_in("dp_sgd", epsilon, 3, {"model.name": "linear", "clip.rule": "quantile"})
    record = run_audit(subject, AuditSettings(400, confidence=0.999))
    assert record.verdict == CONSISTENT
    assert record.problems == ()


def test_the_count_has_the_noise_that_is_split_off_for_it(make_plan, data):
    """With power: at this number of steps a scale that is off by a tenth is seen."""
    hparams, plan = make_plan(
        DPSGD,
        **FOLLOWS,
        clip__count_noise=3.0,
        train__max_steps=600,
        noise__noise_multiplier=4.0,
        epsilon=1e3,
    )
    method, noise = started(DPSGD, data, hparams, plan), []
    for step in range(len(plan)):
        bound, _ = method._bound_at(step)
        (*_, count) = released(method, step)
        unit = bound * 4.0 * joint_of(4.0, 3.0) / 3.0
        noise.append(float(count.noisy - count.exact) / unit)
    assert len(noise) == 600
    assert stats.kstest(noise, "norm", args=(0, 3.0)).pvalue > 1e-6
    assert np.std(noise) == pytest.approx(3.0, rel=5 / 1200**0.5)


def test_rows_that_fill_a_chunk_up_are_not_counted(make_plan, data):
    """How many they are depends on the batch: on whether an example is in it."""
    hparams, plan = make_plan(DPSGD, **FOLLOWS, clip__max_grad_norm=1e6, train__max_steps=2)
    method = started(DPSGD, data, hparams, plan)
    for size in (0, 1, 5, 63):
        engine = method._engine_at(0)
        sums = engine.clipped_gradient_sum(method._inputs, method._labels, np.arange(size), 1e6)
        unit = 1e6 * method._quantile._weight(plan.at(0).noise_multiplier)
        assert float(sums[-1]) / unit == pytest.approx(size / 2)
