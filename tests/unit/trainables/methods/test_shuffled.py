"""Batches that are shuffled, and noise without a claim: what they are, and that none is made."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from dpsweep.cli.app import app
from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import NonPrivate as NonPrivateEvent
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.testing.conformance import tiny_data
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.non_private import NonPrivate
from dpsweep.trainables.methods.scatternet.non_private import ScatterNetNonPrivate

CLAIMLESS = [NonPrivate, ScatterNetNonPrivate]
SHUFFLED = {
    "batch.sampling": "shuffled",
    "clip.max_grad_norm": 0.1,
    "noise.noise_multiplier": 3.0,
    "batch.expected": 90,
    "train.max_steps": 12,
}


def configured(method: type[Any], **given: Any) -> dict[str, Any]:
    own = {"features.name": "none", "optim.lr_scaling": "none"}
    named = {key.replace("__", "."): value for key, value in given.items()}
    base = own if method is ScatterNetNonPrivate else {}
    return resolve(method.hyperparameters, {**base, **SHUFFLED, **named})


def prepared(method: type[Any], *, trial: int = 0, drop: tuple[str, ...] = (), **given: Any) -> Any:
    hparams = configured(method, **given)
    plan = method.plan(hparams, PlanContext(PrivacyBudget(3.0, 1e-5), "rdp", 400))
    instance = method()
    kept = {key: value for key, value in hparams.items() if key not in drop}
    instance.prepare(tiny_data(), kept, plan, RunContext(0, trial))
    return instance


@pytest.mark.parametrize("method", CLAIMLESS)
def test_an_epoch_is_one_order_of_the_records_in_whole_batches(method) -> None:
    instance = prepared(method)
    batches = [instance._rows_of(step) for step in range(12)]
    assert {len(rows) for rows in batches} == {90}  # Poisson batches would vary
    for epoch in range(3):
        rows = np.concatenate(batches[4 * epoch : 4 * epoch + 4])
        assert len(set(rows.tolist())) == 360  # no record twice; 40 of 400 wait
    assert set(batches[0].tolist()) != set(batches[4].tolist())
    assert all((np.diff(rows) > 0).all() for rows in batches)
    again, other = prepared(method), prepared(method, trial=1)
    assert np.array_equal(again._rows_of(5), batches[5])
    assert not np.array_equal(other._rows_of(5), batches[5])


def test_a_batch_is_never_larger_than_the_records() -> None:
    instance = prepared(NonPrivate, batch__sample_rate=1.0)
    assert np.array_equal(instance._rows_of(3), np.arange(400))


@pytest.mark.parametrize("method", CLAIMLESS)
def test_the_default_is_the_training_of_before(method) -> None:
    """Poisson batches, without clip or noise; records of older trials name none of them."""
    names = ("batch.sampling", "clip.max_grad_norm", "noise.noise_multiplier")
    default = {key.replace(".", "__"): None for key in names} | {
        "batch__sampling": "poisson", "noise__noise_multiplier": 0.0,
    }  # fmt: skip
    one, old = prepared(method, **default), prepared(method, **default, drop=names)
    for instance in (one, old):
        instance.run(0, 12)
    for mine, theirs in zip(one._model.parameters(), old._model.parameters()):
        assert torch.equal(mine, theirs)
    sizes = {len(one._rows_of(step)) for step in range(12)}
    assert len(sizes) > 3


@pytest.mark.parametrize("method", CLAIMLESS)
def test_noise_and_clip_are_those_of_private_training(method) -> None:
    """At a rate of 1 and without records, a step is its noise: sigma C over the batch."""
    instance = prepared(method, clip__max_grad_norm=0.5)
    instance._rows = instance._rows[:0]
    instance._rows_of = lambda step: instance._rows
    drawn = torch.cat([g.flatten() for _ in range(1500) for g in instance._gradient(0)])
    scale = 3.0 * 0.5 / 90
    assert stats.kstest(drawn.numpy(), "norm", args=(0, scale)).pvalue > 1e-6
    assert stats.kstest(drawn.numpy(), "norm", args=(0, 0.8 * scale)).pvalue < 1e-6
    quiet = prepared(method, noise__noise_multiplier=0.0, clip__max_grad_norm=1e-4)
    total = torch.cat([g.flatten() for g in quiet._gradient(0)]).norm() * 90
    assert 0 < float(total) <= 90 * 1e-4 * (1 + 1e-6)


def test_a_shuffled_step_is_the_private_one_on_the_same_rows(monkeypatch) -> None:
    from dpsweep.trainables.gradients.noise import SecretNoise

    monkeypatch.setattr(SecretNoise, "like", lambda self, t, scale: torch.full_like(t, scale))
    hparams = resolve(
        DPSGD.hyperparameters,
        {key: value for key, value in SHUFFLED.items() if key != "batch.sampling"},
    )
    context = PlanContext(PrivacyBudget(30.0, 1e-5), "rdp", 400)
    private, mine = DPSGD(), prepared(NonPrivate)
    private.prepare(tiny_data(), hparams, DPSGD.plan(hparams, context), RunContext(0, 0))
    private._draw_batch = lambda *args: mine._rows_of(0)
    for expected, got in zip(private._gradient(0), mine._gradient(0)):
        torch.testing.assert_close(got, expected, rtol=3e-4, atol=1e-7)  # its noise is larger


# --- No claim ---------------------------------------------------------------------------------


def test_only_methods_without_a_claim_can_shuffle() -> None:
    able = [
        method
        for method in TRAINABLES.values()
        if any(p.name == "batch.sampling" for p in method.hyperparameters)
    ]
    assert set(able) == set(CLAIMLESS)
    assert not any(method.is_private for method in able)


@pytest.mark.parametrize("method", CLAIMLESS)
@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
@pytest.mark.parametrize("noise", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_no_noise_buys_an_epsilon(method, sampling, noise, accountant) -> None:
    hparams = configured(method, batch__sampling=sampling, noise__noise_multiplier=noise)
    plan = method.plan(hparams, PlanContext(PrivacyBudget(3.0, 1e-5), accountant, 400))
    assert len(plan) == 12
    assert all(isinstance(run.event, NonPrivateEvent) for run in plan.runs)
    assert epsilon_of(plan, delta=1e-5, accountant=accountant) == math.inf
    assert epsilon_of(plan.slice(0, 1), delta=0.5, accountant=accountant) == math.inf


def test_noise_needs_the_bound_that_it_is_measured_by() -> None:
    with pytest.raises(
        BadInputError, match=r"noise_multiplier=3 is measured by clip.max_grad_norm"
    ):
        prepared(NonPrivate, clip__max_grad_norm=None)


SPEC = """\
name: shuffled
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
privacy: {delta: 1.0e-5, trial_epsilon: 2.0, accounting: unaccounted}
search:
  sampler: grid
  num_trials: 1
  space:
    method: non_private
    batch.sampling: shuffled
    clip.max_grad_norm: 0.1
    noise.noise_multiplier: 3
    batch.expected: 128
    train.max_steps: 9
