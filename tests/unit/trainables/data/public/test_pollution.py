"""Pollution: which records it is made of, where it lies among the public ones, who refuses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.datasets import load_digits

from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.spec.data.public import Pollution
from dpsweep.spec.study import DataSpec, SweepSpec
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.public.pollution import bilinear, digit_images, noise_images, polluted

MakeSpec = Callable[..., DataSpec]
COUNT = 60


def npz(path: Path, *, channels: int = 1, low: float = -2.0, high: float = 3.0) -> dict[str, Any]:
    """Images whose first pixel says which record they are, the others between low and high."""
    rng = np.random.default_rng(0)
    x = rng.uniform(low, high, (COUNT, channels, 12, 16)).astype(np.float32)
    x[:, :, 0, 0] = np.linspace(low, high, COUNT, dtype=np.float32)[:, None]
    np.savez(path, x_train=x, y_train=np.arange(COUNT) % 3)
    return {"dataset": "npz", "path": str(path), "num_records": COUNT, "num_classes": 3}


def public(records: int | None = None, **more: Any) -> dict[str, Any]:
    pollution = {} if records is None else {"pollution": {"records": records, **more}}
    return {"fraction": 0.4, **pollution}


def test_the_public_part_is_mixed_and_the_others_stay(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = npz(tmp_path / "d.npz")
    clean = load_dataset(make_spec(**given, public=public()))
    spec = make_spec(**given, public=public(31))
    data = load_dataset(spec)
    assert clean.polluted is None
    assert clean.info.num_polluted == 0
    assert data.info == describe_dataset(spec)
    assert (data.info.num_public, data.info.num_polluted) == (24 + 31, 31)
    for part in ("private", "validation", "test"):
        for before, after in zip(clean.parts[part], data.parts[part]):
            assert np.array_equal(before, after)
    inputs, labels = data.parts["public"]
    is_polluted = data.polluted
    assert is_polluted is not None
    assert (is_polluted.dtype, is_polluted.shape, is_polluted.sum()) == (bool, (55,), 31)
    assert (inputs.shape, inputs.dtype, labels.dtype) == ((55, 1, 12, 16), np.float32, np.int64)
    assert inputs.flags.c_contiguous
    # The own records with their labels, in another order, at random places.
    own, said = inputs[~is_polluted], labels[~is_polluted]
    order = np.argsort(own[:, 0, 0, 0])
    assert np.array_equal(own[order], clean.parts["public"][0])
    assert np.array_equal(said[order], clean.parts["public"][1])
    assert order.tolist() != sorted(order.tolist())
    assert 5 < is_polluted[:27].sum() < 25


def test_the_mixture_is_the_same_every_time_and_the_hash_covers_it(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    given = npz(tmp_path / "d.npz")
    np.random.seed(1)
    one = load_dataset(make_spec(**given, public=public(20)))
    np.random.seed(2)
    again = load_dataset(make_spec(**given, public=public(20)))
    assert np.array_equal(one.parts["public"][0], again.parts["public"][0])
    assert np.array_equal(one.parts["public"][1], again.parts["public"][1])
    assert np.array_equal(one.polluted, again.polluted)
    assert (one.content_hash, one.hashes) == (again.content_hash, again.hashes)
    others = [{}, {"records": 21}, {"records": 20, "kinds": ["noise"]}]
    found = [
        load_dataset(make_spec(**given, public=public(more.pop("records", None), **more)))
        for more in others
    ]
    hashes = {data.content_hash for data in [one, *found]}
    assert len(hashes) == len({data.hashes["public"] for data in [one, *found]}) == 4
    assert len({data.hashes["private"] for data in [one, *found]}) == 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("kinds", "sizes"), [(["digits", "noise"], (8, 7)), (["noise", "digits"], (8, 7))]
)
def test_kinds_in_equal_parts_in_the_range_of_the_public_records(
    kinds: list[str], sizes: tuple[int, int], channels: int
) -> None:
    rng = np.random.default_rng(0)
    own = rng.uniform(-2, 3, (40, channels, 12, 16)).astype(np.float32), np.arange(40) % 3
    pollution = Pollution(records=15, kinds=kinds)
    (inputs, labels), is_polluted = polluted(own, pollution, 3)
    low, high = own[0].min(), own[0].max()
    make = {"digits": digit_images, "noise": noise_images}
    expected = [
        (low + (high - low) * image, label)
        for kind, size in zip(kinds, sizes)
        for image, label in zip(*make[kind](size, (12, 16), 3))
    ]
    rest = list(zip(inputs[is_polluted], labels[is_polluted]))
    assert len(rest) == len(expected) == 15
    for image, label in expected:
        near = [
            index
            for index, (found, said) in enumerate(rest)
            if said == label and np.allclose(found, image[None], atol=1e-5)
        ]
        assert len(near) == 1  # in every channel, with its label
        rest.pop(near[0])
    assert inputs[is_polluted].min() >= low
    assert inputs[is_polluted].max() <= high


def nearest(images: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the known images each one is, and by how much its worst pixel differs."""
    flat = [torch.from_numpy(a.reshape(len(a), -1).copy()) for a in (images, known)]
    gaps, rows = torch.cdist(*flat, p=torch.inf).min(dim=1)
    return rows.numpy(), gaps.numpy()


