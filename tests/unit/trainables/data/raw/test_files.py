"""Files of raw records are read as the data of a study are, and each mistake is one line."""

import io
import json
import struct
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.npz import npz_headers
from dpsweep.trainables.data.raw.files import read_files

BYTES = {"raw_shape": [4, 4], "raw_dtype": "uint8", "shape": [1, 4, 4], "scale": 1 / 255}
DOUBLES = {"raw_shape": [3], "raw_dtype": "float64", "shape": [3]}
IMAGES = {"channels": 3, "height": 4, "width": 4}
TEXTS = {"length": 4, "pad_id": 0, "column": "review"}


def facts(kind, preparation):
    return {"kind": kind, "preparation": preparation}


def test_arrays_of_several_files(tmp_path):
    values = np.arange(16, dtype=np.uint8).reshape(1, 4, 4)
    np.savez(tmp_path / "a.npz", other=np.zeros(3), x=values)
    np.save(tmp_path / "b.npy", np.concatenate([values, values]))
    Image.fromarray(values[0]).save(tmp_path / "c.png")
    paths = [tmp_path / name for name in ("a.npz", "b.npy", "c.png")]
    names, records = read_files(paths, facts("array", BYTES))
    assert [name.removeprefix(f"{tmp_path}/") for name in names] == [
        "a.npz:0", "b.npy:0", "b.npy:1", "c.png",
    ]  # fmt: skip
    assert records.dtype == np.uint8
    assert (records == values[0]).all()


def test_numbers_become_those_of_the_model(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 3), np.uint8))
    assert read_files([tmp_path / "a.npy"], facts("array", DOUBLES))[1].dtype == np.float64


def save_as(path, values, mode):
    """Write pixels (height, width), uint8, as an image of a mode of Pillow."""
    if mode == "I;16":
        Image.fromarray(values.astype(np.uint16) * 257).save(path)
    elif mode == "quantized":
        Image.fromarray(values).quantize(8).save(path)
    else:
        Image.fromarray(values).convert(mode).save(path)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("a.png", "P"), ("a.png", "quantized"), ("a.gif", "P"), ("a.png", "1"), ("a.tif", "1")],
)
@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (4, 4, 4), (4, 4, 2)])
def test_palettes_and_bits_are_read_as_pixels(tmp_path, name, mode, shape):
    values = (np.eye(4) * 255).astype(np.uint8)
    save_as(tmp_path / name, values, mode)
    preparation = {**BYTES, "raw_shape": list(shape)}
    _, records = read_files([tmp_path / name], facts("array", preparation))
    assert records.shape == (1, *shape)
    planes = records[0].reshape(4, 4, -1)
    if shape in [(4, 4, 2), (4, 4, 4)]:
        assert (planes[..., -1] == 255).all()
        planes = planes[..., :-1]
    assert (planes == values[..., None]).all()


def test_a_transparent_colour_counts_unless_the_model_reads_alpha(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "a.png", transparency=b"\xff\x00")
    for channels, pixel in [(3, [10, 20, 30]), (4, [10, 20, 30, 0])]:
        preparation = {**BYTES, "raw_shape": [4, 4, channels]}
        _, records = read_files([tmp_path / "a.png"], facts("array", preparation))
        assert records[0, 0, 0].tolist() == pixel


@pytest.mark.parametrize(
    ("name", "mode", "shape", "words"),
    [
        ("a.png", "I;16", [4, 4], r"more than 8 bits per channel \(mode I;16\)"),
        ("a.tif", "F", [4, 4], r"more than 8 bits per channel \(mode F\)"),
        ("a.jpg", "CMYK", [4, 4, 4], "has pixels of mode CMYK"),
        ("a.tif", "LAB", [4, 4, 3], "has pixels of mode LAB"),
        ("a.png", "RGB", [4, 4], r"shape \(4, 4, 3\), and the model takes \(4, 4\)"),
        ("a.png", "RGBA", [4, 4, 3], r"shape \(4, 4, 4\), and the model takes \(4, 4, 3\)"),
        ("a.png", "P", [3, 6, 6], r"shape \(4, 4, 3\), and the model takes \(3, 6, 6\)"),
    ],
)
def test_other_pixels_are_refused(tmp_path, name, mode, shape, words):
    if mode == "LAB":
        Image.new("LAB", (4, 4)).save(tmp_path / name)
    elif mode == "CMYK":
        Image.new("CMYK", (4, 4)).save(tmp_path / name)
    else:
        save_as(tmp_path / name, np.zeros((4, 4), np.uint8), mode)
    with pytest.raises(DataError, match=words) as caught:
        read_files([tmp_path / name], facts("array", {**BYTES, "raw_shape": shape}))
    assert name in caught.value.message


