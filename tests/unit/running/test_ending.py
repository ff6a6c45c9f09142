"""How the end of a launch is written down, and what is said of a damaged study."""

import dataclasses
import os
import threading
import time

import pytest
from launches import Driver, report

from dpsweep.foundation.errors import StorageError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import trial_file, trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.running.ending import (
    Conclusion,
    Ending,
    await_actors,
    say_failures,
    write_charges,
)
from dpsweep.running.recovery import LOST, mend_tasks
from dpsweep.study.events import StudyStarted
from dpsweep.study.journal import fold
from dpsweep.study.trial import TrialState
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.updates import read_events


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def charged_task(driver, reported, steps):
    """Admit a trial, report one of its steps and charge more of them."""
    task = driver.source().next_task(num_running=0)
    driver.charge(task, steps)
    driver.stage.on_report(dataclasses.replace(report(task, reported), charged=reported))
    return task


def test_the_tracker_hears_what_was_charged_after_the_last_report(driver):
    driver.study.write(StudyStarted("stage", tags={"dp.delta": 1e-5}))
    task = charged_task(driver, 3, 15)
    write_charges(driver.study)
    *_, last = read_log(driver.study.files.journal)
    spent = trial_spent(driver.study.files.ledger, task.trial)
    epsilon = epsilon_of(spent, delta=1e-5, accountant=driver.spec.privacy.accountant)
    assert epsilon > 0.5  # that it has reported
    assert (last["event"], last["charged"], last["epsilon"]) == ("trial_charged", 15, epsilon)
    view = fold(read_log(driver.study.files.journal)).trials[task.trial]
    assert (view.step, view.charged, view.epsilon) == (3, 15, epsilon)
    write_charges(driver.study)  # nothing has happened since
    assert len(read_log(driver.study.files.journal)) == last["seq"] + 1


def test_the_tracker_shows_it():
    tags = {
        "dp.delta": 1e-5, "dp.unit": "example", "dp.adjacency": "add_or_remove_one",
        "dp.accountant": "rdp", "dp.accounting": "unaccounted",
    }  # fmt: skip
    events = [
        {"event": "study_started", "name": "s", "params": {}, "tags": tags},
        {"event": "trial_started", "trial": 0, "hparams": {}, "plan": {"epsilon": 2.0},
         "tags": {"dp.sampling": "poisson"}},
        {"event": "trial_report", "trial": 0, "step": 3, "epsilon": 0.57, "metrics": {}},
        {"event": "trial_charged", "trial": 0, "step": 3, "epsilon": 0.643, "charged": 9},
        {"event": "trial_charged", "trial": 7, "step": 3, "epsilon": 0.643, "charged": 9},
    ]  # fmt: skip
    events = [{"seq": n, "time_ms": n, **event} for n, event in enumerate(events)]
    reading = read_events(TrackingState(), events)
    (update,) = [update for update in reading.updates if update.trial == 0]
    shown = [p.value for p in update.metrics if p.name == "dp/epsilon"]
    assert shown == [0.57, 0.643]
    assert reading.refused == ["trial 7: charges before its start"]


def full_disk(monkeypatch):
    def write(file, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)


def test_a_full_disk_at_the_end_is_one_line_with_its_path(driver, monkeypatch):
    full_disk(monkeypatch)
    with pytest.raises(StorageError, match=r"cannot write .*journal.jsonl: No space") as caught:
        Conclusion(driver.study, driver.observer).write(Ending("finished"))
    assert "what was charged and written before is safe" in str(caught.value)


def test_the_first_error_is_not_hidden_by_that_of_the_end(driver, monkeypatch):
    full_disk(monkeypatch)
    Conclusion(driver.study, driver.observer).write(Ending("failed"), ValueError("first"))
    (told,) = driver.observer.messages
    assert told.startswith("the end of the study cannot be written down: cannot write ")


def test_an_end_is_written_once(driver):
    conclusion = Conclusion(driver.study, driver.observer)
    conclusion.write(Ending("interrupted"))
    conclusion.write(Ending("finished"))
    ends = [r for r in read_log(driver.study.files.journal) if r["event"] == "study_ended"]
    assert [end["state"] for end in ends] == ["interrupted"]


def test_an_urgent_end_waits_for_the_one_that_is_being_written(driver, monkeypatch):
    """Both want the right to write: whoever has begun goes first."""
    begun, conclusion = threading.Event(), Conclusion(driver.study, driver.observer)

    def wait(study):
        begun.set()
        time.sleep(0.5)

    monkeypatch.setattr("dpsweep.running.ending.await_actors", wait)
    threads = [
        threading.Thread(target=conclusion.write, args=(Ending(state),), kwargs=more, daemon=True)
        for state, more in (("failed", {}), ("interrupted", {"is_urgent": True}))
    ]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert read_log(driver.study.files.journal)[-1]["state"] == "failed"


