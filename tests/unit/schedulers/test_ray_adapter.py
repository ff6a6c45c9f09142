"""What the adapter tells a listener and Tune, on a controller of our own; no Ray is started."""

import dataclasses
import pickle
from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils import flatten_dict

from dpsweep.foundation.errors import SweepError
from dpsweep.schedulers import ray_adapter
from dpsweep.schedulers.epsilon_halving import EpsilonHalving
from dpsweep.schedulers.fifo import FifoPolicy
from dpsweep.schedulers.ray_adapter import PastTune, PolicyScheduler, TuneListener, report_of
from dpsweep.study.trial import Decision, TrialReport


class FakeTrial:
    def __init__(self, number, status=Trial.PENDING):
        self.config, self.status = {"trial": number}, status
        self.run_metadata = SimpleNamespace(num_failures=0)
        self.temporary_state = SimpleNamespace(ray_actor=None)

    def set_status(self, status):
        self.status = status

    def init_local_path(self):
        pass

    def is_finished(self):
        return self.status in (Trial.TERMINATED, Trial.ERROR)


class FakeController:
    """Does with trials what Tune's controller does when a scheduler asks for it."""

    def __init__(self, callback=None):
        self.trials, self.callback = [], callback
        self._resetting_trials = set()

    def get_trials(self):
        return self.trials

    def _set_trial_status(self, trial, status):
        assert trial.status != status
        trial.status = status

    def stop_trial(self, trial):
        if self.callback is not None:
            self.callback.on_trial_complete(0, self.trials, trial)
            trial.status = Trial.TERMINATED


class Listener:
    def __init__(self):
        self.calls = []

    def on_report(self, report):
        self.calls.append(("report", report.trial, report.step))
        return dataclasses.replace(report, metrics={"score": report.metrics.get("score", 0.0)})

    def on_verdict(self, report, verdict):
        self.calls.append(("verdict", report.trial, report.step, verdict.decision.value))
        self.reason = verdict.reason

    def on_pause(self, trial):
        self.calls.append(("pause", trial))

    def on_end(self, trial, *, died=False):
        self.calls.append(("end", trial, died))


def result(number, score, step=10, rung=1, done=False):
    report = TrialReport(number, step, {"score": score, "secret": 1.0}, 0.5, rung=rung, done=done)
    return flatten_dict({"done": done, "report": dataclasses.asdict(report), "score": score})


def test_a_process_is_free_once_its_trial_s_end_is_written(monkeypatch):
    looks = []

    def wait(answers, timeout):
        looks.append(timeout)
        return (answers, []) if len(looks) % 3 == 0 else ([], answers)

    monkeypatch.setattr(ray_adapter.ray, "wait", wait)
    monkeypatch.setattr(ray_adapter.ray, "get", lambda answer: answer)
    listener, asks = Listener(), []

    def on_free(ask):
        assert listener.calls[-1] == ("end", 1, False)
        asks.append(ask)

    given_up = []
    callback, trial = TuneListener(listener, on_free, lambda: bool(given_up)), FakeTrial(1)
    callback.on_trial_complete(0, [trial], trial)  # a paused one that was given up has none
    assert asks == []
    remote = SimpleNamespace(remote=lambda *given: ("answer to", *given))
    trial.temporary_state.ray_actor = SimpleNamespace(show_model=remote)
    callback.on_trial_complete(0, [trial], trial)
    (ask,) = asks
    assert ask("show_model", "here", None) == ("answer to", "here", None)
    assert len(looks) == 3
    given_up.append("Ctrl-C")
    with pytest.raises(TimeoutError):
        ask("show_model", "here", None)
    callback.on_trial_complete(0, [trial], trial)  # nobody waits: it is not even told
    assert asks == [ask]
    given_up.clear()
    monkeypatch.setattr(ray_adapter, "ASK_S", -1.0)
    with pytest.raises(TimeoutError):
        ask("show_model", "here", None)