"""


def called(tmp_path, text, *words: str) -> tuple[int, str]:
    (tmp_path / "spec.yaml").write_text(text)
    result = CliRunner().invoke(app, [words[0], str(tmp_path / "spec.yaml"), *words[1:]])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("words", [("plan",), ("plan", "--explain"), ("plan", "-f", "json")])
def test_a_plan_of_shuffled_batches_states_no_epsilon(tmp_path, words) -> None:
    code, said = called(tmp_path, SPEC, *words)
    assert code == 0, said
    assert not re.search(r"epsilon[\"']?\s*[=:]\s*[0-9]", said), said
    if "json" not in words:
        assert "It will claim nothing: no trial has a finite epsilon." in said


def test_a_plan_of_both_arms_states_that_of_the_private_one_alone(tmp_path) -> None:
    both = SPEC.replace("method: non_private", "method: {choice: [dp_sgd, non_private]}").replace(
        "batch.sampling: shuffled",
        "batch.sampling: {choice: [shuffled], when: {method: non_private}}",
    )
    code, said = called(tmp_path, both.replace("num_trials: 1", "num_trials: 2"), "plan")
    assert code == 0, said
    assert "a private trial alone costs at most epsilon=2.0000" in said
    assert re.search(r"non_private 1 9 - -", said), said


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("method: non_private", "method: dp_sgd", "batch.sampling: dp_sgd has no such hyper"),
        ("clip.max_grad_norm: 0.1", "optim.lr: 1", "clip.max_grad_norm: noise is measured by it"),
        ("unaccounted", "composed, study_epsilon: 4", "non_private has no finite epsilon, so comp"),
        ("shuffled\n", "shuffeld\n", "unknown value 'shuffeld', did you mean 'shuffled'?"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, old, new, line) -> None:
    assert old in SPEC.split("\n", 1)[1]
    name, rest = SPEC.split("\n", 1)
    (tmp_path / "spec.yaml").write_text(f"{name}\n{rest.replace(old, new, 1)}")
    result = CliRunner().invoke(app, ["validate", str(tmp_path / "spec.yaml")])
    assert isinstance(result.exception, SpecError)
    assert line in str(result.exception)