@pytest.mark.slow
def test_digits_are_those_of_scikit_learn_and_repeat_shifted() -> None:
    digits = load_digits()
    small = torch.from_numpy(digits.images / 16).float()[:, None]
    large = torch.nn.functional.interpolate(small, (16, 12), mode="bilinear")[:, 0].numpy()
    num = len(large)
    images, labels = digit_images(2 * num + 40, (16, 12), 7)
    assert (images.dtype, labels.dtype) == (np.float32, np.int64)
    assert (images.shape, labels.shape) == ((2 * num + 40, 16, 12), (2 * num + 40,))
    assert 0 <= images.min() <= images.max() <= 1

    # The first pass: every digit once, unshifted, with its own label.
    rows, gaps = nearest(images[:num], large)
    assert gaps.max() < 1e-5
    assert sorted(rows) == list(range(num))
    assert rows.tolist() != sorted(rows)
    assert np.array_equal(labels[:num], digits.target[rows] % 7)

    # The second one: every digit once more, moved by up to 2 pixels and 1, zeros moving in.
    padded = np.pad(large, ((0, 0), (2, 2), (1, 1)))
    shifts = [(down, right) for down in range(-2, 3) for right in range(-1, 2)]
    some = 300
    all_gaps, all_rows = np.empty((2, len(shifts), some))
    for index, (down, right) in enumerate(shifts):
        moved = padded[:, 2 - down : 18 - down, 1 - right : 13 - right]
        all_rows[index], all_gaps[index] = nearest(images[num : num + some], moved)
    best = all_gaps.argmin(axis=0)
    rows = all_rows[best, np.arange(some)].astype(np.int64)
    assert all_gaps.min(axis=0).max() < 1e-5
    assert np.array_equal(labels[num : num + some], digits.target[rows] % 7)
    assert len(set(rows)) > 0.99 * some  # a shift out of the picture makes some alike
    assert np.bincount(best, minlength=len(shifts)).min() > some / 60


@pytest.mark.parametrize("size", [(28, 28), (32, 20), (8, 8), (5, 3), (1, 1)])
def test_bilinear_equals_torch(size: tuple[int, int]) -> None:
    images = np.random.default_rng(0).random((6, 8, 8), dtype=np.float32)
    tensor = torch.from_numpy(images)[:, None]
    expected = torch.nn.functional.interpolate(tensor, size, mode="bilinear", align_corners=False)
    assert np.allclose(bilinear(images, size), expected[:, 0].numpy(), atol=1e-6)
    assert bilinear(images, size).dtype == np.float32


def test_noise_is_uniform_and_its_labels_too() -> None:
    from scipy import stats

    images, labels = noise_images(300, (10, 10), 4)
    assert images.dtype == np.float32
    assert stats.kstest(images.ravel(), "uniform").pvalue > 1e-4  # a fixed seed: always the same
    assert stats.kstest(images.ravel(), "uniform", args=(0, 0.9)).pvalue < 1e-9
    counts = np.bincount(labels)
    assert len(counts) == 4
    assert counts.min() > 45


def test_few_wanted_and_none() -> None:
    for make in (digit_images, noise_images):
        images, labels = make(0, (9, 9), 3)
        assert (images.shape, labels.shape, labels.dtype) == ((0, 9, 9), (0,), np.int64)
    own = np.zeros((0, 3, 4, 4), np.float32), np.zeros(0, np.int64)
    (inputs, labels), is_polluted = polluted(own, Pollution(records=1), 3)
    assert (inputs.shape, labels.shape, is_polluted.tolist()) == ((1, 3, 4, 4), (1,), [True])


