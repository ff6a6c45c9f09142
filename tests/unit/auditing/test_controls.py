"""An audit fails what is broken in the trial's own code, and passes it as it is."""

from unittest import mock

import numpy as np
import pytest
import torch

from dpsweep.auditing.audit import AuditSettings, run_audit
from dpsweep.auditing.randomness import BATCHES, NOISE_AGAIN, NOISE_PUBLIC
from dpsweep.auditing.subject import built_in
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.one_run_audit import ceiling
from dpsweep.study.audits import CONSISTENT, FAIL, NOTHING
from dpsweep.trainables.gradients import clipping, linear_head
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.methods import dp_sgd
from dpsweep.trainables.methods.adamix import noisy_gd
from dpsweep.trainables.methods.least_squares import statistics

#: Small configurations of both kinds of closed forms: Poisson batches, and all records at once.
#: A fixed small clip, as features of norm 1 have no gradient of more than 1.4.
GIVEN = {
    "dp_sgd": {"model.name": "linear"},
    "adamix": {"adamix.variant": "ngd", "clip.max_grad_norm": 0.01},
}
METHODS = list(GIVEN)
STEPS = 3


def audited(method, *, canaries=400, confidence=0.95, epsilon=1.0, **changes):
    subject = built_in(method, epsilon, STEPS, {**GIVEN[method], **changes})
    return run_audit(subject, AuditSettings(canaries, confidence=confidence))


draw = SecretNoise.like


def no_noise(self, tensor, scale):
    return torch.zeros_like(tensor)


def little_noise(self, tensor, scale):
    return draw(self, tensor, scale / 10)


class Kept:
    """Noise that is drawn once and used at every step, by one instance or by all."""

    def __init__(self):
        self.kept = {}

    def shared(self, secret, tensor, scale):
        return self._noise(("all", tensor.shape), secret, tensor) * scale

    def own(self, secret, tensor, scale):
        return self._noise((id(secret), tensor.shape), secret, tensor) * scale

    def _noise(self, key, secret, tensor):
        if key not in self.kept:
            self.kept[key] = draw(secret, tensor, 1.0)
        return self.kept[key]


# Hundreds of trained models: the audits of one method are enough for every day.
SLOW = ("adamix", "dp_sgd")


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.slow if m in SLOW else ()) for m in METHODS]
)
def test_what_is_right_is_not_failed(method):
    """At 99.9%, 87 of 100 must be right to refute the claim; about 62 are: one run in a million."""
    record = audited(method, canaries=1000, confidence=0.999)
    assert record.verdict == CONSISTENT
    assert record.could_fail
    assert record.claim.epsilon == pytest.approx(1.0, abs=1e-2)
    assert (record.guesses, record.positions, record.planned) == (100, STEPS, STEPS)
    assert record.lower_bound <= record.ceiling
    assert record.at_bound > 0.95
    assert record.not_audited == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("noise", [no_noise, little_noise], ids=["none", "a tenth"])
def test_missing_noise_fails(method, noise, monkeypatch):
    monkeypatch.setattr(SecretNoise, "like", noise)
    record = audited(method)
    assert record.verdict == FAIL
    assert record.is_refuted
    assert record.lower_bound > record.claim.epsilon
    # Nearly all: canaries without noise are still beside each other, and one is wrong now and then.
    assert record.correct >= 0.9 * record.guesses or noise is little_noise


def unclipped(norms, _):
    return torch.ones_like(norms)


@pytest.mark.parametrize(
    ("method", "module", "name", "without"),
    [
        ("dp_sgd", clipping, "clip_rule_factors", lambda rule: unclipped),
        ("adamix", noisy_gd, "clip_factors", unclipped),
    ],
    ids=["dp_sgd", "adamix"],
)
def test_missing_clipping_fails(method, module, name, without, monkeypatch):
    monkeypatch.setattr(module, name, without)
    record = audited(method)
    assert record.verdict == FAIL
    assert record.is_refuted


def test_missing_clipping_fails_where_the_sum_alone_is_without(monkeypatch):
    """The step leaves its bound out; what a canary adds by itself is still clipped."""
    true = linear_head.LinearHeadEngine.clipped_gradient_sum

    def of_many(self, x, y, rows, bound):
        return true(self, x, y, rows, bound if len(rows) == 1 else 1e9)

    monkeypatch.setattr(linear_head.LinearHeadEngine, "clipped_gradient_sum", of_many)
    assert audited("dp_sgd").is_refuted


def test_batches_that_are_not_secret_fail(monkeypatch):
    monkeypatch.setattr(dp_sgd, "secret_numpy_generator", lambda: np.random.default_rng(7))
    record = audited("dp_sgd")
    assert record.verdict == FAIL
    assert record.problems == (BATCHES,)
    # The claim counts on secret batches: without them it is that of full ones.
    assert record.without_sampling.sampling == "full_batch"
    assert record.without_sampling.epsilon > 3 * record.claim.epsilon


