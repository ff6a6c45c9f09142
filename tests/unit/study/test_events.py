"""Events of a journal: every line of every version is read, and written as it was."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from dpsweep.study import events
from dpsweep.study.journal import fold
from dpsweep.study.trial import Decision, TrialReport, Verdict

OLD = sorted((Path(__file__).parents[2] / "golden" / "old_studies").glob("**/journal.jsonl"))
OF_THE_LINE = ("seq", "time_ms", "crc")
REPORT = TrialReport(
    2, 7, {"validation/accuracy": 0.5}, math.inf, rung=1, value=0.5, best_step=7, charged=7
)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.parent.name)
def test_old_journals_are_written_again_byte_by_byte(path):
    lines = lines_of(path)
    assert len(lines) > 2
    for line in lines:
        own = {key: value for key, value in line.items() if key not in OF_THE_LINE}
        event = events.event_of(line)
        assert json.dumps(event.to_json()) == json.dumps(own)
        assert (event.seq, event.time_ms) == (line["seq"], line["time_ms"])


SAMPLES = [
    events.StudyStarted("digits", "name: digits", {"seed": 1}, {"dp.delta": 1e-5}, "card"),
    events.Pretrained("tanh_cnn", {"lr": 1}, ["a.json"], "ab", "cd", [{"loss": 1.0}], 5, None, 2.0),
    events.TrialStarted(0, {"method": "dp_sgd"}, {"steps": 3}, {"dp.sampling": "poisson"}),
    events.TrialReported.of(REPORT),
    events.TrialEnded.of(REPORT, state="pruned", reason="slow", tags={}, artifacts=["x"]),
    events.TrialJudged.of(REPORT, Verdict(Decision.STOP, 1, 0.5, 0.6, "below")),
    events.TrialPaused(0, 5, 0.5, "paused"),
    events.TrialCharged(0, 5, 6, None),
    events.TrialInfeasible(4, {"optim.lr": 1.0}, "over"),
    events.ModelLogged(0, "models:/m", ("a.png",)),
    events.StudySpent(1.5, 0.5),
    events.StudyDowngraded("a reason", "card"),
    events.CardRenewed("card", ["report.html"]),
    events.StudyEnded("finished", "done", "card", {"best/value": 1.0}, {"dp.x": "y"}, ["z"]),
]


def test_there_is_a_sample_of_every_kind():
    assert {type(event) for event in SAMPLES} == set(events.KINDS.values())


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.kind)
def test_an_event_comes_back_from_its_line(event):
    line = json.loads(json.dumps({"seq": 3, "time_ms": 9, **event.to_json(), "of_a_newer": 1}))
    back = events.event_of(line)
    assert type(back) is type(event)
    assert (back.seq, back.time_ms) == (3, 9)
    for key in dataclasses.fields(event):
        if key.compare:
            assert json.dumps(getattr(back, key.name)) == json.dumps(getattr(event, key.name))


def test_an_infinite_epsilon_is_null_and_comes_back_infinite():
    line = events.TrialReported.of(REPORT).to_json()
    assert line["epsilon"] is None
    report = events.event_of(line).report()
    assert (report.epsilon, report.done, report.value) == (math.inf, False, 0.5)
    assert events.TrialEnded.of(REPORT).report().done


def test_a_kind_of_a_newer_version_moves_the_clock_and_nothing_else():
    lines = [
        {"seq": 0, "time_ms": 10, **events.StudyStarted("digits").to_json()},
        {"seq": 1, "time_ms": 25, "event": "coffee_break", "trial": 4},
    ]
    assert events.event_of(lines[1]) is None
    view = fold(lines)
    assert (view.state, view.worked_ms, view.trials) == ("running", 15, {})


def test_a_missing_key_of_every_version_is_refused():
    with pytest.raises(KeyError, match="share"):
        events.event_of({"event": "study_spent", "epsilon": 1.0})


def test_a_null_mapping_is_an_empty_one():
    assert events.event_of({"event": "study_started", "name": "x", "tags": None}).tags == {}


def test_a_launch_begins_without_the_reason_that_ended_the_one_before():
    """Or `status` names it of a study that runs."""
    launches = [events.StudyStarted("s"), events.StudyEnded("failed", "mostly failed")]
    lines = [{"time_ms": 1, **event.to_json()} for event in launches]
    assert (fold(lines).state, fold(lines).end_reason) == ("failed", "mostly failed")
    again = fold([*lines, lines[0]])
    assert (again.state, again.end_reason) == ("running", "")
