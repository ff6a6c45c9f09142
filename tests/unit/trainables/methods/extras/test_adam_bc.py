"""DP-AdamBC is what its paper says, and is told the noise that was really added."""

import copy
import io

import numpy as np
import pytest
import torch

from dpsweep.auditing.audit import AuditSettings, run_audit
from dpsweep.auditing.subject import built_in
from dpsweep.study.audits import CONSISTENT
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.optim import build_optimizer, tell_noise
from dpsweep.trainables.networks.torch_process import uncompiled

HPARAMS = {
    "optim.name": "adam_bc",
    "optim.lr": 0.2,
    "optim.beta1": 0.7,
    "optim.beta2": 0.9,
    "optim.weight_decay": 0.05,
    "optim.floor": 0.3,
}
CONTEXT = RunContext(study_seed=0, trial=0)
BC = {"optim__name": "adam_bc", "optim__lr": 0.01}


def started(method, data, hparams, plan):
    instance = method()
    instance.prepare(data, hparams, plan, CONTEXT)
    return instance


@pytest.mark.parametrize("stds", [[0.5] * 12, list(np.linspace(1.0, 0.2, 12))])
def test_updates_are_those_of_the_paper(stds):
    """Algorithm 1 in double precision; under a schedule phi is averaged as v is."""
    rng = np.random.default_rng(0)
    theta = rng.normal(size=40)
    parameter = torch.nn.Parameter(torch.from_numpy(theta.astype(np.float32)))
    optimizer = build_optimizer([parameter], HPARAMS)
    m, v, phi = np.zeros(40), np.zeros(40), 0.0
    is_floored = []
    for t, std in enumerate(stds, start=1):
        gradient = (rng.normal(size=40) * (std + np.arange(40) / 20)).astype(np.float32)
        m = 0.7 * m + 0.3 * gradient
        v = 0.9 * v + 0.1 * gradient.astype(float) ** 2
        phi = 0.9 * phi + 0.1 * std**2
        corrected = (v - phi) / (1 - 0.9**t)
        least = 0.3 * phi / (1 - 0.9**t)
        is_floored.append(corrected < least)
        theta = theta * (1 - 0.2 * 0.05)
        theta = theta - 0.2 * m / (1 - 0.7**t) / np.sqrt(np.maximum(corrected, least))
        parameter.grad = torch.from_numpy(gradient)
        tell_noise(optimizer, std)
        optimizer.step()
    assert 0.05 < np.mean(is_floored) < 0.95
    if len(set(stds)) == 1:
        assert phi / (1 - 0.9**12) == pytest.approx(stds[0] ** 2)  # the paper's (sigma C / B)^2
    np.testing.assert_allclose(parameter.detach().numpy(), theta, rtol=1e-4, atol=1e-5)


def test_without_noise_it_is_adamw():
    parameters = [torch.nn.Parameter(torch.ones(30)) for _ in range(2)]
    optimizers = [
        build_optimizer([parameter], {**HPARAMS, "optim.name": name})
        for parameter, name in zip(parameters, ("adam_bc", "adamw"))
    ]
    assert isinstance(optimizers[1], torch.optim.AdamW)
    for step in range(5):
        gradient = torch.linspace(1, 2, 30) * (-1) ** (step // 2)
        for parameter, optimizer in zip(parameters, optimizers):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(parameters[0], parameters[1], rtol=1e-5, atol=1e-6)


def test_its_state_goes_on(make_plan, data):
    hparams, plan = make_plan(DPSGD, **BC, train__max_steps=6)
    one = started(DPSGD, data, hparams, plan)
    one.run(0, 4)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two = started(DPSGD, data, hparams, plan)
    two.load_state_dict(torch.load(file, weights_only=True))
    gradients = [torch.randn_like(parameter) for parameter in one._parameters]
    for method in (one, two):
        for parameter, gradient in zip(method._parameters, gradients):
            parameter.grad = gradient.clone()
        tell_noise(method._optimizer, 0.1)
        method._optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one._parameters, two._parameters))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("dp_sgd", {"noise__shape": "cosine", "noise__end_ratio": 0.5, "clip__max_grad_norm": 0.3}),
        ("bitfit", {"model__name": "tanh_cnn"}),
        ("sparse", {"model__name": "tanh_cnn", "sparse__train": "cls"}),
        ("scatternet", {"features__name": "none", "heads__count": 3, "optim__lr_scaling": "none"}),
    ],
)
def test_it_is_told_the_noise_that_was_added(name, given, make_plan, make_blobs, monkeypatch):
    shape = (6,) if name in ("dp_sgd", "scatternet") else (1, 16, 16)
    data, method, drawn = make_blobs(shape=shape), TRAINABLES[name], []
    monkeypatch.setattr(DPSGD, "noise_observer", staticmethod(lambda n: drawn.append(n.clone())))
    hparams, plan = make_plan(method, **BC, **given, train__max_steps=8)
    trial = started(method, data, hparams, plan)
    for step in range(8):
        drawn.clear()
        trial.run(step, step + 1)
        noise = torch.cat([part.flatten() for part in drawn]) / trial._expected_batch
        noise_std = {group["noise_std"] for group in trial._optimizer.param_groups}
        assert len(noise_std) == 1
        # Of so many entries the deviation itself deviates by a part 1 / sqrt(2 n).
        n = len(noise)
        assert float(noise.std()) == pytest.approx(noise_std.pop(), rel=5 / (2 * n) ** 0.5)


def test_only_methods_with_noise_have_it():
    words = {
        name: next((p.choices for p in method.hyperparameters if p.name == "optim.name"), ())
        for name, method in TRAINABLES.loadable().items()
    }
    with_rule = {name for name, choices in words.items() if "adam_bc" in choices}
    without_noise = {"sparse_non_private", "bitfit_non_private"}  # it is Adam there
    assert with_rule - without_noise == {"dp_sgd", "dope_sgd", "sparse", "bitfit", "scatternet"}
    assert all("adamw" in choices for choices in words.values() if "adam" in choices)


def test_it_loads_no_compiler_and_can_be_copied():
    optimizer = build_optimizer([torch.nn.Parameter(torch.ones(2))], HPARAMS)
    assert type(optimizer) is type(copy.deepcopy(optimizer))
    assert uncompiled(torch.optim.AdamW).__name__ == "AdamW"


def test_an_audit_of_it_passes():
    subject = built_in("dp_sgd", 1.0, 3, {"model.name": "linear", "optim.name": "adam_bc"})
    record = run_audit(subject, AuditSettings(400, confidence=0.999))
    assert record.verdict == CONSISTENT
    assert record.problems == ()
