"""Trackers pass the suite that outsiders subclass, and it finds what is wrong with one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from dpsweep.testing.trackers import TrackerConformance
from dpsweep.tracking.apart.remote import RemoteTracker
from dpsweep.tracking.base import Tracker
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.updates import Event


class TestMemory(TrackerConformance):
    def make(self, folder: Path) -> Tracker:
        return MemoryTracker()


class TestMLflow(TrackerConformance):
    @pytest.fixture(autouse=True)
    def _migrated(self, migrated_db: Path, tmp_path: Path) -> None:
        shutil.copy(migrated_db, tmp_path / "mlflow.db")

    def make(self, folder: Path) -> Tracker:
        return MLflowTracker(f"sqlite:///{folder}/mlflow.db", "suite", folder / "state.json")


class TestApart(TestMLflow):
    """The same in a process of its own."""

    def make(self, folder: Path) -> Tracker:
        place = (f"sqlite:///{folder}/mlflow.db", "suite", folder / "state.json")
        return RemoteTracker("mlflow", *place)


class Forgetful(MemoryTracker):
    """Gives its runs other names at each launch, and more with each delivery."""

    launches: ClassVar[int] = 0
    deliveries = 0

    def __init__(self) -> None:
        super().__init__()
        Forgetful.launches += 1

    def handle(self, events: Sequence[Event]) -> None:
        super().handle(events)
        self.deliveries += 1
        for run in self.runs.values():
            run.run_id = f"{run.run_id}-{self.launches}-{self.deliveries}"


@pytest.mark.parametrize(
    "test",
    [
        "test_what_it_is_told_twice_changes_no_run",
        "test_a_later_launch_goes_on_with_the_same_runs",
    ],
)
def test_a_tracker_that_forgets_its_runs_fails(test: str, tmp_path: Path) -> None:
    class Broken(TrackerConformance):
        __test__: ClassVar[bool] = False

        def make(self, folder: Path) -> Tracker:
            return Forgetful()

    with pytest.raises(AssertionError):
        getattr(Broken(), test)(tmp_path)
