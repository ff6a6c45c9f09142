"""The parts of the recipe of De et al. 2022 in whole methods: what is charged, kept and delivered."""

import io
from typing import Any

import numpy as np
import pytest
import torch

from dpsweep.auditing.audit import AuditSettings, run_audit
from dpsweep.auditing.subject import built_in
from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.study.audits import CONSISTENT
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.extras.average import Average, decay_at

CONTEXT = RunContext(study_seed=0, trial=0)
PLANNED = PlanContext(PrivacyBudget(3.0, 1e-5), "rdp", 200)
ALL = {
    "augment__multiplicity": 2,
    "augment__padding": 1,
    "optim__ema": 0.9,
    "model__name": "tanh_cnn",
    "train__max_steps": 4,
}
#: Methods that train on images, in the ways that have engines of their own.
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("dp_sgd", {"model__weight_standardization": True}),
    ("dp_sgd", {"model__name": "linear"}),
    ("sparse", {"sparse__train": "full", "model__weight_standardization": True}),
    ("sparse", {"sparse__train": "cls+conv", "sparse__density": 0.1}),
    ("bitfit", {"bitfit__variant": "full", "model__weight_standardization": True}),
    ("bitfit", {"bitfit__variant": "bitfit"}),
    ("bitfit", {"bitfit__variant": "two_phase", "bitfit__full_epochs": 0.5}),
    ("non_private", {"model__weight_standardization": True}),
]


def started(method, data, hparams, plan):
    instance = method()
    instance.prepare(data, hparams, plan, CONTEXT)
    return instance


def model_of(method, key="model"):
    return torch.cat([value.flatten() for value in method.state_dict()[key].values()])


@pytest.mark.parametrize(("name", "given"), METHODS)
def test_a_trial_runs_evaluates_exports_and_goes_on(name, given, make_plan, make_blobs):
    data, method = make_blobs(shape=(1, 8, 8)), TRAINABLES[name]
    hparams, plan = make_plan(method, **{**ALL, **given})
    one = started(method, data, hparams, plan)
    one.run(0, 3)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two = started(method, data, hparams, plan)
    two.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(model_of(one), model_of(two))
    assert torch.equal(model_of(one, "last"), model_of(two, "last"))
    assert not torch.equal(model_of(one), model_of(one, "last"))
    assert one.evaluate("validation") == two.evaluate("validation")
    if name == "non_private":  # whose batches are public
        one.run(3, 4), two.run(3, 4)
        assert torch.equal(model_of(one), model_of(two))
        assert torch.equal(model_of(one, "last"), model_of(two, "last"))
    x = torch.from_numpy(data.parts["validation"][0].copy())
    exported = one.export()
    state = one.state_dict()["model"]
    assert all(torch.equal(value, state[key]) for key, value in exported.state_dict().items())
    assert torch.equal(exported(x), two.export()(x)) or name == "non_private"


def test_no_part_of_the_recipe_changes_the_plan(make_plan):
    plain = make_plan(DPSGD, model__name="tanh_cnn", train__max_steps=4)[1]
    assert make_plan(DPSGD, **ALL, model__weight_standardization=True)[1] == plain


def test_the_average_is_that_of_its_definition(make_plan, data):
    method = TRAINABLES["non_private"]
    hparams, plan = make_plan(method, optim__ema=0.4, train__max_steps=9)
    plain = started(method, data, {**hparams, "optim.ema": 0.0}, plan)
    averaged = started(method, data, hparams, plan)
    mean = model_of(plain).double()
    for step in range(9):
        plain.run(step, step + 1)
        decay = min(0.4, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * model_of(plain).double()
    averaged.run(0, 9)
    assert torch.equal(model_of(averaged, "last"), model_of(plain))  # it changes no step
    torch.testing.assert_close(model_of(averaged).double(), mean, rtol=1e-5, atol=1e-6)
    assert set(plain.state_dict()) == {"model", "optimizer", "position"}


def test_what_never_trains_keeps_its_bits_in_the_average():
    torch.manual_seed(0)
    model = torch.nn.Linear(50, 50)
    average, before = Average(model, 0.99), model.weight.detach().clone()
    for step in range(30):
        with torch.no_grad():
            model.bias.add_(1.0)
        average.add(model, step)
    assert torch.equal(average.of(model).weight, before)
    assert decay_at(0, 0.05) == 0.05


def test_older_records_without_the_recipe_go_on(make_plan, data):
    hparams, plan = make_plan(DPSGD, train__max_steps=2)
    new = ("augment.", "optim.ema", "model.weight_standardization")
    old = {name: value for name, value in hparams.items() if not name.startswith(new)}
    assert len(old) == len(hparams) - 5
    method = started(DPSGD, data, old, plan)
    method.run(0, 2)
    assert set(method.state_dict()) == {"model", "optimizer", "position"}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"model__name": "linear"}, "no convolution"),
        ({"model__checkpoint": "pretrain", "model__name": "small_resnet"}, "trained without"),
        ({"model__checkpoint": "published", "model__name": "timm/resnet18"}, "trained without"),
    ],
)
def test_weights_that_cannot_be_standardised_are_refused(make_plan, given, word):
    hparams, _ = make_plan(DPSGD, model__weight_standardization=True, **given)
    with pytest.raises(InfeasibleBudgetError, match=word):
        DPSGD.complete(hparams, PLANNED)


def test_masked_weights_cannot_be_standardised(make_plan):
    method = TRAINABLES["sparse"]
    given = {"model__name": "tanh_cnn", "model__weight_standardization": True}
    with pytest.raises(InfeasibleBudgetError, match=r"sparse\.train"):
        method.complete(make_plan(method, **given, sparse__train="all")[0], PLANNED)
    method.complete(make_plan(method, **given, sparse__train="full")[0], PLANNED)


@pytest.mark.parametrize("epsilon", [1.0, pytest.param(8.0, marks=pytest.mark.slow)])
def test_an_audit_of_the_recipe_passes(epsilon):
    others = {
        "augment.multiplicity": 2,
        "optim.ema": 0.9,
        "model.weight_standardization": True,
    }
    subject = built_in("dp_sgd", epsilon, 2, others)
    record = run_audit(subject, AuditSettings(200, confidence=0.999))
    assert record.verdict == CONSISTENT
    assert record.problems == ()
    assert record.at_bound > 0.95
    # Views are known, so that an audit says to the last digit what a canary adds.
    assert np.isfinite(record.lower_bound)
