from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from blobs import blobs

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import Plan
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.spec.study import DataSpec
from dpsweep.study.trial import TrialReport, TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.execution import execution
from dpsweep.trainables.execution.execution import TrialExecution
from dpsweep.trainables.execution.pace import Pace
from dpsweep.trainables.execution.settings import ExecutionSettings
from dpsweep.trainables.method import Method, PlanContext, RunContext

DELTA = 1e-5


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_spec() -> Callable[..., DataSpec]:
    def make(**given: Any) -> DataSpec:
        raw: dict[str, Any] = {
            "dataset": "digits",
            "validation": {"fraction": 0.2, "visibility": "public"},
            **given,
        }
        return DataSpec(**raw)

    return make


@pytest.fixture
def data() -> SweepData:
    return blobs()


@pytest.fixture
def make_blobs() -> Callable[..., SweepData]:
    return blobs


@pytest.fixture
def make_plan() -> Callable[..., tuple[dict[str, Any], Any]]:
    def make(
        method: type[Method], *, num_private: int = 200, epsilon: float = 3.0, **given: Any
    ) -> tuple[dict[str, Any], Any]:
        named = {key.replace("__", "."): value for key, value in given.items()}
        hparams = resolve(method.hyperparameters, {"batch.expected": 50, **named})
        context = PlanContext(PrivacyBudget(epsilon, 1e-5), "rdp", num_private)
        return hparams, method.plan(hparams, context)

    return make


class Killed(KeyboardInterrupt):
    """Stands for SIGKILL: nothing catches it, nothing cleans up."""


class Scripted(Method):
    """A method that executes any plan in no time; its accuracy is what a test says."""

    name: ClassVar[str] = "scripted"
    hyperparameters = ()
    accuracy: ClassVar[Callable[[int], float]] = staticmethod(lambda position: position / 1e6)

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        raise NotImplementedError

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        self._plan, self._position, self.context = plan, 0, context

    def _execute(self, position: int) -> None:
        assert position == self._position

    def evaluate(self, part: str) -> dict[str, float]:
        return {"accuracy": type(self).accuracy(self._position), "loss": 0.25}

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._position = state["position"]

    def export(self) -> torch.nn.Module:
        raise NotImplementedError


class AtReports(Pace):
    """Charges everything up to the next report at once, and keeps models there alone."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 10**9

    @contextmanager
    def running(self, steps: int) -> Iterator[None]:
        yield

    def is_due(self) -> bool:
        return False


class Lab:
    """Opens trials, one directory each, on one ledger directory."""

    Killed = Killed
    Method = Scripted

    def __init__(self, path: Path, data: SweepData) -> None:
        self.path, self.data = path, data

    def settings(self, **changes: Any) -> ExecutionSettings:
        values: dict[str, Any] = {
            "ledger": self.path / "ledger",
            "budget": PrivacyBudget(target_epsilon=2.0, delta=DELTA),
            "accountant": "rdp",
            "study_seed": 0,
            "metric": "validation/accuracy",
            "maximize": True,
            "report_every": 10,
            "report_points": 10,
            "validation": "exact",
            "show_test": False,
        }
        return ExecutionSettings(**{**values, **changes})

    def directory(self, trial: int = 0) -> Path:
        return self.path / "trials" / f"{trial:04d}"

    def task(
        self, settings: ExecutionSettings, hparams: Mapping[str, Any], trial: int = 0, **more: Any
    ) -> TrialTask:
        """Admit a trial of dp_sgd, or of the method in ``more``."""
        method = TRAINABLES[more.pop("method", "dp_sgd")]
        resolved = resolve(method.hyperparameters, hparams)
        info = (
            self.data.for_public_search(with_test=True).info
            if "records" in more
            else self.data.info
        )
        context = PlanContext(settings.budget, settings.accountant, info.num_private)
        plan = method.plan(resolved, context)
        epsilon = epsilon_of(plan, delta=DELTA, accountant=settings.accountant)
        return TrialTask(trial, method.name, resolved, plan, epsilon, method.is_private, **more)

    def scripted(self, plan: Plan, trial: int = 0, **more: Any) -> TrialTask:
        """Admit a trial that runs ``plan`` without training."""
        return TrialTask(trial, "scripted", {}, plan, epsilon_of(plan, delta=DELTA), True, **more)

    def open(
        self, settings: ExecutionSettings, task: TrialTask, pace: Pace | None = None
    ) -> TrialExecution:
        data = (
            self.data if task.records == "private" else self.data.for_public_search(with_test=True)
        )
        return TrialExecution(
            self.directory(task.trial), task, settings=settings, data=data, pace=pace or AtReports()
        )

    def run(self, settings: ExecutionSettings, task: TrialTask) -> list[TrialReport]:
        """Open a trial and run it to its end."""
        return self.finish(self.open(settings, task))

    @staticmethod
    def finish(trial: TrialExecution) -> list[TrialReport]:
        reports: list[TrialReport] = []
        while not reports or not reports[-1].done:
            reports.append(trial.advance())
        trial.close()
        return reports

    @staticmethod
    def crash_in_segment(trial: TrialExecution, number: int) -> list[TrialReport]:
        """Advance until segment ``number`` has been charged, then die within it."""
        run = trial.method.run
        calls: list[int] = []

        def dying(start: int, stop: int) -> None:
            calls.append(start)
            if len(calls) == number:
                run(start, start + (stop - start) // 2)
                raise Killed
            run(start, stop)

        trial.method.run = dying  # type: ignore[method-assign]
        reports = [trial.advance() for _ in range(number - 1)]
        with pytest.raises(Killed):
            trial.advance()
        trial.close()  # the operating system releases the lock of a killed process
        return reports


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    data = blobs(1000, (12,), num_validation=200, num_test=50)
    table = {**{name: TRAINABLES[name] for name in TRAINABLES}, "scripted": Scripted}
    monkeypatch.setattr(execution, "TRAINABLES", table)
    return Lab(tmp_path, data)


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], float]], None]:
    """Set the exact validation accuracy of scripted trials, as a function of the position."""

    def set_accuracy(function: Callable[[int], float]) -> None:
        monkeypatch.setattr(Scripted, "accuracy", staticmethod(function))

    return set_accuracy
