"""Noisy-prefix halving before it runs: what is declared, what it costs, and what is refused."""

import pytest

from dpsweep.cli.plan_words import declared_words, plan_words
from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning.costs.composition import choose_composition, declared_figures
from dpsweep.planning.declaring.barrier import fitting_trial_epsilon
from dpsweep.planning.preflight import preflight
from dpsweep.planning.simulation.curves import SyntheticCurves
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.composition.declared import declared_classes, declared_epsilon
from dpsweep.privacy.schedules import NoiseSchedule
from dpsweep.spec.study import SweepSpec

DELTA = 1e-5
PLD = {"accountant": "pld"}  # of trials, too: slower, and they cost what they say
SPACE = {
    "method": "dp_sgd", "model.name": "linear", "batch.expected": 128, "train.epochs": 6,
    "optim.noise_lr": {"loguniform": [0.05, 500]}, "noise.prefix_factor": 4,
}  # fmt: skip


def raw_spec(root, *, privacy=None, search=None, scheduler=None, **sections):
    return {
        "name": "prefix",
        "data": {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
        "privacy": {
            "delta": DELTA, "trial_epsilon": 0.9, "accounting": "composed", "study_epsilon": 1.0,
            "composition": "declared", **(privacy or {}),
        },
        "search": {"num_trials": 16, "sampler": "random", "space": SPACE, **(search or {})},
        "scheduler": {"type": "noisy_prefix", **(scheduler or {})},
        "storage": {"path": str(root)},
        **sections,
    }  # fmt: skip


def checked(root, **changes):
    return preflight(SweepSpec(**raw_spec(root, **changes)))


# Noise multipliers at which 16 configurations and the winner cost E; what the winner keeps of it.
GOLDEN = [
    (4, 0.997232, 1.0, 0.975), (4, 0.692036, 3.0, 2.980),
    (2, 1.038197, 1.0, 0.888), (2, 0.697819, 3.0, 2.908),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("factor", "noise", "whole", "winner"), GOLDEN)
def test_what_the_winner_keeps(factor, noise, whole, winner):
    plan = NoiseSchedule(prefix_factor=factor).plan(noise, 512 / 54_000, 316)
    before, after = plan.slice(0, plan.prefix_end), plan.slice(plan.prefix_end, 316)
    assert (len(before), len(after)) == (47, 269)
    both = declared_classes([[(before, 16)], [(after, 1)]])
    assert declared_epsilon(both, DELTA) == pytest.approx(whole, abs=2e-3)
    alone = declared_classes([[(plan, 1)]])
    assert declared_epsilon(alone, DELTA) == pytest.approx(winner, abs=3e-3)


def test_two_classes_are_declared_in_two_phases(tmp_path):
    study = checked(tmp_path, scheduler={"keep": 2}, privacy={"trial_epsilon": 0.6})
    chosen = choose_composition(study)
    task = study.sample[0]
    assert (task.barrier, len(task.plan)) == (10, 67)
    assert [(c.phase, c.count) for c in chosen.classes] == [(0, 16 * 10), (1, 2 * 57)]
    loud, base = (c.event.noise_multiplier for c in chosen.classes)
    assert loud == 4 * base
    assert all(chosen.refusal(stage) == "" for stage in task.stages)
    assert "several phases" in chosen.refusal(task.full_plan)


def test_plan_says_classes_price_and_what_the_winner_keeps(tmp_path):
    study = checked(tmp_path, privacy=PLD)
    summary = summarize_plan(study)
    figures, barrier = summary.declared, summary.declared.barrier
    assert (figures.num_trials, barrier.keep, barrier.steps, barrier.num_steps) == (16, 1, 10, 67)
    assert 0.89 < barrier.epsilon <= 0.9 < figures.epsilon < 0.99
    assert 0.9 < barrier.trial_epsilon_that_fits < 1
    told = declared_words(summary)
    assert "16 trials in two phases: 160 times poisson_gaussian" in told
    assert "then 57 times poisson_gaussian" in told
    words = " ".join(plan_words(study, summary, FORECAST, None))
    assert (
        "All 16 fit into the study's budget: 10 of 67 steps each, and the best 1 goes on" in words
    )
    assert f"privacy.trial_epsilon={barrier.trial_epsilon_that_fits:g} would use" in words
    assert summary.to_dict()["declared"]["barrier"]["keep"] == 1


FORECAST = {"seconds_per_trial": None, "because": "this is a test"}


@pytest.mark.parametrize("trial_epsilon", [1.0, 0.2])
def test_the_largest_trial_epsilon_that_fits_is_found(tmp_path, trial_epsilon):
    study = checked(tmp_path, privacy={**PLD, "trial_epsilon": trial_epsilon})
    fits = fitting_trial_epsilon(study)
    at_most = checked(tmp_path, privacy={**PLD, "trial_epsilon": fits})
    assert declared_figures(at_most).num_trials == 16
    assert 0.99 < declared_figures(at_most).epsilon <= 1
    assert fitting_trial_epsilon(at_most) is None


def test_a_budget_without_a_choice_is_refused_with_the_epsilon_that_fits(tmp_path):
    study = checked(tmp_path, privacy={**PLD, "trial_epsilon": 1.0})
    with pytest.raises(SpecError, match=r"2 trials, 1 of which goes on .* 0\.9\d* fits"):
        choose_composition(study)
    summary = summarize_plan(study)
    assert "fits" in summary.declared.problem
    assert "It cannot be declared: 1 is too small" in " ".join(
        plan_words(study, summary, FORECAST, None)
    )


def test_noisy_scores_are_declared_too(tmp_path):
    data = {
        "dataset": "digits",
        "validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.2},
    }
    study = checked(tmp_path, data=data, report={"every_steps": 4})
    task, chosen = study.sample[0], choose_composition(study)
    assert task.barrier_scores == 3  # at 4, 8 and 10
    assert len(task.validation_plan) == 17 + 1
    (score,) = (c for c in chosen.classes if c.part == "validation")
    assert (score.phase, score.count) == (None, 16 * 3 + 15)


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_different_plans_are_refused(tmp_path, sampler):
    two = {**SPACE, "noise.prefix_factor": {"choice": [2, 4]}}
    two["optim.noise_lr"] = {"choice": [1.0, 2.0]}
    with pytest.raises(SpecError, match="sampled configurations have 2 different plans"):
        choose_composition(checked(tmp_path, search={"space": two, "sampler": sampler}))


def test_a_grid_of_one_plan_is_declared_by_its_points(tmp_path):
    space = {**SPACE, "optim.noise_lr": {"choice": [1.0, 2.0, 4.0]}}
    chosen = choose_composition(checked(tmp_path, search={"space": space, "sampler": "grid"}))
    assert [(c.phase, c.count) for c in chosen.classes] == [(0, 30), (1, 57)]


REFUSED = [
    ({"privacy": {"composition": "filter"}}, r"privacy\.composition: noisy_p"),
    ({"privacy": {"composition": None}}, r"privacy\.composition: noisy_prefi"),
    (
        {
            "privacy": {
                "accounting": "unaccounted", "composition": None, "study_epsilon": None,
            }
        },
        r"scheduler\.type: noisy_prefix needs a declared budget",
    ),
    ({"scheduler": {"keep": 16}}, r"scheduler\.keep: lets every trial go on"),
    ({"scheduler": {"rungs": [0.1]}}, r"scheduler\.rungs: has no meaning for noisy_prefix"),
    (
        {"search": {"space": {k: v for k, v in SPACE.items() if not k.startswith("noise.")}}},
        r"scheduler\.type: noisy_prefix compares trials at the end of their noisy prefix, and they",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_has_no_such_barrier_is_refused(tmp_path, changes, message):
    with pytest.raises(SpecError, match=message):
        checked(tmp_path, **changes)


def test_a_rate_that_does_not_follow_the_noise_is_warned_of(tmp_path):
    def notes(**space):
        return checked(tmp_path, search={"space": space}).notes

    plain = {key: value for key, value in SPACE.items() if key != "optim.noise_lr"}
    rates = {"loguniform": [0.1, 8]}
    assert any("does not rank optim.lr" in note for note in notes(**plain, **{"optim.lr": rates}))
    adam = {"optim.name": "adam", "optim.lr": rates}
    for space in (SPACE, {**plain, **adam}, plain):
        assert not any("does not rank" in note for note in notes(**space))


def test_a_prefix_needs_no_scheduler_of_its_own(tmp_path):
    study = checked(tmp_path, scheduler={"type": "fifo"}, privacy={"trial_epsilon": 0.3})
    task, chosen = study.sample[0], choose_composition(study)
    assert (task.barrier, task.plan.prefix_end) == (0, 10)
    assert {c.phase for c in chosen.classes} == {0}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("slots", [1, 5])
def test_it_is_simulated_like_every_search(tmp_path, slots):
    study = checked(tmp_path, scheduler={"keep": 2}, privacy={"trial_epsilon": 0.6})
    curves = SyntheticCurves(study.space.parameters, seed=0)
    (run,) = simulate(study, curves, policies=["noisy_prefix"], slots=slots)
    assert (run.started, run.finished, run.stopped) == (16, 2, 14)
    assert run.steps == 16 * 10 + 2 * 57
    with pytest.raises(BadInputError, match="cannot be compared with other policies"):
        simulate(study, curves, policies=["fifo", "noisy_prefix"])
    (other,) = simulate(study, curves, policies=["noisy_prefix"], slots=3)
    assert other.best == run.best
