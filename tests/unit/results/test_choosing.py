"""The best trial is what a search by hand over the exported rows finds, whatever the limits."""

import csv
import io
import itertools
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_studies import make_spec

from dpsweep.foundation.errors import BadInputError, NothingWithinBudgetError
from dpsweep.ledgers.study_state import StudyState, account_of
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.results.choosing import Limits, unbeaten
from dpsweep.results.claims import Claims
from dpsweep.results.study import SweepResult
from dpsweep.results.tables.rows import csv_text, json_text, trial_rows
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.trial import TrialState

STATES = (TrialState.FINISHED, TrialState.PRUNED, TrialState.FAILED, TrialState.RUNNING)
METHODS = ("dp_sgd", "bitfit")
METRICS = {"max": "validation/accuracy", "min": "validation/loss"}
DELTA = 1e-5


class MadeUpClaims(Claims):
    """Claims of trials whose epsilons are those of the view."""

    def __init__(self, spec, view):
        self.spec, self.view = spec, view
        self.account = account_of(StudyState())
        self.downgraded = None

    @property
    def sampling(self):
        return "poisson"

    def study_statement(self):
        return None

    def trial_statement(self, view):
        return self._statement(
            view.epsilon, sampling=view.sampling, released=self._released_by(view)
        )


@cache
def made_up_spec(mode):
    raw = make_spec(Path("/nowhere"), MadeUpRecords.name)
    raw["search"] |= {"mode": mode, "metric": METRICS[mode]}
    raw["search"]["space"] = {
        "method": {"choice": list(METHODS)}, "optim.lr": {"choice": [0.1, 0.2]},
    }  # fmt: skip
    return SweepSpec(**raw)


class MadeUpRecords:
    """A study that is nowhere but here."""

    name, source = "made-up", "made up"

    def __init__(self, trials, mode="max"):
        self._spec = made_up_spec(mode)
        self._view = StudyView(trials={trial.trial: trial for trial in trials}, state="finished")

    def spec(self):
        return self._spec

    def view(self):
        return self._view

    def claims(self, spec, view):
        return MadeUpClaims(spec, view)

    def is_running(self):
        return True

    def run_ids(self):
        return {}

    def model_uri(self, trial, logged):
        return logged


@st.composite
def trial_lists(draw):
    """Trials with few distinct scores and epsilons, so that ties are common."""
    trials = []
    for number in range(draw(st.integers(0, 9))):
        value = draw(st.sampled_from([None, 0.1, 0.5, 0.5000000001, 0.9]))
        trials.append(
            TrialView(
                number,
                hparams={
                    "method": draw(st.sampled_from(METHODS)),
                    "optim.lr": draw(st.sampled_from([0.1, 0.2])),
                    "train.repeat": draw(st.integers(0, 2)),
                },
                state=draw(st.sampled_from(STATES)),
                epsilon=draw(st.sampled_from([0.5, 1.0, 2.0, math.inf])),
                sampling="poisson",
                value=value,
                delivered={} if value is None else {"validation/accuracy": value},
            )
        )
    return draw(st.permutations(trials))


def exported(result, kind):
    """Return the rows of an export as another tool reads them."""
    if kind == "json":
        rows = json.loads(json_text(trial_rows(result)))
        return [{**r, "epsilon": math.inf if r["epsilon"] is None else r["epsilon"]} for r in rows]
    rows = list(csv.DictReader(io.StringIO(csv_text(trial_rows(result)))))
    return [
        {
            **row,
            "trial": int(row["trial"]),
            "value": None if row["value"] == "" else float(row["value"]),
            "epsilon": float(row["epsilon"]),
            "delta": float(row["delta"]),
        }
        for row in rows
    ]


def by_hand(rows, sign, limits, by):
    """Return (number, ties) of the best row, by looking at each."""
    rows = [
        row
        for row in sorted(rows, key=lambda row: row["trial"])
        if row["state"] == "finished" and row["value"] is not None
        and (limits.max_epsilon is None or row["epsilon"] <= limits.max_epsilon)
        and (limits.max_delta is None or row["delta"] <= limits.max_delta)
        and (limits.method is None or row["method"] == limits.method)
    ]  # fmt: skip
    if by == "mean":
        cells = sorted({(row["method"], str(row["optim.lr"])) for row in rows})
        groups = [[r for r in rows if (r["method"], str(r["optim.lr"])) == cell] for cell in cells]
    else:
        groups = [[row] for row in rows]
    best, ties = None, []
    for group in groups:
        if best is None:
            best = group
            continue
        old = (len(best), sign * fmean(r["value"] for r in best))
        new = (len(group), sign * fmean(r["value"] for r in group))
        cost = [max(r["epsilon"] for r in g) for g in (best, group)]
        if new > old:
            best, ties = group, []
        elif new == old and (cost[1], group[0]["trial"]) < (cost[0], best[0]["trial"]):
            ties.append(best[0]["trial"])
            best = group
        elif new == old:
            ties.append(group[0]["trial"])
    return (None, []) if best is None else (best[0]["trial"], sorted(ties))


