"""Between Ray Tune and our types: reports to a policy and a run, decisions to Tune."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from dpsweep.schedulers.base import TrialPolicy
from dpsweep.trial import Decision, TrialReport

_TUNE = {
    Decision.CONTINUE: TrialScheduler.CONTINUE,
    Decision.PAUSE: TrialScheduler.PAUSE,
    Decision.STOP: TrialScheduler.STOP,
}


class PolicyScheduler(FIFOScheduler):
    """A Ray Tune scheduler that asks a policy; state lives in the policy, not here."""

    def __init__(self, policy: TrialPolicy) -> None:
        super().__init__()
        self.policy = policy

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Translate one result; the report travels in it whole (``DPTrainable.step``)."""
        return _TUNE[self.policy.on_report(report_of(result))]


def report_of(result: dict[str, Any]) -> TrialReport:
    """Return the report of a Tune result, whether Tune has flattened it or not."""
    if "report" in result:
        return TrialReport(**result["report"])
    fields: dict[str, Any] = {"metrics": {}}
    for key, value in result.items():
        if key.startswith("report/metrics/"):
            fields["metrics"][key.removeprefix("report/metrics/")] = value
        elif key.startswith("report/"):
            fields[key.removeprefix("report/")] = value
    return TrialReport(**fields)


class Listener(Protocol):
    """Who is told how trials go on."""

    def on_report(self, report: TrialReport) -> None:
        """A trial has reported."""

    def on_end(self, trial: int, *, died: bool = False) -> None:
        """A trial has ended; ``died`` if its process did, once too often."""


class TuneListener(tune.Callback):
    """Hands Tune's callbacks on, in our terms."""

    def __init__(self, listener: Listener) -> None:
        self._listener: Listener | None = listener

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any
    ) -> None:
        """Hand on a report."""
        assert self._listener is not None
        self._listener.on_report(report_of(result))

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Hand on an end, by plan, failure or policy."""
        assert self._listener is not None
        self._listener.on_end(trial.config["trial"])

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Hand on a death; Tune calls this only when it gives the trial up."""
        assert self._listener is not None
        self._listener.on_end(trial.config["trial"], died=True)

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles callbacks with its experiment state, which is never read back."""
        return {"_listener": None}


class StopWhen(tune.Stopper):
    """Stops every trial as soon as a condition holds."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition: Callable[[], bool] = condition

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Say whether this trial stops."""
        return self._condition()

    def stop_all(self) -> bool:
        """Say whether all trials stop."""
        return self._condition()

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles stoppers with its experiment state, which is never read back."""
        return {"_condition": bool}
