"""The progress of a run in a notebook: one output that is brought up to date in place."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from html import escape
from typing import Any

from rich.console import Console

from dpsweep.cli.progress import ProgressDisplay
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView

_EVERY_S = 0.5
_KEPT = 8  # messages that stay in sight
_COLUMNS = 100


def progress(spec: SweepSpec) -> ProgressDisplay:
    """Return a display of a run of a spec, for ``run_sweep(spec, observer=...)``.

    In a notebook it is one output that changes in place, elsewhere that of ``dpsweep run``, on
    stderr. Use it as a context manager:

        with progress(spec) as display:
            result = run_sweep(spec, observer=display)

    Guarantees:
        As on the command line, of a study in ``select`` nothing is shown before its winner.

    Args:
        spec: A valid spec.
    """
    num_trials = preflight(spec).total_trials
    update = notebook_output()
    if update is None:
        return ProgressDisplay(spec, num_trials, Console(stderr=True))
    return NotebookDisplay(spec, num_trials, update)


def notebook_output() -> Callable[[str], Any] | None:
    """Return what puts HTML into an output of this notebook's cell; None outside of one."""
    try:
        shell = get_ipython()  # type: ignore[name-defined]
    except NameError:
        return None
    if getattr(shell, "kernel", None) is None:  # a terminal: it has a display of its own
        return None
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return lambda text: handle.update(HTML(text))


class NotebookDisplay(ProgressDisplay):
    """Watches a run: what a terminal would show, in one output of a notebook.

    Args:
        spec: The study's spec.
        num_trials: Trials that will run.
        update: Takes the HTML that the output is to show.
    """

    def __init__(self, spec: SweepSpec, num_trials: int, update: Callable[[str], Any]) -> None:
        console = Console(
            file=io.StringIO(), width=_COLUMNS, force_terminal=False, force_jupyter=False
        )
        super().__init__(spec, num_trials, console)
        self._update, self._messages, self._table = update, list[str](), ""
        self._last, self._one_at_a_time = 0.0, threading.Lock()

    def __enter__(self) -> NotebookDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._table = ""
        self._show()

    def _print(self, text: str) -> None:
        with self._one_at_a_time:
            self._messages = [*self._messages, text][-_KEPT:]
        self._show()

    def on_view(self, view: StudyView) -> None:
        """Show where the study stands; of a selection nothing is shown before its winner."""
        if self.is_silent(view) or time.monotonic() - self._last < _EVERY_S:
            return
        self._last = time.monotonic()
        self._table = self.drawn(view)
        self._show()

    def _show(self) -> None:
        text = "\n".join([*self._messages, self._table]).rstrip()
        self._update(f"<pre>{escape(text)}</pre>")
