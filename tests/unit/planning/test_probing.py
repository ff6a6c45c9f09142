"""Probes and their final run: what each costs, and what no probe may be."""

import copy
import math

import pytest

from dpsweep.foundation.errors import SpecError
from dpsweep.planning.costs import probing
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.preflight import preflight
from dpsweep.planning.simulation.curves import SyntheticCurves
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.privacy.composition.declared import DeclaredComposition
from dpsweep.privacy.events import Plan
from dpsweep.spec.study import SweepSpec

SPEC = {
    "name": "probes",
    "data": {"dataset": "digits", "validation": {"visibility": "public"}},
    "privacy": {
        "accounting": "composed", "study_epsilon": 3.0, "delta": 1e-5,
        "accountant": "rdp",  # plans are made much faster by it
    },
    "search": {
        "strategy": "probe",
        "probe": {"num_probes": 5, "epsilon": 0.3},
        "space": {
            "method": "dp_sgd", "model.name": "linear", "batch.expected": 64,
            "train.max_steps": 20, "optim.noise_lr": {"loguniform": [0.1, 1000]},
        },
    },
}  # fmt: skip


def spec(**changes):
    raw = copy.deepcopy(SPEC)
    for path, value in changes.items():
        *above, key = path.split("__")
        section = raw
        for name in above:
            section = section.setdefault(name, {})
        section[key] = value
    return raw


def checked(**changes):
    return preflight(SweepSpec(**spec(**changes)))


def test_points_go_from_bound_to_bound_in_equal_ratios():
    probing = Probing(checked())
    assert probing.points[0] == 0.1
    assert probing.points[-1] == 1000
    logs = [math.log10(point) for point in probing.points]
    assert logs == pytest.approx([-1, 0, 1, 2, 3])
    assert probing.ratio == pytest.approx(10)


def test_probes_spares_and_final_run_fill_what_is_declared():
    study = checked()
    probing, chosen = Probing(study), choose_composition(study)
    assert isinstance(chosen, DeclaredComposition)
    assert chosen.epsilon <= 3
    account = CompositionAccount(chosen)
    final = chosen.cost(probing.final(7.0).full_plan)
    for number in range(7):
        assert account.reserve(number, chosen.cost(probing.probe(number, 2.0).full_plan))
    assert not account.fits(chosen.cost(probing.probe(7, 2.0).full_plan))
    assert not account.fits(final)  # its phase begins when no probe runs
    for number in range(7):
        account.settle(number, chosen.cost(probing.probe(number, 2.0).full_plan))
    assert account.reserve(7, final)
    account.settle(7, final)
    assert not account.fits(final)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "final", "noise"),
    [
        (1.0, 0.978, 1.0223),
        pytest.param(3.0, 2.992, 0.7008, marks=pytest.mark.slow),
    ],
)
def test_twelve_probes_on_fashion_mnist_cost_next_to_nothing(tmp_path, epsilon, final, noise):
    study = checked(
        data={
            "dataset": "npz", "path": str(_npz(tmp_path)), "num_records": 60_000, "num_classes": 2,
            "validation": {"fraction": 0.1, "visibility": "public"},
        },
        privacy={"accounting": "composed", "study_epsilon": epsilon, "delta": 1e-5},
        search__probe={"spares": 0},
        search__space={
            "method": "dp_sgd", "model.name": "linear", "batch.expected": 512, "train.epochs": 3,
            "optim.noise_lr": {"loguniform": [0.1, 1000]},
        },
    )  # fmt: skip
    assert 0.995 * epsilon <= choose_composition(study).epsilon <= epsilon
    figures = Probing(study).figures
    assert figures.final_epsilon == pytest.approx(final, abs=2e-3)
    runs = Probing(study).tasks[-1].plan.runs
    assert [run.count for run in runs] == [316]
    assert runs[0].event.noise_multiplier == pytest.approx(noise, abs=2e-3)
    probe = Probing(study).tasks[0].plan.runs[0].event
    assert probe.noise_multiplier == pytest.approx(9.8516, rel=2e-3)


def test_a_guess_that_is_what_a_probe_costs_is_no_mistake(monkeypatch):
    """The same plan in both phases cannot be declared; the search for the final one goes on."""
    seen = []

    def largest(cost, cap, **terms):
        seen.append(cost(0.3))
        return 1.0

    monkeypatch.setattr(probing, "largest_within", largest)
    study = Probing(checked())
    assert study.final_epsilon == 1.0
    assert study.probes_epsilon < seen[0] < 3


def _npz(folder):
    import numpy as np

    path = folder / "records.npz"
    np.savez(path, x_train=np.zeros((60_000, 4), np.float32), y_train=np.arange(60_000) % 2)
    return path


def test_shorter_probes_have_a_plan_of_their_own():
    space = copy.deepcopy(SPEC["search"]["space"])
    del space["optim.noise_lr"]
    space |= {"optim.noise_scale": {"loguniform": [0.05, 500]}, "optim.input_norm": 4.0}
    study = checked(
        search__space=space,
        search__probe={"num_probes": 5, "epsilon": 0.3, "overrides": {"train.max_steps": 8}},
    )
    probe, final = Probing(study).tasks[0], Probing(study).tasks[-1]
    assert (len(probe.plan), len(final.plan)) == (8, 20)
    assert probe.hparams["train.max_steps"] == 8
    assert choose_composition(study).epsilon <= 3


