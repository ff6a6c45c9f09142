"""Handing on of the best model, from the process of the last trial, which has torch already."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dpsweep.foundation.errors import NothingWithinBudgetError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.results.pictures.confusion import MAX_CLASSES
from dpsweep.results.study import SweepResult
from dpsweep.running.gallery import Drawing, keep_shown, public_part
from dpsweep.schedulers.ray_adapter import Ask
from dpsweep.study.model_graph import ModelGraph
from dpsweep.study.study import Observer, Study

#: Seconds that what draws takes to load, about; it needs most of 200 MB from then on.
LOAD_S = 3.0


@dataclass(frozen=True)
class HandedOn:
    """A model that a trial's process has handed on.

    Attributes:
        trial: Whose it is.
        graph: The network.
        figures: The sheet of examples, if there is one.
    """

    trial: int
    graph: ModelGraph
    figures: tuple[FilePath, ...]


class HandingOn:
    """Asks the process of the last trial for the best model, so that the driver loads no torch.

    What cannot be had there is no error here: ``log_best_model`` rebuilds the model itself then,
    and says what is wrong with it.

    Args:
        study: Open for writing.
        observer: Who watches.
        drawing: Draws the study's pictures, from when what the model predicts is known.
        is_wanted: Whether the tracker takes a graph.
        num_trials: That the study runs, at most.
    """

    def __init__(
        self,
        study: Study,
        observer: Observer,
        drawing: Drawing,
        *,
        is_wanted: bool,
        num_trials: int,
    ) -> None:
        self._study, self._observer, self._drawing = study, observer, drawing
        self._is_wanted, self._is_said = is_wanted, False
        self._num_trials, self._num_ended = num_trials, 0
        self._begun = time.monotonic()
        self._handed: HandedOn | None = None

    def expect(self) -> None:
        """Hear that a trial has ended: where all will soon, what draws is loaded meanwhile."""
        self._num_ended += 1
        num_left = self._num_trials - self._study.view.num_ended
        pace = (time.monotonic() - self._begun) / self._num_ended
        if pace * num_left < LOAD_S:
            self._drawing.load()

    def begin(self) -> None:
        """Say, once, that the model is logged, and let what draws be loaded."""
        if not self._is_said:
            self._is_said = True
            self._observer.on_stage("logging the best model")
            self._drawing.load()

    def take(self, ask: Ask) -> None:
        """Take the best model from a process whose trial was the last one.

        Args:
            ask: Calls that process.
        """
        study = self._study
        if not self._is_wanted:
            return
        try:
            best = SweepResult.of(study).best().trial_id
        except NothingWithinBudgetError:
            return
        if best in study.view.model_uris:
            return
        self.begin()
        try:
            part = public_part(study.spec)
            shown = ask("show_model", str(study.files.trial(best)), part, MAX_CLASSES)
            figures = tuple(keep_shown(study, best, shown))
            self._drawing.begin()
            self._handed = HandedOn(best, ask("graph_of_model"), figures)
        except Exception:  # of Ray, of that process, or of a store: what follows meets it, too
            return

    def of(self, trial: int) -> HandedOn | None:
        """Return what was taken of a trial, or None."""
        return self._handed if self._handed is not None and self._handed.trial == trial else None
