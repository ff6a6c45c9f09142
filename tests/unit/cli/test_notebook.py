"""Progress in a notebook: one output, everything escaped, and of a selection nothing."""

import builtins
import sys
from types import ModuleType, SimpleNamespace

import pytest

import dpsweep
from dpsweep.cli import notebook
from dpsweep.cli.notebook import NotebookDisplay, notebook_output
from dpsweep.cli.progress import ProgressDisplay
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView, TrialView

SPEC = {
    "name": "progress",
    "data": {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
    "privacy": {
        "accounting": "composed", "trial_epsilon": 3.0, "study_epsilon": 8.0, "delta": 1e-5,
    },
    "search": {"num_trials": 10, "space": {"method": "dp_sgd"}},
}  # fmt: skip
SELECT = {
    **SPEC,
    "privacy": {
        "accounting": "select", "trial_epsilon": 1.0, "delta": 1e-5, "selection": {"mean": 3},
    },
    "search": {"space": {"method": "dp_sgd"}},
}  # fmt: skip
VIEW = StudyView(
    trials={
        0: TrialView(0, {"method": "<b>"}, step=3, num_steps=9, epsilon=0.4, sampling="poisson")
    }
)


@pytest.fixture
def shown(monkeypatch):
    """A notebook's kernel, and what its output shows, in order."""
    updates = []
    display = ModuleType("IPython.display")
    display.HTML = lambda text: text
    display.display = lambda html, display_id: SimpleNamespace(update=updates.append)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr(notebook, "_EVERY_S", 0.0)
    return SimpleNamespace(updates=updates, shell=shell)


def test_it_shows_trials_with_all_terms_and_then_messages_alone(shown):
    with dpsweep.progress(SweepSpec(**SPEC)) as display:
        assert isinstance(display, NotebookDisplay)
        display.on_message("a <new> dataset ledger")
        display.on_view(VIEW)
    running, after = shown.updates[-2:]
    for words in ("a &lt;new&gt; dataset ledger", "0/10 trials", "3/9", "delta 1e-05", "composed"):
        assert words in running
    assert "<b>" not in running
    assert "3/9" not in after
    assert "a &lt;new&gt; dataset ledger" in after


def test_of_a_selection_it_shows_no_trial(shown):
    with dpsweep.progress(SweepSpec(**SELECT)) as display:
        display.on_stage("running trials")
        display.on_view(VIEW)
    assert "running trials" in shown.updates[-1]
    assert not any("3/9" in text or " s " in text for text in shown.updates)


def test_elsewhere_it_is_the_display_of_the_command_line(shown, monkeypatch):
    shown.shell.kernel = None  # a terminal's IPython
    assert notebook_output() is None
    monkeypatch.delattr(builtins, "get_ipython")
    assert notebook_output() is None
    display = dpsweep.progress(SweepSpec(**SPEC))
    assert type(display) is ProgressDisplay
    assert shown.updates == []
