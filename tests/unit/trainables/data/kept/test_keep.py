"""Decoded images: made once, found again, mended, private, and no burden on memory."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

from dpsweep.foundation.errors import DataError, ResourceError
from dpsweep.trainables.data.kept import hashes
from dpsweep.trainables.data.kept import keep as module
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.kept.pixels import PixelFile, Pixels
from dpsweep.trainables.data.loading import load_dataset, public_inputs
from dpsweep.trainables.features.store import FeatureStore

COUNT = 40


@pytest.fixture(autouse=True)
def all_are_many(monkeypatch):
    monkeypatch.setattr(module, "EAGER_BYTES", 0)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(5)
    for number in range(COUNT):
        size = (int(rng.integers(8, 40)), int(rng.integers(8, 40)), 3)
        path = tmp_path / "images" / f"class_{number % 2}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(path)
    return tmp_path / "images"


@pytest.fixture
def spec(make_spec, folder):
    return make_spec(
        dataset="image_folder", path=str(folder), num_records=COUNT, image_size=[9, 7],
        public={"fraction": 0.2},
    )  # fmt: skip


def entries(root):
    return sorted(path.name for path in root.glob("*.npy"))


def test_the_same_records_as_ever(spec, tmp_path, monkeypatch):
    lazy = load_dataset(spec, keep=Keep(tmp_path / "kept"))
    in_memory = load_dataset(spec)
    monkeypatch.setattr(module, "EAGER_BYTES", 10**9)
    arrays = load_dataset(spec, keep=Keep(tmp_path / "unused"))
    assert not (tmp_path / "unused").exists()
    assert isinstance(lazy.parts["private"][0].source, PixelFile)
    assert isinstance(in_memory.parts["private"][0].source, np.ndarray)
    assert isinstance(arrays.parts["private"][0], np.ndarray)
    assert lazy.content_hash == in_memory.content_hash == arrays.content_hash
    assert lazy.hashes == arrays.hashes
    for part, (inputs, labels) in arrays.parts.items():
        np.testing.assert_array_equal(np.asarray(lazy.parts[part][0]), inputs)
        np.testing.assert_array_equal(lazy.parts[part][1], labels)


def test_every_view_of_the_data_is_the_same(spec, tmp_path, monkeypatch):
    views = []
    for eager in (0, 10**9):
        monkeypatch.setattr(module, "EAGER_BYTES", eager)
        data = load_dataset(spec, searched_share=0.5, keep=Keep(tmp_path / "kept"))
        views.append(
            [
                data.for_search(), data.for_final_run(), data.for_public_search(with_test=False),
                data.for_secret_part(0.5, "2a"),
            ]
        )  # fmt: skip
        views[-1].append(public_inputs(spec, most=5, keep=Keep(tmp_path / "kept")))
    *lazy, some = views[0]
    *eager, same = views[1]
    np.testing.assert_array_equal(some, same)
    for one, other in zip(lazy, eager):
        assert (one.info, one.content_hash) == (other.info, other.content_hash)
        for part in one.parts:
            for array, expected in zip(one.parts[part], other.parts[part]):
                np.testing.assert_array_equal(np.asarray(array), expected)


def test_it_is_decoded_once(spec, tmp_path, monkeypatch):
    keep = Keep(tmp_path / "kept")
    first = load_dataset(spec, keep=keep).content_hash

    def refuse(*_):
        raise AssertionError("decoded again")

    monkeypatch.setattr(module.ImageRecords, "pixels", refuse)
    monkeypatch.setattr(hashes, "hashes_of", refuse)
    again = load_dataset(spec, keep=keep)
    assert again.content_hash == first
    monkeypatch.undo()
    assert again.hashes == load_dataset(spec).hashes
    assert len(entries(keep.root)) == 1


def test_remembered_hashes_are_of_these_records_alone(spec, tmp_path, folder):
    keep = Keep(tmp_path / "kept")
    names = ["yes", "no"]
    first = load_dataset(spec, keep=keep)
    for _ in range(2):
        named = load_dataset(spec.model_copy(update={"class_names": names}), keep=keep)
        assert named.content_hash != first.content_hash
        assert named.old_hash == first.old_hash
        fewer = load_dataset(spec.model_copy(update={"max_private": 3}), keep=keep)
        assert fewer.hashes["private"] != first.hashes["private"]
    for path in keep.root.glob("*.json"):  # damaged
        if not path.with_suffix(".npy").exists():
            path.write_text("{}")
    assert load_dataset(spec, keep=keep).content_hash == first.content_hash
    (folder / "class_1" / "001.png").rename(folder / "class_0" / "001.png")  # another label
    assert load_dataset(spec, keep=keep).content_hash != first.content_hash


@pytest.mark.parametrize("change", ["touched", "other", "renamed", "size", "crop", "grey"])
def test_a_change_is_noticed(spec, tmp_path, folder, change):
    keep = Keep(tmp_path / "kept")
    load_dataset(spec, keep=keep)
    path = folder / "class_0" / "000.png"
    update = {"size": {"image_size": (7, 9)}, "crop": {"resize": "crop"}, "grey": {"channels": 1}}
    if change == "touched":
        os.utime(path)
    elif change == "other":  # of the same size, and with its times set back
        before = path.stat()
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "renamed":
        path.rename(path.with_name("zzz.png"))
    load_dataset(spec.model_copy(update=update.get(change, {})), keep=keep)
    assert len(entries(keep.root)) == 2


@pytest.mark.parametrize("damage", ["cut", "header", "sidecar", "gone", "a bit"])
def test_what_is_damaged_is_made_anew(spec, tmp_path, damage):
    keep = Keep(tmp_path / "kept")
    first = load_dataset(spec, keep=keep).content_hash
    (path,) = keep.root.glob("*.npy")
    if damage == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif damage == "header":
        path.write_bytes(b"x" * path.stat().st_size)
    elif damage == "a bit":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "sidecar":
        path.with_suffix(".json").write_text("{")
    else:
        path.unlink()
    again = load_dataset(spec, keep=keep)
    assert again.content_hash == first
    assert entries(keep.root) == [path.name]
    for part, (inputs, _) in load_dataset(spec).parts.items():
        np.testing.assert_array_equal(np.asarray(again.parts[part][0]), np.asarray(inputs))


def test_nobody_else_may_read(spec, tmp_path):
    keep = Keep(tmp_path / "kept")
    load_dataset(spec, keep=keep)
    assert keep.root.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in keep.root.iterdir()} == {0}
    keep.root.chmod(0o755)
    with pytest.raises(ResourceError, match="chmod 700"):
        load_dataset(spec, keep=keep)


def test_a_broken_image_leaves_nothing(spec, tmp_path, folder):
    keep = Keep(tmp_path / "kept")
    (folder / "class_1" / "001.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot read an image") as caught:
        load_dataset(spec, keep=keep)
    assert "001" not in f"{caught.value} {caught.value.fix}"
    assert {path.name for path in keep.root.iterdir()} <= {"lock"}


def test_the_store_counts_and_cleans_them(spec, tmp_path):
    keep = Keep(tmp_path / "kept", max_bytes=10**6)
    data = load_dataset(spec, keep=keep)
    store = FeatureStore(keep.root)
    size = store.num_bytes()
    assert COUNT * 9 * 7 * 3 < size < COUNT * 9 * 7 * 3 + 500
    assert store.clean() == 0  # they are in use
    del data
    assert store.clean() == size
    with pytest.raises(ResourceError, match="do not fit") as caught:
        load_dataset(spec, keep=Keep(keep.root, max_bytes=100))
    assert "data.image_size" in caught.value.fix
    assert not list(keep.root.glob("*.part"))


def test_nodes_that_see_no_file_get_the_bytes(spec, tmp_path):
    data = load_dataset(spec, keep=Keep(tmp_path / "kept", is_shared=False))
    assert isinstance(data.parts["private"][0], Pixels)
    assert isinstance(data.parts["private"][0].source, np.ndarray)


PEAK = """
    import resource, sys
    from dpsweep.spec.study import DataSpec
    from dpsweep.trainables.data.kept import keep as module
    from dpsweep.trainables.data.loading import load_dataset
    from pathlib import Path
    module.EAGER_BYTES = 0
    spec = DataSpec(dataset="image_folder", path=sys.argv[1], num_records=int(sys.argv[2]),
                    image_size=224, validation={"visibility": "public"})
    load_dataset(spec, keep=module.Keep(Path(sys.argv[1] + "_kept")))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_kib(root, count):
    image = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    for number in range(count):
        path = root / f"class_{number % 2}" / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    command = [sys.executable, "-c", textwrap.dedent(PEAK), str(root), str(count)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    few, many = peak_kib(tmp_path / "few", 300), peak_kib(tmp_path / "many", 1500)
    grown = (many - few) * 1024
    assert grown < 0.25 * 1200 * 3 * 224 * 224  # of their bytes; 1/16 of their numbers
