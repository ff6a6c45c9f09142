"""private_public_gd: a private model, then a mixed one that is pulled to it (Wang & Zhou 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.adamix.adamix import AdaMix
from dpsweep.trainables.methods.adamix.few_shot import RATES, draw_shots
from dpsweep.trainables.methods.adamix.noisy_gd import LEAST_CLIP, mean_gradient_clip

DELTA, CLASSES, FEATURES = 1e-5, 3, 40
VARIANT = {"features.name": "none", "adamix.variant": "private_public_gd"}


@pytest.fixture
def data(make_blobs) -> SweepData:
    blobs = make_blobs(num_private=300, shape=(FEATURES,), classes=CLASSES)
    public = make_blobs(num_private=60, shape=(FEATURES,), classes=CLASSES)
    parts = {**blobs.parts, "public": public.parts["private"]}
    return replace(blobs, parts=parts, info=replace(blobs.info, num_public=60))


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecretNoise, "like", lambda self, t, scale: torch.zeros_like(t))


def configured(**given: Any) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in given.items()}
    return resolve(AdaMix.hyperparameters, {**VARIANT, **named})


def prepared(data: SweepData, count: int, hparams: dict[str, Any] | None = None, **given) -> AdaMix:
    plan = Plan((EventRun(Gaussian(2.0), count),))
    instance = AdaMix()
    instance.prepare(data, hparams or configured(**given), plan, RunContext(0, 0))
    return instance


def gradients(weight: torch.Tensor, inputs: np.ndarray, labels: np.ndarray) -> torch.Tensor:
    """Return the gradient of each record, float64 (records, classes, features), by its formula."""
    x = torch.nn.functional.normalize(torch.from_numpy(inputs.copy()).double(), dim=1)
    residual = torch.softmax(x @ weight.T, dim=1)
    residual -= torch.nn.functional.one_hot(torch.from_numpy(labels.copy()), CLASSES)
    return residual[:, :, None] * x[:, None, :]


@pytest.mark.parametrize("over_clip", [True, False])
def test_both_phases_are_the_slow_and_obvious_computation(data, monkeypatch, over_clip) -> None:
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(AdaMix, "noise_observer", staticmethod(lambda z: drawn.append(z.clone())))
    rate, first = 0.01, 3
    instance = prepared(
        data, 8, reuse__first_share=0.4, reuse__weight=2.0, regularize__weight=0.5,
        clip__factor=1.5, optim__lr=rate, optim__step_over_clip=over_clip,
    )  # fmt: skip
    assert not bool(instance._weight.any())  # a private model starts at zero
    instance.run(0, 8)
    shots = draw_shots(
        data.parts["public"][1], data.info.class_names, shots=5, draw=0, study_seed=0
    )
    (xs, ys), (xp, yp) = data.parts["private"], data.parts["public"]
    weight = reference = torch.zeros(CLASSES, FEATURES, dtype=torch.float64)
    for position in range(8):
        if position == first:
            reference = weight
        public = gradients(weight, xp[shots], yp[shots])
        tau = 1.5 * float(public.mean(dim=0).norm())
        private = gradients(weight, xs, ys)
        norms = private.flatten(1).norm(dim=1)
        assert int((norms > tau).sum()) > 0
        step = (private * (tau / norms).clamp(max=1)[:, None, None]).sum(dim=0) + drawn[position]
        assert 1.5 * tau < float(drawn[position].double().std()) < 2.6 * tau
        if position >= first:
            step = step + public.sum(dim=0)
        penalty = 2.0 if position >= first else 0.5
        scale = rate / tau if over_clip else rate
        weight = weight - scale * (step + penalty * (weight - reference))
    assert len(drawn) == 8
    moved = float((instance._weight.double() - weight).norm() / weight.norm())
    assert moved < 1e-4
    assert float(instance._reference.norm()) > 0


def test_the_private_model_reads_public_records_for_its_clip_alone(data, no_noise) -> None:
    """At a fixed clip, other public records change the second phase and not the first."""
    inputs, labels = data.parts["public"]
    other = replace(data, parts={**data.parts, "public": (inputs + 0.5, labels)})
    fixed = {"adamix__adaptive_clip": False, "clip__max_grad_norm": 0.5}
    one, two = (prepared(each, 8, **fixed) for each in (data, other))
    for instance in (one, two):
        instance.run(0, 4)
    assert torch.equal(one._weight, two._weight)
    assert torch.equal(one._reference, one._weight)
    for instance in (one, two):
        instance.run(4, 8)
    assert not torch.equal(one._weight, two._weight)
    assert torch.equal(one._reference, two._reference)


def test_a_large_weight_holds_the_second_phase_at_the_private_model(data, no_noise) -> None:
    def distance(weight: float) -> float:
        instance = prepared(
            data, 60, reuse__weight=weight, optim__lr=0.002, optim__step_over_clip=False
        )
        instance.run(0, 60)
        return float((instance._weight - instance._reference).norm())

    assert distance(0.0) > distance(30.0) > distance(300.0)


def test_a_record_moves_a_step_of_either_phase_by_the_bound_at_most(data, no_noise) -> None:
    inputs, labels = data.parts["private"]
    rate = 2.0**-10
    plain = {"optim__lr": rate, "optim__step_over_clip": False, "reuse__weight": 0.0}
    whole = prepared(data, 8, **plain)
    for position in (0, 5):
        whole.run(whole._position, position)
        state = whole.state_dict()
        bound, _ = whole._clip_and_public()
        whole.run(position, position + 1)
        moves = []
        for row in range(0, 300, 30):
            kept = np.delete(np.arange(300), row)
            parts = {**data.parts, "private": (inputs[kept], labels[kept])}
            fewer = prepared(replace(data, parts=parts), 8, **plain)
            fewer.load_state_dict(state)
            fewer.run(position, position + 1)
            apart = (whole._weight.double() - fewer._weight.double()).norm()
            moves.append(float(apart) / rate)
        assert max(moves) <= bound * (1 + 1e-3)  # weights are float32
        assert max(moves) > 0.5 * bound


def test_a_trial_that_resumes_in_its_second_phase_is_pulled_to_the_same_model(
    data, no_noise
) -> None:
    straight = prepared(data, 8)
    straight.run(0, 8)
    before = prepared(data, 8)
    before.run(0, 6)
    after = prepared(data, 8)
    after.load_state_dict(before.state_dict())
    after.run(6, 8)
    assert torch.equal(after._weight, straight._weight)
    # Only this variant keeps what it is pulled to: the others' follows from public records.
    other = prepared(data, 8, adamix__variant="adamix")
    assert "reference" not in other.state_dict()


def test_without_steps_left_the_second_phase_is_public_and_free(data, no_noise) -> None:
    whole = prepared(data, 8, reuse__first_share=1.0, reuse__weight=3.0, public__epochs=50)
    whole.run(0, 8)
    private, reference = data.parts["private"], whole._reference
    only = prepared(data, 8, reuse__first_share=1.0, public__epochs=0)
    only.run(0, 8)
    assert torch.equal(only._weight, reference)  # the private model, as it was
    assert not torch.equal(whole._weight, reference)
    # The mixed model is a function of the private one and of public records.
    poisoned = replace(
        data, parts={**data.parts, "private": (np.full_like(private[0], np.nan), private[1])}
    )
    again = prepared(poisoned, 8, reuse__first_share=1.0, reuse__weight=3.0, public__epochs=50)
    again._weight = reference.clone()
    again._reuse()
    assert torch.equal(again._weight, whole._weight)
    pulled = prepared(data, 8, reuse__first_share=1.0, reuse__weight=1e9, public__epochs=50)
    pulled.run(0, 8)
    assert float((pulled._weight - reference).norm()) < float((whole._weight - reference).norm())


def test_a_free_second_phase_chooses_its_rate_where_none_is_named(data, no_noise) -> None:
    """By left-out shots, from the private model on: what that has cost is not lost to a null."""
    chosen = prepared(data, 4, reuse__first_share=1.0, public__lr=None, public__shots=3)
    chosen.run(0, 4)
    rate = chosen.public_scores()["few_shot_lr"]
    assert rate in RATES
    named = prepared(data, 4, reuse__first_share=1.0, public__lr=rate, public__shots=3)
    named.run(0, 4)
    assert torch.equal(named._weight, chosen._weight)


def test_iterates_of_the_private_model_are_not_averaged_in(data) -> None:
    instance = prepared(data, 8, optim__average=1.0)
    seen = []
    for position in range(8):
        instance.run(position, position + 1)
        seen.append(instance._weight)
    expected = torch.stack(seen[3:]).mean(dim=0)  # from the private model on
    torch.testing.assert_close(instance._released, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_one_budget_covers_both_phases(share) -> None:
    """Every step of either phase is an event, and no share costs less."""
    hparams = configured(reuse__first_share=share, noise__noise_multiplier=20.0)
    plan = AdaMix.plan(hparams, PlanContext(PrivacyBudget(3.0, DELTA), "pld", 300))
    assert plan == Plan((EventRun(Gaussian(20.0), 206),))
    assert 2.9 < epsilon_of(plan, delta=DELTA, accountant="pld") <= 3.0


def test_tasks_of_older_studies_run_as_they_did(data, no_noise) -> None:
    """What they recorded names no statistic, no factor and no second phase."""
    new = ("clip.statistic", "clip.factor", "reuse.first_share", "reuse.weight",
           "optim.average_weights")  # fmt: skip
    hparams = configured(adamix__variant="adamix", optim__average=0.5)
    old = {key: value for key, value in hparams.items() if key not in new}
    runs = [prepared(data, 4, each) for each in (hparams, old)]
    for instance in runs:
        instance.run(0, 4)
    assert torch.equal(runs[0]._weight, runs[1]._weight)


def test_the_norm_of_the_mean_is_never_zero_and_never_infinite() -> None:
    assert mean_gradient_clip(torch.zeros(2, 2), 5) == LEAST_CLIP
    assert mean_gradient_clip(torch.full((2, 2), torch.nan), 5) == 1.0
    assert mean_gradient_clip(torch.full((2, 2), torch.inf), 5, cap=0.3) == 0.3
    assert mean_gradient_clip(torch.ones(4, 4), 2, 1.0, cap=0.3) == 0.3
