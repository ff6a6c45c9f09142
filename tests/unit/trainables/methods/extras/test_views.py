"""Views: what they look like, and that nothing but the image itself decides which ones it has."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.methods.extras.views import Views, view_problems, views_of

INFO = DatasetInfo("x", (1, 8, 8), 10, 100, 0, 0, 0, tuple("abcdefghij"))


def images(count=64, seed=0, shape=(2, 8, 6)):
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed))


def stacked(views, x):
    return torch.stack(list(views(x)), dim=1)


def test_a_view_is_a_crop_with_a_mirrored_border_or_its_mirror_image():
    x = images(count=200)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="symmetric")
    seen = set()
    for i, own in enumerate(stacked(Views(4, "crop+flip", 2, seed=3), x)):
        crops = {
            (down, right, flip): np.flip(crop, 2) if flip else crop
            for down in range(5)
            for right in range(5)
            for crop in [padded[i, :, down : down + 8, right : right + 6]]
            for flip in (False, True)
        }
        for view in own.numpy():
            which = [key for key, crop in crops.items() if np.array_equal(crop, view)]
            assert len(which) == 1
            seen.add(which[0])
    assert len(seen) == 50  # all of them, among 800


def test_each_view_is_as_likely_as_the_others():
    x = torch.zeros(20_000, 1, 5, 5) + torch.arange(25.0).view(5, 5)
    x[:, 0, 0, 0] = torch.linspace(-100, -1, 20_000)  # in a corner that crops of 1 may lose
    middle = stacked(Views(1, "crop", 1, seed=4), x)[:, 0, 0, 2, 2]
    counts = torch.unique(middle, return_counts=True)[1]
    assert len(counts) == 9
    assert ((counts - 20_000 / 9).abs() < 5 * (20_000 / 9) ** 0.5).all()
    flips = stacked(Views(1, "flip", 4, seed=4), x)[:, 0, 0, 2, 1]
    assert abs(float((flips == 13).float().mean()) - 0.5) < 5 * 0.5 / 20_000**0.5


def test_views_depend_on_the_image_the_step_and_the_seed_alone():
    x, views = images(), Views(3, "crop+flip", 2, seed=3)
    whole = stacked(views, x)
    for order in (torch.arange(64).flip(0), torch.tensor([5]), torch.tensor([9, 5, 9])):
        assert torch.equal(stacked(views, x[order]), whole[order])
    other = x.clone()
    other[1:] = images(63, seed=9)
    assert torch.equal(stacked(views, other)[0], whole[0])
    views.step = 1
    assert not torch.equal(stacked(views, x), whole)
    views.step = 0
    assert torch.equal(stacked(views, x), whole)
    assert not torch.equal(stacked(Views(3, "crop+flip", 2, seed=4), x), whole)


def test_kinds_and_none_at_all():
    x = images()
    flips = stacked(Views(2, "flip", 4, seed=3), x)
    assert all(any(torch.equal(v, w) for w in (a, a.flip(2))) for a, b in zip(x, flips) for v in b)
    assert views_of({}, 0) is None
    assert views_of({"augment.multiplicity": 0}, 0) is None


@pytest.mark.parametrize(
    ("values", "info", "key"),
    [
        ({"augment.multiplicity": [0, 4]}, replace(INFO, input_shape=(6,)), "augment.multiplicity"),
        ({"augment.multiplicity": [4], "augment.padding": [9]}, INFO, "augment.padding"),
        ({"augment.multiplicity": [4], "augment.padding": [4, 9]}, INFO, None),
        (
            {"augment.multiplicity": [4], "augment.kinds": ["flip"], "augment.padding": [9]},
            INFO,
            None,
        ),
        ({}, replace(INFO, input_shape=(6,)), None),
    ],
)
def test_what_cannot_be_is_said_beforehand(values, info, key):
    assert [problem.key for problem in view_problems(values, info)] == ([key] if key else [])
