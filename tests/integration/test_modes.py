"""Whole studies under each accounting mode, on real digits and a real local Ray."""

import csv
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from whole_studies import (
    DELTA,
    cli,
    cli_here,
    make_spec,
    mlflow_rows,
    most_in_flight,
    parent_note,
    run_and_kill,
)

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.study_state import account_of, read_study_state
from dpsweep.ledgers.trial import study_spent, trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer
from dpsweep.study.trial import TrialState

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
    account = account_of(read_study_state(result.files.ledger))
    spent = study_spent(result.files.ledger, result.view.charged())
    cost = account.composition.cost(spent)
    assert max(cost.values()) <= account.composition.budget
    # The declared epsilon is what the filter's budget converts to, and bounds any other order.
    assert epsilon_of(spent, delta=DELTA) <= result.spec.privacy.study_epsilon
    return account, spent


@pytest.fixture(scope="module")
def composed(tmp_path_factory, ray_cluster):
    """Four trials at once, with different noise, batches and schedules, on two cores."""
    from dpsweep.sweep import run_sweep

    root = tmp_path_factory.mktemp("composed")
    observer = Listening()
    raw = composed_spec(root, resources={"cpu": 0.5}, privacy__study_epsilon=4.0)
    return root, run_sweep(SweepSpec(**raw), observer=observer), observer


def test_a_composed_study_never_passes_its_budget(composed):
    _, result, _ = composed
    assert result.state == "finished"
    assert "budget is used up" in result.view.end_reason
    account, _ = check_filter(result)
    assert max(account.committed.values()) > 0.6 * account.composition.budget
    claim = result.study_statement()
    assert claim.epsilon == 4.0
    assert claim.accounting == "composed"
    assert claim.delta == DELTA


def test_no_trial_passes_its_cap_by_any_amount(composed):
    _, result, _ = composed
    for trial in result.results:
        spent = trial_spent(result.files.ledger, trial.trial_id)
        assert epsilon_of(spent, delta=DELTA) == trial.epsilon <= 1.5
    reports = [r for r in read_log(result.files.journal) if r["event"] == "trial_report"]
    assert all(r["epsilon"] <= 1.5 for r in reports)


def test_four_trials_held_a_reservation_at_once(composed):
    _, result, observer = composed
    running = [sum(s is TrialState.RUNNING for s in states.values()) for states in observer.views]
    assert max(running) == 4
    assert most_in_flight(result.files) == 4