def test_polluted_records_stand_in_for_no_private_ones(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = npz(tmp_path / "d.npz")
    data = load_dataset(make_spec(**given, public=public(5)))
    with pytest.raises(DataError, match="polluted") as caught:
        data.for_public_search(with_test=True)
    assert "data.public.pollution" in str(caught.value.fix)
    clean = load_dataset(make_spec(**given, public=public()))
    assert clean.for_public_search(with_test=True).info.num_private == 24


def test_records_that_are_no_images_are_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = npz(tmp_path / "d.npz")
    np.savez(tmp_path / "flat.npz", x_train=np.ones((COUNT, 4)), y_train=np.arange(COUNT) % 3)
    flat = {**given, "path": str(tmp_path / "flat.npz")}
    with pytest.raises(DataError, match="made of images"):
        describe_dataset(make_spec(**flat, public=public(5)))
    assert describe_dataset(make_spec(**flat, public=public())).num_public == 24
    little = {**public(5), "fraction": 0.001}
    with pytest.raises(DataError, match="there are none"):
        describe_dataset(make_spec(**given, public=little))


FASHION = {"dataset": "fashion_mnist", "validation": {"visibility": "public"}}


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"public": {"pollution": {"records": 5}}}, "public.pollution: is mixed into public records, and there are none (set data.public.fraction, or leave it out)"),
        ({"public": public(0)}, "public.pollution.records: must be >= 1, got 0"),
        ({"public": {"fraction": 0.4, "pollution": {}}}, "public.pollution.records: is missing (say how many such records to mix in, in equal parts; or share: 0.2)"),
        ({"public": public(5, kinds=[])}, "public.pollution.kinds: is empty (remove it, or leave pollution out)"),
        ({"public": public(5, kinds="noise")}, "public.pollution.kinds: must be a list, got 'noise'"),
        ({"public": public(5, kinds=["noise", "noise"])}, "public.pollution.kinds: has 'noise' twice (name each once)"),
        ({"public": public(5, kinds=["nois"])}, "public.pollution.kinds[0]: unknown value 'nois' (did you mean 'noise'? known: digits, noise)"),
        ({"dataset": "digits", "public": {"fraction": 0.4, "pollution": 100}}, "public.pollution: must be a mapping of keys to values, got 100"),
        ({"dataset": "digits", "public": public(5)}, "public.pollution.kinds: has digits, which are the study's own records, private ones among them (use kinds: [noise])"),
        ({"classes": [0, 1], "public": public(5)}, "public.pollution: has no meaning with data.classes, which takes records out class by class (keep one of the two)"),
        ({"dataset": "text", "path": "x", "num_records": 9, "num_classes": 2, "tokenizer": "t", "max_length": 9, "public": public(5)}, "public.pollution: is made of images, and text has none (remove it)"),
        ({"dataset": "npz", "path": "x.npz", "num_records": 9, "num_classes": 2, "task": "multi_label", "public": public(5)}, "public.pollution: has one class a record, and the task is multi_label (remove it)"),
    ],
)  # fmt: skip
def test_mistakes_of_the_data_section(data: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as caught:
        DataSpec(**{**FASHION, **data})
    assert [str(mistake) for mistake in caught.value.mistakes] == [line]


def test_what_is_allowed() -> None:
    spec = DataSpec(**FASHION, public=public(5000))
    assert spec.public.pollution == Pollution(records=5000, kinds=("digits", "noise"))
    assert DataSpec(**FASHION).public.pollution is None
    assert DataSpec(**FASHION, public={"fraction": 0.0, "pollution": None}).public.pollution is None
    noise = {"dataset": "digits", "validation": {"visibility": "public"}}
    assert DataSpec(**noise, public=public(5, kinds=["noise"])).public.pollution is not None


def study(**more: Any) -> dict[str, Any]:
    return {
        "name": "pollution",
        "data": {**FASHION, "public": public(5000)},
        "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
        "search": {"space": {"method": "dp_sgd"}},
        **more,
    }


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"episodes": {"ways": 2}}, "has no meaning with episodes, which draw records"),
        (
            {"privacy": {"trial_epsilon": 2.0, "accounting": "public"}},
            "would be trained on by the search of accounting public",
        ),
        ({"pretrain": {"model": "cnn"}}, "would be trained on by `pretrain:`"),
    ],
)
def test_sections_that_use_all_public_records_are_refused(more: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError) as caught:
        SweepSpec(**study(**more))
    (found,) = (m for m in caught.value.mistakes if m.key == "data.public.pollution")
    assert found.what.startswith(word)
    assert "\n" not in str(found)
    clean = study(**more, data={**FASHION, "public": public()})
    assert SweepSpec(**clean).data.public.pollution is None


def test_other_studies_may_have_pollution() -> None:
    assert SweepSpec(**study(pretrain={"checkpoint": "w.safetensors"})).pretrain is not None
    for more in ({}, {"pretrain": {"model": "cnn", "dataset": "digits"}}):
        spec = SweepSpec(**study(**more))
        assert SweepSpec.from_yaml(spec.to_yaml()) == spec
        written = yaml.safe_load(spec.to_yaml())["data"]["public"]["pollution"]
        assert written == {"records": 5000, "kinds": ["digits", "noise"]}
