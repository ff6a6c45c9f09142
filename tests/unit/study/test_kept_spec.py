"""The spec of a study: kept when it is new, changed by a launch that is not refused."""

from __future__ import annotations

from pathlib import Path

from whole_studies import make_spec

from dpsweep.spec.study import SweepSpec
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


def test_a_study_that_has_not_begun_has_the_spec_of_its_last_launch(tmp_path: Path) -> None:
    Study(spec_of(tmp_path)).close()
    study = Study(spec_of(tmp_path, num_trials=99))
    study.close()
    assert b"num_trials: 99" in study.files.spec.read_bytes()
