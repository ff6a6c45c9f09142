"""A tracker in a process of its own: the same answers and errors, and it ends with its driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from outside import install

from dpsweep.foundation.errors import SweepError, UnreachableError
from dpsweep.foundation.process.starting import start_module
from dpsweep.spec.tracking import TrackingSpec
from dpsweep.study.model_graph import ModelGraph
from dpsweep.tracking import APART_FROM, TRACKERS, open_spool
from dpsweep.tracking.apart import remote, wire
from dpsweep.tracking.apart.remote import RemoteTracker
from dpsweep.tracking.base import (
    ExperimentDeletedError,
    StoreDamagedError,
    StoreRefusedError,
    TrackerEndedError,
    TrackingRefusedError,
)
from dpsweep.tracking.spool import _brief

#: A tracker of another package, found by the names that an installed one would have.
STRANGE = '''
import os
from pathlib import Path

from dpsweep.tracking.base import StoreRefusedError, TrackingRefusedError
from dpsweep.tracking.memory import MemoryTracker


class Strange(MemoryTracker):
    """Prints, fails as its experiment says, and writes down in which process it is."""

    runs_apart = takes_graphs = True

    def __init__(self, uri, experiment, state_path):
        super().__init__()
        self.failure, self.notes = experiment, ["opened"]
        print("a line that a library prints")
        with open(uri, "a") as file:
            file.write(f"{os.getpid()}\\n")
        if experiment == "closed":
            raise StoreRefusedError("it is closed", because="of the hour", fix="come back")

    def handle(self, events):
        os.write(1, b"another one, past Python\\n")
        super().handle(events)
        if self.failure == "refused":
            raise TrackingRefusedError(["one", "two"])
        if self.failure == "odd":
            raise LookupError("no such thing\\nand more")
        if self.failure == "dead" and len(Path(self.uri_of()).read_text().split()) < 2:
            os._exit(7)

    def uri_of(self):
        return os.environ["STRANGE_URI"]
'''


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address for a strange tracker, whose package is installed."""
    site = tmp_path / "site"
    (site / "strange-1.0.dist-info").mkdir(parents=True)
    (site / "strange.py").write_text(STRANGE)
    (site / "strange-1.0.dist-info/METADATA").write_text("Name: strange\nVersion: 1.0\n")
    entry = "[dpsweep.trackers]\nstrange = strange:Strange\n"
    (site / "strange-1.0.dist-info/entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(site))
    # This process may have looked at what is installed before.
    install(monkeypatch, "dpsweep.trackers", TRACKERS, strange="strange:Strange")
    monkeypatch.setenv("STRANGE_URI", str(tmp_path / "pids"))
    return str(tmp_path / "pids")


@pytest.fixture
def make(uri: str, tmp_path: Path) -> Iterator[Callable[[str], RemoteTracker]]:
    made = []

    def of(experiment: str) -> RemoteTracker:
        made.append(RemoteTracker("strange", uri, experiment, tmp_path / "state.json"))
        return made[-1]

    yield of
    for tracker in made:
        tracker.close()


def pids(uri: str) -> list[int]:
    return [int(line) for line in Path(uri).read_text().split()]


def is_over(pid: int, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def every(kind: type[SweepError]) -> set[type[SweepError]]:
    return {kind}.union(*(every(each) for each in kind.__subclasses__()))


def test_errors_of_ours_arrive_as_they_were() -> None:
    """A spool tells them apart: an outage of the study's storage is none of the store."""
    kinds = every(SweepError) - {TrackingRefusedError}
    assert {ExperimentDeletedError, StoreDamagedError, StoreRefusedError, UnreachableError} < kinds
    for kind in kinds:
        error = kind.__new__(kind)
        SweepError.__init__(error, "no such place", because="it is nowhere", fix="go away")
        message = json.loads(json.dumps(wire.from_error(error)))
        back = wire.to_error(message)
        assert type(back) is kind
        assert (back.message, back.because, back.fix) == (error.message, error.because, error.fix)


def test_of_other_errors_their_nearest_kind_or_their_words_arrive() -> None:
    class Strange(StoreRefusedError):
        """Of a package that is not loaded here."""

    message = wire.from_error(Strange("it refuses", fix="ask"))
    message["kinds"][0] = "Elsewhere"
    near = wire.to_error(message)
    assert (type(near), str(near)) == (StoreRefusedError, "it refuses\n  fix: ask")
    refused = wire.to_error(wire.from_error(TrackingRefusedError(["one", "two"])))
    assert isinstance(refused, TrackingRefusedError)
    assert refused.refused == ("one", "two")
    odd = LookupError("no such thing\nand more")
    assert (
        _brief(wire.to_error(wire.from_error(odd))) == _brief(odd) == ("LookupError: no such thing")
    )


def test_a_graph_and_a_message_that_was_cut_off() -> None:
    graph = ModelGraph(b"\n{}\0", "float32", (3, 2), 2, "2.15")
    words, archive = wire.from_graph(graph)
    stream = BytesIO()
    wire.send(stream, {"graph": words}, archive)
    whole = stream.getvalue()
    message, content = wire.receive(BytesIO(whole)) or ({}, b"")
    assert wire.to_graph(message["graph"], content) == graph
    for length in (0, 5, len(whole) - len(archive) - 1, len(whole) - 1):
        assert wire.receive(BytesIO(whole[:length])) is None


def test_what_a_library_prints_is_no_answer(
    make: Callable[[str], RemoteTracker], story: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    story.whole()
    tracker = make("digits")
    assert list(tracker.notes) == ["opened"]
    assert (tracker.last_seq, tracker.parent_run_id) == (-1, None)
    tracker.handle(story.events)
    assert tracker.last_seq == story.events[-1]["seq"]
    assert tracker.parent_run_id is not None
    tracker.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "a line that a library prints" in err
    assert "another one, past Python" in err


def test_its_errors_are_raised_here_and_it_goes_on(
    make: Callable[[str], RemoteTracker], story: Any
) -> None:
    story.whole()
    with pytest.raises(StoreRefusedError) as caught:
        make("closed")
    assert (caught.value.because, caught.value.fix) == ("of the hour", "come back")
    tracker = make("refused")
    with pytest.raises(TrackingRefusedError) as refused:
        tracker.handle(story.events[:2])
    assert refused.value.refused == ("one", "two")
    assert tracker.last_seq == story.events[1]["seq"]  # it has taken what it does not refuse
    odd = make("odd")
    with pytest.raises(wire.StoreFailedError, match="no such thing"):
        odd.handle(story.events[:2])
    assert odd.run_id_of(999) is None


def test_signals_to_the_whole_job_do_not_end_it(
    make: Callable[[str], RemoteTracker], uri: str, story: Any
) -> None:
    story.whole()
    tracker = make("digits")
    (pid,) = pids(uri)
    assert os.getsid(pid) != os.getsid(0)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, each)
    tracker.handle(story.events)
    assert tracker.last_seq == story.events[-1]["seq"]
    tracker.close()
    assert is_over(pid)
    tracker.close()


def test_it_ends_with_a_driver_that_is_killed(uri: str, tmp_path: Path) -> None:
    """Two processes would write for one study else: the next launch has its own."""
    code = f"""
        import time
        from pathlib import Path
        from dpsweep.tracking.apart.remote import RemoteTracker
        tracker = RemoteTracker("strange", {uri!r}, "digits", Path({str(tmp_path)!r}) / "state.json")
        print("open", flush=True)
        time.sleep(600)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert driver.stdout is not None
    try:
        assert driver.stdout.readline() == "open\n"
        (pid,) = pids(uri)
        assert not is_over(pid, 0.2)
    finally:
        driver.kill()
        driver.communicate()
    assert is_over(pid)


class Files:
    name = "dead"

    def __init__(self, journal: Path) -> None:
        self.journal, self.tracking = journal, journal.parent / "tracking.json"


def test_where_the_process_dies_another_one_delivers_all(
    uri: str, tmp_path: Path, story: Any
) -> None:
    story.whole()
    journal = tmp_path / "journal.jsonl"
    story.write(journal)
    said: list[str] = []
    choice = TrackingSpec(kind="strange", uri=uri)
    with open_spool(Files(journal), choice, said.append, num_trials=APART_FROM) as spool:
        assert spool.flush(60)
        assert spool.call(lambda tracker: tracker.last_seq, 10) == story.events[-1]["seq"]
    first, second = pids(uri)
    assert len({first, second, os.getpid()}) == 3
    assert [line for line in said if "opened" not in line] == [
        "the process that writes to the tracking store has ended (7); another one is tried at "
        "once, and nothing is lost"
    ]


@pytest.mark.parametrize("times", [1, 9])
def test_what_somebody_waits_for_is_asked_of_the_next_process_once(
    uri: str, tmp_path: Path, story: Any, times: int
) -> None:
    """The largest message is the best model's, which a process without memory may die of."""
    story.whole()
    journal = tmp_path / "journal.jsonl"
    story.write(journal)
    said: list[str] = []
    choice = TrackingSpec(kind="strange", uri=uri, experiment="digits")
    killed: list[int] = []

    def ask(tracker: RemoteTracker) -> bool:
        if len(killed) < times:
            killed.append(pids(uri)[-1])
            os.kill(killed[-1], signal.SIGKILL)
        return tracker.has_model(0)

    with open_spool(Files(journal), choice, said.append, num_trials=APART_FROM) as spool:
        if times == 1:
            assert spool.call(ask, 60) is False
        else:
            with pytest.raises(TrackerEndedError):
                spool.call(ask, 60)
            assert spool.call(lambda tracker: tracker.has_model(0), 60) is False
        assert not spool.is_down
        assert spool.flush(60)
    assert len(killed) == min(times, 2)
    assert len([line for line in said if "tried at once, and nothing is lost" in line]) == len(
        killed
    )
    assert not [line for line in said if "is back" in line]


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_site_that_prints_as_python_starts_is_passed_over(
    uri: str,
    make: Callable[[str], RemoteTracker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    code = f"print('Welcome to this cluster', end={end!r})\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    assert list(make("digits").notes) == ["opened"]


def test_what_is_no_folder_on_the_path_of_modules_is_passed_over(
    make: Callable[[str], RemoteTracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sys.path.append(Path("src"))`` of a notebook; Python passes over it, too."""
    odd: Any = [Path("src"), f"one{os.pathsep}two", ""]
    monkeypatch.setattr(sys, "path", [*sys.path, *odd])
    assert list(make("digits").notes) == ["opened"]


@pytest.mark.slow
def test_a_process_that_cannot_be_started_is_no_store_that_is_away(
    uri: str, tmp_path: Path, story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.whole()
    journal = tmp_path / "journal.jsonl"
    story.write(journal)
    said: list[str] = []

    def fail(*args: str) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(remote, "start_module", fail)
    choice = TrackingSpec(kind="strange", uri=uri, experiment="digits")
    with open_spool(Files(journal), choice, said.append, num_trials=APART_FROM) as spool:
        assert not spool.flush(3)
        assert "no process can be started" in spool.why
    problem = (
        "no process can be started that writes to the tracking store ([Errno 24] Too many open "
        "files); "
    )
    assert said == [
        problem + "another one is tried at once, and nothing is lost",
        problem + "the study goes on, and another one is tried again and again",
    ]


@pytest.mark.slow
def test_it_runs_without_standard_streams(uri: str, tmp_path: Path) -> None:
    """A driver that was started by ``2>&-``."""
    code = f"""
        from dpsweep.foundation.process.streams import open_standard_streams
        open_standard_streams()
        from pathlib import Path
        from dpsweep.tracking.apart.remote import RemoteTracker
        tracker = RemoteTracker("strange", {uri!r}, "digits", Path({str(tmp_path)!r}) / "state.json")
        Path({str(tmp_path)!r}, "notes").write_text(str(list(tracker.notes)))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, textwrap.dedent(code)],
        env=environment,
        timeout=60,
    )
    assert done.returncode == 0
    assert (tmp_path / "notes").read_text() == "['opened']"


def test_it_does_not_outlive_a_message_that_it_cannot_read() -> None:
    """It would wait for another one for ever, and its driver for an answer."""
    process = start_module("dpsweep.tracking.apart")
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == wire.READY
        process.stdin.write(b"{no message\n")
        process.stdin.flush()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_of_few_trials_the_driver_itself_delivers(uri: str, tmp_path: Path, story: Any) -> None:
    story.whole()
    journal = tmp_path / "journal.jsonl"
    story.write(journal)
    choice = TrackingSpec(kind="strange", uri=uri, experiment="digits")
    with open_spool(Files(journal), choice, num_trials=APART_FROM - 1) as spool:
        assert spool.flush(60)
    assert pids(uri) == [os.getpid()]


def test_a_process_that_has_ended_says_so(make: Callable[[str], RemoteTracker], uri: str) -> None:
    tracker = make("digits")
    (pid,) = pids(uri)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TrackerEndedError, match=r"has ended \(-9\)"):
        tracker.has_model(0)
