"""Whole studies under each accounting mode, on real digits and a real local Ray."""

import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from whole_studies import DELTA, cli, make_spec, mlflow_rows, most_in_flight, start, wait_for_steps

from dpsweep.durable import read_log
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.privacy.ledger import study_spent, trial_spent
from dpsweep.privacy.study_ledger import read_study_account
from dpsweep.results import load_sweep
from dpsweep.spec import SweepSpec
from dpsweep.study import Observer
from dpsweep.trial import TrialState

pytestmark = pytest.mark.ray


class Listening(Observer):
    """Keeps everything that an observer is told."""

    def __init__(self):
        self.messages, self.views = [], []

    def on_message(self, text):
        self.messages.append(text)

    def on_view(self, view):
        self.views.append({number: trial.state for number, trial in view.trials.items()})


def composed_spec(root, name="composed", **changes):
    spec = make_spec(root, name)
    spec["privacy"] = {
        "delta": DELTA, "trial_epsilon": 1.5, "accounting": "composed", "study_epsilon": 6.0,
    }  # fmt: skip
    spec["search"] = {
        "sampler": "tpe",
        "num_trials": 60,
        "space": {
            "method": "dp_sgd",
            "optim.lr": {"loguniform": [0.001, 4]},
            "batch.expected": {"choice": [64, 128]},
            "noise.shape": {"choice": ["constant", "cosine", "linear"]},
            "noise.end_ratio": {
                "uniform": [0.5, 1.5],
                "when": {"noise.shape": ["cosine", "linear"]},
            },
            "train.epochs": {"uniform": [5, 20]},
        },
    }
    spec["scheduler"] = {"type": "epsilon_halving", "rungs": [0.6, 1.0], "reduction_factor": 3}
    for key, value in changes.items():
        section, _, leaf = key.partition("__")
        spec[section] = {**spec.get(section, {}), leaf: value} if leaf else value
    return spec


def check_filter(result):
    """The whole study stays within B at the filter's order, computed from the ledger files alone."""
    account = read_study_account(result.files.ledger)
    spent = study_spent(result.files.ledger, result.view.charged())
    cost = account.filter.cost(spent)
    assert max(cost.values()) <= account.filter.budget
    # The declared epsilon is what the filter's budget converts to, and bounds any other order.
    assert epsilon_of(spent, delta=DELTA) <= result.spec.privacy.study_epsilon
    return account, spent


@pytest.fixture(scope="module")
def composed(tmp_path_factory, ray_cluster):
    """Eight trials at once, with different noise, batches and schedules, on two cores."""
    from dpsweep.sweep import run_sweep

    root = tmp_path_factory.mktemp("composed")
    observer = Listening()
    raw = composed_spec(root, resources={"cpu": 0.25})
    return root, run_sweep(SweepSpec(**raw), observer=observer), observer


def test_a_composed_study_never_passes_its_budget(composed):
    _, result, _ = composed
    assert result.state == "finished"
    assert "budget is used up" in result.view.end_reason
    account, _ = check_filter(result)
    assert max(account.committed.values()) > 0.6 * account.filter.budget
    claim = result.study_statement()
    assert claim.epsilon == 6.0
    assert claim.accounting == "composed"
    assert claim.delta == DELTA


def test_no_trial_passes_its_cap_by_any_amount(composed):
    _, result, _ = composed
    for trial in result.trials:
        spent = trial_spent(result.files.ledger, trial.trial_id)
        assert epsilon_of(spent, delta=DELTA) == trial.epsilon <= 1.5
    reports = [r for r in read_log(result.files.journal) if r["event"] == "trial_report"]
    assert all(r["epsilon"] <= 1.5 for r in reports)


def test_eight_trials_held_a_reservation_at_once(composed):
    _, result, observer = composed
    running = [sum(s is TrialState.RUNNING for s in states.values()) for states in observer.views]
    assert max(running) == 8
    assert most_in_flight(result.files) == 8


