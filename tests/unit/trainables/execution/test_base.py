"""The Tune trainable: opens trials late, lets go of them in time, and says nothing private."""

import dataclasses
import json
import signal
import threading

import pytest
import torch
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from dpsweep.foundation.errors import LedgerError
from dpsweep.ledgers.trial import trial_spent
from dpsweep.trainables.execution.actor import DPTrainable
from dpsweep.trainables.methods.dp_sgd import DPSGD


@pytest.fixture
def make_actor(lab):
    """Set up a trainable as Tune does, for an admitted trial."""

    def make(settings, task):
        actor = object.__new__(DPTrainable)
        actor.config = store(lab, task)
        actor.setup(actor.config, settings=settings, data=lab.data)
        return actor

    return make


def store(lab, task):
    lab.directory(task.trial).mkdir(parents=True, exist_ok=True)
    (lab.directory(task.trial) / "trial.json").write_text(task.to_json())
    return {"trial": task.trial, "directory": str(lab.directory(task.trial))}


def test_a_paused_trial_can_be_continued_elsewhere_at_once(lab, make_actor, tmp_path):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 30})
    first, second = make_actor(settings, task), make_actor(settings, task)
    assert first.step()["report"]["step"] == 10
    first.save_checkpoint(str(tmp_path))  # Tune pauses so, and keeps the actor for other trials
    assert json.loads((tmp_path / "dpsweep-checkpoint.json").read_text()) == {"step": 10}
    second.load_checkpoint(str(tmp_path))
    assert second.step()["report"]["step"] == 20
    second.save_checkpoint(str(tmp_path))
    last = first.step()  # and back
    assert (last["done"], last["report"]["step"]) == (True, 30)
    assert len(trial_spent(settings.ledger, 0)) == 30


@pytest.mark.parametrize("how", ["reset", "cleanup", "done"])
def test_a_trial_is_let_go(lab, make_actor, how):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})
    actor = make_actor(settings, task)
    actor.step()
    with pytest.raises(LedgerError, match="another process"):
        lab.open(settings, task)
    if how == "reset":
        other = lab.task(settings, {"train.max_steps": 10}, trial=1)
        actor.config = store(lab, other)
        assert actor.reset_config(actor.config)
        assert actor.step()["report"]["trial"] == 1
    elif how == "cleanup":
        actor.cleanup()
    else:
        assert actor.step()["done"]
    lab.open(settings, task).close()


def test_a_predecessor_that_is_being_stopped_is_waited_for(lab, make_actor):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})
    holder = lab.open(settings, task)
    threading.Timer(0.3, holder.close).start()
    assert make_actor(settings, task).step()["report"]["step"] == 10


def test_a_failure_says_where_and_never_what(lab, make_actor, monkeypatch):
    def broken(self, start, stop):
        raise ValueError(f"record 17 has label {1234567}")

    settings = lab.settings(rungs=(0.01,))
    task = lab.task(settings, {"train.max_steps": 20})
    actor = make_actor(settings, task)
    actor.step()
    monkeypatch.setattr(DPSGD, "run", broken)
    result = actor.step()
    report = result["report"]
    assert (result["done"], report["step"], report["rung"]) == (True, 1, 1)
    assert report["charged"] == 10
    assert report["epsilon"] > 0
    assert report["failure"].startswith("ValueError at test_base.py:")
    assert "1234567" not in json.dumps(result)
    lab.open(settings, task).close()  # let go


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 bytes"),
    ],
)
def test_want_of_memory_is_told_with_what_helps(lab, make_actor, monkeypatch, error):
    def broken(self, start, stop):
        raise error

    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 20}))
    monkeypatch.setattr(DPSGD, "run", broken)
    failure = actor.step()["report"]["failure"]
    assert failure.startswith("out of memory at test_base.py:")
    assert "batch.physical" in failure
    assert "9 bytes" not in failure


def test_sigterm_ends_an_idle_actor_at_once_and_a_busy_one_after_its_report(
    lab, make_actor, monkeypatch
):
    before = signal.getsignal(signal.SIGTERM)
    try:
        settings = lab.settings()
        task = lab.task(settings, {"train.max_steps": 20})
        actor = make_actor(settings, task)
        signal.signal(signal.SIGTERM, actor._leave)  # as in a process of Ray's
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        evaluate = DPSGD.evaluate

        def signalled(self, part):
            signal.raise_signal(signal.SIGTERM)
            return evaluate(self, part)

        monkeypatch.setattr(DPSGD, "evaluate", signalled)
        step = actor.step()["report"]["step"]
        assert step > 0
        with pytest.raises(SystemExit):
            actor.step()
        actor.cleanup()  # as the end of the process does
        monkeypatch.undo()
        again = make_actor(settings, task)  # the ledger is free, and nothing is repeated
        assert again.step()["report"]["step"] >= step
        again.cleanup()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_damaged_task_is_named(lab, make_actor):
    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 20}))
    path = lab.directory() / "trial.json"
    path.write_text(path.read_text().replace('"train.max_steps": 20', '"train.max_steps": 30'))
    assert f"{path} is damaged" in actor.step()["report"]["failure"]


def test_a_noisy_study_s_failure_holds_no_exact_score(lab, make_actor, accuracy):
    def broken(position):
        raise RuntimeError(f"accuracy {0.7654321}")

    settings = lab.settings(validation="noisy", validation_noise=5.0)
    plan = lab.task(settings, {"train.max_steps": 20}).plan
    accuracy(broken)
    result = make_actor(
        settings,
        dataclasses.replace(lab.scripted(plan), validation_plan=plan.labelled("validation")),
    ).step()
    assert result["report"]["unscored"].startswith("no validation scores: RuntimeError at ")
    assert result["report"]["failure"] == ""
    assert "0.76" not in json.dumps(result)


def test_other_records_than_the_task_s_stop_the_study(lab, make_actor):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})
    wrong = dataclasses.replace(task, records="public")
    assert make_actor(settings, wrong).step()["report"]["failure"].startswith("privacy violation")


class PauseOnce(FIFOScheduler):
    """Pauses every trial at its first report; continues them when nothing else is to be run."""

    def __init__(self):
        super().__init__()
        self.paused = set()

    def on_trial_result(self, tune_controller, trial, result):
        if trial.trial_id in self.paused:
            return TrialScheduler.CONTINUE
        self.paused.add(trial.trial_id)
        return TrialScheduler.PAUSE


@pytest.mark.ray
def test_tune_pauses_and_continues_trials_on_reused_actors(ray_cluster, lab):
    settings = lab.settings()
    configs = []
    for trial in range(4):
        task = lab.task(settings, {"train.max_steps": 30}, trial=trial)
        configs.append(store(lab, task))
    tuner = tune.Tuner(
        tune.with_resources(
            tune.with_parameters(DPTrainable, settings=settings, data=lab.data), {"cpu": 1}
        ),
        param_space=tune.grid_search(configs),
        tune_config=tune.TuneConfig(scheduler=PauseOnce(), reuse_actors=True),
        run_config=tune.RunConfig(name="pause", storage_path=str(lab.path / "ray"), verbose=0),
    )
    results = tuner.fit()
    reports = sorted((result.metrics["report"] for result in results), key=lambda r: r["trial"])
    assert [(r["step"], r["done"], r["failure"]) for r in reports] == [(30, True, "")] * 4
    for trial in range(4):
        assert len(trial_spent(settings.ledger, trial)) == 30
