"""Rows, frames, files and pages of trials: one epsilon everywhere, and no more than is claimed."""

import csv
import io
import json
import re

import pytest
from selections import select_spec
from stored_studies import NAMES, copy_studies, track
from whole_studies import cli_here

from dpsweep import load_sweep
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.terms import COLUMNS
from dpsweep.results.study_card import card
from dpsweep.results.tables.rows import FIRST, csv_text, parquet_bytes, trial_rows
from dpsweep.running import entries
from dpsweep.study.study import Study
from dpsweep.tracking.mlflow_reader import MLflowReader

CLOSE = 1e-6


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    return copy_studies(tmp_path_factory.mktemp("rows"))


def exported(studies, name, kind):
    done = cli_here("export", name, "--root", studies, "-f", kind)
    assert done.returncode == 0, done.stderr
    if kind == "json":
        return json.loads(done.stdout)
    return list(csv.DictReader(io.StringIO(done.stdout)))


def number(cell):
    return float("inf") if cell in (None, "inf") else float(cell)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_an_epsilon_is_the_same_wherever_it_is_read(studies, name, tmp_path):
    import pandas as pd

    result = load_sweep(name, root=studies)
    expected = {trial.trial_id: trial.epsilon for trial in result.results}
    frame = result.trials()
    path = tmp_path / "trials.parquet"
    assert cli_here("export", name, "--root", studies, "--to", path).returncode == 0
    status = json.loads(cli_here("status", name, "--root", studies, "-f", "json").stdout)
    shown = {
        n: json.loads(cli_here("show", name, n, "--root", studies, "-f", "json").stdout)
        for n in expected
    }
    everywhere = {
        "frame": dict(zip(frame["trial"], frame["epsilon"])),
        "csv": {int(r["trial"]): number(r["epsilon"]) for r in exported(studies, name, "csv")},
        "json": {r["trial"]: number(r["epsilon"]) for r in exported(studies, name, "json")},
        "parquet": {
            row["trial"]: row["epsilon"] for row in pd.read_parquet(path).to_dict("records")
        },
        "status": {row["trial"]: number(row["epsilon"]) for row in status},
        "show": {n: number(record["epsilon"]) for n, record in shown.items()},
    }
    assert {
        source: epsilons == expected for source, epsilons in everywhere.items()
    } == dict.fromkeys(everywhere, True)
    if name in ("composed", "unaccounted"):  # of the others, tasks alone do not tell all charges
        for trial in (t for t in result.results if t.config["method"] == "dp_sgd"):
            last = json.loads((result.files.trial(trial.trial_id) / "last.json").read_text())
            spent = result.task(trial.trial_id).charges.slice(0, last["charged"])
            assert epsilon_of(spent, delta=1e-5) == pytest.approx(trial.epsilon, abs=CLOSE)
    copied = copy_studies(tmp_path, [name])
    store = MLflowReader(track(copied.parent, name))
    (run,) = store.studies()
    for trial, stored in store.trials(run).items():
        if "dp/epsilon" in stored.metrics and name != "select":  # there: the claim, on its model
            assert stored.metrics["dp/epsilon"] == pytest.approx(expected[trial], abs=CLOSE)
    claim = result.study_statement()
    if claim is not None:
        written = [float(digits) for digits in re.findall(r"\d+\.?\d*", card(result))]
        assert any(0 <= value - claim.epsilon <= 1e-4 for value in written)  # rounded up
        assert float(run.tags["dp.study_epsilon"]) == pytest.approx(claim.epsilon, abs=CLOSE)
        assert frame.attrs["statement"]["epsilon"] == claim.epsilon


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_all_terms_and_the_frame_those_that_rows_share(studies, name):
    result = load_sweep(name, root=studies)
    for kind in ("csv", "json"):
        for row in exported(studies, name, kind):
            assert [term for term in (*COLUMNS, "released") if row[term] in (None, "")] == []
    frame = result.trials()
    assert {"epsilon", "sampling", "released"} < set(frame.columns)
    attrs = frame[frame["epsilon"] >= 0].attrs
    for term in COLUMNS:
        if term != "sampling":
            assert term not in frame.columns
            assert attrs[term] == result.claims.epsilon_terms()[term]
    assert json.loads(json.dumps(attrs)) == attrs


def test_parquet_keeps_what_frames_of_other_tools_lose(studies):
    import pandas as pd

    result = load_sweep("composed", root=studies)
    frame = pd.read_parquet(io.BytesIO(parquet_bytes(result)))
    assert list(frame.columns) == list(trial_rows(result)[0])
    assert frame.attrs["statement"]["epsilon"] == 3.0
    assert frame.attrs["delta"] == 1e-5


def test_a_hyperparameter_named_as_a_column_gets_its_own(studies):
    result = load_sweep("composed", root=studies)
    result.view.trials[0].hparams["state"] = [1, 2]
    rows = trial_rows(result)
    assert (rows[0]["state"], rows[0]["config.state"]) == ("finished", [1, 2])
    assert rows[1]["config.state"] is None
    (row, *_) = csv.DictReader(io.StringIO(csv_text(rows)))
    assert (row["state"], row["config.state"]) == ("finished", "[1, 2]")