@pytest.mark.parametrize("method", METHODS)
def test_noise_that_is_used_again_fails(method, monkeypatch):
    kept = Kept()
    monkeypatch.setattr(SecretNoise, "like", lambda *given: kept.own(*given))
    record = audited(method)
    assert record.verdict == FAIL
    assert record.problems == (NOISE_AGAIN,)


@pytest.mark.parametrize("method", METHODS)
def test_noise_that_is_not_secret_fails(method, monkeypatch):
    kept = Kept()
    monkeypatch.setattr(SecretNoise, "like", lambda *given: kept.shared(*given))
    assert set(audited(method).problems) == {NOISE_AGAIN, NOISE_PUBLIC}


def test_statistics_of_records_are_followed_too(monkeypatch):
    """The two releases of the normalisation come first in the plan, and have noise of their own."""
    given = {"features.name": "none", "normalize.kind": "private_data", "optim.lr_scaling": "none"}
    given |= {"normalize.noise_multiplier": 3.0, "normalize.mean_norm": 1e-3}
    subject = built_in("scatternet", 4.0, 2, {**given, "model.name": "linear"})
    right = run_audit(subject, AuditSettings(100, confidence=1 - 1e-9))
    assert right.verdict == CONSISTENT
    assert (right.positions, right.not_audited) == (4, ())
    monkeypatch.setattr(SecretNoise, "like", no_noise)
    first_two = AuditSettings(400, positions=4, confidence=0.95)
    assert run_audit(
        built_in("scatternet", 2.5, 2, {**given, "model.name": "linear"}), first_two
    ).is_refuted


#: Features of mean 0 and variance 1 in each record: their norm is 16 before it is divided out.
CENTRED = {"normalize.kind": "group", "normalize.groups": 1}
LEAST_SQUARES = {
    "closed_form": CENTRED,
    "feature_covariance": {
        **CENTRED,
        "least_squares.variant": "feature_covariance",
        "clip.max_grad_norm": 0.01,
        "train.max_steps": 2,
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", LEAST_SQUARES)
def test_sums_of_least_squares_are_followed(variant, monkeypatch):
    """Both sums, or the covariance and the steps: without noise, and beyond their bounds."""

    def audited(confidence):
        subject = built_in("least_squares", 1.0, STEPS, LEAST_SQUARES[variant])
        return run_audit(subject, AuditSettings(400, confidence=confidence))

    right = audited(1 - 1e-9)
    assert (right.verdict, right.not_audited) == (CONSISTENT, ())
    assert right.positions == right.planned == (2 if variant == "closed_form" else 3)
    with mock.patch.object(SecretNoise, "like", no_noise):
        assert audited(0.95).is_refuted
    # A record that is not divided by its norm adds far more than 1.
    monkeypatch.setattr(statistics, "unit_rows", lambda rows: rows.double())
    assert audited(0.95).is_refuted


def test_schedules_and_heads_are_followed():
    given = {
        "features.name": "none",
        "heads.count": 3,
        "clip.shape": "linear",
        "clip.end_ratio": 0.2,
    }
    given |= {"noise.shape": "cosine", "noise.end_ratio": 0.5}
    subject = built_in("scatternet", 1.0, 3, given)
    assert run_audit(subject, AuditSettings(100, confidence=1 - 1e-9)).verdict == CONSISTENT


def test_public_records_in_a_private_sum_are_known():
    """Variant fully_private adds them to the sum; without noise the canaries stand out all the same."""
    with mock.patch.object(SecretNoise, "like", no_noise):
        record = audited("adamix", **{"adamix.variant": "fully_private"})
    assert record.correct == record.guesses


def test_two_phases_are_followed():
    given = {"bitfit.variant": "two_phase", "bitfit.full_epochs": 0.1, "model.name": "tanh_cnn"}
    subject = built_in("bitfit", 1.0, 2, given)
    record = run_audit(subject, AuditSettings(20))
    assert (record.verdict, record.positions) == (CONSISTENT, 2)


def test_some_of_the_positions_have_a_claim_of_their_own():
    subject = built_in("dp_sgd", 1.0, STEPS, GIVEN["dp_sgd"])
    record = run_audit(subject, AuditSettings(20, positions=1))
    assert 0 < record.claim.epsilon < 0.9
    assert record.not_audited == (f"positions 2 to {STEPS} of the plan",)
    assert record.ceiling == ceiling(20, 2, delta=1e-5)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("active_learning", "its releases are not followed"),
        ("non_private", "it makes no privacy claim"),
        ("adamix_paragon", "it makes no privacy claim"),
    ],
)
def test_what_cannot_be_followed_is_named(method, why):
    record = run_audit(built_in(method, 1.0, STEPS), AuditSettings(20))
    assert record.verdict == NOTHING
    assert record.sentence() == f"not audited, which is no pass: {why}"
    assert not record.could_fail


def test_progress_is_told_after_each_position():
    seen = []
    subject = built_in("dp_sgd", 1.0, 2, GIVEN["dp_sgd"])
    run_audit(subject, AuditSettings(20), progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]


def test_too_few_canaries_are_refused():
    with pytest.raises(BadInputError, match="at least 20"):
        AuditSettings(19)
