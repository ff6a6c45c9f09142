"""The searcher that Ray Tune sees: it hands out admitted trials and counts the running ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.tune.search import Searcher

from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.search.sources import TaskSource
from dpsweep.spec.cluster import Share
from dpsweep.study.trial import TrialTask


class TaskSearcher(Searcher):
    """Hands the tasks of a source to Ray Tune, as long as slots are free.

    What a trial has to do is in its directory; Tune's config only names it. How trials end is told
    to the source by the stage, in the order of the journal, and not by Tune.

    Args:
        source: Where tasks come from.
        max_concurrent: Trials that may run at once.
        running: Numbers of the trials that run now; paused ones do not count.
        paused: Trials that an earlier launch has paused: Tune gets them at once, and the scheduler
            keeps them paused.
        is_held: Says whether a slot is spoken for, by a paused trial that is about to go on.
        directory_of: Directory of a trial.
        share_of: What a trial occupies, once it is admitted.
    """

    def __init__(
        self,
        source: TaskSource,
        *,
        max_concurrent: int,
        running: set[int],
        paused: Sequence[int],
        is_held: Callable[[], bool],
        directory_of: Callable[[int], FilePath],
        share_of: Callable[[int], Share],
    ) -> None:
        super().__init__()
        self._source, self._running = source, running
        self._paused, self._is_held = list(paused), is_held
        self._max_concurrent, self._directory_of = max_concurrent, directory_of
        self._share_of = share_of
        self._next: TrialTask | None = None
        self.failure: SweepError | None = None

    @property
    def is_done(self) -> bool:
        """True when no task will come any more."""
        if self.failure is not None:
            return True
        return self._source.is_exhausted and self._next is None and not self._paused

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial's config, None to wait, or FINISHED."""
        if self.is_done:
            return str(Searcher.FINISHED)
        if self._paused:
            return self._config(self._paused.pop(0))
        task, self._next = self._next, None
        if task is None:
            if len(self._running) >= self._max_concurrent or self._is_held():
                return None
            task = self._fetch()
        if task is None:
            return str(Searcher.FINISHED) if self.is_done else None
        return self._config(task.trial)

    def is_over(self) -> bool:
        """Say, as no trial runs, whether none is left; admits the next one if there is one.

        A search that ends by its budget, its time or its grid knows that only when it is asked.
        """
        if not (self.is_done or self._paused or self._next):
            self._next = self._fetch()
        return self.is_done and self.failure is None

    def _fetch(self) -> TrialTask | None:
        try:
            task = self._source.next_task(num_running=len(self._running))
        except SweepError as error:  # Tune would wrap it; the stage raises it as it is
            self.failure, task = error, None
        if task is not None:
            self._running.add(task.trial)
        return task

    def _config(self, trial: int) -> dict[str, Any]:
        share = self._share_of(trial)
        named = {"trial": trial, "directory": str(self._directory_of(trial))}
        return {**named, "cpu": share.cpu, "gpu": share.gpu}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing to do (see the class)."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the state is in Optuna's storage and the study's journal."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore (see ``save``)."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what lives in this process; Tune pickles a searcher it never reads back."""
        return {"metric": self._metric, "mode": self._mode}
