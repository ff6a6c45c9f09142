"""Between Ray Tune and our types: reports to a run and its policy, decisions to Tune."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Set
from typing import Any, Protocol, TypeVar

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from dpsweep.foundation.errors import SweepError
from dpsweep.schedulers.base import BarrierPolicy, TrialPolicy, promotion
from dpsweep.schedulers.keeping import KeptProcesses
from dpsweep.study.trial import NO_BUDGET_LEFT, Decision, TrialReport, Verdict

_TUNE = {
    Decision.CONTINUE: TrialScheduler.CONTINUE,
    Decision.PAUSE: TrialScheduler.PAUSE,
    Decision.STOP: TrialScheduler.STOP,
}


_Result = TypeVar("_Result")
#: Calls a method of a trial's process, by name, and waits for the answer.
Ask = Callable[..., Any]
#: Seconds for an answer, and between two looks whether it is given up.
ASK_S, _LOOK_S = 120.0, 0.5


class PastTune(BaseException):
    """An error on its way through Tune to whoever runs it.

    Tune takes an ``Exception`` of a scheduler or a callback for a failure of the trial's at some
    places, and tries the trial again, which is charged again; at others it keeps its text alone.

    Args:
        error: The error.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _past_tune(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """Let an error of a method that Tune calls pass it."""

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> _Result:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            raise PastTune(error) from error

    return wrapper


class Listener(Protocol):
    """Who is told how trials go on, and writes it down before anything follows from it."""

    def on_report(self, report: TrialReport) -> TrialReport:
        """A trial has reported; returns the report as it was written, which the policy sees."""
        ...

    def on_verdict(self, report: TrialReport, verdict: Verdict) -> None:
        """A policy has judged a trial at a rung, or has decided about a paused one."""

    def on_pause(self, trial: int) -> None:
        """A trial is paused: its actor will run nothing more of it until it is resumed."""

    def on_end(self, trial: int, *, died: bool = False) -> None:
        """A trial has ended; ``died`` if its process did, once too often."""


class PolicyScheduler(FIFOScheduler):
    """A Ray Tune scheduler that asks a policy, and has everything written down first.

    All that follows from one report happens in one call, in this order:

    1. ``listener.on_report``: it goes to the journal;
    2. ``policy.on_report``: the policy sees what the journal has, as it will on a replay;
    3. ``listener.on_verdict``, if the trial was judged at a rung;
    4. ``listener.on_pause``, if it is paused; ``listener.on_end``, by ``TuneListener``, if it ends.

    Tune calls its callbacks only after the scheduler, so a callback would write a report after the
    policy had seen it; that is why the scheduler tells of reports, and the callback of ends. The
    last report of a trial (its plan is done, or the study stops) does not pass ``on_trial_result``
    but ``on_trial_complete``, which Tune calls before the callback.

    A paused trial is resumed when the policy names it and ``may_resume`` agrees; then the verdict
    that promotes it is told to the listener. One that may not is asked again after the next pause
    or end, which is when budget and slots become free. Tune itself would restart paused trials as
    soon as there is room, and also one whose actor dies while it saves; neither is let happen:
    what a paused trial has not charged may be reserved by others by then. When the search is done,
    nothing runs and no paused trial may go on, the paused ones are given up: a verdict tells why,
    ``listener.on_end`` follows, and Tune can end. Before that, a study with a budget of its own
    spends the rest of it on the best of them: what it does not spend, nobody gets back. A policy
    with a barrier (``BarrierPolicy``) is asked who is promoted when the search is done.

    Args:
        policy: Decides.
        listener: Writes down.
        may_resume: Takes a slot and reserves the budget for a paused trial, if both are there.
        search_is_done: Says whether no new trial will come.
        spends_rest: Let paused trials go on, the best first, when no new one will come.
        paused: Last reports of trials that an earlier launch has paused. The searcher hands these
            out like others, but at once and not counted as running: they wait here.
        kept: Processes that Tune keeps for new trials.
    """

    # A trial must not run on while its report is judged, whatever TUNE_RESULT_BUFFER_LENGTH says.
    _supports_buffered_results = False

    def __init__(
        self,
        policy: TrialPolicy,
        listener: Listener,
        *,
        may_resume: Callable[[int], bool],
        search_is_done: Callable[[], bool],
        spends_rest: bool = False,
        paused: Iterable[TrialReport] = (),
        kept: KeptProcesses | None = None,
    ) -> None:
        super().__init__()
        self.kept = kept or KeptProcesses()
        self._policy, self._listener = policy, listener
        self._may_resume, self._search_is_done = may_resume, search_is_done
        self._spends_rest = spends_rest
        self._expected = {report.trial: report for report in paused}
        self._paused: dict[int, tuple[Trial, TrialReport]] = {}
        self._refused: set[int] = set()
        self._stopped: set[int] = set()
        self._resumed: Trial | None = None
        self._given_back: list[tuple[Trial, int]] = []
        self._controller: Any = None

    @property
    def is_resuming(self) -> bool:
        """True while a paused trial is about to go on: a searcher lets it go before new ones.

        Also while its actor still saves it; a slot may seem free then.
        """
        waiting = self._waiting(Trial.PAUSED, Trial.RUNNING)
        return self._policy.choose_paused(waiting) is not None

    @_past_tune
    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Keep a paused trial paused that Tune would start, for the first time or again."""
        self._controller = tune_controller
        self.kept.keep(tune_controller, trial)
        number = trial.config["trial"]
        if number in self._expected:
            self._paused[number] = (trial, self._expected.pop(number))
            trial.init_local_path()  # Tune asks for it in the end, also if it was never run
            trial.set_status(Trial.PAUSED)  # Tune files it by its status after this call
        elif number in self._paused:
            tune_controller._set_trial_status(trial, Trial.PAUSED)
        elif trial in tune_controller._resetting_trials:
            # Its process died as it was given the trial. Tune is about to hear of that once more,
            # from the call that was under way, and to give up a trial that waits; and it takes this
            # one for being given to a process for ever.
            tune_controller._resetting_trials.discard(trial)
            tune_controller._set_trial_status(trial, Trial.PAUSED)
            self._given_back.append((trial, trial.run_metadata.num_failures))

    @_past_tune
    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Tell listener and policy of one report; returns what Tune does with the trial."""
        report, verdict = self._tell(result)
        if verdict.decision is Decision.PAUSE:
            self._paused[report.trial] = (trial, report)
            self._listener.on_pause(report.trial)
            self._refused.clear()
        elif verdict.decision is Decision.STOP:
            self._stopped.add(report.trial)
        return _TUNE[verdict.decision]

    @_past_tune
    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Tell of a last report that did not pass ``on_trial_result``; its verdict is void."""
        number = trial.config["trial"]
        if number in self._stopped:
            self._stopped.remove(number)
        else:
            self._tell(result)
        self._refused.clear()

    @_past_tune
    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """A process has died: what it had reserved may be free."""
        self._refused.clear()

    def _tell(self, result: dict[str, Any]) -> tuple[TrialReport, Verdict]:
        report = self._listener.on_report(report_of(result))
        verdict = self._policy.on_report(report)
        if verdict.rung is not None:
            self._listener.on_verdict(report, verdict)
        return report, verdict

    @_past_tune
    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return a paused trial that may go on, else the first pending one, else None."""
        while self._given_back:
            trial, num_failures = self._given_back.pop()
            trial.run_metadata.num_failures = num_failures  # one death counts once
            tune_controller._set_trial_status(trial, Trial.PENDING)
        self.kept.look(is_over=self._search_is_done())
        if self._resumed is None or self._resumed.status != Trial.PENDING:
            self._resumed = self._resume(self._policy.choose_paused)
        if self._resumed is not None:
            return self._resumed
        trials = tune_controller.get_trials()
        for trial in trials:
            if trial.status == Trial.PENDING:
                return trial
        if isinstance(self._policy, BarrierPolicy) and self._search_is_done():
            choose, moving = self._policy.choose_at_barrier, (Trial.RUNNING, Trial.PENDING)
            running = {t.config["trial"] for t in trials if t.status in moving}
            self._resumed = self._resume(lambda paused: choose(paused, running))
            if self._resumed is not None:
                return self._resumed
        if self._spends_rest and self._search_is_done():
            self._resumed = self._resume(self._policy.choose_last)
            if self._resumed is not None:
                return self._resumed
        is_idle = all(trial.status != Trial.RUNNING for trial in trials)
        if is_idle and self._paused and self._search_is_done():
            self._give_up(tune_controller)
        return None

    def release_actors(self) -> None:
        """End all actors and give back their resources, as Tune does when a run ends."""
        if self._controller is not None:
            self._controller.cleanup()

    def _waiting(self, *statuses: str) -> set[int]:
        return {
            number
            for number, (trial, _) in self._paused.items()
            if trial.status in statuses and number not in self._refused
        }

    def _resume(self, choose: Callable[[Set[int]], int | None]) -> Trial | None:
        """Let the paused trial go on that ``choose`` names, or the next one if it may not."""
        while (number := choose(self._waiting(Trial.PAUSED))) is not None:
            if self._may_resume(number):
                trial, report = self._paused.pop(number)
                self._listener.on_verdict(report, promotion(self._policy, number))
                return trial
            self._refused.add(number)
        return None

    def _give_up(self, tune_controller: Any) -> None:
        """End all paused trials; each was worse than others, or does not fit into the budget."""
        for number, (trial, report) in sorted(self._paused.items()):
            del self._paused[number]
            if trial.status != Trial.PAUSED:
                continue  # its actor died too often while it was being paused
            verdict = self._policy.standing(number)
            if verdict.decision is not Decision.STOP:
                reason = f"{verdict.reason}, but {NO_BUDGET_LEFT}"
                verdict = dataclasses.replace(verdict, decision=Decision.STOP, reason=reason)
            self._listener.on_verdict(report, verdict)
            tune_controller.stop_trial(trial)
            if not trial.is_finished():  # Tune has logged the error, and would wait for ever
                raise SweepError(
                    f"the end of trial {number} could not be written down",
                    because="see the error in the log above",
                    fix="run the same command again to continue",
                )

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles schedulers with its experiment state, which is never read back."""
        return {}


def report_of(result: dict[str, Any]) -> TrialReport:
    """Return the report of a Tune result, whether Tune has flattened it or not."""
    if "report" in result:
        return TrialReport(**result["report"])
    fields: dict[str, Any] = {"metrics": {}, "delivered": {}}
    for key, value in result.items():
        _, _, name = key.partition("/")
        kind, _, metric = name.partition("/")
        if key.startswith("report/") and kind in ("metrics", "delivered") and metric:
            fields[kind][metric] = value
        elif key.startswith("report/"):
            fields[key.removeprefix("report/")] = value
    return TrialReport(**fields)


class TuneListener(tune.Callback):
    """Tells a listener of the ends of trials (of all else ``PolicyScheduler`` tells it).

    Args:
        listener: Who is told.
        on_free: Hears after it, with what calls the trial's process, which has nothing to do now:
            ``ask(method, *arguments)`` of its ``DPTrainable`` waits for the answer, and raises a
            TimeoutError if that takes too long or is given up.
        is_given_up: Whether nobody waits for answers any more; then ``on_free`` is not told.
    """

    def __init__(
        self,
        listener: Listener,
        on_free: Callable[[Ask], None] = lambda ask: None,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._listener: Listener | None = listener
        self._on_free, self._is_given_up = on_free, is_given_up

    @_past_tune
    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Hand on an end, by plan, failure or policy."""
        assert self._listener is not None
        self._listener.on_end(trial.config["trial"])
        actor = trial.temporary_state.ray_actor
        if actor is not None and not self._is_given_up():
            self._on_free(lambda name, *given: self._ask(getattr(actor, name).remote(*given)))

    def _ask(self, answer: Any) -> Any:
        deadline = time.monotonic() + ASK_S
        while not ray.wait([answer], timeout=_LOOK_S)[0]:
            if self._is_given_up() or time.monotonic() > deadline:
                raise TimeoutError("the process has not answered")
        return ray.get(answer)

    @_past_tune
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
