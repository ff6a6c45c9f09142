"""The spool: a background thread that carries the study's journal to a tracker.

The journal on disk is the queue, so nothing is lost when the tracking store is away or the driver
is killed; the driver's loop only ever appends to the journal and never waits for the store.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from dpsweep.foundation.blotting import blotted
from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import BadInputError, SweepError, UnreachableError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.logs import Tail
from dpsweep.spec.tracking import masked
from dpsweep.tracking.base import (
    ExperimentDeletedError,
    StoreDamagedError,
    StoreRefusedError,
    Tracker,
    TrackerEndedError,
    TrackingRefusedError,
)
from dpsweep.tracking.model_label import ModelLabel
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.updates import Event

_BATCH = 500
_ADVICE = "(raised as a result of Query-invoked autoflush"  # of SQLAlchemy, before the error


class _Call:
    """Something that somebody waits for; called once more where the tracker's process has died."""

    def __init__(self, function: Callable[[Tracker], Any]) -> None:
        self.function, self.future = function, Future[Any]()
        self.num_ends, self.is_given_up = 0, False

    def begin(self) -> bool:
        """Say whether somebody waits for it still."""
        if self.future.running():
            return not self.is_given_up
        return self.future.set_running_or_notify_cancel()


class Spool:
    """Delivers journal events to a tracker, at least once and in order.

    The tracker is made inside the thread (importing MLflow and migrating a new database take
    seconds) and is used by no other. While the store is away, events wait in the journal and are
    tried again after a growing pause; ``on_message`` hears of the outage once and of its end once.

    Args:
        journal_path: Log of events with ``seq``; may not exist yet.
        tracker_factory: Makes the tracker, or None for a study without tracking.
        state_path: The tracker's state file; read to know the lag before the tracker exists.
        is_held: Whether nothing is told to the store, nor is it asked, until ``release``: a store
            notes when it is told something, and when a selection began and when it ended tells how
            many trials there were.
        on_message: Called from the thread with one line for the user; must not raise.
        poll_s: Pause before the first look at the journal, and between two; whoever waits for the
            spool cuts it short.
        address: The store's, for messages.
        first_retry_s: First pause after a failure; doubles up to ``max_retry_s``.
        max_retry_s: Longest pause between two tries.
    """

    def __init__(
        self,
        journal_path: LogPath,
        tracker_factory: Callable[[], Tracker] | None,
        state_path: FilePath | None = None,
        *,
        is_held: bool = False,
        on_message: Callable[[str], None] | None = None,
        address: str = "",
        poll_s: float = 1.0,
        first_retry_s: float = 1.0,
        max_retry_s: float = 60.0,
    ) -> None:
        self._journal = Tail(journal_path)
        self._factory = tracker_factory
        self._on_message, self._address = on_message or (lambda text: None), address
        self._poll_s, self._first_s, self._max_s = poll_s, first_retry_s, max_retry_s
        self._tracker: Tracker | None = None
        self._seq = TrackingState.load(state_path).seq if state_path else -1
        self._offset = 0  # place in the journal up to which the tracker has it
        self._pause_s = 0.0  # pause before the next try; above zero during an outage
        self._why = ""  # the last failure, in few words
        self._out = ""  # of which an outage was told, and its end was not
        self._calls: list[_Call] = []
        self._num_ends = 0  # of processes of a tracker, since one has done something
        self._changed = threading.Condition()
        self._is_urgent = False
        self._is_stopping = False
        self._is_held = is_held
        self._thread: threading.Thread | None = None
        if tracker_factory is not None:
            self._thread = threading.Thread(target=self._run, name="dpsweep-spool", daemon=True)
            self._thread.start()

    @property
    def is_enabled(self) -> bool:
        """False for a study without tracking, where nothing is delivered and no model is stored."""
        return self._thread is not None

    @property
    def is_down(self) -> bool:
        """True during an outage of the store: the last try has failed."""
        with self._changed:
            return self._pause_s > 0.0

    @property
    def why(self) -> str:
        """Why the last try has failed, in few words and without passwords; else empty."""
        with self._changed:
            return self._why if self._pause_s > 0.0 else ""

    @property
    def is_held(self) -> bool:
        """True until ``release``, where it was made so."""
        return self._is_held

    def release(self) -> None:
        """Deliver from now on."""
        with self._changed:
            self._is_held = False
            self._wake()

    def lag(self) -> int:
        """Return how many journal events are not in the store yet."""
        if not self.is_enabled:
            return 0
        with self._changed:
            offset, seq = self._offset, self._seq
        lines = [line for line, _ in self._journal.lines(offset)]
        return sum(event["seq"] > seq for event in _parse(lines)[0])

    def flush(self, timeout_s: float) -> bool:
        """Wait until every event that is in the journal now is in the store.

        Returns:
            True if they are, False if ``timeout_s`` passed before, or it is held.
        """
        if not self.is_enabled:
            return True
        if self._is_held:
            return False
        goal = self._journal.size()
        with self._changed:
            self._wake()
            return self._changed.wait_for(lambda: self._offset >= goal, timeout_s)

    def call(self, function: Callable[[Tracker], Any], timeout_s: float) -> Any:
        """Run ``function(tracker)`` in the spool's thread once all events are delivered.

        Raises:
            RuntimeError: The study has no tracking.
            TimeoutError: It could not be run in time; it will not be run later.
            Exception: What ``function`` raised.
        """
        if not self.is_enabled:
            raise RuntimeError("a study without tracking has no tracker to call")
        call = _Call(function)
        with self._changed:
            self._calls.append(call)
            self._wake()
        try:
            return call.future.result(timeout_s)
        except TimeoutError:
            call.is_given_up = True
            call.future.cancel()
            raise

    def log_model(
        self,
        trial: int,
        model: Any,
        input_example: Any,
        label: ModelLabel,
        timeout_s: float = 120.0,
    ) -> str | None:
        """Log a trial's model; None, with a message, where that was not possible in time."""
        if not self.is_enabled:
            return None
        try:
            log = self.call(lambda t: t.log_model(trial, model, input_example, label), timeout_s)
            return str(log)
        except Exception as error:
            # Without its copy in the store a model is still in the study's checkpoint.
            self._say(f"the model of trial {trial} is not in the tracking store: {_brief(error)}")
            return None

    def has_model(self, trial: int, timeout_s: float = 20.0) -> bool:
        """Say whether the store has a trial's model; yes where that cannot be found out now."""
        if not self.is_enabled:
            return False
        try:
            return bool(self.call(lambda tracker: tracker.has_model(trial), timeout_s))
        except Exception:  # whatever a store can raise; the next launch asks again
            return True

    def label_model(self, trial: int, label: ModelLabel, timeout_s: float = 60.0) -> None:
        """Give a logged model the label that holds now; a message where that was not possible."""
        if not self.is_enabled:
            return
        try:
            self.call(lambda t: t.label_model(trial, label), timeout_s)
        except Exception as error:
            self._say(f"the logged model of trial {trial} may have an old label: {_brief(error)}")

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Deliver what can be delivered in time and end the thread; safe to call twice.

        Returns:
            True if nothing is left over; what is left is delivered by the next launch.
        """
        if self._thread is None:
            return True
        is_empty = self.flush(timeout_s) if self._thread.is_alive() else self.lag() == 0
        with self._changed:
            self._is_stopping = True
            self._wake()
        self._thread.join(timeout_s)
        return is_empty

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _say(self, text: str) -> None:
        self._on_message(masked(blotted(text)))

    def _wake(self) -> None:
        self._is_urgent = True
        self._changed.notify_all()

    def _run(self) -> None:
        self._wait(self._poll_s)
        while True:
            try:
                if not self._is_held:
                    self._deliver()
                    self._recovered()
            except Exception as error:  # whatever a store can raise; the events stay queued
                self._failed(error)
            if self._is_stopping:
                break
            self._wait(self._pause_s or self._poll_s)
        for call in self._calls:
            call.future.cancel()
        if self._tracker is not None:
            self._tracker.close()

    def _wait(self, seconds: float) -> None:
        """Wait so long, or until somebody cannot wait."""
        with self._changed:
            if not self._is_urgent:
                self._changed.wait(seconds)
            self._is_urgent = False

    def _deliver(self) -> None:
        if self._tracker is None:
            if self._journal.size() == 0 and not self._calls:
                return
            assert self._factory is not None
            self._tracker = self._factory()
            for note in self._tracker.notes:
                self._say(f"tracking: {note}")
            with self._changed:
                self._seq = self._tracker.last_seq
        is_full = True
        while is_full:
            due = len(self._calls)  # who asks later waits for what was written until then
            if self._journal.size() < self._offset:
                self._offset = 0  # the journal was replaced by another
            batch = self._journal.lines(self._offset)[:_BATCH]
            if batch:
                self._hand_over(batch)
            # What comes meanwhile waits for the next look: of one trial it becomes one write.
            is_full = len(batch) == _BATCH
        self._answer(due)

    def _hand_over(self, batch: Sequence[tuple[bytes, int]]) -> None:
        """Hand lines of the journal, each with the place where it ends, to the tracker."""
        assert self._tracker is not None
        events, damaged = _parse([line for line, _ in batch])
        for text in damaged:
            self._say(f"tracking: a line of {self._journal.path} cannot be read: {text}")
        try:
            self._tracker.handle([event for event in events if event["seq"] > self._seq])
        except TrackingRefusedError as error:
            for text in error.refused:
                self._say(f"tracking: {text}")
        with self._changed:
            self._pause_s, self._num_ends = 0.0, 0  # it takes events again
            self._offset = batch[-1][1]
            self._seq = self._tracker.last_seq
            self._changed.notify_all()

    def _answer(self, due: int) -> None:
        """Answer those that have asked first."""
        for _ in range(due):
            with self._changed:
                call = self._calls.pop(0)
            if not call.begin():
                continue
            try:
                assert self._tracker is not None
                answer = call.function(self._tracker)
            except TrackerEndedError as error:
                call.num_ends += 1
                if call.num_ends > 1:  # it may be what has ended both
                    call.future.set_exception(error)
                else:
                    with self._changed:
                        self._calls.insert(0, call)
                raise
            except Exception as error:  # handed to the caller of `call`
                call.future.set_exception(error)
            else:
                call.future.set_result(answer)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, TrackerEndedError):
            self._close()
            self._num_ends += 1
            if self._num_ends == 1:  # the store itself may be well: another one tries at once
                self._say(f"{error.message}; another one is tried at once, and nothing is lost")
                self._is_urgent = True
                return
        if not self._out:
            is_storage = isinstance(error, UnreachableError)  # that of the journal
            self._out = "the study's storage" if is_storage else "tracking store"
            self._say(self._told(error))
        if isinstance(error, ExperimentDeletedError):
            self._close()
        with self._changed:
            why = error.message if isinstance(error, SweepError) else _brief(error)
            self._why = masked(blotted(why))
            self._pause_s = min(max(2 * self._pause_s, self._first_s), self._max_s)
            calls, self._calls = self._calls, []
        for call in calls:  # nobody waits for a store that is away
            if call.begin():
                call.future.set_exception(error)

    def _close(self) -> None:
        """Let the tracker go; the next one asks for all anew."""
        if self._tracker is not None:
            self._tracker.close()
        with self._changed:
            self._tracker, self._offset = None, 0

    def _told(self, error: Exception) -> str:
        """Return the line on an outage as it begins."""
        if isinstance(error, (StoreDamagedError, StoreRefusedError, BadInputError)):
            fix = f"; fix: {error.fix}" if error.fix else ""
            return f"{error.message}; the study goes on without it{fix}"
        if isinstance(error, UnreachableError):
            return f"{error.message}; the study and its tracking wait for it"
        if isinstance(error, TrackerEndedError):
            return f"{error.message}; the study goes on, and another one is tried again and again"
        store = f"tracking store {self._address}".rstrip()
        return (
            f"{store} cannot be reached ({_brief(error)}); the study goes on, and its events "
            "are delivered when the store is back"
        )

    def _recovered(self) -> None:
        self._pause_s = 0.0
        if self._out:
            self._say(f"{self._out} is back; all events are delivered")
            self._out = ""


def _brief(error: Exception) -> str:
    lines = [line for line in blotted(str(error)).strip().splitlines() if _ADVICE not in line]
    kind = getattr(error, "kind", type(error).__name__)  # of another process's, its name there
    return f"{kind}: {lines[0][:200]}" if lines else kind


def _parse(lines: Sequence[bytes]) -> tuple[list[Event], list[str]]:
    events: list[Event] = []
    damaged = []
    for line in lines:
        try:
            event = json.loads(line)
            if not isinstance(event["seq"], int) or not isinstance(event["event"], str):
                raise ValueError("no seq or event")
            events.append(event)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            damaged.append(_brief(error))
    return events, damaged
