"""The start block: what it demands, what it plans, and what its users inherit."""

import pytest
from raw_specs import LEFT_OUT, changed, mistakes

from dpsweep.cli.verbs import plan as cli_plan
from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.preflight import preflight
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.spec.study import SweepSpec

SPEC = {
    "name": "labels",
    "data": {
        "dataset": "digits",
        "validation": {"fraction": 0.2, "visibility": "public"},
        "public": {"fraction": 0.3},
    },
    "start": {
        "epsilons": [1.0, 2.0],
        "runs": 2,
        "hyperparameters": {"model.name": "tanh_cnn", "batch.expected": 90, "train.max_steps": 40},
    },
    "privacy": {
        "accounting": "composed",
        "trial_epsilon": 3.0,
        "study_epsilon": 8.0,
        "delta": 1e-5,
    },
    "search": {
        "sampler": "grid",
        "num_trials": 9,
        "space": {
            "method": "active_learning",
            "start.epsilon": {"choice": [1.0, 2.0]},
            "start.run": 1,
            "select.by": {"choice": ["margin", "near_private"]},
            "select.candidates": 200,
            "labels.max": 50,
        },
    },
}


@pytest.fixture
def check(tmp_path):
    def check(changes):
        return preflight(
            SweepSpec(**changed(SPEC, {"storage": {"path": str(tmp_path)}, **changes}))
        )

    return check


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"start/epsilons": []}, "start.epsilons: is empty"),
        ({"start/epsilons": LEFT_OUT}, "start.epsilons: is missing"),
        ({"start/runs": 0}, "start.epsilons: start.runs is 0, so nothing is released"),
        ({"start/runs": -1}, "start.runs: must be >= 0, got -1"),
        ({"start/epsilons": [2.0, 1.0]}, "start.epsilons[1]: must ascend, got 1 after 2"),
        ({"start/epsilons": [1.0, 1.0]}, "start.epsilons[1]: must ascend, got 1 after 1"),
        ({"start/epsilons": [1.0, 4.0]}, "start.epsilons[1]: must be at most privacy.trial_epsi"),
        (
            {"start/hyperparameters/method": "dp_sgd"},
            "start.hyperparameters.method: start.method says it",
        ),
        (
            {"start/hyperparameters/optim.lr": {"choice": [1, 2]}},
            "start.hyperparameters.optim.lr: is searched over, and a start has one value of each",
        ),
        (
            {"start/hyperparameters/noise.target_epsilon": 1},
            "start.hyperparameters.noise.target_epsilon: the last of start.epsilons says it",
        ),
        ({"scheduler": {"type": "median"}}, "scheduler.type: median compares trials on their way"),
        ({"privacy/accounting": "public"}, "privacy.accounting: public searches on public records"),
        ({"privacy/accounting": "select"}, "privacy.accounting: select keeps all but its best"),
    ],
)
def test_what_a_start_demands_of_a_spec(changes, said):
    assert any(line.startswith(said) for line in mistakes(SweepSpec, **changed(SPEC, changes)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"start": LEFT_OUT},
            "search.space.method: active_learning starts from a private model, and",
        ),
        ({"search/space": {"method": "dp_sgd"}}, "start: no method of the space starts from it"),
        (
            {"start/method": "dp_sdg"},
            "start.method: dp_sdg: there is no such method (did you mean 'dp_sgd'?",
        ),
        (
            {"start/method": "bitfit"},
            "start.method: bitfit: trains no whole network privately (one of dp_sgd, sparse)",
        ),
        ({"start/method": "non_private"}, "start.method: non_private: trains no whole network"),
        (
            {"search/space/start.epsilon": {"choice": [1.0, 1.5]}},
            "search.space.start.epsilon: 1.5 is not released by the start, which releases 1, 2",
        ),
        ({"search/space/start.run": 2}, "search.space.start.run: 2 is none of the start's 2 runs"),
        (
            {"start/hyperparameters/optim.rl": 1},
            "start.hyperparameters.optim.rl: dp_sgd has no hyperparameter 'optim.rl'",
        ),
        (
            {"start/hyperparameters/optim.lr": -1},
            "start.hyperparameters.optim.lr: must be > 0, got -1",
        ),
        (
            {
                "start/hyperparameters/optim.lr": "big",
                "start/hyperparameters/model.checkpoint": "pretrain",
                "pretrain": {"model": "tanh_cnn", "objective": "rotations"},
            },
            "start.hyperparameters.optim.lr: must be a number, got 'big'",
        ),
        (
            {
                "start/hyperparameters/model.checkpoint": "pretrain",
                "pretrain": {"model": "tanh_cnn"},
            },
            "pretrain.objective: classes reads the labels of the pool, which trials buy one by one",
        ),
        (
            {"start/hyperparameters/batch.expected": 5000},
            "start.hyperparameters.batch.expected: 5000 is larger than the 899 declared",
        ),
        (
            {"start/epsilons": [0.01, 2.0], "search/space/start.epsilon": 2.0},
            "start.epsilons[0]: 0.01 is over before the first step, which costs 0.",
        ),
        (
            {"search/space/select.components": 40},
            "search.space.select.components: 40 components cannot be had of embeddings with 32",
        ),
        ({"search/space/labels.max": 600}, "search.space.labels.max: 600 is more than the 539 pub"),
        (
            {"start/runs": 0, "start/epsilons": LEFT_OUT, "search/space/start.epsilon": LEFT_OUT},
            "start.runs: is 0, and configurations of active_learning start from a run",
        ),
        ({"privacy/study_epsilon": 2.0, "privacy/trial_epsilon": 2.0}, "privacy.study_epsilon: 2 "),
    ],
)
def test_what_does_not_fit_is_said_before_anything_starts(check, changes, said):
    def whole():
        choose_composition(check(changes))

    assert any(line.startswith(said) for line in mistakes(whole)), mistakes(whole)


