"""The progress display of a run: trials, steps, epsilon, best so far, ETA; on stderr."""

from __future__ import annotations

import time
from functools import reduce
from typing import Literal

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dpsweep.cli.base import stage
from dpsweep.cli.tables import TALK, talk, width
from dpsweep.foundation.errors import described
from dpsweep.foundation.words import counted, exact
from dpsweep.privacy.modes import UNACCOUNTED
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.results.coverage import with_caveats
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView
from dpsweep.study.study import Observer
from dpsweep.study.trial import MOVING, TrialState
from dpsweep.tracking.labels import joint_sampling

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
        self._panel_now: Group | None = None
        self._since = time.monotonic()
        self._live = Live(
            console=console, refresh_per_second=1, transient=True, get_renderable=self._shown
        )
        self._begun: dict[str, tuple[float, float]] = {}  # phase -> moment, and what was done
        self._last_line = 0.0
        self._accounting: str = spec.privacy.accounting
        self._num_rows = 0

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def on_message(self, text: str) -> None:
        """Print a message above the table, in lines that break between words."""
        self._print("\n".join(talk(text, width(TALK))))

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)

    def on_stage(self, text: str) -> None:
        """Print what begins, and after how many seconds: of a selection, time tells of trials."""
        is_timed = not self._spec.privacy.mode.is_sealed
        self.on_message(stage(text, is_timed=is_timed))

    def on_view(self, view: StudyView) -> None:
        """Show where the study stands; of a selection nothing is shown before its winner."""
        if self.is_silent(view):
            return
        if self._console.is_terminal:
            if self._panel_now is None:
                self._since = time.monotonic()
            try:  # it is drawn once a second, however many reports come
                self._panel_now = self._panel(view)
            except Exception as error:  # a table that cannot be drawn is no reason to end a study
                self._panel_now = Group(Text(f"no table can be drawn: {described(error)}"))
        elif any(trial.reports for trial in view.trials.values()) and (
            time.monotonic() - self._last_line >= LINE_EVERY_S
        ):
            self._last_line = time.monotonic()
            self._print(self.summary(view))  # of a log one line, to be searched for

    def _shown(self) -> Group:
        """Return what stands on a terminal now; a thread asks once a second, so that time passes.

        What a trial has done since its last report is not known here; ``status`` asks its ledger.
        """
        if self._panel_now is None:
            return Group()
        seconds = int(time.monotonic() - self._since)
        passed = Text(f"trials have run for {seconds // 60}:{seconds % 60:02d}")
        return Group(passed, self._panel_now)

    def is_silent(self, view: StudyView) -> bool:
        """Take note of a downgrade; say whether nothing may be shown of the study as it runs."""
        if view.downgraded:
            self._accounting = UNACCOUNTED.name
        return self._spec.privacy.mode.is_sealed

    def drawn(self, view: StudyView) -> str:
        """Return what a terminal shows of a running study, as text."""
        with self._console.capture() as capture:
            self._console.print(self._panel(view))
        return capture.get()

    def summary(self, view: StudyView) -> str:
        """Return one line: trials done, best so far with its terms, ETA."""
        return " | ".join(part for part in self._parts(view, with_terms=True) if part)

    def _parts(self, view: StudyView, *, with_terms: bool) -> tuple[str, str, str]:
        """Return how far the study is, the best so far, and the ETA; what is not known is empty.

        Args:
            view: Where the study stands.
            with_terms: False where what stands beside every epsilon is shown apart.
        """
        ended = view.num_ended
        parts = [f"{ended}/{counted(self._num_trials, 'trial')}"]
        for state in (TrialState.PRUNED, TrialState.PAUSED, TrialState.FAILED):
            number = view.count(state)
            parts += [f"{number} {state.value}"] if number else []
        if view.spent_share:
            parts.append(f"{view.spent_share:.0%} of the study's budget")
        best = ""
        scores = [(t.value, t) for t in view.trials.values() if t.value is not None]
        if scores:
            choose = max if self._spec.search.mode == "max" else min
            value, trial = choose(scores, key=lambda pair: pair[0])
            is_whole = trial.state is TrialState.FINISHED
            extent = "one trial alone" if is_whole else "what one trial has spent so far"
            terms = f": {self._terms(trial.sampling, extent)}" if with_terms else ""
            if not with_terms and not is_whole:
                terms = " so far"
            best = (
                f"best {self._spec.search.metric} {value:.4f} (trial {trial.trial}, epsilon "
                f"{shown_epsilon(trial.epsilon)}{terms})"
            )
        eta = self._eta(view)
        return " | ".join(parts), best, "" if eta is None else f"ETA {eta}"

    def _terms(self, sampling: str, what: str = "one trial alone") -> str:
        """Return what must stand beside an epsilon."""
        terms = self._spec.privacy_terms(sampling, accounting=self._accounting)
        return f"{terms.short()}, {with_caveats(self._spec, what)}"

    def _eta(self, view: StudyView) -> str | None:
        """Extrapolate from what was done in this launch, of the trials or of the budget.

        A start is another kind of work than the trials after it, so each is extrapolated alone.

        Returns:
            Minutes and seconds; None before anything was done.
        """
        runs = self._spec.num_starts
        starts = [view.trials[number] for number in range(runs) if number in view.trials]
        is_start = any(trial.state in MOVING for trial in starts)
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
        if done <= before or done >= 1:
            return None
        left = max(1 - done, 0.0) * (now - begun) / (done - before)
        return f"{int(left // 60)}:{int(left % 60):02d}" + (" of the start" if is_start else "")

    def _panel(self, view: StudyView) -> Group:
        """Return what a terminal shows of a running study; its lines do not move about.

        The table has as many rows as trials ever ran at once, the same columns and the same text
        below it throughout. Once no trial runs there is no table.
        """
        running = [t for t in view.trials.values() if t.state is TrialState.RUNNING]
        if not running:
            return Group(Text(self.summary(view)))
        privacy, metric = self._spec.privacy, self._spec.search.metric
        self._num_rows = max(self._num_rows, len(running))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name, least in (("trial", 5), ("method", 16), ("steps", 13), ("epsilon", 16), ("", 8)):
            justify: Literal["left", "right"] = "left" if name == "method" else "right"
            title = name or metric.replace("validation/", "val/")
            table.add_column(title, justify=justify, min_width=least, no_wrap=True)
        for trial in sorted(running, key=lambda trial: trial.trial):
            score = trial.metrics.get(metric)
            table.add_row(
                str(trial.trial),
                str(trial.hparams.get("method", "")),
                f"{trial.step}/{trial.num_steps}",
                f"{shown_epsilon(trial.epsilon)} of {exact(privacy.trial_epsilon)}",
                "" if score is None else f"{score:.4f}",
            )
        for _ in range(self._num_rows - len(running)):
            table.add_row()
        sampling = reduce(joint_sampling, (trial.sampling for trial in view.trials.values()), "")
        terms = Text(f"steps and epsilon of one trial at its last report: {self._terms(sampling)}.")
        progress, best, eta = self._parts(view, with_terms=False)
        lines = f"{progress} | {eta}" if eta else progress, best
        summary = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        return Group(*summary, table, terms)