@pytest.mark.parametrize(
    ("values", "preparation", "words"),
    [
        (np.full((1, 4, 4), 256, np.uint16), BYTES, "from 256 to 256, and the model takes uint8"),
        (np.full((1, 4, 4), 2**40, np.uint64), BYTES, "and the model takes uint8"),
        (np.ones((1, 4, 4), bool), BYTES, "numbers of bool, and the model takes uint8"),
        (np.ones((1, 4, 4), bool), {**BYTES, "raw_dtype": "float32"}, "numbers of bool"),
        (np.ones((1, 4, 4)), BYTES, "numbers of float64, and the model takes uint8"),
        (np.ones((1, 4), bool), {"raw_shape": [4], "raw_dtype": "int64", "shape": [4]}, "of bool"),
        (
            np.full((1, 4), 2**63, np.uint64),
            {"raw_shape": [4], "raw_dtype": "int64", "shape": [4]},
            "and the model takes int64",
        ),
    ],
)
def test_numbers_that_the_model_cannot_hold_are_refused(tmp_path, values, preparation, words):
    np.savez(tmp_path / "a.npz", inputs=values)
    with pytest.raises(DataError, match=words):
        read_files([tmp_path / "a.npz"], facts("array", preparation))


def test_wider_numbers_that_fit_are_taken(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=np.full((2, 4, 4), 255, np.uint16))
    _, records = read_files([tmp_path / "a.npz"], facts("array", BYTES))
    assert (records.dtype, records.min(), records.max()) == (np.uint8, 255, 255)


def test_images_are_handed_on_as_bytes(tmp_path):
    Image.fromarray(np.zeros((5, 7), np.uint8)).save(tmp_path / "a.png")
    np.save(tmp_path / "b.npy", np.zeros((2, 3, 3, 3), np.uint8))
    names, frame = read_files([tmp_path / "a.png", tmp_path / "b.npy"], facts("image", IMAGES))
    assert len(names) == len(frame) == 3
    assert frame["image"][0] == (tmp_path / "a.png").read_bytes()
    assert frame["image"][2].shape == (3, 3, 3)


def test_texts(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "a.csv").write_text('id,review\n1,"three, and more"\n')
    (tmp_path / "a.jsonl").write_text(json.dumps({"review": "four"}) + "\n\n")
    paths = [tmp_path / f"a.{suffix}" for suffix in ("txt", "csv", "jsonl")]
    names, frame = read_files(paths, facts("text", TEXTS))
    assert list(frame["text"]) == ["one", "two", "three, and more", "four"]
    assert names[1] == f"{tmp_path}/a.txt:1"


def test_a_line_of_a_text_file_ends_at_its_end_alone(tmp_path):
    texts = ["a\x0cb", "c\u2028d", "e\x85f", "g\x1ch\x0bi", "", "j"]
    (tmp_path / "a.txt").write_bytes("\r\n".join(texts).encode())
    (tmp_path / "b.txt").write_bytes(("\n".join(texts) + "\n").encode())
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"review": text}, ensure_ascii=False) + "\n" for text in texts),
        encoding="utf-8",
    )
    (tmp_path / "d.csv").write_text(
        "review\n" + "".join(f'"{text}"\n' for text in texts), encoding="utf-8"
    )
    for name in ("a.txt", "b.txt", "c.jsonl", "d.csv"):
        names, frame = read_files([tmp_path / name], facts("text", TEXTS))
        assert list(frame["text"]) == texts, name
        assert names[-1] == f"{tmp_path / name}:5"


