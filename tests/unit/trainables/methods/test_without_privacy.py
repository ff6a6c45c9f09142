"""Twins without privacy: they train what their methods train, by plain gradients of batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dpsweep.privacy.events import EventRun, NonPrivate, Plan, PoissonGaussian
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.method import Method, RunContext

MakeBlobs = Callable[..., SweepData]
MakePlan = Callable[..., tuple[dict[str, object], Plan]]
SHAPE = (1, 8, 8)


def trained(
    make_plan: MakePlan, make_blobs: MakeBlobs, name: str, steps: int = 5, **given: object
) -> Method:
    method = TRAINABLES[name]
    options = {"model__name": "tanh_cnn", "batch__expected": 30, "train__max_steps": steps}
    hparams, plan = make_plan(method, num_private=60, **{**options, **given})
    instance = method()
    instance.prepare(make_blobs(num_private=60, shape=SHAPE), hparams, plan, RunContext(3, 1))
    instance.run(0, len(plan))
    return instance


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("bitfit_non_private", {"bitfit__variant": "full"}),
        ("sparse_non_private", {"sparse__train": "full"}),
    ],
)
def test_where_all_trains_it_is_training_without_privacy(
    make_plan: MakePlan, make_blobs: MakeBlobs, name: str, whole: dict[str, object]
) -> None:
    common = {"optim__name": "sgd", "optim__lr": 0.5, "optim__weight_decay": 0.0}
    own = trained(make_plan, make_blobs, name, **whole, **common).state_dict()["model"]
    plain = trained(make_plan, make_blobs, "non_private", **common).state_dict()["model"]
    assert own.keys() == plain.keys()
    for key, value in own.items():
        torch.testing.assert_close(value, plain[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "part", "moved"),
    [
        ("bitfit_non_private", {"bitfit__variant": "bitfit"}, "bias"),
        ("sparse_non_private", {"sparse__train": "cls"}, ""),
    ],
)
def test_only_what_the_method_trains_moves(
    make_plan: MakePlan, make_blobs: MakeBlobs, name: str, part: dict[str, object], moved: str
) -> None:
    before = trained(make_plan, make_blobs, name, optim__lr=1e-12, **part).state_dict()["model"]
    after = trained(make_plan, make_blobs, name, optim__lr=0.5, **part).state_dict()["model"]
    *body, _, _ = before
    assert any(not torch.equal(before[key], after[key]) for key in before)
    for key in body:
        is_still = torch.allclose(before[key], after[key], atol=1e-7)
        assert is_still or (moved and key.endswith(moved))


@pytest.mark.parametrize("name", ["bitfit_non_private", "sparse_non_private"])
def test_it_claims_nothing_and_runs_no_private_plan(
    make_plan: MakePlan, make_blobs: MakeBlobs, name: str
) -> None:
    method = TRAINABLES[name]
    hparams, plan = make_plan(method, num_private=60, train__max_steps=4)
    assert not method.is_private
    assert plan == Plan((EventRun(NonPrivate(), 4),))
    assert not [knob for knob in hparams if knob.startswith(("clip.", "noise."))]
    private = Plan((EventRun(PoissonGaussian(1.0, 0.5), 4),))
    with pytest.raises(ValueError, match="cannot execute"):
        method().prepare(
            make_blobs(num_private=60, shape=SHAPE), hparams, private, RunContext(0, 0)
        )
