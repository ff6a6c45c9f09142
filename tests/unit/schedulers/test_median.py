"""The median rule at rungs of epsilon."""

import math
import statistics
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from dpsweep.schedulers import POLICIES
from dpsweep.schedulers.median import MedianPolicy
from dpsweep.study.trial import Decision, TrialReport, Verdict

CONTINUE, STOP = Decision.CONTINUE, Decision.STOP


def report(trial, score, rung=1):
    return TrialReport(trial, 100 * rung, {"score": score}, rung / 2, rung=rung)


def median(**given):
    return MedianPolicy(**{"metric": "score", "maximize": True, "num_rungs": 2, **given})


def test_by_hand():
    policy = median(min_trials=2)
    few = policy.on_report(report(0, 0.5))
    assert few == Verdict(
        CONTINUE, 1, 0.5, None, "0.5 at rung 1 of 2 is not judged among 0 others: 2 needed"
    )
    assert policy.on_report(report(1, 0.1)).decision is CONTINUE
    assert policy.on_report(report(2, 0.29)) == Verdict(
        STOP, 1, 0.29, 0.3, "0.29 at rung 1 of 2 is below 0.3, the median of 2 others"
    )
    assert policy.on_report(report(3, 0.29)) == Verdict(
        CONTINUE, 1, 0.29, 0.29, "0.29 at rung 1 of 2 reaches 0.29, the median of 3 others"
    )


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, math.nan, -math.inf]), max_size=25),
    st.integers(1, 6),
    st.booleans(),
)
def test_the_literal_rule(values, min_trials, maximize):
    """Stop below the median of all others, those stopped included, once there are enough."""
    policy = median(min_trials=min_trials, maximize=maximize)
    seen = []
    for trial, value in enumerate(values):
        good = value if maximize else -value
        good = good if math.isfinite(value) else -math.inf
        enough = len(seen) >= min_trials
        expected = STOP if enough and good < statistics.median(seen) else CONTINUE
        assert policy.on_report(report(trial, value)).decision is expected
        seen.append(good)


def test_scores_without_a_finite_median_stop_nobody():
    policy = median(min_trials=1)
    verdicts = [policy.on_report(report(t, math.nan)) for t in range(4)]
    assert {v.decision for v in verdicts} == {CONTINUE}
    assert (verdicts[-1].value, verdicts[-1].cutoff) == (None, None)


def test_rungs_are_apart_and_nothing_is_paused():
    policy = median(min_trials=1)
    assert policy.on_report(report(0, 0.9)).decision is CONTINUE
    assert policy.on_report(report(1, 0.1, rung=2)).decision is CONTINUE
    assert policy.choose_paused([0, 1]) is None


def test_from_spec():
    spec = SimpleNamespace(rungs=(), min_trials=7)
    policy = POLICIES["median"].from_spec(spec, metric="loss", maximize=False)
    assert (policy.min_trials, policy.num_rungs) == (7, 0)
    assert (policy.metric, policy.maximize) == ("loss", False)
    assert POLICIES["fifo"].from_spec(spec, metric="loss", maximize=False).choose_paused([]) is None
