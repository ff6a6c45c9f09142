"""Figures about single records stay in a file of the study's owner; plans may be empty."""

import json
import stat

import numpy as np
import pytest
from raised import PanicException, raising

from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.trainables.execution import execution
from dpsweep.trainables.execution.private_report import PRIVATE_FOLDER

PLAN = Plan((EventRun(Gaussian(20.0), 20),))


@pytest.fixture
def figures(lab, monkeypatch):
    found = {"private": "do not publish", "mu": [0.1, 0.2]}
    parts = {"private_report": lambda self: found}
    reporting = type("Reporting", (execution.TRAINABLES["scripted"],), parts)
    monkeypatch.setitem(execution.TRAINABLES, "scripted", reporting)
    return found


def private_file(lab):
    return lab.directory() / PRIVATE_FOLDER / "report.json"


def test_written_at_the_end_for_the_owner_alone(lab, figures):
    settings = lab.settings()
    trial = lab.open(settings, lab.scripted(PLAN))
    trial.advance()
    assert not private_file(lab).exists()
    report = lab.finish(trial)[-1]
    assert json.loads(private_file(lab).read_text()) == figures
    assert stat.S_IMODE(private_file(lab).stat().st_mode) == 0o600
    assert stat.S_IMODE(private_file(lab).parent.stat().st_mode) == 0o700
    assert not {"mu", "private"} & set(report.metrics)


def test_never_written_in_a_selection(lab, figures):
    settings = lab.settings(fresh_attempts=True)
    lab.run(settings, lab.scripted(PLAN))
    assert not private_file(lab).exists()


def test_a_method_without_figures_leaves_no_file(lab):
    lab.run(lab.settings(), lab.scripted(PLAN))
    assert not private_file(lab).parent.exists()


def test_an_empty_plan_is_one_report_that_costs_nothing(lab):
    settings = lab.settings(show_test=True, report_every=None)
    reports = lab.run(settings, lab.scripted(Plan(())))
    assert [report.done for report in reports] == [True]
    assert reports[0].epsilon == 0.0
    assert reports[0].reason == "plan complete"
    assert reports[0].metrics["test/accuracy"] == 0.0


def test_an_empty_plan_that_was_reported_is_reported_again_after_a_crash(lab):
    settings = lab.settings()
    lab.run(settings, lab.scripted(Plan(())))
    again = lab.run(settings, lab.scripted(Plan(())))
    assert [(report.done, report.epsilon) for report in again] == [(True, 0.0)]


def quotes_a_record(method):
    raise ValueError("record 4711")


@pytest.mark.parametrize(
    "private_report",
    [lambda method: {"mu": np.zeros(3)}, lambda method: object(), quotes_a_record],
)
def test_a_report_that_fails_fails_no_trial(lab, monkeypatch, private_report):
    parts = {"private_report": private_report}
    reporting = type("Reporting", (execution.TRAINABLES["scripted"],), parts)
    monkeypatch.setitem(execution.TRAINABLES, "scripted", reporting)
    reports = lab.run(lab.settings(), lab.scripted(PLAN))
    assert [report.done for report in reports] == [False, True]
    assert (reports[-1].reason, reports[-1].failure) == ("plan complete", "")
    assert "its `private_report` is no JSON, or fails: " in reports[-1].note
    assert "Error at " in reports[-1].note
    assert "4711" not in reports[-1].note
    assert reports[0].note == ""
    assert not private_file(lab).exists()


def test_a_report_that_panics_fails_no_trial(lab, monkeypatch):
    panic = raising(PanicException("record 4711"), module="others.method")
    reporting = type("Reporting", (lab.Method,), {"private_report": panic})
    monkeypatch.setitem(execution.TRAINABLES, "scripted", reporting)
    last = lab.run(lab.settings(), lab.scripted(PLAN))[-1]
    assert (last.reason, last.failure) == ("plan complete", "")
    assert last.note.endswith("fails: PanicException at method.py:2; it is left out")
