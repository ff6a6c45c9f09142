"""What is said while no trial can run: seldom, and not while one runs."""

from types import SimpleNamespace

import pytest

from dpsweep.running.nodes import waiting
from dpsweep.running.nodes.waiting import EVERY_S, PATIENCE_S, Waiting


def trial(status):
    return SimpleNamespace(status=status, config={"cpu": 2, "gpu": 0.5})


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(waiting.ray, "available_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(waiting.ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 1.0})
    said, now = [], [0.0]
    callback = Waiting(said.append, clock=lambda: now[0])

    def at(seconds, *statuses):
        now[0] = seconds
        callback.on_step_begin(0, [trial(status) for status in statuses])
        return [said.pop() for _ in list(said)]

    return at


def test_it_is_said_after_a_while_and_then_now_and_then(watch):
    assert watch(0, "PENDING", "PENDING") == []
    assert watch(PATIENCE_S - 1, "PENDING", "PENDING") == []
    (line,) = watch(PATIENCE_S, "PENDING", "PENDING")
    assert "2 trials waiting for 0:30, none runs: one asks for 2 CPUs and 0.5 GPUs" in line
    assert "free are 1 of 8 CPUs and 0 of 1 GPU. Other jobs have the rest" in line
    assert watch(PATIENCE_S + 1, "PENDING") == []
    assert len(watch(PATIENCE_S + EVERY_S, "PENDING")) == 1
    assert watch(400, "RUNNING", "PENDING") == ["trials run, after 6:40 without room"]
    assert watch(401, "PENDING") == []
    assert watch(410, "RUNNING") == []


@pytest.mark.parametrize("statuses", [["RUNNING", "PENDING"], ["PAUSED"], []])
def test_nothing_is_said_while_one_runs_or_none_waits(watch, statuses):
    assert [watch(seconds, *statuses) for seconds in (0, 100, 1000)] == [[], [], []]


def test_where_enough_is_free_no_other_job_is_blamed(watch, monkeypatch):
    monkeypatch.setattr(waiting.ray, "available_resources", lambda: {"CPU": 2.0, "GPU": 1.0})
    watch(0, "PENDING")
    (line,) = watch(PATIENCE_S, "PENDING")
    assert "free are 2 of 8 CPUs and 1 of 1 GPU. Its process is starting, or no one node" in line
    assert "Other jobs" not in line
