"""Noisy-prefix halving: nobody passes the barrier before all are there, then the best do."""

import math
import random

import pytest

from dpsweep.schedulers.noisy_prefix import NoisyPrefix
from dpsweep.study.trial import Decision, TrialReport

SCORES = [0.4, math.nan, 0.7, 0.7, None, 0.1]


def at_barrier(trial, score, *, step=20, done=False):
    metrics = {} if score is None else {"score": score}
    return TrialReport(trial, step, metrics, 0.05, rung=1, done=done)


def made(scores=SCORES, *, keep=1, maximize=True, order=None):
    policy = NoisyPrefix(metric="score", maximize=maximize, keep=keep)
    for trial in order or range(len(scores)):
        verdict = policy.on_report(at_barrier(trial, scores[trial]))
        assert verdict.decision is Decision.PAUSE
    return policy


def promoted(policy, paused):
    paused, chosen = set(paused), []
    while (trial := policy.choose_at_barrier(paused, chosen)) is not None:
        assert policy.choose_paused(paused) is policy.choose_last(paused) is None
        chosen.append(trial)
        paused.remove(trial)
    return chosen


@pytest.mark.parametrize(
    ("keep", "maximize", "best"),
    [(1, True, [2]), (2, True, [2, 3]), (3, True, [2, 3, 0]), (1, False, [5]), (2, False, [5, 0])],
)
def test_the_best_go_on_and_equal_ones_by_number(keep, maximize, best):
    policy = made(keep=keep, maximize=maximize)
    assert promoted(policy, range(6)) == best
    standing = {trial: policy.standing(trial).decision for trial in range(6)}
    assert {t for t, said in standing.items() if said is Decision.CONTINUE} == set(best)
    assert {t for t, said in standing.items() if said is Decision.STOP} == set(range(6)) - {*best}


def test_whoever_replays_the_journal_promotes_the_same():
    """In any order of arrival, with reports that come twice, and after any promotion."""
    for seed in range(50):
        rng = random.Random(seed)
        scores = [rng.choice([0.1, 0.2, 0.3, math.inf, None]) for _ in range(12)]
        keep = rng.randint(1, 4)
        whole = promoted(made(scores, keep=keep), range(12))
        again = made(scores, keep=keep, order=rng.sample(range(12), 12))
        for trial in rng.sample(range(12), 5):
            again.on_report(at_barrier(trial, scores[trial]))
        assert promoted(again, range(12)) == whole
        first = rng.randint(0, keep)
        left = set(range(12)) - set(whole[:first])
        assert promoted(again, left) == whole[first:]


def test_nobody_goes_on_while_one_is_on_the_way():
    policy = made()
    assert policy.choose_at_barrier(range(6), [6]) is None
    assert policy.choose_at_barrier(range(6), [0]) == 2  # who runs again was promoted
    policy.on_report(at_barrier(6, 0.9))
    assert policy.choose_at_barrier(range(7), []) == 6


def test_who_has_ended_before_is_not_promoted():
    policy = made()
    ended = policy.on_report(at_barrier(6, 0.9, step=17, done=True))
    assert ended.decision is Decision.CONTINUE
    assert promoted(policy, range(6)) == [2]


def test_nobody_takes_the_place_of_one_that_was_promoted():
    policy = made()
    assert policy.choose_at_barrier({0, 1, 3, 4, 5}, []) is None
    assert policy.standing(3).reason == (
        "0.7 at the end of the noisy prefix is not promoted: place 2 of 6 (best 1 goes on)"
    )


def test_later_reports_are_not_judged():
    policy = made()
    assert policy.on_report(at_barrier(2, 0.1, step=40)).decision is Decision.CONTINUE
    assert policy.on_report(at_barrier(2, 0.1, step=135, done=True)).decision is Decision.CONTINUE
    assert policy.standing(2).value == 0.7
