"""Reports: which configuration a cell stands for, its spread, its epsilon, differences, boost."""

import dataclasses
import json
import math
import statistics

import pytest
from typer.testing import CliRunner
from whole_studies import make_spec

from dpsweep.cli.app import app
from dpsweep.cli.verbs.results.report import (
    TERMS,
    caption,
    differing_terms,
    legend,
    short_names,
    table,
)
from dpsweep.foundation.errors import BadInputError, NothingWithinBudgetError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.results.report import ReportedStudy, build_report
from dpsweep.results.study import load_sweep
from dpsweep.results.tables.spread import costs_of
from dpsweep.results.trial import TrialResult
from dpsweep.running import entries
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Study
from dpsweep.study.trial import TrialReport, TrialState

SPACE = {
    "method": ["adamix"],
    "train.num_private": [500, 2000],
    "optim.lr": [1.0, 4.0],
    "public.draw": [0, 1],
}
BY, OVER = ("train.num_private",), ("public.draw",)


def trial(number, config, value, *, test=None, epsilon=1.0, state=TrialState.FINISHED, **changes):
    metrics = {"validation/accuracy": value}
    if test is not None:
        metrics["test/accuracy"] = test
    statement = PrivacyStatement(
        epsilon=epsilon, delta=1e-5, accountant="pld", neighboring_relation="add_or_remove_one",
        sampling="full_batch", privacy_unit="example", accounting="unaccounted",
        released="this trial alone; the cost of the search is not included",
    )  # fmt: skip
    values = dict(
        trial_id=number, state=state, config={"method": "adamix", **config},
        metric="validation/accuracy", value=value, step=5, steps_run=10, num_steps=10, reason="",
        metrics=metrics, statement=statement, run_id=None, model_uri=None, curve=[],
        study_statement=None,
    )  # fmt: skip
    return TrialResult(**{**values, **changes})


def test_runs_of_a_start_are_a_row_of_their_own_and_no_configuration():
    """Their numbers repeat them; the best of the study is chosen among what came after."""
    space = {"method": ["active_learning"], "select.by": ["random", "margin"], "labels.max": [5, 9]}
    runs = [trial(run, {"method": "dp_sgd"}, 0.99, test=0.7 + run / 10) for run in (0, 1)]
    later = [
        trial(2 + number, {"method": "active_learning", "select.by": by, "labels.max": most}, 0.8)
        for number, (by, most) in enumerate([("random", 5), ("margin", 5), ("margin", 9)])
    ]
    given = ReportedStudy("labels", [*runs, *later], space, starts=range(2))
    first, *rows = build_report([given], by=["select.by", "labels.max"])
    assert (first["select.by"], first["labels.max"]) == ("(the start)", None)
    assert (first["method"], first["repetitions"]) == ("dp_sgd", 2)
    assert first["test/accuracy"] == pytest.approx(0.75)
    assert [row["select.by"] for row in rows] == ["margin", "margin", "random"]
    assert [row["method"] for row in build_report([given], by=["method"])] == [
        "(the start)",
        "active_learning",
    ]
    start, best = build_report([given])
    assert (start["method"], start["configurations"]) == ("dp_sgd", 1)
    assert best["method"] == "active_learning"
    assert "method" not in build_report([ReportedStudy("labels", later, space)])[0]
    assert (best["validation/accuracy"], best["configurations"]) == (0.8, 3)


def study(name, table, *, space=SPACE, start=0, is_maximized=True, **changes):
    """Return a study from {(size, lr, draw): (value, test)}."""
    trials = [
        trial(
            start + number,
            {"train.num_private": size, "optim.lr": lr, "public.draw": draw},
            value, test=test, **changes,
        )
        for number, ((size, lr, draw), (value, test)) in enumerate(table.items())
    ]  # fmt: skip
    return ReportedStudy(name, trials, space, is_maximized)


