"""The names of classes are part of what a study's data are."""

import numpy as np
import pytest
from PIL import Image
from whole_studies import make_spec

from dpsweep.foundation.errors import DamagedStudyError, StudyError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Study
from dpsweep.trainables.data.loading import load_dataset


def image_folder(root):
    rng = np.random.default_rng(0)
    for name in ("covid", "healthy", "other"):
        (root / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(
                root / name / f"{number}.png"
            )
    return root


@pytest.fixture
def spec(tmp_path):
    raw = make_spec(tmp_path, "xray", tracking={"uri": None})
    raw["data"] = {
        "dataset": "image_folder", "path": str(image_folder(tmp_path / "img")), "num_records": 12,
        "image_size": 8, "channels": 1, "validation": {"fraction": 0.25, "visibility": "public"},
    }  # fmt: skip
    return SweepSpec(**raw)


def check(spec):
    """Open the study as a launch does, and return what is to be said of its data."""
    study = Study(spec)
    try:
        data = load_dataset(spec.data)
        said = study.check_data(data.content_hash, old_hash=data.old_hash)
        StudyLedger(study.files.ledger).close()
        return said
    finally:
        study.close()


def test_a_renamed_class_is_other_data(spec, tmp_path):
    assert check(spec) == check(spec) == ""
    (tmp_path / "img" / "other").rename(tmp_path / "img" / "unknown")
    with pytest.raises(StudyError, match="launched on other records"):
        check(spec)


def test_a_folder_that_is_added_never_changes_the_classes_of_a_study(spec, tmp_path):
    check(spec)
    (tmp_path / "img" / "__MACOSX").mkdir()
    (tmp_path / "img" / ".hidden").mkdir()
    assert check(spec) == ""
    (tmp_path / "img" / "zzz").mkdir()
    with pytest.raises(Exception, match=r"launched on other records|zzz"):
        check(spec)


def test_a_study_of_an_earlier_version_goes_on_and_learns_its_names(spec, tmp_path):
    check(spec)
    path = tmp_path / "studies" / "xray" / "data.sha256"
    path.write_text(load_dataset(spec.data).old_hash + "\n")
    assert "earlier version" in check(spec)
    assert path.read_text().startswith("names ")
    (tmp_path / "img" / "other").rename(tmp_path / "img" / "unknown")
    with pytest.raises(StudyError, match="launched on other records"):
        check(spec)


def test_a_hash_of_an_earlier_version_of_other_records_is_refused(spec, tmp_path):
    check(spec)
    (tmp_path / "studies" / "xray" / "data.sha256").write_text("0" * 64 + "\n")
    with pytest.raises(StudyError, match="launched on other records"):
        check(spec)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "is missing"), ("0abc\n", "is damaged"), ("", "is damaged")]
)
def test_a_study_with_trials_that_has_lost_its_hash_is_refused(spec, tmp_path, content, said):
    check(spec)
    path = tmp_path / "studies" / "xray" / "data.sha256"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    study = Study(spec)
    study.view.trials[0] = object()
    data = load_dataset(spec.data)
    with pytest.raises(DamagedStudyError, match=said) as caught:
        study.check_data(data.content_hash, old_hash=data.old_hash)
    assert caught.value.exit_code == 1
    study.close()
