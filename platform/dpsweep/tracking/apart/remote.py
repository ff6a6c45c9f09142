"""The driver's side: a tracker whose work is done by a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from typing import Any

from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.process.starting import start_module
from dpsweep.study.model_graph import ModelGraph
from dpsweep.tracking.apart.wire import (
    READY,
    from_graph,
    from_label,
    receive,
    send,
    to_error,
)
from dpsweep.tracking.base import TrackerEndedError
from dpsweep.tracking.model_label import ModelLabel
from dpsweep.tracking.updates import Event

_CLOSE_S = 5.0


class RemoteTracker:
    """Hands everything to a tracker in another process, and waits for its answers.

    Python runs one thread at a time: what a library of a store computes, in a thread of the driver,
    the trials wait for. The process has nothing to say: it is told one thing after the other, and
    ends at once where the driver has ended, however that was.

    Args:
        kind: Name in ``TRACKERS``.
        uri: The store's.
        experiment: Name of the experiment.
        state_path: Where the tracker remembers.
    Raises:
        TrackerEndedError: No process can be started, or it has ended.
        Exception: What the tracker raises as it opens its store.
    """

    def __init__(self, kind: str, uri: str, experiment: str, state_path: FilePath) -> None:
        try:
            self._process = start_module(__package__)
        except OSError as error:  # too many processes or files, no memory
            raise TrackerEndedError(
                f"no process can be started that writes to the tracking store ({error})"
            ) from error
        self._seq, self._parent = -1, None
        place = {"kind": kind, "uri": uri, "experiment": experiment, "state": str(state_path)}
        try:
            self._wait_for_it()
            self.notes: Sequence[str] = self._ask("open", place=place)
        except BaseException:
            self.close()
            raise

    @property
    def last_seq(self) -> int:
        """Sequence number of the last event that is in the store, -1 if none is known."""
        return self._seq

    @property
    def parent_run_id(self) -> str | None:
        """Run of the study."""
        return self._parent

    def handle(self, events: Sequence[Event]) -> None:
        """Bring the store up to date; see ``Tracker.handle``."""
        self._ask("handle", events=list(events))

    def run_id_of(self, trial: int) -> str | None:
        """Return the run of a trial, or None if it has none."""
        run_id: str | None = self._ask("run_id_of", trial=trial)
        return run_id

    def log_model(self, trial: int, model: Any, input_example: Any, label: ModelLabel) -> str:
        """Store a trial's model once; see ``Tracker.log_model``."""
        graph = model if isinstance(model, ModelGraph) else ModelGraph.of(model, input_example)
        words, archive = from_graph(graph)
        said = {"trial": trial, "graph": words, "label": from_label(label)}
        return str(self._ask("log_model", archive, **said))

    def has_model(self, trial: int) -> bool:
        """Say whether a trial's model is in the store."""
        return bool(self._ask("has_model", trial=trial))

    def label_model(self, trial: int, label: ModelLabel) -> None:
        """Give a trial's logged model the label that holds now."""
        self._ask("label_model", trial=trial, label=from_label(label))

    def close(self) -> None:
        """Let the process end; safe to call twice."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:  # it waits for a store that does not answer
            self._process.kill()
            self._process.wait()

    def _wait_for_it(self) -> None:
        """Pass over what a site prints as Python starts."""
        back = self._process.stdout
        assert back is not None
        while not (line := back.readline()).endswith(READY):
            if not line:
                raise self._ended()

    def _ended(self) -> TrackerEndedError:
        self.close()
        code = self._process.returncode
        return TrackerEndedError(
            f"the process that writes to the tracking store has ended ({code})"
        )

    def _ask(self, request: str, content: bytes = b"", **words: Any) -> Any:
        """Ask the process for one thing; return its answer or raise its error."""
        out, back = self._process.stdin, self._process.stdout
        assert out is not None
        assert back is not None
        try:
            send(out, {"request": request, **words}, content)
            answer = receive(back)
        except (OSError, ValueError):  # a closed pipe, half a line
            answer = None
        if answer is None:
            raise self._ended()
        said, _ = answer
        self._seq, self._parent = said["seq"], said["parent"]
        if "error" in said:
            raise to_error(said["error"])
        return said["value"]