def test_a_file_is_not_replaced_unless_asked_and_its_suffix_is_its_format(studies, tmp_path):
    path = tmp_path / "trials.csv"
    words = ("export", "composed", "--root", studies, "--to")
    assert cli_here(*words, path).returncode == 0
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert (len(rows), list(rows[0])[: len(FIRST)]) == (6, list(FIRST))
    path.write_text("mine")
    done = cli_here(*words, path)
    assert (done.returncode, path.read_text()) == (2, "mine")
    assert "exists already" in done.stderr
    assert cli_here(*words, path, "--force", "-f", "json").returncode == 0
    assert len(json.loads(path.read_text())) == 6
    for wrong, said in (("trials.xls", "suffix .xls"), ("none/trials.csv", "no such directory")):
        done = cli_here(*words, tmp_path / wrong)
        assert (done.returncode, said in done.stderr) == (2, True)
    done = cli_here("export", "composed", "--root", studies, "-f", "parquet")
    assert (done.returncode, done.stdout) == (2, "")
    assert [p.name for p in tmp_path.iterdir()] == ["trials.csv"]


def test_a_configuration_goes_back_unchanged(studies):
    """As a first point of another search, from every export: the same trial would be admitted."""
    from dpsweep.planning.reading import read_spec

    result = load_sweep("composed", root=studies)
    best = result.best()
    (row,) = [r for r in exported(studies, "composed", "json") if r["trial"] == best.trial_id]
    point = {name: row[name] for name in result.spec.search.space if name in row}
    tree = result.spec.to_dict()
    tree["search"]["points_to_evaluate"] = [point]
    spec = read_spec(json.dumps(tree) + "\n")
    assert spec.search.points_to_evaluate[0].items() <= best.config.items()
    assert {name: row[name] for name in best.config} == dict(best.config)


#: What could tell more than a selection claims: a time of day, a count, another trial.
VERBS = ["export", "show 0", "best", "list", "compare", "page", "frame"]


def output(studies, name, verb, other="composed"):
    """Return all that one way out says of a study, on stdout and stderr."""
    result = load_sweep(name, root=studies)
    if verb == "page":
        return result._repr_html_()
    if verb == "frame":
        frame = result.trials()
        return frame.to_csv() + json.dumps(frame.attrs)
    if verb == "list":
        done = cli_here("list", studies / name, "-f", "json")
    elif verb == "compare":
        done = cli_here("compare", name, name, "--root", studies, "-f", "json")
    else:
        kind = () if verb == "show 0" else ("-f", "json")
        done = cli_here(*verb.split()[:1], name, *verb.split()[1:], "--root", studies, *kind)
    assert done.returncode in (0, 2, 3), done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_of_a_selection_nothing_but_its_winner_gets_out(studies, verb):
    said = output(studies, "select", verb)
    assert "0.8897" in said or "0.8898" in said  # its claim, so this is what it looks like
    assert not re.search(r"\d\d:\d\d", said)  # journals of selections have days
    assert not re.search(r"trial[s_ ]*[1-9]|num_trials|of at most|seconds|; \d+ s\b", said)
    rows = [line for line in said.splitlines() if '"trial"' in line]
    assert all(re.search(r'"trial": 0', line) for line in rows)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("verb", VERBS)
def test_of_a_selection_that_has_not_released_nothing_gets_out(tmp_path, verb):
    checked = preflight(select_spec(tmp_path))
    study = Study(checked.spec)
    ledger = StudyLedger(study.files.ledger)
    chosen = choose_selection(checked)
    ledger.charge_selection(chosen.selection, chosen.bound, chosen.epsilon, 1e-5)
    ledger.num_trials(lambda: 17)
    study.write(entries.study_started(study))
    sealed = study.files.path / "sealed" / "losers"
    (sealed / "ledger").mkdir(parents=True)
    (sealed / "spec.yaml").write_text("name: secret-0.4321\n")
    ledger.close()
    study.close()
    said = output(tmp_path / "studies", "selection", verb)
    assert not re.search(r"0\.4321|losers|secret-|\b17\b", said)
    assert not re.search(r"\d\d:\d\d|trial[s_ ]*[1-9]|num_trials", said)
    if verb == "export":
        assert said.startswith("[]")
        assert "its trials are secret" in said


@pytest.mark.sampled(3)
@pytest.mark.parametrize("verb", VERBS)
def test_of_a_public_search_only_the_final_run_has_a_claim(studies, verb):
    said = output(studies, "public", verb)
    result = load_sweep("public", root=studies)
    final = next(
        t for t in result.results if result.claims.is_final(result.view.trials[t.trial_id])
    )
    others = [t for t in result.results if t.trial_id != final.trial_id]
    assert {t.study_statement for t in others} == {None}
    assert {t.epsilon for t in others} == {0.0}
    if verb == "export":
        rows = {row["trial"]: row for row in exported(studies, "public", "json")}
        claimed = {n for n, row in rows.items() if row["study_epsilon"] is not None}
        assert claimed == {final.trial_id}
        assert {rows[t.trial_id]["released"] for t in others} == {
            "a model that no private record was used for"
        }
    if verb == "best":
        assert json.loads(said.partition("\nepsilon=")[0])["trial_id"] == final.trial_id
    if verb == "list":
        assert json.loads(said)[0]["best"] == final.value


def test_a_page_escapes_what_users_wrote(studies):
    result = load_sweep("composed", root=studies)
    result.view.trials[0].hparams["optim.lr"] = "<script>alert(1)</script>"
    result.name = "<b>mine</b>"
    for page in (result._repr_html_(), result.trial(0)._repr_html_()):
        assert "<script>" not in page
        assert "&lt;script&gt;" in page
        assert "delta" in page
        assert "1e-05" in page
    assert "<b>mine" not in result._repr_html_()
    assert "4 (best)" in result._repr_html_()
