from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from dpsweep.foundation.errors import UnreachableError
from dpsweep.tracking import open_spool
from dpsweep.tracking.base import TrackingRefusedError
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.spool import Spool, _brief

FAST = {"poll_s": 0.01, "first_retry_s": 0.01, "max_retry_s": 0.05}


class UnreliableTracker(MemoryTracker):
    """Fails while it is told to; sometimes after having done the work, as a lost answer does."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = threading.Event()
        self.loses_answers = False
        self.tries = 0

    def handle(self, events) -> None:
        self.tries += 1
        if self.is_away.is_set():
            raise ConnectionError("store is away")
        super().handle(events)
        if self.loses_answers:
            self.loses_answers = False
            raise ConnectionError("answer lost")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_it_follows_a_growing_journal(story, journal: Path) -> None:
    story.whole()
    tracker = MemoryTracker()
    with Spool(journal, lambda: tracker, **FAST) as spool:
        assert spool.flush(1)
        assert spool.lag() == 0
        for number in range(len(story.events)):
            story.write(journal, number, number + 1)
            if number % 5 == 0:
                assert spool.flush(5)
                assert tracker.last_seq == number
        assert spool.flush(5)
    whole = MemoryTracker()
    whole.handle(story.events)
    assert tracker.runs == whole.runs


def test_the_store_is_asked_a_while_after_the_start_or_when_somebody_waits(
    story, journal: Path
) -> None:
    """MLflow takes a second to load, in which the launch is to start its first trials."""
    story.whole()
    story.write(journal)
    made: list[float] = []

    def factory() -> MemoryTracker:
        made.append(time.monotonic())
        return MemoryTracker()

    begun = time.monotonic()
    with Spool(journal, factory, poll_s=0.5) as spool:
        deadline = begun + 30
        while not made and time.monotonic() < deadline:
            time.sleep(0.01)
        assert made[0] - begun >= 0.5
        assert spool.flush(5)
    for wait in (lambda spool: spool.flush(5), lambda spool: spool.call(lambda tracker: 1, 5)):
        with Spool(journal, factory, poll_s=60.0) as spool:
            assert wait(spool)
    with Spool(journal, factory, poll_s=60.0):
        pass  # it is delivered before the end
    assert len(made) == 4


def test_one_that_is_held_asks_the_store_nothing_until_it_is_released(story, journal: Path) -> None:
    story.whole()
    made: list[MemoryTracker] = []

    def factory() -> MemoryTracker:
        made.append(MemoryTracker())
        return made[-1]

    story.write(journal)
    with Spool(journal, factory, is_held=True, **FAST) as spool:
        assert not spool.flush(5)  # at once
        time.sleep(0.1)
        assert (made, spool.is_held, spool.lag()) == ([], True, len(story.events))
        spool.release()
        assert spool.flush(5)
        assert made[0].last_seq == story.events[-1]["seq"]
    with Spool(journal, factory, is_held=True, **FAST):
        pass  # nothing was delivered: the launch was interrupted
    assert len(made) == 1


def test_the_writer_never_waits_for_the_store(story, journal: Path) -> None:
    story.whole()
    release = threading.Event()

    def slow_factory() -> MemoryTracker:
        release.wait(10)
        return MemoryTracker()

    started = time.perf_counter()
    spool = Spool(journal, slow_factory, **FAST)
    story.write(journal)
    assert spool.lag() == len(story.events)
    assert not spool.flush(0.05)
    assert time.perf_counter() - started < 2
    release.set()
    assert spool.flush(5)
    assert spool.stop()


class SlowTracker(MemoryTracker):
    """Lets a test go on while it handles events; keeps how many came at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_busy, self.may_go_on = threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def handle(self, events) -> None:
        self.sizes.append(len(events))
        self.is_busy.set()
        assert self.may_go_on.wait(10)
        super().handle(events)


def test_who_asks_while_events_are_handed_over_is_answered_after_those_written_before(
    story, journal: Path
) -> None:
    story.whole()
    tracker, answers = SlowTracker(), []
    story.write(journal, 0, 3)
    with Spool(journal, lambda: tracker, **FAST) as spool:
        assert tracker.is_busy.wait(5)
        story.write(journal, 3, 7)
        ask = threading.Thread(
            target=lambda: answers.append(spool.call(lambda asked: asked.last_seq, 10))
        )
        ask.start()
        while not spool._calls:
            time.sleep(0.001)
        tracker.may_go_on.set()
        ask.join(10)
    assert answers == [story.events[6]["seq"]]
    assert tracker.sizes == [3, 4]


