"""The progress line: what its ETA extrapolates."""

import io

import pytest
from rich.console import Console

from dpsweep.cli import progress
from dpsweep.cli.progress import ProgressDisplay
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.trial import TrialState

DONE, RUNNING = TrialState.FINISHED, TrialState.RUNNING
SPEC = {
    "name": "progress",
    "data": {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
    "privacy": {
        "accounting": "composed",
        "trial_epsilon": 3.0,
        "study_epsilon": 8.0,
        "delta": 1e-5,
    },
    "search": {"num_trials": 10, "space": {"method": "dp_sgd"}},
}


@pytest.fixture
def clock(monkeypatch):
    moments = {"now": 100.0}
    monkeypatch.setattr(progress.time, "monotonic", lambda: moments["now"])
    return moments


def view(*trials):
    """Return a view of trials, each a state and its share of 100 steps."""
    found = {
        number: TrialView(number, state=state, step=int(100 * share), num_steps=100)
        for number, (state, share) in enumerate(trials)
    }
    return StudyView(trials=found, spent_share=0.5)


def eta(display, shown):
    _, found, rest = display.summary(shown).partition("ETA ")
    return rest if found else None


def test_a_start_and_the_trials_after_it_are_extrapolated_apart(clock):
    """The start's two runs take minutes, its four users seconds: neither says how long the other is.

    What is spent says nothing, either: the start spends most of it.
    """
    start = {"epsilons": [1.0], "runs": 2}
    search = {"num_trials": 4, "space": {"method": "active_learning"}}
    started = {"start": start, "search": search}
    display = ProgressDisplay(SweepSpec(**{**SPEC, **started}), 6, Console(quiet=True))
    assert eta(display, view((RUNNING, 0), (RUNNING, 0))) is None
    clock["now"] += 60
    assert eta(display, view((RUNNING, 0.5), (RUNNING, 0))) == "3:00 of the start"
    clock["now"] += 180
    ended = [(DONE, 1), (DONE, 1)]
    assert eta(display, view(*ended)) is None
    clock["now"] += 10
    assert eta(display, view(*ended, (DONE, 1), (RUNNING, 0))) == "0:30"
    clock["now"] += 10
    assert eta(display, view(*ended, (DONE, 1), (DONE, 1), (RUNNING, 0.5))) == "0:12"


def test_without_a_start_the_budget_counts_too(clock):
    """Trials that are stopped early leave budget to more of them: what is spent may be ahead."""
    display = ProgressDisplay(SweepSpec(**SPEC), 10, Console(quiet=True))
    first = view((RUNNING, 0))
    first.spent_share = 0.0
    assert eta(display, first) is None
    clock["now"] += 90
    assert eta(display, view((DONE, 1), (DONE, 1))) == "1:30"


def test_time_passes_before_the_first_report(clock):
    """A trial may take minutes until then; a terminal shows it from its start."""
    console = Console(force_terminal=True, width=120, file=io.StringIO())
    display = ProgressDisplay(SweepSpec(**SPEC), 10, console)
    display.on_view(view((RUNNING, 0)))
    clock["now"] += 83
    with console.capture() as capture:
        console.print(display._shown())
    shown = capture.get()
    assert "trials have run for 1:23" in shown
    assert "0/100" in shown
    assert "at its last report: delta 1e-05" in shown


def test_a_log_gets_no_line_before_there_is_something_to_tell(clock):
    console = Console(file=io.StringIO(), width=200)
    display = ProgressDisplay(SweepSpec(**SPEC), 10, console)
    display.on_view(view((RUNNING, 0)))
    assert console.file.getvalue() == ""
    reported = view((RUNNING, 0.5))
    reported.trials[0].reports.append({"step": 50, "epsilon": 1.0, "metrics": {}})
    display.on_view(reported)
    assert "0/10 trials" in console.file.getvalue()


def shown_on_a_terminal(display, monkeypatch):
    """Return what stands on a terminal after a view."""
    monkeypatch.setattr(display._live, "start", lambda: None)
    return " ".join(str(part) for part in display._panel_now.renderables if not_a_table(part))


def not_a_table(part):
    return not hasattr(part, "columns")


def test_trials_of_different_samplings_are_shown_together(clock, monkeypatch):
    """The terms beside the table are those of all its rows: mixed."""
    display = ProgressDisplay(
        SweepSpec(**SPEC), 10, Console(file=io.StringIO(), force_terminal=True)
    )
    trials = view((RUNNING, 0.5), (RUNNING, 0), (RUNNING, 0))
    for number, sampling in enumerate(("poisson", "full_batch", "none")):
        trials.trials[number].sampling = sampling
    display.on_view(trials)
    assert ", mixed, rdp, " in shown_on_a_terminal(display, monkeypatch)
    trials.trials[1].sampling = "none"
    display.on_view(trials)
    assert ", poisson, rdp, " in shown_on_a_terminal(display, monkeypatch)


def test_a_table_that_cannot_be_drawn_ends_no_study(clock, monkeypatch):
    display = ProgressDisplay(
        SweepSpec(**SPEC), 10, Console(file=io.StringIO(), force_terminal=True)
    )

    def fail(view):
        raise ValueError("no such column")

    monkeypatch.setattr(display, "_panel", fail)
    display.on_view(view((RUNNING, 0.5)))
    assert "no table can be drawn: ValueError" in shown_on_a_terminal(display, monkeypatch)