def promoting(
    *,
    may_resume=lambda trial: True,
    is_done=lambda: False,
    paused=(),
    policy=None,
    spends_rest=False,
):
    policy = policy or EpsilonHalving(
        metric="score", maximize=True, variant="promote", reduction_factor=2
    )
    listener = Listener()
    scheduler = PolicyScheduler(
        policy, listener, may_resume=may_resume, search_is_done=is_done, paused=paused,
        spends_rest=spends_rest,
    )  # fmt: skip
    return scheduler, listener, FakeController(TuneListener(listener))


def add(scheduler, controller, number):
    trial = FakeTrial(number)
    controller.trials.append(trial)
    scheduler.on_trial_add(controller, trial)
    return trial


def run_and_pause(scheduler, controller, scores):
    """Run new trials to their first rung."""
    trials = []
    for number, score in enumerate(scores):
        trial = add(scheduler, controller, number)
        trial.status = Trial.RUNNING
        decision = scheduler.on_trial_result(controller, trial, result(number, score))
        assert decision == TrialScheduler.PAUSE
        trials.append(trial)
    for trial in trials:
        trial.status = Trial.PAUSED
    return trials


def test_a_report_survives_flattening():
    report = TrialReport(3, 10, {"validation/accuracy": 0.5}, 1.0, rung=2, reason="x", value=0.5)
    nested = {"done": False, "report": dataclasses.asdict(report)}
    assert report_of(nested) == report_of(flatten_dict(nested)) == report


def test_report_then_verdict_then_pause_and_the_policy_sees_what_was_written():
    class Spy(EpsilonHalving):
        def on_report(self, report):
            listener.calls.append(("policy", dict(report.metrics)))
            return super().on_report(report)

    policy = Spy(metric="score", maximize=True, variant="promote")
    scheduler, listener, controller = promoting(policy=policy)
    trial = add(scheduler, controller, 0)
    assert scheduler.on_trial_result(controller, trial, result(0, 0.5)) == TrialScheduler.PAUSE
    assert listener.calls == [
        ("report", 0, 10),
        ("policy", {"score": 0.5}),
        ("verdict", 0, 10, "pause"),
        ("pause", 0),
    ]


def test_a_last_report_is_told_once_before_the_end():
    policy = EpsilonHalving(metric="score", maximize=True)
    scheduler, listener, controller = promoting(policy=policy)
    trials = [add(scheduler, controller, number) for number in (0, 1)]
    # Tune does not show a scheduler the last result of a trial that is done, only its end.
    scheduler.on_trial_complete(controller, trials[0], result(0, 0.5, done=True))
    controller.stop_trial(trials[0])
    assert listener.calls == [
        ("report", 0, 10), ("verdict", 0, 10, "continue"), ("end", 0, False),
    ]  # fmt: skip
    # When the policy stops a trial, the end brings the report that was judged already.
    listener.calls.clear()
    assert scheduler.on_trial_result(controller, trials[1], result(1, 0.1)) == TrialScheduler.STOP
    scheduler.on_trial_complete(controller, trials[1], result(1, 0.1))
    controller.stop_trial(trials[1])
    assert listener.calls == [("report", 1, 10), ("verdict", 1, 10, "stop"), ("end", 1, False)]
    assert policy.on_report(TrialReport(9, 10, {"score": 0.5}, 0.5, rung=1)).reason.endswith(
        "of 3)"
    )


def test_nothing_is_judged_under_fifo():
    scheduler, listener, controller = promoting(policy=FifoPolicy())
    trials = [add(scheduler, controller, number) for number in (0, 1)]
    assert scheduler.choose_trial_to_run(controller) is trials[0]
    trials[0].status = Trial.RUNNING
    assert scheduler.choose_trial_to_run(controller) is trials[1]
    assert scheduler.on_trial_result(controller, trials[0], result(0, 0.5)) == "CONTINUE"
    assert listener.calls == [("report", 0, 10)]


