"""The other side: the process that has the tracker, and does what it is told."""

from __future__ import annotations

import os
import signal
import sys
import threading
from queue import SimpleQueue
from typing import IO, Any, NoReturn

from dpsweep.foundation.file_paths import file_path
from dpsweep.foundation.process.leaving import leave
from dpsweep.tracking import TRACKERS
from dpsweep.tracking.apart.wire import READY, from_error, receive, send, to_graph, to_label
from dpsweep.tracking.base import Tracker


def main() -> NoReturn:
    """Answer the messages on standard input, one after the other, until it is closed.

    It is closed as the driver ends, or is killed. Nothing is begun then that was not asked for:
    the next launch has a process of its own for the same runs. Signals that are meant for the
    driver, and reach its whole group or job, are the driver's to answer.
    """
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    answers.write(READY)
    answers.flush()
    asked: SimpleQueue[tuple[dict[str, Any], bytes]] = SimpleQueue()
    with open(sys.stdin.fileno(), "rb", closefd=False) as lines:
        threading.Thread(target=_listen, args=(lines, asked), daemon=True).start()
        _serve(asked, answers)


def _listen(lines: IO[bytes], asked: SimpleQueue[tuple[dict[str, Any], bytes]]) -> None:
    """Hand over what comes in; end the process with the driver, whatever it does then."""
    try:
        while (message := receive(lines)) is not None:
            asked.put(message)
    finally:  # also where no memory is left for a message: nobody would listen any more
        os._exit(0)


def _serve(asked: SimpleQueue[tuple[dict[str, Any], bytes]], answers: IO[bytes]) -> NoReturn:
    tracker: Tracker | None = None
    while True:
        message, content = asked.get()
        answer: dict[str, Any] = {}
        try:
            if message["request"] == "open":
                tracker = _opened(**message["place"])
                answer["value"] = list(tracker.notes)
            else:
                assert tracker is not None
                answer["value"] = _done(tracker, message, content)
        except Exception as error:  # whatever a store can raise is the spool's to answer
            answer["error"] = from_error(error)
        answer["seq"] = -1 if tracker is None else tracker.last_seq
        answer["parent"] = None if tracker is None else tracker.parent_run_id
        try:
            send(answers, answer)
        except OSError:
            leave(0)


def _opened(kind: str, uri: str, experiment: str, state: str) -> Tracker:
    tracker: Tracker = TRACKERS[kind](uri, experiment, file_path(state))
    return tracker


def _done(tracker: Tracker, message: dict[str, Any], content: bytes) -> Any:
    """Do what one message asks for."""
    request, trial = message["request"], message.get("trial", -1)
    if request == "handle":
        return tracker.handle(message["events"])
    if request == "run_id_of":
        return tracker.run_id_of(trial)
    if request == "has_model":
        return tracker.has_model(trial)
    label = to_label(message["label"])
    if request == "label_model":
        return tracker.label_model(trial, label)
    return tracker.log_model(trial, to_graph(message["graph"], content), None, label)
