"""The spec of a study: kept when it is new, changed by a launch that is not refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from whole_studies import make_spec

from dpsweep.foundation.errors import StudyError
from dpsweep.planning.reading import read_spec
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import refuse_other_spec
from dpsweep.study.study import Study


def spec_of(path: Path, **search: object) -> SweepSpec:
    raw = make_spec(path, "kept", tracking={"uri": None}, scheduler={"type": "fifo"})
    raw["search"] |= search
    return SweepSpec(**raw)


def test_a_launch_that_is_refused_changes_no_spec(tmp_path: Path) -> None:
    study = Study(spec_of(tmp_path))
    first = study.files.spec.read_bytes()
    study.files.ledger.mkdir(exist_ok=True)
    (study.files.ledger / "study.jsonl").write_text("")  # something may have been charged
    study.close()
    with_more = Study(spec_of(tmp_path, num_trials=99))
    with_more.close()  # refused: its data have changed, say
    assert with_more.files.spec.read_bytes() == first
    with_more = Study(spec_of(tmp_path, num_trials=99))
    with_more.keep_spec()
    with_more.close()
    assert b"num_trials: 99" in with_more.files.spec.read_bytes()


def test_the_spec_of_a_study_elsewhere_does_not_begin_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    spec = spec_of(tmp_path)
    spec = spec.model_copy(update={"storage": spec.storage.model_copy(update={"path": "studies"})})
    study = Study(spec)
    study.files.ledger.mkdir(exist_ok=True)
    study.close()
    kept = study.files.spec
    refuse_other_spec(read_spec(kept))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError, match="spends its budget again") as refused:
        refuse_other_spec(read_spec(kept))
    assert str(refused.value.fix).startswith("run it in the directory where it was launched")
    refuse_other_spec(read_spec(kept, overrides=[f"storage.path={kept.parents[1]}"]))
    refuse_other_spec(read_spec(kept, overrides=["name=another"]))
    copy = tmp_path / "spec.yaml"  # in no study's folder
    copy.write_bytes(kept.read_bytes())
    refuse_other_spec(read_spec(copy))


def test_a_study_that_has_not_begun_has_the_spec_of_its_last_launch(tmp_path: Path) -> None:
    Study(spec_of(tmp_path)).close()
    study = Study(spec_of(tmp_path, num_trials=99))
    study.close()
    assert b"num_trials: 99" in study.files.spec.read_bytes()
