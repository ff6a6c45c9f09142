"""A whole study of probes, on real digits and a real local Ray."""

import pytest
from whole_studies import DELTA, cli_here, make_spec, mlflow_rows

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import study_spent, trial_spent
from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec

pytestmark = pytest.mark.ray


def probe_spec(root):
    raw = make_spec(root, "probes")
    raw["data"]["validation"] = {"fraction": 0.3, "visibility": "noisy", "noise_std": 0.05}
    raw["privacy"] = {
        "delta": DELTA, "accounting": "composed", "study_epsilon": 3.0, "accountant": "rdp",
    }  # fmt: skip
    raw["search"] = {
        "strategy": "probe",
        "probe": {"num_probes": 4, "epsilon": 0.3, "overrides": {"train.epochs": 2}},
        "space": {
            "method": "dp_sgd", "model.name": "linear", "train.epochs": 5,
            "optim.input_norm": 4.0, "optim.noise_scale": {"loguniform": [0.1, 100]},
        },
    }  # fmt: skip
    del raw["report"]
    return raw


def test_probes_find_a_value_and_one_run_gets_it(tmp_path, ray_cluster, monkeypatch):
    from dpsweep.sweep import run_sweep

    result = run_sweep(SweepSpec(**probe_spec(tmp_path)))
    final = result.spec.final_trial
    best = result.best()
    assert best.trial_id == final == 6
    (last,) = [row for row in result.decisions() if "final run" in row["reason"]]
    assert f"optim.noise_scale={best.config['optim.noise_scale']:.4g}" in last["reason"]
    probes = [trial for trial in result.results if trial.trial_id != final]
    assert len(probes) in (4, 5, 6)
    assert {trial.config["train.epochs"] for trial in probes} == {2}
    assert best.config["train.epochs"] == 5

    # What was charged is within what was declared, and every run released one score.
    composition = result.claims.account.composition
    spent = study_spent(result.files.ledger, result.view.charged())
    assert not composition.is_over(composition.cost(spent))
    assert len(spent.part("validation")) == len(result.results)
    assert result.study_statement().epsilon == 3.0
    assert composition.epsilon <= 3.0
    begun = [r for r in read_log(result.files.journal) if r["event"] == "trial_started"]
    assert [r["trial"] for r in begun][-1] == final
    whole = trial_spent(result.files.ledger, final).part("private")
    assert len(whole) == best.num_steps > probes[0].num_steps

    roles = mlflow_rows(tmp_path, "select value from tags where key = 'dpsweep.role'")
    assert sorted({role for (role,) in roles}) in (["final", "probe"], ["final", "probe", "spare"])
    note = result.files.journal.read_text()
    assert "4 noisy probes, at most 2 more where an end was best" in note

    # Run again: nothing is left to do. Its best configuration is a spec of its own.
    assert run_sweep(SweepSpec(**probe_spec(tmp_path))).view.charged() == result.view.charged()
    monkeypatch.setenv("DPSWEEP_STUDIES", str(tmp_path / "studies"))
    done = cli_here("best", "probes", "--as-spec")
    assert done.returncode == 0, done.stderr
    alone = SweepSpec.from_yaml(done.stdout)
    assert (alone.search.strategy, alone.search.num_trials) == ("sampler", 1)
    assert alone.search.space["optim.noise_scale"] == best.config["optim.noise_scale"]
    assert load_sweep("probes", root=tmp_path / "studies").state == "finished"
