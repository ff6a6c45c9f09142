"""Rungs in epsilon: a trial reports exactly at the position where it has spent that much."""

import dataclasses

import pytest

from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import calibrate_noise_schedule
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.privacy.schedules import NoiseSchedule
from dpsweep.study.journal import replay
from dpsweep.testing.conformance import tiny_data

DELTA = 1e-5
RUNGS = (0.25, 0.5, 1.0, 1.5, 50.0)
NOTHING = Plan(())
ONE_OFF = Plan((EventRun(Gaussian(12.0), phase="normalize"),))


def plan_of(shape, sample_rate, steps, end_ratio=0.6, before=NOTHING, target=1.9):
    """Return a plan of training steps after ``before`` that costs ``target`` in all."""
    schedule = NoiseSchedule(shape, 1.0 if shape == "constant" else end_ratio)
    budget = PrivacyBudget(target, DELTA)
    start = calibrate_noise_schedule(
        budget, schedule=schedule, sample_rate=sample_rate, steps=steps, before=before
    )
    return before + schedule.plan(start, sample_rate, steps)


def epsilon(plan, stop):
    return epsilon_of(plan.slice(0, stop), delta=DELTA)


def reached_at(plan, rung, accountant="rdp"):
    """Return the first position at ``rung`` by the definition, one accountant call a position."""
    for stop in range(1, len(plan) + 1):
        if epsilon_of(plan.slice(0, stop), delta=DELTA, accountant=accountant) >= rung:
            return stop
    return None