FULL = {
    (500, 1.0, 0): (0.60, 0.58), (500, 1.0, 1): (0.70, 0.66),
    (500, 4.0, 0): (0.80, 0.50), (500, 4.0, 1): (0.40, 0.52),
    (2000, 1.0, 0): (0.70, 0.70), (2000, 1.0, 1): (0.70, 0.70),
    (2000, 4.0, 0): (0.71, 0.68), (2000, 4.0, 1): (0.73, 0.74),
}  # fmt: skip


def test_each_cell_has_the_configuration_with_the_best_mean():
    small, large = build_report([study("a", FULL)], by=BY, over=OVER)
    # At 500 the single best trial has lr 4, and the best mean lr 1.
    assert (small["train.num_private"], small["optim.lr"]) == (500, 1.0)
    assert (large["train.num_private"], large["optim.lr"]) == (2000, 4.0)
    assert small["configurations"] == small["repetitions"] == 2
    assert "missing" not in small
    assert small["validation/accuracy"] == pytest.approx(0.65)
    assert small["validation/accuracy std"] == pytest.approx(statistics.stdev([0.6, 0.7]))
    assert small["test/accuracy"] == pytest.approx(0.62)
    assert small["test/accuracy std"] == pytest.approx(statistics.stdev([0.58, 0.66]))


def test_the_choice_is_made_by_the_metric_and_not_by_the_test():
    swapped = {key: (value, 1 - test) for key, (value, test) in FULL.items()}
    chosen = [row["optim.lr"] for row in build_report([study("a", swapped)], by=BY, over=OVER)]
    assert chosen == [1.0, 4.0]


def test_a_low_value_is_good_where_the_metric_is_a_loss():
    losses = study("a", FULL, is_maximized=False)
    assert [row["optim.lr"] for row in build_report([losses], by=BY, over=OVER)] == [4.0, 1.0]


def test_missing_repetitions_are_said_and_do_not_win():
    table = {**FULL, (500, 4.0, 0): (0.99, 0.99)}
    del table[500, 4.0, 1]
    row = build_report([study("a", table)], by=BY, over=OVER)[0]
    assert (row["optim.lr"], row["repetitions"]) == (1.0, 2)
    del table[500, 1.0, 0]
    row = build_report([study("a", table)], by=BY, over=OVER)[0]
    assert (row["optim.lr"], row["repetitions"], row["missing"]) == (4.0, 1, 1)
    assert row["validation/accuracy std"] is None


def test_only_finished_trials_with_a_value_count():
    full = study("a", FULL)
    states = (TrialState.RUNNING, TrialState.PAUSED, TrialState.PRUNED, TrialState.FAILED)
    config = {"train.num_private": 500, "optim.lr": 4.0}
    noise = [
        trial(100 + n, {**config, "public.draw": n % 2}, 0.99, state=state, epsilon=9.0)
        for n, state in enumerate(states)
    ]
    noise.append(trial(110, {**config, "public.draw": 1}, None, metrics={}))
    both = ReportedStudy("a", [*noise, *full.trials], SPACE)
    assert build_report([both], by=BY, over=OVER) == build_report([full], by=BY, over=OVER)


def test_of_trials_with_equal_values_the_first_counts():
    again = study("a", {key: (0.99, 0.99) for key in FULL}, start=50)
    twice = ReportedStudy("a", [*again.trials, *study("a", FULL).trials], SPACE)
    assert build_report([twice], by=BY, over=OVER) == build_report(
        [study("a", FULL)], by=BY, over=OVER
    )


def test_the_epsilon_is_the_largest_with_all_its_terms():
    costs = study("a", FULL)
    trials = [
        trial(t.trial_id, t.config, t.value, epsilon=1 + t.trial_id / 100) for t in costs.trials
    ]
    rows = build_report([ReportedStudy("a", trials, SPACE)], by=BY, over=OVER)
    assert [row["epsilon"] for row in rows] == [1.01, 1.07]  # of the chosen configurations
    for row in rows:
        assert (row["delta"], row["accountant"], row["sampling"]) == (1e-5, "pld", "full_batch")
        assert set(TERMS) <= set(row)
    text = caption(rows)
    for term in ("delta=1e-05", "example", "add_or_remove_one", "full_batch", "pld",
                 "accounting=unaccounted", "cost of the search is not included"):  # fmt: skip
        assert term in text


