"""The best model, from the process of the last trial; what cannot be had there is rebuilt."""

from types import SimpleNamespace

import pytest

from dpsweep.foundation.errors import ModelError, NothingWithinBudgetError
from dpsweep.running import handing_on
from dpsweep.running.handing_on import HandingOn
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.trial import TrialState
from dpsweep.trainables.execution.finished.predictions import Shown


class Drawing:
    def __init__(self):
        self.asked = []

    def load(self):
        self.asked.append("load")

    def begin(self):
        self.asked.append("begin")


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study whose best trial is 3."""
    best = SimpleNamespace(trial_id=3)
    result = SimpleNamespace(best=lambda: best)
    monkeypatch.setattr(handing_on.SweepResult, "of", lambda study: result)
    data = SimpleNamespace(
        test=SimpleNamespace(visibility="public"), validation=SimpleNamespace(visibility="exact")
    )
    files = SimpleNamespace(
        trial=lambda trial: tmp_path / f"{trial:04d}", confusion=tmp_path / "confusion.json"
    )
    return SimpleNamespace(
        spec=SimpleNamespace(data=data),
        files=files,
        view=SimpleNamespace(model_uris={}),
        result=result,
    )


@pytest.fixture
def parts(study):
    said, drawing = [], Drawing()
    observer = SimpleNamespace(on_stage=said.append)
    return HandingOn(study, observer, drawing, is_wanted=True, num_trials=4), said, drawing


def answers(sheet=None, **wrong):
    """Return what asks a process, and the names of what it was asked."""
    asked = []

    def ask(name, *given):
        asked.append((name, *given))
        if name in wrong:
            raise wrong[name]
        if name == "graph_of_model":
            return "a graph"
        return Shown("test", ("a", "b"), [[5, 1], [2, 6]], sheet)

    return ask, asked


def test_it_is_taken_with_what_it_predicts(study, parts, tmp_path):
    hand_on, said, drawing = parts
    ask, asked = answers(sheet=tmp_path / "examples.png")
    hand_on.take(ask)
    hand_on.begin()  # as the launch does afterwards
    assert asked == [("show_model", str(tmp_path / "0003"), "test", 50), ("graph_of_model",)]
    assert said == ["logging the best model"]
    assert drawing.asked == ["load", "begin"]  # before the graph, which takes longest
    handed = hand_on.of(3)
    assert (handed.graph, handed.figures) == ("a graph", (tmp_path / "examples.png",))
    assert "[5, 1], [2, 6]" in study.files.confusion.read_text()
    assert hand_on.of(2) is None


@pytest.mark.parametrize("error", [ModelError("no"), TimeoutError(), RuntimeError("Ray is gone")])
@pytest.mark.parametrize("call", ["show_model", "graph_of_model"])
def test_what_cannot_be_had_there_is_left_to_the_driver(parts, call, error):
    hand_on, _, _ = parts
    hand_on.take(answers(**{call: error})[0])
    assert hand_on.of(3) is None


def test_nobody_is_asked_for_what_nobody_wants(study, parts, monkeypatch):
    hand_on, said, drawing = parts
    ask, asked = answers()
    HandingOn(study, None, drawing, is_wanted=False, num_trials=4).take(ask)
    study.view.model_uris[3] = "models:/m-1"
    hand_on.take(ask)  # it was logged by an earlier launch

    def none():
        raise NothingWithinBudgetError("no trial has finished")

    monkeypatch.setattr(study.result, "best", none)
    hand_on.take(ask)
    assert asked == said == drawing.asked == []


@pytest.mark.parametrize(
    ("seconds", "states", "is_loaded"),
    [
        (4.0, ["finished", "running"], False),  # three are left, four seconds each
        (0.9, ["finished", "running"], True),
        (2.9, ["finished", "pruned", "failed", "running"], True),
        (3.1, ["finished", "pruned", "failed", "paused"], False),
        (60.0, ["finished", "pruned", "failed", "finished"], True),
    ],
)
def test_what_draws_is_loaded_before_the_end_and_not_long_before(
    study, parts, monkeypatch, seconds, states, is_loaded
):
    """Of four trials; it is no small process, and a study may take days."""
    hand_on, said, drawing = parts
    trials = {n: TrialView(n, state=TrialState(s)) for n, s in enumerate(states)}
    study.view = StudyView(trials=trials)
    clock = [hand_on._begun]
    monkeypatch.setattr(handing_on.time, "monotonic", lambda: clock[0])
    for _ in range(len([state for state in states if state not in ("running", "paused")])):
        clock[0] += seconds
        drawing.asked.clear()
        hand_on.expect()
    assert drawing.asked == (["load"] if is_loaded else [])
    assert said == []  # nothing is told yet
