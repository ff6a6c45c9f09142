"""Closed forms against the slow, obvious computation; public subspaces against their definition."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.methods.adamix import few_shot, noisy_gd
from dpsweep.trainables.methods.adamix.few_shot import draw_shots, fit_few_shot
from dpsweep.trainables.methods.adamix.noisy_gd import HeadRecords, PublicSubspace, percentile_clip

CLASSES, FEATURES = 4, 30


def records(count: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator).to(dtype)
    return x, torch.arange(count) % CLASSES, torch.randn(CLASSES, FEATURES, generator=generator)


def per_example(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Autograd, one record after another: (records, classes, features), float64."""
    found = []
    for one, label in zip(x.double(), y):
        w = weight.double().requires_grad_()
        loss = torch.nn.functional.cross_entropy((w @ one)[None], label[None])
        found.append(torch.autograd.grad(loss, w)[0])
    return torch.stack(found) if found else torch.zeros(0, *weight.shape, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("count", [0, 1, 37])
def test_sums_and_norms_equal_autograd(
    monkeypatch: pytest.MonkeyPatch, count: int, dtype: torch.dtype
) -> None:
    """Several blocks, clipped and not; half precision is widened before anything is computed."""
    monkeypatch.setattr(noisy_gd, "CPU_BLOCK", 10)
    x, y, weight = records(count, dtype=dtype)
    engine = HeadRecords(x, y, device="cpu")
    gradients = per_example(x, y, weight)
    norms = gradients.flatten(1).norm(dim=1)
    for clip in (None, 3.0):
        factors = torch.ones(count) if clip is None else (clip / norms).clamp(max=1)
        assert clip is None or count < 2 or bool((factors < 1).any() & (factors == 1).any())
        total, found = engine.gradient_sum(weight, clip)
        expected = (factors[:, None, None].double() * gradients).sum(dim=0)
        torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.double(), norms, rtol=1e-5, atol=1e-5)


def test_losses_equal_torch() -> None:
    x, y, weight = records(20)
    expected = torch.nn.functional.cross_entropy(x @ weight.T, y, reduction="none")
    engine = HeadRecords(x, y, device="cpu")
    torch.testing.assert_close(engine.losses(weight), expected)
    assert bool(engine.losses(weight * float("nan")).isposinf().all())


