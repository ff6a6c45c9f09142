"""Every engine sums the clipped mean of an example's gradients over its views, and no other."""

import numpy as np
import pytest
import torch
from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.per_example import make_engine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.methods.extras.views import Views
from dpsweep.trainables.methods.sparse.choice import choose_parameters
from dpsweep.trainables.networks.build import build_model

INFO = DatasetInfo("x", (1, 16, 16), 10, 100, 0, 0, 0, tuple("abcdefghij"))
BOUND, COUNT, VIEWS = 0.5, 7, 3


def images(count: int = COUNT) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand((count, 1, 16, 16), generator=generator), torch.arange(count)


def gradient_of_each(model: nn.Module, views: Views, x, y, parameters) -> list[torch.Tensor]:
    """The definition: one example and one view at a time, by autograd."""
    rows = []
    for i in range(len(x)):
        mean = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        for view in views(x[i : i + 1]):
            loss = nn.functional.cross_entropy(model(view), y[i : i + 1])
            parts = torch.autograd.grad(loss, parameters)
            mean += torch.cat([part.flatten() for part in parts]).double() / VIEWS
        rows.append(mean)
    return rows


def clipped(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([row * min(1.0, BOUND / float(row.norm())) for row in rows]).sum(dim=0)


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def whole(model, views):
    return make_engine(model, 4, views=views), list(model.parameters())


def biases(model, views):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or name.startswith("9."))
    return BiasEngine(model, 4, views=views), [p for p in model.parameters() if p.requires_grad]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("standardize", [False, True], ids=["plain", "standardised"])
@pytest.mark.parametrize(
    ("name", "make"),
    [("linear", whole), ("tanh_cnn", whole), ("small_resnet", whole), ("tanh_cnn", biases)],
)
def test_engines_agree_with_a_loop_over_examples_and_views(name, make, standardize):
    if name == "linear" and standardize:
        pytest.skip("it has no convolution")
    model = build_model(name, INFO, seed=0, standardize=standardize)
    views = Views(VIEWS, "crop+flip", 2, seed=5)
    engine, parameters = make(model, views)
    x, y = images()
    rows = gradient_of_each(model, views, x, y, parameters)
    assert any(float(row.norm()) > BOUND for row in rows)
    expected = clipped(rows)
    sums = engine.clipped_gradient_sum(x, y, np.arange(COUNT), BOUND)
    assert float((flat(sums) - expected).norm() / expected.norm()) < 1e-5
    plain = gradient_of_each(model, _Same(), x, y, parameters)
    assert float((clipped(plain) - expected).norm() / expected.norm()) > 1e-2


class _Same:
    """Views that are the image itself, as often."""

    def __call__(self, x):
        return [x] * VIEWS


def test_masked_weights_see_views_too():
    model = build_model("tanh_cnn", INFO, seed=0)
    masks = choose_parameters(model, "cls+conv", 0.1, "global")
    views = Views(VIEWS, "crop+flip", 2, seed=5)
    engine = SparseEngine(model, masks, 4, views=views)
    x, y = images()
    convs = [mask.layer.weight.requires_grad_(True) for mask in masks]
    head = [p for p in model.parameters() if p.requires_grad and not any(p is c for c in convs)]
    rows = []
    for row in gradient_of_each(model, views, x, y, [*convs, *head]):
        parts = list(row.split([p.numel() for p in (*convs, *head)]))
        chosen = [part[mask.index] for part, mask in zip(parts, masks)]
        rows.append(torch.cat([*chosen, *parts[len(masks) :]]))
    for weight in convs:
        weight.requires_grad_(False)
    expected = clipped(rows)
    sums = engine.clipped_gradient_sum(x, y, np.arange(COUNT), BOUND)
    assert float((flat(sums) - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("standardize", [False, True], ids=["plain", "standardised"])
def test_one_example_less_moves_the_sum_by_its_clipped_gradient_alone(standardize):
    """Add-or-remove-one, brute force: the others keep their views whatever their places."""
    model = build_model("tanh_cnn", INFO, seed=0, standardize=standardize)
    engine = make_engine(model, 4, views=Views(VIEWS, "crop+flip", 2, seed=5))
    x, y = images()
    all_of_them = flat(engine.clipped_gradient_sum(x, y, np.arange(COUNT), BOUND))
    for out in range(COUNT):
        others = [i for i in range(COUNT) if i != out]
        # The record is gone from the data too, so that all after it have other rows.
        rest = engine.clipped_gradient_sum(x[others], y[others], np.arange(COUNT - 1), BOUND)
        assert float((all_of_them - flat(rest)).norm()) <= BOUND * (1 + 5e-5)


def test_grouped_convolutions_are_standardised_too():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.Tanh(),
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Flatten(),
        nn.Linear(1152, 10),
    )
    from dpsweep.trainables.networks.standardized import standardize_weights

    standardize_weights(model, "mine")
    engine = make_engine(model, 4)
    x, y = images()
    rows = gradient_of_each(model, _Same(), x, y, list(model.parameters()))
    sums = engine.clipped_gradient_sum(x, y, np.arange(COUNT), BOUND)
    expected = clipped(rows)
    assert float((flat(sums) - expected).norm() / expected.norm()) < 1e-5
