"""What a plain session shows of a study, and what it says of the wrong kind of thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_studies import copy_studies
from whole_studies import make_spec

from dpsweep import SweepSpec, register_model, spec_of_trial
from dpsweep.cli.best_spec import spec_text
from dpsweep.foundation.errors import BadInputError, StudyError, SweepError
from dpsweep.planning.preflight import preflight
from dpsweep.results.records import LocalRecords
from dpsweep.results.study import load_sweep
from dpsweep.running import entries
from dpsweep.running.registering import chosen_trial
from dpsweep.study.study import Study


def test_a_trial_is_three_lines_with_both_epsilons_and_their_terms(tmp_path: Path) -> None:
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    best = result.best()
    head, alone, study = repr(best).splitlines()
    assert head.startswith(f"<trial {best.trial_id}: finished, validation/accuracy={best.value}")
    assert alone == f" alone: {best.statement.one_line()}"
    assert study == f" the study: {result.study_statement().one_line()}>"


@pytest.mark.parametrize("wrong", ["digits.yaml", {"name": "digits"}])
def test_a_sweep_is_run_from_a_spec(wrong: object) -> None:
    with pytest.raises(BadInputError, match=f"this is a {type(wrong).__name__}") as refused:
        preflight(wrong)  # type: ignore[arg-type]
    assert "SweepSpec.from_yaml(path)" in str(refused.value.fix)


def test_a_study_is_a_line_with_its_claim(tmp_path: Path) -> None:
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    claim = result.study_statement()
    assert repr(result) == f"<{result.status_line()}; {claim.one_line()}>"
    unclaimed = load_sweep("unaccounted", root=copy_studies(tmp_path, ["unaccounted"]))
    assert repr(unclaimed) == f"<{unclaimed.status_line()}>"


def test_a_study_that_ran_when_it_was_read_is_running_there_for_good(tmp_path: Path) -> None:
    """It was interrupted once it had finished: the view was old, and the lock of today."""
    study = Study(SweepSpec(**make_spec(tmp_path, "lives", tracking={"uri": None})))
    study.write(entries.study_started(study))
    result = load_sweep("lives", root=tmp_path / "studies")
    assert result.state == "running"
    study.write(entries.study_ended(study, "finished", ""))
    study.close()
    assert result.state == "running"
    assert repr(result).startswith("<study 'lives': running;")
    assert load_sweep("lives", root=tmp_path / "studies").state == "finished"


def test_a_study_that_ends_while_it_is_read_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study(SweepSpec(**make_spec(tmp_path, "ends", tracking={"uri": None})))
    study.write(entries.study_started(study))

    def end(records: LocalRecords) -> bool:
        monkeypatch.undo()
        study.write(entries.study_ended(study, "finished", ""))
        study.close()
        return False

    monkeypatch.setattr(LocalRecords, "is_running", end)
    assert load_sweep("ends", root=tmp_path / "studies").state == "finished"


@pytest.mark.parametrize("mode", ["composed", "public", "unaccounted"])
def test_a_study_whose_folder_has_moved_is_told_as_such(tmp_path: Path, mode: str) -> None:
    """Its ledger was called tampered with, and nothing had ever happened in it."""
    root = copy_studies(tmp_path, [mode])
    result = load_sweep(mode, root=root)
    root.rename(tmp_path / "moved")
    for call in (
        result.best,
        result.trials,
        result.history,
        result.decisions,
        result.claims.composed,
        lambda: result.trial(0),
        lambda: result.task(0),
        lambda: result.files,
    ):
        with pytest.raises(StudyError, match=f"the folder of study '{mode}' is no longer") as gone:
            call()
        assert gone.value.fix == "load_sweep it where it lies now"
    assert load_sweep(mode, root=tmp_path / "moved").history()


def test_a_trial_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    with pytest.raises(BadInputError, match="study 'composed' has no trial 99") as refused:
        spec_of_trial(result, 99)
    assert refused.value.fix == "trials: 0 to 5"
    with pytest.raises(BadInputError, match="a trial is named by its number, and this is a str"):
        spec_of_trial(result, "one")  # type: ignore[arg-type]


def test_a_number_of_the_table_of_trials_names_a_trial(tmp_path: Path) -> None:
    """Those of pandas are NumPy's."""
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    first = result.trials()["trial"].iloc[0]
    assert isinstance(first, np.integer)
    assert result.trial(first) == result.trial(0)
    assert result.task(first) == result.task(0)
    assert spec_of_trial(result, first) == spec_of_trial(result, 0)
    assert chosen_trial(result, first) == result.trial(0)


@pytest.mark.parametrize("wrong", [True, "1", 1.0, [1], None])
def test_what_is_no_number_of_a_trial_is_told_in_a_line(tmp_path: Path, wrong: Any) -> None:
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    calls = [result.trial, result.task, lambda number: spec_of_trial(result, number)]
    if wrong is not None:  # which is the best one there
        calls.append(lambda number: chosen_trial(result, number))
    for call in calls:
        with pytest.raises(BadInputError, match="a trial is named by its number, and this is"):
            call(wrong)