def test_more_records_than_there_are_cannot_be_trained_on(check):
    (told,) = mistakes(check, {"start/hyperparameters/train.num_private": 900})
    assert told.startswith("start.hyperparameters.train.num_private: 900 is more than the 899")


WITHOUT = {
    "start/runs": 0,
    "start/epsilons": LEFT_OUT,
    "search/space": {
        "method": "active_learning",
        "select.by": "random",
        "finetune.recipe": "labels_only",
        "labels.max": {"choice": [20, 50]},
    },
}


@pytest.mark.parametrize("accounting", ["composed", "unaccounted"])
def test_a_start_without_runs_names_the_network_and_costs_nothing(check, accounting):
    budget = 8.0 if accounting == "composed" else None
    privacy = {"privacy/accounting": accounting, "privacy/study_epsilon": budget}
    checked = check({**WITHOUT, **privacy})
    assert (checked.start_tasks, checked.start, dict(checked.starts)) == ([], None, {})
    choose_composition(checked)
    summary = summarize_plan(checked)
    assert (summary.start, summary.epsilon) == (None, (0.0, 0.0))
    assert (checked.total_trials, checked.notes) == (2, [])


def test_runs_that_nobody_starts_from_are_told(check):
    told = "start.runs is {}, but no configuration {}; it costs all the same"
    assert check({}).notes == [told.format(2, "starts from run 0")]
    assert check({"search/space/start.run": {"choice": [0, 1]}}).notes == []
    alone = {**WITHOUT, "start/runs": 1, "start/epsilons": [1.0]}
    assert check(alone).notes == [told.format(1, "starts from it")]


def test_a_study_with_a_start_is_not_simulated(check):
    with pytest.raises(BadInputError, match="with a start cannot be simulated"):
        simulate(check({}), None, policies=["fifo"])


def test_all_mistakes_are_told_at_once(check):
    told = mistakes(
        check,
        {
            "start/hyperparameters/optim.lr": -1,
            "search/space/start.run": 7,
            "search/space/start.epsilon": 0.5,
        },
    )
    assert len(told) == 3


def test_runs_are_the_first_trials_and_release_within_each_epsilon(check):
    checked = check({})
    assert (checked.num_trials, checked.total_trials) == (4, 6)
    first, second = checked.start_tasks
    starts = checked.starts
    assert (first.trial, second.trial, first.method) == (0, 1, "dp_sgd")
    assert first.plan == second.plan
    assert len(first.plan) == 40
    assert first.releases == (1.0, 2.0)
    early = len(starts[0, 1.0])
    assert starts[1, 1.0] == starts[0, 1.0] == first.plan.slice(0, early)
    assert starts[0, 2.0] == first.plan
    assert epsilon_of(starts[0, 1.0], delta=1e-5) <= 1.0
    assert epsilon_of(first.plan.slice(0, early + 1), delta=1e-5) > 1.0
    assert epsilon_of(first.plan, delta=1e-5) <= 2.0


def test_a_trial_inherits_its_release_and_plans_what_that_leaves(check):
    checked = check({})
    start = checked.start_tasks[1]
    values = {**checked.spec.search.space, "start.epsilon": 1.0}
    free = checked.admit(5, {**values, "select.by": "margin"})
    assert free.inherited == checked.starts[1, 1.0].merged()
    assert not free.full_plan.part("private")
    assert free.planned_epsilon == epsilon_of(free.inherited, delta=1e-5) <= 1.0
    asking = checked.admit(6, {**values, "select.by": "near_private"})
    assert 3.0 * (1 - 1e-5) < asking.planned_epsilon <= 3.0
    assert asking.inherited == free.inherited
    none = checked.admit(7, {**values, "select.by": "random", "finetune.recipe": "labels_only"})
    assert (none.inherited, none.planned_epsilon) == (Plan(), 0.0)
    again = type(asking).from_json(asking.to_json())
    assert (again, again.inherited, again.releases) == (asking, asking.inherited, ())
    assert type(start).from_json(start.to_json()).releases == start.releases


