"""When the process of a silent trial is ended, on a clock of our own; no Ray is started."""

import pickle
from types import SimpleNamespace

from ray.tune.experiment import Trial

from dpsweep.schedulers.hanging import HangWatch


class Scene:
    def __init__(self, limit_s):
        self.now, self.killed, self.told = 0.0, [], []
        self.trials = [self.trial(number) for number in range(2)]
        self.watch = HangWatch(
            limit_s, self.told.append, clock=lambda: self.now, kill=self.killed.append
        )

    def trial(self, number):
        return SimpleNamespace(
            trial_id=f"t{number}", config={"trial": number}, status=Trial.RUNNING,
            temporary_state=SimpleNamespace(ray_actor=f"actor {number}"),
        )  # fmt: skip

    def turn(self, now):
        self.now = now
        self.watch.on_step_begin(0, self.trials)

    def report(self, number):
        self.watch.on_trial_result(0, self.trials, self.trials[number], {})


def test_only_the_silent_trial_loses_its_process_and_once():
    scene = Scene(60.0)
    scene.turn(0)
    scene.turn(60)
    assert scene.killed == []
    scene.report(1)
    scene.turn(61)
    assert (scene.killed, scene.told) == (["actor 0"], [0])
    scene.turn(62)  # Ray may need a while for it
    assert scene.killed == ["actor 0"]
    scene.turn(121)
    assert scene.killed == ["actor 0", "actor 1"]


def test_neither_waiting_nor_being_started_is_hanging():
    scene = Scene(60.0)
    first, second = scene.trials
    first.status, second.temporary_state.ray_actor = Trial.PAUSED, None
    scene.turn(0)
    scene.turn(100)
    first.status, second.temporary_state.ray_actor = Trial.RUNNING, "actor 1"
    scene.turn(101)
    scene.turn(161)
    assert scene.killed == []
    scene.turn(162)
    assert scene.told == [0, 1]


def test_without_a_limit_nothing_is_ended():
    scene = Scene(None)
    scene.turn(0)
    scene.turn(1e9)
    assert scene.killed == []
    assert pickle.loads(pickle.dumps(scene.watch)) is not None  # as Tune does
