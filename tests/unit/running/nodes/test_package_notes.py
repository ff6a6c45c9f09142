"""Trials of a package that has another version by now."""

from importlib import metadata
from types import SimpleNamespace

import pytest
from launches import Driver

from dpsweep.foundation.logs import read_log
from dpsweep.running import entries
from dpsweep.running.nodes import software
from dpsweep.running.nodes.software import package_notes
from dpsweep.study.journal import TrialView
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.updates import read_events
from dpsweep.trainables import TRAINABLES


def trial(package):
    view = TrialView(0)
    view.package = package
    return view


def test_trials_of_another_version_are_named(monkeypatch):
    monkeypatch.setattr(software, "_version", {"fern": "0.2", "moss": "1.0", "gone": ""}.get)
    old, now = trial("fern 0.1"), trial("fern 0.2")
    assert package_notes({5: trial("gone 3.0")}) == [
        "note: trial 5 ran with gone 3.0, and none is installed now; plans and scores of both "
        "stand in one table"
    ]
    assert package_notes({0: trial(""), 1: now, 2: trial("moss 1.0")}) == []
    assert package_notes({0: old, 1: now, 3: old, 4: trial("moss 0.9")}) == [
        "note: trials 0, 3 ran with fern 0.1, and fern 0.2 is installed now; plans and scores of "
        "both stand in one table",
        "note: trial 4 ran with moss 0.9, and moss 1.0 is installed now; plans and scores of both "
        "stand in one table",
    ]


@pytest.mark.slow
def test_a_trial_says_which_package_has_brought_its_method(tmp_path, monkeypatch):
    driver = Driver(tmp_path)
    driver.study.write(entries.study_started(driver.study))
    source = driver.source()
    assert source.next_task(num_running=0).trial == 0
    assert driver.study.view.trials[0].package == "", "dpsweep says its own version elsewhere"
    point = metadata.EntryPoint("dp_sgd", "a:B", "dpsweep.trainables")
    point.__dict__["dist"] = SimpleNamespace(name="fern", version="0.1")
    monkeypatch.setattr(TRAINABLES, "_outside", {"dp_sgd": point})
    assert source.next_task(num_running=1).trial == 1
    assert driver.study.view.trials[1].package == "fern 0.1"
    reading = read_events(TrackingState(), read_log(driver.study.files.journal))
    tags = [update.tags for update in reading.updates if "dpsweep.package" in update.tags]
    assert [each["dpsweep.package"] for each in tags] == ["fern 0.1"]
    assert not reading.refused
    driver.close()
