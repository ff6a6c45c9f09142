"""What ``dpsweep plan`` says: four prices of a search side by side, time and disk."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpsweep.cli.app import app
from dpsweep.cli.plan_words import plan_words
from dpsweep.cli.verbs.plan import _caption, _mode_rows
from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.planning import forecast as forecasting
from dpsweep.planning.costs.composition import choose_composition, composed_epsilon
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.forecast import estimate, expected_batch, local_slots
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.planning.sample import draw_sample
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import Plan
from dpsweep.privacy.selection.curves import envelope, selection_epsilon
from dpsweep.privacy.selection.number import Selection

SPEC = """\
name: planned
data: {{dataset: digits, validation: {validation}}}
privacy: {{trial_epsilon: {trial_epsilon}, accounting: {privacy}}}
search:
  sampler: {sampler}
  {num_trials}
  space:
    method: {method}
    model.name: linear
    optim.lr: {{loguniform: [0.1, 4], num: 3}}
    train.max_steps: {{choice: [20, 40, 80]}}
resources: {{cpu: 1}}
tracking: {{uri: null}}
"""


def checked(
    privacy="unaccounted",
    *,
    sampler="random",
    trial_epsilon=2.0,
    method="dp_sgd",
    num_trials="num_trials: 6",
    validation="{visibility: public}",
    sets=(),
):
    text = SPEC.format(
        privacy=privacy,
        sampler=sampler,
        trial_epsilon=trial_epsilon,
        method=method,
        num_trials="" if privacy.startswith("select") else num_trials,
        validation=validation,
    )
    return preflight(read_spec(text, overrides=list(sets)))


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_what_is_hardly_meant_is_noted_first(verb, tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.format(
        privacy="unaccounted", sampler="random", trial_epsilon=2.0, method="sparse",
        num_trials="num_trials: 1", validation="{visibility: public}",
    ))  # fmt: skip
    sets = [f"storage.path={tmp_path / 'studies'}", "search.space.sparse.train=cls",
            "search.space.model.name=tanh_cnn"]  # fmt: skip
    options = [word for item in sets for word in ("--set", item)]
    app([verb, str(path), *options], standalone_mode=False)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("note: without model.checkpoint the weights of tanh_cnn that sparse.")


def test_the_figures_of_a_trial_are_those_of_the_space():
    summary = summarize_plan(checked())
    assert summary.steps == (20, 80)
    low, high = summary.epsilon
    assert 1.99 < low <= high <= 2.0
    assert summary.noise_multiplier[0] < summary.noise_multiplier[1]
    assert (summary.infeasible, summary.is_exact, summary.terms.sampling) == (0, False, "poisson")


def test_the_composed_indication_is_the_composition_of_all_trials():
    plans = checked()
    tasks = sorted(plans.sample[:4], key=lambda task: -epsilon_of(task.full_plan, delta=1e-5))
    runs = [run for index in range(6) for run in tasks[index % 4].full_plan.runs]
    whole = epsilon_of(Plan(tuple(runs)), delta=1e-5, accountant="rdp")
    assert composed_epsilon(plans, tasks, 6) == whole
    assert composed_epsilon(plans, tasks[::-1], 6) == whole  # the dearest count twice


@pytest.mark.slow
def test_infeasible_configurations_are_counted_with_their_reason():
    summary = summarize_plan(
        checked(sets=["search.space.noise.noise_multiplier={choice: [0.2, 20]}"])
    )
    assert 0.3 < summary.infeasible < 0.7
    assert "first step already costs" in summary.reasons[0]


@pytest.mark.slow
def test_the_share_of_a_grid_is_exact():
    sets = ["search.space.noise.noise_multiplier={choice: [0.2, 20, 30]}"]
    summary = summarize_plan(checked(sampler="grid", sets=sets))
    assert (summary.num_sampled, summary.is_exact) == (27, True)
    assert summary.infeasible == pytest.approx(9 / 27)


INFEASIBLE = "search.space.noise.noise_multiplier={choice: [0.2, 0.3, 0.4, 20]}"
NOT_MEASURED = {"seconds_per_trial": None, "because": "-"}


@pytest.mark.parametrize("privacy", ["unaccounted", "composed, study_epsilon: 9"])
def test_points_of_a_grid_without_a_plan_are_no_trials(privacy):
    sets = [INFEASIBLE, "search.space.train.max_steps=20", "search.space.optim.lr=1"]
    plans = checked(privacy, sampler="grid", sets=sets)
    summary = summarize_plan(plans)
    (task,) = draw_sample(plans).tasks
    assert (summary.num_trials, summary.num_sampled, summary.infeasible) == (1, 4, 0.75)
    alone = epsilon_of(task.full_plan, delta=1e-5, accountant="rdp")
    assert summary.composed_epsilon == pytest.approx(alone, rel=1e-12)
    words = " ".join(plan_words(plans, summary, NOT_MEASURED, None))
    assert "'planned': 1 of 4 configurations of the grid of dp_sgd, compared" in words
    assert "3 of the grid's 4 points have no plan." in words
    if privacy == "unaccounted":
        assert summary.modes["composed"].assumes == "1 trial, all run to the end"
    else:
        assert "It fits into the study's budget, even if it runs to its end." in words
        declared = checked(f"{privacy}, composition: declared", sampler="grid", sets=sets)
        words = plan_words(declared, summarize_plan(declared), NOT_MEASURED, None)
        assert "It fits into the study's budget, even if it runs to its end." in words


@pytest.mark.parametrize(("wanted", "number"), [(2, 2), (30, 9)])
def test_no_more_trials_than_wanted_are_counted_of_a_grid(wanted, number):
    plans = checked(sampler="grid", num_trials=f"num_trials: {wanted}", sets=[INFEASIBLE])
    summary = summarize_plan(plans)
    assert summary.num_trials == number
    words = " ".join(plan_words(plans, summary, NOT_MEASURED, None))
    assert f"{number} of 36 configurations of the grid" in words
    assert "27 of the grid's 36 points have no plan" in words


TOO_LITTLE = [0.2 + n / 1000 for n in range(40)]  # noise, of which one step costs too much


def test_a_space_without_a_plan_is_refused():
    space = checked(sets=[f"search.space.noise.noise_multiplier={{choice: {TOO_LITTLE}}}"])
    with pytest.raises(InfeasibleBudgetError, match="space: none of 200") as caught:
        space.check_some_plan()
    for term in ("epsilon=", "1e-05", "example", "add_or_remove_one", "rdp", "unaccounted"):
        assert term in caught.value.because


def test_one_point_of_a_grid_is_enough(monkeypatch):
    monkeypatch.setattr("dpsweep.planning.preflight.MAX_INFEASIBLE_IN_A_ROW", 3)
    noise = f"search.space.noise.noise_multiplier={{choice: {[*TOO_LITTLE, 20]}}}"
    with pytest.raises(InfeasibleBudgetError, match="none of 3 "):
        checked(sets=[noise]).check_some_plan()
    checked(sampler="grid", sets=[noise]).check_some_plan()


def test_a_public_search_needs_a_plan_on_fewer_records():
    sets = ["data.public.fraction=0.1", "search.space.noise.noise_multiplier=1.3",
            "search.space.batch.expected=64"]  # fmt: skip
    checked(sets=sets).check_some_plan()
    with pytest.raises(InfeasibleBudgetError, match="none of 200"):
        checked("public", sets=sets).check_some_plan()


def test_a_large_grid_is_sampled_evenly(monkeypatch):
    monkeypatch.setattr("dpsweep.planning.sample.MAX_GRID_PLANNED", 5)
    sample = draw_sample(checked(sampler="grid"))
    assert (sample.num_drawn, sample.is_exact) == (5, False)
    assert len({task.hparams["optim.lr"] for task in sample.tasks}) > 1


def test_all_modes_stand_side_by_side():
    plans = checked()
    summary = summarize_plan(plans)
    modes = summary.modes
    assert list(modes) == ["composed", "select", "public", "unaccounted"]
    assert modes["unaccounted"] is None
    assert summary.indication_is == "(rdp): an indication, no guarantee"
    assert summary.study_epsilon is None
    curve = envelope([task.full_plan for task in plans.sample])
    assert modes["select"].epsilon == selection_epsilon(curve, Selection(10, 1.0), delta=1e-5)
    assert modes["composed"].epsilon == summary.composed_epsilon > modes["select"].epsilon
    assert modes["public"].epsilon == max(task.planned_epsilon for task in plans.sample) <= 2.0


def test_no_mode_has_a_price_for_exact_scores_of_private_records():
    """Each of them refuses such a spec; a finite epsilon for such scores would not be true."""
    plans = checked(validation="{visibility: exact}")
    summary = summarize_plan(plans)
    assert set(summary.modes.values()) == {None}
    assert (summary.selection, summary.study_epsilon) == (None, None)
    assert set(summary.to_dict()["study_epsilon_by_mode"].values()) == {None}
    rows = _mode_rows(summary)
    assert {row["epsilon"] for row in rows} == {"none"}
    reasons = {row["released"] for row in rows if row["mode"] != "unaccounted"}
    assert reasons == {"not with exact scores of private records: noisy or public"}
    exact = "(rdp), without their exact scores, which have no epsilon: an indication, no guarantee"
    assert exact in _caption(summary)
    assert summary.to_dict()["composed_epsilon_indication_is"] == exact
    assert exact in " ".join(
        plan_words(plans, summary, {"seconds_per_trial": None, "because": "-"}, None)
    )


def test_a_public_search_has_no_price_where_scores_are_noisy():
    noisy = "{visibility: noisy, noise_std: 0.003}"
    summary = summarize_plan(checked(validation=noisy, trial_epsilon=20))
    assert summary.modes["public"] is None
    rows = {row["mode"]: row for row in _mode_rows(summary)}
    assert rows["public"]["released"] == "not with noisy scores, which are of private records"
    assert rows["composed"]["epsilon"] != "none" != rows["select"]["epsilon"]


def test_a_composed_study_shows_the_filter_it_will_have():
    plans = checked("composed, study_epsilon: 6")
    summary = summarize_plan(plans)
    chosen = choose_composition(plans)
    figures = summary.composed
    assert (figures.order, figures.budget) == (chosen.order, chosen.budget)
    low, middle, high = figures.fits
    assert low >= middle >= high >= 1
    dearest = max(chosen.cost(task.full_plan)["private"] for task in plans.sample)
    assert high * dearest <= chosen.budget
    assert summary.study_epsilon == 6
    assert summary.modes["composed"].epsilon == 6
    assert summary.composed_epsilon > 6 or summary.num_trials * dearest <= chosen.budget


def test_a_selection_shows_its_price_and_the_trial_epsilon_that_fits():
    dear = summarize_plan(checked("select, study_epsilon: 2")).selection
    assert dear.fits is False
    assert summarize_plan(checked("select")).num_trials == 10
    assert dear.probability_of_one == pytest.approx(0.1)
    assert dear.base_epsilon == pytest.approx(2.0, rel=0.01)
    found = dear.trial_epsilon_that_fits
    assert 0.5 < found < 2
    cheap = checked("select, study_epsilon: 2", trial_epsilon=found)
    again = summarize_plan(cheap).selection
    assert again.fits is True
    assert again.epsilon > 1.9  # not needlessly small
    assert choose_selection(cheap).epsilon == again.epsilon == summarize_plan(cheap).study_epsilon


def test_a_selection_without_a_cap_fits_nothing_in_particular():
    figures = summarize_plan(checked("select, selection: {mean: 30, shape: 0}")).selection
    assert (figures.mean, figures.shape) == (30, 0)
    assert (figures.cap, figures.fits, figures.trial_epsilon_that_fits) == (None, None, None)


def test_noisy_scores_are_part_of_the_price():
    noisy = "{visibility: noisy, noise_std: 0.003}"
    with_noise = summarize_plan(checked(validation=noisy, trial_epsilon=20))
    without = summarize_plan(checked(trial_epsilon=20))
    assert with_noise.modes["composed"].epsilon >= without.modes["composed"].epsilon
    dear = summarize_plan(checked(validation="{visibility: noisy, noise_std: 0.0005}"))
    assert dear.infeasible == 1
    assert dear.modes["composed"] is None


def test_a_space_without_guarantees_has_no_price():
    summary = summarize_plan(checked(method="{choice: [dp_sgd, non_private]}"))
    assert set(summary.modes.values()) == {None}
    assert summary.composed_epsilon is None
    assert summary.selection is None


def test_every_epsilon_of_the_record_has_its_terms():
    record = summarize_plan(checked("composed, study_epsilon: 6")).to_dict()
    terms = {
        "delta",
        "privacy_unit",
        "neighboring_relation",
        "sampling",
        "accountant",
        "accounting",
    }
    assert terms <= set(record)
    for mode in ("composed", "select", "public"):
        entry = record["study_epsilon_by_mode"][mode]
        assert terms <= set(entry)
        assert entry["accounting"] == mode
        assert entry["chosen"] == (mode == "composed")
    assert record["study_epsilon_by_mode"]["unaccounted"] is None
    assert terms <= set(record["filter"])
    assert terms <= set(record["selection"])
    json.dumps(record, allow_nan=False)


def test_both_objectives_are_named():
    plans = checked(sampler="tpe", sets=["search.objectives=[validation/accuracy, dp/epsilon]"])
    words = plan_words(plans, summarize_plan(plans), NOT_MEASURED, None)[0]
    assert "of dp_sgd, compared by validation/accuracy and dp/epsilon; each runs" in words


def test_planning_is_repeatable():
    assert summarize_plan(checked()).to_dict() == summarize_plan(checked()).to_dict()


def test_planning_loads_neither_torch_nor_ray():
    code = (
        "import sys, dpsweep.planning.summary, dpsweep.planning.forecast, dpsweep.cli.verbs.plan; "
        "print([m for m in ('torch', 'ray', 'mlflow', 'optuna') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


# --- Time and disk --------------------------------------------------------------------------


def test_time_and_disk_are_measured_without_opening_the_data(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the data was opened")

    plans = checked(sets=["cluster.num_cpus=2"])
    sample = draw_sample(plans)
    monkeypatch.setattr("dpsweep.trainables.data.sources.open_source", refuse)
    monkeypatch.setattr("dpsweep.trainables.data.class_split.open_source", refuse)
    found = estimate(plans, sample.tasks, num_trials=6)
    assert found.reason == ""
    assert 0 < found.trial_s[0] <= found.trial_s[1] < 60
    assert found.slots == min(2, len(os.sched_getaffinity(0))) or found.slots == 2
    assert found.wall_s >= found.trial_s[1]
    assert found.slot_s <= plans.num_trials * found.trial_s[1] * 1.001
    assert 1 <= found.measured <= 3
    assert 64 * 10 * 4 < found.checkpoint_bytes < 50_000  # 8x8 pixels, 10 classes, and momentum
    assert found.disk_bytes > 2 * plans.num_trials * found.checkpoint_bytes


def test_a_trial_less_takes_no_disk_of_what_a_study_has_beside_them():
    """Of a budget for 1 of 10,000 trials the whole study had a ten-thousandth of its disk."""
    plans = checked("composed, study_epsilon: 3", sets=["tracking.uri=sqlite:///mlflow.db"])
    tasks, summary = draw_sample(plans).tasks, summarize_plan(plans)
    fits = int(summary.composed.fits[1])
    assert 1 <= fits < 6
    disks = set()
    for number in (fits, 6, 10_000):
        wanted = dataclasses.replace(summary, num_trials=number)
        figures = estimate(plans, tasks, num_trials=number).to_dict()
        assert 6_000_000 < figures["disk_bytes_beside_trials"] < figures["disk_bytes"]
        disks.add(plan_words(plans, wanted, figures, None)[2].rpartition("; roughly ")[2])
    assert len(disks) == 1
    assert " MB of disk." in disks.pop()


def test_longer_trials_take_longer():
    plans = checked()
    tasks = draw_sample(plans).tasks
    short = [task for task in tasks if len(task.plan) == 20]
    long = [task for task in tasks if len(task.plan) == 80]
    measured = estimate(plans, short + long, num_trials=6)
    fixed = 0.2 + plans.spec.report.points * 0.06  # to start a trial, and to report
    assert measured.trial_s[1] - fixed > 1.5 * (measured.trial_s[0] - fixed)


def test_a_tiny_trial_takes_what_starting_and_reporting_it_takes():
    """Trials of a few milliseconds of training were forecast as under 0.1 s; they take a second."""
    plans = checked()
    tasks = draw_sample(plans).tasks
    short = [task for task in tasks if len(task.plan) == 20]
    measured = estimate(plans, short, num_trials=6)
    assert measured.trial_s[0] > 0.2 + plans.spec.report.points * 0.06
    assert measured.slot_s > 6 * (0.2 + plans.spec.report.points * 0.06)


def test_what_cannot_be_measured_is_said(monkeypatch):
    plans = checked()
    tasks = draw_sample(plans).tasks
    assert estimate(plans, [], num_trials=6).reason == "no feasible configuration to measure"
    late = estimate(plans, tasks, num_trials=6, limit_s=-1)
    assert "took over" in late.reason
    assert late.to_dict()["slot_seconds"] is None

    def fail(*args, **kwargs):
        raise ValueError("not on made-up records")

    monkeypatch.setattr("dpsweep.trainables.execution.measure.measure", fail)
    assert "not on made-up records" in estimate(plans, tasks, num_trials=6).reason


def test_a_slow_step_is_scaled_up_from_a_small_batch():
    import time

    from dpsweep.trainables.execution.measure import measure
    from dpsweep.trainables.methods.dp_sgd import DPSGD

    sizes = []

    class Slow(DPSGD):
        def _gradient(self, position):
            rows = super()._gradient(position)
            sizes.append(self._events[position].sample_rate * len(self._labels))
            time.sleep(sizes[-1] / 1000)
            return rows

    plans = checked(sets=["search.space.batch.expected=512", "search.space.train.max_steps=20"])
    task = plans.sample[0]
    assert expected_batch(task, plans.info.num_private) == pytest.approx(512)
    options = {"threads": 1, "device": "cpu"}
    whole = measure(
        Slow, task.hparams, task.plan, plans.info, deadline=time.monotonic() + 60, **options
    )
    assert max(sizes) == pytest.approx(512)
    sizes.clear()
    scaled = measure(
        Slow, task.hparams, task.plan, plans.info, deadline=time.monotonic() + 0.5, **options
    )
    assert max(sizes) < 100
    assert scaled.step_s == pytest.approx(whole.step_s, rel=0.8)
    assert whole.step_s > 0.5


def test_slots_are_those_of_this_machine(monkeypatch):
    plans = checked(sets=["cluster.num_cpus=8", "resources.cpu=2"])
    assert local_slots(plans) == 4
    spec = plans.spec.model_copy(
        update={"search": plans.spec.search.model_copy(update={"max_concurrent": 3})}
    )
    assert local_slots(dataclasses.replace(plans, spec=spec)) == 3
    away = plans.spec.model_copy(
        update={"cluster": plans.spec.cluster.model_copy(update={"target": "ray"})}
    )
    assert local_slots(dataclasses.replace(plans, spec=away)) is None


def test_one_of_each_kind_of_model_is_measured():
    plans = checked(sets=["search.space.model.name={choice: [linear, tanh_cnn]}"])
    tasks = draw_sample(plans).tasks
    chosen = forecasting._chosen(tasks, plans.info.num_private)
    assert len(chosen) == forecasting.MEASURED
    assert {task.hparams["model.name"] for task in chosen} == {"linear", "tanh_cnn"}


# --- The command ----------------------------------------------------------------------------


def run_plan(tmp_path, text, *options):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "dpsweep", "plan", str(path), *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )


def test_the_command_prints_one_record_or_two_tables(tmp_path):
    text = SPEC.format(
        privacy="select, study_epsilon: 3",
        sampler="random",
        trial_epsilon=2.0,
        method="dp_sgd",
        num_trials="",
        validation="{visibility: public}",
    )
    printed = run_plan(tmp_path, text, "--json")
    assert printed.returncode == 0, printed.stderr
    record = json.loads(printed.stdout)
    assert record["accounting"] == "select"
    assert record["study_epsilon_by_mode"]["select"]["chosen"] is True
    assert record["selection"]["fits"] is False
    assert record["estimate"]["seconds_per_trial"][0] > 0
    table = run_plan(tmp_path, text)
    assert table.returncode == 0, table.stderr
    joined = " ".join(table.stdout.split())
    assert "does not fit study_epsilon=3" in joined
    assert "* select" in joined
    for term in ("1e-05", "example", "add_or_remove_one", "poisson", "rdp", "select"):
        assert term in joined
    assert list(tmp_path.iterdir()) == [Path(tmp_path / "sweep.yaml")]  # nothing was started
