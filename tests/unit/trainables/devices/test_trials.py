"""Whole trials: in bfloat16, and with the same ledger on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from blobs import blobs

from dpsweep.foundation.errors import InfeasibleBudgetError, ModelError
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.devices.numerics import ForwardPass
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.model_knobs import PRECISION

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]
STEPS = {"train.max_steps": 12, "batch.expected": 50, "batch.physical": 16}
NETWORK = {"model.name": "tanh_cnn", "optim.lr": 0.5, **STEPS}


@pytest.fixture
def images(lab: Any) -> Any:
    """Trials on images of 8 x 8."""
    lab.data = blobs(300, (1, 8, 8), num_validation=100, num_test=50)
    return lab


@pytest.mark.parametrize("device", DEVICES)
def test_a_trial_in_bfloat16_runs_to_its_end_and_is_charged_as_planned(
    images: Any, device: str
) -> None:
    settings = images.settings(report_every=4, show_test=True, device=device)
    task = images.task(settings, {**NETWORK, "model.precision": "bfloat16"})
    assert task.plan == images.task(settings, NETWORK).plan
    reports = images.run(settings, task)
    assert [report.step for report in reports] == [4, 8, 12]
    assert not reports[-1].failure
    assert reports[-1].value > 0.5
    assert trial_spent(settings.ledger, 0) == task.plan.merged()


@pytest.mark.parametrize("device", DEVICES)
def test_the_ledger_of_a_trial_is_the_same_on_every_device(images: Any, device: str) -> None:
    """Plan, charges and epsilon; on the CPU the same trial is run twice."""
    charged = []
    for trial, where in enumerate(("cpu", device)):
        settings = images.settings(report_every=4, device=where)
        task = images.task(settings, NETWORK, trial=trial)
        reports = images.run(settings, task)
        epsilons = [(r.step, r.charged, r.epsilon, r.next_epsilon) for r in reports]
        charged.append(
            (task.plan, trial_spent(settings.ledger, trial), epsilons, task.planned_epsilon)
        )
    assert charged[0] == charged[1]
    assert len(charged[0][2]) == 3


METHODS: dict[str, dict[str, Any]] = {
    "dp_sgd": {},
    "non_private": {},
    "bitfit": {"bitfit.variant": "two_phase", "bitfit.full_epochs": 1.0},
    "bitfit_non_private": {},
    "sparse": {"sparse.train": "all", "sparse.density": 0.1},
    "sparse_non_private": {"sparse.train": "all", "sparse.density": 0.1},
}


def context(device: str = "cpu") -> RunContext:
    return RunContext(study_seed=0, trial=0, device=device)


def prepared(name: str, data: SweepData, device: str = "cpu", **given: Any) -> Any:
    method = TRAINABLES[name]
    hparams = resolve(method.hyperparameters, {**NETWORK, **METHODS.get(name, {}), **given})
    plans = PlanContext(PrivacyBudget(4.0, 1e-5), "rdp", data.info.num_private)
    hparams = method.complete(hparams, plans)
    instance = method()
    instance.prepare(data, hparams, method.plan(hparams, plans), context(device))
    return instance


def precisions(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which each forward pass of an engine adds whether it is rounded."""
    seen: list[bool] = []
    call = ForwardPass.__call__

    def watched(self: ForwardPass, x: torch.Tensor) -> torch.Tensor:
        seen.append(self.is_rounded)
        return call(self, x)

    monkeypatch.setattr(ForwardPass, "__call__", watched)
    return seen


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_precision_of_a_configuration_reaches_its_engine(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen = blobs(120, (1, 8, 8), num_validation=40), precisions(monkeypatch)
    method = prepared(name, data, **{"model.precision": precision})
    method.run(0, 8)
    assert seen[-1] == (precision == "bfloat16")
    assert any(seen) == (precision == "bfloat16")
    assert all(parameter.dtype == torch.float32 for parameter in method._model.parameters())
    del seen[:]
    method.evaluate("validation")
    assert seen == []  # float32 it is: the network's own call


def test_older_records_are_in_float32() -> None:
    data = blobs(60, (1, 8, 8), num_validation=20)
    method, plans = TRAINABLES["dp_sgd"], PlanContext(PrivacyBudget(4.0, 1e-5), "rdp", 60)
    hparams = resolve(method.hyperparameters, NETWORK)
    del hparams[PRECISION.name]
    plan = method.plan(hparams, plans)
    instance: Any = method()
    instance.prepare(data, hparams, plan, context())
    assert not instance._engine._forward.is_rounded


class Mixing(torch.nn.Module):
    """The identity; in bfloat16 a row depends on its place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.bfloat16:
            return x
        return x * (1 + torch.arange(len(x)) % 2 / 128).to(x.dtype).view(-1, 1, 1, 1)


@pytest.mark.parametrize("name", ["dp_sgd", "bitfit", "sparse"])
def test_what_moves_with_its_place_is_refused_before_anything_is_charged(
    name: str, images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method: Any = TRAINABLES[name]
    build: Callable[..., torch.nn.Module] = method._build_model

    def mixing(self: Any, **options: Any) -> torch.nn.Module:
        model = build(self, **options)
        assert isinstance(model, torch.nn.Sequential)
        return torch.nn.Sequential(*model[:2], Mixing(), *model[2:])

    monkeypatch.setattr(method, "_build_model", mixing)
    settings = images.settings(report_every=4)
    given = {**NETWORK, **METHODS[name], "model.precision": "bfloat16"}
    with pytest.raises(ModelError, match="place among others"):
        images.open(settings, images.task(settings, given, method=name))
    assert len(trial_spent(settings.ledger, 0)) == 0
    exact = {**given, "model.precision": "float32"}
    images.run(settings, images.task(settings, exact, trial=1, method=name))


@pytest.mark.parametrize("name", METHODS)
def test_a_linear_network_is_refused_in_bfloat16(name: str) -> None:
    method, plans = TRAINABLES[name], PlanContext(PrivacyBudget(4.0, 1e-5), "rdp", 200)
    given = {**STEPS, "model.name": "linear", "model.precision": "bfloat16"}
    hparams = resolve(method.hyperparameters, given)
    with pytest.raises(InfeasibleBudgetError, match="has gradients in closed form") as caught:
        method.complete(hparams, plans)
    assert caught.value.fix == "set model.precision: float32 there"
    data = blobs(60, (1, 8, 8), num_validation=20)
    values = {"model.name": ["linear"], "model.precision": ["float32", "bfloat16"]}
    mistakes = [m for m in method.preflight(values, data.info) if m.key == "model.precision"]
    assert len(mistakes) == 1
    values["model.name"] = ["linear", "tanh_cnn"]
    assert not [m for m in method.preflight(values, data.info) if m.key == "model.precision"]


def test_methods_on_features_have_no_such_switch() -> None:
    for name in ("scatternet", "scatternet_non_private", "adamix", "least_squares"):
        names = {knob.name for knob in TRAINABLES[name].hyperparameters}
        assert PRECISION.name not in names
