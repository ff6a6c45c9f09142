"""``plan_sweep``: what ``dpsweep plan`` says, for programs."""

import json

import pytest
from whole_studies import cli_here

import dpsweep
from dpsweep import SweepSpec, plan_sweep
from dpsweep.cli.app import app
from dpsweep.foundation.errors import BadInputError, DataError, InfeasibleBudgetError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.study.study import Observer, Study
from dpsweep.trainables.data.loading import load_records
from dpsweep.trainables.data.source import Source


def spec(**space):
    return SweepSpec(
        name="planned",
        data={"dataset": "digits", "validation": {"visibility": "public"}},
        privacy={"trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 6.0},
        search={
            "num_trials": 4,
            "space": {
                "method": "dp_sgd",
                "model.name": "linear",
                "optim.lr": {"loguniform": [0.1, 4]},
                "train.max_steps": 20,
                **space,
            },
        },
        tracking={"uri": None},
    )


@pytest.fixture(scope="module")
def plan():
    return plan_sweep(spec())


def test_its_record_is_that_of_the_command(plan, tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(spec().to_yaml())
    with pytest.raises(SystemExit) as ended:
        app(["plan", str(path), "--json"])
    assert ended.value.code in (0, None)
    shown = json.loads(capsys.readouterr().out)
    record = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert shown.pop("estimate").keys() == record.pop("estimate").keys()  # measured anew
    assert shown == record


def test_it_prints_what_will_be_done_and_claimed_with_all_terms(plan):
    text = " ".join(str(plan).split())
    assert "at most 4 configurations" in text
    assert "It will claim epsilon=6.0000 for all that the study releases" in text
    for term in ("delta=", "unit=example", "add_or_remove_one", "sampling=poisson", "composed"):
        assert term in text
    assert repr(plan) == str(plan)
    assert max(map(len, str(plan).splitlines())) <= 100


def test_notes_come_first_and_no_record_is_read(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("records were read")

    monkeypatch.setattr(Source, "records", refuse)
    steps = {"method": "sparse", "sparse.train": "cls", "model.name": "tanh_cnn"}
    noted = plan_sweep(spec(**steps))
    first = "note: without model.checkpoint the weights of tanh_cnn"
    assert " ".join(str(noted).split()).startswith(first)
    assert noted.notes[0] == noted.checked.notes[0]
    with pytest.raises(DataError, match=r"because: AssertionError at test_planned\.py"):
        load_records(noted.checked.spec)


def test_what_has_no_plan_is_refused_as_a_run_is():
    with pytest.raises(InfeasibleBudgetError, match=r"has (no|a) plan"):
        plan_sweep(spec(**{"noise.noise_multiplier": 0.01}))
    with pytest.raises(BadInputError, match="SweepSpec"):
        plan_sweep("sweep.yaml")
    unchecked = spec().model_copy(update={"name": "../elsewhere"})
    with pytest.raises(BadInputError, match="name"):
        plan_sweep(unchecked)


def test_a_plan_of_another_spec_than_the_launched_one_says_that_it_is_not_run(tmp_path):
    """It showed the claim of the new one, which a run refuses."""
    raw = spec().to_dict() | {"storage": {"path": str(tmp_path)}}
    launched = SweepSpec(**raw)
    study = Study(launched)
    StudyLedger(study.files.ledger, terms={}, in_journal={}).close()
    study.close()
    again = plan_sweep(launched)
    assert again.refused == ""
    assert again.to_dict()["refused"] is None
    raw["privacy"]["study_epsilon"] = 7.5
    other = plan_sweep(SweepSpec(**raw))
    said = "a run of this spec is refused: study 'planned' was launched from another spec; "
    assert other.refused.startswith(said)
    assert "privacy.study_epsilon (6 -> 7.5)" in other.refused
    assert other.notes[len(other.checked.notes)] == other.to_dict()["refused"] == other.refused
    assert f"note: {said}" in " ".join(str(other).split()) + " "
    (tmp_path / "other.yaml").write_text(SweepSpec(**raw).to_yaml())
    for words in ((), ("--json",)):
        done = cli_here("plan", tmp_path / "other.yaml", *words)
        assert done.returncode == 0
        assert said in " ".join(done.stderr.split()) + " "


def test_whoever_watches_a_run_finds_its_base_class():
    assert dpsweep.Observer is Observer
