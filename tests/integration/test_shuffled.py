"""A whole study with shuffled batches: no surface states an epsilon of it."""

import re

import pytest
from typer.testing import CliRunner
from whole_studies import make_spec, mlflow_rows

from dpsweep.cli.app import app
from dpsweep.foundation.errors import NothingWithinBudgetError
from dpsweep.spec.study import SweepSpec
from dpsweep.sweep import run_sweep

pytestmark = pytest.mark.ray
#: An epsilon, by any name, beside a number.
FINITE = re.compile(r"epsilon\w*[\"']?\s*[=:,]\s*[\"']?[0-9]")
#: What the spec itself says, of a budget that binds no trial.
BUDGET = re.compile(r"[\"']?(privacy\.)?trial_epsilon[\"']?\s*[=:]\s*[0-9.]+")


@pytest.mark.timeout(180)
def test_no_surface_states_an_epsilon_of_shuffled_batches(tmp_path, ray_cluster):
    raw = make_spec(tmp_path, name="shuffled")
    raw["privacy"] = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "unaccounted"}
    raw["search"] = {
        "sampler": "grid",
        "num_trials": 1,
        "space": {
            "method": "non_private",
            "batch.sampling": "shuffled",
            "clip.max_grad_norm": 0.1,
            "noise.noise_multiplier": 3,
            "batch.expected": 128,
            "train.max_steps": 6,
        },
    }
    result = run_sweep(SweepSpec(**raw))
    assert result.state == "finished", result.view.end_reason
    (trial,) = result.results
    assert trial.statement.epsilon == float("inf")
    root = str(tmp_path / "studies")
    verbs = {
        "status": [], "show": ["0"], "best": [], "pareto": [], "report": [], "logs": [],
        "decisions": [],
    }  # fmt: skip
    for verb, more in verbs.items():
        for form in ([], ["-f", "json"]):
            done = CliRunner().invoke(app, [verb, "shuffled", *more, "--root", root, *form])
            if done.exit_code == 2 and form:
                continue  # a verb without that format
            assert done.exit_code == 0, (verb, done.output)
            said = BUDGET.sub("", done.output)
            assert not FINITE.search(said), (verb, said)
    within = CliRunner().invoke(
        app, ["best", "shuffled", "--max-epsilon", "1000000", "--root", root]
    )
    assert isinstance(within.exception, NothingWithinBudgetError)
    metrics = mlflow_rows(tmp_path, "select key, value, is_nan from metrics")
    assert metrics
    epsilons = [(value, nan) for key, value, nan in metrics if "epsilon" in key]
    assert all(abs(value) > 1e300 for value, _ in epsilons), epsilons
    tags = mlflow_rows(tmp_path, "select key, value from tags where key like '%epsilon%'")
    assert {value for key, value in tags if key != "dp.trial_epsilon"} == {"inf"}, tags