def test_what_comes_while_events_are_handed_over_waits_for_the_next_look(
    story, journal: Path
) -> None:
    """Of one trial start, reports and end become one write, where they come fast."""
    story.whole()
    tracker = SlowTracker()
    story.write(journal, 0, 1)
    with Spool(journal, lambda: tracker, poll_s=0.5) as spool:
        assert tracker.is_busy.wait(5)
        story.write(journal, 1, 2)
        tracker.may_go_on.set()
        while spool.lag() > 1:
            time.sleep(0.001)
        for number in range(2, 6):
            story.write(journal, number, number + 1)
        deadline = time.monotonic() + 10
        while spool.lag() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert tracker.sizes == [1, 5]


def test_the_pause_of_an_outage_doubles_up_to_its_limit(story, journal: Path) -> None:
    story.whole()
    tracker = UnreliableTracker()
    tracker.is_away.set()
    spool = Spool(journal, lambda: tracker, poll_s=0.01, first_retry_s=0.001, max_retry_s=0.005)
    pauses: list[float] = []
    wait = spool._changed.wait

    def noting(timeout: float | None = None) -> bool:
        if threading.current_thread() is spool._thread:
            pauses.append(spool._pause_s)
        return wait(timeout)

    spool._changed.wait = noting
    story.write(journal)
    while tracker.tries < 7:
        time.sleep(0.01)
    tracker.is_away.clear()
    assert spool.flush(5)
    assert spool.stop()
    outage = [pause for pause in pauses if pause]
    assert outage[:4] == [0.001, 0.002, 0.004, 0.005]
    assert set(outage[4:]) == {0.005}
    assert spool._pause_s == 0.0


def test_an_outage_of_the_journal_is_not_called_one_of_the_store(story, journal: Path) -> None:
    story.whole()
    messages: list[str] = []
    spool = Spool(journal, MemoryTracker, on_message=messages.append, **FAST)
    size = spool._journal.size
    is_away = threading.Event()
    is_away.set()

    def unreachable() -> int:
        if is_away.is_set() and threading.current_thread() is spool._thread:
            raise UnreachableError("the database does not answer")
        return size()

    spool._journal.size = unreachable  # type: ignore[method-assign]
    story.write(journal)
    while not messages:
        time.sleep(0.01)
    is_away.clear()
    assert spool.flush(5)
    assert spool.stop()
    assert messages == [
        "the database does not answer; the study and its tracking wait for it",
        "the study's storage is back; all events are delivered",
    ]


def test_of_an_outage_the_error_is_told_and_no_advice_on_it():
    text = (
        "(raised as a result of Query-invoked autoflush; consider using a session.no_autoflush "
        "block if this flush is occurring prematurely)\n(sqlite3.OperationalError) no such table"
    )
    assert _brief(ConnectionError(text)) == (
        "ConnectionError: (sqlite3.OperationalError) no such table"
    )


def test_an_outage_is_told_once_and_nothing_is_lost(story, journal: Path) -> None:
    story.whole()
    messages: list[str] = []
    tracker = UnreliableTracker()
    tracker.is_away.set()
    spool = Spool(journal, lambda: tracker, on_message=messages.append, **FAST)
    story.write(journal, 0, 5)
    while tracker.tries < 4:
        time.sleep(0.01)
    story.write(journal, 5)
    assert not spool.flush(0.05)
    assert spool.lag() == len(story.events)
    assert [m.split(" (")[0] for m in messages] == ["tracking store cannot be reached"]
    assert "store is away" in messages[0]
    tracker.is_away.clear()
    assert spool.flush(5)
    assert spool.stop()
    assert messages[1:] == ["tracking store is back; all events are delivered"]
    whole = MemoryTracker()
    whole.handle(story.events)
    assert tracker.runs == whole.runs


def test_a_lost_answer_changes_nothing(story, journal: Path) -> None:
    tracker = UnreliableTracker()
    tracker.loses_answers = True
    story.whole()
    story.write(journal)
    with Spool(journal, lambda: tracker, **FAST) as spool:
        assert spool.flush(5)
    assert tracker.tries >= 2
    whole = MemoryTracker()
    whole.handle(story.events)
    assert tracker.runs == whole.runs


def test_the_tracker_is_made_in_the_thread_and_again_after_a_failure(story, journal: Path) -> None:
    made_by: list[str] = []

    def factory() -> MemoryTracker:
        made_by.append(threading.current_thread().name)
        if len(made_by) < 3:
            raise OSError("database is locked")
        return MemoryTracker()

    story.whole()
    story.write(journal)
    with Spool(journal, factory, **FAST) as spool:
        while not spool.flush(1):
            pass
    assert made_by == ["dpsweep-spool"] * 3


