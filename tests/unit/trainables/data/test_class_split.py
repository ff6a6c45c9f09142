"""data.classes: some classes of a dataset as the private task, sizes from what is published."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.class_split import _DIGITS, only, open_classes, read_classes
from dpsweep.trainables.data.loading import describe_dataset, load_dataset

MakeSpec = Callable[..., DataSpec]


@pytest.fixture(scope="module")
def whole_digits():
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.images / 16.0).astype(np.float32)[:, None], digits.target


@given(
    labels=hnp.arrays(np.int64, st.integers(0, 40), elements=st.integers(0, 6)),
    classes=st.permutations(range(7)).flatmap(
        lambda order: st.integers(2, 7).map(lambda count: order[:count])
    ),
)
def test_only_keeps_these_classes_in_order_and_renumbers_them(labels, classes):
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    kept, renumbered = only((inputs, labels), classes)
    assert kept[:, 0].tolist() == [row for row, label in enumerate(labels) if label in classes]
    assert [classes[label] for label in renumbered] == [c for c in labels if c in classes]
    assert kept.flags.c_contiguous
    assert renumbered.dtype == np.int64


def test_digits_has_its_real_counts(whole_digits) -> None:
    assert np.bincount(whole_digits[1]).tolist() == list(_DIGITS)


def test_every_part_holds_these_classes_alone(make_spec: MakeSpec, whole_digits) -> None:
    spec = make_spec(classes=[7, 2, 9], test={"fraction": 0.2}, public={"fraction": 0.1})
    data = load_dataset(spec)
    inputs, labels = whole_digits
    expected = sum(np.count_nonzero(labels == c) for c in (7, 2, 9))
    sizes = {part: len(y) for part, (_, y) in data.parts.items()}
    assert sum(sizes.values()) == expected == 179 + 177 + 180
    assert data.info == describe_dataset(spec)
    assert (data.info.num_classes, data.info.class_names) == (3, ("7", "2", "9"))
    assert sizes == {
        "private": data.info.num_private,
        "validation": data.info.num_validation,
        "test": data.info.num_test,
        "public": data.info.num_public,
    }
    class_of = {record.tobytes(): label for record, label in zip(inputs, labels)}
    for x, y in data.parts.values():
        assert {label for label in y} == {0, 1, 2}
        assert all(class_of[record.tobytes()] == (7, 2, 9)[label] for record, label in zip(x, y))


def test_records_of_other_classes_change_nothing(make_spec: MakeSpec, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 80)
    inputs = rng.normal(size=(80, 3)).astype(np.float32)
    given = {"dataset": "npz", "num_records": 40, "num_classes": 4, "classes": [1, 3]}
    np.savez(tmp_path / "a.npz", x_train=inputs, y_train=labels)
    keep = np.isin(labels, (1, 3)) | (rng.random(80) < 0.5)
    changed = np.where(np.isin(labels, (1, 3))[:, None], inputs, inputs + 1)
    np.savez(tmp_path / "b.npz", x_train=changed[keep], y_train=labels[keep])
    first, other = (
        load_dataset(make_spec(**given, path=str(tmp_path / f"{name}.npz"))) for name in "ab"
    )
    assert first.content_hash == other.content_hash
    assert first.info.num_private == 32  # of the 40 that are declared, whatever is there


def test_sizes_of_the_training_source_are_declared(make_spec: MakeSpec, tmp_path: Path) -> None:
    parts = {}
    for part, count in (("train", 30), ("val", 12), ("test", 9)):
        parts[f"x_{part}"] = np.zeros((count, 2), np.float32)
        parts[f"y_{part}"] = np.arange(count) % 3
    np.savez(tmp_path / "d.npz", **parts)
    given = {"dataset": "npz", "path": str(tmp_path / "d.npz"), "num_classes": 3}
    spec = make_spec(**given, num_records=1000, classes=[0, 2], test={"visibility": "public"})
    info = describe_dataset(spec)
    assert (info.num_private, info.num_validation, info.num_test) == (1000, 8, 6)
    hidden = describe_dataset(make_spec(**given, num_records=1000, classes=[0, 2]))
    assert hidden.num_test == 9  # private labels are not counted: an upper bound
    assert len(load_dataset(spec).parts["validation"][1]) == 8


def write_fashion(folder: Path) -> None:
    """Ten images of ten classes in each part, in Fashion-MNIST's format."""
    for prefix in ("train", "t10k"):
        images = np.arange(10, dtype=np.uint8)[:, None, None] * np.ones((28, 28), np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", np.arange(10, dtype="u1"))):
            header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            with gzip.open(folder / f"{prefix}-{name}-ubyte.gz", "wb") as file:
                file.write(header + array.tobytes())


def test_fashion_mnist_has_its_published_sizes(make_spec: MakeSpec, tmp_path: Path) -> None:
    write_fashion(tmp_path)
    given = {"dataset": "fashion_mnist", "path": str(tmp_path)}
    source = open_classes(make_spec(**given, classes=[9, 0, 4]))
    assert (source.num_records, source.own_test) == (18_000, 3_000)
    assert source.class_names == ("Ankle boot", "T-shirt/top", "Coat")
    inputs, labels = source.read()["test"]
    assert labels.tolist() == [1, 2, 0]
    assert np.allclose(inputs[:, 0, 0, 0], np.array([0, 4, 9]) / 255)


def test_image_folder_takes_its_folders_by_number(make_spec: MakeSpec, tmp_path: Path) -> None:
    for part in ("train", "val"):
        for number, name in enumerate(("ant", "bee", "cat")):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for index in range(number + 1):
                Image.new("L", (4, 4), 80 * number).save(folder / f"{index}.png")
    spec = make_spec(
        dataset="image_folder",
        path=str(tmp_path),
        image_size=4,
        channels=1,
        num_records=4,
        classes=[2, 0],
    )
    data = load_dataset(spec)
    assert data.info.class_names == ("cat", "ant")
    assert data.info.num_validation == len(data.parts["validation"][1]) == 4
    inputs, labels = data.parts["private"]
    assert sorted(labels) == [0, 0, 0, 1]
    assert np.allclose(inputs[:, 0, 0, 0], np.where(labels == 0, 160, 0) / 255)
    with pytest.raises(DataError, match=r"has 3, but the dataset has the classes 0 to 2"):
        describe_dataset(spec.model_copy(update={"classes": (0, 3)}))


def test_public_classes_are_all_their_training_records(make_spec: MakeSpec, whole_digits) -> None:
    inputs, labels = read_classes(make_spec(classes=[5, 6, 7]), [3, 1])
    where = np.isin(whole_digits[1], (3, 1))
    assert np.array_equal(inputs, whole_digits[0][where])
    assert np.array_equal(labels, np.where(whole_digits[1][where] == 3, 0, 1))


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([5], "must name at least two classes, got [5]"),
        ([], "must name at least two classes, got []"),
        ([1, 2, 1], "has class 1 twice: name each once"),
        ([1, -2], "has -2, and classes are numbered from 0"),
        ([1, 10], "has 10, but the dataset has the classes 0 to 9"),
        ([1, "x"], "must be a number, got 'x'"),
        (3, "must be a list of class numbers, got 3"),
    ],
)
def test_what_is_wrong_about_classes_is_one_line(make_spec: MakeSpec, classes, said) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(classes=classes)
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.what) == ("classes", said)


def test_classes_are_for_classification_alone(make_spec: MakeSpec) -> None:
    given = {"dataset": "npz", "path": "a.npz", "num_records": 9, "num_classes": 4}
    with pytest.raises(SpecError, match="classes: has no meaning for task multi_label"):
        make_spec(**given, classes=[0, 1], task="multi_label")
