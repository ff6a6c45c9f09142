"""Noisy-prefix halving on real digits and a real Ray: killed before the promotion, then continued."""

import json
import time

import pytest
import yaml
from whole_studies import DELTA, cli, cli_here, kill_driver, make_spec, mlflow_rows, start

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.admission import is_promoted
from dpsweep.ledgers.study_state import account_of, read_study_state
from dpsweep.ledgers.trial import study_spent, trial_spent
from dpsweep.results.study import load_sweep
from dpsweep.study.trial import TrialState

pytestmark = [pytest.mark.ray, pytest.mark.slow]
TRIALS, PREFIX, STEPS = 4, 9, 60


def prefix_spec(root):
    spec = make_spec(root, "prefix")
    spec["privacy"] = {
        "delta": DELTA, "trial_epsilon": 1.8, "accounting": "composed", "study_epsilon": 2.0,
        "composition": "declared", "accountant": "pld",
    }  # fmt: skip
    spec["search"] = {
        "sampler": "random",
        "num_trials": TRIALS,
        "space": {
            "method": "dp_sgd", "model.name": "linear", "batch.expected": 128,
            "train.max_steps": STEPS, "noise.prefix_factor": 4,
            "optim.noise_lr": {"loguniform": [0.05, 500]},
        },
    }  # fmt: skip
    spec["scheduler"] = {"type": "noisy_prefix"}
    return spec


def wait_for_pauses(journal, number, process):
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        if sum(r["event"] == "trial_paused" for r in read_log(journal)) >= number:
            return
        time.sleep(0.02)
    pytest.fail(f"fewer than {number} trials have come to the barrier")


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """A study whose driver was killed as the last trial came to the barrier; what it said then."""
    root = tmp_path_factory.mktemp("prefix")
    path = root / "prefix.yaml"
    path.write_text(yaml.safe_dump(prefix_spec(root)))
    files = root / "studies" / "prefix"
    process = start(path)
    wait_for_pauses(files / "journal.jsonl", TRIALS - 1, process)
    kill_driver(process, files / "ledger")
    promoted = [trial for trial in range(TRIALS) if is_promoted(files / "ledger", trial)]
    declared = account_of(read_study_state(files / "ledger")).composition
    before = read_log(files / "journal.jsonl")
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    return root, load_sweep("prefix", root=root / "studies"), declared, promoted, before


def test_the_best_at_the_barrier_goes_on_whenever_the_driver_is_killed(continued):
    _, result, _, promoted_before, before = continued
    records = read_log(result.files.journal)
    assert records[: len(before)] == before
    scores = {
        record["trial"]: record["metrics"]["validation/accuracy"]
        for record in records
        if record["event"] == "trial_report" and record["step"] == PREFIX
    }
    paused = {record["trial"] for record in records if record["event"] == "trial_paused"}
    assert len(paused) >= TRIALS - 1
    best = min(paused, key=lambda trial: (-scores[trial], trial))
    ran_on = {t for t in range(TRIALS) if len(trial_spent(result.files.ledger, t)) > PREFIX}
    assert ran_on == {best} >= set(promoted_before)
    assert result.state == "finished"
    assert result.view.trials[best].state is TrialState.FINISHED
    assert {result.view.trials[trial].state for trial in paused - {best}} == {TrialState.PRUNED}
    assert result.best().trial_id == best
    assert [row["trial"] for row in result.decisions() if row["verdict"] == "continue"] == [best]


def test_it_claims_what_it_has_declared_and_no_class_is_passed(continued):
    _, result, declared, _, _ = continued
    account = account_of(read_study_state(result.files.ledger))
    assert account.composition == declared
    assert [(c.phase, c.count) for c in declared.classes] == [
        (0, TRIALS * PREFIX),
        (1, STEPS - PREFIX),
    ]
    charged = {n: trial.charged for n, trial in result.view.trials.items()}
    spent = declared.cost(study_spent(result.files.ledger, charged))
    assert all(spent[name] <= limit for name, limit in declared.limits.items())
    statement = result.study_statement()
    assert (statement.epsilon, statement.accountant) == (2.0, "pld")
    assert account.downgraded is None


def test_every_view_shows_it(continued):
    root, result, _, _, _ = continued
    best = result.best().trial_id
    status = cli_here("status", "prefix", "--root", root / "studies")
    assert f"1 finished, {TRIALS - 1} pruned" in status.stdout + status.stderr or (
        result.view.count(TrialState.FINISHED) > 1  # a trial that lost steps to the kill
    )
    told = cli_here("decisions", "prefix", "--root", root / "studies", "-f", "json")
    reasons = {row["trial"]: row["reason"] for row in json.loads(told.stdout)}
    assert "is promoted: place 1 of" in reasons[best]
    states = mlflow_rows(root, "select count(*) from runs where status = 'RUNNING'")
    assert states == [(0,)]
    told = mlflow_rows(root, "select value from params where key like '%prefix_factor'")
    assert {float(value) for (value,) in told} == {4.0}
