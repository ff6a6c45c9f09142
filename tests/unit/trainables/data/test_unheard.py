"""Of a single private record nothing is said while it is read: by a library, or in an error."""

import io
import json
import logging
import os
import shutil
import struct
import warnings

import numpy as np
import pytest
from PIL import Image
from tiny_text import PAD, save_encoder, save_gpt2

from dpsweep.foundation.errors import DataError, ResourceError
from dpsweep.trainables.data import class_split, loading
from dpsweep.trainables.data.loading import load_dataset, public_inputs
from dpsweep.trainables.data.raw.preparation import TextRecords, TooLongError
from dpsweep.trainables.data.raw.reading import reading
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.data.text import opening
from dpsweep.trainables.data.text.opening import load_tokenizer
from dpsweep.trainables.data.text.tables import open_tables

SECRET = "139 pixels of jane-roe"


class PanicException(BaseException):
    """As a panic of Rust comes out of a package: no ``Exception``."""


@pytest.fixture
def heard(capfd, caplog, recwarn):
    """Return all that was said: warnings, logs, and lines of C and of Python."""

    def all_of_it():
        said = capfd.readouterr()
        return [*caplog.messages, *map(str, recwarn.list), *said.out.split(), *said.err.split()]

    warnings.simplefilter("always")
    caplog.set_level(logging.WARNING)
    return all_of_it


def bomb():
    file = io.BytesIO()
    Image.new("L", (10007, 10009)).save(file, "PNG")
    return file.getvalue()


def palette():
    file = io.BytesIO()
    Image.linear_gradient("L").convert("P").save(file, "PNG", transparency=bytes(range(200)))
    return file.getvalue()


def wrong_tag():
    """A tag of a TIFF has more values than it may."""
    file = io.BytesIO()
    Image.new("L", (20, 20)).save(file, "TIFF")
    content = bytearray(file.getvalue())
    begin = struct.unpack("<I", content[4:8])[0]
    for place in range(begin + 2, begin + 2 + 12 * content[begin], 12):
        if struct.unpack("<H", content[place : place + 2])[0] == 284:
            content[place + 4 : place + 8] = struct.pack("<I", 2)
    return bytes(content)


def bad_fax():
    """Of damaged lines libtiff says which they are, in C, and reads on."""
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 2, (64, 64)).astype(bool)
    Image.fromarray(pixels).save(file, "TIFF", compression="group4")
    content = bytearray(file.getvalue())
    begin = struct.unpack("<I", content[4:8])[0]
    middle = (8 + begin) // 2 if begin > 80 else (begin + len(content)) // 2
    content[middle : middle + 30] = b"\xa5" * 30
    return bytes(content)


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            place = tmp_path / "photos" / name / f"{number}.png"
            Image.new("L", (8, 8), number).save(place)
    return tmp_path / "photos"


