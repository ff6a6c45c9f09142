"""The composition that a composed study chooses: which of the three, and what it declares."""

from dataclasses import replace

import pytest

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning.costs.composition import choose_composition, declared_figures
from dpsweep.planning.preflight import preflight
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.composition.declared import UNDECLARED, DeclaredComposition
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.spec.study import SweepSpec

SPACE = {
    "method": "dp_sgd", "model.name": "linear", "batch.expected": 128, "train.epochs": 6,
    "optim.lr": {"loguniform": [0.1, 8]},
}  # fmt: skip


def checked(tmp_path, *, privacy=None, search=None, **sections):
    raw = {
        "name": "declared",
        "data": {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
        "privacy": {
            "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "composed", "study_epsilon": 3.0,
            "composition": "declared", **(privacy or {}),
        },
        "search": {"num_trials": 24, "space": SPACE, **(search or {})},
        "scheduler": {"type": "fifo"},
        "storage": {"path": str(tmp_path)},
        **sections,
    }  # fmt: skip
    return preflight(SweepSpec(**raw))


def test_as_many_trials_are_declared_as_the_budget_admits(tmp_path):
    study = checked(tmp_path)
    chosen = choose_composition(study)
    assert isinstance(chosen, DeclaredComposition)
    plan = study.sample[0].full_plan
    (units,) = [count for name, count in chosen.limits.items() if name != UNDECLARED]
    figures = declared_figures(study)
    assert units == figures.num_trials * len(plan)
    assert figures.epsilon == chosen.epsilon <= 3.0
    one_more = [(plan, figures.num_trials + 1)]
    with pytest.raises(BadInputError, match="over 3"):
        DeclaredComposition.of(one_more, target_epsilon=3.0, delta=1e-5)


def test_it_admits_more_than_the_filter(tmp_path):
    study = checked(tmp_path)
    declared, filtered = (
        choose_composition(study),
        choose_composition(checked(tmp_path, privacy={"composition": "filter"})),
    )
    plan = study.sample[0].full_plan
    assert isinstance(filtered, RenyiFilter)
    assert declared.share(declared.cost(plan)) < filtered.share(filtered.cost(plan))
    summary = summarize_plan(study)
    assert summary.declared.num_trials > summary.composed.fits[1]
    assert summary.modes["composed"].accountant == "pld"


def test_no_more_trials_are_declared_than_are_wanted(tmp_path):
    chosen = choose_composition(checked(tmp_path, search={"num_trials": 2}))
    assert max(chosen.limits.values()) == 2 * 67
    assert chosen.target_epsilon == 3.0 > chosen.epsilon


def test_where_trials_stop_early_a_part_of_one_more_is_declared(tmp_path):
    halving = {"type": "epsilon_halving", "rungs": [0.4], "reduction_factor": 3}
    whole = choose_composition(checked(tmp_path))
    more = choose_composition(checked(tmp_path, scheduler=halving))
    assert max(whole.limits.values()) < max(more.limits.values()) < max(whole.limits.values()) + 67
    assert whole.epsilon < more.epsilon <= 3.0


def test_configurations_with_different_plans_are_refused(tmp_path):
    space = {**SPACE, "train.epochs": {"choice": [4, 6]}}
    with pytest.raises(SpecError, match=r"declared: 32 sampled configurations have 2 different"):
        choose_composition(checked(tmp_path, search={"space": space}))
    assert (
        "2 different plans" in declared_figures(checked(tmp_path, search={"space": space})).problem
    )


def test_a_grid_declares_each_of_its_points(tmp_path):
    space = {**SPACE, "train.epochs": {"choice": [4, 6]}, "optim.lr": {"choice": [0.5, 1, 2]}}
    study = checked(
        tmp_path, search={"space": space, "sampler": "grid"}, privacy={"trial_epsilon": 0.5}
    )
    chosen = choose_composition(study)
    assert sorted(chosen.limits.values()) == [0, 3 * 45, 3 * 67]
    assert declared_figures(study).num_trials == 6
    with pytest.raises(SpecError, match="all points of the grid cost epsilon="):
        choose_composition(
            checked(tmp_path, search={"space": space, "sampler": "grid"},
                    privacy={"trial_epsilon": 2.9})
        )  # fmt: skip


def test_points_without_a_plan_take_no_place_of_those_that_are_declared(tmp_path):
    """A study goes on to the points behind them, which were not declared and so not run."""
    space = {**SPACE, "optim.lr": 1.0, "noise.noise_multiplier": {"choice": [0.3, 0.4, 4, 5, 6]}}
    study = checked(tmp_path, search={"space": space, "sampler": "grid", "num_trials": 2})
    noises = {c.event.noise_multiplier for c in choose_composition(study).classes}
    assert noises == {4.0, 5.0}
    assert declared_figures(study).num_trials == summarize_plan(study).num_trials == 2


def test_points_that_are_named_are_declared_first(tmp_path):
    """They run first, and where they were not declared, not at all."""
    space = {**SPACE, "optim.lr": 1.0, "noise.noise_multiplier": {"choice": [4, 5, 6, 7]}}
    study = checked(
        tmp_path,
        search={
            "space": space, "sampler": "grid", "num_trials": 2,
            "points_to_evaluate": [{"noise.noise_multiplier": 7}],
        },
    )  # fmt: skip
    noises = {c.event.noise_multiplier for c in choose_composition(study).classes}
    assert noises == {7.0, 4.0}


def test_a_budget_for_no_trial_is_refused(tmp_path):
    """Training and scores are on different records, so a trial alone is within its own cap."""
    raw = {"trial_epsilon": 1.0, "study_epsilon": 1.0, "accountant": "pld"}
    study = checked(tmp_path, privacy=raw)
    small = study.spec.privacy.model_copy(update={"study_epsilon": 0.5})
    with pytest.raises(SpecError, match=r"0\.5 is too small: one trial costs epsilon=0\.99"):
        choose_composition(replace(study, spec=study.spec.model_copy(update={"privacy": small})))


def test_noisy_scores_are_declared_on_the_records_they_read(tmp_path):
    study = checked(
        tmp_path,
        data={
            "dataset": "digits",
            "validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.05},
        },
        report={"points": 1},
        search={"num_trials": 3},
    )
    chosen = choose_composition(study)
    assert {(c.part, c.count) for c in chosen.classes} == {("private", 3 * 67), ("validation", 3)}


def test_full_batches_are_composed_without_a_price_for_adaptivity(tmp_path):
    space = {
        "method": "adamix", "train.max_steps": 10,
        "optim.lr": {"loguniform": [0.001, 0.03]},
    }  # fmt: skip
    data = {
        "dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"},
        "public": {"fraction": 0.2},
    }  # fmt: skip
    study = checked(tmp_path, data=data, search={"space": space}, privacy={"composition": None})
    chosen = choose_composition(study)
    assert isinstance(chosen, GaussianFilter)
    assert summarize_plan(study).modes["composed"].accountant == "gdp"


