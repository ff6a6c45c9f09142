from __future__ import annotations

import numpy as np
import pytest
import torch

from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.privacy.events.multiset import multiset, plan_curve
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.methods.scatternet.normalize import (
    NORMALIZE_HYPERPARAMETERS,
    build_front,
    clipped_channel_sum,
    normalization_of,
    set_statistic,
    statistics_plan,
)


def hparams_of(**given: object) -> dict[str, object]:
    named = {f"normalize.{key}": value for key, value in given.items()}
    return {"features.name": "none", **resolve(NORMALIZE_HYPERPARAMETERS, named)}


def test_the_statistics_cost_what_the_paper_says() -> None:
    """Claim B.5: (alpha, alpha / sigma_norm^2)-RDP; tight: one Gaussian of mu = sqrt(2) / 8."""
    plan = statistics_plan(hparams_of(kind="private_data", noise_multiplier=8.0))
    assert plan == Plan((EventRun(Gaussian(8.0), 2, phase="normalize"),))
    orders = np.array(rdp.ORDERS)
    assert plan_curve(multiset(plan)) == pytest.approx(orders / 64, rel=2e-8)  # rounded up
    epsilon = epsilon_of(plan, delta=1e-5, accountant="pld")
    assert epsilon == pytest.approx(0.633978, abs=1e-6)
    assert epsilon_of(plan, delta=1e-5, accountant="rdp") > epsilon


@pytest.mark.parametrize(
    ("kind", "features", "expected"),
    [
        (None, "scatternet", "group"),
        (None, "timm/resnet18", "none"),
        (None, "none", "none"),
        ("private_data", "scatternet", "private_data"),
        ("none", "scatternet", "none"),
    ],
)
def test_kind(kind: str | None, features: str, expected: str) -> None:
    hparams = {**hparams_of(kind=kind), "features.name": features}
    assert normalization_of(hparams) == expected
    assert len(statistics_plan(hparams)) == (2 if expected == "private_data" else 0)


@pytest.mark.parametrize("shape", [(5, 3, 4), (5,)])
@pytest.mark.parametrize("power", [1, 2])
def test_sum_is_algorithm_2(shape: tuple[int, ...], power: int) -> None:
    x = torch.randn(1300, *shape, generator=torch.Generator().manual_seed(0))
    rows = np.arange(3, 1290)
    norms, expected = [], torch.zeros(5, dtype=torch.float64)
    for row in rows:  # the definition: one record at a time
        means = x[row].double().reshape(5, -1).pow(power).mean(dim=1)
        norms.append(float(means.norm()))
    bound = float(np.median(norms))
    for row in rows:
        means = x[row].double().reshape(5, -1).pow(power).mean(dim=1)
        expected += means * min(1.0, bound / float(means.norm()))
    actual = clipped_channel_sum(x, rows, power=power, max_norm=bound, device="cpu")
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [1e30, 65504.0, -3.0, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_record_moves_the_sum_by_at_most_the_bound(value: float, dtype: torch.dtype) -> None:
    x = torch.randn(20, 6, 2, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[7] = torch.tensor(value).to(dtype)
    for power, bound in ((1, 0.3), (2, 0.15)):
        sums = [
            clipped_channel_sum(x, rows, power=power, max_norm=bound, device="cpu")
            for rows in (np.arange(20), np.delete(np.arange(20), 7))
        ]
        moved = float((sums[0] - sums[1]).norm())
        assert moved <= bound * (1 + 1e-12)
        is_finite = bool(torch.isfinite(x[7].double().pow(power)).all())
        assert moved == pytest.approx(bound if is_finite else 0.0)


@pytest.mark.parametrize("shape", [(4, 3, 3), (4,)])
def test_front_is_the_normalisation(shape: tuple[int, ...]) -> None:
    front = build_front(shape)
    x = torch.randn(50, *shape, generator=torch.Generator().manual_seed(0)) * 3 + 1
    assert torch.equal(front(x), x)
    flat = x.reshape(50, 4, -1).double()
    mean, square = flat.mean(dim=(0, 2)), flat.square().mean(dim=(0, 2))
    square[3] = mean[3] ** 2 - 1.0  # noise can do this
    set_statistic(front, 0, mean, min_variance=1e-2)
    set_statistic(front, 1, square, min_variance=1e-2)
    variance = (square - mean.square()).clamp(min=1e-2)
    expected = (flat - mean[:, None]) / variance.sqrt()[:, None]
    torch.testing.assert_close(front(x).double(), expected.reshape(x.shape), rtol=1e-4, atol=1e-4)
    assert not list(front.parameters())
    assert not front.training
