"""A study whose best models are not its last ones: every door shows one model and its claim."""

import csv
import io
import json
import re
import subprocess
import sys

import pytest
from whole_studies import cli_here, make_spec, mlflow_rows, parent_note

from dpsweep import tracking
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.results.study import load_sweep
from dpsweep.results.study_card import card
from dpsweep.spec.study import SweepSpec
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.execution.execution import records_for

pytestmark = pytest.mark.ray

SCORE = """
import sys, json, mlflow, numpy as np, torch
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pytorch.load_model(sys.argv[2])
data = np.load(sys.argv[3])
scores = {}
for part in ("validation", "test"):
    right = model(torch.from_numpy(data[part + "_x"])).argmax(1).numpy() == data[part + "_y"]
    scores[part + "/accuracy"] = int(right.sum()) / len(right)
print(json.dumps([scores, mlflow.models.get_model_info(sys.argv[2]).metadata["dpsweep"]]))
"""


WHOLE = """
import sys
from dpsweep import sweep
from dpsweep.spec.study import SweepSpec
class HandingOn(sweep.HandingOn):
    def of(self, trial):
        seen.append(super().of(trial))
        return seen[-1]
seen, sweep.HandingOn = [], HandingOn
result = sweep.run_sweep(SweepSpec.model_validate_json(sys.argv[1]))
print(result.best().model_uri, len(seen) == 1 and seen[0] is not None, "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def over(tmp_path_factory, ray_cluster):
    """Noise that grows eightfold destroys what the first steps have learned."""
    from dpsweep.sweep import run_sweep

    root = tmp_path_factory.mktemp("over")
    raw = make_spec(root, "over")
    raw["privacy"] |= {"accounting": "composed", "study_epsilon": 8.0}
    # Each configuration once: of two alike, `report` counts the first.
    raw["search"]["sampler"] = "grid"
    raw["search"]["space"] = {
        "method": "dp_sgd", "model.name": "linear", "optim.lr": {"choice": [2, 3, 4]},
        "noise.shape": "linear", "noise.end_ratio": 8, "train.max_steps": 60,
    }  # fmt: skip
    raw["report"] = {"points": 6}
    raw["tracking"]["pictures"] = True
    with pytest.MonkeyPatch.context() as patch:
        # As a study of many trials is delivered: by a process of its own, by nothing else.
        patch.setattr(tracking, "APART_FROM", 3)
        patch.setattr(MLflowTracker, "__init__", lambda *args: pytest.fail("not in this process"))
        return root, run_sweep(SweepSpec(**raw))


def of_run(root, run_id):
    rows = f"select key, value, step from latest_metrics where run_uuid = '{run_id}'"
    return {key: (value, step) for key, value, step in mlflow_rows(root, rows)}


def test_the_best_models_are_not_the_last_ones(over):
    """Else nothing here would show anything."""
    _, result = over
    for trial in result.results:
        assert trial.step < trial.steps_run == 60
        assert trial.value > trial.curve[-1]["metrics"]["validation/accuracy"] + 0.05


def test_all_doors_agree_to_the_last_digit(over, tmp_path):
    root, result = over
    best = result.best()
    names = ("validation/accuracy", "test/accuracy")
    scores = {name: best.metrics[name] for name in names}
    assert best.value == scores["validation/accuracy"]

    data = records_for(load_dataset(result.spec.data), result.files.task(best.trial_id))
    parts = {
        f"{part}_{kind}": array
        for part in ("validation", "test")
        for kind, array in zip("xy", data.parts[part])
    }
    import numpy as np

    np.savez(tmp_path / "parts.npz", **parts)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCORE, f"sqlite:///{root}/mlflow.db",
         best.model_uri, tmp_path / "parts.npz"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    of_model, claim = json.loads(done.stdout.splitlines()[-1])
    assert of_model == scores

    def show(verb, *more):
        answer = cli_here(verb, "over", "--root", root / "studies", "-f", "json", *more)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    record = show("best")
    assert (record["value"], record["step"]) == (best.value, best.step)
    assert {name: record["metrics"][name] for name in names} == scores
    row = next(row for row in show("status") if row["trial"] == best.trial_id)
    assert ({name: row[name] for name in names}, row["step"]) == (scores, best.step)
    assert {name: show("report")[0][name] for name in names} == scores
    assert scores in [{name: row[name] for name in names} for row in show("pareto")]

    child = of_run(root, best.run_id)
    assert {name: child[name] for name in names} == {
        name: (value, best.step) for name, value in scores.items()
    }
    assert child["search/objective"] == (best.value, best.step)
    assert child["curve/validation/accuracy"][1] == 60
    [(parent,)] = mlflow_rows(
        root, "select run_uuid from runs where run_uuid not in "
        "(select run_uuid from tags where key = 'mlflow.parentRunId')",
    )  # fmt: skip
    of_study = of_run(root, parent)
    assert {name: of_study[f"best/{name}"][0] for name in names} == scores
    assert of_study["best/trial"][0] == best.trial_id
    assert of_study["best/value"][0] == best.value
    of_logged = dict(
        mlflow_rows(root, "select metric_name, metric_value from logged_model_metrics")
    )
    assert {name: of_logged[name] for name in names} == scores
    assert not [name for name in of_logged if "epsilon" in name]

    assert claim["claim"]["epsilon"] == 8.0
    assert {name: claim["scores"][name] for name in names} == scores


CLOSE = 1e-6


def by_trial(rows):
    return {int(row["trial"]): float(row["epsilon"]) for row in rows}


def on_the_command_line(root, result, folder):
    """Return command -> trial -> epsilon: all that the command line says of each trial."""
    import pandas as pd

    def run(verb, *more):
        done = cli_here(verb, "over", *more, "--root", root / "studies")
        assert done.returncode == 0, done.stderr
        return done.stdout

    best = json.loads(run("best", "-f", "json"))
    numbers = [trial.trial_id for trial in result.results]
    run("export", "--to", folder / "trials.parquet")
    return {
        "status": by_trial(json.loads(run("status", "-f", "json"))),
        "show": {n: json.loads(run("show", n, "-f", "json"))["epsilon"] for n in numbers},
        "best": {best["trial_id"]: best["epsilon"]},
        "pareto": by_trial(json.loads(run("pareto", "-f", "json"))),
        "csv": by_trial(csv.DictReader(io.StringIO(run("export", "-f", "csv")))),
        "json": by_trial(json.loads(run("export", "-f", "json"))),
        "parquet": by_trial(pd.read_parquet(folder / "trials.parquet").to_dict("records")),
    }


def in_files(root, result):
    """Return file -> trial -> epsilon: ledgers, checkpoints, journal, Optuna's file, pictures."""
    import optuna

    def of(plan):
        return epsilon_of(plan, delta=result.spec.privacy.delta)

    def table(name):
        return csv.DictReader(io.StringIO((result.files.pictures / name).read_text()))

    files, numbers = result.files, [trial.trial_id for trial in result.results]
    saved = {n: json.loads((files.trial(n) / "last.json").read_text()) for n in numbers}
    study = optuna.load_study(study_name="over", storage=f"sqlite:///{files.optuna}")
    curves = table("learning_curves.csv")
    points = table("privacy_utility.csv")
    return {
        "ledger": {n: of(trial_spent(files.ledger, n)) for n in numbers},
        "checkpoint": {n: of(result.task(n).charges.slice(0, saved[n]["charged"])) for n in saved},
        "journal": {
            line["trial"]: line["epsilon"]
            for line in read_log(files.journal)
            if line["event"] == "trial_ended"
        },
        "optuna": {trial.number: trial.user_attrs["dp/epsilon"] for trial in study.trials},
        "learning_curves.csv": {int(row["trial"]): float(row["epsilon"]) for row in curves},
        "privacy_utility.csv": {int(row["trials"]): float(row["epsilon"]) for row in points},
    }


