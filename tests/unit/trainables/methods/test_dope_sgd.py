"""DOPE-SGD: what one record moves, what is noised, and where the public gradient comes in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpsweep.foundation.errors import DataError
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.gradients.centred import CentredEngine
from dpsweep.trainables.gradients.clipping import TOLERANCE
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.dope_sgd import DOPESGD
from dpsweep.trainables.methods.dp_sgd import DPSGD

MakeBlobs = Callable[..., SweepData]
MakePlan = Callable[..., tuple[dict[str, object], Plan]]
SHAPE = (1, 8, 8)


@pytest.fixture
def make_data(make_blobs: MakeBlobs) -> MakeBlobs:
    """Return records with 20 public ones beside them."""

    def make(num_private: int, shape: tuple[int, ...] = SHAPE) -> SweepData:
        data = make_blobs(num_private=num_private, shape=shape)
        inputs, labels = make_blobs(num_private=20, shape=shape, seed=9).parts["private"]
        parts = {**data.parts, "public": (inputs, labels)}
        return replace(data, info=replace(data.info, num_public=20), parts=parts)

    return make


def prepared(
    make_plan: MakePlan, data: SweepData, plan: Plan | None = None, **given: object
) -> DOPESGD:
    num = data.info.num_private
    options = {"model__name": "tanh_cnn", "batch__expected": num, "train__max_steps": 3}
    hparams, calibrated = make_plan(DOPESGD, num_private=num, **{**options, **given})
    method = DOPESGD()
    method.prepare(data, hparams, calibrated if plan is None else plan, RunContext(3, 1))
    return method


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@pytest.mark.parametrize("bound", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("model", ["linear", "tanh_cnn"])
def test_a_record_moves_the_sum_by_the_bound_at_most(
    make_plan: MakePlan, make_data: MakeBlobs, model: str, bound: float
) -> None:
    """Every neighbour by removal, of records near and far from the public ones."""
    data = make_data(12)
    inputs, labels = (part.copy() for part in data.parts["private"])
    inputs[:4] *= 100
    inputs[4] = 0
    data = replace(data, parts={**data.parts, "private": (inputs, labels)})
    method = prepared(make_plan, data, model__name=model)
    method._begin()
    method._reach(0)
    rows = np.arange(12)

    def total(kept: np.ndarray) -> torch.Tensor:
        sums = method._engine.clipped_gradient_sum(method._inputs, method._labels, kept, bound)
        assert all(part.dtype == torch.float64 for part in sums)
        return flat(sums)

    whole = total(rows)
    moves = [float((whole - total(np.delete(rows, row))).norm()) for row in rows]
    assert max(moves) <= bound * (1 + TOLERANCE)
    assert max(moves) > 0.99 * bound  # the bound is reached, or this test says nothing
    assert not total(rows[:0]).any()  # rows of zeros that fill a chunk add nothing


def test_differences_are_clipped_and_not_gradients(
    make_plan: MakePlan, make_data: MakeBlobs
) -> None:
    """A record whose gradient is the public one adds nothing, however small the bound is."""
    data = make_data(5)
    one = tuple(part[:1] for part in data.parts["private"])
    info = replace(data.info, num_public=1)
    data = replace(data, info=info, parts={**data.parts, "public": one})
    method = prepared(make_plan, data)
    method._begin()
    method._reach(0)
    centre = flat(method._public_gradient(0))
    sums = method._engine.clipped_gradient_sum(
        method._inputs, method._labels, np.arange(1), 0.5 * float(centre.norm())
    )
    assert float(flat(sums).norm()) < 1e-5 * float(centre.norm())


@pytest.mark.parametrize("model", ["linear", "tanh_cnn"])
def test_without_noise_and_clipping_all_records_are_plain_descent(
    make_plan: MakePlan, make_data: MakeBlobs, model: str
) -> None:
    """The public gradient cancels where every record is in the batch."""
    data = make_data(40)
    silent = Plan((EventRun(PoissonGaussian(0.0, 1.0), 4),))
    given = {"model__name": model, "clip__max_grad_norm": 1e6, "optim__lr": 0.3}
    own = prepared(make_plan, data, silent, **given)
    own.run(0, 4)
    hparams, _ = make_plan(DPSGD, num_private=40, batch__expected=40, **given)
    other = DPSGD()
    other.prepare(data, hparams, silent, RunContext(3, 1))
    other.run(0, 4)
    one, two = own.state_dict()["model"], other.state_dict()["model"]
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=1e-4, atol=1e-5)


def test_an_empty_batch_takes_the_public_step(make_plan: MakePlan, make_data: MakeBlobs) -> None:
    """With weight 1: not with that of the records that were sampled, which is private."""
    data = make_data(40)
    silent = Plan((EventRun(PoissonGaussian(0.0, 1e-12), 1),))
    method = prepared(make_plan, data, silent)
    method._begin()
    step = flat(method._gradient(0))
    torch.testing.assert_close(step, flat(method._public_gradient(0)))


def test_noise_is_that_of_the_plan(
    make_plan: MakePlan, make_data: MakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(DOPESGD, "noise_observer", staticmethod(lambda n: drawn.append(n.clone())))
    plan = Plan((EventRun(PoissonGaussian(3.0, 0.5), 2),))
    method = prepared(make_plan, make_data(40), plan, clip__max_grad_norm=0.2)
    method.run(0, 2)
    noise = torch.cat([part.reshape(-1) for part in drawn])
    assert float(noise.std()) == pytest.approx(0.6, rel=0.05)
    assert len(noise) == 2 * sum(p.numel() for p in method._parameters)


def test_public_batches_are_public_and_differ(make_plan: MakePlan, make_data: MakeBlobs) -> None:
    data = make_data(40)
    one = prepared(make_plan, data, public__batch=3)
    private = tuple(part.copy() for part in data.parts["private"])
    private[0][:] = 7.0
    other = prepared(
        make_plan, replace(data, parts={**data.parts, "private": private}), public__batch=3
    )
    first = [flat(method._public_gradient(0)) for method in (one, other)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], flat(one._public_gradient(1)))


def test_without_public_records_it_is_refused(make_plan: MakePlan, make_data: MakeBlobs) -> None:
    data = make_data(40)
    info = replace(data.info, num_public=0)
    problems = DOPESGD.preflight({"model.name": ["tanh_cnn"]}, info)
    assert [problem.key for problem in problems] == ["method"]
    none = tuple(part[:0] for part in data.parts["public"])
    with pytest.raises(DataError, match="needs public records"):
        prepared(make_plan, replace(data, info=info, parts={**data.parts, "public": none}))


@pytest.mark.parametrize("labels", ["bought", "hidden"])
def test_labels_that_are_not_for_it_are_refused(make_data: MakeBlobs, labels: str) -> None:
    """``bought`` says that active learning alone reads them, and ``hidden`` ones are all -1."""
    info = replace(make_data(40).info, public_labels=labels)
    (problem,) = DOPESGD.preflight({"model.name": ["tanh_cnn"]}, info)
    assert problem.key == "method"
    assert f"labels of all public records, which are {labels}" in problem.what


def test_large_weights_are_held_by_example(make_plan: MakePlan, make_data: MakeBlobs) -> None:
    """Products of layers become rows, of which the public gradient is taken away."""
    data = make_data(8, (1, 16, 16))
    method = prepared(make_plan, data, model__name="small_resnet")
    assert isinstance(method._engine, CentredEngine)
    method._begin()
    rows, bound = np.arange(8), 1e6
    args = (method._inputs, method._labels, rows, bound)
    method._engine.centre = None
    plain = flat(method._engine.clipped_gradient_sum(*args))
    method._reach(0)
    centre = flat(list(method._engine.centre or ()))
    centred = flat(method._engine.clipped_gradient_sum(*args))
    torch.testing.assert_close(centred, plain - 8 * centre.double(), rtol=1e-3, atol=1e-4)


def test_polluted_records_are_refused(make_data: MakeBlobs) -> None:
    data = make_data(10)
    DOPESGD.check_records({}, data)
    with pytest.raises(DataError, match="are polluted"):
        DOPESGD.check_records({}, replace(data, polluted=np.zeros(20, bool)))


def test_the_bound_follows_a_quantile_of_the_differences(
    make_plan: MakePlan, make_data: MakeBlobs
) -> None:
    """One record more or less moves sums and count together by the joint bound, and no further."""
    method = prepared(
        make_plan,
        make_data(12),
        clip__rule="quantile",
        clip__count_noise=5.0,
        clip__max_grad_norm=0.5,
    )
    method._begin()
    method._reach(0)
    engine, (bound, joint) = method._engine_at(0), method._bound_at(0)
    rows = np.arange(12)

    def total(kept: np.ndarray) -> torch.Tensor:
        return flat(
            engine.clipped_gradient_sum(method._inputs, method._labels, kept, bound)
        ).double()

    whole = total(rows)
    moves = [float((whole - total(np.delete(rows, row))).norm()) for row in rows]
    assert max(moves) <= bound * joint * (1 + TOLERANCE)
    assert joint > 1.0
    assert float(whole[-1]) != 0.0  # somebody counts
    before = method._quantile.bound
    method.run(0, 1)
    assert method._quantile.bound != before


def test_differences_are_those_of_the_mean_over_views(
    make_plan: MakePlan, make_data: MakeBlobs
) -> None:
    data = make_data(6)
    plain, seen = (
        prepared(make_plan, data, augment__multiplicity=number, augment__padding=2)
        for number in (0, 2)
    )
    sums = []
    for method in (plain, seen):
        method._begin()
        method._reach(0)
        sums.append(
            flat(
                method._engine.clipped_gradient_sum(
                    method._inputs, method._labels, np.arange(6), 1e6
                )
            )
        )
    assert seen._views is not None
    assert not torch.allclose(sums[0], sums[1])
