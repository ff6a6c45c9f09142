"""A finished study that has lost plans of trials: the same command writes them anew."""

import pytest
from mortal_studies import MortalStudies

from dpsweep.study.files import StudyFiles


@pytest.mark.sampled(8)
@pytest.mark.parametrize("accounting", ["composed", "declared", "probe", "public"])
def test_each_plan_is_written_anew_as_it_was(tmp_path, monkeypatch, accounting):
    studies = MortalStudies(tmp_path, 0, monkeypatch, accounting=accounting)
    assert studies.launch(chance=0.0) == "ran"
    files = StudyFiles.of(studies.spec)
    plans = [files.trial(number) / "trial.json" for number in range(3)]
    before = [plan.read_bytes() for plan in plans]
    for plan in plans:
        plan.unlink()
    assert studies.launch(chance=0.0) == "ran"
    assert [plan.exists() and plan.read_bytes() for plan in plans] == before
