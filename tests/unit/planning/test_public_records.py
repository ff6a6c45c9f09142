"""Public records of another file: what `validate` says of them, and what a run refuses."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_sets import mnist
from PIL import Image
from raw_specs import changed

from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.problems import check_records, record_notes
from dpsweep.planning.public_records import check_overlap
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.kept.pixels import Pixels
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.data.source import whole
from dpsweep.trainables.data.sources import open_source

NUM = 120


def store(path: Path, num: int, *, seed: int, labels: np.ndarray | None = None) -> str:
    x = np.random.default_rng(seed).normal(size=(num, 1, 4, 4)).astype(np.float32)
    np.savez(path, x_train=x, y_train=np.arange(num) % 2 if labels is None else labels)
    return str(path)


@pytest.fixture
def raw(tmp_path: Path) -> dict[str, Any]:
    return {
        "name": "shots",
        "data": {
            "dataset": "npz", "path": store(tmp_path / "own.npz", NUM, seed=0),
            "num_records": NUM, "num_classes": 2, "validation": {"visibility": "public"},
            "public": {"path": store(tmp_path / "other.npz", 40, seed=1)},
        },
        "privacy": {
            "delta": 1e-3, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 4.0,
        },
        "search": {
            "sampler": "random", "num_trials": 2,
            "space": {"method": "adamix", "features.name": "none", "public.shots": 5},
        },
        "storage": {"path": str(tmp_path / "studies")},
        "tracking": {"uri": None},
    }  # fmt: skip


def pretrain_on(raw: dict[str, Any], path: Path) -> None:
    """Let trials start from weights that are trained on a file."""
    raw["data"]["public"] = {}
    raw["search"]["space"] = {
        "method": "dp_sgd", "model.name": "small_resnet", "model.checkpoint": "pretrain",
    }  # fmt: skip
    raw["pretrain"] = {
        "dataset": "npz", "path": str(path), "num_classes": 2, "model": "small_resnet",
    }  # fmt: skip


def lines(raw: dict[str, Any], **changes: Any) -> list[str]:
    spec = SweepSpec(**changed(raw, {key.replace("__", "/"): v for key, v in changes.items()}))
    with pytest.raises(SpecError) as caught:
        preflight(spec)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_public_records_change_no_plan(raw: dict[str, Any]) -> None:
    with_file = preflight(SweepSpec(**raw))
    own = changed(raw, {"data/public": {"fraction": 0.2}})
    share = preflight(SweepSpec(**own))
    assert with_file.info.num_private == 96
    assert share.info.num_private == 72
    plans = [checked.admit(0, {"method": "adamix"}).plan for checked in (with_file, share)]
    assert plans[0] == plans[1]  # full batches: not even the number of records is in it


def test_shots_that_a_file_lacks_are_said_before_anything_is_computed(
    raw: dict[str, Any], tmp_path: Path
) -> None:
    labels = np.array([0] * 37 + [1] * 3)
    raw["data"]["public"]["path"] = store(tmp_path / "few.npz", 40, seed=1, labels=labels)
    (line,) = lines(raw)
    assert line.startswith("data.public: class '1' has 3 public records, fewer than public.shots=5")
    (line,) = lines(raw, data__public__per_class=4, search__space={"method": "dp_sgd"})
    assert "class '1' has 3 records that can be public" in line
    raw["data"]["public"]["path"] = store(tmp_path / "odd.npz", 40, seed=1, labels=labels * 2)
    (line,) = lines(raw)
    assert "labels outside 0..1" in line


def test_shots_need_labels(raw: dict[str, Any]) -> None:
    for labels in ("bought", "hidden"):
        (line,) = lines(raw, data__public__labels=labels)
        assert f"draws shots by the labels of public records, which are {labels}" in line


def test_a_share_that_is_blind_to_classes_is_noted(raw: dict[str, Any]) -> None:
    few = preflight(SweepSpec(**changed(raw, {"data/public": {"fraction": 0.1}})))
    assert any("12 records whatever their class" in note for note in few.notes)
    for public in ({"fraction": 0.4}, {"per_class": 5}, raw["data"]["public"]):
        checked = preflight(SweepSpec(**changed(raw, {"data/public": public})))
        assert not any("whatever their class" in note for note in checked.notes)


def test_the_private_file_under_another_name(raw: dict[str, Any], tmp_path: Path) -> None:
    copy = tmp_path / "copy.npz"
    copy.write_bytes(Path(raw["data"]["path"]).read_bytes())
    (line,) = lines(raw, data__public__path=str(copy))
    assert line.startswith("data.public.path: has the content of the study's own data")
    changed_file = bytearray(copy.read_bytes())
    changed_file[-1] ^= 1  # the same size is no proof
    copy.write_bytes(bytes(changed_file))
    preflight(SweepSpec(**changed(raw, {"data/public/path": str(copy)})))


def test_the_private_file_under_another_name_in_pretrain(
    raw: dict[str, Any], tmp_path: Path
) -> None:
    """Weights that it gave would be those of training on all private records without noise."""
    copy = tmp_path / "copy.npz"
    copy.write_bytes(Path(raw["data"]["path"]).read_bytes())
    pretrain_on(raw, copy)
    said = "pretrain.path: has the content of the study's own data, which are private"
    assert any(line.startswith(said) for line in lines(raw))
    other = store(tmp_path / "others.npz", NUM, seed=3)
    raw["pretrain"]["path"] = other
    preflight(SweepSpec(**raw))


@pytest.mark.parametrize(("copied", "is_refused"), [(NUM, True), (90, True), (0, False)])
def test_private_records_in_another_file_of_pretrain(
    raw: dict[str, Any], tmp_path: Path, copied: int, is_refused: bool
) -> None:
    """Stored anew it has another content, and the same records."""
    x = np.load(raw["data"]["path"])["x_train"].copy()
    x[copied:] += 1
    anew = tmp_path / "anew.npz"
    np.savez_compressed(anew, x_train=x, y_train=np.arange(NUM) % 2)
    pretrain_on(raw, anew)
    spec = SweepSpec(**raw)
    preflight(spec)
    if is_refused:
        with pytest.raises(DataError, match="half of the records of pretrain or more"):
            check_records(spec, {}, load_dataset(spec.data), {})
    else:
        check_records(spec, {}, load_dataset(spec.data), {})


@pytest.mark.parametrize(("copied", "is_refused"), [(40, True), (20, True), (19, False)])
def test_a_file_that_is_half_private(
    raw: dict[str, Any], tmp_path: Path, copied: int, is_refused: bool
) -> None:
    x = np.load(raw["data"]["path"])["x_train"]
    path = raw["data"]["public"]["path"]
    others = np.load(path)["x_train"]
    parted = load_dataset(SweepSpec(**raw).data).parts["private"][0]
    others[:copied] = parted[:copied]
    assert {row.tobytes() for row in others[:copied]} <= {row.tobytes() for row in x}
    np.savez(path, x_train=others, y_train=np.arange(40) % 2)
    spec = SweepSpec(**raw)
    data = load_dataset(spec.data)
    if is_refused:
        with pytest.raises(DataError, match="half of the records of npz "):
            check_records(spec, {}, data, {})
    else:
        check_records(spec, {}, data, {})
    assert record_notes(spec, data) == []  # a study with a claim tells of no single record
    open_spec = SweepSpec(**changed(raw, {"privacy": {"accounting": "unaccounted", "trial_epsilon": 2, "delta": 1e-3}}))  # fmt: skip
    (note,) = record_notes(open_spec, data)
    assert "some private records are in npz" in note


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_file_of_records_that_are_scored(raw: dict[str, Any], part: str) -> None:
    """Noisy or unseen scores of records that were trained on in the open would be no protection."""
    noisy = {"fraction": 0.25, "visibility": "noisy", "noise_std": 0.2}
    raw["data"] |= {"validation": noisy, "test": {"fraction": 0.25}}
    path = raw["data"]["public"]["path"]
    copied = load_dataset(SweepSpec(**raw).data).parts[part][0]
    assert len(copied) >= 20
    x = np.concatenate([copied, np.load(path)["x_train"]])
    np.savez(path, x_train=x, y_train=np.arange(len(x)) % 2)
    spec = SweepSpec(**raw)
    with pytest.raises(DataError, match="half of the records of npz "):
        check_records(spec, {}, load_dataset(spec.data), {})
    raw["data"][part] = {"fraction": 0.25, "visibility": "public"}
    spec = SweepSpec(**raw)
    check_records(spec, {}, load_dataset(spec.data), {})


def test_copied_images_that_pretrain_reads_at_another_size(
    raw: dict[str, Any], tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    for name in ("own", "other"):
        for i in range(40):
            path = tmp_path / name / "ab"[i % 2] / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (8, 8), np.uint8)).save(path)
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    for folder, is_refused in (("copy", True), ("other", False)):
        pretrain_on(raw, tmp_path / folder)
        raw["data"] = {
            "dataset": "image_folder", "path": str(tmp_path / "own"), "num_records": 40,
            "image_size": 8, "channels": 1, "validation": {"visibility": "public"},
        }  # fmt: skip
        raw["pretrain"] |= {"dataset": "image_folder", "image_size": 16, "channels": 1}
        raw["pretrain"].pop("num_classes")
        spec = SweepSpec(**raw)
        data = load_dataset(spec.data)
        if is_refused:
            with pytest.raises(DataError, match="half of the records of pretrain or more"):
                check_overlap(spec, data)
        else:
            check_overlap(spec, data)


def test_copied_images_of_idx_files_that_pretrain_reads(
    raw: dict[str, Any], tmp_path: Path
) -> None:
    """They are prepared as they are asked for, and here all of them are."""
    mnist(tmp_path)
    pretrain_on(raw, tmp_path)
    raw["pretrain"] |= {"dataset": "mnist"}
    raw["pretrain"].pop("num_classes")
    spec = SweepSpec(**raw)
    images = whole(open_source(spec.pretrain.as_data()).records(Keep(tmp_path))["train"][0])
    data = load_dataset(spec.data)
    for copied in (19, 20):
        theirs = np.concatenate([images[:copied], 1 - images[: 40 - copied]])
        private = (theirs, np.zeros(40, np.int64))
        kept = replace(data, parts={**data.parts, "private": private})
        if copied == 20:
            with pytest.raises(DataError, match="half of the records of pretrain or more"):
                check_overlap(spec, kept)
        else:
            check_overlap(spec, kept)


@pytest.mark.parametrize("copied", [20, 19])
def test_copies_of_images_that_are_kept_as_bytes(raw: dict[str, Any], copied: int) -> None:
    """Records of a large folder are no array; public ones of it are, and have the same values."""
    spec = SweepSpec(**raw)
    data = load_dataset(spec.data)
    images = np.random.default_rng(0).integers(0, 256, (80, 1, 8, 8), np.uint8)
    theirs = np.concatenate([images[:copied], 255 - images[: 40 - copied]])
    parts = {
        **data.parts,
        "private": (Pixels(images), np.zeros(80, np.int64)),
        "public": (np.asarray(Pixels(theirs)), np.zeros(40, np.int64)),
    }
    kept = replace(data, parts=parts)
    if copied == 20:
        with pytest.raises(DataError, match="half of the records of npz "):
            check_overlap(spec, kept)
    else:
        check_overlap(spec, kept)


def test_pollution_that_is_private(raw: dict[str, Any], tmp_path: Path) -> None:
    own = np.load(raw["data"]["path"])
    copy = tmp_path / "dirt.npz"
    np.savez(copy, x_train=own["x_train"])  # without its labels it is another file
    raw["data"]["public"] = {"fraction": 0.1, "pollution": {"path": str(copy), "records": 30}}
    spec = SweepSpec(**raw)
    with pytest.raises(DataError, match=r"half of the records of data\.public\.pollution"):
        check_records(spec, {}, load_dataset(spec.data), {})
    public = {"fraction": 0.1, "pollution": {"path": raw["data"]["path"], "records": 3}}
    with pytest.raises(SpecError, match="is the study's own data"):
        SweepSpec(**changed(raw, {"data/public": public}))


def test_ledgers_of_a_dataset_tell_such_studies_apart(raw: dict[str, Any]) -> None:
    def parts(public: dict[str, Any]) -> dict[str, Any]:
        return preflight(SweepSpec(**changed(raw, {"data/public": public}))).dataset_parts

    shots = {"positions": [5, 3], "per_class": None}
    raw["search"]["space"] = {"method": "dp_sgd"}
    every = [
        parts(public)
        for public in (
            {"fraction": 0.2},
            {"path": raw["data"]["public"]["path"]},
            {"path": raw["data"]["public"]["path"], "validation": 0.3},
            {"positions": [3, 5]},
            {"positions": [3, 6]},
            {"per_class": 2},
            {"per_class": 3},
        )
    ]
    assert len({str(each) for each in every}) == len(every)
    assert parts(shots) == every[3]
    # A ledger of before does not know the new keys, and lacks nothing.
    new = ("data.public.positions", "data.public.per_class")
    assert [every[0][key] for key in new] == [None, None]
    # A file leaves the private records what they are, however many of it are used.
    assert parts({"path": raw["data"]["public"]["path"], "per_class": 2}) == every[1]