def test_a_caption_says_different_terms_of_different_studies():
    private = build_report([study("a", FULL)], by=BY, over=OVER)
    none = build_report([study("b", FULL, epsilon=math.inf)], by=BY, over=OVER)
    assert caption(private).count("\n") == 0
    assert caption([*private, *none]).startswith("epsilon of a, b: ")
    other = [{**row, "accountant": "rdp"} for row in none]
    assert [line[:12] for line in caption([*private, *other]).split("\n")] == [
        "epsilon of a", "epsilon of b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["one"], ["one"]),
        (["p-a-x", "p-b-x", "p-a-x"], ["..a..", "..b.."]),
        (["p-a", "p-b"], ["..a", "..b"]),
        (["a-x", "b-c-x"], ["a..", "b-c.."]),
        (["p", "p-p", "p-p-p"], ["p", "p-p", "p-p-p"]),
        (["p-x", "p-y-x"], ["..x", "..y-x"]),
    ],
)
def test_names_are_shown_without_the_words_they_share(names, short):
    found = short_names(names)
    assert list(found) == list(dict.fromkeys(names))
    assert list(found.values()) == short


def test_terms_that_differ_within_a_study_have_columns():
    rows = build_report([study("a", FULL)], by=BY, over=OVER)
    rows[0]["sampling"] = "poisson"
    assert differing_terms(rows) == ["sampling"]
    text = caption(rows)
    assert text.count("\n") == 0
    assert "sampling=see sampling" in text
    other = build_report([study("b", FULL)], by=BY, over=OVER)
    assert differing_terms([rows[0], *other]) == []


def test_a_caption_says_what_differences_and_boosts_rest_on():
    two = build_report([study("a", FULL), study("b", FULL)], by=BY, over=OVER, is_paired=True)
    assert caption(two).splitlines()[-1].startswith("Not covered by a row's epsilon")


def test_without_by_and_over_each_trial_is_a_configuration():
    (row,) = build_report([study("a", FULL)])
    assert (row["configurations"], row["repetitions"]) == (8, 1)
    assert row["validation/accuracy"] == 0.80
    assert (row["train.num_private"], row["optim.lr"], row["public.draw"]) == (500, 4.0, 0)


def test_ranges_declare_no_number_of_repetitions():
    space = {**SPACE, "public.draw": None}
    rows = build_report([study("a", FULL, space=space)], by=BY, over=OVER)
    assert all("missing" not in row for row in rows)


def test_differences_are_taken_repetition_by_repetition():
    better = {key: (v + 0.01 * (2 * key[2] - 1) + 0.02, t + 0.1) for key, (v, t) in FULL.items()}
    rows = build_report([study("a", FULL), study("b", better)], by=BY, over=OVER, is_paired=True)
    assert [row["study"] for row in rows] == ["a", "a", "b", "b"]
    assert "signs" not in rows[0]
    for row in rows[2:]:
        assert row["difference (test/accuracy)"] == pytest.approx(0.1)
        assert row["signs"] == "++"
    mixed = {**FULL, (500, 1.0, 0): (0.60, 0.57), (500, 1.0, 1): (0.70, 0.66)}
    row = build_report([study("a", FULL), study("b", mixed)], by=BY, over=OVER, is_paired=True)[2]
    assert row["signs"] == "-="
    assert row["difference (test/accuracy)"] == pytest.approx(-0.005)


