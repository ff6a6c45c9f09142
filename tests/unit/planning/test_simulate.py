"""A sweep under a simulated clock: what it counts, whom it admits, what it prints."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dpsweep.cli.output import Format
from dpsweep.cli.verbs.simulate import _simulated_caption, _simulated_row
from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.planning.simulation.curves import SyntheticCurves
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.planning.simulation.trials import Planner
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.schedulers.epsilon_halving import EpsilonHalving
from dpsweep.study.trial import Decision

SPEC = """\
name: simulated
data: {{dataset: digits, validation: {validation}}}
privacy: {{trial_epsilon: 2.0, accounting: {privacy}}}
search:
  sampler: {sampler}
  {num_trials}
  space:
    method: {method}
    optim.lr: {{loguniform: [0.1, 4], num: 4}}
    optim.momentum: {{uniform: [0, 0.95], num: 3}}
    train.max_steps: {{choice: [20, 40, 80]}}
resources: {{cpu: 1}}
tracking: {{uri: null}}
"""
ALL = ("fifo", "median", "epsilon_halving")


def checked(
    privacy="unaccounted",
    *,
    sampler="random",
    method="dp_sgd",
    validation="{visibility: public}",
    trials=30,
    sets=(),
):
    num_trials = "" if privacy.startswith("select") else f"num_trials: {trials}"
    text = SPEC.format(
        privacy=privacy,
        sampler=sampler,
        method=method,
        num_trials=num_trials,
        validation=validation,
    )
    return preflight(read_spec(text, overrides=list(sets)))


def made_up(plans):
    return SyntheticCurves(
        plans.space.parameters, seed=plans.spec.seed, maximize=plans.spec.search.mode == "max"
    )


def run(plans, policies=ALL, **options):
    return simulate(plans, made_up(plans), policies=policies, **options)


def without_seconds(runs):
    return [{**vars(outcome), "seconds": None} for outcome in runs]


@pytest.mark.parametrize(
    ("visibility", "but"),
    [("exact", ", without their exact scores, which have no epsilon"), ("public", "")],
)
def test_a_cost_says_that_exact_scores_have_none(visibility, but):
    plans = checked(validation=f"{{visibility: {visibility}}}", trials=2)
    says = f"everything that was run, composed{but}: an indication, no guarantee"
    (outcome,) = run(plans, ["fifo"])
    assert _simulated_row(outcome, plans, Format.JSON)["composed_epsilon_is"] == says
    assert f"epsilon: {says}; delta" in _simulated_caption(plans, [outcome])


def test_a_run_without_pruning_is_the_sum_of_its_plans():
    plans = checked()
    (fifo,) = run(plans, ["fifo"], slots=4)
    assert (fifo.started, fifo.finished, fifo.stopped, fifo.infeasible) == (30, 30, 0, 0)
    from dpsweep.search.suggestions import Suggestions

    suggestions = Suggestions(plans.spec, plans.space, path=None)
    tasks = [plans.admit(*suggestions.ask()) for _ in range(30)]
    assert fifo.steps == sum(len(task.plan) for task in tasks)
    runs = [run for task in tasks for run in task.plan.runs]
    exactly = epsilon_of(Plan(tuple(runs)), delta=1e-5, accountant="rdp")
    assert exactly <= fifo.composed_epsilon < 1.05 * exactly
    ends = [
        made_up(plans).scores(
            number, {"method": "dp_sgd", **values}, fractions=np.ones(1), epsilons=np.ones(1)
        )[1][0]
        for number, values in _draws(plans, 30)
    ]
    assert fifo.best_full == max(ends)
    assert fifo.regret == pytest.approx(max(ends) - fifo.full_score)
    assert fifo.full_score in ends
    assert fifo.end_reason == "all trials were started"


def _draws(plans, count):
    from dpsweep.search.suggestions import Suggestions

    suggestions = Suggestions(plans.spec, plans.space, path=None)
    return [suggestions.ask() for _ in range(count)]


def test_pruning_saves_steps_time_and_privacy():
    fifo, median, halving = run(checked(trials=60))
    for pruned in (median, halving):
        assert pruned.started == 60
        assert pruned.stopped > 10
        assert pruned.finished + pruned.stopped == 60
        assert pruned.steps < 0.8 * fifo.steps
        assert pruned.hours < fifo.hours
        assert pruned.composed_epsilon < fifo.composed_epsilon
        assert pruned.best_full == fifo.best_full  # the random sampler draws the same trials
        assert 0 <= pruned.regret < 0.1


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_same_seed_gives_the_same_table(sampler):
    plans = checked(sampler=sampler, trials=25)
    first, second = run(plans), run(checked(sampler=sampler, trials=25))
    assert without_seconds(first) == without_seconds(second)
    other = run(checked(sampler=sampler, trials=25, sets=["seed=1"]))
    assert without_seconds(first) != without_seconds(other)


def test_more_slots_take_less_simulated_time_for_the_same_trials():
    one, eight = (run(checked(), ["fifo"], slots=slots)[0] for slots in (1, 8))
    assert (one.started, one.steps, one.best) == (eight.started, eight.steps, eight.best)
    assert 4 < one.hours / eight.hours <= 8.0001


def test_no_trial_is_started_after_max_time_has_passed():
    """By the simulated clock, whatever time the simulation itself takes."""
    whole = run(checked(), ["fifo"], slots=1)[0]
    half = whole.hours * 3600 / 2
    (cut,) = run(checked(sets=[f"search.max_time={half}s"]), ["fifo"], slots=1)
    assert cut.end_reason == "search.max_time has passed"
    assert half <= cut.hours * 3600 < whole.hours * 3600
    assert 5 < cut.started < 25
    (long,) = run(checked(sets=["search.max_time=1h"]), ["fifo"], slots=1)
    assert long.hours == whole.hours


def test_a_composed_study_ends_where_nothing_fits_and_pruning_buys_trials():
    plans = checked("composed, study_epsilon: 5", trials=500)
    fifo, median, halving = run(plans)
    chosen = choose_composition(plans)
    for outcome in (fifo, median, halving):
        assert outcome.end_reason.startswith("the study's budget is used up")
        assert outcome.composed_epsilon <= 5
    assert fifo.composed_epsilon > 4.5
    costs = [chosen.cost(task.full_plan)["private"] for task in plans.sample]
    assert chosen.budget / max(costs) - 1 < fifo.started <= chosen.budget / min(costs)
    assert halving.started > 2 * fifo.started


def test_the_filter_never_holds_more_than_its_budget(monkeypatch):
    from dpsweep.privacy.composition.account import CompositionAccount

    seen = []
    reserve, settle = CompositionAccount.reserve, CompositionAccount.settle

    def watch(call):
        def wrapper(self, *args, **kwargs):
            answer = call(self, *args, **kwargs)
            seen.append(max(self.committed.values()) / self.composition.budget)
            return answer

        return wrapper

    monkeypatch.setattr(CompositionAccount, "reserve", watch(reserve))
    monkeypatch.setattr(CompositionAccount, "settle", watch(settle))
    sets = ["scheduler.type=epsilon_halving", "scheduler.variant=promote"]
    run(checked("composed, study_epsilon: 5", trials=200, sets=sets), ["epsilon_halving"])
    assert max(seen) <= 1
    assert max(seen) > 0.9


def test_promoted_trials_go_on_where_they_paused():
    sets = ["scheduler.type=epsilon_halving", "scheduler.variant=promote"]
    plans = checked(trials=60, sets=sets)
    (promoted,) = run(plans, ["epsilon_halving"])
    assert 1 <= promoted.finished < promoted.stopped
    assert promoted.finished + promoted.stopped == promoted.started == 60
    longest = sum(len(plans.admit(n, v).plan) for n, v in _draws(plans, 60))
    assert promoted.steps < longest / 2
    assert promoted.best is not None


def test_reports_are_where_a_trial_would_make_them():
    plans = checked(sets=["scheduler.type=epsilon_halving", "scheduler.rungs=[0.5, 1, 1.5]"])
    planner = Planner(plans, made_up(plans), np.array([4.0]))
    number, values = _draws(plans, 1)[0]
    planned, task = planner.plan(number, values), plans.admit(number, values)
    clock = EpsilonClock(task.plan, delta=1e-5)
    assert planned.positions[-1] == len(task.plan)
    assert planned.rungs[-1] == 3
    for rung, epsilon in enumerate((0.5, 1, 1.5), start=1):
        at = int(planned.positions[list(planned.rungs).index(rung)])
        assert clock.epsilon_after(at) >= epsilon > clock.epsilon_after(at - 1)
    every = np.diff(planned.positions[planned.on_grid])
    assert len(set(every[:-1].tolist())) <= 1
    assert planned.epsilons.tolist() == [clock.epsilon_after(int(p)) for p in planned.positions]
    assert len(planned.task.plan) == 0  # thousands of plans would not fit into memory


def test_a_policy_sees_reports_as_a_sweep_makes_them(monkeypatch):
    from dpsweep.schedulers.median import MedianPolicy

    reports = []
    judge = MedianPolicy.on_report

    def watch(self, report):
        verdict = judge(self, report)
        reports.append((report, verdict))
        return verdict

    monkeypatch.setattr(MedianPolicy, "on_report", watch)
    run(checked(trials=20), ["median"])
    last = {}
    for report, verdict in reports:
        before = last.get(report.trial)
        assert before is None or before[1].decision is Decision.CONTINUE
        if before is not None:
            assert report.step > before[0].step
            assert report.epsilon == before[0].next_epsilon > before[0].epsilon
            assert report.rung >= before[0].rung
            assert report.value >= before[0].value
        last[report.trial] = (report, verdict)
    for report, verdict in last.values():
        assert report.done or verdict.decision is Decision.STOP
        if report.done:
            assert report.epsilon == pytest.approx(2.0, rel=0.01)
            assert report.next_epsilon is None


@pytest.mark.slow
def test_noisy_scores_are_charged_and_may_be_what_runs_out():
    noisy = "{visibility: noisy, noise_std: 0.03}"
    sets = ["search.space.noise.noise_multiplier=60"]  # hardly any training cost
    plans = checked("composed, study_epsilon: 4", validation=noisy, trials=120, sets=sets)
    (fifo,) = run(plans, ["fifo"])
    chosen = choose_composition(plans)
    costs = {chosen.cost(task.full_plan)["validation"] for task in plans.sample}
    assert len(costs) == 1  # ten scores of each trial
    assert fifo.started == int(chosen.budget / costs.pop()) < 50
    (free,) = run(checked("composed, study_epsilon: 4", trials=120, sets=sets), ["fifo"])
    assert free.started > 2 * fifo.started


def test_an_unbounded_method_has_no_epsilon_and_never_reaches_a_rung():
    (halving,) = run(checked(method="non_private", trials=5), ["epsilon_halving"])
    assert halving.composed_epsilon == float("inf")
    assert (halving.finished, halving.stopped) == (5, 0)


def test_a_grid_is_tried_once():
    fifo, halving = run(checked(sampler="grid"), ["fifo", "epsilon_halving"], num_trials=1000)
    assert fifo.started == halving.started == 4 * 3 * 3
    assert fifo.end_reason == "every point of the grid was tried"


def test_infeasible_configurations_are_counted():
    sets = ["search.space.noise.noise_multiplier={choice: [0.2, 20]}"]
    (fifo,) = run(checked(trials=20, sets=sets), ["fifo"])
    assert fifo.started == 20
    assert fifo.infeasible > 3


def test_a_public_search_costs_its_final_run_alone():
    plans = checked("public", sets=["data.public.fraction=0.4", "search.space.batch.expected=64"])
    fifo, halving = run(plans, ["fifo", "epsilon_halving"])
    for outcome in (fifo, halving):
        assert outcome.composed_epsilon == pytest.approx(2.0, rel=0.01)
        assert outcome.composed_epsilon <= 2.0
    assert halving.stopped > 0  # rungs count as if the records were private


def test_a_selection_draws_its_number_of_trials_and_refuses_pruning():
    plans = checked("select, selection: {mean: 6}")
    counts = {
        run(checked("select, selection: {mean: 6}", sets=[f"seed={seed}"]), ["fifo"])[0].started
        for seed in range(6)
    }
    assert len(counts) > 2
    with pytest.raises(SpecError, match="epsilon_halving"):
        run(plans, ["epsilon_halving"])


def test_losses_are_minimised():
    sets = ["search.metric=validation/loss", "search.mode=min"]
    fifo, halving = run(checked(trials=40, sets=sets), ["fifo", "epsilon_halving"])
    assert fifo.best_full == min(fifo.best_full, fifo.full_score)
    assert fifo.regret == pytest.approx(fifo.full_score - fifo.best_full)
    assert halving.stopped > 10


def test_a_simulation_of_nothing_is_refused():
    with pytest.raises(BadInputError, match="no policy"):
        run(checked(), [])


# --- The command ----------------------------------------------------------------------------


def command(tmp_path, *options, text=None):
    path = tmp_path / "sweep.yaml"
    text = text or SPEC.format(
        privacy="composed, study_epsilon: 4",
        sampler="random",
        method="dp_sgd",
        num_trials="num_trials: 40",
        validation="{visibility: public}",
    )
    path.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "dpsweep", "simulate", str(path), *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )


@pytest.mark.slow
def test_the_command_prints_the_same_twice_and_only_data(tmp_path):
    first, second = command(tmp_path), command(tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "fifo: " in first.stderr
    for word in ("fifo", "median", "epsilon_halving", "1e-05", "example", "composed", "rdp"):
        assert word in first.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["sweep.yaml"]


@pytest.mark.slow
def test_every_row_carries_the_terms_of_its_epsilon(tmp_path):
    options = ["--trials", "3", "--policies", "fifo", "--seed", "3"]
    done = command(tmp_path, "-f", "json", *options)
    (row,) = json.loads(done.stdout)
    assert row["started"] == 3
    assert row["seed"] == 3
    assert (row["delta"], row["accounting"], row["sampling"]) == (1e-5, "composed", "poisson")
    assert (row["privacy_unit"], row["accountant"]) == ("example", "rdp")
    assert row["neighboring_relation"] == "add_or_remove_one"
    csv = command(tmp_path, "-f", "csv", *options)
    assert csv.stdout.splitlines()[0].startswith("policy,started,finished")
    assert f"{row['regret']}" in csv.stdout


@pytest.mark.slow
def test_recorded_curves_replace_the_made_up_ones(tmp_path):
    lines = [
        {"hparams": {"optim.lr": lr}, "curve": [[0.1, score / 2], [1, score]]}
        for lr, score in ((0.1, 0.3), (1.0, 0.9), (4.0, 0.5))
    ]
    (tmp_path / "curves.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ["--curves", "curves.jsonl", "-f", "json", "--policies", "fifo"]
    path = tmp_path / "curves.jsonl"
    done = command(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["best"] == 0.9
    path.write_text("{oops\n")
    bad = command(tmp_path, *options)
    assert bad.returncode == 2
    assert "curves.jsonl:1: not JSON" in bad.stderr
    assert bad.stdout == ""


def test_an_unknown_policy_is_named_with_the_known_ones(tmp_path):
    done = command(tmp_path, "--policies", "fifo,medain")
    assert done.returncode == 2
    assert "medain" in done.stderr
    assert "median" in done.stderr


EPISODES = """\
name: episodes
data:
  dataset: digits
  validation: {fraction: 0.2, visibility: public}
  test: {fraction: 0.2, visibility: public}
