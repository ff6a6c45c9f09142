"""CIFAR, SVHN and MNIST in the files that their authors and torchvision have."""

import io
import os
import pickle

import numpy as np
import pytest
from image_sets import cifar10, cifar100, mnist, pixels, svhn
from scipy.io import savemat

from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.trainables.data.class_split import open_classes
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.raw.preparation import ArrayRecords
from dpsweep.trainables.data.raw.unprepared import Unprepared
from dpsweep.trainables.data.source import whole
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.data.vision.plain_pickle import read_plain_pickle


@pytest.mark.parametrize("is_above", [True, False])
def test_cifar10(make_spec, tmp_path, is_above):
    stored = cifar10(tmp_path)
    path = tmp_path if is_above else tmp_path / "cifar-10-batches-py"
    spec = make_spec(dataset="cifar10", path=str(path))
    info = describe_dataset(spec)
    assert (info.input_shape, info.num_classes) == ((3, 32, 32), 10)
    assert info.class_names[:2] == ("kind 0", "kind 1")
    assert info.num_private + info.num_validation == 50_000  # published, not counted
    assert info.num_test == 10_000
    inputs, labels = open_source(spec).read()["train"]
    assert inputs.dtype == np.float32
    np.testing.assert_allclose(inputs, stored.reshape(-1, 3, 32, 32) / 255, atol=1e-6)
    assert labels.tolist() == [n % 10 for n in range(20)] * 5
    source = open_source(spec)
    raw = stored.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # as somebody hands in an image
    np.testing.assert_array_equal(source.prepared_by.prepare(raw), inputs)


def test_cifar100_has_fine_classes(make_spec, tmp_path):
    cifar100(tmp_path)
    spec = make_spec(dataset="cifar100", path=str(tmp_path))
    data = load_dataset(spec)
    assert data.info.class_names[99] == "kind 99"
    assert len(data.parts["test"][1]) == 200
    assert set(np.concatenate([data.parts[p][1] for p in ("private", "validation")])) == set(
        range(100)
    )


def test_svhn_calls_zero_ten(make_spec, tmp_path):
    stored = svhn(tmp_path)
    source = open_source(make_spec(dataset="svhn", path=str(tmp_path)))
    inputs, labels = source.read()["train"]
    assert (inputs.shape, labels[9], labels[0]) == ((30, 3, 32, 32), 0, 1)
    picture = stored["train"]["X"][..., 4].transpose(2, 0, 1) / 255
    np.testing.assert_allclose(inputs[4], picture, atol=1e-6)
    assert (source.num_records, source.own_test, source.num_found) == (73_257, 26_032, 30)


@pytest.mark.parametrize("end", [".gz", ""])
@pytest.mark.parametrize("below", ["", "raw", "MNIST/raw"])
def test_mnist(make_spec, tmp_path, end, below):
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    mnist(tmp_path / below, end)
    data = load_dataset(make_spec(dataset="mnist", path=str(tmp_path)))
    assert data.info.class_names == tuple("0123456789")
    assert len(data.parts["private"][1]) + len(data.parts["validation"][1]) == 40
    assert data.parts["test"][0].shape == (40, 1, 28, 28)


def test_of_mnist_the_rows_that_are_used_are_prepared_and_no_others(
    make_spec, tmp_path, monkeypatch
):
    """They are the same to the last bit; of 60,000 images the others would take 188 MB."""
    mnist(tmp_path, count=400)
    spec = make_spec(dataset="mnist", path=str(tmp_path), max_private=50)
    whole_parts = load_dataset(spec)  # without a place for what is kept, as ``read`` has them
    counts, as_it_is = [], ArrayRecords.prepare

    def prepare(preparation, records):
        counts.append(len(records))
        return as_it_is(preparation, records)

    monkeypatch.setattr(ArrayRecords, "prepare", prepare)
    data = load_dataset(spec, keep=Keep(tmp_path / "kept"))
    sizes = [len(data.parts[part][0]) for part in ("private", "validation", "public", "test")]
    assert sum(counts) == sum(sizes)
    assert 400 < sum(sizes) < 500  # the whole test part, and a few of the 400 others
    assert data.content_hash == whole_parts.content_hash
    for part, (inputs, labels) in data.parts.items():
        assert type(inputs) is np.ndarray
        assert inputs.flags.c_contiguous
        np.testing.assert_array_equal(inputs, whole_parts.parts[part][0])
        np.testing.assert_array_equal(labels, whole_parts.parts[part][1])
    chosen = load_dataset(
        make_spec(dataset="mnist", path=str(tmp_path), classes=[3, 5]), keep=Keep(tmp_path / "kept")
    )
    assert set(chosen.parts["private"][1]) == {0, 1}
    assert type(chosen.parts["private"][0]) is np.ndarray


@pytest.mark.parametrize("rows", [slice(3, 9), [5, 1, 1], np.arange(20) % 3 == 0, slice(0, 0)])
def test_rows_of_unprepared_records_are_arrays(rows):
    preparation = ArrayRecords((4, 4), "uint8", (1, 4, 4), scale=1 / 255)
    values = pixels(20, 4, 4)
    records, prepared = Unprepared(values, preparation), preparation.prepare(values)
    assert (records.shape, records.ndim, len(records)) == ((20, 1, 4, 4), 4, 20)
    assert records.dtype == np.float32
    np.testing.assert_array_equal(records[rows], prepared[rows])
    np.testing.assert_array_equal(whole(records), prepared)
    assert type(whole(records)) is np.ndarray
    assert whole(prepared) is prepared
    assert np.asarray(records, np.float64).dtype == np.float64