def test_repetitions_on_other_records_are_no_pairs():
    first, second = study("a", FULL), study("b", FULL)
    drawn_by = {"seed": 0, "data.public": {"fraction": 0.1}}
    same = [dataclasses.replace(one, drawn_by=dict(drawn_by)) for one in (first, second)]
    assert build_report(same, by=BY, over=OVER, is_paired=True)
    other = dataclasses.replace(second, drawn_by={**drawn_by, "seed": 1})
    with pytest.raises(BadInputError, match="a and b are no pairs") as caught:
        build_report([same[0], other], by=BY, over=OVER, is_paired=True)
    assert "differ in seed" in str(caught.value)
    assert build_report([same[0], other], by=BY, over=OVER)


def test_only_common_repetitions_are_paired():
    table = {key: (v, t + (5 if key[2] == 1 else 0.1)) for key, (v, t) in FULL.items()}
    first = {key: entry for key, entry in FULL.items() if key[2] == 0}
    row = build_report([study("a", first), study("b", table)], by=BY, over=OVER, is_paired=True)[2]
    assert row["signs"] == "+"
    # With one draw left, the first study's best is lr 4.
    assert row["difference (test/accuracy)"] == pytest.approx(0.58 + 0.1 - 0.50)


LOWER_SPACE = {"method": ["adamix"], "public.lr": [1.0], "public.draw": [0, 1]}


def only_public(test):
    config = {"train.num_private": None, "optim.lr": 0.1}
    trials = [trial(n, {**config, "public.draw": n}, test, test=test) for n in (0, 1)]
    return ReportedStudy("lower", trials, LOWER_SPACE)


def test_the_boost_is_the_share_of_the_gap_that_is_closed():
    upper = study("upper", {key: (0.9, 0.8 if key[0] == 500 else 0.9) for key in FULL})
    rows = build_report([study("a", FULL)], by=BY, over=OVER, lower=only_public(0.5), upper=upper)
    # The lower study does not know the size, the upper one is looked up by it.
    assert rows[0]["boost (test/accuracy)"] == pytest.approx((0.62 - 0.5) / (0.8 - 0.5))
    assert rows[1]["boost (test/accuracy)"] == pytest.approx((0.71 - 0.5) / (0.9 - 0.5))


def test_a_bound_for_another_size_is_no_bound():
    fixed = {**SPACE, "train.num_private": [2000]}
    upper = study("upper", {k: (0.9, 0.9) for k in FULL if k[0] == 2000}, space=fixed)
    rows = build_report([study("a", FULL)], by=BY, over=OVER, lower=only_public(0.5), upper=upper)
    assert rows[0]["boost (test/accuracy)"] is None
    assert rows[1]["boost (test/accuracy)"] == pytest.approx(0.21 / 0.4)


@pytest.mark.parametrize("best", [0.5, 0.4])  # an upper bound below the lower one is none
def test_no_gap_has_no_boost(best):
    upper = study("upper", dict.fromkeys(FULL, (0.5, best)))
    rows = build_report([study("a", FULL)], by=BY, over=OVER, lower=only_public(0.5), upper=upper)
    assert [row["boost (test/accuracy)"] for row in rows] == [None, None]


def test_a_study_is_named_once():
    one = study("a", FULL)
    with pytest.raises(BadInputError, match="a is named twice"):
        build_report([one, study("b", FULL), one], by=BY, over=OVER)


def test_without_a_test_score_the_metric_is_compared():
    table = {key: (value, None) for key, (value, _) in FULL.items()}
    rows = build_report([study("a", table), study("b", FULL)], by=BY, over=OVER, is_paired=True)
    assert "test/accuracy" not in rows[0]
    assert rows[2]["difference (validation/accuracy)"] == 0
    assert rows[2]["signs"] == "=="