def test_pruning_buys_more_trials(composed):
    _, result, _ = composed
    account = account_of(read_study_state(result.files.ledger))
    plans = [result.files.task(t.trial_id).full_plan for t in result.results]
    full = [max(account.composition.cost(plan).values()) for plan in plans]
    affordable = 0
    while affordable < len(full) and sum(full[: affordable + 1]) <= account.composition.budget:
        affordable += 1
    assert len(result.results) >= 2 * affordable
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
    pruned = {t.trial_id for t in result.results if t.state is TrialState.PRUNED}
    assert set(stops) == pruned
    told = mlflow_rows(
        root,
        "select p.value, r.value from tags p join tags r on r.run_uuid = p.run_uuid "
        "and r.key = 'dp.released' where p.key = 'dpsweep.trial'",
    )
    assert len(told) == len(result.results)
    so_far = {int(trial) for trial, what in told if "has spent so far" in what}
    assert so_far == {t.trial_id for t in result.results if t.state is not TrialState.FINISHED}
    for trial, row in stops.items():
        assert row["value"] < row["cutoff"]
        assert result.view.trials[trial].reason == row["reason"] != ""
    with (result.files.path / "decisions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(result.decisions())
    assert {"delta", "privacy_unit", "neighboring_relation", "sampling", "accountant",
            "accounting"} <= set(rows[0])  # fmt: skip
    done = cli_here("decisions", "composed", "--root", root / "studies", "-f", "json")
    assert len(json.loads(done.stdout)) == len(rows)
    stored = mlflow_rows(root, "select artifact_uri from runs where name = 'composed'")
    assert (Path(stored[0][0].removeprefix("file://")) / "decisions.csv").exists()


def test_optuna_is_told_the_truth(composed):
    import optuna

    _, result, _ = composed
    study = optuna.load_study(study_name="composed", storage=f"sqlite:///{result.files.optuna}")
    states = {t.number: t.state.name for t in study.trials}
    names = {TrialState.FINISHED: "COMPLETE", TrialState.PRUNED: "PRUNED"}
    for trial in result.results:
        assert states[trial.trial_id] == names[trial.state]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A composed study whose driver was killed: root, spec's file, copy of the studies."""
    root = tmp_path_factory.mktemp("killed")
    raw = composed_spec(root, "killed", search__num_trials=8, resources={"cpu": 1})
    raw["report"] = {"every_steps": 5}
    return root, *run_and_kill(root, raw, "killed", steps=10, trial=3)


def test_kill_9_of_the_driver_of_a_composed_study(killed):
    root, path, _ = killed
    files = root / "studies" / "killed"
    before = [r for r in read_log(files / "journal.jsonl") if r["event"] == "trial_verdict"]
    order = account_of(read_study_state(files / "ledger")).composition.order
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    result = load_sweep("killed", root=root / "studies")
    assert result.state == "finished"
    account, _ = check_filter(result)
    assert account.composition.order == order
    after = [r for r in read_log(files / "journal.jsonl") if r["event"] == "trial_verdict"]
    assert after[: len(before)] == before
    stopped = [r["trial"] for r in after if r["verdict"] == "stop"]
    assert len(stopped) == len(set(stopped))  # nobody who was stopped came back
    states = mlflow_rows(root, "select count(*) from runs where status = 'RUNNING'")
    assert states == [(0,)]


def test_a_violation_costs_the_claim_of_the_study(killed):
    _, path, copy = killed
    ledger = copy / "killed" / "ledger" / "trial-0003.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    assert len(lines) > 2
    ledger.write_text("".join(lines[:2]))
    done = cli("run", path, "--set", f"storage.path={copy}")
    assert done.returncode == 1, done.stderr
    assert "trial-0003.jsonl holds" in done.stderr
    again = cli_here("status", "killed", "--root", copy)
    assert "epsilon=6.0000" not in again.stdout


@pytest.mark.slow
def test_paused_trials_keep_ledger_and_checkpoint(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    raw = composed_spec(tmp_path, "promote", search__num_trials=9, resources={"cpu": 1})
    raw["tracking"] = {"uri": None}
    raw["scheduler"]["variant"] = "promote"
    result = run_sweep(SweepSpec(**raw))
    assert result.state == "finished"
    check_filter(result)
    records = read_log(result.files.journal)
    paused = {r["trial"] for r in records if r["event"] == "trial_paused"}
    finished = {t.trial_id for t in result.results if t.state is TrialState.FINISHED}
    assert paused & finished, "no paused trial was continued to its end"
    for number in finished:
        spent = trial_spent(result.files.ledger, number)
        assert len(spent) == result.view.trials[number].num_steps  # nothing was run twice
    assert all(t.state in (TrialState.FINISHED, TrialState.PRUNED) for t in result.results)


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
    *search, final = result.results
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


def test_studies_on_one_dataset_add_up(tmp_path, ray_cluster, monkeypatch):
    from dpsweep.sweep import run_sweep

    monkeypatch.chdir(tmp_path)

    def spec(name, **more):
        raw = composed_spec(tmp_path, name, search__num_trials=1, tracking={"uri": None})
        raw["privacy"] |= {"dataset_ledger": "digits.budget", **more}
        return SweepSpec(**raw)

    ear = Listening()
    run_sweep(spec("one", dataset_epsilon=14.0, dataset_delta=1e-4), observer=ear)
    new = f"{tmp_path}/digits.budget is a new dataset ledger: nothing is spent yet"
    assert ear.messages.count(new) == 1
    result = run_sweep(spec("two"), observer=ear)
    assert ear.messages.count(new) == 1
    assert result.spec.privacy.dataset_ledger == f"{tmp_path}/digits.budget"
    from dpsweep.foundation.errors import BadInputError, StudyError

    with pytest.raises(BadInputError, match="14") as caught:
        run_sweep(spec("three"))
    assert caught.value.exit_code == 2
    assert not (tmp_path / "studies" / "three").exists()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(StudyError, match=r"privacy\.dataset_ledger"):  # it would be another file
        run_sweep(spec("two"))
    assert not Path("digits.budget").exists()
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "studies" / "one")  # deleting lowers nothing
    with pytest.raises(BadInputError):
        run_sweep(spec("one"))


@pytest.mark.slow
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
    for trial in result.results:
        beaten = any(f.epsilon <= trial.epsilon and f.value >= trial.value for f in front)
        assert beaten
    done = cli_here("pareto", "front", "--root", tmp_path / "studies", "-f", "json")
    assert [row["trial"] for row in json.loads(done.stdout)] == [t.trial_id for t in front]
    import optuna

    study = optuna.load_study(study_name="front", storage=f"sqlite:///{result.files.optuna}")
    told = {t.number: t.values for t in study.trials}
    assert told == {t.trial_id: [t.value, t.epsilon] for t in result.results}


@pytest.mark.slow
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
    assert [t.state for t in result.results] == [TrialState.FINISHED] * 4
    assert len({t.config["optim.lr"] for t in result.results}) == 4


@pytest.mark.slow
def test_max_time_starts_no_further_trial(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    raw = make_spec(tmp_path, "hurry", tracking={"uri": None}, search__num_trials=500)
    raw["search"]["max_time"] = 8
    result = run_sweep(SweepSpec(**raw))
    assert result.state == "finished"
    assert result.view.end_reason == "search.max_time has passed"
    assert 0 < len(result.results) < 500
    assert all(t.state is TrialState.FINISHED for t in result.results)


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
    done = cli_here(verb, "composed", "--root", root / "studies", "-f", output)
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
    card = parent_note(root)
    assert "whole sweep" in card
    for term, pattern in TERMS.items():
        assert re.search(pattern, card, re.IGNORECASE), (term, card)
    assert math.isfinite(float(re.search(r"epsilon <= ([\d.]+)", card)[1]))


@pytest.mark.slow
def test_the_best_configuration_runs_again_from_its_own_spec(composed, tmp_path, monkeypatch):
    """`best --as-spec > best.yaml; validate best.yaml; run best.yaml`, as people type it."""
    root, result, _ = composed
    best = result.best()
    monkeypatch.chdir(tmp_path)
    text = cli_here("best", "composed", "--root", root / "studies", "--as-spec").stdout
    (tmp_path / "best.yaml").write_text(text)
    assert cli_here("validate", "best.yaml").returncode == 0
    done = cli_here("run", "best.yaml", "--set", f"storage.path={tmp_path}/studies", "-f", "json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["state"], row["accounting"]) == ("finished", "composed")
    again = load_sweep("composed-best", root=tmp_path / "studies")
    told = {key: value for key, value in again.results[0].config.items()}
    assert told == dict(best.config)
    first = result.files.task(best.trial_id)
    assert again.files.task(0).plan == first.plan
    assert again.study_statement().epsilon == again.spec.privacy.trial_epsilon
    stages = [line.partition(" s  ")[2] for line in done.stderr.splitlines()]
    told = [stage for stage in stages if stage]
    where = f"{tmp_path}/studies/composed-best"
    assert [stage.split(":")[0].split(";")[0] for stage in told][:4] == [
        "spec ok", "reading the data", "starting Ray on this machine",
        f"running trials of a new study in {where}",
    ]  # fmt: skip