def write(path):
    if path.name.startswith("words"):
        path.write_text("no array\n")
    elif path.name == "cut.npz":
        np.savez(path, x=np.zeros((2, 4, 4), np.uint8))
        path.write_bytes(path.read_bytes()[:-40])
    elif path.name == "array.npz":
        with path.open("wb") as file:
            np.save(file, np.zeros((2, 4, 4), np.uint8))
    elif path.suffix == ".npz":
        np.savez(path, y=np.zeros(3))
    elif path.suffix == ".npy":
        np.save(path, np.zeros((2, 5), np.uint8))
    elif path.name == "objects.csv":
        path.write_text("id\n1\n")
    elif path.name != "missing.npz":
        path.write_text("{nothing")


@pytest.mark.parametrize(
    ("kind", "preparation", "name", "words"),
    [
        ("array", BYTES, "missing.npz", "is not there"),
        ("array", BYTES, "a.npz", "has no array inputs"),
        ("array", BYTES, "words.npz", r"words\.npz is no \.npz file, or damaged"),
        ("array", BYTES, "words.npy", r"words\.npy is no \.npy file, or damaged"),
        ("array", BYTES, "cut.npz", r"cut\.npz is no \.npz file, or damaged"),
        ("array", BYTES, "array.npz", r"array\.npz is no \.npz file, or damaged"),
        ("array", BYTES, "a.npy", r"shape \(5,\), and the model takes \(4, 4\)"),
        ("array", DOUBLES, "a.png", "no kind of file"),
        ("image", IMAGES, "a.png", "cannot be read"),
        ("text", TEXTS, "a.jsonl", "cannot be read"),
        ("text", TEXTS, "objects.csv", "has no column 'review' in row 0"),
        ("text", TEXTS, "a.doc", "no kind of file"),
    ],
)
def test_mistakes_are_one_line(tmp_path, kind, preparation, name, words):
    path = tmp_path / name
    if name != "missing.npz":
        write(path)
    with pytest.raises(DataError, match=words) as error:
        read_files([path], facts(kind, preparation))
    assert name in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("name", "content", "words", "fix"),
    [
        ("a.jsonl", "[1]\n", "cannot be read", "write one JSON object a line"),
        ("a.jsonl", "{nothing", "cannot be read", "write one JSON object a line"),
        ("a.jsonl", "[" * 100_000, "cannot be read", "write one JSON object a line"),
        ("a.jsonl", '{"review": "\\ud800"}', "not valid Unicode in row 0", "clean the text"),
        ("a.jsonl", '{"review": null}', "no text in column 'review' of row 0", "write one, or"),
        ("a.jsonl", '{"review": 3}', "is no text in column 'review' of row 0", "double quotes"),
        ("a.jsonl", '{"review": ["a"]}', "is no text in column 'review' of row 0", "quotes"),
        ("a.jsonl", '{"review": {}}', "is no text in column 'review' of row 0", "quotes"),
        ("a.jsonl", '{"review": true}', "is no text in column 'review' of row 0", "quotes"),
        ("a.csv", "id,reviews\n1,b\n", "column 'review'", "it has 'id', 'reviews'"),
        (
            "a.csv",
            "review;id\nb;1\n",
            "has no column",
            "name the column 'review'; it has 'review;id",
        ),
        ("a.jsonl", "{}", "has no column 'review'", "name the column 'review'; it has none"),
        ("a.csv", "id,review\n1\n", "no text in column 'review' of row 0", "write one, or"),
        ("a.csv", "", "no record is in", "name files that hold some"),
        ("a.csv", "id,review\n", "no record is in", "name files that hold some"),
        ("a.jsonl", "\n", "no record is in", "name files that hold some"),
        ("a.txt", "", "no record is in", "name files that hold some"),
    ],
)
def test_texts_that_are_none(tmp_path, name, content, words, fix):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        read_files([tmp_path / name], facts("text", TEXTS))
    assert fix in caught.value.fix
    assert name in caught.value.message


def test_a_mark_of_byte_order_is_no_part_of_a_text(tmp_path):
    content = {"a.jsonl": '{"review": "one"}\n', "a.txt": "one\n", "a.csv": "review\none\n"}
    for name, text in content.items():
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    _, frame = read_files([tmp_path / name for name in content], facts("text", TEXTS))
    assert list(frame["text"]) == ["one"] * 3


HUGE = {"descr": "|u1", "fortran_order": False, "shape": (10**14, 4, 4)}