def test_a_trial_s_epsilon_is_the_same_behind_every_door(over, tmp_path):
    root, result = over
    expected = {trial.trial_id: trial.epsilon for trial in result.results}
    assert len(expected) == 3
    uri = f"sqlite:///{root}/mlflow.db"
    stored = load_sweep("mlflow:over/over", tracking_uri=uri)
    metrics = {n: of_run(root, result.trial(n).run_id)["dp/epsilon"][0] for n in expected}
    everywhere = {
        **on_the_command_line(root, result, tmp_path),
        **in_files(root, result),
        "frame": by_trial(result.trials().to_dict("records")),
        "mlflow": metrics,
        "load_sweep": {trial.trial_id: trial.epsilon for trial in stored.results},
        "load_sweep, best": {stored.best().trial_id: stored.best().epsilon},
    }
    best = result.best()
    alone = {"pareto", "best", "load_sweep, best"}  # of some trials
    for door, epsilons in everywhere.items():
        wanted = {n: expected[n] for n in epsilons} if door in alone else expected
        assert epsilons == pytest.approx(wanted, abs=CLOSE), door
        assert epsilons, door
    # Words for people round up to four digits, all of them alike.
    shown = shown_epsilon(best.epsilon)
    assert 0 <= float(shown) - best.epsilon <= 1e-4
    (row,) = re.findall(r"^- Best trial: .*$", card(result), re.MULTILINE)
    assert f"epsilon = {shown.rstrip('0').rstrip('.')} at delta" in row
    page = result.files.page.read_text()
    cells = re.findall(r"<td class=\"number\">([^<]*)</td>", page)
    assert cells.count(shown) >= len(expected)
    assert f"<dt>Epsilon</dt><dd>{shown} at delta" in page.replace("\n", "")
    table = cli_here("best", "over", "--root", root / "studies").stdout
    assert shown in table


