from pathlib import Path

import pytest
from audit_records import record
from stored_studies import copy_studies, track
from whole_studies import parent_note

from dpsweep.foundation.logs import read_log
from dpsweep.results.study import load_sweep
from dpsweep.running.entries import declared_records, searched_columns
from dpsweep.running.gallery import draw_study
from dpsweep.spec.facts import without_password
from dpsweep.spec.study import SweepSpec
from dpsweep.study.audits import write_audit
from dpsweep.sweep import run_sweep


def spec(uri):
    return SweepSpec(
        name="x",
        data={"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
        privacy={"trial_epsilon": 2.0, "accounting": "unaccounted"},
        search={"space": {"method": "dp_sgd"}},
        tracking={"uri": uri},
    )


def test_a_password_never_reaches_the_tracking_store():
    shown = without_password(spec("postgresql://me:s3cret@host/db")).to_yaml()
    assert "s3cret" not in shown
    assert "postgresql://me:***@host/db" in shown


def test_other_uris_stay_as_they_are():
    for uri in ("sqlite:///mlflow.db", "http://host:5000", None):
        assert without_password(spec(uri)).tracking.uri == uri


def study(**changes):
    values = {
        "name": "x",
        "data": {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
        "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
        "search": {"space": {"method": "dp_sgd"}},
    }
    return SweepSpec(**{**values, **changes})


def test_columns_are_what_may_differ_between_trials():
    space = {
        "method": "dp_sgd",
        "optim.lr": {"loguniform": [0.1, 4]},
        "train.epochs": 3,
        "noise.shape": {"choice": ["constant", "cosine"]},
        "noise.end_ratio": {"choice": [0.5], "when": {"noise.shape": "cosine"}},
    }
    searched, constants = searched_columns(study(search={"space": space}))
    assert set(searched) == {"optim.lr", "noise.shape", "noise.end_ratio"}
    assert constants["method"] == "dp_sgd"
    assert constants["train.epochs"] == 3.0
    assert isinstance(constants["train.epochs"], float)  # as a trial has it
    assert constants["optim.momentum"] == 0.9  # a default
    assert not set(searched) & set(constants)


def test_a_default_that_methods_do_not_share_is_no_constant():
    both = study(search={"space": {"method": {"choice": ["dp_sgd", "scatternet"]}}})
    searched, constants = searched_columns(both)
    assert searched == ["method"]
    assert "method" not in constants
    assert "clip.max_grad_norm" not in constants
    alone = searched_columns(study())[1]
    assert alone["clip.max_grad_norm"] == 1.0


def test_declared_records_have_a_size_and_no_path():
    parts = declared_records(study())
    assert parts == [
        {"name": "digits training", "context": "private", "records": 1438},
        {"name": "digits validation", "context": "validation, public", "records": 359},
    ]


def test_a_part_that_is_counted_and_private_has_no_size(monkeypatch):
    from dataclasses import replace

    from dpsweep.running import entries

    describe = entries.describe_dataset

    def with_own_parts(data):
        return replace(describe(data), has_own_validation=True, num_test=77)

    monkeypatch.setattr(entries, "describe_dataset", with_own_parts)
    validation = {"fraction": 0.2, "visibility": "exact"}
    parts = declared_records(study(data={"dataset": "digits", "validation": validation}))
    assert parts[1:] == [
        {"name": "digits validation", "context": "validation, exact"},
        {"name": "digits test", "context": "test, private"},
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "audited"), [("composed", "trial 0"), ("select", "the winner")])
def test_an_audit_after_the_end_renews_the_card_once_and_the_store_gets_it(
    tmp_path, monkeypatch, name, audited
):
    copy_studies(tmp_path, [name])
    monkeypatch.chdir(tmp_path)
    result = load_sweep(name, root="studies")
    spec = SweepSpec.from_yaml(Path("studies", name, "spec.yaml"))
    if name == "composed":
        draw_study(result)

    def launch():
        """Type the command of a finished study again; return its journal."""
        run_sweep(spec)
        return read_log(result.files.journal)

    before = read_log(result.files.journal)
    assert launch() == before
    write_audit(result.files.path, record(0))
    *rest, last = launch()
    assert (rest, last["event"]) == (before, "card_renewed")
    assert launch() == [*rest, last]
    line = f"- Audit: {audited}: consistent with epsilon <= 1.23 at delta = 1e-05 "
    assert line in last["card"]
    track(tmp_path, name)
    assert line in parent_note(tmp_path)
    pages = [Path(path) for path in last.get("artifacts", []) if path.endswith(".html")]
    assert [f"{audited}: consistent with epsilon" in page.read_text() for page in pages] == (
        [True] if name == "composed" else []
    )
    assert load_sweep(name, root="studies").state == "finished"
