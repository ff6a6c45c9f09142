"""Probes: which run comes next is decided by values and scores alone."""

import itertools
import math
import random

import pytest

from dpsweep.foundation.errors import InfeasibleBudgetError, SweepError
from dpsweep.privacy.events import Plan
from dpsweep.search.probes import NextRun, Probe, ProbeSource, next_run, told
from dpsweep.study.trial import TrialReport, TrialState, TrialTask

RATIO = 10.0


def probes(*scores, first=1.0):
    return [Probe(n, first * RATIO**n, score) for n, score in enumerate(scores)]


def after(*scores, spares=0, maximize=True):
    return next_run(probes(*scores), ratio=RATIO, spares=spares, maximize=maximize)


def test_the_vertex_of_a_parabola_is_its_own():
    for place in (0.6, 1.0, 1.4):
        scores = [1 - (n - place) ** 2 for n in range(3)]
        run = after(*scores)
        assert run.is_final
        assert math.log10(run.value) == pytest.approx(place)
    assert "the parabola through trials 0, 1, 2 has its vertex at 25.12" in run.reason


def test_the_vertex_is_at_most_one_point_away():
    rng = random.Random(1)
    for _ in range(300):
        scores = [rng.random() for _ in range(rng.randint(3, 9))]
        run = after(*scores)
        index = min(max(scores.index(max(scores)), 1), len(scores) - 2)
        assert index - 1 - 1e-9 <= math.log10(run.value) <= index + 1 + 1e-9
    assert after(0.5, 0.5, 0.5).value == 1.0  # flat: the first of the three
    assert after(0.1, 0.2, 0.9).value == 100.0  # it opens upwards: the end of the range
    assert "a wider one may hold a better value" in after(0.1, 0.8, 0.9).reason


def test_a_loss_is_minimised():
    assert after(0.9, 0.1, 0.9, maximize=False).value == pytest.approx(10.0)


def test_an_end_that_is_best_gets_spares_beyond_it():
    run = after(0.1, 0.5, 0.9, spares=2)
    assert (run.value, run.is_final) == (pytest.approx(1000.0), False)
    assert "trial 2 is best at the upper end" in run.reason
    assert after(0.9, 0.5, 0.1, spares=1).value == pytest.approx(0.1)
    inner = next_run([*probes(0.1, 0.5, 0.9), Probe(3, 1000.0, 0.6)], ratio=RATIO, spares=1)
    assert inner.is_final
    assert 10.0 < inner.value < 1000.0


def test_a_failed_neighbour_of_the_best_is_tried_again():
    run = after(0.1, 0.9, None, 0.2, spares=1)
    assert (run.value, run.is_final) == (pytest.approx(100.0), False)
    assert after(0.1, None, 0.9, 0.2, spares=1).value == pytest.approx(10.0)
    assert after(0.1, 0.9, None, 0.2).is_final
    again = [*probes(0.1, 0.9, None, 0.2), Probe(4, 100.0, 0.8)]
    assert next_run(again, ratio=RATIO, spares=1).is_final


def test_few_scores_and_none():
    assert after(None, None, None) is None
    run = after(None, 0.5, None)
    assert (run.value, run.is_final) == (10.0, True)
    assert "too few for a parabola" in run.reason
    assert told(run, "optim.noise_lr").endswith("; the final run has optim.noise_lr=10")
    spare = NextRun(3.0, False, Probe(1, 1.0, 0.5), "why")
    assert told(spare, "u") == "why; a spare probe has u=3"


# --- The source ------------------------------------------------------------------------------


class Plans:
    """Five points; the method takes no value above ``highest``."""

    ratio, points, highest = RATIO, tuple(10.0**n for n in range(5)), math.inf

    def probe(self, number, value):
        if value > self.highest:
            raise InfeasibleBudgetError("too large")
        return self._task(number, value)

    def final(self, value):
        return self._task(99, value)

    def _task(self, number, value):
        return TrialTask(number, "dp_sgd", {"u": value}, Plan(()), 1.0, is_private=True)


class Ledger:
    full = False

    def reserve(self, trial, plan, **more):
        return not self.full


def source(**changes):
    told_runs = []
    made = ProbeSource(
        Plans(), spares=2, maximize=True, ledger=Ledger(), admit=lambda task: None,
        tell=told_runs.append, **changes,
    )  # fmt: skip
    return made, told_runs


def play(made, score, *, stop_after=None):
    """Run a source to its end, one run at a time; return the runs as (number, value)."""
    runs = []
    while (task := made.next_task(num_running=0)) is not None:
        runs.append((task.trial, task.hparams["u"]))
        if len(runs) == stop_after:
            break
        value = score(task.hparams["u"])
        state = TrialState.FAILED if value is None else TrialState.FINISHED
        made.on_end(TrialReport(task.trial, 1, {}, 1.0, value=value), state)
    return runs


def peak(at):
    return lambda value: 1 - 0.01 * (math.log10(value) - at) ** 2


def test_points_then_spares_then_one_final_run():
    made, told_runs = source()
    runs = play(made, peak(2.3))
    assert [number for number, _ in runs] == [0, 1, 2, 3, 4, 99]
    assert math.log10(runs[-1][1]) == pytest.approx(2.3)
    assert made.is_exhausted
    assert made.end_reason == "the final run has ended"
    assert [run.is_final for run in told_runs] == [True]

    made, told_runs = source()
    runs = play(made, peak(5.2))
    assert [number for number, _ in runs] == [0, 1, 2, 3, 4, 5, 6, 99]
    assert math.log10(runs[-1][1]) == pytest.approx(5.2)
    assert [run.is_final for run in told_runs] == [False, False, True]


def test_nothing_is_decided_while_a_probe_runs():
    made, _ = source()
    for number in range(5):
        assert made.next_task(num_running=number).trial == number
    assert made.next_task(num_running=1) is None
    assert not made.is_exhausted


def test_what_was_killed_anywhere_goes_on_alike():
    for at, cut in itertools.product((2.3, 5.2, -1.0), range(1, 8)):
        whole = play(source()[0], peak(at))
        begun = play(source()[0], peak(at), stop_after=cut)
        values = dict(begun)
        is_final = 99 in values
        ended = {n: Probe(n, v, peak(at)(v)) for n, v in begun[:-1]}
        last = [Plans()._task(*begun[-1])]
        values.pop(99, None)
        made, _ = source(values=values, ended=ended, waiting=last, is_final_begun=is_final)
        rest = play(made, peak(at))
        assert begun[:-1] + rest == whole


def test_no_score_no_final_run():
    made, told_runs = source()
    assert len(play(made, lambda value: None)) == 5
    assert "no probe has a score" in made.end_reason
    assert told_runs == []


def test_a_spare_that_the_method_does_not_take_is_left_out():
    made, _ = source()
    made.plans.highest = 1e4
    runs = play(made, peak(5.2))
    assert [number for number, _ in runs] == [0, 1, 2, 3, 4, 99]
    assert runs[-1][1] == pytest.approx(1e4)


def test_what_was_declared_is_never_exceeded():
    made, _ = source()
    made.ledger.full = True
    with pytest.raises(SweepError, match="does not fit into what the study has declared"):
        made.next_task(num_running=0)
