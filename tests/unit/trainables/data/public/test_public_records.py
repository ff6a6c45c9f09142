"""Public records from another file, from positions, class by class: who they are, who is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpsweep.foundation.errors import DataError
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.loading import describe_dataset, load_dataset, public_inputs
from dpsweep.trainables.data.public.rows import first_of_each
from dpsweep.trainables.data.public.stretching import coloured, is_stretchable, stretched

MakeSpec = Callable[..., DataSpec]
COUNT, CLASSES = 60, 3


def images(count: int, shape: tuple[int, ...] = (1, 4, 6), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, (count, *shape)).astype(np.float32)


def own(path: Path, labels: np.ndarray | None = None, **more: Any) -> dict[str, Any]:
    labels = np.arange(COUNT) % CLASSES if labels is None else labels
    np.savez(path, x_train=images(len(labels)), y_train=labels, **more)
    return {"dataset": "npz", "path": str(path), "num_records": COUNT, "num_classes": CLASSES}


def other(path: Path, count: int = 40, **given: Any) -> str:
    x = given.pop("x_train", images(count, seed=1))
    arrays = {"x_train": x, "y_train": np.arange(len(x)) % CLASSES, **given}
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return str(path)


def both(spec: DataSpec) -> SweepData:
    data = load_dataset(spec)
    assert data.info == describe_dataset(spec)
    assert len(data.parts["public"][1]) == data.info.num_public
    return data


def test_a_file_is_public_and_all_own_records_stay_private(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    given = own(tmp_path / "own.npz")
    before = load_dataset(make_spec(**given))
    data = both(make_spec(**given, public={"path": other(tmp_path / "other.npz")}))
    for part in ("private", "validation"):
        assert np.array_equal(before.parts[part][0], data.parts[part][0])
    assert data.info.num_private == before.info.num_private == 48
    assert data.info.public_from == f"npz {tmp_path / 'other.npz'}"
    assert np.array_equal(data.parts["public"][0], images(40, seed=1))
    assert np.array_equal(data.parts["public"][1], np.arange(40) % CLASSES)
    assert data.content_hash != before.content_hash
    assert data.hashes["private"] == before.hashes["private"]


def test_a_choice_from_a_file_is_the_same_every_time(make_spec: MakeSpec, tmp_path: Path) -> None:
    given, path = own(tmp_path / "own.npz"), other(tmp_path / "other.npz")
    every = {row.tobytes() for row in images(40, seed=1)}

    def rows(**public: Any) -> list[bytes]:
        data = both(make_spec(**given, public={"path": path, **public}))
        return [row.tobytes() for row in data.parts["public"][0]]

    few = rows(max_records=10)
    assert few == rows(max_records=10)
    assert len(set(few)) == 10
    assert set(few) < set(rows(max_records=20)) < every
    labels = both(make_spec(**given, public={"path": path, "per_class": 4})).parts["public"][1]
    assert np.bincount(labels).tolist() == [4, 4, 4]
    assert len(rows(per_class=4, max_records=5)) == 5


def test_validation_records_of_a_file_are_no_public_ones(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    public = {"path": other(tmp_path / "other.npz"), "validation": 0.25}
    spec = make_spec(**own(tmp_path / "own.npz"), public=public)
    data = both(spec)
    sizes = {part: len(data.parts[part][1]) for part in data.parts}
    assert sizes == {"private": COUNT, "public": 30, "validation": 10, "test": 0}
    assert (data.info.num_validation, data.info.has_own_validation) == (10, True)
    used, held = ({row.tobytes() for row in data.parts[p][0]} for p in ("public", "validation"))
    assert not used & held
    assert used | held == {row.tobytes() for row in images(40, seed=1)}
    assert len(public_inputs(spec, most=7)) == 7


def test_hidden_labels_are_read_by_nobody(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = own(tmp_path / "own.npz")
    for labels in (None, np.full(40, 77)):  # a file without labels, and one whose labels are none
        path = other(tmp_path / "other.npz", y_train=labels)
        data = both(make_spec(**given, public={"path": path, "labels": "hidden"}))
        assert data.parts["public"][1].tolist() == [-1] * 40
        assert data.info.public_labels == "hidden"
    share = both(make_spec(**given, public={"fraction": 0.5, "labels": "hidden"}))
    assert share.parts["public"][1].tolist() == [-1] * 30
    assert min(share.parts["private"][1]) == 0
    with pytest.raises(DataError, match="has no y_train"):
        load_dataset(make_spec(**given, public={"path": other(tmp_path / "o.npz", y_train=None)}))


def test_images_of_another_shape_are_stretched_where_that_is_declared(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    given, large = own(tmp_path / "own.npz"), images(40, (3, 12, 12), seed=2)
    path = other(tmp_path / "other.npz", x_train=large)
    with pytest.raises(DataError, match="3x12x12, those of the study 1x4x6") as caught:
        describe_dataset(make_spec(**given, public={"path": path}))
    assert "data.public.resize: true" in str(caught.value.fix)
    data = both(make_spec(**given, public={"path": path, "resize": True}))
    assert np.array_equal(data.parts["public"][0], stretched(large, (1, 4, 6)))
    flat = other(tmp_path / "flat.npz", x_train=images(9, (24,)))
    with pytest.raises(DataError, match="24, those of the study 1x4x6"):
        describe_dataset(make_spec(**given, public={"path": flat, "resize": True}))


@pytest.mark.parametrize("shape", [(1, 4, 6), (3, 4, 6), (1, 9, 2), (3, 2, 13)])
def test_stretching_keeps_what_is_flat_and_averages_what_shrinks(shape: tuple[int, ...]) -> None:
    flat = np.full((2, 1, 6, 6), 0.25, np.float32)
    assert stretched(flat, shape).shape == (2, *shape)
    assert np.allclose(stretched(flat, shape), 0.25)
    random = images(5, (3, 6, 8))
    result = stretched(random, shape)
    assert result.dtype == np.float32
    low, high = random.min(axis=(1, 2, 3)), random.max(axis=(1, 2, 3))
    assert (result >= low[:, None, None, None] - 1e-6).all()
    assert (result <= high[:, None, None, None] + 1e-6).all()


def test_stretching_is_that_of_networks() -> None:
    import torch

    from dpsweep.trainables.networks.pretrained.image_front import resize_layers

    for size, wanted in (((5, 5), 8), ((9, 9), 4), ((6, 9), 7)):
        x = images(3, (1, *size))
        network = torch.nn.Sequential(*resize_layers((1, *size), wanted))
        expected = network(torch.from_numpy(x)).numpy()
        assert np.allclose(stretched(x, (1, wanted, wanted)), expected, atol=1e-6)
    assert coloured(images(2, (1, 5, 5)), (3, 9, 9)).shape == (2, 3, 5, 5)
    assert not is_stretchable((4, 5, 5), (3, 5, 5))


def test_positions_are_public_and_dealt_to_no_other_part(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    given, rows = own(tmp_path / "own.npz"), [3, 4, 17, 59]
    (tmp_path / "rows.txt").write_text("17\n3\n59\n4\n")
    np.save(tmp_path / "rows.npy", np.array(rows[::-1]))
    for positions in (rows, str(tmp_path / "rows.txt"), str(tmp_path / "rows.npy")):
        data = both(make_spec(**given, public={"positions": positions}))
        assert np.array_equal(data.parts["public"][0], images(COUNT)[rows])
        assert data.info.num_private == COUNT - 4 - 12
        every = np.concatenate([data.parts[part][0] for part in data.parts])
        assert {row.tobytes() for row in every} == {row.tobytes() for row in images(COUNT)}
        assert len(every) == COUNT
    few = both(make_spec(**given, public={"positions": list(range(9)), "per_class": 2}))
    assert np.bincount(few.parts["public"][1]).tolist() == [2, 2, 2]
    assert few.info.num_private == COUNT - 9 - 12  # what is declared public is never private


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("3\n60\n", "names row 60, and the declared 60 records are numbered from 0"),
        ("-1\n", "names row -1"),
        ("3\n3\n", "names a row twice"),
        ("", "names no row"),
        ("three\n", "cannot be read as rows"),
        (None, "cannot be read as rows"),
    ],
)
def test_positions_that_are_no_rows(
    make_spec: MakeSpec, tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "rows.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        describe_dataset(make_spec(**own(tmp_path / "o.npz"), public={"positions": str(path)}))


def test_so_many_of_each_class_are_public_and_all_others_private(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    labels = np.random.default_rng(3).choice(CLASSES, COUNT, p=[0.7, 0.2, 0.1])
    given = own(tmp_path / "own.npz", labels)
    before = load_dataset(make_spec(**given))
    data = both(make_spec(**given, public={"per_class": 2}))
    assert np.bincount(data.parts["public"][1]).tolist() == [2, 2, 2]
    assert np.array_equal(data.parts["validation"][0], before.parts["validation"][0])
    assert data.info.num_private == len(data.parts["private"][1]) == 48 - 6
    with pytest.raises(
        DataError, match=r"that can be public, fewer than data\.public\.per_class=9"
    ):
        load_dataset(make_spec(**given, public={"per_class": 9}))
    with pytest.raises(DataError, match="no private record is left"):
        describe_dataset(make_spec(**given, public={"per_class": 16}))


def test_no_private_record_has_a_say_in_which_records_are_public() -> None:
    """All neighbors of random data sets: without a private row, the same rows are public."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        count, per_class = int(rng.integers(6, 12)), int(rng.integers(1, 3))
        labels, order = rng.integers(0, 2, count), rng.permutation(count)
        if min(np.bincount(labels, minlength=2)) < per_class:
            continue
        public = first_of_each(order, labels, per_class, (0, 1), ("a", "b"))
        for private in np.setdiff1d(order, public):
            rest = order[order != private]
            assert np.array_equal(
                first_of_each(rest, labels, per_class, (0, 1), ("a", "b")), public
            )
        # A public record that is taken away makes room for another: it is not protected.
        assert len(public) == 2 * per_class


