"""A study read from the tracking store alone is the study of its own files, to 1e-6."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from stored_studies import NAMES, copy_studies, track
from whole_studies import cli_here, make_spec

from dpsweep import load_sweep, register_model
from dpsweep.cli.best_spec import spec_text
from dpsweep.foundation.errors import BadInputError, StudyError
from dpsweep.results.tables.rows import trial_rows
from dpsweep.results.tracked.claims import TaggedClaims
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.trial import TrialState
from dpsweep.tracking.mlflow_reader import MLflowReader

CLOSE = 1e-6
ELSEWHERE = ("run_id", "model_uri")  # the old studies were never tracked


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Old studies in one store; the folder has their files, too."""
    folder = tmp_path_factory.mktemp("home")
    copy_studies(folder)
    for name in NAMES:
        track(folder, name)
    return folder


@pytest.fixture
def away(home, tmp_path, monkeypatch):
    """A directory that knows of the store and of no study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    return tmp_path


def close(one, other):
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, abs_tol=CLOSE)
    return one == other


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_the_same_as_from_its_files(home, away, name):
    local = load_sweep(name, root=home / "studies")
    stored = load_sweep(f"mlflow:{name}/{name}")
    rows = trial_rows(stored)
    assert len(rows) == len(trial_rows(local)) > 0
    for mine, theirs in zip(trial_rows(local), rows, strict=True):
        assert mine.keys() == theirs.keys()
        differ = {k: (mine[k], theirs[k]) for k in mine if not close(mine[k], theirs[k])}
        assert set(differ) <= set(ELSEWHERE), differ
    assert stored.state == local.state
    claims = [r.study_statement() for r in (local, stored)]
    assert (claims[0] is None) == (claims[1] is None)
    if claims[0] is not None:
        assert claims[0].columns() == claims[1].columns()
        assert claims[0].released == claims[1].released
        assert close(claims[0].epsilon, claims[1].epsilon)
    choices = [r.choose() for r in (local, stored)]
    assert choices[0].best.config == choices[1].best.config
    assert (choices[0].ties, choices[0].runs) == (choices[1].ties, choices[1].runs)
    assert stored.task(choices[0].best.trial_id) == local.task(choices[0].best.trial_id)
    assert spec_text(stored, choices[1].best) == spec_text(local, choices[0].best)


def test_the_studys_epsilon_is_told_by_the_accountant_of_its_composition(tmp_path):
    """A declared composition is by pld, whatever trials are told by."""
    raw = make_spec(tmp_path, "declared")
    raw["privacy"] = {"delta": 1e-5, "trial_epsilon": 2.0, "study_epsilon": 3.0}
    raw["privacy"] |= {"accounting": "composed", "composition": "declared"}
    tags = {
        "dp.accounting": "composed",
        "dp.study_epsilon": "3.0",
        "dp.study_accountant": "pld",
        "dp.sampling": "poisson",
    }
    runs = SimpleNamespace(tags=tags, tags_of=lambda trial: {}, source="read from a store")
    runs.composed_epsilon = None
    view = StudyView()
    view.trials[0] = TrialView(0, state=TrialState.FINISHED, epsilon=1.0, sampling="poisson")
    claims = TaggedClaims(runs, SweepSpec(**raw), view)
    assert (claims.study_statement().epsilon, claims.study_statement().accountant) == (3.0, "pld")
    assert claims.trial_statement(view.trials[0]).accountant == "rdp"
    assert "pld for rdp" in claims.trial_statement(view.trials[0]).released
    del tags["dp.study_accountant"]  # of an older version
    assert claims.study_statement().accountant == "rdp"


def test_reports_are_the_same_but_for_test_scores_which_are_of_one_model(home, away):
    for name in NAMES:
        local, stored = load_sweep(name, root=home / "studies"), load_sweep(f"mlflow:{name}/{name}")
        for mine, theirs in zip(local.results, stored.results, strict=True):
            points = [
                {**p, "metrics": {k: v for k, v in p["metrics"].items() if k[:5] != "test/"}}
                for p in mine.curve
            ]
            if name == "select":  # a winner shows no curve in the store
                assert not theirs.curve
                continue
            for p, q in zip(points, theirs.curve, strict=True):
                assert (p["step"], p["metrics"]) == (q["step"], q["metrics"])
                assert close(p["epsilon"], q["epsilon"])


@pytest.mark.slow
def test_the_command_line_reads_it_and_says_who_is_the_authority(home, away):
    done = cli_here("best", "mlflow:composed/composed", "-f", "json")
    here = cli_here("best", "composed", "--root", home / "studies", "-f", "json")
    assert done.returncode == 0, done.stderr
    stored, local = json.loads(done.stdout), json.loads(here.stdout)
    assert {k: v for k, v in stored.items() if k not in ELSEWHERE} == {
        k: v for k, v in local.items() if k not in ELSEWHERE
    }
    assert stored["run_id"]
    table = cli_here("show", "mlflow:composed/composed", "1", "--explain")
    assert "pruned" in table.stdout
    assert "whoever may write there can change: the authority is the study's ledger" in table.stdout
    assert (
        "Read from a tracking store, not from the ledger"
        in cli_here("best", "mlflow:composed/composed").stdout
    )
    assert "the authority is the study's ledger" in load_sweep("mlflow:composed/composed").source
    done = cli_here("export", "mlflow:composed/composed")
    assert "the authority is the study's ledger" in done.stderr
    assert not (away / "studies").exists()
    assert not list(away.iterdir())


def test_it_is_not_registered_from_there_whichever_store_is_named(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = f"sqlite:///{home}/mlflow.db"
    with pytest.raises(StudyError, match="'composed' was read from a tracking store"):
        register_model("mlflow:composed/composed", tracking_uri=store)


def test_its_files_are_not_here_and_it_says_so(away):
    result = load_sweep("mlflow:composed/composed")
    for ask in (lambda: result.files, result.history, result.decisions):
        with pytest.raises(
            StudyError, match=r"read from a tracking store|no tracking store has it"
        ):
            ask()
    done = cli_here("status", "mlflow:composed/composed")
    assert (done.returncode, "finished" in done.stdout) == (0, True), done.stderr
    assert cli_here("logs", "mlflow:composed/composed").returncode == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mlflow:composed", "names no study in a tracking store"),
        ("mlflow:composed/", "names no study in a tracking store"),
        ("mlflow:nowhere/composed", "there is no experiment 'nowhere'"),
        ("mlflow:composed/other", "no study 'other' in experiment 'composed'"),
        ("mlflow:composed/composed@0000", "no study 'composed@0000'"),
    ],
)
def test_a_name_that_is_no_study_is_refused_with_what_there_is(away, name, words):
    done = cli_here("best", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_looking_makes_no_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for uri in (None, "sqlite:///other.db", "mlruns", "file:///mlruns"):
        with pytest.raises(BadInputError, match=r"no tracking store at|is a directory"):
            load_sweep("mlflow:a/b", tracking_uri=uri)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadInputError, match="needs no tracking store"):
        load_sweep("a", tracking_uri="sqlite:///mlflow.db")


def test_a_store_that_is_no_database_is_an_error_in_words_without_its_password(tmp_path):
    path = tmp_path / "broken.db"
    path.write_text("no database")
    with pytest.raises(BadInputError, match="cannot be read"):
        load_sweep("mlflow:a/b", tracking_uri=f"sqlite:///{path}")
    with pytest.raises(BadInputError) as caught:
        load_sweep("mlflow:a/b", tracking_uri="http://me:secret@127.0.0.1:9")
    assert "secret" not in str(caught.value)
    assert "me:***@127.0.0.1" in str(caught.value)


@pytest.mark.slow
def test_two_studies_of_one_name_are_told_apart_by_id_in_an_experiment_with_slashes(tmp_path):
    copy_studies(tmp_path, ["composed"])
    uri = track(tmp_path, "composed", experiment="team/digits")

    def later(line):
        return {**line, "time_ms": line["time_ms"] + 60_000}

    track(tmp_path, "composed", experiment="team/digits", change=later, state="again.json")
    with pytest.raises(StudyError, match="2 studies are named 'composed'") as caught:
        load_sweep("mlflow:team/digits/composed", tracking_uri=uri)
    names = caught.value.because.removeprefix("newest first: ").split(", ")
    first, second = (load_sweep(name, tracking_uri=uri) for name in names)
    assert first.view.first_ms == second.view.first_ms + 60_000
    rows = json.loads(cli_here("list", f"mlflow:{uri}", "-f", "json").stdout)
    assert [row["where"] for row in rows] == names


def tampered(tmp_path, tags):
    """Return a study whose own run somebody gave other tags."""
    from mlflow import MlflowClient

    copy_studies(tmp_path, ["composed"])
    uri = track(tmp_path, "composed")
    (run,) = MLflowReader(uri).studies()
    client = MlflowClient(tracking_uri=uri)
    for name, text in tags.items():
        client.set_tag(run.run_id, name, text)
    return load_sweep("mlflow:composed/composed", tracking_uri=uri)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ({"dp.downgraded": "a pruner was attached"}, "a pruner was attached"),
        ({"dp.accounting": "unaccounted"}, "is tagged unaccounted"),
        ({"dp.study_epsilon": "none: downgraded"}, None),
    ],
)
def test_what_a_tag_does_not_claim_is_not_claimed(tmp_path, tags, words):
    result = tampered(tmp_path, tags)
    assert result.study_statement() is None
    assert result.best().study_statement is None
    assert (result.claims.downgraded is None) == (words is None)
    if words:
        assert words in result.claims.downgraded
        assert result.claims.epsilon_terms()["accounting"] == "unaccounted"
        assert "DOWNGRADED" in result.claims.brief()


def test_a_trial_without_its_files_is_read_from_params_and_a_study_without_its_spec_is_refused(
    tmp_path,
):
    copy_studies(tmp_path, ["composed"])
    uri = track(tmp_path, "composed")
    for path in tmp_path.rglob("mlartifacts/**/trial.json"):
        path.unlink()
    local = load_sweep("composed", root=tmp_path / "studies")
    stored = load_sweep("mlflow:composed/composed", tracking_uri=uri)
    assert stored.best().config == local.best().config
    with pytest.raises(StudyError, match=r"trial.json of trial 4"):
        stored.task(4)
    (spec,) = tmp_path.rglob("mlartifacts/**/sweep.yaml")
    text = spec.read_text()
    spec.write_text(text.replace("trial_epsilon:", "trial_epsilonn:"))
    with pytest.raises(StudyError, match=r"the spec of study 'composed' in .* is damaged"):
        load_sweep("mlflow:composed/composed", tracking_uri=uri)
    Path(spec).unlink()
    with pytest.raises(StudyError, match="the spec of study 'composed' cannot be read"):
        load_sweep("mlflow:composed/composed", tracking_uri=uri)


def test_an_epsilon_that_the_store_does_not_have_yet_is_that_of_the_whole_plan(tmp_path):
    copy_studies(tmp_path, ["composed"])
    uri = track(tmp_path, "composed", until="trial_report")
    result = load_sweep("mlflow:composed/composed", tracking_uri=uri)
    trial, *_ = result.results
    assert (trial.state.value, trial.value, trial.steps_run) == ("running", None, 0)
    assert 0.99 < trial.epsilon <= 1.0  # privacy.trial_epsilon
    assert result.state == "running"