def test_pruning_buys_more_trials(composed):
    _, result, _ = composed
    account = read_study_account(result.files.ledger)
    plans = [result.files.task(t.trial_id).full_plan for t in result.trials]
    full = [max(account.filter.cost(plan).values()) for plan in plans]
    affordable = 0
    while affordable < len(full) and sum(full[: affordable + 1]) <= account.filter.budget:
        affordable += 1
    assert len(result.trials) >= 2 * affordable
    assert result.view.count(TrialState.PRUNED) > 0
    assert result.view.count(TrialState.FINISHED) > 0


def test_trials_are_judged_at_equal_epsilon_within_one_step(composed):
    _, result, _ = composed
    rungs = (0.6, 1.0)
    judged = result.decisions()
    assert {row["rung"] for row in judged} == {1, 2}
    for row in judged:
        task = result.files.task(row["trial"])
        clock = EpsilonClock(task.plan, delta=DELTA)
        rung = rungs[row["rung"] - 1]
        assert clock.epsilon_after(row["step"]) == pytest.approx(row["epsilon"])
        assert clock.epsilon_after(row["step"] - 1) < rung <= clock.epsilon_after(row["step"])


def test_the_log_explains_every_stop(composed):
    root, result, _ = composed
    stops = {row["trial"]: row for row in result.decisions() if row["verdict"] == "stop"}
    pruned = {t.trial_id for t in result.trials if t.state is TrialState.PRUNED}
    assert set(stops) == pruned
    for trial, row in stops.items():
        assert row["value"] < row["cutoff"]
        assert result.view.trials[trial].reason == row["reason"] != ""
    with (result.files.path / "decisions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(result.decisions())
    assert {"delta", "privacy_unit", "neighboring_relation", "sampling", "accountant",
            "accounting"} <= set(rows[0])  # fmt: skip
    done = cli("decisions", "composed", "--root", root / "studies", "-f", "json")
    assert len(json.loads(done.stdout)) == len(rows)
    stored = mlflow_rows(root, "select artifact_uri from runs where name = 'composed'")
    assert (Path(stored[0][0].removeprefix("file://")) / "decisions.csv").exists()


def test_optuna_is_told_the_truth(composed):
    import optuna

    _, result, _ = composed
    study = optuna.load_study(study_name="composed", storage=f"sqlite:///{result.files.optuna}")
    states = {t.number: t.state.name for t in study.trials}
    names = {TrialState.FINISHED: "COMPLETE", TrialState.PRUNED: "PRUNED"}
    for trial in result.trials:
        assert states[trial.trial_id] == names[trial.state]


def test_kill_9_of_the_driver_of_a_composed_study(tmp_path):
    raw = composed_spec(tmp_path, "killed", search__num_trials=12)
    raw["report"] = {"every_steps": 5}
    path = tmp_path / "killed.yaml"
    path.write_text(yaml.safe_dump(raw))
    process = start(path)
    files = tmp_path / "studies" / "killed"
    wait_for_steps(files / "journal.jsonl", 10, process, trial=3)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    before = [r for r in read_log(files / "journal.jsonl") if r["event"] == "trial_verdict"]
    order = read_study_account(files / "ledger").filter.order
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    result = load_sweep("killed", root=tmp_path / "studies")
    assert result.state == "finished"
    account, _ = check_filter(result)
    assert account.filter.order == order
    after = [r for r in read_log(files / "journal.jsonl") if r["event"] == "trial_verdict"]
    assert after[: len(before)] == before
    stopped = [r["trial"] for r in after if r["verdict"] == "stop"]
    assert len(stopped) == len(set(stopped))  # nobody who was stopped came back
    states = mlflow_rows(tmp_path, "select count(*) from runs where status = 'RUNNING'")
    assert states == [(0,)]


def test_paused_trials_keep_ledger_and_checkpoint(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    raw = composed_spec(tmp_path, "promote", search__num_trials=12, tracking={"uri": None})
    raw["scheduler"]["variant"] = "promote"
    result = run_sweep(SweepSpec(**raw))
    assert result.state == "finished"
    check_filter(result)
    records = read_log(result.files.journal)
    paused = {r["trial"] for r in records if r["event"] == "trial_paused"}
    finished = {t.trial_id for t in result.trials if t.state is TrialState.FINISHED}
    assert paused & finished, "no paused trial was continued to its end"
    for number in finished:
        spent = trial_spent(result.files.ledger, number)
        assert len(spent) == result.view.trials[number].num_steps  # nothing was run twice
    assert all(t.state in (TrialState.FINISHED, TrialState.PRUNED) for t in result.trials)


def test_noisy_scores_are_charged_and_bounded(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    raw = composed_spec(tmp_path, "noisy", search__num_trials=4, tracking={"uri": None})
    raw["data"]["validation"] = {"fraction": 0.3, "visibility": "noisy", "noise_std": 0.05}
    result = run_sweep(SweepSpec(**raw))
    _, spent = check_filter(result)
    releases = len(spent.part("validation"))
    scored = [
        r for r in read_log(result.files.journal) if r["event"] == "trial_report" and r["metrics"]
    ]
    assert releases >= len(scored) > 0
    for record in scored:
        assert set(record["metrics"]) == {"validation/accuracy"}
    sigma = {run.event.noise_multiplier for run in spent.part("validation").runs}
    assert sorted(sigma) == [pytest.approx(0.05 * 539)]  # 30% of 1797 declared records
    whole = epsilon_of(spent, delta=DELTA)
    parts = [epsilon_of(Plan(spent.part(p).runs), delta=DELTA) for p in ("private", "validation")]
    assert whole == max(parts)


def select_spec(root, name="select", **changes):
    raw = make_spec(root, name, **changes)
    raw["privacy"] = {
        "delta": DELTA, "trial_epsilon": 1.0, "accounting": "select",
        "selection": {"mean": 4, "shape": 1},
    }  # fmt: skip
    raw["search"] = {
        "space": {
            "method": "dp_sgd",
            "optim.lr": {"loguniform": [0.001, 4]},
            "clip.max_grad_norm": {"loguniform": [0.1, 2]},
            "train.epochs": {"uniform": [3, 6]},
        }
    }
    return raw


def everything_under(root):
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes().decode("utf-8", "replace")


# Runs a selection of five trials and keeps a copy of what it erases, for the test to look for.
WITH_A_COPY = """
import shutil, sys
from pathlib import Path
from dpsweep import cli, sealed
from dpsweep.privacy.selection import Selection

Selection.draw = lambda self, rng: 5
aside, erase = Path(sys.argv.pop()), shutil.rmtree

def keep_a_copy(path, **kwargs):
    if Path(path).name == sealed.SEALED:
        shutil.copytree(path, aside)
        assert Path(path).stat().st_mode & 0o777 == 0o700
    erase(path, **kwargs)

sealed.shutil.rmtree = keep_a_copy
cli.main()
"""


def ray_sessions():
    """Directories in which Ray keeps its state; other programs of this machine may add some."""
    return set(Path("/tmp").glob("ray/session_2*"))


def test_a_selection_leaves_nothing_of_its_losers(tmp_path):
    from dpsweep import sealed

    root, aside = tmp_path / "visible", tmp_path / "aside"
    root.mkdir()
    raw = select_spec(root)
    path = tmp_path / "select.yaml"
    path.write_text(yaml.safe_dump(raw))
    before = ray_sessions()
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_COPY, "run", str(path), str(aside)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for session in ray_sessions() - before:
        for place, text in everything_under(session):
            assert str(root) not in text, place
    result = load_sweep("select", root=root / "studies")
    assert result.state == "finished"
    assert [t.trial_id for t in result.trials] == [0]
    winner = result.best()
    ray = Path((aside / "ray-directory").read_text())
    assert not ray.exists()

    ended = [r for r in read_log(aside / "journal.jsonl") if r["event"] == "trial_ended"]
    started = {
        r["trial"]: r["hparams"]
        for r in read_log(aside / "journal.jsonl") if r["event"] == "trial_started"
    }  # fmt: skip
    assert len(ended) == 5
    best = max(ended, key=lambda r: r["value"])
    assert winner.value == best["value"]
    assert winner.config["optim.lr"] == started[best["trial"]]["optim.lr"]
    losers = [r["trial"] for r in ended if r["trial"] != best["trial"]]
    marks = {repr(started[n][key]) for n in losers for key in ("optim.lr", "clip.max_grad_norm")}
    reported = [
        (r["trial"], repr(value))
        for r in read_log(aside / "journal.jsonl")
        if r["event"] in ("trial_report", "trial_ended")
        for value in r["metrics"].values()
        if 0 < value < 1
    ]
    own = {text for number, text in reported if number == best["trial"]}
    marks |= {text for number, text in reported if number != best["trial"]} - own
    assert len(marks) > 20
    shown = {str(path): text for path, text in everything_under(root)}
    shown["stdout and stderr"] = done.stdout + done.stderr
    for place, text in shown.items():
        # Digits of a loser, to the precision that any output prints.
        found = [mark for mark in marks if mark[:9] in text]
        assert not found, (place, found)
        assert "5 trials" not in text
    assert not (result.files.path / sealed.SEALED).exists()
    times = {r["time_ms"] for r in read_log(result.files.journal)}
    assert all(time % 86_400_000 == 0 for time in times)  # the day: the run time tells K
    again = cli("status", "select", "--root", root / "studies")
    assert not re.search(r"\d s\b", again.stderr)
    children = mlflow_rows(root, "select count(*) from tags where key = 'mlflow.parentRunId'")
    assert children == [(1,)]
    counts = mlflow_rows(root, "select key, value from metrics where key like 'search/%'")
    assert all(value <= 1 for _, value in counts)

    claim = result.study_statement()
    assert claim.accounting == "select"
    assert winner.statement == claim
    assert winner.epsilon > 1.0  # the price of the choice, not of one run
    assert "winner only" in claim.released


def test_a_selection_that_is_killed_goes_on_with_the_same_number_of_trials(tmp_path):
    raw = select_spec(tmp_path, "apart")
    raw["privacy"]["selection"] = {"mean": 5, "shape": 1}
    raw["search"]["space"]["train.epochs"] = 40
    raw["report"] = {"every_steps": 5}
    path = tmp_path / "apart.yaml"
    path.write_text(yaml.safe_dump(raw))
    process = start(path)
    apart = tmp_path / "studies" / "apart" / "sealed"
    wait_for_steps(apart / "journal.jsonl", 10, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    drawn = [r for r in read_log(apart / "ledger" / "study.jsonl") if r["kind"] == "num_trials"]
    assert len(drawn) == 1
    status = cli("status", "apart", "--root", tmp_path / "studies")
    assert status.returncode == 0, status.stderr
    assert "nothing is released yet" in status.stderr
    for verb in ("status", "logs", "best"):  # the sealed study is nobody's to open
        peeked = cli(verb, "sealed", "--root", tmp_path / "studies" / "apart")
        assert peeked.returncode == 2, peeked.stdout
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    result = load_sweep("apart", root=tmp_path / "studies")
    assert [t.state for t in result.trials] == [TrialState.FINISHED]
    best = cli("best", "apart", "--root", tmp_path / "studies", "-f", "json")
    record = json.loads(best.stdout)
    assert record["accounting"] == "select"
    assert record["epsilon"] == result.study_statement().epsilon
    # An attempt that a crash cut off is thrown away: the winner has charged its plan once.
    assert len(trial_spent(result.files.ledger, 0)) == result.view.trials[0].num_steps


def public_spec(root, name="public"):
    raw = make_spec(
        root, name, search__num_trials=3, tracking={"uri": f"sqlite:///{root}/mlflow.db"}
    )
    raw["data"]["public"] = {"fraction": 0.2}
    raw["privacy"] = {"delta": DELTA, "trial_epsilon": 2.0, "accounting": "public"}
    return raw


def test_a_public_search_spends_nothing_and_its_final_run_everything(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    spec = SweepSpec(**public_spec(tmp_path))
    result = run_sweep(spec)
    assert result.state == "finished"
    *search, final = result.trials
    assert len(search) == 3
    assert [t.epsilon for t in search] == [0.0] * 3
    assert all("no private record" in t.statement.released for t in search)
    for trial in search:
        spent = trial_spent(result.files.ledger, trial.trial_id)
        assert len(spent) == trial.num_steps
        assert {run.part for run in spent.runs} == {"public"}
    winner = max(search, key=lambda t: t.value)
    assert final.config == winner.config
    assert 0.97 * 2.0 <= final.epsilon <= 2.0
    assert result.best() == final
    assert result.study_statement() == final.statement
    assert result.files.task(final.trial_id).records == "private"
    ledger = len(read_log(result.files.journal))
    again = run_sweep(spec)  # the final run is never repeated
    assert len(read_log(again.files.journal)) == ledger


def test_studies_on_one_dataset_add_up(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    def spec(name, **more):
        raw = composed_spec(tmp_path, name, search__num_trials=1, tracking={"uri": None})
        raw["privacy"] |= {"dataset_ledger": str(tmp_path / "digits.budget"), **more}
        return SweepSpec(**raw)

    run_sweep(spec("one", dataset_epsilon=14.0, dataset_delta=1e-4))
    run_sweep(spec("two"))
    from dpsweep.errors import BadInputError

    with pytest.raises(BadInputError, match="14") as caught:
        run_sweep(spec("three"))
    assert caught.value.exit_code == 2
    assert not (tmp_path / "studies" / "three").exists()
    shutil.rmtree(tmp_path / "studies" / "one")  # deleting lowers nothing
    with pytest.raises(BadInputError):
        run_sweep(spec("one"))


def test_two_objectives_give_a_pareto_front(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    raw = make_spec(tmp_path, "front", tracking={"uri": None})
    raw["search"] = {
        "sampler": "nsga2",
        "num_trials": 6,
        "objectives": ["validation/accuracy", "dp/epsilon"],
        "space": {
            "method": "dp_sgd",
            "optim.lr": {"loguniform": [0.1, 4]},
            "noise.target_epsilon": {"uniform": [0.2, 2.0]},
            "train.epochs": 4,
        },
    }
    result = run_sweep(SweepSpec(**raw))
    front = result.pareto()
    assert [t.epsilon for t in front] == sorted(t.epsilon for t in front)
    assert [t.value for t in front] == sorted(t.value for t in front)
    for trial in result.trials:
        beaten = any(f.epsilon <= trial.epsilon and f.value >= trial.value for f in front)
        assert beaten
    done = cli("pareto", "front", "--root", tmp_path / "studies", "-f", "json")
    assert [row["trial"] for row in json.loads(done.stdout)] == [t.trial_id for t in front]
    import optuna

    study = optuna.load_study(study_name="front", storage=f"sqlite:///{result.files.optuna}")
    told = {t.number: t.values for t in study.trials}
    assert told == {t.trial_id: [t.value, t.epsilon] for t in result.trials}


@pytest.mark.parametrize("sampler", ["cmaes", "gp"])
def test_samplers_by_name(tmp_path, ray_cluster, sampler):
    from dpsweep.sweep import run_sweep

    raw = make_spec(tmp_path, sampler, tracking={"uri": None})
    raw["search"] = {
        "sampler": sampler,
        "num_trials": 4,
        "space": {
            "method": "dp_sgd",
            "optim.lr": {"loguniform": [0.1, 4]},
            "clip.max_grad_norm": {"loguniform": [0.1, 2]},
            "train.max_steps": 5,
        },
    }
    result = run_sweep(SweepSpec(**raw))
    assert [t.state for t in result.trials] == [TrialState.FINISHED] * 4
    assert len({t.config["optim.lr"] for t in result.trials}) == 4


def test_max_time_starts_no_further_trial(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    raw = make_spec(tmp_path, "hurry", tracking={"uri": None}, search__num_trials=500)
    raw["search"]["max_time"] = 8
    result = run_sweep(SweepSpec(**raw))
    assert result.state == "finished"
    assert result.view.end_reason == "search.max_time has passed"
    assert 0 < len(result.trials) < 500
    assert all(t.state is TrialState.FINISHED for t in result.trials)


# Every number that follows the word epsilon, in any output a study can produce, stands with these.
TERMS = {
    "delta": r"delta",
    "unit": r"unit|example",
    "adjacency": r"add_or_remove_one|add or remove one",
    "sampling": r"poisson|full_batch|mixed|none|full batch",
    "accountant": r"rdp|pld",
    "mode": r"composed|select|public|unaccounted",
}


@pytest.mark.parametrize("verb", ["status", "logs", "best", "pareto", "decisions"])
@pytest.mark.parametrize("output", ["table", "json", "csv", "yaml"])
def test_every_epsilon_of_every_verb_stands_with_its_terms(composed, verb, output):
    root, _, _ = composed
    done = cli(verb, "composed", "--root", root / "studies", "-f", output)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert re.search("epsilon", text)
    for term, pattern in TERMS.items():
        assert re.search(pattern, text, re.IGNORECASE), (term, text)
    if output == "json":
        records = json.loads(text)
        for record in records if isinstance(records, list) else [records]:
            if record.get("epsilon") is not None:
                terms = {"delta", "privacy_unit", "neighboring_relation", "sampling", "accountant",
                         "accounting"}  # fmt: skip
                assert terms <= set(record), record


def test_every_epsilon_in_the_tracking_store_stands_with_its_terms(composed):
    root, _, _ = composed
    runs = mlflow_rows(root, "select distinct run_uuid from metrics where key like '%epsilon%'")
    assert runs
    for (run,) in runs:
        tags = dict(mlflow_rows(root, f"select key, value from tags where run_uuid = '{run}'"))
        wanted = {"dp.delta", "dp.unit", "dp.adjacency", "dp.sampling", "dp.accountant",
                  "dp.accounting"}  # fmt: skip
        assert wanted <= set(tags), (run, wanted - set(tags))
    (card,) = mlflow_rows(root, "select value from tags where key = 'mlflow.note.content'")[0]
    assert "whole sweep" in card
    for term, pattern in TERMS.items():
        assert re.search(pattern, card, re.IGNORECASE), (term, card)
    assert math.isfinite(float(re.search(r"epsilon <= ([\d.]+)", card)[1]))


def test_a_selection_whose_trials_were_removed_loses_its_claim(tmp_path):
    raw = select_spec(tmp_path, "cut")
    raw["search"]["space"]["train.epochs"] = 60
    raw["report"] = {"every_steps": 5}
    path = tmp_path / "cut.yaml"
    path.write_text(yaml.safe_dump(raw))
    process = start(path)
    apart = tmp_path / "studies" / "cut" / "sealed"
    wait_for_steps(apart / "journal.jsonl", 5, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    shutil.rmtree(apart)  # a number of trials cut short, to draw another one
    done = cli("run", path)
    assert done.returncode == 1
    assert "would be drawn anew" in done.stderr
    result = load_sweep("cut", root=tmp_path / "studies")
    assert result.claims.accounting == "unaccounted"
    assert result.study_statement() is None


def test_a_violation_costs_the_claim_of_the_study(tmp_path):
    raw = composed_spec(tmp_path, "viol", search__num_trials=2, tracking={"uri": None})
    raw["report"] = {"every_steps": 5}
    raw["scheduler"] = {"type": "fifo"}
    path = tmp_path / "viol.yaml"
    path.write_text(yaml.safe_dump(raw))
    process = start(path)
    files = tmp_path / "studies" / "viol"
    wait_for_steps(files / "journal.jsonl", 20, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    ledger = files / "ledger" / "trial-0000.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:2]))
    done = cli("run", path)
    assert done.returncode == 1, done.stderr
    again = cli("status", "viol", "--root", tmp_path / "studies")
    assert "epsilon=6.0000" not in again.stdout
