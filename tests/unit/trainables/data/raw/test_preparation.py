"""Records as files hold them become, bit for bit, what a method reads; without dpsweep, too."""

import ast
import gzip
import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.class_split import open_classes
from dpsweep.trainables.data.raw import preparation
from dpsweep.trainables.data.raw.preparation import (
    ArrayRecords,
    ImageRecords,
    RecordError,
    TextRecords,
    load,
    save,
)
from dpsweep.trainables.data.source import Source, TextInfo

PUBLIC = {"fraction": 0.2, "visibility": "public"}


def stored(source, folder):
    """Return the preparation of a source as a registered model would load it."""
    save(source.prepared_by, folder, classes=["a"])
    again, facts = load(folder)
    assert facts["classes"] == ["a"]
    return again


def same(first, second):
    assert first.dtype == second.dtype
    assert first.shape == second.shape
    assert first.tobytes() == second.tobytes()
    return True


def test_digits(tmp_path):
    from sklearn.datasets import load_digits

    images = load_digits().images
    source = open_classes(DataSpec(dataset="digits", validation=PUBLIC))
    expected = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    assert same(source.read()["train"][0], expected)
    assert same(stored(source, tmp_path).prepare(images), expected)
    assert same(source.prepared_by.prepare(images.astype(np.uint8)), expected)


def write_idx(path, values):
    header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def test_fashion_mnist(tmp_path):
    rng = np.random.default_rng(0)
    images = {
        "train": rng.integers(0, 256, (20, 28, 28)),
        "t10k": rng.integers(0, 256, (9, 28, 28)),
    }
    images["train"][0, :16, :16] = np.arange(256).reshape(16, 16)  # every byte there is
    for part, pixels in images.items():
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.arange(len(pixels)) % 10)
    spec = DataSpec(dataset="fashion_mnist", path=str(tmp_path), validation=PUBLIC)
    source = open_classes(spec)
    raw = images["train"].astype(np.uint8)
    expected = np.multiply(raw[:, None], np.float32(1 / 255), dtype=np.float32)
    assert same(source.read()["train"][0], expected)
    assert same(stored(source, tmp_path).prepare(raw), expected)


def test_npz_of_doubles(tmp_path):
    values = np.random.default_rng(0).normal(size=(12, 1, 4, 4))
    labels = np.arange(12) % 3
    np.savez(tmp_path / "a.npz", x_train=values, y_train=labels)
    spec = DataSpec(
        dataset="npz", path=str(tmp_path / "a.npz"), num_records=12, num_classes=3,
        validation=PUBLIC,
    )  # fmt: skip
    source = open_classes(spec)
    assert same(source.read()["train"][0], values.astype(np.float32))
    assert same(stored(source, tmp_path).prepare(values), values.astype(np.float32))


def odd_images():
    """Images of odd sizes in every mode that files of the two suffixes come in."""
    rng = np.random.default_rng(0)

    def pixels(*shape):
        return rng.integers(0, 256, shape, dtype=np.uint8)

    yield "grey.png", Image.fromarray(pixels(7, 13))
    yield "colour.png", Image.fromarray(pixels(33, 5, 3))
    yield "alpha.png", Image.fromarray(pixels(9, 9, 4), "RGBA")
    yield "grey-alpha.png", Image.fromarray(pixels(6, 4, 2), "LA")
    yield "palette.png", Image.fromarray(pixels(20, 11, 3)).quantize(16)
    yield "bits.png", Image.fromarray(pixels(10, 12)).convert("1")
    yield "colour.jpg", Image.fromarray(pixels(17, 23, 3))
    yield "print.jpeg", Image.fromarray(pixels(8, 8, 4), "CMYK")
    yield "one.png", Image.fromarray(pixels(1, 1))


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_a_folder(tmp_path, channels):
    root = tmp_path / "images"
    for number, (name, image) in enumerate(odd_images()):
        (root / f"class{number % 2}").mkdir(parents=True, exist_ok=True)
        image.save(root / f"class{number % 2}" / name)
    spec = DataSpec(
        dataset="image_folder", path=str(root), num_records=9, image_size=[5, 8],
        channels=channels, validation=PUBLIC,
    )  # fmt: skip
    source = open_classes(spec)
    paths = sorted(root.glob("*/*"))
    expected = []
    for path in paths:  # as the reader of dpsweep 0.1 did
        with Image.open(path) as image:
            small = image.convert("L" if channels == 1 else "RGB")
            small = small.resize((8, 5), Image.Resampling.BILINEAR)
        array = np.asarray(small, np.float32) / 255
        expected.append(array[None] if channels == 1 else array.transpose(2, 0, 1))
    assert same(source.read()["train"][0], np.stack(expected))
    again = stored(source, tmp_path)
    assert same(again.prepare(map(str, paths)), np.stack(expected))
    assert same(again.prepare(path.read_bytes() for path in paths), np.stack(expected))
    decoded = []
    for path in paths:
        with Image.open(path) as image:
            image.load()
            plain = image.mode in ("L", "LA", "RGB", "RGBA")
            decoded.append(np.asarray(image) if plain else image)
    assert sum(isinstance(image, np.ndarray) for image in decoded) == 6
    assert same(again.prepare(decoded), np.stack(expected))


