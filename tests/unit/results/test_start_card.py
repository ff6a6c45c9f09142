"""The privacy card of a study with a start: its pool is named, and its runs are not counted."""

import shutil
from pathlib import Path

import pytest

from dpsweep.results.study import load_sweep
from dpsweep.results.study_card import card

GOLDEN = Path(__file__).parents[2] / "golden" / "old_studies"


@pytest.fixture
def text(tmp_path):
    shutil.copytree(GOLDEN / "labels", tmp_path / "labels")
    return card(load_sweep("labels", root=tmp_path))


def test_a_share_of_the_data_that_is_public_is_named(text):
    about = "a share of 0.2 of the data"
    assert f"- Declared public: {about}, with their labels; not protected" in text
    assert f"- **Public records**: {about}. They are declared public" in text
    assert "A private record that is there as well" not in text


def test_validation_records_that_are_public_are_not_covered(text):
    assert "- **The validation records**, by which trials are compared. They are" in text


def test_a_run_of_the_start_is_no_configuration(text):
    assert "- Configurations: 2 (2 finished)" in text
    assert "1 run of `dp_sgd`, charged once each" in text