episodes: {ways: 3, shots: 5, queries: 5, number: 4}
privacy: {accounting: unaccounted, trial_epsilon: 8, delta: 1.0e-3}
search:
  space:
    method: dp_sgd
    model.name: linear
    optim.lr: 0.5
    batch.sample_rate: 1.0
    train.max_steps: 5
"""


def test_what_allows_no_other_scheduler_is_simulated_under_fifo(tmp_path):
    done = command(tmp_path, "-f", "json", text=EPISODES)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["policy"], row["started"]) == ("fifo", 4)


def test_a_rung_that_a_first_step_passes_judges_no_simulated_trial(monkeypatch):
    """Targets of .5 to 4 under a rung of .5: the large ones pass it at once, and are let go on."""
    space = [
        "search.space.noise.target_epsilon={choice: [0.6, 4]}",
        "search.space.batch.expected=1024",
        "search.space.train.max_steps=20",
        "privacy.trial_epsilon=4",
        "scheduler={type: epsilon_halving, rungs: [0.5]}",
    ]
    plans = checked(trials=20, sets=space)
    seen = []
    judge = EpsilonHalving.on_report

    def spy(policy, report):
        verdict = judge(policy, report)
        seen.append((report, verdict))
        return verdict

    monkeypatch.setattr(EpsilonHalving, "on_report", spy)
    simulate(plans, made_up(plans), policies=["epsilon_halving"], slots=1)
    at_once = [(r, v) for r, v in seen if r.step == 1]
    assert len(at_once) >= 5
    assert all(r.skipped == 1 and v.decision is Decision.CONTINUE for r, v in at_once)
    assert all(v.value is None for _, v in at_once)
    assert any(v.value is not None for r, v in seen if r.skipped == 0)