def test_texts(tmp_path):
    from tiny_text import save_tokenizer

    tokenizer = save_tokenizer(tmp_path / "tokenizer-of-the-study")
    texts = ["good film", "a b c d e f g h good bad fine poor", "", "unheard of, and bad"]
    lines = "".join(f'"{text}",{n % 2}\n' for n, text in enumerate(texts))
    (tmp_path / "a.csv").write_text(f"review,label\n{lines}")
    spec = DataSpec(
        dataset="text", path=str(tmp_path / "a.csv"), num_records=4, num_classes=2, max_length=7,
        tokenizer=str(tokenizer), text_column="review", validation=PUBLIC,
    )  # fmt: skip
    source = open_classes(spec)
    ids = source.read()["train"][0]
    assert ids.shape == (4, 7)
    assert len({row.tobytes() for row in ids}) == 4
    again = stored(source, tmp_path)
    assert same(again.prepare(texts), ids)
    assert (again.column, again.zero) == ("review", "")


def test_records_of_a_package_that_says_nothing_are_taken_as_a_method_reads_them(tmp_path):
    source = Source((3, 2), 2, ("no", "yes"), 4, None, None, dict)
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    assert same(stored(source, tmp_path).prepare(values), values)
    ids = Source((5,), 2, ("no", "yes"), 4, None, None, dict, text=TextInfo(9, 0))
    assert same(stored(ids, tmp_path).prepare([[1, 2, 3, 0, 0]]), np.array([[1, 2, 3, 0, 0]]))
    with pytest.raises(RecordError, match="must be whole numbers"):
        ids.prepared_by.prepare(np.zeros((1, 5)))


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (np.zeros((3, 27, 28), np.uint8), r"shape \(27, 28\), not \(28, 28\)"),
        (np.zeros(28), r"shape \(\), not"),
        (np.full((1, 28, 28), np.nan), "not finite"),
        ([["a"]], r"shape \(1,\), not"),
        (np.full((1, 28, 28), "a"), "must be numbers"),
        ([[1, 2], [3]], "no array"),
    ],
)
def test_arrays_that_are_refused(records, words):
    with pytest.raises(RecordError, match=words):
        ArrayRecords((28, 28), "uint8", (1, 28, 28), 1 / 255).prepare(records)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"no image", "cannot read an image: UnidentifiedImageError"),
        ("nowhere.png", "cannot read an image: FileNotFoundError"),
        (np.zeros((4, 4)), "float64, and must be uint8"),
        (np.full((4, 4), 256), "int64, and must be uint8"),
        (np.zeros((4, 4, 5), np.uint8), r"shape \(4, 4, 5\) are no image"),
        (np.zeros((0, 4), np.uint8), r"shape \(0, 4\) are no image"),
        (np.zeros(4, np.uint8), r"shape \(4,\) are no image"),
        (None, "object, and must be uint8"),
    ],
)
def test_images_that_are_refused(record, words):
    with pytest.raises(RecordError, match=words):
        ImageRecords(3, 4, 4).prepare([record])


def test_images_of_16_bits_are_refused():
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 60_000, np.uint16)).save(file, "PNG")
    with pytest.raises(RecordError, match="more than 8 bits"):
        ImageRecords(1, 4, 4).prepare([file.getvalue()])


def test_texts_that_are_refused():
    with pytest.raises(RecordError, match="not text"):
        TextRecords(4, 0, tokenizer=dict).prepare(["a", 3])
    with pytest.raises(RecordError, match="ValueError") as error:
        TextRecords(4, 0, tokenizer=dict).prepare(["a secret"])
    assert "secret" not in str(error.value)


def test_examples_are_zeros_and_fit():
    for way in (ArrayRecords((2, 2), "uint8", (1, 2, 2), 0.5), ImageRecords(3, 4, 5)):
        assert not way.prepare([way.zero]).any()
        assert way.prepare([way.zero]).shape == (1, *way.shape)
        assert way.prepare([]).shape == (0, *way.shape)


def test_what_goes_with_a_model_imports_nothing_of_dpsweep():
    tree = ast.parse(Path(preparation.__file__).read_text())
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
    outside = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert outside == {"numpy", "PIL", "transformers"}
