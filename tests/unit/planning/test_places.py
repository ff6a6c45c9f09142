"""No place that a study writes to lies among its records, and its data not in its folder."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from whole_studies import make_spec

from dpsweep.foundation.errors import SpecError
from dpsweep.planning.places import place_problems
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec


def folder(root, classes=("covid", "healthy", "other")):
    rng = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 255, (8, 8), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def spec_of(root, data, **changes):
    spec = make_spec(root, "xray", tracking={"uri": None}, **changes)
    spec["data"] = {
        "dataset": "image_folder", "path": str(data), "num_records": 12, "image_size": 8,
        "channels": 1, "validation": {"fraction": 0.25, "visibility": "public"},
    }  # fmt: skip
    return spec


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"storage": {"path": "xray"}}, "storage.path"),
        ({"storage": {"path": "studies", "features": "xray/features"}}, "storage.features"),
        ({"tracking": {"uri": "sqlite:///xray/mlflow.db"}}, "tracking.uri"),
    ],
)
def test_a_study_among_its_records_is_refused(tmp_path, monkeypatch, changes, key):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "xray")
    spec = SweepSpec(**{**spec_of(tmp_path, "xray"), **changes})
    with pytest.raises(SpecError) as caught:
        preflight(spec)
    told = {mistake.key: mistake.what for mistake in caught.value.mistakes}
    assert "is written inside data.path" in told[key]


def test_data_in_the_folder_of_the_study_are_refused(tmp_path):
    data = folder(tmp_path / "studies" / "xray" / "images")
    ((key, what, _),) = place_problems(SweepSpec(**spec_of(tmp_path, data)))
    assert key == "data.path"
    assert "lies inside the study's own folder" in what


def test_places_beside_each_other_are_fine(tmp_path):
    data = folder(tmp_path / "studies" / "images")
    assert place_problems(SweepSpec(**spec_of(tmp_path, data))) == []
    (tmp_path / "link").symlink_to(data)
    hidden = spec_of(tmp_path, tmp_path / "link", storage={"path": str(data)})
    assert [key for key, _, _ in place_problems(SweepSpec(**hidden))] == ["storage.path"]


@pytest.mark.parametrize("is_read_only", [True, False])
def test_a_ledger_of_a_file_system_that_is_mounted_read_only_is_not_for_its_owner_to_open(
    tmp_path, monkeypatch, is_read_only
):
    ledger = tmp_path / "xray.budget"
    ledger.touch()
    privacy = {
        "delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 6.0,
        "dataset_ledger": str(ledger), "dataset_epsilon": 8.0, "dataset_delta": 1e-4,
    }  # fmt: skip
    spec = SweepSpec(**spec_of(tmp_path, folder(tmp_path / "xray"), privacy=privacy))
    monkeypatch.setattr("dpsweep.planning.places.os.access", lambda *args, **options: False)
    flags = SimpleNamespace(f_flag=os.ST_RDONLY if is_read_only else 0)
    monkeypatch.setattr("os.statvfs", lambda path: flags)
    (mistake,) = place_problems(spec)
    assert mistake.key == "privacy.dataset_ledger"
    said = f"{mistake.what} ({mistake.fix})"
    assert ("is on a read-only file system (mount it for writing; another file" in said) == (
        is_read_only
    )
    assert ("is closed to you" in said) == ("chmod g+rw" in said) == (not is_read_only)