CAPS = st.sampled_from([None, 0.0, 0.5, 1.5, 2.0])
DELTAS = st.sampled_from([None, DELTA / 2, DELTA, 1.0])


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    trials=trial_lists(),
    mode=st.sampled_from(["max", "min"]),
    by=st.sampled_from(["trial", "mean"]),
    limits=st.builds(Limits, CAPS, DELTAS, st.sampled_from([None, *METHODS])),
    kind=st.sampled_from(["csv", "json"]),
)
def test_best_is_what_a_search_by_hand_over_exported_rows_finds(trials, mode, by, limits, kind):
    result = SweepResult(MadeUpRecords(trials, mode))
    expected, ties = by_hand(exported(result, kind), 1.0 if mode == "max" else -1.0, limits, by)
    if expected is None:
        with pytest.raises(NothingWithinBudgetError):
            result.choose(limits, by=by)
        return
    choice = result.choose(limits, by=by)
    assert (choice.best.trial_id, list(choice.ties)) == (expected, ties)
    assert choice.best == result.best(
        max_epsilon=limits.max_epsilon,
        max_delta=limits.max_delta,
        method=limits.method,
        by=by,
    )
    assert choice.best.trial_id in choice.runs


def trial(number, value, *, epsilon=1.0, lr=0.1, repeat=0, method="dp_sgd"):
    hparams = {"method": method, "optim.lr": lr, "train.repeat": repeat}
    return TrialView(
        number, hparams=hparams, state=TrialState.FINISHED, epsilon=epsilon, sampling="poisson",
        value=value, delivered={"validation/accuracy": value},
    )  # fmt: skip


def test_a_lucky_seed_wins_by_trial_and_not_by_mean():
    values = {0.1: (0.70, 0.71, 0.72), 0.2: (0.95, 0.40, 0.45)}
    numbers = itertools.count()
    trials = [
        trial(next(numbers), value, lr=lr, repeat=repeat)
        for lr, of_lr in values.items()
        for repeat, value in enumerate(of_lr)
    ]
    result = SweepResult(MadeUpRecords(trials))
    assert result.best().config["optim.lr"] == 0.2
    choice = result.choose(by="mean")
    assert choice.best.trial_id == 0  # not 2, the luckiest of its own runs
    assert (choice.score, choice.runs) == (pytest.approx(0.71), [0, 1, 2])
    (note,) = choice.notes()
    assert "0.7100 is the mean over 3 runs" in note
    assert "trial 0 is handed on as the first of them" in note


def test_a_mean_of_more_runs_goes_before_a_better_one_of_fewer():
    trials = [trial(0, 0.9, lr=0.2), *(trial(n, 0.5, lr=0.1, repeat=n) for n in (1, 2))]
    choice = SweepResult(MadeUpRecords(trials)).choose(by="mean")
    assert choice.runs == [1, 2]
    (alone,) = SweepResult(MadeUpRecords(trials[:1])).choose(by="mean").notes()
    assert "the only run of its configuration" in alone


def test_a_mean_of_those_that_were_not_stopped_says_so():
    finished = [trial(n, 0.5, lr=0.1, repeat=n) for n in (0, 1)]
    stopped = [
        replace(trial(2, 0.2, lr=0.1, repeat=2), state=TrialState.PRUNED),
        replace(trial(3, 0.1, lr=0.2, repeat=0), state=TrialState.PRUNED),  # of another one
    ]
    result = SweepResult(MadeUpRecords([*finished, *stopped]))
    choice = result.choose(by="mean")
    assert (choice.runs, choice.stopped) == ([0, 1], [2])
    assert choice.to_dict()["stopped"] == [2]
    (_, note) = choice.notes()
    assert note.startswith("trial 2 of this configuration stopped before the end")
    assert "too good where a scheduler stops what scores low" in note
    assert list(result.choose().stopped) == []


def test_of_equal_scores_the_cheapest_then_the_first_and_it_is_said():
    trials = [trial(0, 0.5, epsilon=2.0), trial(1, 0.5), trial(2, 0.5), trial(3, 0.4)]
    choice = SweepResult(MadeUpRecords(trials)).choose()
    assert (choice.best.trial_id, choice.ties) == (1, [0, 2])
    (note,) = choice.notes()
    assert note.startswith("trial 0, 2 have the same score: of equal scores the cheapest")
    assert choice.to_dict()["ties"] == [0, 2]


