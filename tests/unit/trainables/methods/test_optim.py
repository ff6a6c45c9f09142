from __future__ import annotations

import numpy as np
import pytest
import torch

from dpsweep.trainables.methods.optim import build_optimizer, learning_rates


def rates(steps: int, *, schedule: str = "constant", warmup: float = 0.0) -> np.ndarray:
    hparams = {"optim.lr": 2.0, "optim.warmup_fraction": warmup, "optim.schedule": schedule}
    return learning_rates(hparams, steps)


def test_constant_without_warmup() -> None:
    assert rates(5).tolist() == [2.0] * 5


def test_warmup_rises_to_the_peak() -> None:
    assert rates(8, warmup=0.5).tolist() == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert rates(4, warmup=1.0, schedule="cosine").tolist() == [0.5, 1.0, 1.5, 2.0]


def test_cosine_falls_from_the_peak_and_never_stands_still() -> None:
    values = rates(100, schedule="cosine", warmup=0.1)
    assert values.argmax() in (9, 10)
    assert (np.diff(values[10:]) < 0).all()
    assert values[-1] > 0
    assert values[55] == pytest.approx(1.0)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 1.0])
def test_short_runs(steps: int, warmup: float) -> None:
    values = rates(steps, schedule="cosine", warmup=warmup)
    assert values.shape == (steps,)
    assert (values > 0).all()


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_optimizer_takes_its_knobs(name: str, kind: type) -> None:
    hparams = {
        "optim.name": name,
        "optim.lr": 0.3,
        "optim.momentum": 0.8,
        "optim.beta1": 0.7,
        "optim.beta2": 0.95,
        "optim.weight_decay": 0.01,
    }
    optimizer = build_optimizer([torch.nn.Parameter(torch.zeros(2))], hparams)
    assert isinstance(optimizer, kind)
    group = optimizer.param_groups[0]
    assert group["weight_decay"] == 0.01
    assert group["momentum"] == 0.8 if name == "sgd" else group["betas"] == (0.7, 0.95)