def test_what_a_trial_that_was_stopped_will_score_is_no_curse(tmp_path: Path) -> None:
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    pruned = next(trial for trial in result.results if trial.state.value == "pruned")
    text = " ".join(spec_text(result, pruned).replace("#", " ").split())
    assert f"it is of step {pruned.steps_run} of {pruned.num_steps}, where the trial ended" in text
    assert "winner's curse" not in text
    assert "winner's curse" in " ".join(spec_text(result, result.best()).replace("#", " ").split())


def test_a_study_in_a_directory_of_another_name_is_told_by_its_own(tmp_path: Path) -> None:
    root = copy_studies(tmp_path, ["composed"])
    (root / "composed").rename(root / "renamed")
    with pytest.raises(StudyError, match="renamed/ holds study 'composed'") as refused:
        load_sweep("renamed", root=root)
    assert "rename the directory to composed" in str(refused.value.fix)


def test_a_study_is_opened_by_its_name() -> None:
    with pytest.raises(BadInputError, match="opened by its name, and this is None"):
        load_sweep(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "told_"),
    [
        (lambda: load_sweep("a", root=3), "a path is a text or a pathlib.Path, and this is an int"),
        (lambda: load_sweep("mlflow:a/b", tracking_uri=3), "opened by its address, and this is an"),
        (
            lambda: SweepSpec.from_yaml("a: 1\nb: 2", overrides={"a": 3}),  # type: ignore[arg-type]
            "overrides are a list of KEY=VALUE, and this is a dict",
        ),
        (
            lambda: SweepSpec.from_yaml("a: 1\nb: 2", overrides=[3]),  # type: ignore[list-item]
            "an override is a text KEY=VALUE, and this is an int",
        ),
        (lambda: SweepSpec.from_yaml(None), "a path is a text or a pathlib.Path, and this is None"),
        (lambda: register_model({}), "a model is registered of a study, and this is a dict"),
        (lambda: spec_of_trial("name", 1), "a spec is made of a study, and this is a str"),
    ],
)
def test_the_wrong_kind_of_thing_is_told_in_a_line(call: Any, told_: str) -> None:
    with pytest.raises(BadInputError, match=told_) as refused:
        call()
    assert refused.value.fix


@pytest.mark.parametrize(
    ("call", "told_"),
    [
        (lambda r: r.best(method=3), "a method is named by a text, and this is an int"),
        (lambda r: r.best(method=["dp_sgd"]), "a method is named by a text, and this is a list"),
        (lambda r: r.choose(2.0), "a choice is within Limits, and this is a float"),
        (lambda r: r.choose(0), "a choice is within Limits, and this is an int"),
        (lambda r: chosen_trial(r, None, 2.0), "a choice is within Limits, and this is a float"),
        (lambda r: register_model(r, name=3), "is named by a text, and this is an int"),
        (lambda r: register_model(r, name=0), "is named by a text, and this is an int"),
        (lambda r: register_model(r, alias=None), "an alias is a text, and this is None"),
        (lambda r: register_model(r, tracking_uri=3), "by its address, and this is an int"),
        (lambda r: spec_of_trial(r, 1, runs="2"), "runs must be a number, got '2'"),
        (lambda r: spec_of_trial(r, 1, runs=2.5), "runs must be a whole number, got 2.5"),
        (lambda r: spec_of_trial(r, 1, runs=0), "runs must be >= 1, got 0"),
        (lambda r: spec_of_trial(r, 1, suffix=None), "the end of a name is a text, and this is No"),
    ],
)
def test_an_argument_of_another_kind_is_told_in_a_line(
    tmp_path: Path, call: Any, told_: str
) -> None:
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    with pytest.raises(BadInputError, match=told_):
        call(result)


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (lambda result: result.best(max_epsilon=0.1), "raise max_epsilon (`--max-epsilon`), or"),
        (
            lambda result: result.best(max_delta=1e-9),
            "allow max_delta (`--max-delta`) 1e-05 or more, or",
        ),
        (lambda result: load_sweep("nope", root="none"), "give root (`--root DIR`)"),
        (lambda result: load_sweep("a/b", root="none"), "and root (`--root DIR`) for the folder"),
        (
            lambda result: load_sweep("mlflow:a/b", tracking_uri="sqlite:///none.db"),
            "give tracking_uri (`--tracking-uri`), or",
        ),
        (lambda result: spec_of_trial(result, 0, runs=2), "leave runs (`--seeds`) out, and"),
    ],
)
def test_a_fix_has_the_name_of_the_argument_and_of_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, fix: str
) -> None:
    result = load_sweep("public", root=copy_studies(tmp_path, ["public"]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SweepError) as refused:
        call(result)
    assert fix in str(refused.value.fix)


def test_the_log_has_the_last_report_of_each_trial(tmp_path: Path) -> None:
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    for trial in result.results:
        (end,) = [r for r in result.history(trial.trial_id) if r["event"] == "trial_ended"]
        last = trial.curve[-1]
        assert (end["step"], end["epsilon"]) == (last["step"], last["epsilon"])
        score = last["metrics"]["validation/accuracy"]
        assert end["detail"].startswith(f"{trial.reason}; validation/accuracy={score:.4f}")
    assert [row["detail"] for row in result.history() if row["event"] == "study_ended"] == [""]
