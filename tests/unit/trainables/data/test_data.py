from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpsweep.foundation.errors import BadInputError, DataError
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.built_in import FASHION_MNIST_PATH
from dpsweep.trainables.data.dataset import part_tensors
from dpsweep.trainables.data.loading import describe_dataset, load_dataset

MakeSpec = Callable[..., DataSpec]
needs_fashion = pytest.mark.skipif(
    not FASHION_MNIST_PATH.is_dir(), reason="Debian package dataset-fashion-mnist not installed"
)
PUBLIC = "public"


def npz(path: Path, count: int = 50, seed: int = 0, **more: np.ndarray) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    arrays = {
        "x_train": np.arange(count * 4, dtype=np.float32).reshape(count, 4),
        "y_train": rng.integers(0, 3, count),
        **more,
    }
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return {"dataset": "npz", "path": str(path), "num_records": 50, "num_classes": 3}


def test_a_relative_path_is_told_with_where_to_type_the_command(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    for path, is_relative in (("nowhere.npz", True), (str(tmp_path / "nowhere.npz"), False)):
        given = {**npz(tmp_path / "there.npz"), "path": path}
        with pytest.raises(DataError, match="no file") as caught:
            describe_dataset(make_spec(**given))
        assert ("type this in the folder" in str(caught.value.fix)) is is_relative


def test_x_train_is_never_taken_for_labels(make_spec: MakeSpec, tmp_path: Path) -> None:
    for stored, hint in (
        ({"X_train": 1, "Y_train": 1}, "did you mean 'X_train'?"),
        ({"y_train": 1}, "store one with numpy.savez(..., x_train=...)"),
    ):
        given = npz(tmp_path / "there.npz")
        np.savez(tmp_path / "there.npz", **stored)
        with pytest.raises(DataError, match="has no x_train") as caught:
            describe_dataset(make_spec(**given))
        assert caught.value.fix == hint


def test_digits_split(make_spec: MakeSpec) -> None:
    spec = make_spec(
        validation={"fraction": 0.2, "visibility": "public"},
        test={"fraction": 0.1},
        public={"fraction": 0.05},
    )
    info, data = describe_dataset(spec), load_dataset(spec)
    sizes = {part: len(labels) for part, (_, labels) in data.parts.items()}
    assert sizes == {"private": 1168, "public": 90, "validation": 359, "test": 180}
    assert sum(sizes.values()) == 1797
    assert info == data.info
    assert (info.num_private, info.num_public) == (1168, 90)
    assert (info.num_validation, info.num_test) == (359, 180)
    for inputs, labels in data.parts.values():
        assert inputs.shape == (len(labels), 1, 8, 8)
        assert (inputs.dtype, labels.dtype) == (np.float32, np.int64)
        assert inputs.flags.c_contiguous
        assert 0 <= inputs.min() <= inputs.max() <= 1
        assert set(labels) <= set(range(10))


def test_parts_are_disjoint_and_cover_everything(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(**npz(tmp_path / "d.npz"), test={"fraction": 0.2}, public={"fraction": 0.2})
    parts = load_dataset(spec).parts
    rows = [set(inputs[:, 0] // 4) for inputs, _ in parts.values()]
    assert sum(map(len, rows)) == 50
    assert set().union(*rows) == set(range(50))


def test_split_does_not_depend_on_the_records(make_spec: MakeSpec, tmp_path: Path) -> None:
    first = load_dataset(make_spec(**npz(tmp_path / "a.npz", seed=1)))
    other = load_dataset(make_spec(**npz(tmp_path / "b.npz", seed=2)))
    for part in first.parts:
        assert np.array_equal(first.parts[part][0], other.parts[part][0])
    assert first.content_hash != other.content_hash
    assert (
        first.content_hash
        == load_dataset(make_spec(**npz(tmp_path / "c.npz", seed=1))).content_hash
    )


@pytest.mark.parametrize("actual", [49, 51, 80])
def test_one_record_more_or_less_changes_private_alone(
    make_spec: MakeSpec, tmp_path: Path, actual: int
) -> None:
    exact = load_dataset(make_spec(**npz(tmp_path / "a.npz")))
    given = load_dataset(make_spec(**npz(tmp_path / "b.npz", count=actual)))
    assert given.info == exact.info  # declared sizes
    in_exact = set(exact.parts["private"][0][:, 0])
    in_given = set(given.parts["private"][0][:, 0])
    last = {49 * 4} if actual == 49 else {row * 4 for row in range(50, actual)}
    assert in_exact ^ in_given == last
    assert np.array_equal(exact.parts["validation"][0], given.parts["validation"][0])


def test_max_private_limits_private_alone(make_spec: MakeSpec, tmp_path: Path) -> None:
    full = load_dataset(make_spec(**npz(tmp_path / "a.npz", count=60)))
    small = load_dataset(make_spec(**npz(tmp_path / "a.npz", count=60), max_private=12))
    assert small.info.num_private == len(small.parts["private"][1]) == 12
    assert set(small.parts["private"][0][:, 0]) < set(full.parts["private"][0][:, 0])
    assert np.array_equal(small.parts["validation"][0], full.parts["validation"][0])
    assert load_dataset(make_spec(max_private=10**6)).info.num_private == 1438


def test_a_public_search_holds_no_private_record(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(**npz(tmp_path / "d.npz"), test={"fraction": 0.1}, public={"fraction": 0.3})
    data = load_dataset(spec)
    before = {part: inputs.copy() for part, (inputs, _) in data.parts.items()}
    search = data.for_public_search(with_test=True)
    assert (data.records, search.records) == ("private", "public")
    assert (search.info.num_private, search.info.num_public) == (15, 0)
    assert (search.info.num_validation, search.info.num_test) == (10, 5)
    assert np.array_equal(search.parts["private"][0], before["public"])
    assert np.array_equal(search.parts["private"][1], data.parts["public"][1])
    assert search.parts["public"][0].shape == (0, 4)
    assert len(search.parts["public"][1]) == 0
    for part in ("validation", "test"):
        assert np.array_equal(search.parts[part][0], before[part])

    private = set(before["private"][:, 0])
    shipped = pickle.loads(pickle.dumps(search))  # what an actor gets, buffers included
    assert len(private) == 20
    for inputs, _ in shipped.parts.values():
        owner = inputs if inputs.base is None else inputs.base
        assert not private & set(np.asarray(owner).reshape(-1, 4)[:, 0])
    for part in data.parts:
        assert np.array_equal(data.parts[part][0], before[part])


def test_the_hash_of_a_public_search_is_blind_to_private_records(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    def hashes(shift: float) -> tuple[str, str]:
        given = npz(tmp_path / "d.npz")
        with np.load(tmp_path / "d.npz") as file:
            x, y = file["x_train"], file["y_train"]
        spec = make_spec(**given, public={"fraction": 0.3})
        rows = np.flatnonzero(np.isin(x[:, 0], load_dataset(spec).parts["private"][0][:, 0]))
        x[rows] += shift
        np.savez(tmp_path / "d.npz", x_train=x, y_train=y)
        data = load_dataset(spec)
        return data.content_hash, data.for_public_search(with_test=True).content_hash

    first, other = hashes(0.0), hashes(0.5)
    assert first[0] != other[0]
    assert first[1] == other[1]


@pytest.mark.parametrize("fraction", [0.0, 0.001])
def test_a_public_search_needs_public_records(
    make_spec: MakeSpec, tmp_path: Path, fraction: float
) -> None:
    data = load_dataset(make_spec(**npz(tmp_path / "d.npz"), public={"fraction": fraction}))
    with pytest.raises(DataError, match="no public records") as caught:
        data.for_public_search(with_test=True)
    assert "data.public.fraction" in str(caught.value.fix)


def test_npz_parts_of_its_own(make_spec: MakeSpec, tmp_path: Path) -> None:
    labels = np.array([0, 1, 2])
    more = {"x_val": np.ones((3, 4)), "y_val": labels, "x_test": np.zeros((3, 4)), "y_test": labels}
    spec = make_spec(**npz(tmp_path / "a.npz", **more))
    data = load_dataset(spec)
    assert (data.info.num_private, data.info.num_validation, data.info.num_test) == (50, 3, 3)
    assert (data.parts["validation"][0] == 1).all()
    with pytest.raises(DataError, match="test part of its own"):
        describe_dataset(make_spec(**npz(tmp_path / "a.npz", **more), test={"fraction": 0.1}))


LABELS = np.zeros(50, np.int64)


@pytest.mark.parametrize("key", ["val", "validation"])
def test_npz_part_for_validation_has_two_names(
    make_spec: MakeSpec, tmp_path: Path, key: str
) -> None:
    more = {f"x_{key}": np.ones((3, 4)), f"y_{key}": LABELS[:3]}
    spec = make_spec(**npz(tmp_path / "a.npz", **more))
    info = describe_dataset(spec)
    assert (info.num_private, info.num_validation, info.notes) == (50, 3, ())
    assert (load_dataset(spec).parts["validation"][0] == 1).all()
    with pytest.raises(DataError, match=f"needs both x_{key} and y_{key}"):
        describe_dataset(make_spec(**npz(tmp_path / "a.npz", **{f"x_{key}": np.ones((3, 4))})))


def test_of_two_names_of_npz_arrays_the_older_one_counts(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    both = {f"x_{key}": np.ones((n, 4)) for key, n in (("val", 3), ("validation", 5))}
    both |= {f"y_{key}": LABELS[:n] for key, n in (("val", 3), ("validation", 5))}
    info = describe_dataset(make_spec(**npz(tmp_path / "a.npz", **both)))
    assert info.num_validation == 3
    (note,) = info.notes
    assert "not used: x_validation, y_validation" in note


def test_npz_arrays_that_are_no_part_are_noted(make_spec: MakeSpec, tmp_path: Path) -> None:
    more = {"x_dev": np.ones((3, 4)), "y_dev": LABELS[:3], "extra": LABELS}
    share = {"fraction": 0.2, "visibility": "public"}
    info = describe_dataset(make_spec(**npz(tmp_path / "a.npz", **more), validation=share))
    assert info.num_validation == 10
    (note,) = info.notes
    assert note.startswith("arrays of a.npz that are not used: x_dev, y_dev;")


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"x_train": None, "X_train": np.ones((50, 4))}, "no x_train"),
        ({"y_train": None}, "no y_train"),
        ({"x_val": np.ones((3, 4))}, "both x_val and y_val"),
        ({"x_train": np.ones(50)}, r"x_train has shape \(records,\)"),
        ({"x_train": np.ones((50, 4), np.int16)}, "x_train has dtype int16"),
        ({"x_train": np.full((50, 4), np.nan)}, r"d\.npz: x_train has values that are not finite"),
        ({"x_train": np.full((50, 4), 1e300)}, r"d\.npz: x_train has values that are not finite"),
        ({"y_train": LABELS.astype(float)}, "y_train has dtype float64"),
        ({"y_train": LABELS[:, None]}, r"y_train has shape \(records, 1\), not \(records,\)"),
        ({"y_train": LABELS[:40]}, "different numbers"),
        ({"y_train": LABELS + 3}, r"d\.npz: y_train has labels outside 0\.\.2"),
        ({"y_train": LABELS - 1}, r"d\.npz: y_train has labels outside 0\.\.2"),
        ({"x_val": np.ones((3, 5)), "y_val": LABELS[:3]}, "x_val has records of shape"),
    ],
)
def test_npz_mistakes_name_the_key(
    make_spec: MakeSpec, tmp_path: Path, arrays: dict[str, np.ndarray], word: str
) -> None:
    with pytest.raises(DataError, match=word) as caught:
        load_dataset(make_spec(**npz(tmp_path / "d.npz", **arrays)))
    assert caught.value.fix


def test_errors_keep_private_values_to_themselves(make_spec: MakeSpec, tmp_path: Path) -> None:
    labels = LABELS.copy()
    labels[7] = 123_456
    with pytest.raises(DataError) as caught:
        load_dataset(make_spec(**npz(tmp_path / "d.npz", y_train=labels)))
    assert "123456" not in str(caught.value)


@pytest.mark.parametrize("task", ["classification", "multi_label"])
@pytest.mark.parametrize(
    "arrays",
    [
        {"x_train": np.ones(587)},
        {"x_train": np.ones((587, 2, 3))},
        {"y_train": np.zeros(586, np.int64)},
        {"y_train": np.zeros((586, 3), np.int64)},
        {"y_train": np.zeros((587, 2), np.int64)},
    ],
)
def test_errors_keep_the_number_of_records_to_themselves(
    make_spec: MakeSpec, tmp_path: Path, arrays: dict[str, np.ndarray], task: str
) -> None:
    labels = np.zeros(587 if task == "classification" else (587, 3), np.int64)
    given = {"x_train": np.ones((587, 4)), "y_train": labels, **arrays}
    with pytest.raises(DataError) as caught:
        load_dataset(make_spec(**npz(tmp_path / "d.npz", **given), task=task))
    assert "train" in str(caught.value)
    assert "58" not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize("damage", ["bytes", "16 bits"])
def test_errors_keep_the_name_of_an_image_to_themselves(
    make_spec: MakeSpec, tmp_path: Path, damage: str
) -> None:
    from PIL import Image

    _images(tmp_path, {"a": 2, "zebra": 2})
    path = tmp_path / "zebra" / "1.png"
    if damage == "bytes":
        path.write_bytes(b"no image")
    else:
        Image.fromarray(np.full((6, 6), 40_000, "uint16")).save(path)
    given = {"dataset": "image_folder", "num_records": 4, "image_size": 5}
    with pytest.raises(DataError) as caught:
        load_dataset(make_spec(path=str(tmp_path), **given))
    assert "png" not in str(caught.value)
    assert "zebra" not in str(caught.value)


def test_files_that_are_no_npz(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = npz(tmp_path / "d.npz")
    with pytest.raises(DataError, match="no file"):
        describe_dataset(make_spec(**{**given, "path": str(tmp_path / "other.npz")}))
    (tmp_path / "d.npz").write_bytes(b"PK no")
    with pytest.raises(DataError, match=r"not an \.npz"):
        describe_dataset(make_spec(**given))


def test_describing_npz_reads_no_record(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = npz(tmp_path / "d.npz", x_train=np.full((50, 2, 3, 3), np.nan))
    assert describe_dataset(make_spec(**given)).input_shape == (2, 3, 3)


def test_fractions_that_leave_nothing_private(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = npz(tmp_path / "d.npz")
    with pytest.raises(BadInputError, match="no private record"):
        describe_dataset(make_spec(**given, test={"fraction": 0.5}, public={"fraction": 0.299999}))


def _write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def _small_fashion(folder: Path) -> dict[str, str]:
    for prefix, count in (("train", 30), ("t10k", 6)):
        images = np.full((count, 28, 28), 255, np.uint8)
        _write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
        _write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8) % 10)
    return {"dataset": "fashion_mnist", "path": str(folder)}


def test_fashion_from_a_directory_keeps_declared_sizes(make_spec: MakeSpec, tmp_path: Path) -> None:
    data = load_dataset(make_spec(**_small_fashion(tmp_path)))
    assert (data.info.num_private, data.info.num_validation) == (48_000, 12_000)
    assert len(data.parts["private"][1]) + len(data.parts["validation"][1]) == 30
    assert data.parts["test"][0].shape == (6, 1, 28, 28)
    assert data.parts["test"][0].max() == 1.0


@pytest.mark.parametrize("damage", ["cut", "kind", "shape"])
def test_damaged_fashion_files(make_spec: MakeSpec, tmp_path: Path, damage: str) -> None:
    given = _small_fashion(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:40])
    elif damage == "kind":
        path.write_bytes(gzip.compress(b"something else"))
    else:
        _write_idx(path, np.zeros((30, 28, 27), np.uint8))
    with pytest.raises(DataError, match="train-images"):
        load_dataset(make_spec(**given))


def test_missing_fashion_says_where_to_get_it(make_spec: MakeSpec, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        describe_dataset(make_spec(dataset="fashion_mnist", path=str(tmp_path)))
    assert "dataset-fashion-mnist" in str(caught.value.fix)


@needs_fashion
def test_real_fashion_mnist(make_spec: MakeSpec) -> None:
    data = load_dataset(
        make_spec(dataset="fashion_mnist", validation={"fraction": 0.1, "visibility": "public"})
    )
    sizes = {part: len(labels) for part, (_, labels) in data.parts.items()}
    assert sizes == {"private": 54_000, "public": 0, "validation": 6_000, "test": 10_000}
    counts = np.bincount(np.concatenate([data.parts[p][1] for p in ("private", "validation")]))
    assert counts.tolist() == [6_000] * 10  # published: balanced classes
    pixels = np.concatenate([data.parts[p][0].ravel() for p in ("private", "validation")])
    assert pixels.mean(dtype=np.float64) == pytest.approx(0.2860, abs=1e-4)  # published
    assert pixels.std(dtype=np.float64) == pytest.approx(0.3530, abs=1e-4)


def _images(root: Path, layout: dict[str, int], mode: str = "RGB") -> None:
    from PIL import Image

    for folder, count in layout.items():
        (root / folder).mkdir(parents=True)
        for number in range(count):
            shade = 40 * number
            colour = shade if mode == "L" else (shade, 0, 255)
            Image.new(mode, (10, 6), colour).save(root / folder / f"{number}.png")


def test_image_folder(make_spec: MakeSpec, tmp_path: Path) -> None:
    _images(tmp_path, {"cat": 5, "dog": 5})
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    spec = make_spec(
        dataset="image_folder", path=str(tmp_path), num_records=10, image_size=[4, 6], channels=3
    )
    data = load_dataset(spec)
    assert data.info.class_names == ("cat", "dog")
    assert data.info.input_shape == (3, 4, 6)
    inputs = np.concatenate([data.parts[p][0] for p in ("private", "validation")])
    labels = np.concatenate([data.parts[p][1] for p in ("private", "validation")])
    assert np.bincount(labels).tolist() == [5, 5]
    assert (inputs[:, 2] == 1).all()
    reds = np.sort(inputs[labels == 0, 0, 0, 0] * 255)
    assert reds.round().tolist() == [0, 40, 80, 120, 160]


def test_image_folder_with_parts_of_its_own(make_spec: MakeSpec, tmp_path: Path) -> None:
    layout = {"train/a": 4, "train/b": 4, "val/a": 2, "val/b": 1, "test/b": 3}
    _images(tmp_path, layout, mode="L")
    spec = make_spec(
        dataset="image_folder", path=str(tmp_path), num_records=8, image_size=5, channels=1
    )
    data = load_dataset(spec)
    assert (data.info.num_private, data.info.num_validation, data.info.num_test) == (8, 3, 3)
    assert data.parts["test"][1].tolist() == [1, 1, 1]
    assert data.parts["private"][0].shape == (8, 1, 5, 5)
    (tmp_path / "val" / "c").mkdir()
    with pytest.raises(DataError, match="a class that train lacks"):
        describe_dataset(spec)


@pytest.mark.parametrize("name", ["val", "validation"])
def test_image_folder_for_validation_has_two_names(
    make_spec: MakeSpec, tmp_path: Path, name: str
) -> None:
    _images(tmp_path, {"train/a": 4, "train/b": 4, f"{name}/a": 2, f"{name}/b": 1}, mode="L")
    spec = make_spec(dataset="image_folder", path=str(tmp_path), num_records=8, image_size=5)
    info = describe_dataset(spec)
    assert (info.num_private, info.num_validation, info.notes) == (8, 3, ())
    if name == "val":  # earlier versions knew this name alone
        _images(tmp_path, {"validation/a": 1, "validation/b": 1}, mode="L")
        info = describe_dataset(spec)
        assert info.num_validation == 3
        assert "not used: validation;" in info.notes[0]


def test_image_folders_that_are_no_part_are_noted(make_spec: MakeSpec, tmp_path: Path) -> None:
    _images(tmp_path, {"train/a": 4, "train/b": 4, "dev/a": 2, "valid/b": 1}, mode="L")
    (tmp_path / "logs").mkdir()
    spec = make_spec(dataset="image_folder", path=str(tmp_path), num_records=8, image_size=5)
    (note,) = describe_dataset(spec).notes
    assert note.startswith(f"folders of {tmp_path} that are not used: dev, valid;")


def test_image_folder_mistakes(make_spec: MakeSpec, tmp_path: Path) -> None:
    given = {"dataset": "image_folder", "num_records": 8, "image_size": 5}
    with pytest.raises(DataError, match="no directory"):
        describe_dataset(make_spec(path=str(tmp_path / "none"), **given))
    with pytest.raises(DataError, match="0 class folders"):
        describe_dataset(make_spec(path=str(tmp_path), **given))
    _images(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "a" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot read an image"):
        load_dataset(make_spec(path=str(tmp_path), **given))


def test_images_of_16_bits_are_refused(make_spec: MakeSpec, tmp_path: Path) -> None:
    """Converted to 8 bits, all that is above 255 would be white."""
    from PIL import Image

    _images(tmp_path, {"a": 2, "b": 2})
    Image.fromarray(np.full((6, 6), 40_000, "uint16")).save(tmp_path / "b" / "1.png")
    given = {"dataset": "image_folder", "num_records": 4, "image_size": 5}
    with pytest.raises(DataError, match="an image has more than 8 bits per channel"):
        load_dataset(make_spec(path=str(tmp_path), **given))


def test_tensors_share_memory_with_read_only_arrays(make_spec: MakeSpec) -> None:
    data = load_dataset(make_spec())
    for inputs, labels in data.parts.values():
        inputs.flags.writeable = labels.flags.writeable = False
    inputs, labels = part_tensors(data, "private")  # warnings are errors here
    assert inputs.data_ptr() == data.parts["private"][0].ctypes.data
    assert labels.data_ptr() == data.parts["private"][1].ctypes.data


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut"])
def test_a_damaged_file_comes_with_a_remedy(tmp_path, content):
    from dpsweep.trainables.data.npz import npz_headers

    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(DataError) as caught:
        npz_headers(tmp_path / "data.npz")
    assert "get the file again" in (caught.value.fix or "")