def test_the_promoted_one_goes_before_a_pending_one_and_the_others_stay():
    scheduler, listener, controller = promoting()
    trials = run_and_pause(scheduler, controller, [0.1, 0.9, 0.5, 0.2])
    pending = add(scheduler, controller, 4)
    listener.calls.clear()
    assert scheduler.is_resuming
    assert scheduler.choose_trial_to_run(controller) is trials[1]
    assert listener.calls == [("verdict", 1, 10, "continue")]
    assert listener.reason.startswith("0.9 at rung 1 is to be promoted")
    trials[1].status = Trial.PENDING  # it waits for a slot: nobody else is promoted meanwhile
    assert scheduler.choose_trial_to_run(controller) is trials[1]
    trials[1].status = Trial.RUNNING
    assert scheduler.choose_trial_to_run(controller) is trials[2]
    trials[2].status = Trial.RUNNING
    assert not scheduler.is_resuming
    assert scheduler.choose_trial_to_run(controller) is pending
    pending.status = Trial.RUNNING
    assert scheduler.choose_trial_to_run(controller) is None  # and never a paused one


def test_a_trial_that_is_still_being_saved_is_not_resumed():
    scheduler, _, controller = promoting()
    trials = run_and_pause(scheduler, controller, [0.1, 0.9])
    trials[1].status = Trial.RUNNING
    assert scheduler.choose_trial_to_run(controller) is None
    assert scheduler.is_resuming  # no new trial takes its place meanwhile
    trials[1].status = Trial.ERROR  # its actor died once too often
    assert not scheduler.is_resuming
    assert scheduler.choose_trial_to_run(controller) is None


def test_one_that_may_not_is_asked_again_after_the_next_pause_or_end():
    asked = []

    def may_resume(number):
        asked.append(number)
        return number == 2

    scheduler, _, controller = promoting(may_resume=may_resume)
    trials = run_and_pause(scheduler, controller, [0.1, 0.9, 0.5, 0.2])
    assert scheduler.choose_trial_to_run(controller) is trials[2]  # a smaller one may still fit
    trials[2].status = Trial.RUNNING
    assert asked == [1, 2]
    assert not scheduler.is_resuming  # new trials may be suggested meanwhile
    assert scheduler.choose_trial_to_run(controller) is None
    assert asked == [1, 2]
    scheduler.on_trial_complete(controller, trials[2], result(2, 0.5, 30, 2, done=True))
    trials[2].status = Trial.TERMINATED
    assert scheduler.choose_trial_to_run(controller) is None
    assert asked == [1, 2, 1]
    scheduler.on_trial_error(controller, trials[0])
    assert scheduler.choose_trial_to_run(controller) is None
    assert asked == [1, 2, 1, 1]


def test_paused_trials_are_given_up_when_nothing_else_is_left():
    is_done = []
    scheduler, listener, controller = promoting(
        may_resume=lambda trial: False, is_done=lambda: bool(is_done)
    )
    trials = run_and_pause(scheduler, controller, [0.1, 0.9])
    running = add(scheduler, controller, 2)
    running.status = Trial.RUNNING
    is_done.append(True)
    assert scheduler.choose_trial_to_run(controller) is None
    assert all(trial.status == Trial.PAUSED for trial in trials)
    running.status = Trial.TERMINATED
    is_done.clear()
    assert scheduler.choose_trial_to_run(controller) is None
    assert all(trial.status == Trial.PAUSED for trial in trials)
    is_done.append(True)
    listener.calls.clear()
    assert scheduler.choose_trial_to_run(controller) is None
    assert listener.calls == [
        ("verdict", 0, 10, "stop"), ("end", 0, False),
        ("verdict", 1, 10, "stop"), ("end", 1, False),
    ]  # fmt: skip
    assert listener.reason == (
        "0.9 at rung 1 is to be promoted: place 1 of 2 (best 1 go on), but no budget was left for it"
    )
    assert [trial.status for trial in trials] == [Trial.TERMINATED] * 2