def test_refused_values_are_told_and_not_retried(story, journal: Path) -> None:
    story.start()
    story.start_trial(0)
    story.add("trial_report", trial=0, step=1, epsilon=0.1, metrics={"train/loss": 0.5})
    story.end_trial(0)
    story.write(journal)
    messages: list[str] = []
    tracker = MemoryTracker()
    with Spool(journal, lambda: tracker, on_message=messages.append, **FAST) as spool:
        assert spool.flush(5)
    assert messages == ["tracking: trial 0: metric 'train/loss' is private and is not logged"]
    assert tracker.runs[0].status == "FINISHED"


def test_unreadable_lines_are_told_and_skipped(story, journal: Path) -> None:
    story.start()
    story.start_trial(0)
    story.write(journal, 0, 1)
    with journal.open("a") as file:
        file.write("not json\n[1]\n")
    story.write(journal, 1)
    messages: list[str] = []
    tracker = MemoryTracker()
    with Spool(journal, lambda: tracker, on_message=messages.append, **FAST) as spool:
        assert spool.flush(5)
    assert len(messages) == 2
    assert tracker.last_seq == 1


def test_an_unfinished_line_waits_for_its_end(story, journal: Path) -> None:
    story.start()
    line = json.dumps(story.start_trial(0))
    story.write(journal, 0, 1)
    tracker = MemoryTracker()
    with Spool(journal, lambda: tracker, **FAST) as spool:
        with journal.open("a") as file:
            file.write(line[:20])
        spool.flush(0.1)
        assert tracker.last_seq == 0
        with journal.open("a") as file:
            file.write(line[20:] + "\n")
        assert spool.flush(5)
        assert tracker.last_seq == 1


def test_calls_run_after_delivery_and_hand_back_what_happened(story, journal: Path, label) -> None:
    story.whole()
    story.write(journal)
    with Spool(journal, MemoryTracker, **FAST) as spool:
        assert spool.call(lambda tracker: tracker.last_seq, 5) == len(story.events) - 1
        assert spool.log_model(1, "model", "example", label) == "memory:/memory-0001"
        with pytest.raises(KeyError):
            spool.call(lambda tracker: tracker.runs[99], 5)


def test_a_call_that_cannot_be_run_in_time_is_never_run(story, journal: Path, label) -> None:
    tracker = UnreliableTracker()
    tracker.is_away.set()
    story.whole()
    story.write(journal)
    messages: list[str] = []
    with Spool(journal, lambda: tracker, on_message=messages.append, **FAST) as spool:
        assert spool.log_model(1, "model", "example", label, timeout_s=0.1) is None
        tracker.is_away.clear()
        assert spool.flush(5)
    assert tracker.models == {}
    assert any("model of trial 1 is not in the tracking store" in m for m in messages)


def test_stop_is_quick_and_can_be_repeated_during_an_outage(story, journal: Path) -> None:
    tracker = UnreliableTracker()
    tracker.is_away.set()
    story.whole()
    story.write(journal)
    spool = Spool(journal, lambda: tracker, **FAST)
    assert not spool.stop(timeout_s=0.1)
    assert not spool.stop(timeout_s=0.1)
    assert spool.lag() == len(story.events)


def test_the_lag_is_known_before_the_tracker_exists(story, journal: Path, tmp_path: Path) -> None:
    from dpsweep.tracking.state import TrackingState

    story.whole()
    story.write(journal)
    TrackingState(seq=len(story.events) - 3).save(tmp_path / "tracking.json")
    tracker = UnreliableTracker()

    def away() -> MemoryTracker:
        raise ConnectionError

    spool = Spool(journal, away, tmp_path / "tracking.json", **FAST)
    assert spool.lag() == 2
    assert tracker.tries == 0
    assert not spool.stop(timeout_s=0.1)


def test_a_study_without_tracking_has_nothing_to_wait_for(story, journal: Path, label) -> None:
    class Choice:
        kind = "mlflow"
        uri = None
        experiment = None

    class Files:
        name = "digits"
        tracking = journal.parent / "tracking.json"

    Files.journal = journal
    story.whole()
    story.write(journal)
    with open_spool(Files(), Choice()) as spool:
        assert not spool.is_enabled
        assert spool.flush(0)
        assert spool.lag() == 0
        assert spool.log_model(0, "model", "example", label) is None
        begun = time.monotonic()
        assert spool.has_model(0) is False
        assert time.monotonic() - begun < 1.0
        with pytest.raises(RuntimeError, match="without tracking"):
            spool.call(lambda tracker: tracker, 1.0)
        assert spool.stop()


def test_a_refusal_is_an_error_with_every_line() -> None:
    error = TrackingRefusedError(["a", "b"])
    assert error.refused == ("a", "b")
    assert str(error) == "a\nb"