PLANS = [
    plan_of("constant", 0.2, 90),
    plan_of("cosine", 0.1, 80),
    plan_of("linear", 0.02, 110, end_ratio=0.8),
    plan_of("constant", 0.01, 300),
    plan_of("cosine", 0.1, 80, before=ONE_OFF),
    plan_of("linear", 0.05, 60, end_ratio=1.4, before=ONE_OFF),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("plan", PLANS, ids=range(len(PLANS)))
@pytest.mark.parametrize("every", [25, 1000])
def test_reports_are_exactly_at_the_rungs(lab, plan, every):
    settings = lab.settings(rungs=RUNGS, report_every=every)
    reports = lab.run(settings, lab.scripted(plan))
    where = [reached_at(plan, rung) for rung in RUNGS]
    reachable = [position for position in where if position is not None]
    assert len(reachable) >= 2
    grid = set(range(every, len(plan), every))
    assert [report.step for report in reports] == sorted({*grid, *reachable, len(plan)})
    for report in reports:
        assert report.rung == sum(position <= report.step for position in reachable)
    for number, rung in enumerate(RUNGS[: len(reachable)]):
        report = next(report for report in reports if report.rung > number)
        assert epsilon(plan, report.step - 1) < rung <= report.epsilon
    assert reports[-1].rung == len(reachable) < len(RUNGS)


def test_a_plan_that_ends_before_a_rung_never_reaches_it(lab):
    plan = plan_of("constant", 0.05, 40)
    settings = lab.settings(rungs=(epsilon(plan, 20), epsilon(plan, 40) + 1e-9))
    reports = lab.run(settings, lab.scripted(plan))
    assert [(report.step, report.rung) for report in reports] == [
        (10, 0),
        (20, 1),
        (30, 1),
        (40, 1),
    ]


def test_a_rung_below_the_first_event_is_reached_with_it(lab):
    plan = plan_of("constant", 0.05, 40, before=ONE_OFF)
    first = epsilon(plan, 1)
    settings = lab.settings(rungs=(first / 3, first / 2), report_every=100)
    reports = lab.run(settings, lab.scripted(plan))
    assert [(report.step, report.rung) for report in reports] == [(1, 2), (41, 2)]


def test_the_pld_accountant_has_rungs_of_its_own(lab):
    plan = plan_of("constant", 0.2, 12)
    rung = 0.6 * epsilon_of(plan, delta=DELTA, accountant="pld")
    settings = lab.settings(rungs=(rung,), accountant="pld", report_every=100)
    reports = lab.run(settings, lab.scripted(plan))
    assert [report.step for report in reports] == [reached_at(plan, rung, "pld"), 12]
    assert reports[0].step != reached_at(plan, rung, "rdp")
    assert [report.rung for report in reports] == [1, 1]


def test_a_continued_trial_does_not_report_a_rung_twice(lab):
    plan = PLANS[0]
    settings = lab.settings(rungs=RUNGS, report_every=1000)
    whole = lab.run(settings, lab.scripted(plan))
    parts = []
    while not parts or not parts[-1].done:  # another process after each report, as when paused
        trial = lab.open(settings, lab.scripted(plan, trial=1))
        parts.append(trial.advance())
        trial.pause()
    assert [(r.step, r.rung) for r in parts] == [(r.step, r.rung) for r in whole]
    assert [r.epsilon for r in parts] == pytest.approx([r.epsilon for r in whole], rel=1e-12)


def test_lost_steps_bring_the_rungs_forward(lab):
    plan = PLANS[0]
    first, second = reached_at(plan, 1.0), reached_at(plan, 1.5)
    settings = lab.settings(rungs=(1.0, 1.5), report_every=10)
    task = lab.scripted(plan)
    lab.crash_in_segment(lab.open(settings, task), 2)  # position 10, 20 steps charged
    assert first > 20
    reports = lab.run(settings, task)
    at_first = next(report for report in reports if report.rung == 1)
    assert at_first.step == first - 10  # one noise multiplier: 10 lost steps are 10 fewer
    at_second = next(report for report in reports if report.rung == 2)
    assert at_second.step == second - 10
    for report, rung in ((at_first, 1.0), (at_second, 1.5)):
        assert epsilon(plan, report.step + 10 - 1) < rung <= report.epsilon
        assert report.epsilon == pytest.approx(epsilon(plan, report.step + 10), rel=1e-12)


def test_a_rung_that_lost_steps_have_reached_is_reported_with_the_next_model(lab):
    plan = PLANS[0]
    settings = lab.settings(rungs=(0.5, 1.0), report_every=1000)
    task = lab.scripted(plan)
    lab.crash_in_segment(lab.open(settings, task), 1)  # everything up to the rung, and no model
    lost = reached_at(plan, 0.5)
    assert len(trial_spent(settings.ledger, 0)) == lost
    report = lab.open(settings, task).advance()
    assert (report.step, report.rung) == (1, 1)
    assert report.epsilon == pytest.approx(epsilon(plan, lost + 1), rel=1e-12)


def test_public_records_have_the_rungs_of_private_ones(lab):
    """So that a search on public records and the final run compare at the same lengths."""
    lab.data = tiny_data(num_public=300)
    plan = PLANS[1]
    settings = lab.settings(rungs=RUNGS)
    private = lab.run(settings, lab.scripted(plan))
    public = lab.run(settings, lab.scripted(plan, trial=1, records="public"))
    assert [(r.step, r.rung) for r in public] == [(r.step, r.rung) for r in private]
    assert {r.epsilon for r in public} == {0.0}

    again = lab.scripted(plan, trial=2, records="public")
    trial = lab.open(settings, again)
    reports = [trial.advance() for _ in range(3)]
    trial.pause()
    reports += lab.run(settings, again)
    assert [(r.step, r.rung) for r in reports] == [(r.step, r.rung) for r in private]


def test_rungs_are_of_training_alone(lab):
    """Noisy scores may cost more than a rung; a rung still means the same training."""
    plan = PLANS[0]
    scores = Plan((EventRun(Gaussian(5.0), 20, "score", "validation"),))
    assert epsilon_of(scores.slice(0, 1), delta=DELTA) > 0.5
    settings = lab.settings(
        rungs=(0.25, 0.5), report_every=20, validation="noisy", validation_noise=5.0
    )
    noisy = lab.run(settings, dataclasses.replace(lab.scripted(plan), validation_plan=scores))
    exact = lab.run(lab.settings(rungs=(0.25, 0.5), report_every=20), lab.scripted(plan, trial=1))
    assert [(r.step, r.rung) for r in noisy] == [(r.step, r.rung) for r in exact]
    assert all(n.epsilon >= e.epsilon for n, e in zip(noisy, exact))
    assert noisy[0].epsilon > exact[0].epsilon


def test_rungs_of_poisson_and_full_batches(lab):
    plan = Plan((EventRun(PoissonGaussian(60.0, 1.0), 100),))
    settings = lab.settings(rungs=(0.3,), report_every=1000)
    reports = lab.run(settings, lab.scripted(plan))
    assert [report.step for report in reports] == [reached_at(plan, 0.3), 100]


class TestFirstStep:
    """A rung that the first training step passes judges no trial."""

    LOUD = plan_of("constant", 0.9, 30, target=1.5)

    def test_a_report_says_which_rungs_it_has_passed_at_once(self, lab):
        first = epsilon(self.LOUD, 1)
        rungs = (first / 2, first, epsilon(self.LOUD, 9))
        reports = lab.run(lab.settings(rungs=rungs), lab.scripted(self.LOUD))
        assert [(r.step, r.rung, r.skipped) for r in reports][:2] == [(1, 2, 2), (9, 3, 2)]
        assert {r.skipped for r in reports} == {2}

    def test_releases_before_the_training_are_no_step(self, lab):
        plan = ONE_OFF + self.LOUD
        rungs = (epsilon(plan, 1) / 2, epsilon(plan, 2), epsilon(plan, 3))
        reports = lab.run(lab.settings(rungs=rungs), lab.scripted(plan))
        steps = [(r.step, r.rung, r.skipped) for r in reports]
        assert steps[:3] == [(1, 1, 2), (2, 2, 2), (3, 3, 2)]

    def test_no_rung_is_skipped_where_the_second_step_reaches_it(self, lab):
        rungs = (epsilon(self.LOUD, 2),)
        first = lab.run(lab.settings(rungs=rungs), lab.scripted(self.LOUD))[0]
        assert (first.step, first.rung, first.skipped) == (2, 1, 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("plan", PLANS, ids=range(len(PLANS)))
def test_shares_are_of_what_the_whole_plan_costs(lab, plan):
    """Whatever its target, a trial meets the others at the same share of it."""
    settings = lab.settings(rungs=(0.25, 0.5), rung_unit="share")
    reports = lab.run(settings, lab.scripted(plan))
    whole = epsilon(plan, len(plan))
    for number, share in enumerate((0.25, 0.5)):
        report = next(report for report in reports if report.rung > number)
        assert epsilon(plan, report.step - 1) < share * whole <= report.epsilon


def test_shares_hold_after_a_crash(lab):
    """They are of the plan as admitted; what a crash lost brings them closer."""
    plan = plan_of("constant", 0.1, 60)
    settings = lab.settings(rungs=(0.5,), rung_unit="share", report_every=5)
    execution = lab.open(settings, lab.scripted(plan))
    before = execution.advance()
    lost = plan.slice(before.step, before.step + 4)
    execution.ledger.charge(before.step, before.step + 4, lost)
    execution.close()
    reports = lab.run(settings, lab.scripted(plan))
    at = next(report for report in reports if report.rung == 1)
    spent = plan.slice(0, at.step - 1) + lost
    half = epsilon(plan, len(plan)) / 2
    assert epsilon_of(spent, delta=DELTA) < half <= at.epsilon


def test_old_journals_replay_without_the_field():
    """A report of an earlier version was judged where its first step passed a rung; it stays so."""
    old = {
        "event": "trial_report", "trial": 0, "step": 1, "epsilon": 1.0, "metrics": {}, "rung": 1,
        "value": None, "best_step": 0, "charged": 1,
    }  # fmt: skip
    assert [(r.rung, r.skipped) for r in replay([old, {**old, "skipped": 1}])] == [(1, 0), (1, 1)]
