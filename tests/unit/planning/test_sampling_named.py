"""What is planned names the sampling that a run of it states: noisy scores sample no record."""

import pytest
import yaml
from whole_studies import make_spec

from dpsweep.cli.app import app
from dpsweep.planning.preflight import preflight
from dpsweep.planning.simulation.curves import SyntheticCurves
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.planning.strategies import STRATEGIES
from dpsweep.planning.strategies.advice import advise
from dpsweep.planning.summary import summarize_plan
from dpsweep.running import entries
from dpsweep.spec.study import SweepSpec

NOISY = {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.05}
PRIVACY = {"delta": 1e-5, "trial_epsilon": 2.0}
MODES = {
    "composed": {**PRIVACY, "accounting": "composed", "study_epsilon": 6.0},
    "select": {**PRIVACY, "accounting": "select", "selection": {"mean": 3, "shape": 1}},
}


def made(root, accounting, visibility):
    raw = make_spec(root, tracking={"uri": None}, privacy=MODES[accounting])
    raw["data"]["validation"] = NOISY if visibility == "noisy" else {"fraction": 0.2}
    raw["data"]["validation"]["visibility"] = visibility
    if accounting == "select":
        del raw["search"]["num_trials"]
    return raw


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("accounting", "visibility", "sampling"),
    [
        ("composed", "noisy", "mixed"),
        ("select", "noisy", "mixed"),
        ("composed", "public", "poisson"),
    ],
)
def test_plan_and_simulate_say_what_a_run_states(
    accounting, visibility, sampling, tmp_path, capsys
):
    raw = made(tmp_path, accounting, visibility)
    checked = preflight(SweepSpec(**raw))
    (point,) = checked.draw(1)
    stated = entries.trial_started(checked.spec, checked.admit(0, point)).tags["dp.sampling"]
    assert stated == sampling
    record = summarize_plan(checked).to_dict()
    assert record["sampling"] == stated
    by_mode = record["study_epsilon_by_mode"].values()
    assert {mode["sampling"] for mode in by_mode if mode is not None} == {stated}
    maximize = checked.spec.search.mode == "max"
    curves = SyntheticCurves(checked.space.parameters, seed=0, maximize=maximize)
    (run,) = simulate(checked, curves, policies=["fifo"])
    assert run.sampling == stated
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SystemExit) as end:
        app(["plan", str(path)])
    assert not end.value.code
    said = capsys.readouterr()
    assert f"sampling={stated}" in said.out + said.err


def test_advice_says_what_a_run_states(tmp_path):
    raw = make_spec(tmp_path, tracking={"uri": None}, privacy=MODES["composed"])
    raw["data"]["validation"] = NOISY
    space = {
        "method": "dp_sgd",
        "model.name": "linear",
        "optim.noise_scale": {"loguniform": [0.05, 500]},
    }
    raw["search"]["space"] = {**space, "optim.input_norm": 4.0, "train.epochs": 5}
    strategies = [strategy for strategy in STRATEGIES if strategy.name == "random"]
    advised = advise(SweepSpec(**raw), epsilon=2.0, strategies=strategies, replicates=2)
    assert {played.terms.sampling for played in advised.played} == {"mixed"}
