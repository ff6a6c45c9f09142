"""A whole study whose ledgers, journal and Optuna's study are in PostgreSQL; trials run here."""

import copy
import shutil
import uuid
from pathlib import Path

import optuna
import psycopg
import pytest
from launches import Listening
from studies_here import run_here

from dpsweep import sweep
from dpsweep.foundation.database_path import DatabasePath, log_path
from dpsweep.foundation.errors import BadInputError, LedgerError, SpecError, StudyError
from dpsweep.foundation.logs import read_log
from dpsweep.foundation.postgres import sessions
from dpsweep.ledgers.dataset import DatasetLedger, read_dataset_ledger
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import trial_file
from dpsweep.planning.places import make_places
from dpsweep.planning.preflight import preflight
from dpsweep.results.study import load_sweep
from dpsweep.results.tables.budget import read_budget
from dpsweep.results.tables.overview import overview
from dpsweep.running.giving_up import give_up_claim
from dpsweep.search.optuna_file import MEANING, place_of
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.study import Study
from tests.helpers.logs import content, put
from tests.helpers.postgres import PASSWORD, sessions_of_its_own


@pytest.fixture
def address(database_server, database_sessions):
    """Of an empty database of the test's own."""
    return database_server.make(uuid.uuid4().hex)


@pytest.fixture(scope="module")
def finished(database_server, tmp_path_factory):
    """A finished study for tests that change nothing of it for good, as its raw spec."""
    root = tmp_path_factory.mktemp("finished")
    raw = spec_of(root, database_server.make(uuid.uuid4().hex))
    with pytest.MonkeyPatch.context() as patch, sessions_of_its_own():
        run_here(patch.setattr, raw)
    return raw


@pytest.fixture
def raw(finished, database_sessions):
    return copy.deepcopy(finished)