def test_noisy_scores_are_declared_for_every_run():
    study = checked(data__validation={"visibility": "noisy", "noise_std": 0.05})
    chosen = choose_composition(study)
    scores = [c for c in chosen.classes if c.part == "validation"]
    assert [(c.count, c.phase) for c in scores] == [(8, None)]
    with pytest.raises(
        SpecError, match=r"makes 8 noisy scores cost epsilon=.*is enough"
    ) as refusal:
        choose_composition(checked(data__validation={"visibility": "noisy", "noise_std": 0.008}))
    enough = float(str(refusal.value).rpartition("(")[2].split()[0])
    again = {"visibility": "noisy", "noise_std": enough}
    assert choose_composition(checked(data__validation=again)).epsilon <= 3
    cheap = {"visibility": "noisy", "noise_std": 0.98 * enough}
    with pytest.raises(SpecError, match="noisy scores cost"):
        choose_composition(checked(data__validation=cheap))


def test_a_score_may_cost_more_than_the_training_of_a_probe():
    study = checked(data__validation={"visibility": "noisy", "noise_std": 0.02})
    probe = Probing(study).tasks[0]
    assert probe.planned_epsilon > 0.3
    assert epsilon_of(probe.charges, delta=1e-5, accountant="rdp") <= 0.3


def test_plan_says_what_each_run_costs():
    summary = summarize_plan(checked())
    assert summary.num_trials == 8
    assert summary.probing.probe_epsilon <= 0.3
    assert summary.probing.probes_epsilon < summary.probing.final_epsilon < 3
    record = summary.to_dict()["probing"]
    assert record["final_epsilon"] == summary.probing.final_epsilon
    assert {"delta", "accountant", "sampling", "privacy_unit"} <= set(record)
    assert summary.modes["select"] is None


def test_the_runs_composed_are_those_that_are_declared():
    """The final run, the dearest, was in the figure twice: once for the first spare."""
    study = checked()
    tasks = Probing(study).tasks
    runs = [run for task in [*tasks[:1] * 7, tasks[-1]] for run in task.full_plan.runs]
    whole = epsilon_of(Plan(tuple(runs)), delta=1e-5, accountant="rdp")
    assert summarize_plan(study).composed_epsilon == pytest.approx(whole, rel=1e-9)


def test_it_can_be_simulated():
    study = checked()
    curves = SyntheticCurves(study.space.parameters, seed=3)
    (run,) = simulate(study, curves, policies=["fifo"])
    assert run.started >= 6
    assert run.accountant == "pld"  # of the study, whatever its trials are planned by
    assert run.composed_epsilon == 3.0
    assert run.regret < 0.05


# --- What no probe may be --------------------------------------------------------------------

NOISE_SCALE = {
    "method": "dp_sgd", "optim.input_norm": 4.0, "optim.noise_scale": {"loguniform": [0.1, 100]}
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy__accounting": "unaccounted", "privacy__study_epsilon": None,
          "privacy__trial_epsilon": 3.0}, "search.strategy: probe keeps"),
        ({"privacy__composition": "filter"}, "a filter would cost more"),
        ({"search__sampler": "tpe"}, "search.sampler: has no meaning for probe"),
        ({"search__num_trials": 9}, "search.num_trials: has no meaning for probe"),
        ({"search__max_time": "9m"}, "search.max_time: has no meaning"),
        ({"scheduler": {"type": "median"}}, "no run is stopped before"),
        ({"search__probe__epsilon": 3.0}, "must be smaller than privacy.study_epsilon"),
        ({"search__probe__num_probes": 2}, "greater than or equal to 3|must be >= 3"),
        ({"search__space": {"method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 8]}}},
         "no good at another noise multiplier"),
        ({"search__space__batch.expected": {"choice": [64, 128]}}, "very noisy runs cannot rank"),
        ({"search__space__optim.noise_lr": {"uniform": [0.1, 8]}}, "must be a loguniform range"),
        ({"search__space": {"method": "dp_sgd", "optim.noise_lr": 3.0}}, "nothing to search"),
        ({"search__probe__overrides": {"train.max_steps": 5}}, "same length and batch only"),
        ({"search__space": NOISE_SCALE, "search__probe__overrides": {"optim.momentum": 0.5}},
         "must be the same for probes and final run"),
        ({"search__strategy": "sampler", "search__sampler": "tpe",
          "privacy__trial_epsilon": 1.0}, "has no meaning without strategy: probe"),
    ],
)  # fmt: skip
def test_what_a_probe_cannot_be(changes, said):
    with pytest.raises(SpecError, match=said):
        SweepSpec(**spec(**changes))


def test_a_point_without_a_plan_is_told_before_anything_starts():
    with pytest.raises(SpecError, match=r"search.probe: a probe has no plan: .*drown"):
        choose_composition(checked(search__probe={"epsilon": 0.001}))