def image_spec(make_spec, folder):
    return make_spec(
        dataset="image_folder", path=str(folder), num_records=20, image_size=8, channels=1
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("odd", [bomb, palette, wrong_tag, bad_fax], ids=lambda odd: odd.__name__)
def test_images_of_which_pillow_has_something_to_say(make_spec, folder, heard, odd):
    end = ".png" if odd in (bomb, palette) else ".tif"
    (folder / "cat" / "5.png").unlink()
    (folder / "cat" / f"5{end}").write_bytes(odd())
    with Image.open(folder / "cat" / f"5{end}") as image:
        image.convert("L")
    assert heard()  # of that image alone, as everybody else reads it
    warnings.simplefilter("always")
    before = heard()
    load_dataset(image_spec(make_spec, folder))
    assert heard() == before


def test_an_image_that_cannot_be_read_is_not_named_in_a_traceback(make_spec, folder):
    (folder / "cat" / "5.png").write_bytes(b"none")
    with pytest.raises(DataError, match="cannot read an image: UnidentifiedImageError") as caught:
        load_dataset(image_spec(make_spec, folder))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.fixture
def text_spec(make_spec, tmp_path):
    def of(tokenizer, texts, **more):
        rows = [{"text": a, "b": b, "label": i % 2} for i, (a, b) in enumerate(texts)]
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return make_spec(
            dataset="text", path=str(tmp_path / "t.jsonl"), num_records=len(texts),
            tokenizer=str(tokenizer), **more,
        )  # fmt: skip

    return of


@pytest.fixture
def in_python(tmp_path):
    """A tokenizer that is written in Python, as few of them are."""
    transformers = pytest.importorskip("transformers")
    transformers.ByT5Tokenizer().save_pretrained(tmp_path / "byt5")
    return tmp_path / "byt5"


TEXTS = [("good film", "bad book")] * 19 + [("good film", "bad " * 40)]
PAIR = {"num_classes": 2, "text_pair_column": "b", "max_length": 48}


def test_a_prompt_longer_than_a_model_takes(text_spec, tmp_path, heard):
    tokenizer = load_tokenizer(str(save_gpt2(tmp_path / "gpt2")))
    tokenizer.model_max_length = 8
    tokenizer.save_pretrained(tmp_path / "short")
    columns = {"prompt_column": "text", "target_column": "b"}
    more = {"task": "causal_lm", "num_classes": None, "max_length": 16}
    load_dataset(text_spec(tmp_path / "short", TEXTS, **columns, **more))
    assert heard() == []


def test_a_pair_that_is_cut_by_a_tokenizer_in_python(text_spec, in_python, heard):
    load_dataset(text_spec(in_python, TEXTS, **PAIR))
    assert heard() == []


def test_a_pair_that_does_not_fit_tells_no_length(text_spec, in_python, heard):
    """Such a tokenizer cuts nothing then, and says so in its log alone."""
    with pytest.raises(DataError) as caught:
        load_dataset(text_spec(in_python, TEXTS, truncation="only_first", **PAIR))
    assert caught.value.message == (
        "texts of train cannot be read: a record does not fit, however much is cut (only_first)"
    )
    assert "longest_first" in caught.value.fix
    assert heard() == []
    records = TextRecords(8, PAD, tokenizer=load_tokenizer(str(in_python)), pair_column="b",
                          truncation="only_second")  # fmt: skip
    with pytest.raises(TooLongError):
        records.prepare([("film " * 9, "a")])


@pytest.mark.parametrize("kind", [ValueError, MemoryError, PanicException, DataError])
def test_errors_of_others_are_told_by_kind_and_place(kind):
    """A ``DataError`` that is not raised by dpsweep is another's, too."""
    with pytest.raises(DataError, match="text cannot be read") as caught, reading("text"):
        raise kind(SECRET)
    error = caught.value
    assert error.because.startswith(f"{kind.__name__} at test_unheard.py:")
    assert SECRET not in str(error)
    assert ("more memory" in error.fix) == (kind is MemoryError)
    assert error.__cause__ is None
    assert error.__suppress_context__


class Cancelled(BaseException):
    """As of pytest-timeout, asyncio or a notebook."""


@pytest.mark.parametrize("kind", [Cancelled, KeyboardInterrupt, GeneratorExit])
def test_what_ends_the_program_passes_and_shows_no_error_before_it(kind):
    ends = kind()

    def stops():
        try:
            raise ValueError(SECRET)
        except ValueError:
            raise ends  # noqa: B904

    with pytest.raises(kind) as caught, reading("text"):
        stops()
    assert caught.value is ends
    assert ends.__suppress_context__


@pytest.mark.parametrize(("code", "status"), [(0, 0), (143, 143), (None, None), (SECRET, 1)])
def test_an_exit_keeps_its_status_and_loses_its_words(code, status):
    with pytest.raises(SystemExit) as caught, reading("text"):
        raise SystemExit(code)
    assert caught.value.code == status
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_an_error_of_our_own_keeps_its_words_and_loses_its_cause(make_spec):
    """Which may be a library's, with a record in its words."""
    spec = make_spec(dataset="npz", path="none.npz", num_records=9, num_classes=2)

    def fails():
        try:
            raise ValueError(SECRET)
        except ValueError:
            open_source(spec)

    with pytest.raises(DataError, match="no file") as caught, reading("npz"):
        fails()
    assert caught.value.__suppress_context__


def test_a_full_disk_and_ctrl_c_stay_what_they_are():
    with pytest.raises(OSError, match="No space left") as caught, reading("npz"):
        raise OSError(28, SECRET, "/photos/jane-roe.png")
    assert caught.value.filename is None
    assert SECRET not in str(caught.value)
    with pytest.raises(KeyboardInterrupt), reading("npz"):
        raise KeyboardInterrupt
    with pytest.raises(DataError, match="FileNotFoundError at"), reading("npz"):
        raise FileNotFoundError(2, "none", "/photos/jane-roe.png")


def speaking(monkeypatch, module):
    """Have a source of a module say something of a record, and fail."""
    real = module.open_source if module is class_split else module.open_classes

    def opened(spec):
        source = real(spec)

        def records(keep=None):
            warnings.warn(SECRET, stacklevel=1)
            logging.getLogger("library").error(SECRET)
            os.write(2, SECRET.encode())
            raise ValueError(SECRET)

        object.__setattr__(source, "read", records)
        object.__setattr__(source, "read_kept", None)
        return source

    monkeypatch.setattr(module, real.__name__, opened)


@pytest.mark.parametrize(
    ("module", "read"),
    [
        (loading, load_dataset),
        (loading, lambda spec: public_inputs(spec, most=4)),
        (class_split, lambda spec: class_split.read_classes(spec, [0, 1])),
    ],
    ids=["load_dataset", "public_inputs", "read_classes"],
)
def test_whoever_reads_private_records_says_nothing_of_them(
    make_spec, monkeypatch, heard, module, read
):
    speaking(monkeypatch, module)
    with pytest.raises(DataError, match="records of digits cannot be read") as caught:
        read(make_spec(dataset="digits", public={"fraction": 0.2}))
    assert SECRET not in str(caught.value)
    assert heard() == []


def test_an_error_of_a_tokenizer_is_told_by_its_kind(text_spec, tmp_path, monkeypatch):
    def fails(*texts):
        raise ValueError(SECRET)

    monkeypatch.setattr(TextRecords, "prepare", fails)
    source = open_source(text_spec(save_encoder(tmp_path / "bert"), TEXTS, **PAIR))
    with pytest.raises(DataError, match="texts of train cannot be read: ValueError at") as caught:
        source.read()
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(ResourceError):  # which are ours keep their words
        opening._tokenize(lambda: (_ for _ in ()).throw(ResourceError("no room")), "train")


def test_a_saved_text_that_is_no_unicode_is_not_quoted(tmp_path):
    datasets = pytest.importorskip("datasets")
    arrow = pytest.importorskip("pyarrow")
    texts = arrow.array([b"good", b"\xffjane"]).view(arrow.string())
    datasets.Dataset(arrow.table({"text": texts})).save_to_disk(tmp_path / "d")
    (table,) = open_tables(tmp_path / "d")[0].values()
    with pytest.raises(DataError, match="not UTF-8") as caught:
        table.read(["text"])
    assert caught.value.__suppress_context__
    assert "0xff" not in str(caught.value)
    shutil.rmtree(tmp_path / "d")
