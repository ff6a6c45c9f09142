"""Whole studies that search on a part of the records, on real digits and a real local Ray."""

import pytest
from split_studies import split_spec
from whole_studies import DELTA, cli, cli_here, mlflow_rows, parent_note, run_and_kill

from dpsweep.cli.best_spec import spec_of_trial
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.study_state import account_of, read_study_state
from dpsweep.ledgers.trial import study_spent, trial_spent
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState

pytestmark = pytest.mark.ray


def check_split(result, num_searched):
    """The whole stays within the budget on each part, computed from the ledger files alone."""
    composition = account_of(read_study_state(result.files.ledger)).composition
    spent = study_spent(result.files.ledger, result.view.charged())
    assert not composition.is_over(composition.cost(spent))
    for part in ("private", "validation", "rest"):
        assert epsilon_of(spent.part(part), delta=DELTA) <= 3.0
    for number in range(num_searched):
        assert trial_spent(result.files.ledger, number).part("private")
        assert not trial_spent(result.files.ledger, number).part("rest")
    final = trial_spent(result.files.ledger, num_searched)
    assert final.part("rest")
    assert not final.part("private")
    assert result.best().trial_id == num_searched
    assert result.study_statement().epsilon == 3.0
    assert result.claims.downgraded is None
    return spent


@pytest.fixture(scope="module")
def noisy(tmp_path_factory, ray_cluster):
    """A search on three tenths of the records, scored on private ones; tracked."""
    from dpsweep.sweep import run_sweep

    root = tmp_path_factory.mktemp("noisy")
    uri = f"sqlite:///{root}/mlflow.db"
    raw = split_spec(root, "noisy", tracking={"uri": uri}, search={"num_trials": 3})
    raw["data"]["validation"] = {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.06}
    raw["scheduler"] = {"type": "epsilon_halving", "rungs": [0.5], "reduction_factor": 2}
    return root, run_sweep(SweepSpec(**raw))


def test_it_searches_on_the_part_and_runs_the_winner_on_the_rest(noisy):
    _, result = noisy
    assert result.state == "finished"
    assert result.view.end_reason == "the final run has ended"
    spent = check_split(result, 3)
    assert len(spent.part("validation"))
    *search, final = result.results
    winner = max((t for t in search if t.state is TrialState.FINISHED), key=lambda t: t.value)
    assert final.config["optim.noise_lr"] == winner.config["optim.noise_lr"] * 75 / 32
    assert final.config["batch.expected"] == 75
    assert 0.97 * 3 <= final.epsilon <= 3
    assert all(trial.epsilon <= 1 for trial in search)


def test_a_finished_study_runs_nothing_more(noisy):
    from dpsweep.sweep import run_sweep

    _, result = noisy
    length = len(read_log(result.files.journal))
    spec = SweepSpec.from_yaml(result.files.spec)
    search = spec.search.model_copy(update={"num_trials": 9})
    again = run_sweep(spec.model_copy(update={"search": search}))
    assert len(read_log(again.files.journal)) == length


def test_tags_and_card_say_which_part_and_that_the_larger_counts(noisy):
    root, _ = noisy

    def tags(trial):
        rows = mlflow_rows(
            root,
            "select t.key, t.value from tags t join tags n on n.run_uuid = t.run_uuid "
            f"where n.key = 'dpsweep.trial' and n.value = '{trial}'",
        )
        return dict(rows)

    searched, final = tags(0), tags(3)
    assert (searched["dp.records"], final["dp.records"]) == ("private", "rest")
    assert (searched["dp.trial_epsilon"], final["dp.trial_epsilon"]) == ("1.0", "3")
    assert "that the search does not read" in final["dp.released"]
    shares = mlflow_rows(root, "select distinct value from tags where key = 'dp.searched_share'")
    assert shares == [("0.3",)]
    note = parent_note(root)
    assert "the other 755, which the search does not read" in note
    assert "the larger counts and not the sum" in note
    stored = load_sweep("mlflow:noisy/noisy", tracking_uri=f"sqlite:///{root}/mlflow.db")
    assert stored.best().trial_id == 3
    assert "of the private records" in stored.study_statement().released


def test_status_shows_which_records_each_trial_is_on(noisy):
    root, _ = noisy
    done = cli_here("status", "noisy", "--root", root / "studies")
    rows = [line for line in done.stdout.splitlines() if " rest " in line]
    assert len(rows) == 1
    assert rows[0].startswith("*")
    assert "of what the search may spend" in " ".join(done.stderr.split())


def test_its_configuration_can_be_run_again_as_it_was_planned(noisy):
    _, result = noisy
    spec = spec_of_trial(result, 3)
    assert (spec.search.on, spec.data.max_private) == (None, 755)
    task = result.files.task(3)
    values = {"method": task.method, **task.hparams}
    assert preflight(spec).admit(0, values).plan == task.plan


@pytest.mark.slow  # test_secret_part kills the same code
def test_kill_9_in_the_final_run_leaves_its_charge_and_its_number(tmp_path):
    raw = split_spec(tmp_path, "killed")
    raw["report"] = {"every_steps": 2}
    path, _ = run_and_kill(tmp_path, raw, "killed", steps=4, trial=2)
    ledger = tmp_path / "studies" / "killed" / "ledger"
    before = trial_spent(ledger, 2)
    assert 4 <= len(before) <= 40
    done = cli("run", path, "--set", "search.num_trials=5")  # nothing is searched any more
    assert done.returncode == 0, done.stderr
    result = load_sweep("killed", root=tmp_path / "studies")
    assert sorted(result.view.trials) == [0, 1, 2]
    check_split(result, 2)
    assert len(trial_spent(ledger, 2)) >= len(before)
