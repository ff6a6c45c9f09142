"""Successive halving at rungs of epsilon: the rule, its variants, its limits."""

import math
import random
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.schedulers import POLICIES
from dpsweep.schedulers.epsilon_halving import EpsilonHalving
from dpsweep.study.trial import Decision, TrialReport, Verdict

CONTINUE, PAUSE, STOP = Decision.CONTINUE, Decision.PAUSE, Decision.STOP
scores = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, math.nan, math.inf]), max_size=30)


def report(trial, score, rung=1, step=None, done=False):
    metrics = {} if score is None else {"score": score}
    return TrialReport(trial, step or 100 * rung, metrics, rung / 2, rung=rung, done=done)


def halving(**given):
    return EpsilonHalving(**{"metric": "score", "maximize": True, "num_rungs": 3, **given})


def decide(policy, *values, rung=1):
    return [policy.on_report(report(t, v, rung)).decision for t, v in enumerate(values)]


def test_stop_by_hand():
    """Cut-offs are the best one until six are there, then the second best, at nine the third."""
    policy = halving()
    values = [0.5, 0.4, 0.6, 0.55, 0.6, 0.58, 0.61, 0.59, 0.6]
    assert decide(policy, *values) == [
        CONTINUE,  # the first
        STOP,  # best 1 of 2: 0.5
        CONTINUE,  # the best
        STOP,  # best 1 of 4: 0.6
        CONTINUE,  # as good as the best
        STOP,  # best 2 of 6: 0.6
        CONTINUE,  # the best
        STOP,  # best 2 of 8: 0.6
        CONTINUE,  # best 3 of 9: 0.6
    ]


def test_verdicts_say_why():
    policy = halving()
    first = policy.on_report(report(0, 0.7, 2))
    assert first == Verdict(CONTINUE, 2, 0.7, None, "0.7 at rung 2 of 3 is the first there")
    for trial in range(1, 6):
        policy.on_report(report(trial, 0.6 + trial / 100, 2))
    assert policy.on_report(report(6, 0.612, 2)) == Verdict(
        STOP, 2, 0.612, 0.65, "0.612 at rung 2 of 3 is below the cut-off 0.65 (best 2 of 7)"
    )
    assert policy.on_report(report(7, 0.69, 2)).reason == (
        "0.69 at rung 2 of 3 reaches the cut-off 0.69 (best 2 of 8)"
    )
    assert policy.on_report(report(8, math.nan, 2)) == Verdict(
        STOP,
        2,
        None,
        0.65,
        "no finite score at rung 2 of 3 is below the cut-off 0.65 (best 3 of 9)",
    )
    missing = policy.on_report(report(9, None, 2))
    assert missing == Verdict(CONTINUE, reason="not judged: no score was released at rung 2 of 3")


def test_low_is_good_for_a_loss():
    policy = halving(maximize=False, num_rungs=0)
    assert decide(policy, 0.5, 0.6, 0.4, -1.0) == [CONTINUE, STOP, CONTINUE, CONTINUE]
    verdict = policy.on_report(report(9, 0.3))
    assert verdict.reason == "0.3 at rung 1 is above the cut-off -1 (best 1 of 5)"
    assert (verdict.value, verdict.cutoff) == (0.3, -1.0)


@given(scores, st.integers(2, 4))
def test_high_and_low_mirror_each_other(values, factor):
    up = halving(reduction_factor=factor)
    down = halving(reduction_factor=factor, maximize=False)
    assert decide(up, *values) == decide(down, *(-v for v in values))


@given(scores, st.integers(2, 4))
def test_the_best_so_far_is_never_stopped(values, factor):
    policy = halving(reduction_factor=factor)
    best = -math.inf
    for trial, value in enumerate(values):
        decision = policy.on_report(report(trial, value)).decision
        if math.isfinite(value) and value >= best:
            best = value
            assert decision is CONTINUE


