"""Calls on all nodes, with a stand-in for Ray that says what was asked and cancelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpsweep.cluster import base
from dpsweep.cluster.base import ClusterTarget
from dpsweep.foundation.errors import SweepError
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec


class Ray:
    """Calls are made as they are waited for, in their order."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.cancelled: list[int] = []

    def remote(self, **options: Any) -> Callable[..., Any]:
        def task(function: Callable[[int], int]) -> Any:
            def ask(job: int) -> int:
                self.asked.append(job)
                return job

            self._function = function
            return type("Task", (), {"remote": staticmethod(ask)})

        return task

    def wait(self, calls: list[int], num_returns: int) -> tuple[list[int], list[int]]:
        return [min(calls)], []

    def get(self, call: int) -> int:
        return self._function(call)

    def cancel(self, call: int) -> None:
        self.cancelled.append(call)


class Target(ClusterTarget):
    """A cluster of two CPUs."""

    def connect(self) -> None:
        raise AssertionError

    def total(self) -> dict[str, float]:
        return {"CPU": 2.0}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    stand_in = Ray()
    for name in ("remote", "wait", "get", "cancel"):
        monkeypatch.setattr(base.ray, name, getattr(stand_in, name))
    monkeypatch.setattr(base, "living_nodes", lambda: [{"CPU": 2.0}])
    return stand_in


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(ClusterSpec(), ResourcesSpec(), tmp_path)


def double(job: int) -> int:
    if job == 3:
        raise SweepError("three")
    return 2 * job


def test_all_results_come_and_nothing_is_cancelled(ray: Ray, target: Target) -> None:
    assert sorted(target.map(double, [0, 1, 2, 4, 5, 6, 7])) == [0, 2, 4, 8, 10, 12, 14]
    assert ray.cancelled == []


def test_jobs_are_taken_as_there_is_room(ray: Ray, target: Target) -> None:
    results = target.map(double, iter(range(100)))
    next(results)
    assert ray.asked == [0, 1, 2, 3]
    results.close()


def test_leaving_early_cancels_what_has_not_ended(ray: Ray, target: Target) -> None:
    results = target.map(double, range(10))
    assert next(results) == 0
    results.close()
    assert sorted(ray.cancelled) == [1, 2, 3]


def test_a_call_that_fails_cancels_the_others(ray: Ray, target: Target) -> None:
    with pytest.raises(SweepError, match="three"):
        list(target.map(double, range(10)))
    assert sorted(ray.cancelled) == [4, 5, 6]