def test_an_urgent_end_is_the_last_that_is_written_and_waits_for_no_actor(driver, monkeypatch):
    monkeypatch.setattr("dpsweep.running.ending.await_actors", lambda study: 1 / 0)
    conclusion, study = Conclusion(driver.study, driver.observer), driver.study
    ended, over = threading.Event(), threading.Event()

    def leave():
        conclusion.write(Ending("interrupted"), is_urgent=True)
        ended.set()
        over.wait(10)  # the process would end here

    threading.Thread(target=leave).start()
    assert ended.wait(10)
    late = threading.Thread(target=study.write, args=(StudyStarted("stage"),), daemon=True)
    late.start()
    late.join(0.3)
    assert late.is_alive()
    assert read_log(study.files.journal)[-1]["state"] == "interrupted"
    over.set()


@pytest.mark.parametrize("is_held", [True, False])
def test_an_end_waits_for_actors_a_while(driver, monkeypatch, is_held):
    """What they charge last is in their ledgers once they have let go of these."""
    driver.charge(driver.source().next_task(num_running=0), 3)
    monkeypatch.setattr("dpsweep.running.ending._WAIT_S", 0.5)
    monkeypatch.setattr("dpsweep.running.ending.is_locked", lambda path: is_held)
    begun = time.monotonic()
    await_actors(driver.study)
    assert (time.monotonic() - begun >= 0.5) is is_held


@pytest.mark.parametrize("num_failed", [1, 2, 3])
def test_the_commonest_reason_is_told_where_most_trials_failed(driver, num_failed):
    source = driver.source()
    for number in range(3):
        task = source.next_task(num_running=number)
        driver.charge(task, 3)
        last = report(task, 3, done=True)
        if number < num_failed:
            last = dataclasses.replace(last, failure="out of memory at x.py:3; fix: less")
        driver.stage.on_report(last)
        driver.stage.on_end(task.trial)
    driver.observer.messages.clear()
    say_failures(driver.study, driver.observer)
    expected = [
        f"{num_failed} of 3 trials failed; the commonest reason ({num_failed} of them): "
        "out of memory at x.py:3; fix: less"
    ]
    assert driver.observer.messages == (expected if num_failed > 1 else [])


def task_file(driver, task):
    return driver.study.files.trial(task.trial) / "trial.json"


@pytest.mark.parametrize("how", ["flipped", "missing", "directory"])
def test_a_task_is_written_anew_with_the_plan_that_the_ledger_knows(driver, how):
    task = driver.source().next_task(num_running=0)
    path = task_file(driver, task)
    content = path.read_bytes()
    if how == "flipped":
        path.write_bytes(content.replace(b'"epochs', b'"fpochs').replace(b"constant", b"conttant"))
        if path.read_bytes() == content:
            path.write_bytes(content[:-9] + b"x" + content[-8:])
    else:
        path.unlink()
        if how == "directory":
            path.mkdir()
    assert mend_tasks(driver.checked, driver.study, [task.trial], driver.observer) == set()
    assert driver.study.files.task(task.trial) == task
    assert "it is written anew from the journal" in driver.observer.messages[0]


def test_a_task_whose_plan_is_another_now_stays_lost(driver, monkeypatch):
    task = driver.source().next_task(num_running=0)
    task_file(driver, task).unlink()
    monkeypatch.setattr("dpsweep.running.recovery.plan_digest", lambda plan: "of another plan")
    assert mend_tasks(driver.checked, driver.study, [task.trial], driver.observer) == {task.trial}
    driver.stage.end_lost(task.trial)
    view = driver.study.view.trials[task.trial]
    assert (view.state, view.reason) == (TrialState.FAILED, LOST)


def test_a_trial_without_its_folder_is_closed_with_its_charges(driver):
    task = charged_task(driver, 3, 9)
    path = task_file(driver, task)
    path.unlink()
    assert mend_tasks(driver.checked, driver.study, [task.trial], driver.observer) == {task.trial}
    driver.stage.end_lost(task.trial)
    view = driver.study.view.trials[task.trial]
    spent = trial_spent(driver.study.files.ledger, task.trial)
    assert (view.state, len(spent)) == (TrialState.FAILED, 9)
    assert view.epsilon == epsilon_of(spent, delta=1e-5, accountant=driver.spec.privacy.accountant)
    assert trial_file(driver.study.files.ledger, task.trial).exists()