def test_a_cap_on_delta_below_the_studys_leaves_nothing_and_says_why():
    result = SweepResult(MadeUpRecords([trial(0, 0.5)]))
    assert result.best(max_delta=DELTA).trial_id == 0
    with pytest.raises(NothingWithinBudgetError) as caught:
        result.best(max_epsilon=2.0, max_delta=1e-6)
    assert "with epsilon <= 2 and delta <= 1e-06" in caught.value.message
    assert caught.value.because.startswith("every epsilon of the study is at delta=1e-05; 1 trial")
    assert caught.value.exit_code == 3


def failed(number, reason, **changes):
    return replace(
        trial(number, 0.5, **changes), state=TrialState.FAILED, value=None, reason=reason
    )


def test_where_none_has_finished_the_first_failure_is_told():
    trials = [failed(1, "diverged: at step 3\nand more"), failed(0, "no room", method="bitfit")]
    result = SweepResult(MadeUpRecords(trials))
    with pytest.raises(NothingWithinBudgetError) as caught:
        result.best()
    assert caught.value.because == "0 trials have finished; trial 0 failed: no room"
    with pytest.raises(NothingWithinBudgetError) as caught:
        result.best(method="dp_sgd")
    assert caught.value.because == "0 trials have finished; trial 1 failed: diverged: at step 3"
    result = SweepResult(MadeUpRecords([*trials, trial(2, 0.5)]))
    with pytest.raises(NothingWithinBudgetError) as caught:
        result.best(max_epsilon=0.1)
    assert "failed" not in caught.value.because  # there is one, and it is too dear


def test_of_secret_trials_no_failure_is_told(monkeypatch):
    result = SweepResult(MadeUpRecords([failed(0, "diverged: at step 3")]))
    privacy = result.spec.privacy.model_copy(update={"accounting": "select"})
    monkeypatch.setattr(result, "spec", result.spec.model_copy(update={"privacy": privacy}))
    assert result.spec.privacy.mode.is_sealed
    with pytest.raises(NothingWithinBudgetError) as caught:
        result.best()
    assert caught.value.because == "0 trials have finished"


def test_a_method_that_the_study_has_not_is_a_mistake_one_without_a_trial_is_none():
    result = SweepResult(MadeUpRecords([trial(0, 0.5)]))
    with pytest.raises(BadInputError, match="no method 'bitfitt'") as caught:
        result.best(method="bitfitt")
    assert "bitfit" in caught.value.fix
    with pytest.raises(NothingWithinBudgetError, match="no finished trial of method bitfit"):
        result.best(method="bitfit")


def test_the_front_takes_epsilons_that_are_shown_alike_for_the_same():
    """Plans end within rounding of their cap; only the best score of those is on the front."""
    points = [(1.99999942, 0.81), (1.99999945, 0.92), (1.99999943, 0.5), (1.5, 0.7), (1.9998, 0.8)]
    trials = [
        TrialView(
            number, hparams={"method": "dp_sgd"}, state=TrialState.FINISHED, epsilon=epsilon,
            sampling="poisson", value=value, delivered={"validation/accuracy": value},
        )
        for number, (epsilon, value) in enumerate(points)
    ]  # fmt: skip
    front = SweepResult(MadeUpRecords(trials)).pareto()
    assert [trial.trial_id for trial in front] == [3, 4, 1]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"by": "meen"}, "by must be one of trial, mean; got 'meen'"),
        ({"max_epsilon": "2"}, "max_epsilon must be a number, got '2'"),
        ({"max_epsilon": float("nan")}, "max_epsilon must be finite, got nan"),
        ({"max_delta": -1e-5}, "max_delta must be >= 0, got -1e-05"),
    ],
)
def test_a_limit_or_a_word_that_is_none_is_refused(wrong, says):
    with pytest.raises(BadInputError) as caught:
        SweepResult(MadeUpRecords([trial(0, 0.5)])).best(**wrong)
    assert caught.value.message.startswith(says)


@given(
    points=st.lists(
        st.tuples(st.sampled_from((1.0, 1.0000001, 1.0000002, 2.0, math.inf)), st.integers(0, 3)),
        max_size=8,
    ),
    is_maximized=st.booleans(),
)
def test_a_front_is_what_nothing_as_cheap_beats(points, is_maximized):
    numbered = list(enumerate(points))
    front = unbeaten(numbered, lambda item: item[1], is_maximized=is_maximized)
    better = (lambda a, b: a > b) if is_maximized else (lambda a, b: a < b)
    rounded = {number: float(shown_epsilon(epsilon)) for number, (epsilon, _) in numbered}
    kept = {number for number, _ in front}
    for number, (_, score) in numbered:
        rivals = [
            other
            for other, (_, value) in numbered
            if (rounded[other] <= rounded[number] and better(value, score))
            or (value == score and (rounded[other], other) < (rounded[number], number))
        ]
        assert (number in kept) == (not rivals)
    assert [rounded[number] for number, _ in front] == sorted(rounded[n] for n, _ in front)
