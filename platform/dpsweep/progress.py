"""The progress display of a run: trials, steps, epsilon, best so far, ETA; on stderr."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dpsweep.journal import StudyView
from dpsweep.privacy.accountants import shown_epsilon
from dpsweep.spec import SweepSpec
from dpsweep.study import Observer
from dpsweep.trial import TrialState

LINE_EVERY_S = 5.0


class ProgressDisplay(Observer):
    """Watches a run: a live table on a terminal, a plain line now and then elsewhere.

    Args:
        spec: The study's spec.
        num_trials: Trials that will run.
        console: Where to write (stderr).
    """

    def __init__(self, spec: SweepSpec, num_trials: int, console: Console) -> None:
        self._spec, self._num_trials, self._console = spec, num_trials, console
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._begun: dict[str, tuple[float, float]] = {}  # phase -> moment, and what was done
        self._last_line = 0.0
        self._accounting: str = spec.privacy.accounting

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def on_message(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(Text(text))

    def on_view(self, view: StudyView) -> None:
        """Show where the study stands; of a selection nothing is shown before its winner."""
        if view.downgraded:
            self._accounting = "unaccounted"
        if self._spec.privacy.accounting == "select":
            return
        if self._console.is_terminal:
            self._live.update(self._table(view))
        elif time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._last_line = time.monotonic()
            self._console.print(Text(self.summary(view)))

    def summary(self, view: StudyView) -> str:
        """Return one line: trials done, best so far, ETA."""
        moving = (TrialState.RUNNING, TrialState.PAUSED)
        ended = sum(trial.state not in moving for trial in view.trials.values())
        parts = [f"{ended}/{self._num_trials} trials"]
        for state in (TrialState.PRUNED, TrialState.PAUSED, TrialState.FAILED):
            number = view.count(state)
            parts += [f"{number} {state.value}"] if number else []
        if view.spent_share:
            parts.append(f"{view.spent_share:.0%} of the study's budget")
        scores = [(t.value, t) for t in view.trials.values() if t.value is not None]
        if scores:
            choose = max if self._spec.search.mode == "max" else min
            value, trial = choose(scores, key=lambda pair: pair[0])
            is_whole = trial.state is TrialState.FINISHED
            what = "one trial alone" if is_whole else "what one trial has spent so far"
            parts.append(
                f"best {self._spec.search.metric} {value:.4f} (trial {trial.trial}, epsilon "
                f"{shown_epsilon(trial.epsilon)}: {self._terms(trial.sampling, what)})"
            )
        eta = self._eta(view, moving)
        if eta is not None:
            parts.append(f"ETA {eta}")
        return " | ".join(parts)

    def _terms(self, sampling: str, what: str = "one trial alone") -> str:
        """Return what must stand beside an epsilon."""
        privacy = self._spec.privacy
        return (
            f"delta {privacy.delta:g}, {self._spec.privacy_unit}, "
            f"{privacy.neighboring_relation}, {sampling}, {privacy.accountant}, "
            f"{self._accounting}, {what}"
        )

    def _eta(self, view: StudyView, moving: Sequence[TrialState]) -> str | None:
        """Extrapolate from what was done in this launch, of the trials or of the budget.

        A start is another kind of work than the trials after it, so each is extrapolated alone.

        Returns:
            Minutes and seconds; None before anything was done.
        """
        runs = self._spec.num_starts
        starts = [view.trials[number] for number in range(runs) if number in view.trials]
        is_start = any(trial.state in moving for trial in starts)
        trials = [t for number, t in view.trials.items() if is_start == (number < runs)]
        done = sum(
            t.step / max(t.num_steps, 1) if t.state is TrialState.RUNNING else 1.0
            for t in trials
            if t.state is not TrialState.PAUSED
        )
        done /= runs if is_start else max(self._num_trials - runs, 1)
        if not runs:  # of a start the budget has most, whatever follows
            done = max(done, view.spent_share)
        phase, now = ("start" if is_start else "search"), time.monotonic()
        begun, before = self._begun.setdefault(phase, (now, done))
        if done <= before:
            return None
        left = max(1 - done, 0.0) * (now - begun) / (done - before)
        return f"{int(left // 60)}:{int(left % 60):02d}" + (" of the start" if is_start else "")

    def _table(self, view: StudyView) -> Table:
        privacy = self._spec.privacy
        table = Table(title=self.summary(view), title_justify="left", title_style="")
        for column in ("trial", "method", "steps", "epsilon", self._spec.search.metric):
            table.add_column(column, justify="left" if column == "method" else "right")
        for number, trial in sorted(view.trials.items()):
            if trial.state is TrialState.RUNNING:
                score = trial.metrics.get(self._spec.search.metric)
                table.add_row(
                    str(number),
                    str(trial.hparams.get("method", "")),
                    f"{trial.step}/{trial.num_steps}",
                    f"{shown_epsilon(trial.epsilon)} of {privacy.trial_epsilon:g}",
                    "" if score is None else f"{score:.4f}",
                )
        samplings = " and ".join(sorted({trial.sampling for trial in view.trials.values()}))
        table.caption = f"epsilon of one trial: {self._terms(samplings)}; Ctrl-C is safe"
        return table