def test_the_study_s_epsilon_is_the_same_behind_every_door(over):
    root, result = over
    claim = result.study_statement()
    uri = f"sqlite:///{root}/mlflow.db"
    stored = load_sweep("mlflow:over/over", tracking_uri=uri)
    rows = dict(
        mlflow_rows(root, "select distinct key, value from tags where key like 'dp.study%'")
    )
    model = dict(mlflow_rows(root, "select tag_key, tag_value from logged_model_tags"))
    (listed,) = json.loads(cli_here("list", root / "studies" / "over", "-f", "json").stdout)
    best = json.loads(cli_here("best", "over", "--root", root / "studies", "-f", "json").stdout)
    everywhere = {
        "load_sweep": stored.study_statement().epsilon,
        "frame": result.trials().attrs["statement"]["epsilon"],
        "rows": result.trials()["study_epsilon"].max(),
        "tag": rows["dp.study_epsilon"],
        "tag of the model": model["dp.study_epsilon"],
        "list": listed["epsilon"],
        "best": best["study"]["epsilon"],
    }
    epsilons = {door: float(value) for door, value in everywhere.items()}
    assert epsilons == pytest.approx(dict.fromkeys(everywhere, claim.epsilon), abs=CLOSE)
    shown = shown_epsilon(claim.epsilon)
    of_card = f"The study: **epsilon <= {shown.rstrip('0').rstrip('.')} at delta = 1e-05 "
    assert of_card in card(result)
    assert of_card in parent_note(root)
    assert f"The study: epsilon={shown} " in result.claims.caption()
    assert f"The study: epsilon={shown} " in result.files.page.read_text()


def test_the_logged_model_carries_the_study_s_claim(over):
    root, result = over
    tags = dict(mlflow_rows(root, "select tag_key, tag_value from logged_model_tags"))
    study, alone = result.study_statement(), result.best().statement
    assert tags["dp.study_epsilon"] == str(study.epsilon) == "8.0"
    assert tags["dp.claim"] == study.one_line()
    assert tags["dp.released"] == study.released
    assert tags["dp.trial_alone_epsilon"].startswith(str(alone.epsilon))
    told = tags["mlflow.note.content"]
    assert told.index(study.one_line()) < told.index(alone.one_line())