def test_the_release_is_the_largest_that_leaves_enough_where_none_is_named(check):
    changes = {"start/epsilons": [2.0, 3.0], "search/space/start.epsilon": LEFT_OUT}
    checked = check(changes)
    space = {name: value for name, value in checked.spec.search.space.items()}
    found = {by: checked.admit(9, {**space, "select.by": by}) for by in ("random", "near_private")}
    assert {by: task.hparams["start.epsilon"] for by, task in found.items()} == {
        "random": 3.0,
        "near_private": 2.0,
    }
    assert len(found["random"].inherited) > len(found["near_private"].inherited)
    tight = check({"start/epsilons": [3.0], "search/space/start.epsilon": LEFT_OUT})
    with pytest.raises(InfeasibleBudgetError, match="nothing is left for near_private"):
        tight.admit(9, {**space, "select.by": "near_private"})


def test_the_price_of_the_study_has_each_run_once(check):
    checked = check({})
    summary = summarize_plan(checked)
    grid = [checked.admit(number, point) for number, point in enumerate(checked.space.grid())]
    tasks = [*checked.start_tasks, *grid]
    plan = Plan(tuple(run for task in tasks for run in task.full_plan.runs))
    assert summary.composed_epsilon == epsilon_of(plan, delta=1e-5)
    assert summary.num_trials == 4
    assert (summary.modes["select"], summary.modes["public"]) == (None, None)
    assert summary.modes["composed"].epsilon == 8.0


def test_the_plan_shows_both_rules_for_what_asks(check, tmp_path, capsys):
    """Tight: within trial_epsilon. The paper's sum of the same events: more, or it were no news."""
    record = summarize_plan(check({})).to_dict()
    low, high = record["plan_facts"]["sum_rule_epsilon"]
    assert record["epsilon_per_trial"][1] <= 3 < low <= high < 5
    by_sum = check({"search/space/split.rule": "sum"})
    assert max(summarize_plan(by_sum).plan_facts["sum_rule_epsilon"]) == pytest.approx(3, abs=1e-3)
    path = tmp_path / "spec.yaml"
    path.write_text(check({}).spec.to_yaml())
    cli_plan.plan(path)
    shown = next(line for line in capsys.readouterr().out.splitlines() if "sum_rule" in line)
    assert shown.split() == ["sum_rule_epsilon", shown_epsilon(low), "to", shown_epsilon(high)]


def test_the_plan_says_what_the_start_does(check, tmp_path, capsys):
    checked = check({})
    first, plan = checked.starts[0, 1.0], checked.start_tasks[0].plan
    record = summarize_plan(checked).to_dict()["start"]
    (sigma,) = {run.event.noise_multiplier for run in plan.runs}
    assert record == {
        "runs": 2,
        "method": "dp_sgd",
        "steps": 40,
        "noise_multiplier": [sigma, sigma],
        "sampling": "poisson",
        "releases": [
            {"within": 1.0, "step": len(first), "epsilon": epsilon_of(first, delta=1e-5)},
            {"within": 2.0, "step": 40, "epsilon": epsilon_of(plan, delta=1e-5)},
        ],
    }
    path = tmp_path / "spec.yaml"
    path.write_text(checked.spec.to_yaml())
    cli_plan.plan(path)
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("start 2 runs of dp_sgd, 40 steps (poisson)", f"(step {len(first)})"):
        assert part in shown
    assert f"{shown_epsilon(record['releases'][0]['epsilon'])} (step" in shown


def test_composed_has_no_price_where_nothing_has_a_plan(check, tmp_path, capsys):
    """It is not the start that forbids it, as under the modes that keep trials secret."""
    changes = {"search/space/start.epsilon": 2.0, "search/space/select.by": "near_private"}
    path = tmp_path / "spec.yaml"
    path.write_text(check({**changes, "privacy/trial_epsilon": 2.0}).spec.to_yaml())
    with pytest.raises(InfeasibleBudgetError, match="its one configuration has no plan"):
        cli_plan.plan(path)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    said = [line.partition(" none ")[2] for line in lines if " none " in line]
    assert said[0].startswith("no price: some trial has no plan")
    assert said[1] == said[2] == "not with a start: it is released before the search"


def test_the_filter_is_fitted_to_what_costs_something(check):
    changes = {"search/space/select.by": "margin", "privacy/study_epsilon": 4.0}
    chosen = choose_composition(check(changes))
    runs = [task.full_plan for task in check(changes).start_tasks]
    spent = sum(max(chosen.cost(plan).values()) for plan in runs)
    assert spent <= chosen.budget
    # Two runs of epsilon 2 cost no more than by any order: the share left is what one order gives.
    assert chosen == RenyiFilter.choose(runs, target_epsilon=4.0, delta=1e-5)


def test_a_spec_survives_its_file(check):
    spec = check({}).spec
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec
    assert "start" not in SweepSpec(**changed(SPEC, {"start": LEFT_OUT})).to_dict()
