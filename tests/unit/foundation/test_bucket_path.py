"""Paths in a bucket, against an S3-compatible store of the test's own."""

import socket

import pytest

from dpsweep.foundation import bucket_path
from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import BadInputError, StorageError, UnreachableError
from dpsweep.foundation.file_paths import file_path, on_disk, set_aside
from tests.helpers import buckets


@pytest.fixture(scope="module")
def bucket():
    with buckets.running() as bucket:
        yield bucket


@pytest.fixture
def folder(bucket, request):
    return BucketPath("s3", f"lab/{request.node.name.split('[')[0]}")


def test_an_object_is_written_read_replaced_and_removed(folder):
    path = folder / "trials" / "0000" / "trial.json"
    assert not path.exists()
    assert not folder.exists()
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert (path.read_text(), path.size(), path.is_file()) == ("two", 3, True)
    assert folder.is_dir()
    assert not folder.is_file()
    path.unlink()
    assert not path.is_file()
    with pytest.raises(FileNotFoundError):
        path.read_bytes()
    with pytest.raises(FileNotFoundError):
        path.unlink()
    path.unlink(missing_ok=True)


def test_a_folder_is_listed_by_patterns(folder):
    for name in ("last-000001.ckpt", "last-000002.ckpt", "last.json", "best/deep.json"):
        (folder / name).write_bytes(b"x")
    assert [p.name for p in folder.glob("last-*.ckpt")] == ["last-000001.ckpt", "last-000002.ckpt"]
    assert [str(p) for p in folder.glob("*/deep.json")] == [f"{folder}/best/deep.json"]
    assert [p.name for p in folder.iterdir()] == [
        "best", "last-000001.ckpt", "last-000002.ckpt", "last.json",
    ]  # fmt: skip
    assert list((folder / "none").glob("*")) == []


def test_a_damaged_object_is_set_aside_and_kept(folder):
    (folder / "last.json").write_bytes(b"damaged")
    target = set_aside(folder / "last.json")
    assert target.name == "last.json.damaged-1"
    assert target.read_bytes() == b"damaged"
    assert not (folder / "last.json").exists()


def test_large_files_go_there_and_back(folder, tmp_path):
    content = bytes(range(256)) * 80_000  # two parts of an upload
    (tmp_path / "rows").write_bytes(content)
    (folder / "rows").upload(tmp_path / "rows")
    (folder / "rows").download(tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


def test_libraries_get_copies_on_disk(folder, tmp_path):
    for name in ("a.csv", "b.csv"):
        (folder / "pictures" / name).write_bytes(name.encode())
    with on_disk(folder / "pictures") as copy:
        assert copy.name == "pictures"
        assert {p.name: p.read_text() for p in copy.iterdir()} == {
            "a.csv": "a.csv",
            "b.csv": "b.csv",
        }
    assert not copy.exists()
    with on_disk(folder / "pictures" / "a.csv") as copy:
        assert copy.read_text() == "a.csv"
    with on_disk(folder / "none") as copy:
        assert not copy.exists()
    with on_disk(tmp_path) as copy:
        assert copy is tmp_path


def test_the_paths_of_a_study_are_names_alone():
    path = file_path("s3://lab/studies//digits/")
    assert str(path) == "s3://lab/studies/digits"
    assert path.with_name("other").as_uri() == "s3://lab/studies/other"
    assert (path / "a.tar").with_suffix(".gz").name == "a.gz"
    assert path.parent.parent.parent == BucketPath("s3", "lab")
    assert path.resolve() is path
    assert str(file_path("gcs://lab/x")) == "gs://lab/x"
    assert str(file_path("a/b")) == "a/b"


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3:/lab/x",
        "s3:///x",
        "s3://LAB/x",
        "http://lab/x",
        "s3://lab/../x",
        "file:///x",
        "s3://[lab/x",
    ],
)
def test_an_address_of_no_bucket_is_refused(text):
    with pytest.raises(BadInputError, match="not an address of a bucket"):
        file_path(text)


@pytest.mark.parametrize(
    "text", ["s3://key:secret@lab/x", "s3://lab/x?secret_key=secret", "s3://lab/x#secret"]
)
def test_credentials_in_an_address_are_refused_and_not_shown(text):
    with pytest.raises(BadInputError, match="no credentials") as caught:
        file_path(text)
    assert "secret" not in str(caught.value).lower().replace("aws_secret_access_key", "")


def test_a_bucket_that_is_not_there_is_named(bucket):
    path = BucketPath("s3", "nobody/x")
    with pytest.raises(StorageError, match="s3://nobody/x") as caught:
        write_atomically(path, b"x")
    assert caught.value.because == "there is no such bucket"
    assert not path.exists()


def test_a_store_that_is_away_is_told_from_one_that_refuses(monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setattr(bucket_path, "_TRIES", 2)
    buckets.forget()
    with pytest.raises(UnreachableError, match="cannot write s3://lab/x") as caught:
        BucketPath("s3", "lab/x").write_bytes(b"x")
    assert caught.value.because.startswith("the object store does not answer")
    buckets.forget()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation", UnreachableError),
        ("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7", UnreachableError),
        ("google::cloud::Status(UNAVAILABLE: Retry policy exhausted)", UnreachableError),
        ("AWS Error ACCESS_DENIED during PutObject operation", StorageError),
        ("AWS Error UNKNOWN (HTTP status 301) during HeadObject operation", StorageError),
    ],
)
def test_what_may_do_well_later_is_told_from_what_may_not(text, kind):
    assert type(bucket_path._refusal("cannot read s3://lab/x", text)) is kind


def test_an_object_is_written_whole_or_not_at_all(folder):
    (folder / "x").write_bytes(b"old")
    with pytest.raises(TypeError):
        (folder / "x").write_bytes("new")  # type: ignore[arg-type]
    assert (folder / "x").read_bytes() == b"old"