def test_the_end_of_a_run_says_both_scores(over):
    root, result = over
    best = result.best()
    raw = json.loads(json.dumps(result.spec.to_dict()))
    path = root / "over.yaml"
    path.write_text(json.dumps(raw))
    done = cli_here("run", path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert f"test/accuracy={best.metrics['test/accuracy']:.4f}" in said
    assert load_sweep("over", root=root / "studies").best().metrics == best.metrics


def test_the_gallery_is_in_the_store_and_of_the_same_model(over):
    """The confusion matrix adds up to the test score that every door shows."""
    import mlflow

    root, result = over
    client = mlflow.MlflowClient(f"sqlite:///{root}/mlflow.db")
    (experiment,) = (e for e in client.search_experiments() if e.name == result.name)
    (parent,) = client.search_runs([experiment.experiment_id], "tags.dpsweep.trial IS NULL")
    stored = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "pictures"} <= stored
    names = {item.path for item in client.list_artifacts(parent.info.run_id, "pictures")}
    local = {f"pictures/{path.name}" for path in result.files.pictures.iterdir()}
    assert names == local
    assert "pictures/confusion.csv" in names
    matrix = json.loads(result.files.confusion.read_text())
    right = sum(row[place] for place, row in enumerate(matrix["counts"]))
    total = sum(map(sum, matrix["counts"]))
    assert right / total == pytest.approx(result.best().metrics["test/accuracy"], abs=1e-12)
    assert (result.files.trial(result.best().trial_id) / "examples.png").exists()


PROBED = {
    "strategy": "probe", "probe": {"num_probes": 3, "epsilon": 0.3},
    "space": {
        "method": "dp_sgd", "model.name": "linear", "train.epochs": 2,
        "optim.input_norm": 4.0, "optim.noise_scale": {"loguniform": [0.1, 100]},
    },
}  # fmt: skip
#: Why a search ends -> what differs in its spec. A final run and probes end otherwise yet.
ENDS = {
    "all trials were started": {},
    "no further trial fits": {
        "privacy": {"delta": 1e-5, "trial_epsilon": 1.0, "accounting": "composed",
                    "study_epsilon": 1.2},
    },
    "the final run has ended": {
        "privacy": {"delta": 1e-5, "trial_epsilon": 1.0, "accounting": "public"},
        "data__public": {"fraction": 0.2},
    },
    "probes": {
        "privacy": {"delta": 1e-5, "accounting": "composed", "study_epsilon": 3.0,
                    "accountant": "rdp"},
        "search": PROBED,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("why", ENDS)
def test_the_driver_of_a_study_loads_no_torch(tmp_path, why):
    """The process of the last trial hands the best model on; the driver here is a fresh one."""
    raw = make_spec(tmp_path, "light", **ENDS[why])
    raw["tracking"]["pictures"] = True
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WHOLE, json.dumps(raw)],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    uri, is_handed, is_loaded = done.stdout.split()[-3:]
    assert uri.startswith("models:/m-")
    assert is_handed == "True"
    # Of public records there is a figure of what noise does to each layer: the driver computes it.
    assert is_loaded == str("data__public" in ENDS[why])
    study = load_sweep("light", root=tmp_path / "studies")
    if why != "probes":
        assert why in study.view.end_reason
    best = study.best().trial_id
    assert json.loads(study.files.confusion.read_text())["trial"] == best
    assert (study.files.pictures / "confusion.png").exists()
    assert (study.files.trial(best) / "examples.png").exists()


@pytest.mark.slow
def test_a_trial_is_run_again_at_its_own_cost(over, monkeypatch):
    root, result = over
    monkeypatch.chdir(root)
    number = result.best().trial_id
    done = cli_here("reproduce", "over", number, "--root", root / "studies", "--name", "again")
    assert done.returncode == 0, done.stderr
    assert "SPENDS PRIVACY AGAIN" in " ".join(done.stderr.split())
    again = load_sweep("again", root=root / "studies")
    assert again.best().config == result.best().config
    assert again.best().epsilon == pytest.approx(result.best().epsilon, abs=1e-9)