def test_scores_that_cannot_be_compared_are_refused():
    table = {key: (value, None) for key, (value, _) in FULL.items()}
    losses = study("b", table, metric="validation/loss")
    with pytest.raises(BadInputError, match="no score in common") as error:
        build_report([study("a", FULL), losses], by=BY, over=OVER, is_paired=True)
    assert "validation/accuracy, validation/loss" in str(error.value)
    assert len(build_report([study("a", FULL), losses], by=BY, over=OVER)) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"by": ["train.num_privat"]}, "did you mean 'train.num_private'"),
        ({"over": ["repeat"]}, "--over repeat: no such hyperparameter"),
        ({"by": OVER, "over": OVER}, "in --by and in --over"),
        ({"lower": study("l", FULL)}, "needs both bounds"),
        ({"is_paired": True}, "compares studies, and there is one"),
    ],
)
def test_what_means_nothing_is_refused(changes, words):
    with pytest.raises(BadInputError) as error:
        build_report([study("a", FULL)], **changes)
    assert words in str(error.value)


def test_a_study_without_finished_trials_has_no_rows():
    assert build_report([ReportedStudy("a", [], SPACE)], by=BY, over=OVER) == []
    with_one = [ReportedStudy("a", [], SPACE), study("b", FULL)]
    assert [row["study"] for row in build_report(with_one, by=BY, over=OVER)] == ["b", "b"]