def test_the_rest_of_a_budget_goes_to_the_best_that_waits():
    scheduler, listener, controller = promoting(
        may_resume=lambda trial: trial != 2, is_done=lambda: True, spends_rest=True
    )
    trials = run_and_pause(scheduler, controller, [0.1, 0.7, 0.9])
    listener.calls.clear()
    assert scheduler.choose_trial_to_run(controller) is trials[1]  # trial 2 does not fit
    assert listener.calls == [("verdict", 1, 10, "continue")]
    assert "the best that waits, and budget is left" in listener.reason
    trials[1].status = Trial.TERMINATED
    assert scheduler.choose_trial_to_run(controller) is trials[0]


def test_an_end_that_cannot_be_written_is_an_error_not_an_endless_loop():
    scheduler, _, controller = promoting(is_done=lambda: True)
    controller.callback = None  # as Tune, which logs what a callback raises and goes on
    run_and_pause(scheduler, controller, [0.1])
    with pytest.raises(PastTune, match="trial 0") as caught:
        scheduler.choose_trial_to_run(controller)
    assert isinstance(caught.value.error, SweepError)


def test_a_trial_whose_actor_dies_while_it_is_paused_stays_paused():
    scheduler, _, controller = promoting()
    trials = run_and_pause(scheduler, controller, [0.9, 0.1])
    for trial in trials:
        scheduler.on_trial_error(controller, trial)
        trial.status = Trial.PENDING  # so Tune requeues it
        scheduler.on_trial_add(controller, trial)
        assert trial.status == Trial.PAUSED
    assert scheduler.choose_trial_to_run(controller) is trials[0]
    trials[0].status = Trial.PENDING
    scheduler.on_trial_add(controller, trials[0])  # one that was resumed is started again
    assert trials[0].status == Trial.PENDING


def test_a_trial_whose_process_dies_as_it_is_given_it_waits_until_tune_has_heard_it_twice():
    scheduler, _, controller = promoting()
    trial = add(scheduler, controller, 0)
    controller.trials = [trial]
    controller._resetting_trials.add(trial)
    trial.run_metadata.num_failures = 1
    scheduler.on_trial_error(controller, trial)
    scheduler.on_trial_add(controller, trial)  # so Tune requeues it
    assert trial.status == Trial.PAUSED  # neither running nor pending: Tune gives up those
    assert controller._resetting_trials == set()
    trial.run_metadata.num_failures = 2  # of the call that was under way
    assert scheduler.choose_trial_to_run(controller) is trial
    assert (trial.status, trial.run_metadata.num_failures) == (Trial.PENDING, 1)


def test_trials_of_an_earlier_launch_wait_for_their_promotion():
    policy = EpsilonHalving(metric="score", maximize=True, variant="promote", reduction_factor=2)
    reports = [TrialReport(t, 10, {"score": t / 10}, 0.5, rung=1) for t in range(4)]
    assert {policy.on_report(report).decision for report in reports} == {Decision.PAUSE}
    scheduler, listener, controller = promoting(policy=policy, paused=reports)
    trials = [add(scheduler, controller, number) for number in range(4)]
    assert {trial.status for trial in trials} == {Trial.PAUSED}
    assert scheduler.choose_trial_to_run(controller) is trials[3]
    assert listener.calls == [("verdict", 3, 10, "continue")]
    assert add(scheduler, controller, 4).status == Trial.PENDING


def test_deaths_are_told_and_tune_can_pickle_all_of_it():
    scheduler, listener, _ = promoting()
    TuneListener(listener).on_trial_error(0, [], FakeTrial(5))
    assert listener.calls == [("end", 5, True)]
    pickle.loads(pickle.dumps((scheduler, TuneListener(listener))))
    assert scheduler.supports_buffered_results is False