def spec_of(root, address, name="digits", **privacy):
    return {
        "name": name,
        "data": {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
        "privacy": {
            "delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 6.0,
            "dataset_ledger": f"{address}#digits", "dataset_epsilon": 20.0, "dataset_delta": 1e-4,
            **privacy,
        },
        "search": {
            "num_trials": 2,
            "space": {
                "method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 1]}, "train.epochs": 2,
            },
        },
        "report": {"points": 2},
        "storage": {"path": str(root / "studies"), "database": address},
        "tracking": {"uri": f"sqlite:///{root}/mlflow.db", "pictures": False},
    }  # fmt: skip


def files_of(raw):
    return StudyFiles.at(Path(raw["storage"]["path"], raw["name"]))


def test_a_study_in_a_database_is_run_read_and_continued(tmp_path, monkeypatch, address):
    raw = spec_of(tmp_path, address)
    result = run_here(monkeypatch.setattr, raw)
    folder = tmp_path / "studies" / "digits"
    assert not list(folder.rglob("*.jsonl"))  # nothing that looks like a ledger, and is none
    assert not (folder / "optuna.db").exists()
    assert result.study_statement().epsilon == pytest.approx(6.0)
    first = [read_log(trial_file(result.files.ledger, n)) for n in range(2)]
    raw["search"]["num_trials"] = 3
    again = run_here(monkeypatch.setattr, raw)
    assert len(again.results) == 3
    for number, records in enumerate(first):
        assert read_log(trial_file(result.files.ledger, number)) == records
    (row,) = overview(tmp_path / "studies")
    assert (row["study"], row["state"], row["trials"]) == ("digits", "finished", 3)
    budget = read_budget(f"{address}#digits")
    assert (budget.account.epsilon, budget.studies[0]["state"]) == (6.0, "finished")


@pytest.mark.slow
def test_a_new_dataset_ledger_is_said_to_be_new_once(tmp_path, monkeypatch, address):
    """Asking whether it can be written makes none."""
    ear, note = Listening(), f"{address}#digits is a new dataset ledger: nothing is spent yet"
    run_here(monkeypatch.setattr, spec_of(tmp_path, address), observer=ear)
    assert ear.messages.count(note) == 1
    run_here(monkeypatch.setattr, spec_of(tmp_path, address, "two"), observer=ear)
    assert ear.messages.count(note) == 1


def test_asking_whether_a_dataset_ledger_can_be_written_makes_none(tmp_path, address):
    place = log_path(f"{address}#digits")
    for ledger in (DatasetLedger(place), DatasetLedger(tmp_path / "digits.budget")):
        ledger.probe()
        assert not ledger.path.exists()


@pytest.mark.slow
def test_the_tracker_gets_ledgers_as_files(tmp_path, raw):
    import mlflow

    client = mlflow.MlflowClient(raw["tracking"]["uri"])
    (experiment,) = (e for e in client.search_experiments() if e.name == "digits")
    ledger = files_of(raw).ledger
    names = []
    for run in client.search_runs([experiment.experiment_id]):
        trial = run.data.tags.get("dpsweep.trial")
        name = "study.jsonl" if trial is None else f"trial-{int(trial):04d}.jsonl"
        copied = Path(client.download_artifacts(run.info.run_id, name, tmp_path))
        assert read_log(copied) == read_log(ledger / name)
        names.append(name)
    assert sorted(names) == ["study.jsonl", "trial-0000.jsonl", "trial-0001.jsonl"]


def test_two_drivers_on_any_machine_exclude_each_other(tmp_path, address):
    spec = SweepSpec(**spec_of(tmp_path, address))
    study = Study(spec)
    elsewhere = spec.model_copy(
        update={"storage": spec.storage.model_copy(update={"path": str(tmp_path / "other")})}
    )
    for second in (spec, elsewhere):
        with pytest.raises(StudyError, match=r"already running \(process \d+ on .*, since 20"):
            Study(second)
    study.close()


def test_a_name_that_another_study_of_the_database_has_is_refused(tmp_path, monkeypatch, raw):
    raw["storage"]["path"] = str(tmp_path)
    with pytest.raises(StudyError, match=r"has a privacy ledger, and .* no spec.yaml"):
        run_here(monkeypatch.setattr, raw)


@pytest.mark.parametrize("other", [None, "postgresql://ada@elsewhere/sweeps"])
def test_ledgers_do_not_move(monkeypatch, raw, other):
    raw["storage"]["database"] = other
    monkeypatch.setattr(sweep, "make_places", lambda spec: None)
    with pytest.raises(StudyError, match="has its ledgers in postgresql://ada@"):
        run_here(monkeypatch.setattr, raw)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lost", ["study", "trial", "journal", "all"])
def test_what_is_deleted_in_the_database_gives_nothing_back(monkeypatch, raw, lost):
    files = files_of(raw)
    folder = files.lock.parent
    everything = [DatabasePath(folder.server, name) for name in sessions.logs_below(folder)]
    gone = {
        "study": [files.ledger / "study.jsonl"],
        "trial": [trial_file(files.ledger, 1)],
        "journal": [files.journal],
        "all": everything,
    }[lost]
    kept = [(path, content(path)) for path in gone]
    for path in gone:
        path.unlink()
    raw["search"]["num_trials"] = 3
    try:
        with pytest.raises((LedgerError, StudyError), match=r"missing|does not|no privacy ledger"):
            run_here(monkeypatch.setattr, raw)
        says = "no privacy ledger" if lost == "all" else r"missing|does not"
        with pytest.raises(StudyError if lost == "all" else LedgerError, match=says):
            load_sweep("digits", root=files.path.parent)
    finally:
        for path, lines in kept:
            put(path, lines)


def test_a_copied_directory_does_not_spend_twice(tmp_path, monkeypatch, raw):
    shutil.copytree(raw["storage"]["path"], tmp_path / "copy")
    raw["storage"]["path"], raw["search"]["num_trials"] = str(tmp_path / "copy"), 3
    with pytest.raises(BadInputError, match="a copy would spend"):
        run_here(monkeypatch.setattr, raw)


@pytest.mark.slow
def test_optunas_study_in_the_database_follows_the_journal(tmp_path, monkeypatch, address):
    raw = spec_of(tmp_path, address)
    place = place_of(run_here(monkeypatch.setattr, raw).files.optuna)

    def trials():
        return optuna.load_study(study_name="digits", storage=place.storage()).trials

    before = [(trial.params, trial.state, trial.values) for trial in trials()]
    assert len(before) == 2
    place.relabel("nothing is claimed of it")
    assert {trial.user_attrs[MEANING] for trial in trials()} == {"nothing is claimed of it"}
    place.make_way()
    assert not place.exists()
    raw["search"]["num_trials"] = 3
    run_here(monkeypatch.setattr, raw)
    after = [(trial.params, trial.state, trial.values) for trial in trials()]
    assert after[:2] == before
    assert "nothing" not in trials()[0].user_attrs[MEANING]


def test_a_selection_is_refused_whose_sealed_trials_would_be_files(tmp_path, address):
    raw = spec_of(tmp_path, address)
    del raw["search"]["num_trials"], raw["privacy"]["study_epsilon"]
    raw["privacy"] |= {"accounting": "select", "selection": {"mean": 3}}
    with pytest.raises(SpecError, match=r"storage.database: is not for accounting select"):
        preflight(SweepSpec(**raw))


def test_databases_are_asked_before_anything_is_spent(tmp_path, monkeypatch, address):
    monkeypatch.setattr(sessions, "EARLY_S", 0.2)
    nowhere = "postgresql://ada@127.0.0.1:1/x"
    for key, change in (
        ("storage.database", {"storage": {"path": str(tmp_path), "database": nowhere}}),
        ("privacy.dataset_ledger", {}),
    ):
        raw = spec_of(tmp_path, nowhere if not change else address) | change
        if not change:
            raw["storage"]["database"] = address
        with pytest.raises(SpecError, match=f"{key}.*does not answer: Connection refused"):
            make_places(SweepSpec(**raw))
    assert not (tmp_path / "digits").exists()


def test_a_role_that_only_reads_is_refused_before_data_are_read(tmp_path, raw, monkeypatch):
    role = f"r{uuid.uuid4().hex[:12]}"
    with psycopg.connect(raw["storage"]["database"], autocommit=True) as owner:
        owner.execute(f"create role {role} login password '{PASSWORD}'")
        owner.execute(f"grant usage on schema dpsweep to {role}")
        owner.execute(f"grant select on all tables in schema dpsweep to {role}")
    address = raw["storage"]["database"].replace("ada@", f"{role}@")
    raw = spec_of(tmp_path, address, "another")
    with pytest.raises(SpecError, match=r"storage\.database.* does not let r.* write"):
        make_places(SweepSpec(**raw))
    with pytest.raises(SpecError, match=r"does not let r.* write") as caught:
        run_here(monkeypatch.setattr, raw)
    assert caught.value.exit_code == 2


def test_a_lost_claim_is_lost_in_every_place(tmp_path, monkeypatch, address):
    raw = spec_of(tmp_path, address)
    run_here(monkeypatch.setattr, raw)
    study = Study(SweepSpec(**raw))
    ledger = StudyLedger(study.files.ledger)
    give_up_claim(study, ledger, "a test")
    ledger.close()
    study.close()
    assert read_dataset_ledger(f"{address}#digits").broken == "study 'digits': a test"
    assert load_sweep("digits", root=tmp_path / "studies").claims.accounting == "unaccounted"