def test_a_gaussian_filter_refuses_what_is_sampled():
    chosen = GaussianFilter.at(target_epsilon=1.0, delta=1e-5)
    sampled = Plan((EventRun(PoissonGaussian(20.0, 0.5)),))
    assert chosen.cost(sampled)["private"] == float("inf")
    assert not GaussianFilter.covers(sampled)
    assert "covers nothing else" in chosen.refusal(sampled)
    assert chosen.refusal(Plan((EventRun(Gaussian(20.0)),))) == ""


@pytest.mark.parametrize(("epsilon", "steps"), [(1.0, 28), (3.0, 206)])
def test_a_gaussian_filter_stops_where_the_exact_formula_does(epsilon, steps):
    chosen = GaussianFilter.at(target_epsilon=epsilon, delta=1e-5)
    most = Plan((EventRun(Gaussian(20.0), steps),))
    more = Plan((EventRun(Gaussian(20.0), steps + 1),))
    assert not chosen.is_over(chosen.cost(most))
    assert chosen.is_over(chosen.cost(more))
    assert chosen.spent_epsilon(chosen.cost(most)) <= epsilon


def test_a_gaussian_filter_holds_each_part():
    chosen = GaussianFilter.at(target_epsilon=1.0, delta=1e-5)
    scores = Plan((EventRun(Gaussian(20.0), 29, part="validation"),))
    assert chosen.cost(scores)["private"] == 0
    assert chosen.is_over(chosen.cost(scores))