def damaged(path):
    """Write a file that is damaged, or made by another program, as its name says."""
    content = io.BytesIO()
    if path.name in ("encrypted.npz", "method.npz"):
        np.savez_compressed(content, inputs=np.zeros((1, 4, 4), np.uint8))
        raw = bytearray(content.getvalue())
        central = raw.rfind(b"PK\x01\x02")
        if path.name == "method.npz":
            raw[8] = raw[central + 10] = 99
        else:
            raw[6], raw[central + 8] = raw[6] | 1, raw[central + 8] | 1
        path.write_bytes(raw)
    elif path.name in ("words.npz", "bytes.npz"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inputs.npy" if path.name == "words.npz" else "inputs", b"no array")
    elif path.name == "objects.npz":
        np.savez(path, inputs=np.array([[1], "a"], dtype=object))
    elif path.name == "header.npy":
        np.save(content, np.zeros((1, 4, 4), np.uint8))
        path.write_bytes(content.getvalue().replace(b"4), }", b"4, , "))
    elif path.name == "huge.npy":
        np.lib.format.write_array_header_1_0(content, HUGE)
        path.write_bytes(content.getvalue() + bytes(16))
    elif path.name == "bomb.png":
        Image.new("L", (1, 1)).save(content, "PNG")
        raw = bytearray(content.getvalue())
        raw[16:24] = struct.pack(">II", 60_000, 60_000)
        raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
        path.write_bytes(raw)
    else:
        np.save(path, {"zero.npy": np.uint8(3), "words.npy": np.array(["a.png"])}[path.name])


@pytest.mark.parametrize(
    ("kind", "preparation", "name", "words"),
    [
        ("array", BYTES, "encrypted.npz", "inputs is damaged"),
        ("array", BYTES, "method.npz", "inputs is damaged"),
        ("array", BYTES, "words.npz", "inputs is no array"),
        ("image", IMAGES, "bytes.npz", "inputs is no array"),
        ("array", BYTES, "objects.npz", "inputs holds objects"),
        ("array", BYTES, "header.npy", "cannot be read"),
        ("array", BYTES, "huge.npy", "give fewer records at once"),
        ("image", IMAGES, "huge.npy", "give fewer records at once"),
        ("array", BYTES, "bomb.png", "cannot be read"),
        ("image", IMAGES, "bomb.png", "cannot be read"),
        ("image", IMAGES, "zero.npy", r"uint8 of shape \(\), and a record is an image"),
        ("image", IMAGES, "words.npy", r"<U5 of shape \(1,\), and a record is an image"),
    ],
)
def test_damages_are_one_line(tmp_path, kind, preparation, name, words):
    damaged(tmp_path / name)
    with pytest.raises(DataError, match=words) as caught:
        read_files([tmp_path / name], facts(kind, preparation))
    assert name in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["encrypted.npz", "method.npz", "words.npz"])
def test_headers_of_such_a_file_are_refused_as_data(tmp_path, name):
    damaged(tmp_path / name)
    with pytest.raises(DataError, match="file, or cut short"):
        npz_headers(tmp_path / name)


@pytest.mark.parametrize(("kind", "preparation"), [("array", BYTES), ("image", IMAGES)])
def test_a_deep_image_is_to_be_stored_with_eight_bits(tmp_path, kind, preparation):
    save_as(tmp_path / "a.png", np.zeros((4, 4), np.uint8), "I;16")
    with pytest.raises(DataError, match="cannot be read") as caught:
        read_files([tmp_path / "a.png"], facts(kind, preparation))
    assert caught.value.because == "an image has more than 8 bits per channel (mode I;16)"
    assert "8 bits per channel" in caught.value.fix
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    with pytest.raises(DataError, match="cannot be read") as caught:
        read_files([tmp_path / "a.png"], facts(kind, preparation))
    assert caught.value.fix == "write the file anew"


def test_a_text_in_another_code_says_which_one_is_read(tmp_path):
    for name in ("a.txt", "a.csv", "a.jsonl"):
        (tmp_path / name).write_bytes("review\n\n".encode("utf-16"))
        with pytest.raises(DataError, match="cannot be read") as caught:
            read_files([tmp_path / name], facts("text", TEXTS))
        assert caught.value.fix == "save it as UTF-8"


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(DataError, match="is a directory"):
        read_files([tmp_path], facts("image", IMAGES))