def photos(root: Path, classes: tuple[str, ...], count: int = 3) -> str:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for photo in range(count):
            shade = np.full((9, 9, 3), 20 * number + photo, np.uint8)
            Image.fromarray(shade).save(root / name / f"{photo}.png")
    return str(root)


def test_folders_have_the_classes_of_their_names(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = own(tmp_path / "own.npz")
    path = photos(tmp_path / "photos", ("dog", "cat"))
    named = {**given, "class_names": ["hen", "cat", "dog"]}
    data = both(make_spec(**named, public={"dataset": "image_folder", "path": path}))
    assert data.parts["public"][0].shape == (6, 1, 4, 6)
    assert data.parts["public"][1].tolist() == [1, 1, 1, 2, 2, 2]
    with pytest.raises(DataError, match="its folder 'cat' is no class of the study: 0, 1, 2"):
        describe_dataset(make_spec(**given, public={"dataset": "image_folder", "path": path}))
    hidden = {"dataset": "image_folder", "path": path, "labels": "hidden"}
    assert both(make_spec(**given, public=hidden)).parts["public"][1].tolist() == [-1] * 6


def test_other_classes_of_a_file_are_left_out(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = {**own(tmp_path / "own.npz"), "classes": [2, 0], "num_records": 40}
    path = other(tmp_path / "other.npz")
    data = both(make_spec(**given, public={"path": path}))
    assert np.bincount(data.parts["public"][1]).tolist() == [13, 14]
    rows = [row for row in range(40) if row % CLASSES != 1]
    assert np.array_equal(data.parts["public"][0], images(40, seed=1)[rows])
    few = both(make_spec(**given, public={"path": path, "per_class": 3}))
    assert np.bincount(few.parts["public"][1]).tolist() == [3, 3]


def test_labels_that_are_no_classes_of_the_study(make_spec: MakeSpec, tmp_path: Path) -> None:
    path = other(tmp_path / "other.npz", y_train=np.arange(40) % 4)
    with pytest.raises(DataError, match=r"labels outside 0\.\.2"):
        load_dataset(make_spec(**own(tmp_path / "own.npz"), public={"path": path}))


def test_pollution_of_a_file_keeps_its_values(make_spec: MakeSpec, tmp_path: Path) -> None:
    given, path = own(tmp_path / "own.npz"), other(tmp_path / "other.npz")
    dirt = images(30, (3, 8, 8), seed=5) + 7
    where = other(tmp_path / "dirt.npz", x_train=dirt, y_train=np.arange(30))
    public = {"path": path, "pollution": {"path": where, "share": 0.2}}
    data = both(make_spec(**given, public=public))
    assert data.polluted is not None
    assert (data.info.num_public, data.info.num_polluted, data.polluted.sum()) == (50, 10, 10)
    inputs, labels = data.parts["public"]
    every = stretched(dirt, (1, 4, 6))
    for record, label in zip(inputs[data.polluted], labels[data.polluted]):
        row = next(n for n in range(30) if np.array_equal(every[n], record))
        assert label == row % CLASSES
    assert {r.tobytes() for r in inputs[~data.polluted]} == {
        r.tobytes() for r in images(40, seed=1)
    }
    again = both(make_spec(**given, public=public))
    assert np.array_equal(again.parts["public"][0], inputs)
    unlabelled = other(tmp_path / "dirt2.npz", x_train=dirt, y_train=None)
    public["pollution"] = {"path": unlabelled, "records": 30}
    said = both(make_spec(**given, public=public))
    assert set(said.parts["public"][1][said.polluted]) == set(range(CLASSES))
    public["pollution"] = {"path": where, "records": 31}
    with pytest.raises(DataError, match="wants 31 records of a file, which has 30"):
        describe_dataset(make_spec(**given, public=public))


def test_a_file_that_is_not_there_is_named_as_the_spec_does(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    given = own(tmp_path / "own.npz")
    with pytest.raises(DataError, match=r"data\.public: no file .*none\.npz") as caught:
        describe_dataset(make_spec(**given, public={"path": str(tmp_path / "none.npz")}))
    assert "data.public.path" in str(caught.value.fix)
    pollution = {"path": str(tmp_path / "none.npz"), "records": 3}
    with pytest.raises(DataError, match=r"data\.public\.pollution: no file"):
        describe_dataset(make_spec(**given, public={"fraction": 0.5, "pollution": pollution}))
    train = {"x_val": images(3), "y_val": np.zeros(3, int)}
    with_own = own(tmp_path / "val.npz", **train)
    public = {"path": other(tmp_path / "other.npz"), "validation": 0.2}
    with pytest.raises(DataError, match="has a validation part of its own"):
        describe_dataset(make_spec(**with_own, public=public))