@pytest.mark.parametrize(
    ("dataset", "sizes"),
    [("mnist", (5923, 980)), ("cifar10", (5000, 1000)), ("svhn", (4948, 1744))],
)
def test_sizes_of_classes_are_published(make_spec, tmp_path, dataset, sizes):
    {"mnist": mnist, "cifar10": cifar10, "svhn": svhn}[dataset](tmp_path)
    total = {"mnist": 70_000, "cifar10": 60_000, "svhn": 99_289}[dataset]
    spec = make_spec(dataset=dataset, path=str(tmp_path), classes=(0, 3))
    source = open_classes(spec)
    assert source.num_records > sizes[0]
    assert source.own_test > sizes[1]
    halves = ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    both = [make_spec(dataset=dataset, path=str(tmp_path), classes=half) for half in halves]
    sources = [open_classes(spec) for spec in both]
    assert sum(source.num_records + source.own_test for source in sources) == total


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("cifar10", "data_batch_1, data_batch_2"),
        ("cifar100", "train, test, meta"),
        ("svhn", "train_32x32.mat, test_32x32.mat"),
        ("mnist", "train-images-idx3-ubyte.gz"),
    ],
)
def test_missing_files_are_named(make_spec, tmp_path, dataset, words):
    with pytest.raises(DataError, match=words) as caught:
        describe_dataset(make_spec(dataset=dataset, path=str(tmp_path)))
    assert "data.path" in caught.value.fix


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "svhn", "mnist"])
def test_a_path_is_needed(make_spec, dataset):
    with pytest.raises(SpecError, match=f"path: is missing: {dataset} needs it"):
        make_spec(dataset=dataset)
    with pytest.raises(SpecError, match="num_records: is"):
        make_spec(dataset=dataset, path="x", num_records=7)


class Evil:
    def __reduce__(self):
        return os.system, ("touch was_here",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"data": Evil()}),
        pickle.dumps({"data": np.zeros(3)}, protocol=2),  # other numbers than bytes
        pickle.dumps({"data": np.array([{}])}, protocol=2),
        pickle.dumps([1, 2]),
        pickle.dumps({"data": pixels(9)}, protocol=2)[:-20],
        b"",
        b"cos\nsystem\n(S'touch was_here'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
    ],
)
def test_a_pickle_of_others_runs_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError):
        read_plain_pickle(tmp_path / "batch")
    assert not (tmp_path / "was_here").exists()


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_plain_pickles(tmp_path, protocol):
    images = pixels(4, 6)
    for array in (images, np.asfortranarray(images)):
        content = {"data": array, b"names": [b"a", "b"], "n": 3, "labels": [1, 2]}
        (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
        read = read_plain_pickle(tmp_path / "batch")
        assert (read["names"], read["n"], read["labels"]) == (["a", "b"], 3, [1, 2])
        np.testing.assert_array_equal(read["data"], images)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({b"data": pixels(20, 3000), b"labels": [0] * 20}, "no images of 3 x 32 x 32"),
        ({b"data": pixels(20, 3072), b"labels": [0] * 19}, "no label for each image"),
        ({b"data": pixels(20, 3072), b"fine_labels": [0] * 20}, "no label for each image"),
        ({b"data": pixels(20, 3072), b"labels": [10] * 20}, "labels outside 0..9"),
    ],
)
def test_a_batch_that_is_another(make_spec, tmp_path, batch, words):
    cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError, match=words):
        load_dataset(make_spec(dataset="cifar10", path=str(tmp_path)))


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"X": pixels(32, 32, 3, 30), "y": np.ones((29, 1))}, "one label y"),
        ({"X": pixels(30, 32, 32, 3), "y": np.ones((30, 1))}, r"shape \(32, 32, 3, records\)"),
        ({"Z": pixels(3, 3)}, "does not hold images X"),
    ],
)
def test_headers_of_svhn_are_checked_before_a_record(make_spec, tmp_path, stored, words):
    svhn(tmp_path)
    savemat(tmp_path / "test_32x32.mat", stored)
    with pytest.raises(DataError, match=words):
        describe_dataset(make_spec(dataset="svhn", path=str(tmp_path)))


def test_what_is_no_svhn(make_spec, tmp_path):
    svhn(tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(io.BytesIO(b"page not there").getvalue())
    with pytest.raises(DataError, match="is not a MATLAB file"):
        describe_dataset(make_spec(dataset="svhn", path=str(tmp_path)))


def test_headers_of_mnist_are_checked_before_a_record(make_spec, tmp_path):
    mnist(tmp_path, count=40)
    spec = make_spec(dataset="mnist", path=str(tmp_path))
    assert describe_dataset(spec).is_far_smaller  # 40 of 60,000
    name = "train-labels-idx1-ubyte.gz"
    other = tmp_path / "other"
    other.mkdir()
    mnist(other, count=39)
    (tmp_path / name).write_bytes((other / name).read_bytes())
    with pytest.raises(DataError, match="and its labels do not fit"):
        describe_dataset(spec)