def test_a_removed_record_changes_the_clipped_sum_by_at_most_the_clip() -> None:
    """For every record and small and large clips; the bound is tight for the records clipped."""
    x, y, weight = records(40)
    x[3] *= 1e4
    whole = HeadRecords(x, y, device="cpu")
    for clip in (0.01, 1.0, 5.0):
        total, norms = whole.gradient_sum(weight, clip)
        changes = []
        for row in range(40):
            keep = torch.arange(40) != row
            rest = HeadRecords(x[keep], y[keep], device="cpu").gradient_sum(weight, clip)[0]
            changes.append(float((total - rest).norm()))
        assert max(changes) <= clip * (1 + 1e-4)
        assert changes[3] == pytest.approx(clip, rel=1e-3)
        for change, norm in zip(changes, norms.tolist()):
            assert change == pytest.approx(min(norm, clip), rel=1e-2, abs=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_what_is_not_finite_adds_zero(value: float) -> None:
    x, y, weight = records(12)
    rest, _ = HeadRecords(x[1:], y[1:], device="cpu").gradient_sum(weight, 1.0)
    x[0, 2] = value
    engine = HeadRecords(x, y, device="cpu")
    total, norms = engine.gradient_sum(weight, 1.0)
    torch.testing.assert_close(total, rest)
    assert norms[0] == 0
    assert bool(x[0, 2].isnan()) is (value != value)  # the records themselves stay as they are
    broken = weight.clone()
    broken[0, 0] = float("nan")
    total, norms = engine.gradient_sum(broken, 1.0)
    assert not total.any()
    assert not norms.any()


def test_percentile_is_capped_and_never_zero() -> None:
    norms = torch.arange(101.0)
    assert percentile_clip(norms, 90.0) == pytest.approx(90.0)
    assert percentile_clip(norms, 90.0, cap=7.0) == 7.0
    assert percentile_clip(norms, 90.0, cap=95.0) == pytest.approx(90.0)
    assert percentile_clip(torch.zeros(3), 90.0) == noisy_gd.LEAST_CLIP


def projection(subspace: PublicSubspace, gradient: torch.Tensor, features: int) -> torch.Tensor:
    """The matrix that a gradient's rows are multiplied with."""
    rows = torch.eye(features).split(len(gradient))
    padded = [torch.nn.functional.pad(r, (0, 0, 0, len(gradient) - len(r))) for r in rows]
    return torch.cat([subspace.project(p, gradient)[: len(r)] for p, r in zip(padded, rows)])


@pytest.mark.parametrize("fraction", [0.97, 0.5, 4 / 30, 3 / 30, 1 / 30, 0.001])
def test_the_subspace_is_the_declared_one(fraction: float) -> None:
    """P is a symmetric projection of the declared rank that keeps what the full SVD would."""
    x, y, weight = records(25)
    public = HeadRecords(x, y, device="cpu").gradient_sum(weight)[0].float()
    left = torch.linalg.svd(public.T.double()).U.float()
    subspace = PublicSubspace(FEATURES, fraction, seed=1, device="cpu")
    assert subspace.rank == max(1, round(fraction * FEATURES))
    matrix = projection(subspace, public, FEATURES)
    torch.testing.assert_close(matrix, matrix.T, rtol=0, atol=1e-5)
    torch.testing.assert_close(matrix @ matrix, matrix, rtol=0, atol=1e-5)
    assert float(matrix.trace()) == pytest.approx(subspace.rank, abs=1e-4)
    # The gradients of a softmax sum to zero over the classes: CLASSES - 1 directions.
    kept = left[:, : min(subspace.rank, CLASSES - 1)]
    torch.testing.assert_close(matrix @ kept, kept, rtol=0, atol=1e-5)
    if subspace.rank >= CLASSES - 1:
        torch.testing.assert_close(public @ matrix, public, rtol=1e-4, atol=1e-4)


def test_the_subspace_follows_the_gradient_whatever_its_size() -> None:
    """Tiny gradients of a solved public set are kept as exactly as large ones; zero is harmless."""
    subspace = PublicSubspace(FEATURES, 0.5, seed=1, device="cpu")
    _, _, other = records(0, seed=5)
    for scale in (1e-12, 1.0, 1e6):
        for seed in (1, 2):
            x, y, weight = records(8, seed=seed)
            public = scale * HeadRecords(x, y, device="cpu").gradient_sum(weight)[0]
            kept = subspace.project(public, public)
            torch.testing.assert_close(kept, public, rtol=1e-4, atol=1e-5 * float(public.norm()))
            assert 0.2 < float(subspace.project(other, public).norm() / other.norm()) < 0.95
    zero = torch.zeros(CLASSES, FEATURES)
    assert bool(subspace.project(other, zero).isfinite().all())
    assert torch.equal(subspace.project(other, zero * float("nan")), other)
    whole = PublicSubspace(FEATURES, 1.0, seed=1, device="cpu")
    assert torch.equal(whole.project(other, zero), other)


def test_projected_noise_is_noise_within_the_subspace() -> None:
    """Its covariance is s^2 P: drawn in full and projected, or drawn within and lifted back."""
    x, y, weight = records(25)
    public, _ = HeadRecords(x, y, device="cpu").gradient_sum(weight)
    subspace = PublicSubspace(FEATURES, 0.5, seed=1, device="cpu")
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(10_000, CLASSES, FEATURES, generator=generator) * 3.0
    basis = projection(subspace, public, FEATURES)
    drawn = torch.stack([subspace.project(z, public) for z in noise[:1500]]).flatten(0, 1)
    torch.testing.assert_close(drawn, noise[:1500].flatten(0, 1) @ basis, rtol=0, atol=1e-4)
    covariance = drawn.T @ drawn / len(drawn)
    assert float((covariance / 9.0 - basis).abs().max()) < 0.08


NAMES = tuple("abcd")


def test_shots_are_the_same_for_everybody_and_nested() -> None:
    labels = torch.arange(80).numpy() % CLASSES
    many = draw_shots(labels, NAMES, shots=5, draw=0, study_seed=0)
    assert len(many) == len(set(many)) == 20
    assert sorted(labels[many]) == sorted([0, 1, 2, 3] * 5)
    assert draw_shots(labels, NAMES, shots=5, draw=0, study_seed=0).tolist() == many.tolist()
    assert set(draw_shots(labels, NAMES, shots=2, draw=0, study_seed=0)) < set(many)
    assert draw_shots(labels, NAMES, shots=5, draw=1, study_seed=0).tolist() != many.tolist()
    assert draw_shots(labels, NAMES, shots=5, draw=0, study_seed=1).tolist() != many.tolist()


def test_a_class_without_enough_public_records_is_named() -> None:
    labels = torch.arange(80).numpy() % 3
    with pytest.raises(DataError, match=r"class 'd' has 0 public records.*shots=5") as caught:
        draw_shots(labels, NAMES, shots=5, draw=0, study_seed=0)
    assert "data.public.fraction" in str(caught.value.fix)


def test_the_few_shot_solution_is_gradient_descent() -> None:
    x, y, start = records(12)
    weight = start.clone().requires_grad_()
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(x @ weight.T, y)
        (gradient,) = torch.autograd.grad(loss, weight)
        weight = (weight - 0.1 * gradient).detach().requires_grad_()
    found = fit_few_shot(HeadRecords(x, y, device="cpu"), start, epochs=30, lr=0.1)
    torch.testing.assert_close(found, weight.detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(start, records(12)[2])


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_the_best_rate_explains_shots_that_are_left_out(scale: float) -> None:
    """Against a loop over all that is left out; smaller features want a larger rate."""
    x, y, _ = records(24)
    x = scale * (x + 2 * torch.eye(CLASSES, FEATURES)[y])
    start = torch.zeros(CLASSES, FEATURES)
    losses = {}
    for rate in few_shot.RATES:
        total = 0.0
        for out in range(6):
            left = torch.arange(24) // CLASSES == out
            others = HeadRecords(x[~left], y[~left], device="cpu")
            weight = fit_few_shot(others, start, epochs=20, lr=rate)
            total += float(torch.nn.functional.cross_entropy(x[left] @ weight.T, y[left]))
        losses[rate] = total
    best = min(losses, key=lambda rate: losses[rate])
    assert few_shot.best_rate(HeadRecords(x, y, device="cpu"), start, epochs=20) == best
    assert (best == few_shot.RATES[0]) is (scale == 1.0)
    assert torch.equal(start, torch.zeros(CLASSES, FEATURES))


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in given:
                    self.numel = max(self.numel, tensor.numel())
        return result


def test_nothing_is_as_large_as_the_gradients_of_the_records() -> None:
    """Neither records x classes x features nor features x features: less than the records."""
    count, features, classes = 3000, 600, 20
    x, y = torch.randn(count, features), torch.arange(count) % classes
    private, public = HeadRecords(x, y, device="cpu"), HeadRecords(x[:40], y[:40], device="cpu")
    subspace = PublicSubspace(features, 0.97, seed=0, device="cpu")
    weight = torch.zeros(classes, features)
    with Largest() as largest:
        gradient, _ = public.gradient_sum(weight)
        subspace.project(private.gradient_sum(weight, 0.1)[0], gradient)
    assert largest.numel < features * features
    assert largest.numel <= noisy_gd.CPU_BLOCK * max(features, classes)
    with Largest() as largest:
        per_example(x[:40], y[:40], weight)
    assert largest.numel == 40 * classes * features


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu() -> None:
    x, y, weight = records(100)
    total, norms = HeadRecords(x, y, device="cpu").gradient_sum(weight, 3.0)
    for place in (x, x.cuda()):
        found, found_norms = HeadRecords(place, y, device="cuda").gradient_sum(weight.cuda(), 3.0)
        torch.testing.assert_close(found.cpu(), total, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found_norms.cpu(), norms, rtol=1e-3, atol=1e-3)
