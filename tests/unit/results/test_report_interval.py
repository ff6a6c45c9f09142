"""The 95% interval of a report, and that an episode is a repetition without being asked for."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from dpsweep.cli.verbs.results.report import caption, legend, table
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.results.choosing import choose
from dpsweep.results.report import ReportedStudy, build_report
from dpsweep.results.tables.spread import half_width
from dpsweep.results.trial import TrialResult
from dpsweep.spec.episodes import EPISODE
from dpsweep.study.trial import TrialState

SPACE = {EPISODE: [0, 1, 2], "method": ["dp_sgd"], "optim.lr": [0.1, 0.5]}
#: The single best trial has lr 0.5, and the best mean lr 0.1.
VALUES = {0.1: (0.7, 0.8, 0.75), 0.5: (0.95, 0.5, 0.6)}


def trial(number, config, value):
    statement = PrivacyStatement(
        epsilon=1.0, delta=1e-2, accountant="rdp", neighboring_relation="add_or_remove_one",
        sampling="full_batch", privacy_unit="example of one episode", accounting="unaccounted",
        released="this trial alone",
    )  # fmt: skip
    return TrialResult(
        trial_id=number, state=TrialState.FINISHED, config={"method": "dp_sgd", **config},
        metric="validation/accuracy", value=value, step=1, steps_run=1, num_steps=1, reason="",
        metrics={"validation/accuracy": value, "test/accuracy": value - 0.1}, statement=statement,
        run_id=None, model_uri=None, curve=[], study_statement=None,
    )  # fmt: skip


def study(name="few", values=VALUES):
    points = [(e, lr) for e in range(3) for lr in values if e < len(values[lr])]
    trials = [
        trial(number, {EPISODE: e, "optim.lr": lr}, values[lr][e])
        for number, (e, lr) in enumerate(points)
    ]
    return ReportedStudy(name, trials, SPACE)


def test_the_half_width_is_that_of_student():
    values = [0.2, 0.9, 0.4, 0.55]
    low, high = stats.t.interval(0.95, 3, statistics.fmean(values), stats.sem(values))
    assert half_width(values) == pytest.approx((high - low) / 2)
    assert half_width([0.5]) is None
    assert half_width([0.5, 0.5]) == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [2, 5, 60])
def test_the_interval_holds_the_mean_in_95_of_100_cases(count):
    """With normal quantiles 2 values would reach 70%, 5 values 88%."""
    draws = np.random.default_rng(count).normal(0.6, 0.1, (4000, count))
    covers = [abs(row.mean() - 0.6) <= half_width(row.tolist()) for row in draws]
    assert np.mean(covers) == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


def test_an_episode_is_a_repetition_of_its_configuration():
    (row,) = build_report([study()])
    assert (row["optim.lr"], row["repetitions"], row["configurations"]) == (0.1, 3, 2)
    assert EPISODE not in row
    assert row["validation/accuracy"] == pytest.approx(0.75)
    assert row["validation/accuracy 95%"] == pytest.approx(half_width([0.7, 0.8, 0.75]))
    assert row["test/accuracy 95%"] == pytest.approx(half_width([0.6, 0.7, 0.65]))
    assert row["privacy_unit"] == "example of one episode"


def test_other_repetitions_do_not_make_it_a_configuration():
    space = {**SPACE, "train.repeat": [0]}
    again = [trial(t.trial_id, {**t.config, "train.repeat": 0}, t.value) for t in study().trials]
    (row,) = build_report([ReportedStudy("few", again, space)], over=["train.repeat"])
    assert (row["optim.lr"], row["repetitions"]) == (0.1, 3)


def test_rows_by_episode_are_given_where_they_are_asked_for():
    rows = build_report([study()], by=[EPISODE])
    assert [row[EPISODE] for row in rows] == [0, 1, 2]
    assert [row["optim.lr"] for row in rows] == [0.5, 0.1, 0.1]
    assert all(row["validation/accuracy 95%"] is None for row in rows)
    assert legend(rows) == ""


def test_studies_are_compared_episode_by_episode():
    better = study("more", {0.1: (0.8, 0.9, 0.85)})
    rows = build_report([study(), better], is_paired=True)
    assert rows[1]["signs"] == "+++"
    assert rows[1]["difference (test/accuracy)"] == pytest.approx(0.1)


def test_missing_episodes_are_said():
    (row,) = build_report([study(values={0.1: (0.7, 0.8)})])
    assert (row["repetitions"], row["missing"]) == (2, 1)


def test_the_table_names_interval_and_unit():
    rows = build_report([study()])
    (shown,) = table(rows)
    assert shown["validation/accuracy"] == "0.7500 ±0.0500"
    assert shown["validation/accuracy 95%"] == f"±{half_width([0.7, 0.8, 0.75]):.4f}"
    assert "unit=example of one episode" in caption(rows)
    assert "95%: half width" in legend(rows)


def test_the_best_of_episodes_is_a_configuration():
    choice = choose(study().trials, is_maximized=True, has_episodes=True)
    runs = [t for t in study().trials if t.trial_id in choice.runs]
    assert {t.config["optim.lr"] for t in runs} == {choice.best.config["optim.lr"]}
    assert [t.config[EPISODE] for t in runs] == [0, 1, 2]
    assert choice.score == pytest.approx(statistics.fmean(t.value for t in runs))
    assert choice.best.trial_id == choice.runs[0]
