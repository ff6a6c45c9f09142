"""A study on a stock MLflow server: over http, through an outage, and in a browser."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from mlflow_servers import BROWSER, Server, page_text
from sklearn.datasets import load_digits
from stored_studies import copy_studies, track
from studies_here import run_here
from whole_studies import cli, cli_here, make_spec

from dpsweep import register_model
from dpsweep.foundation.logs import read_log
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.spool import Spool
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.views import addresses

METHODS, EPSILONS = ("dp_sgd", "scatternet", "adamix"), (1.0, 2.0, 4.0)
TERMS = {
    "dp.unit": "example",
    "dp.adjacency": "add_or_remove_one",
    "dp.accountant": "rdp",
    "dp.accounting": "unaccounted",
    "dp.delta": 1e-05,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def twenty_trials():
    """The journal of 20 trials: three methods, three target epsilons, all ends."""
    rng, lines = random.Random(0), []

    def add(event, **more):
        lines.append(
            {"seq": len(lines), "time_ms": 1_790_000_000_000 + 1000 * len(lines), "event": event}
            | more
        )

    params = {"search.mode": "max", "search.metric": "validation/accuracy"}
    searched = ["method", "noise.target_epsilon", "optim.lr"]
    records = [{"name": "digits training", "context": "private", "records": 1079}]
    card = "## Privacy card: browse\n\nAll trials composed: epsilon <= 17.3 at delta = 1e-05.\n"
    add("study_started", name="browse", params=params, tags=TERMS, card=card, searched=searched,
        constants={"train.epochs": 5}, datasets=records)  # fmt: skip
    for trial in range(20):
        method, epsilon = METHODS[trial % 3], EPSILONS[trial // 3 % 3]
        score = round(0.5 + epsilon / 10 + rng.random() / 20, 4)
        hparams = {"method": method, "noise.target_epsilon": epsilon, "train.epochs": 5}
        tags = {"dp.private": True, "dp.sampling": "poisson", "dpsweep.method": method}
        add("trial_started", trial=trial, hparams={**hparams, "optim.lr": rng.random()},
            plan={"steps": 100, "epsilon": epsilon}, tags=tags)  # fmt: skip
        scored = {"metrics": {"validation/accuracy": score}, "value": score}
        add("trial_report", trial=trial, step=50, epsilon=epsilon / 2, best_step=50, **scored)
        state, step = {4: ("pruned", 75), 13: ("failed", 75)}.get(trial, ("finished", 100))
        add("trial_ended", trial=trial, step=step, epsilon=epsilon * step / 100, best_step=step,
            delivered=scored["metrics"], state=state, reason="its end", **scored)  # fmt: skip
    add("study_ended", state="finished", card=card, metrics={"dp/composed_epsilon": 17.3},
        tags={"dp.sampling": "poisson"})  # fmt: skip
    return lines


@pytest.fixture(scope="module")
def browse(server, tmp_path_factory):
    """The study on the server, and the state of its tracker."""
    folder = tmp_path_factory.mktemp("browse")
    journal, state = folder / "journal.jsonl", folder / "tracking.json"
    journal.write_text("".join(json.dumps(line) + "\n" for line in twenty_trials()))
    messages = []
    with Spool(
        journal, lambda: MLflowTracker(server.uri, "browse", state), state,
        on_message=messages.append,
    ) as spool:  # fmt: skip
        assert spool.flush(120)
    assert messages == []
    return TrackingState.load(state)


@pytest.mark.slow
def test_filters_of_the_ui_return_exactly_the_right_runs(server, browse):
    from mlflow import MlflowClient

    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name("browse").experiment_id
    runs = client.search_runs([experiment])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert [run.info.run_name for run in parents] == ["browse"]
    assert len(runs) == 21

    def trials(words):
        shown = client.search_runs([experiment], words)
        return {int(run.data.tags["dpsweep.trial"]) for run in shown}

    ends = {line["trial"]: line for line in twenty_trials() if line["event"] == "trial_ended"}
    cheap = {trial for trial, line in ends.items() if line["epsilon"] <= 2}
    assert trials("metrics.`dp/epsilon` <= 2") == cheap
    assert 0 < len(cheap) < 20
    of_trials = "tags.`dpsweep.trial` != ''"
    assert trials(f"tags.`dp.accountant` = 'rdp' AND {of_trials}") == set(range(20))
    everything = client.search_runs([experiment], "tags.`dp.accountant` = 'rdp'")
    assert len(everything) == 21  # and the study's own run
    assert trials("tags.`dpsweep.state` = 'pruned'") == {4}
    assert trials("attributes.status = 'KILLED'") == {4}
    assert trials("attributes.status = 'FAILED'") == {13}
    assert trials("params.method = 'adamix'") == {n for n in range(20) if n % 3 == 2}
    names = {name for run in runs if run not in parents for name in run.data.params}
    assert names == {"method", "noise.target_epsilon", "optim.lr"}
    assert parents[0].data.params["train.epochs"] == "5"
    assert {"best/value", "best/epsilon", "best/trial"} <= set(parents[0].data.metrics)


def test_a_study_is_listed_and_read_over_http(server, tmp_path):
    studies = copy_studies(tmp_path, ["composed"])
    track(tmp_path, "composed", uri=server.uri)

    def rows(*words):
        done = cli_here(*words, "-f", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (row,) = [r for r in rows("list", f"mlflow:{server.uri}") if r["study"] == "composed"]
    (local,) = rows("list", studies / "composed")
    assert row["where"] == "mlflow:composed/composed"
    assert {key for key in local if row[key] != local[key]} <= {"where", "started"}
    best = rows("best", row["where"], "--tracking-uri", server.uri)
    at_home = rows("best", "composed", "--root", studies)
    assert {key for key in best if best[key] != at_home[key]} <= {"run_id", "model_uri"}
    assert best["epsilon"] == at_home["epsilon"]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_pages_in_a_browser(server, browse, tmp_path):
    pages = addresses(server.uri, browse)
    trials = page_text(pages["trials"], tmp_path, tmp_path / "trials.png")
    assert "browse: trials by validation/accuracy" in trials
    for word in ("trial-0008", "dp/epsilon", "dpsweep.state", "20</strong> matching runs"):
        assert word in trials
    assert "Model training" in trials
    charts = page_text(pages["charts"], tmp_path, tmp_path / "charts.png")
    assert "Sweep" in charts
    assert charts.count("dp/epsilon") > 1
    study = page_text(pages["study"], tmp_path, tmp_path / "study.png")
    for word in ("Privacy card: browse", "all trials by score", "best/epsilon", "digits training"):
        assert word in study


def test_a_dead_server_is_refused_before_a_new_study_starts(tmp_path, monkeypatch):
    path = tmp_path / "dead.yaml"
    path.write_text(yaml.safe_dump(make_spec(tmp_path, "dead", search__num_trials=1)))
    started = time.monotonic()
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "sesame")
    done = cli_here("run", path, "--set", "tracking.uri=http://127.0.0.1:9")
    assert done.returncode == 2
    assert time.monotonic() - started < 15
    said = " ".join(done.stderr.split())
    assert "no MLflow server answers at http://127.0.0.1:9: connection refused" in said
    assert "sesame" not in done.stdout + done.stderr
    assert not (tmp_path / "studies" / "dead" / "ledger").exists()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1500)
def test_a_server_that_is_away_for_two_minutes_misses_nothing(tmp_path):
    """It is killed in the middle; trials do not wait, and in the end it has every point."""
    from mlflow import MlflowClient

    server = Server(tmp_path)
    server.start()
    spec = make_spec(tmp_path, "outage", search__num_trials=30, tracking={"uri": server.uri})
    spec["search"]["space"] = {
        "method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 4]}, "train.epochs": 5,
    }  # fmt: skip
    path, studies = tmp_path / "outage.yaml", tmp_path / "studies" / "outage"
    path.write_text(yaml.safe_dump(spec))
    run = subprocess.Popen(
        [sys.executable, "-m", "dpsweep", "run", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and run.poll() is None:
            journal = studies / "journal.jsonl"
            if journal.exists() and '"trial_ended"' in journal.read_text():
                break
            time.sleep(0.2)
        assert run.poll() is None, run.communicate()[0]
        killed_ms = 1000 * time.time()
        server.kill()
        time.sleep(120)
        server.start()
        output = run.communicate(timeout=600)[0]
        assert run.returncode == 0, output
        assert f"tracking store {server.uri} cannot be reached" in output
        again = cli("run", path)
        assert again.returncode == 0, again.stderr
        lines = read_log(studies / "journal.jsonl")
        began, wanted, took_ms = {}, {}, {}
        for line in lines:
            if line["event"] == "trial_started":
                began[line["trial"]] = line["time_ms"]
            if line["event"] in ("trial_report", "trial_ended"):
                wanted.setdefault(line["trial"], {})[line["step"]] = line["epsilon"]
            if line["event"] == "trial_ended" and began[line["trial"]] > killed_ms:
                took_ms[line["trial"]] = line["time_ms"] - began[line["trial"]]
        assert len(wanted) == 30
        assert took_ms
        assert max(took_ms.values()) < 30_000, took_ms  # none waited for the server
        client = MlflowClient(server.uri)
        state = TrackingState.load(studies / "tracking.json")
        for trial, points in wanted.items():
            history = client.get_metric_history(state.run_ids[trial], "dp/epsilon")
            assert {point.step: point.value for point in history} == pytest.approx(points)
            assert client.get_run(state.run_ids[trial]).info.status == "FINISHED"
        statuses = {r.info.status for r in client.search_runs([state.store.rpartition("#")[2]])}
        assert statuses == {"FINISHED"}
    finally:
        server.kill()
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow and torch.export warn of themselves
def test_a_model_is_registered_and_asked_over_http(server, tmp_path):
    import mlflow
    from mlflow import MlflowClient

    with pytest.MonkeyPatch.context() as patch:
        raw = make_spec(tmp_path, name="handed-on", tracking={"uri": server.uri, "pictures": False})
        raw["search"]["num_trials"] = 1
        result = run_here(patch.setattr, raw)
    made = register_model(result)
    again = register_model(result)
    assert (made.version, made.claim, again.version, again.is_new) == (1, None, 1, False)
    client = MlflowClient(tracking_uri=server.uri)
    entry = client.get_model_version_by_alias("handed-on", "champion")
    assert entry.tags["dp.claim"].startswith("none")
    assert entry.run_id == result.best().run_id
    np.save(tmp_path / "x.npy", load_digits().images[:3])
    asked = cli_here(
        "predict", made.uri, tmp_path / "x.npy", "--tracking-uri", server.uri, "-f", "json"
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stderr.startswith("claim: none")
    mlflow.set_tracking_uri(server.uri)  # as whoever gets it would
    frame = mlflow.pyfunc.load_model(made.uri).predict(load_digits().images[:3])
    rows = json.loads(asked.stdout)
    assert [row["class"] for row in rows] == list(frame["class"])
    assert [row["probability"] for row in rows] == pytest.approx(list(frame["probability"]))
