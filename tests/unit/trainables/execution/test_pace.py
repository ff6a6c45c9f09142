"""What a crash between two reports can lose: a few seconds of work, and no question asked twice."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, NonPrivate, Plan, PoissonGaussian
from dpsweep.running.stage import Stage
from dpsweep.study.files import StudyFiles
from dpsweep.trainables.execution.pace import CHARGE_S, KEEP_S, TIMES_CHARGING, Pace

STEPS = Plan((EventRun(PoissonGaussian(8.0, 0.1), 40),))
QUESTIONS = Plan((
    EventRun(Gaussian(40.0), 1, "pca"),
    EventRun(Laplace(40.0), 1, "votes"),
    EventRun(NonPrivate(), 12, "finetune", "public"),
))  # fmt: skip


class Threes(Pace):
    """Charges three steps at once, and keeps every second of such portions."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.portions = 3, 0

    @contextmanager
    def running(self, steps: int) -> Iterator[None]:
        yield
        self.portions += 1

    def is_due(self) -> bool:
        return self.portions % 2 == 0


def killed_at(lab: Any, trial: Any, position: int) -> None:
    """Advance to the next report, and die on the first step from a position on."""
    run = trial.method.run

    def dying(start: int, stop: int) -> None:
        if stop > position:
            raise lab.Killed
        run(start, stop)

    trial.method.run = dying
    with pytest.raises(lab.Killed):
        trial.advance()
    trial.close()


def told_of(lab: Any, what: str = "", *, is_damaged: bool = False) -> str:
    """Return what is said when trial 0 continues."""
    said: list[str] = []
    stage = SimpleNamespace(
        study=SimpleNamespace(files=StudyFiles(lab.path.parent, lab.path.name)),
        observer=SimpleNamespace(on_message=said.append),
        _notes=set(),
    )
    stage._tell_note = functools.partial(Stage._tell_note, stage)
    Stage.say_continuing(stage, 0, what)
    *damages, text = said
    assert bool(damages) == is_damaged
    return text


def test_a_crash_between_reports_loses_what_was_charged_since_a_model_was_kept(lab: Any) -> None:
    """Kept at 6 and 12, charged to 18: six steps are lost, not all eighteen."""
    settings = lab.settings(report_every=20)
    task = lab.scripted(STEPS)
    killed_at(lab, lab.open(settings, task, Threes()), 15)
    assert len(trial_spent(settings.ledger, 0)) == 18
    told = "trial 0: continuing at step 12; 6 charged steps were lost and stay spent"
    assert told_of(lab) == told
    resumed = lab.open(settings, task, Threes())
    assert resumed.position == 12
    reports = lab.finish(resumed)
    assert [report.step for report in reports] == [20, 40]
    assert reports[-1].charged == 46


def test_steps_on_public_records_are_no_loss(lab: Any) -> None:
    """What near_private asks is kept at once; passes over public records are free."""
    settings = lab.settings(report_every=1000)
    task = lab.scripted(QUESTIONS)
    killed_at(lab, lab.open(settings, task), 5)
    free = len(trial_spent(settings.ledger, 0)) - 2
    at_2 = f"trial 0: continuing at step 2; repeated at no cost: {free} public steps"
    assert told_of(lab) == at_2
    for path in StudyFiles(lab.path.parent, lab.path.name).trial(0).glob("*.ckpt"):
        path.unlink()
    assert told_of(lab, is_damaged=True) == (
        "trial 0: continuing at step 0; 2 charged steps were lost and stay spent; repeated at no "
        f"cost: {free} public steps"
    )
    killed_at(lab, lab.open(settings, task), 0)  # both are charged again, and lost again
    assert "; 3 charged steps were lost and stay spent; rep" in told_of(lab, is_damaged=True)


def test_nothing_is_said_to_be_lost_where_nothing_is(lab: Any) -> None:
    trial = lab.open(lab.settings(report_every=20), lab.scripted(STEPS))
    assert told_of(lab, " the start") == "trial 0: continuing the start at step 0"
    trial.advance()
    trial.close()
    assert told_of(lab) == "trial 0: continuing at step 20"


def test_a_model_that_was_kept_between_reports_is_not_reported(lab: Any) -> None:
    """Its metrics are those of the report before; the next report is the one that comes anyway."""
    settings = lab.settings(report_every=20)
    task = lab.scripted(STEPS)
    trial = lab.open(settings, task, Threes())
    first = trial.advance()
    charge = trial.ledger.charge

    def killed(start: int, stop: int, events: Plan) -> None:
        if start == 23:  # kept by now, and nothing is charged after it
            raise lab.Killed
        charge(start, stop, events)

    trial.ledger.charge = killed
    with pytest.raises(lab.Killed):
        trial.advance()
    trial.close()
    resumed = lab.open(settings, task, Threes())
    assert resumed.position == 23
    last = resumed.advance()
    assert (first.step, last.step, last.done) == (20, 40, True)
    assert first.metrics["validation/accuracy"] == pytest.approx(20 / 1e6)
    assert last.metrics["validation/accuracy"] == pytest.approx(40 / 1e6)


@pytest.mark.parametrize("position", [2, 5])
def test_a_question_is_never_asked_twice(lab: Any, position: int) -> None:
    """Questions are charged alone and kept at once, however long the public passes take."""
    settings = lab.settings(report_every=1000)
    task = lab.scripted(QUESTIONS)
    killed_at(lab, lab.open(settings, task), position)
    resumed = lab.open(settings, task)
    assert resumed.position == 2
    (report,) = lab.finish(resumed)
    assert (report.step, report.reason) == (14, "plan complete")
    spent = trial_spent(settings.ledger, 0)
    assert [run.count for run in spent.runs if run.part == "private"] == [1, 1]


@pytest.mark.parametrize(("lost", "sigma", "scale"), [(0, 2.8, 40.0), (1, 40.0, 0.8)])
def test_a_trial_that_lost_a_question_fails(
    lab: Any, lost: int, sigma: float, scale: float
) -> None:
    """Passes over public records are free, but what they were to learn from cannot be asked."""
    first, second, passes = QUESTIONS.runs
    questions = replace(first, event=Gaussian(sigma)), replace(second, event=Laplace(scale))
    task = lab.scripted(Plan((*questions, passes)))
    settings = lab.settings(report_every=1000)
    killed_at(lab, lab.open(settings, task), lost)
    (report,) = lab.finish(lab.open(settings, task))
    assert (report.step, report.charged, report.metrics) == (lost, lost + 1, {})
    assert (
        report.failure
        == report.reason
        == (f"stopped at the cap after {lost} of 14 steps: 1 charged step was lost to crashes")
    )


def test_a_charge_covers_some_seconds_of_work_as_steps_go() -> None:
    moment = 0.0
    pace = Pace(clock=lambda: moment)
    assert pace.steps == 1
    for seconds, steps in ((0.1, 50), (20.0, 1), (0.5, 10)):
        with pace.running(10):
            moment += 10 * seconds
        assert pace.steps == steps == max(1, round(CHARGE_S / seconds))
    with pace.charging():
        moment += 1.0
    with pace.running(10):
        moment += 10 * 0.1
    assert pace.steps == round(TIMES_CHARGING / 0.1)  # not a second of charges for five of work
    pace.kept()
    moment += KEEP_S - 1
    assert not pace.is_due()
    moment += 1
    assert pace.is_due()
    pace.kept()
    assert not pace.is_due()
    with pace.running(10):
        pass
    assert pace.steps == 20  # in no time: more