@given(scores, st.integers(2, 4))
def test_a_stopped_trial_is_not_among_the_best(values, factor):
    """The literal rule: worse than the k-th best of those recorded, k = max(1, n // factor)."""
    policy = halving(reduction_factor=factor)
    seen = []
    for trial, value in enumerate(values):
        seen.append(value if math.isfinite(value) else -math.inf)
        cutoff = sorted(seen, reverse=True)[max(1, len(seen) // factor) - 1]
        expected = STOP if seen[-1] < cutoff else CONTINUE
        assert policy.on_report(report(trial, value)).decision is expected


@given(st.permutations(range(12)), st.sampled_from(["stop", "promote"]))
def test_equal_scores_do_not_depend_on_their_order(order, variant):
    """Equal scores all go on; those promoted are the lowest trial numbers, whoever came first."""
    policy = halving(variant=variant)
    verdicts = [policy.on_report(report(trial, 0.5)) for trial in order]
    if variant == "stop":
        assert {v.decision for v in verdicts} == {CONTINUE}
    else:
        assert promote_all(policy, set(order)) == [0, 1, 2, 3]


def promote_all(policy, paused):
    promoted = []
    while (number := policy.choose_paused(paused)) is not None:
        paused.remove(number)
        promoted.append(number)
    return promoted


@pytest.mark.parametrize("factor", [2, 3, 4, 2.5])
def test_survivors_of_a_random_order_are_as_many_as_the_ranks_say(factor):
    """The n-th arrival survives with chance max(1, n // factor) / n, independently of the others
    (relative ranks of a random permutation are independent), so the number of survivors has a
    known mean and variance; it keeps within five standard deviations of it.
    """
    num = 3000
    chances = [max(1, n // factor) / n for n in range(1, num + 1)]
    mean, spread = sum(chances), math.sqrt(sum(p * (1 - p) for p in chances))
    values = [i / num for i in range(num)]
    for seed in range(5):
        random.Random(seed).shuffle(values)
        survivors = decide(halving(reduction_factor=factor), *values).count(CONTINUE)
        assert abs(survivors - mean) <= 5 * spread
        assert survivors < num / factor + 5 * spread + 2 * factor


def test_promote_by_hand():
    policy = halving(variant="promote")
    paused = set()
    for trial, value in enumerate([0.3, 0.5, 0.4]):
        assert policy.choose_paused(paused) is None  # 0, 1, 2 there: nobody is in the best third
        verdict = policy.on_report(report(trial, value))
        assert verdict.decision is PAUSE
        paused.add(trial)
    assert verdict == Verdict(
        PAUSE, 1, 0.4, 0.5, "0.4 at rung 1 of 3 waits in place 2 of 3 (best 1 go on)"
    )
    assert policy.standing(1) == Verdict(
        CONTINUE, 1, 0.5, 0.5, "0.5 at rung 1 of 3 is to be promoted: place 1 of 3 (best 1 go on)"
    )
    assert policy.standing(0) == Verdict(
        STOP, 1, 0.3, 0.5, "0.3 at rung 1 of 3 was never promoted: place 3 of 3 (best 1 go on)"
    )
    assert promote_all(policy, paused) == [1]
    assert policy.on_report(report(1, 0.6, 2)).decision is PAUSE
    paused.add(1)
    assert policy.choose_paused(paused) is None  # the only one at rung 2, already away from rung 1
    for trial, value in ((3, 0.1), (4, 0.1), (5, 0.45)):
        policy.on_report(report(trial, value))
        paused.add(trial)
    assert promote_all(policy, set(paused)) == [5]  # second of six; the best has gone on before


def test_the_highest_rung_goes_first():
    policy = halving(variant="promote", reduction_factor=2)
    for trial in range(6):
        policy.on_report(report(trial, trial / 10))
    for trial in (4, 5):
        policy.on_report(report(trial, trial / 100, 2))
    assert promote_all(policy, set(range(6))) == [5, 3]  # 4 is second of two at rung 2
    policy.on_report(report(5, 0.9, 3))
    policy.on_report(report(3, 0.9, 2))
    assert policy.choose_paused({0, 1, 2, 3, 4, 5}) == 3


def test_after_the_last_rung_a_promoted_trial_is_left_alone():
    policy = halving(variant="promote", reduction_factor=2)
    for rung in (1, 2, 3):
        for trial in (0, 1):
            policy.on_report(report(trial, trial, rung))
        assert policy.choose_paused({0, 1}) == 1
    assert policy.on_report(report(1, 0.9, 3, step=350)) == Verdict(CONTINUE)
    assert policy.on_report(report(1, 0.9, 3, step=400, done=True)) == Verdict(CONTINUE)
    assert policy.choose_paused({0}) is None


def test_a_synchronous_rung_promotes_exactly_its_share():
    policy = halving(variant="promote")
    values = [i / 100 for i in range(100)]
    random.shuffle(values)
    assert set(decide(policy, *values)) == {PAUSE}
    promoted = promote_all(policy, set(range(100)))
    assert [values[t] for t in promoted] == sorted(values, reverse=True)[:33]


def test_a_trial_that_jumps_over_a_rung_is_judged_at_the_upper_one():
    policy = halving()
    assert decide(policy, 0.9, 0.9) == [CONTINUE, CONTINUE]
    assert decide(policy, 0.5, rung=2) == [CONTINUE]
    assert policy.on_report(report(5, 0.2, 2)).cutoff == 0.5
    assert policy.on_report(report(6, 0.8, 1)).cutoff == 0.9  # nothing of trial 5 at rung 1
    assert policy.on_report(report(6, 0.8, 1)).reason.endswith("best 1 of 3)")


def test_repeated_reports_count_once_and_keep_their_verdict():
    policy = halving()
    decide(policy, 0.5, 0.6)
    stopped = policy.on_report(report(2, 0.1))
    assert stopped.decision is STOP
    again = policy.on_report(report(2, 0.99))  # a repetition: what it says now is not looked at
    assert again == stopped
    assert policy.on_report(report(3, 0.2)).reason.endswith("(best 1 of 4)")
    between = report(0, 0.1, rung=1, step=150)
    assert policy.on_report(between) == Verdict(CONTINUE)
    assert policy.on_report(report(0, None, rung=2)).rung is None
    assert policy.on_report(report(0, 0.3, rung=2, step=250)).rung is None  # later, at more epsilon


def test_the_last_report_is_recorded_and_stops_nothing():
    policy = halving()
    decide(policy, 0.5, 0.6)
    last = policy.on_report(report(2, 0.1, step=120, done=True))
    assert last == Verdict(CONTINUE, 1, 0.1, None, "0.1 at rung 1 of 3, where the trial has ended")
    assert policy.on_report(report(3, 0.2)).reason.endswith("(best 1 of 4)")


def test_a_pause_repeated_after_the_promotion_is_not_forgotten():
    """A promoted trial that falls back to its pause reports it again, and can be chosen again."""
    policy = halving(variant="promote", reduction_factor=2)
    decide(policy, 0.5, 0.6)
    assert policy.choose_paused({0, 1}) == 1
    policy.on_report(report(1, 0.7, step=150))
    assert policy.choose_paused({0, 1}) is None
    assert policy.on_report(report(1, 0.6)).decision is PAUSE
    assert policy.choose_paused([0, 1]) == 1
    assert policy.on_report(report(2, 0.1)).cutoff == 0.6  # 1 of 3, counted once


def test_from_spec():
    spec = SimpleNamespace(rungs=(0.5, 1.0), reduction_factor=4, variant="promote", min_trials=7)
    policy = POLICIES["epsilon_halving"].from_spec(spec, metric="loss", maximize=False)
    assert (policy.num_rungs, policy.reduction_factor, policy.variant) == (2, 4, "promote")
    assert (policy.metric, policy.maximize) == ("loss", False)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["stop", "promote"])
def test_ten_thousand_trials_take_two_seconds(variant):
    """10,000 trials report at three rungs, in a random order; also what is paused is chosen from."""
    rng = random.Random(1)
    reports = [report(t, rng.random(), rung) for rung in (1, 2, 3) for t in range(10_000)]
    took = []
    for _ in range(2):  # the better one: a machine may be busy, or collect garbage of other tests
        policy = halving(variant=variant)
        started = time.thread_time()
        for item in reports:
            policy.on_report(item)
        took.append(time.thread_time() - started)
    assert min(took) < 2
    entries = sum(map(len, policy._ranking.values()))
    assert entries == len(policy._verdicts) == 30_000
    assert len(policy._held) <= 10_000


def test_choosing_among_ten_thousand_is_fast():
    rng = random.Random(1)
    policy = halving(variant="promote")
    rungs, paused = {}, set()
    started = time.thread_time()
    for trial in range(10_000):
        while trial is not None:
            rungs[trial] = rungs.get(trial, 0) + 1
            paused.discard(trial)
            if rungs[trial] <= 3:
                policy.on_report(report(trial, rng.random(), rungs[trial]))
                paused.add(trial)
            else:
                policy.on_report(report(trial, rng.random(), 3, step=400, done=True))
            trial = policy.choose_paused(paused)
    assert time.thread_time() - started < 4
    reached = [sum(rung >= wanted for rung in rungs.values()) for wanted in (1, 2, 3, 4)]
    assert reached[0] == 10_000
    for above, below in zip(reached[1:], reached, strict=False):
        assert below // 3 <= above <= below / 3 + 5 * math.sqrt(below)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.floats(0, 1)), max_size=40),
    st.sampled_from(["stop", "promote"]),
)
def test_any_order_of_any_reports_replays(steps, variant):
    """Also reports in no order that a study could have: the verdicts are those of the log."""
    log = [report(trial, value, rung) for trial, rung, value in steps]
    first, second = halving(variant=variant), halving(variant=variant)
    verdicts = [first.on_report(item) for item in log]
    for item, verdict in zip(log, verdicts, strict=True):
        assert second.on_report(item) == verdict
    held = set(first._held)
    assert first.choose_paused(held) == second.choose_paused(sorted(held, reverse=True))
    assert {t: first.standing(t) for t in held} == {t: second.standing(t) for t in held}