def test_methods_can_be_rows():
    space = {"method": ["x", "y"], "optim.lr": [1.0]}
    trials = [
        trial(n, {"method": method, "optim.lr": 1.0}, 0.5 + n / 10)
        for n, method in enumerate(("y", "x"))
    ]
    rows = build_report([ReportedStudy("a", trials, space)], by=["method"])
    assert [(row["method"], row["validation/accuracy"]) for row in rows] == [("x", 0.6), ("y", 0.5)]


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a study of two learning rates, two repetitions each."""

    def write(name, gain=0.0, num_finished=4):
        space = {
            "method": "dp_sgd",
            "optim.lr": {"choice": [0.5, 2]},
            "train.epochs": 5,
            "train.repeat": {"choice": [0, 1]},
        }
        search = {"sampler": "grid", "space": space, "num_trials": 4}
        raw = make_spec(tmp_path, name, search=search, tracking={"uri": None})
        checked = preflight(SweepSpec(**raw))
        journal = Study(checked.spec)
        study_ledger = StudyLedger(journal.files.ledger)
        for number, point in enumerate(checked.space.grid()):
            task = checked.admit(number, point)
            steps = len(task.plan)
            study_ledger.reserve(number, task.full_plan, epsilon=task.planned_epsilon)
            ledger = TrialLedger(
                trial_file(journal.files.ledger, number), budget=checked.budget, accountant="rdp"
            )
            ledger.charge(0, steps, task.plan)
            ledger.close()
            journal.write(entries.trial_started(checked.spec, task))
            value = 0.5 + 0.1 * point["optim.lr"] + gain + 0.02 * point["train.repeat"]
            report = TrialReport(
                number, steps, {"validation/accuracy": value, "test/accuracy": value - 0.01},
                epsilon=2.0, done=True, charged=steps, value=value, best_step=steps,
            )  # fmt: skip
            if number < num_finished:
                journal.write_end(report, TrialState.FINISHED, "", released="", artifacts=[])
        journal.close()
        study_ledger.close()
        return name

    return write


def call(tmp_path, *words):
    return CliRunner().invoke(app, ["report", *words, "--root", str(tmp_path / "studies")])


def test_a_study_is_read_from_its_directory(written, tmp_path):
    read = ReportedStudy.of(load_sweep(written("first"), root=tmp_path / "studies"))
    assert read.varied == ["optim.lr", "train.repeat"]
    assert read.space["train.epochs"] == [5]
    (row,) = build_report([read], over=["train.repeat"])
    assert (row["optim.lr"], row["repetitions"], row["configurations"]) == (2, 2, 2)
    assert row["validation/accuracy"] == pytest.approx(0.71)
    assert row["test/accuracy"] == pytest.approx(0.70)
    assert 1.9 < row["epsilon"] <= 2


def test_the_command_prints_records_with_every_term(written, tmp_path):
    words = (written("first"), written("second", 0.05), "--over", "train.repeat", "--paired")
    rows = json.loads(call(tmp_path, *words, "-f", "json").stdout)
    assert [row["study"] for row in rows] == ["first", "second"]
    assert all(row[term] for row in rows for term in TERMS)
    assert rows[1]["difference (test/accuracy)"] == pytest.approx(0.05)
    assert rows[1]["signs"] == "++"


def test_the_table_says_its_terms_once(written, tmp_path):
    words = (written("first"), written("second"), "--by", "optim.lr", "--over", "train.repeat")
    out = " ".join(call(tmp_path, *words).stdout.split())
    assert out.count("epsilon of first, second: that of the costliest repetition") == 1
    assert "accounting=unaccounted" in out
    assert "delta=1e-05" in out
    assert "add_or_remove_one" not in out.split("epsilon of first")[0]


def test_a_table_has_the_spread_beside_the_mean():
    rows = build_report([study("a", FULL), study("b", FULL)], by=BY, over=OVER, is_paired=True)
    shown = table(rows)
    assert [row["study"] for row in shown] == ["a", "a", "b", "b"]
    first = rows[0]
    expected = f"{first['test/accuracy']:.4f} ±{first['test/accuracy std']:.4f}"
    assert shown[0]["test/accuracy"] == expected
    assert (shown[0]["finished"], shown[0]["runs"], shown[0]["epsilon"]) == (2, 2, first["epsilon"])
    assert shown[2]["difference"] == "+0.0000"
    assert "study" not in table(rows[:2])[0]
    assert not [name for row in shown for name in row if name.endswith("std") or name in TERMS]


def test_the_command_says_what_is_missing(written, tmp_path):
    result = call(tmp_path, written("first", num_finished=1), "--over", "train.repeat")
    assert "1 of 1 row lacks repetitions" in result.output
    result = call(tmp_path, written("none", num_finished=0))
    assert isinstance(result.exception, NothingWithinBudgetError)
    assert "dpsweep logs NAME" in str(result.exception)


def test_a_study_without_a_row_is_named(written, tmp_path):
    """It was left out without a word, and so was the name of the study that has a row."""
    result = call(tmp_path, written("first"), written("none", num_finished=0))
    assert result.exit_code == 0, result.output
    words = " ".join(result.stderr.split())
    assert words == "none has no row, as it has no finished trial; `dpsweep status none` says more"
    heads, _, row, *_ = map(str.split, result.stdout.splitlines())
    assert (heads[0], row[0]) == ("study", "first")
    assert call(tmp_path, "first").stdout.split()[0] == "finished"


def test_bounds_in_the_wrong_order_are_said_to_give_no_boost(written, tmp_path):
    """The column was left out without a word, and spoken of below the table."""
    words = (written("first"), "--over", "train.repeat")
    bounds = (written("worst", -0.2), written("top", 0.1))
    right = call(tmp_path, *words, "--lower", bounds[0], "--upper", bounds[1])
    wrong = call(tmp_path, *words, "--lower", bounds[1], "--upper", bounds[0])
    said = "which boost (test/accuracy) rest on."
    assert (said in " ".join(right.stdout.split()), "no boost" in right.stderr) == (True, False)
    assert "boost" not in wrong.stdout
    assert " ".join(wrong.stderr.split()) == (
        "no boost of 1 of 1 row: no trial of a bound has finished there, or --upper worst is no "
        "better than --lower top"
    )


def test_costs_are_the_mean_time_and_the_largest_peak_of_a_rows_repetitions():
    drawn = [
        trial(draw, {"public.draw": draw, "public.shots": 2}, 0.5, seconds=s, memory_mb=m)
        for draw, s, m in ((0, 10.0, 700.0), (1, 14.0, 900.0))
    ]
    (row,) = build_report([ReportedStudy("a", drawn, SPACE)], over=["public.draw"], has_costs=True)
    assert (row["seconds"], row["memory MiB"]) == (12.0, 900.0)
    assert row["public data"] == "2 records a class"


def test_costs_stand_in_the_place_of_the_configuration():
    studies = [study("a", FULL)]
    (plain, *_), (row, *_) = build_report(studies), build_report(studies, has_costs=True)
    configuration = {name for name in plain if name in SPACE}
    assert configuration
    assert plain.keys() - row.keys() == configuration


def test_costs_that_may_not_be_told_are_none_and_not_zero():
    rows = build_report([ReportedStudy("a", [trial(0, {}, 0.5)], SPACE)], has_costs=True)
    assert [(row["seconds"], row["memory MiB"]) for row in rows] == [(None, None)]
    assert "seconds" not in build_report([ReportedStudy("a", [trial(0, {}, 0.5)], SPACE)])[0]


@pytest.mark.parametrize(
    ("method", "config", "expected"),
    [
        ("scatternet", {"features.name": "none"}, "none"),
        ("scatternet", {"features.name": "scatternet"}, "none"),
        ("scatternet", {"features.name": "timm/resnet18"}, "weights of timm/resnet18"),
        ("dp_sgd", {"model.name": "linear"}, "none"),
        ("dp_sgd", {"model.checkpoint": "pretrain"}, "weights trained on public records"),
        ("dp_sgd", {"model.checkpoint": "published"}, "published weights"),
        ("dp_sgd", {"model.checkpoint": "net.pt"}, "weights net.pt"),
        ("active_learning", {"labels.max": 500}, "public records, 500 labels"),
        ("dope_sgd", {"public.batch": 256}, "all public records"),
        (
            "adamix",
            {"features.name": "efficientnet_lite0", "public.shots": 2},
            "weights of efficientnet_lite0, 2 records a class",
        ),
    ],
)
def test_public_data_names_weights_and_records(method, config, expected):
    assert costs_of([trial(0, {"method": method, **config}, 0.5)])["public data"] == expected


def test_public_data_of_a_method_that_is_not_installed_are_not_known():
    assert costs_of([trial(0, {"method": "gone", "public.shots": 2}, 0.5)])["public data"] is None


# Spread over configurations


def test_the_spread_is_of_all_configurations_of_a_row():
    """Each at the mean of its repetitions; the chosen one is the best by the metric, not of them."""
    space = {"method": ["adamix"], "train.num_private": [500], "optim.lr": [1, 2, 3, 4, 5],
             "public.draw": [0, 1]}  # fmt: skip
    tests = {1: (0.1, 0.3), 2: (0.5, 0.5), 3: (0.6, 0.8), 4: (0.9, 0.7), 5: (0.5, 0.7)}
    trials = [
        trial(
            2 * rate + draw, {"train.num_private": 500, "optim.lr": rate, "public.draw": draw},
            0.9 if rate == 2 else 0.5, test=score,
        )
        for rate, scores in tests.items()
        for draw, score in enumerate(scores)
    ]  # fmt: skip
    given = ReportedStudy("s", trials, space)
    (row,) = build_report([given], by=BY, over=OVER, has_spread=True)
    means = [0.2, 0.5, 0.7, 0.8, 0.6]
    assert row["test/accuracy"] == 0.5
    assert row["min (test/accuracy)"] == pytest.approx(min(means))
    assert row["max (test/accuracy)"] == pytest.approx(max(means))
    assert row["median (test/accuracy)"] == pytest.approx(0.6)
    assert row["MAD (test/accuracy)"] == pytest.approx(0.1)
    (shown,) = table([row])
    assert (shown["median"], shown["MAD"]) == ("0.6000", "0.1000")
    assert "over all configurations of a row" in legend([row])
    (plain,) = build_report([given], by=BY, over=OVER)
    assert not any(name.startswith(("min", "median", "MAD")) for name in plain)


def test_without_test_scores_the_spread_is_of_the_metric():
    space = {"optim.lr": [1, 2]}
    given = ReportedStudy("s", [trial(n, {"optim.lr": n}, n / 4) for n in (1, 2)], space)
    (row,) = build_report([given], has_spread=True)
    assert row["min (validation/accuracy)"] == 0.25
    assert row["MAD (validation/accuracy)"] == 0.125
