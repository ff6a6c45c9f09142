"""The feature store: whole entries or none, found again, shared, bounded, private."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpsweep.foundation.errors import ResourceError
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.hashes import part_hash
from dpsweep.trainables.data.kept.files import Entry
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.features import store as feature_store
from dpsweep.trainables.features.spec import FeatureSpec
from dpsweep.trainables.features.store import FeatureStore

L2 = FeatureSpec.of("identity", norm="l2")
GROUP = FeatureSpec.of("identity", norm="group:2")
MANY = 1300  # three blocks, the last one short


@pytest.fixture
def many(make_blobs: Callable[..., SweepData]) -> SweepData:
    return make_blobs(num_private=MANY, shape=(2, 3))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "studies" / ".features"


def normalised(inputs: np.ndarray) -> np.ndarray:
    flat = inputs.reshape(len(inputs), 6)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def files(root: Path) -> set[str]:
    return {path.suffix for path in root.iterdir()} - {""}


def refuse_to_compute(*_: Any) -> int:
    raise AssertionError("computed again")


@pytest.mark.parametrize("is_kept", [False, True])
def test_features_take_the_place_of_records(many: SweepData, root: Path, is_kept: bool) -> None:
    store = FeatureStore(root if is_kept else None)
    opened = store.open(many, L2)
    for part, (inputs, labels) in many.parts.items():
        features, kept = opened.parts[part]
        np.testing.assert_allclose(features, normalised(inputs), rtol=1e-5)
        assert features.dtype == np.float32
        assert kept is labels
    assert not opened.parts["private"][0].flags.writeable
    assert opened.info == L2.describe(many.info)
    assert opened.content_hash == many.content_hash
    assert store.open(opened, L2) is opened
    assert store.num_entries() == (3 if is_kept else 0)


def test_what_is_there_is_mapped_not_computed(
    many: SweepData, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FeatureStore(root).open(many, L2)
    monkeypatch.setattr(feature_store, "compute_block", refuse_to_compute)
    second = FeatureStore(root).open(many, L2)
    assert np.array_equal(first.parts["private"][0], second.parts["private"][0])
    assert isinstance(second.parts["private"][0].base, np.memmap)
    with pytest.raises(AssertionError, match="computed again"):
        FeatureStore(root).open(many, GROUP)


def test_a_public_search_finds_the_public_records(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DataSpec(
        dataset="digits",
        validation={"fraction": 0.1, "visibility": "public"},
        public={"fraction": 0.2},
        test={"fraction": 0.1, "visibility": "public"},
    )
    data = load_dataset(spec)
    assert data.hashes == {part: part_hash(inputs) for part, (inputs, _) in data.parts.items()}
    opened = FeatureStore(root).open(data, L2)
    monkeypatch.setattr(feature_store, "compute_block", refuse_to_compute)
    for with_test in (True, False):
        search = data.for_public_search(with_test=with_test)
        monkeypatch.setattr(feature_store, "part_hash", refuse_to_compute)
        found = FeatureStore(root).open(search, L2)
        assert np.array_equal(found.parts["private"][0], opened.parts["public"][0])
        assert len(found.parts["test"][0]) == (len(opened.parts["test"][0]) if with_test else 0)


def test_the_address_is_the_records_and_the_spec(many: SweepData, root: Path) -> None:
    store = FeatureStore(root)
    store.open(many, L2)
    inputs, labels = many.parts["private"]
    changed = inputs.copy()
    changed[7, 0, 0] += 1
    other = replace(many, parts={**many.parts, "private": (changed, labels)})
    assert store.missing(many, L2) == []
    assert store.missing(other, L2) == ["private"]
    assert store.missing(many, GROUP) == ["private", "validation", "test"]
    reshaped = inputs.reshape(MANY, 3, 2)
    assert part_hash(reshaped) != part_hash(inputs)


def test_raw_records_are_not_copied(many: SweepData, root: Path) -> None:
    opened = FeatureStore(root).open(many, FeatureSpec.of("identity", norm="none"))
    assert np.shares_memory(opened.parts["private"][0], many.parts["private"][0])
    assert opened.parts["private"][0].shape == (MANY, 6)
    assert not root.exists()


def test_only_the_owner_may_read(many: SweepData, root: Path) -> None:
    FeatureStore(root, 10**9).open(many, L2)
    assert root.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in root.iterdir()} == {0}


def test_the_sidecar_says_what_it_is(many: SweepData, root: Path) -> None:
    FeatureStore(root).open(replace(many, parts={"private": many.parts["private"]}), L2)
    (sidecar,) = root.glob("*.json")
    facts = json.loads(sidecar.read_text())
    assert facts.pop("created")
    assert facts == {
        "extractor": "identity",
        "settings": {"norm": "l2"},
        "dtype": "float32",
        "shape": [MANY, 6],
        "rows": MANY,
        "bytes": sidecar.with_suffix(".npy").stat().st_size,
    }


def _truncate(entry: Entry) -> None:
    os.truncate(entry.data, entry.data.stat().st_size - 4)


def _forget(entry: Entry) -> None:
    entry.sidecar.unlink()


def _garble(entry: Entry) -> None:
    entry.sidecar.write_text("{")


def _behead(entry: Entry) -> None:
    raw = entry.data.read_bytes()
    entry.data.write_bytes(raw.replace(b"'<f4'", b"'<i4'"))


@pytest.mark.parametrize("damage", [_truncate, _forget, _garble, _behead])
def test_a_damaged_entry_is_computed_again(
    damage: Callable[[Entry], None], many: SweepData, root: Path
) -> None:
    store = FeatureStore(root)
    store.open(many, L2)
    for path in sorted(root.glob("*.npy")):
        damage(Entry(path))
    assert store.missing(many, L2) == ["private", "validation", "test"]
    opened = store.open(many, L2)
    np.testing.assert_allclose(
        opened.parts["private"][0], normalised(many.parts["private"][0]), rtol=1e-5
    )


def test_a_killed_creator_leaves_nothing_that_counts(many: SweepData, root: Path) -> None:
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:  # computes one block, then hangs until it is killed
        with FeatureStore(root).creating(many, L2, "private") as creation:
            assert creation is not None
            next(iter(creation.fill()))
            os.write(done, b"x")
            time.sleep(60)
        os._exit(1)
    assert os.read(ready, 1) == b"x"
    store = FeatureStore(root)
    assert store.clean() == 0  # it is still computing
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert files(root) == {".part", ".lock"}
    assert store.missing(many, L2, ["private"]) == ["private"]
    store.open(many, L2)
    assert files(root) == {".npy", ".json"}


def test_an_error_half_way_leaves_nothing(many: SweepData, root: Path) -> None:
    store = FeatureStore(root)

    def failing(function: Callable[[Any], int], jobs: Iterable[Any]) -> Iterator[int]:
        yield function(next(iter(jobs)))
        raise KeyboardInterrupt

    def attempt() -> None:
        with store.creating(many, L2, "private") as creation:
            assert creation is not None
            list(creation.fill(failing))

    with pytest.raises(KeyboardInterrupt):
        attempt()
    assert files(root) == set()
    assert store.num_bytes() == 0


def test_stopping_early_does_not_finish_an_entry(many: SweepData, root: Path) -> None:
    store = FeatureStore(root)
    with store.creating(many, L2, "private") as creation:
        assert creation is not None
        assert next(iter(creation.fill())) == 512
    assert store.missing(many, L2, ["private"]) == ["private"]


def test_blocks_may_be_computed_anywhere_in_any_order(many: SweepData, root: Path) -> None:
    def scattered(function: Callable[[Any], int], jobs: Iterable[Any]) -> Iterator[int]:
        for job in reversed([pickle.dumps(job) for job in jobs]):
            yield function(pickle.loads(job))

    store = FeatureStore(root)
    with store.creating(many, L2, "private") as creation:
        assert creation is not None
        assert list(creation.fill(scattered)) == [276, 788, MANY]
    memory = FeatureStore(None).open(many, L2)
    opened = store.open(many, L2)
    assert np.array_equal(opened.parts["private"][0], memory.parts["private"][0])


def test_a_second_creator_waits_and_finds_them(many: SweepData, root: Path) -> None:
    store, waiting, found = FeatureStore(root), threading.Event(), []

    def wait() -> None:
        with FeatureStore(root).creating(many, L2, "private", waiting.set) as creation:
            found.append(creation)

    with store.creating(many, L2, "private") as creation:
        second = threading.Thread(target=wait)
        second.start()
        assert waiting.wait(5)
        time.sleep(0.05)
        assert found == []
        assert creation is not None
        list(creation.fill())
    second.join(5)
    assert found == [None]


def size_of_one(data: SweepData, tmp_path: Path) -> int:
    store = FeatureStore(tmp_path / "probe")
    store.open(data, L2)
    return store.num_bytes()


def only_private(data: SweepData, shift: float = 0.0) -> SweepData:
    inputs, labels = data.parts["private"]
    return replace(data, parts={"private": (inputs + np.float32(shift), labels)})


def age(root: Path, days: int) -> None:
    for path in root.glob("*.json"):
        then = path.stat().st_mtime - 86_400 * days
        os.utime(path, (then, then))


def test_the_least_recently_used_makes_room(many: SweepData, root: Path, tmp_path: Path) -> None:
    one, two, three = (only_private(many, shift) for shift in (0.0, 1.0, 2.0))
    room = int(2.5 * size_of_one(one, tmp_path))
    FeatureStore(root, room)
    store = FeatureStore(root)  # the bound holds for whoever opens the store
    store.open(one, L2)
    age(root, 2)
    store.open(two, L2)
    age(root, 2)
    store.missing(one, L2, ["private"])  # asked for now by a study, though older
    store.open(three, L2)
    assert store.missing(two, L2, ["private"]) == ["private"]
    assert store.missing(one, L2, ["private"]) == []
    assert store.num_bytes() <= room


def test_what_is_held_open_is_not_evicted(many: SweepData, root: Path, tmp_path: Path) -> None:
    one, two, three = (only_private(many, shift) for shift in (0.0, 1.0, 2.0))
    size = size_of_one(one, tmp_path)
    store = FeatureStore(root, int(2.5 * size))
    held = [store.open(one, L2).parts["private"][0][5:], store.open(two, L2)]
    with pytest.raises(ResourceError, match=r"do not fit in .*\.features") as caught:
        store.open(three, L2)
    assert "storage.features_gb" in str(caught.value.because)
    assert "storage.features_gb" in str(caught.value.fix)
    assert store.clean() == 0
    del held[1]
    store.open(three, L2)
    assert store.missing(one, L2, ["private"]) == []
    np.testing.assert_allclose(held[0], normalised(one.parts["private"][0])[5:], rtol=1e-5)


def test_a_full_disk_is_told(many: SweepData, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    with pytest.raises(ResourceError, match="do not fit on the disk") as caught:
        FeatureStore(root).open(many, L2)
    assert "storage.features" in str(caught.value.fix)
    assert files(root) == set()


def test_a_directory_that_cannot_be_made_is_told(many: SweepData, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="features cannot be kept in") as caught:
        FeatureStore(tmp_path / "file" / "features").open(many, L2)
    assert "storage.features" in str(caught.value.fix)


def test_half_precision_is_rounded_once(many: SweepData, root: Path) -> None:
    half = replace(L2, dtype="float16")
    exact = FeatureStore(None).open(many, L2).parts["private"][0]
    found = FeatureStore(root).open(many, half)
    assert found.parts["private"][0].dtype == np.float16
    assert np.array_equal(found.parts["private"][0], exact.astype(np.float16))
    assert found.info.features != L2.key


@pytest.mark.parametrize("is_kept", [False, True])
def test_values_beyond_half_precision_become_infinite_without_a_word(
    many: SweepData, root: Path, is_kept: bool
) -> None:
    """An error would tell that there is such a record; training ignores what is not finite."""
    spec = FeatureSpec.of("identity", norm="none", dtype="float16")
    store = FeatureStore(root if is_kept else None)
    inputs = many.parts["private"][0].copy()
    inputs[700, 1, 1] = 7e4
    inputs[900, 1, 1] = np.nan
    opened = store.open(replace(many, parts={"private": (inputs, many.parts["private"][1])}), spec)
    assert np.flatnonzero(~np.isfinite(opened.parts["private"][0]).all(1)).tolist() == [700, 900]


def test_clean_gives_back_what_nobody_uses(many: SweepData, root: Path) -> None:
    store = FeatureStore(root)
    assert store.clean() == 0
    held = store.open(only_private(many), L2)
    kept = store.num_bytes()
    store.open(only_private(many, 1.0), L2)
    (root / f"{'0' * 32}.abcd.part").write_bytes(b"1234567")
    (root / f"{'1' * 32}.lock").touch()
    freed = store.num_bytes() - kept
    assert store.clean() == freed
    assert store.num_bytes() == kept == freed - 7
    assert files(root) == {".npy", ".json"}
    del held
    assert store.clean() == kept
    assert files(root) == set()
