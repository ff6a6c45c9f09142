"""A search on a part of the records is planned on that part, and its final run on the rest."""

import json

import pytest
from raw_specs import changed, mistakes
from split_studies import split_spec
from whole_studies import cli_here

from dpsweep.cli.plan_words import duration, plan_words, size
from dpsweep.planning.costs.composition import choose_composition, declare
from dpsweep.planning.forecast import Estimate, estimate
from dpsweep.planning.preflight import preflight
from dpsweep.planning.sample import draw_sample, final_figures
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.spec.study import SweepSpec

NOISY = {"data/validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.06}}
DECLARED = {"privacy/composition": "declared"}


@pytest.fixture
def raw(tmp_path):
    return split_spec(tmp_path)


def checked_of(raw, changes):
    return preflight(SweepSpec(**changed(raw, changes)))


def test_the_search_is_planned_on_the_part_and_the_final_run_on_the_rest(raw):
    checked = checked_of(raw, {})
    rest = checked.rest
    assert (checked.info.num_private, rest.info.num_private) == (324, 755)
    assert (checked.budget.target_epsilon, rest.budget.target_epsilon) == (1.0, 3.0)
    task = checked.sample[0]
    final = checked.final_of(9, task)
    (rate,) = {run.event.sample_rate for run in task.plan.runs}
    (final_rate,) = {run.event.sample_rate for run in final.plan.runs}
    assert rate == 32 / 324
    assert final_rate == 75 / 755 == pytest.approx(rate, rel=0.01)
    assert (final.trial, final.records, final.part) == (9, "rest", "rest")
    assert epsilon_of(final.full_plan, delta=1e-5) <= 3.0


def test_without_a_part_nothing_is_parted(raw):
    checked = checked_of(raw, {"search/on": None})
    assert checked.rest is None
    assert checked.info.num_private == 1079
    assert choose_composition(checked).searched_share is None


@pytest.mark.parametrize("composition", ["filter", "declared"])
@pytest.mark.parametrize("validation", [{}, NOISY], ids=["public", "noisy"])
def test_search_and_final_run_fit_each_into_the_whole_budget(raw, composition, validation):
    checked = checked_of(raw, {"privacy/composition": composition, **validation})
    chosen = choose_composition(checked)
    assert (chosen.choice, chosen.target_epsilon) == (composition, 3.0)
    account = CompositionAccount(chosen)
    task, number = checked.sample[0], 0
    while account.reserve(number, chosen.cost(task.full_plan)):
        number += 1
    assert number >= 2  # so many are declared
    final = checked.final_of(number, task)
    assert bool(final.validation_plan) == bool(validation)
    assert chosen.refusal(final.full_plan) == ""
    assert account.reserve(number, chosen.cost(final.full_plan))


def test_declared_trials_are_not_fewer_for_what_is_kept(raw):
    public, noisy = (
        declare(checked_of(raw, {**DECLARED, **more, "search/on": {"split": 0.3}}))
        for more in ({}, NOISY)
    )
    assert {c.part: c.count for c in public.classes} == {"private": 2 * 40}
    counts = {c.part: c.count for c in noisy.classes}
    assert counts["private"] == 2 * 40
    assert counts["validation"] == 2 * 5 + 6  # five reports each; of the final run one to spare


def test_scores_of_the_final_run_that_leave_nothing_are_refused(raw):
    """Five of them are within epsilon 3, and one to spare is not."""
    few = {"data/validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.01}}
    checked = checked_of(raw, {**few, "privacy/trial_epsilon": 3.0})
    said = mistakes(choose_composition, checked)
    assert any("the scores of the final run alone cost more" in line for line in said)


def test_plan_prices_it(raw):
    checked = checked_of(raw, {})
    sample = draw_sample(checked)
    summary = summarize_plan(checked, sample)
    assert summary.study_epsilon == 3.0
    assert summary.modes["select"] is summary.modes["public"] is None
    final = summary.final
    assert (final.searched, final.records, final.epsilon) == (324, 755, 3.0)
    assert final.expected_batch == (75.0, 75.0)
    assert summary.to_dict()["final_run"]["records"] == 755
    whole = checked_of(raw, {"search/on": None})
    assert final_figures(whole, draw_sample(whole).tasks) is None
    assert summarize_plan(whole).to_dict()["final_run"] is None


def test_the_forecast_counts_the_final_run(raw):
    checked = checked_of(raw, {})
    tasks = draw_sample(checked, 4).tasks
    figures = estimate(checked, tasks, num_trials=2)
    low, high = figures.trial_s
    least, most = (seconds * (2 + 755 / 324) for seconds in (low, high))
    assert least * (1 - 1e-9) <= figures.slot_s <= most * (1 + 1e-9)
    assert figures.slot_s * (755 / 324) / (2 + 755 / 324) == pytest.approx(figures.final_s)


@pytest.mark.parametrize("wall_s", [700.0, None])
def test_the_final_run_takes_its_time_however_few_trials_fit(raw, wall_s):
    checked = checked_of(raw, {"search/num_trials": 600})
    summary = summarize_plan(checked)
    fits = int(summary.composed.fits[1])
    assert 1 <= fits < 60
    figures = Estimate(
        trial_s=(1.0, 1.0), slot_s=700.0, slots=1, wall_s=wall_s, final_s=100.0,
        disk_bytes=6_600, fixed_bytes=600,
    )  # fmt: skip
    words = plan_words(checked, summary, figures.to_dict(), None)[2]
    assert f"Roughly {duration(100 + fits)} of training" in words
    assert f"roughly {size(600 + 10 * fits)} of disk" in words


def test_dpsweep_plan_says_what_is_run_where_and_what_is_claimed(raw, tmp_path):
    path = tmp_path / "split.yaml"
    path.write_text(SweepSpec(**raw).to_yaml())
    said = " ".join(cli_here("plan", path).stdout.split())
    assert (
        "on 324 declared private records; the best one is then run once, on the 755 others" in said
    )
    assert "the larger counts, not the sum" in said
    assert "within epsilon=3.0000 (rdp)" in said
    assert "not for a search on a part of the records" in said
    record = json.loads(cli_here("plan", path, "--json").stdout)
    assert record["final_run"]["noise_multiplier"][0] < record["noise_multiplier"][0]


REFUSED = [
    ({"search/space": {"method": "adamix", "features.name": "none"}}, "adamix has no rule by which"),
    ({"search/space/batch.expected": 400}, "400 is larger than the 324 declared private records"),
    ({"data/max_private": 1, "search/space/batch.expected": 1}, "parts the private records, and there is one"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_what_cannot_be_searched_on_a_part_is_refused(raw, changes, line):
    said = mistakes(preflight, SweepSpec(**changed(raw, changes)))
    assert any(line in each for each in said), said
