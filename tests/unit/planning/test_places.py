"""No place that a study writes to lies among its records, and its data not in its folder."""

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
