"""Whole studies on frozen features: computed once, charged as planned, exported as one network."""

import subprocess
import sys

import pytest
import yaml
from whole_studies import cli_here, make_spec

from dpsweep.foundation.errors import ResourceError
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.events import Gaussian, PoissonGaussian
from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState
from dpsweep.sweep import run_sweep

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

DATA = {
    "dataset": "digits",
    "validation": {"fraction": 0.2, "visibility": "public"},
    "test": {"fraction": 0.2, "visibility": "public"},
    "public": {"fraction": 0.1},
}
SCATTERNET = {
    "normalize.kind": "private_data",
    "normalize.mean_norm": 1.0,
    "normalize.square_norm": 1.0,
    "batch.expected": 256,
    "train.epochs": 10,
}


def only(method, values):
    return {name: {"choice": [v], "when": {"method": method}} for name, v in values.items()}


BOTH = {
    "method": {"choice": ["scatternet", "adamix"]},
    "features.name": "scatternet",
    **only("scatternet", SCATTERNET),
    **only("adamix", {"public.shots": 3}),
}


def study(root, name, accounting="unaccounted", space=BOTH, num_trials=2, **changes):
    """Return a study; none logs a model unless it is told to, which takes longer than trials."""
    privacy = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": accounting}
    if accounting == "composed":
        privacy["study_epsilon"] = 4.0
    search = {"sampler": "grid", "num_trials": num_trials, "space": space}
    changes = {"tracking": {"uri": None}, **changes}
    return SweepSpec(
        **make_spec(root, name=name, data=DATA, privacy=privacy, search=search, **changes)
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_cluster):
    root = tmp_path_factory.mktemp("features")
    return root, run_sweep(study(root, "both", "composed"))


@pytest.mark.slow
def test_both_methods_finish_within_cap_and_budget(finished):
    _root, result = finished
    assert [trial.state for trial in result.results] == [TrialState.FINISHED] * 2
    assert all(0.9 * 2.0 < trial.epsilon <= 2.0 for trial in result.results)
    assert all(trial.metrics["test/accuracy"] > 0.5 for trial in result.results)
    assert result.study_statement().epsilon == 4.0


def test_the_ledger_holds_the_noisy_statistics_before_the_steps(finished):
    _root, result = finished
    ledger = result.files.ledger
    by_method = {trial.config["method"]: trial.trial_id for trial in result.results}
    runs = trial_spent(ledger, by_method["scatternet"]).runs
    assert [(run.event, run.count, run.phase) for run in runs[:1]] == [
        (Gaussian(8.0), 2, "normalize")
    ]
    assert isinstance(runs[1].event, PoissonGaussian)
    (run,) = trial_spent(ledger, by_method["adamix"]).runs
    assert run.event == Gaussian(20.0)


@pytest.mark.slow
def test_the_same_features_are_never_computed_again(finished):
    root, _ = finished
    store = root / "studies" / ".features"
    before = {path.name: path.stat().st_mtime_ns for path in store.glob("*.npy")}
    assert len(before) == 8  # four parts, plain for scatternet and of norm 1 for adamix
    again = run_sweep(study(root, "again"))
    assert again.state == "finished"
    assert {path.name: path.stat().st_mtime_ns for path in store.glob("*.npy")} == before


@pytest.mark.slow
def test_a_public_search_opens_private_features_for_the_final_run_alone(finished, monkeypatch):
    root, _ = finished
    from dpsweep.running.modes import final_run, searching

    seen = []
    prefetch = searching.prefetch

    def noting(checked, data, target, observer, *, tasks=None):
        seen.append((data.records, len(data.parts["private"][1]), tasks is not None))
        return prefetch(checked, data, target, observer, tasks=tasks)

    for module in (searching, final_run):
        monkeypatch.setattr(module, "prefetch", noting)
    space = {"method": "scatternet", **SCATTERNET, "batch.expected": 64}
    result = run_sweep(study(root, "on-public", "public", space, num_trials=1))
    assert [trial.state for trial in result.results] == [TrialState.FINISHED] * 2
    public, private = seen
    assert public == ("public", 180, False)
    assert private[0] == "private"
    assert private[1] > 800
    assert private[2]


@pytest.mark.slow
def test_a_study_says_why_it_failed_and_goes_on_when_that_is_mended(finished):
    root, _ = finished
    space = {"method": "scatternet", "batch.expected": 64, "train.max_steps": 2}
    spec = study(root, "no-room", space=space, num_trials=1)
    storage = {"features": str(root / "small"), "features_gb": 1e-6}
    small = spec.model_copy(update={"storage": spec.storage.model_copy(update=storage)})
    with pytest.raises(ResourceError, match="do not fit"):
        run_sweep(small)
    told = load_sweep("no-room", root=root / "studies").status_line()
    assert "failed (features of 0.1 GiB do not fit in" in told
    assert run_sweep(spec).state == "finished"


@pytest.mark.slow
def test_the_best_model_is_one_network_on_raw_records(finished):
    """It loads without this package, from pixels to classes."""
    root, _ = finished
    tracking = {"uri": f"sqlite:///{root}/mlflow.db"}
    uri = run_sweep(study(root, "logged", "composed", tracking=tracking)).best().model_uri
    assert uri is not None
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); import mlflow, torch; "
        f"mlflow.set_tracking_uri('sqlite:///{root}/mlflow.db'); "
        f"model = mlflow.pytorch.load_model({uri!r}); "
        "print(tuple(model(torch.rand(3, 1, 8, 8)).shape), 'dpsweep' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "(3, 10) False"


def test_report_makes_a_table_of_studies(finished):
    root, _ = finished
    studies = root / "studies"
    done = cli_here("report", "both", "--by", "method", "--root", studies, "-f", "yaml")
    assert done.returncode == 0, done.stderr
    rows = yaml.safe_load(done.stdout)
    rows = rows["rows"] if isinstance(rows, dict) else rows
    assert {row["method"] for row in rows} == {"scatternet", "adamix"}
    for row in rows:
        assert {"delta", "privacy_unit", "accountant", "accounting"} <= set(row)
