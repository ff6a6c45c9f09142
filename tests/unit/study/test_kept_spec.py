"""The spec of a study: kept when it is new, changed by a launch that is not refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from whole_studies import cli_here, make_spec

from dpsweep.foundation.errors import StudyError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning.reading import read_spec
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import is_new, refuse_launch, refuse_other_spec
from dpsweep.study.study import Study
from dpsweep.sweep import run_sweep


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


def test_a_launch_that_changes_nothing_leaves_the_spec_to_the_version_that_wrote_it(
    tmp_path: Path,
) -> None:
    """An older one refuses keys that it does not know, though they have their defaults."""
    study = Study(spec_of(tmp_path))
    raw = yaml.safe_load(study.files.spec.read_text())
    del raw["cluster"]["wait_nodes"]
    study.files.spec.write_text(older := yaml.safe_dump(raw))
    study.keep_spec()
    assert study.files.spec.read_text() == older
    study.close()
    more = Study(spec_of(tmp_path, num_trials=99))
    more.keep_spec()
    more.close()
    assert "wait_nodes" in more.files.spec.read_text()


def test_a_study_that_runs_is_refused_before_a_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("records were read")

    monkeypatch.setattr("dpsweep.sweep.load_records", read)
    running = Study(spec_of(tmp_path))
    with pytest.raises(StudyError, match=r"study 'kept' is already running \(process \d+"):
        run_sweep(spec_of(tmp_path))
    running.close()
    with pytest.raises(AssertionError, match="records were read"):
        run_sweep(spec_of(tmp_path))


def test_a_lock_that_is_closed_to_this_user_is_told_by_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dpsweep.study.launched.is_locked", closed)
    refuse_launch(spec_of(tmp_path))
    monkeypatch.setattr("dpsweep.study.study.lock", closed)
    with pytest.raises(StudyError, match="cannot write to"):
        Study(spec_of(tmp_path))


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
    assert f"set storage.path={kept.parents[1]} (`--set`; overrides=[..]" in str(refused.value.fix)
    refuse_other_spec(read_spec(kept, overrides=[f"storage.path={kept.parents[1]}"]))
    refuse_other_spec(read_spec(kept, overrides=["name=another"]))
    renamed = kept.parent.rename(kept.parent.with_name("renamed")) / kept.name
    with pytest.raises(StudyError, match="whose folder is not named so") as refused:
        refuse_other_spec(read_spec(renamed, overrides=[f"storage.path={kept.parents[1]}"]))
    assert f"set storage.path={kept.parents[1]} (`--set`; overrides=[..]" in str(refused.value.fix)
    refuse_other_spec(read_spec(renamed, overrides=["name=another"]))
    renamed.parent.rename(kept.parent)
    copy = tmp_path / "spec.yaml"  # in no study's folder
    copy.write_bytes(kept.read_bytes())
    refuse_other_spec(read_spec(copy))


def test_a_study_that_has_not_begun_has_the_spec_of_its_last_launch(tmp_path: Path) -> None:
    Study(spec_of(tmp_path)).close()
    study = Study(spec_of(tmp_path, num_trials=99))
    study.close()
    assert b"num_trials: 99" in study.files.spec.read_bytes()


def test_a_study_is_new_until_something_may_have_been_charged(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert is_new(spec)
    study = Study(spec)  # a launch that is refused, or interrupted, later
    study.close()
    assert study.files.spec.exists()
    assert is_new(spec)
    StudyLedger(study.files.ledger, terms={}, in_journal={}).close()
    assert not is_new(spec)
    study.files.spec.write_text("damaged")  # which is told where it is opened
    assert not is_new(spec)


def test_what_a_new_study_is_asked_is_asked_after_a_refused_launch(tmp_path: Path) -> None:
    """Numbers of records, here; also what is public, its tracking server, its dataset's budget."""
    raw = make_spec(tmp_path, "asked", tracking={"uri": None})
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "own.npz",
        x_train=rng.normal(size=(400, 4)).astype(np.float32),
        y_train=rng.integers(0, 2, 400),
    )
    raw["data"] = {"dataset": "npz", "path": str(tmp_path / "own.npz"), "num_classes": 2}
    raw["data"] |= {"validation": {"fraction": 0.2, "visibility": "public"}}
    raw["search"]["space"] |= {"model.name": "linear"}
    paths = {}
    for declared in (400, 4000):
        raw["data"]["num_records"] = declared
        paths[declared] = tmp_path / f"{declared}.yaml"
        paths[declared].write_text(yaml.safe_dump(raw))
    away = ("--set", "cluster.target=ray", "--set", "cluster.address=127.0.0.1:9")
    refused = cli_here("run", paths[400], *away)
    assert refused.returncode == 2, refused.stderr
    assert "no Ray cluster answers" in refused.stderr, refused.stderr
    assert (tmp_path / "studies" / "asked" / "spec.yaml").exists()
    wrong = cli_here("run", paths[4000])
    assert wrong.returncode == 2
    assert "data.num_records" in wrong.stderr
