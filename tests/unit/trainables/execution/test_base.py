"""The Tune trainable: opens trials late, lets go of them in time, and says nothing private."""

import asyncio
import dataclasses
import errno
import gc
import json
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from gpus import FakeGpu
from raised import PanicException, raising
from ray import tune
from ray.exceptions import RayActorError, RayTaskError
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from dpsweep.foundation import durable
from dpsweep.foundation.durable import DurableLog
from dpsweep.foundation.errors import (
    AbsentLedgerError,
    BudgetExceededError,
    ChangedCodeError,
    LedgerError,
    LockedError,
    ModelError,
    StorageError,
    UnreachableError,
)
from dpsweep.foundation.logs import open_log
from dpsweep.ledgers.admission import plan_digest
from dpsweep.ledgers.trial import STUDY_FILE, trial_file, trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.running.failing import refuse_unwritten
from dpsweep.study.trial import TrialReport
from dpsweep.trainables.devices.sharing import CONTEXT_BYTES
from dpsweep.trainables.execution import actor, memory, pace
from dpsweep.trainables.execution.actor import IDLE_S, LEFT, DPTrainable
from dpsweep.trainables.execution.checkpoints import CheckpointStore
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.networks.own_models import fingerprint

DELTA = 1e-5  # of the lab's budget


@pytest.fixture
def make_actor(lab):
    """Set up a trainable as Tune does, for an admitted trial."""

    def make(settings, task):
        actor = object.__new__(DPTrainable)
        actor.config = store(lab, task)
        admit(settings, task)
        actor.setup(actor.config, settings=settings, data=lab.data)
        return actor

    return make


def admit(settings, task):
    """Write what the study's ledger has of an admitted trial."""
    digests = {"plan_sha256": plan_digest(task.full_plan), "task_sha256": task.digest}
    with open_log(settings.ledger / STUDY_FILE) as log:
        log.append({"kind": "reserve", "trial": task.trial, **digests})


def store(lab, task):
    lab.directory(task.trial).mkdir(parents=True, exist_ok=True)
    (lab.directory(task.trial) / "trial.json").write_text(task.to_json())
    return {"trial": task.trial, "directory": str(lab.directory(task.trial)), "cpu": 1, "gpu": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {"hparams": {"train.max_steps": 30, "clip.max_norm": 1e6}},
        {"records": "public"},
        {"plan": None},
    ],
)
def test_a_trial_runs_nothing_that_was_not_admitted(lab, make_actor, changes):
    """Whoever may write to a bucket of studies may write a trial's task, too."""
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 30})
    actor = make_actor(settings, task)
    if "plan" in changes:
        changes = {"plan": task.plan.labelled("public")}
    forged = dataclasses.replace(task, **changes)
    (lab.directory(0) / "trial.json").write_text(forged.to_json())
    report = actor.step()["report"]
    assert (report["done"], report["step"], report["charged"]) == (True, 0, 0)
    assert "privacy violation: trial 0 is not the one that was admitted" in report["failure"]
    assert len(trial_spent(settings.ledger, 0)) == 0


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 bytes"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(9 bytes)`"),
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


def test_a_full_disk_is_told_as_no_failure_of_the_trial(lab, make_actor, monkeypatch):
    error = StorageError("cannot write last.ckpt: No space left on device", fix="make room")
    full = raising(error, module="dpsweep.foundation.durable")
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})
    actor = make_actor(settings, task)
    monkeypatch.setattr(CheckpointStore, "save", full)
    report = actor.step()["report"]
    assert report["unwritten"] == "cannot write last.ckpt: No space left on device"
    assert report["charged"] > 0
    monkeypatch.undo()
    again = make_actor(settings, task)
    assert again.step()["report"]["unwritten"] == ""
    again.cleanup()


@pytest.mark.parametrize(
    "error",
    [
        PanicException("record 4711"),
        SystemExit("record 4711"),
        PanicException("out of memory"),
        asyncio.CancelledError("record 4711"),
    ],
)
def test_a_panic_of_a_trial_s_own_code_is_its_failure(lab, make_actor, monkeypatch, error):
    """Ray Tune would write its words to files, and pay for the trial again."""
    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 20}))
    actor.step()
    monkeypatch.setattr(DPSGD, "run", raising(error, module="others.nets"))
    result = actor.step()
    report = result["report"]
    assert report["failure"] == f"{type(error).__name__} at nets.py:2"
    assert (report["done"], report["step"], report["charged"]) == (True, 10, 20)
    assert not (lab.directory() / memory.SMALLER).exists()
    assert "4711" not in json.dumps(result)


@pytest.mark.parametrize("error", [PanicException("record 4711"), SystemExit("record 4711")])
def test_so_is_what_compiled_code_raises_that_ours_has_called(lab, make_actor, monkeypatch, error):
    """It has no frame of its own, so that it seems to be raised here."""
    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 20}))
    actor.step()
    monkeypatch.setattr(DPSGD, "run", raising(error, module="dpsweep.trainables.methods.nets"))
    report = actor.step()["report"]
    assert report["failure"].startswith(f"{type(error).__name__} at ")
    assert "4711" not in report["failure"]
    assert report["done"]


def test_a_panic_while_a_trial_is_opened_is_its_failure(lab, make_actor, monkeypatch):
    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 20}))
    panic = raising(PanicException("record 4711"), module="others.nets")
    monkeypatch.setattr(DPSGD, "prepare", panic)
    report = actor.step()["report"]
    assert (report["failure"], report["charged"]) == ("PanicException at nets.py:2", 0)


def test_an_interruption_passes_without_words(lab, make_actor, monkeypatch):
    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 20}))
    interrupted = raising(KeyboardInterrupt("record 4711"), module="others.nets")
    monkeypatch.setattr(DPSGD, "run", interrupted)
    with pytest.raises(KeyboardInterrupt) as met:
        actor.step()
    assert (str(met.value), met.value.__suppress_context__) == ("", True)
    actor.cleanup()


@pytest.mark.parametrize("place", ["prepare", "run"])
@pytest.mark.parametrize(
    "kind",
    [
        StorageError,
        UnreachableError,
        AbsentLedgerError,
        ChangedCodeError,
        LockedError,
        LedgerError,
        BudgetExceededError,
    ],
)
def test_an_error_of_ours_that_others_raise_is_told_as_theirs(
    lab, make_actor, monkeypatch, place, kind
):
    """Its words may quote a record, and it says nothing of a disk or a ledger."""
    monkeypatch.setattr("dpsweep.trainables.execution.actor.LOCK_TRIES", 0)
    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 20}))
    monkeypatch.setattr(DPSGD, place, raising(kind("record 4711"), module="others.nets"))
    result = actor.step()
    report = result["report"]
    assert report["failure"] == f"{kind.__name__} at nets.py:2"
    assert (report["unwritten"], report["changed"]) == ("", "")
    assert "4711" not in json.dumps(result)


def test_a_panic_of_a_model_that_is_shown_is_told_without_words(lab, make_actor):
    actor = object.__new__(DPTrainable)
    panic = raising(PanicException("record 4711"), module="others.nets")
    actor._finished = SimpleNamespace(graph=panic)
    try:
        with pytest.raises(ModelError, match="cannot be handed on from here") as met:
            actor.graph_of_model()
    finally:
        gc.unfreeze()
    assert met.value.__suppress_context__


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    ],
)
def test_a_process_whose_gpu_has_failed_takes_no_other_trial(lab, make_actor, monkeypatch, error):
    """CUDA answers all that comes with the same error, and each trial would be charged for it."""

    def broken(self, start, stop):
        raise error

    settings = lab.settings()
    task, other = (lab.task(settings, {"train.max_steps": 20}, trial=n) for n in (0, 1))
    actor = make_actor(settings, task)
    monkeypatch.setattr(DPSGD, "run", broken)
    report = actor.step()["report"]
    assert report["failure"].startswith(f"{type(error).__name__} at test_base.py:")
    monkeypatch.undo()
    assert actor.reset_config(store(lab, other))
    actor.config = store(lab, other)
    admit(settings, other)
    with pytest.raises(RayActorError):
        actor.step()
    assert not trial_file(settings.ledger, 1).exists()
    elsewhere = make_actor(settings, other)
    assert elsewhere.step()["report"]["failure"] == ""
    elsewhere.cleanup()


def test_sigterm_ends_an_idle_actor_soon_and_a_busy_one_after_its_report(
    lab, make_actor, monkeypatch
):
    before = signal.getsignal(signal.SIGTERM)
    try:
        settings = lab.settings()
        task = lab.task(settings, {"train.max_steps": 20})
        actor = make_actor(settings, task)
        signal.signal(signal.SIGTERM, actor._leave)  # as in a process of Ray's
        signal.raise_signal(signal.SIGTERM)
        assert (actor._end.is_alive(), actor._end.interval) == (True, IDLE_S)
        with pytest.raises(RayActorError):
            actor.step()  # a trial that was on its way here
        actor._end.join(1.0)
        assert not actor._end.is_alive()
        assert not trial_file(settings.ledger, 0).exists()
        actor = make_actor(settings, task)
        signal.signal(signal.SIGTERM, actor._leave)
        evaluate = DPSGD.evaluate

        def signalled(self, part):
            signal.raise_signal(signal.SIGTERM)
            return evaluate(self, part)

        monkeypatch.setattr(DPSGD, "evaluate", signalled)
        step = actor.step()["report"]["step"]
        assert step > 0
        with pytest.raises(RayActorError) as left:
            actor.step()
        assert left.value.preempted  # Tune counts no failure
        monkeypatch.undo()
        again = make_actor(settings, task)  # the ledger is free, and nothing is repeated
        assert again.step()["report"]["step"] >= step
        again.cleanup()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_while_a_trial_is_opened_charges_nothing(lab, make_actor, monkeypatch):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})
    actor = make_actor(settings, task)
    prepare = DPSGD.prepare

    def signalled(self, *arguments):
        actor._leave(signal.SIGTERM, None)
        return prepare(self, *arguments)

    monkeypatch.setattr(DPSGD, "prepare", signalled)
    with pytest.raises(RayActorError):
        actor.step()
    monkeypatch.undo()
    assert len(trial_spent(settings.ledger, 0)) == 0
    again = make_actor(settings, task)
    assert again.step()["report"]["failure"] == ""
    again.cleanup()


def test_a_trial_whose_database_is_away_goes_on_in_another_process(lab, monkeypatch, make_actor):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})
    actor = make_actor(settings, task)
    ran = []
    monkeypatch.setattr(DPSGD, "run", lambda self, start, stop: ran.append((start, stop)))

    error = UnreachableError("the database does not answer")
    away = raising(error, module="dpsweep.foundation.postgres.log")
    monkeypatch.setattr(DurableLog, "append", away)
    with pytest.raises(RayActorError) as left:
        actor.step()
    assert left.value.preempted
    assert ran == []  # nothing without its charge
    monkeypatch.undo()
    again = make_actor(settings, task)
    assert again.step()["report"]["failure"] == ""
    again.cleanup()


def test_tune_counts_no_failure_of_a_process_that_was_told_to_leave(monkeypatch):
    """What Tune makes of the error that an actor raises, through Ray's own wrapping of it."""
    monkeypatch.delenv("RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE", raising=False)
    monkeypatch.setattr(Trial, "local_path", None)  # no file of the error
    left = RayActorError(error_msg=LEFT, preempted=True)
    for cause, num_failures in ((left, 0), (RayActorError(error_msg="it died"), 1)):
        trial = Trial("tune_trainable", stub=True)
        trial.handle_error(RayTaskError("step", "traceback", cause))
        assert trial.num_failures == num_failures


class Memory:
    """Stands for a machine that has room for a number of examples; notes what was run."""

    def __init__(self, monkeypatch, room, fails_at=0):
        self.positions, self.physical, self.room = [], [], room
        run = DPSGD.run

        def checked(method, start, stop):
            physical = method._hparams["batch.physical"]
            if physical > self.room and start >= fails_at:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 bytes")
            self.positions.extend(range(start, stop))
            self.physical.append(physical)
            run(method, start, stop)

        monkeypatch.setattr(DPSGD, "run", checked)


def test_a_trial_without_memory_goes_on_once_with_fewer_examples_at_a_time(
    lab, make_actor, monkeypatch
):
    settings = lab.settings()
    given = {"train.max_steps": 20, "batch.expected": 64, "noise.noise_multiplier": 20.0}
    task = lab.task(settings, given)
    memory = Memory(monkeypatch, room=16, fails_at=10)
    actor = make_actor(settings, task)
    first = actor.step()["report"]
    assert (first["step"], first["note"]) == (10, "")
    last = actor.step()["report"]
    assert (last["step"], last["done"], last["failure"]) == (20, True, "")
    assert last["note"].startswith("out of memory at step 10; it goes on with batch.physical=16 ")
    assert memory.positions == list(range(20))  # nothing ran twice
    assert set(memory.physical) == {64, 16}
    spent = trial_spent(settings.ledger, 0)
    lost = len(spent) - 20  # the segment that was charged and could not run
    assert lost >= 1
    assert last["epsilon"] >= epsilon_of(task.plan + task.plan.slice(10, 11), delta=DELTA)
    assert last["charged"] == len(spent)


def test_want_of_memory_where_nothing_is_left_to_repeat_with_ends_as_any_crash(
    lab, make_actor, monkeypatch
):
    """The plan uses the budget up: what was charged and lost is no longer there to run."""
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20, "batch.expected": 64})
    Memory(monkeypatch, room=16, fails_at=10)
    actor = make_actor(settings, task)
    actor.step()
    report = actor.step()["report"]
    assert (report["done"], report["failure"]) == (True, "")
    assert report["step"] < 20
    assert "lost to crashes" in report["reason"]
    spent = trial_spent(settings.ledger, 0)
    assert len(spent) > report["step"]
    assert epsilon_of(spent, delta=DELTA) <= settings.budget.target_epsilon


def test_a_second_want_of_memory_fails_in_another_process_too(lab, make_actor, monkeypatch):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20, "batch.expected": 64})
    memory = Memory(monkeypatch, room=1)
    failed = make_actor(settings, task).step()["report"]
    assert failed["failure"].startswith("out of memory at ")
    charged = len(trial_spent(settings.ledger, 0))
    assert charged == failed["charged"] == 2  # one step of each try
    memory.room = 16
    again = make_actor(settings, task).step()["report"]
    assert (again["failure"], again["note"].partition(";")[0]) == ("", "out of memory at step 0")


def test_a_damaged_task_is_named(lab, make_actor):
    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 20}))
    path = lab.directory() / "trial.json"
    path.write_text(path.read_text().replace('"train.max_steps": 20', '"train.max_steps": 30'))
    assert f"{path} is damaged" in actor.step()["report"]["failure"]


def test_a_trial_that_is_settled_while_its_process_opens_it_charges_nothing(
    lab, make_actor, monkeypatch
):
    """The driver takes it for dead between the first look and the lock of its ledger."""
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})

    def settle(directory, task):
        with open_log(settings.ledger / STUDY_FILE) as log:
            log.append({"kind": "settle", "trial": task.trial, "state": "failed", "charged": 0})
        return memory.as_it_fits(directory, task)

    monkeypatch.setattr(actor, "as_it_fits", settle)
    failure = make_actor(settings, task).step()["report"]["failure"]
    assert failure.startswith("privacy violation")
    assert "has been settled; a process that comes after it charges nothing" in failure
    assert not len(trial_spent(settings.ledger, 0))


def test_a_network_that_has_changed_trains_no_trial_on(lab, make_actor, tmp_path, monkeypatch):
    (tmp_path / "nets_of_base.py").write_text(
        "from torch import nn\n"
        "def build(input_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = lab.settings()
    hparams = {"train.max_steps": 20, "model.name": "nets_of_base:build"}
    task = dataclasses.replace(lab.task(settings, hparams), code="0" * 64)
    report = make_actor(settings, task).step()["report"]
    assert "nets_of_base:build has changed since trials" in report["changed"]
    assert not len(trial_spent(settings.ledger, 0))


def test_a_network_that_changes_while_it_is_built_trains_no_step(
    lab, make_actor, tmp_path, monkeypatch
):
    (tmp_path / "nets_that_change.py").write_text(
        "from pathlib import Path\n"
        "from torch import nn\n"
        "def build(input_shape, num_classes):\n"
        "    file = Path(__file__)\n"
        "    file.write_text(file.read_text() + '#')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(12, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = lab.settings()
    name = "nets_that_change:build"
    task = lab.task(settings, {"train.max_steps": 20, "model.name": name})
    task = dataclasses.replace(task, code=fingerprint(name))
    report = make_actor(settings, task).step()["report"]
    assert f"the file of {name} has changed since trials" in report["changed"]
    assert not len(trial_spent(settings.ledger, 0))


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
    assert (result["report"]["unscored"], result["report"]["failure"]) == ("", "")
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


@pytest.mark.slow
@pytest.mark.ray
def test_tune_pauses_and_continues_trials_on_reused_actors(ray_cluster, lab):
    settings = lab.settings()
    configs = []
    for trial in range(4):
        task = lab.task(settings, {"train.max_steps": 30}, trial=trial)
        configs.append(store(lab, task))
        admit(settings, task)
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


def test_no_garbage_is_searched_for_while_a_model_is_handed_on_nor_in_it_afterwards():
    """The process ends then; a search takes .1 s, for which everybody waits."""
    seen, actor = [], object.__new__(DPTrainable)
    actor._finished = SimpleNamespace(graph=lambda: seen.append(gc.isenabled()) or "a graph")
    frozen = gc.get_freeze_count()
    try:
        assert actor.graph_of_model() == "a graph"
        assert (seen, gc.isenabled()) == ([False], True)
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("is_actor", [True, False])
def test_a_process_of_ray_is_silent(lab, make_actor, monkeypatch, is_actor):
    """Whoever has started Ray may have sent all that its processes write to the screen."""
    fallen = []
    context = SimpleNamespace(get_actor_id=lambda: "1f" if is_actor else None)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr("dpsweep.trainables.execution.actor.fall_silent", lambda: fallen.append(1))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    settings = lab.settings()
    make_actor(settings, lab.task(settings, {"train.max_steps": 3}))
    assert len(fallen) == is_actor


@pytest.fixture
def on_gpu(lab, make_actor, monkeypatch):
    """Return a function that sets up an actor with a share of a made-up GPU; and that GPU."""
    gpu = FakeGpu()
    monkeypatch.setattr("dpsweep.trainables.execution.actor.TorchGpu", lambda: gpu)

    def make(share, settings, task):
        actor = make_actor(settings, task)
        actor.config["gpu"] = share
        actor.setup(actor.config, settings=settings, data=lab.data)
        return actor

    return make, gpu


def test_a_trial_with_a_fraction_of_a_gpu_is_held_to_it_before_its_data_move(
    lab, on_gpu, monkeypatch
):
    make, gpu = on_gpu
    settings = lab.settings()
    plan = lab.task(settings, {"train.max_steps": 20}).plan
    seen = []
    prepare = lab.Method.prepare

    def noting(self, data, hparams, plan, context):
        seen.append((context.device, gpu.fraction()))
        prepare(self, data, hparams, plan, context)

    monkeypatch.setattr(lab.Method, "prepare", noting)
    assert make(0.5, settings, lab.scripted(plan)).step()["report"]["failure"] == ""
    assert seen == [("cuda", pytest.approx(0.5 - CONTEXT_BYTES / gpu.total()))]


def test_a_share_that_is_too_small_ends_the_trial_in_one_line_and_charges_nothing(lab, on_gpu):
    make, gpu = on_gpu
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})
    report = make(0.001, settings, task).step()["report"]
    assert "a share of 0.001 of this GPU is too small for a trial" in report["failure"]
    assert (report["done"], report["charged"], gpu.fractions) == (True, 0, [])
    assert len(trial_spent(settings.ledger, 0)) == 0


class KnownTrial:
    """A study whose journal knows one trial."""

    def __init__(self, files=None, **known):
        here = Path(__file__)
        self.files = files or SimpleNamespace(journal=here, ledger=here)
        self.view = SimpleNamespace(trials={0: SimpleNamespace(**known)})
        self.written = []
        self.write = self.written.append


@pytest.mark.parametrize("lost", ["journal", "ledger", "neither"])
def test_nobody_is_told_that_an_account_is_safe_that_is_gone(tmp_path, lost):
    files = SimpleNamespace(journal=tmp_path / "journal.jsonl", ledger=tmp_path / "ledger")
    for name in {"journal", "ledger"} - {lost}:
        getattr(files, name).touch()
    study = KnownTrial(files, step=1, kept_step=0, charged=1)
    report = TrialReport(0, 1, {}, 0.0, unwritten="cannot write x/best.ckpt: No such file")
    with pytest.raises(StorageError) as stopped:
        refuse_unwritten(report, study)
    assert ("is safe" in stopped.value.fix) is (lost == "neither")
    assert ("a new study at zero" in stopped.value.fix) is (lost == "journal")
    assert ("put the file back" in stopped.value.fix) is (lost != "journal")


@pytest.mark.parametrize("how", ["unreadable", "study", "removed", "copied", "moved"])
def test_a_ledger_that_is_away_for_a_moment_ends_no_claim(lab, make_actor, monkeypatch, how):
    """The trial stops where it is, and goes on as if it had been killed."""
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 30})
    actor = make_actor(settings, task)
    ledger, read = settings.ledger, durable.read_file
    path = ledger / ("study.jsonl" if how in ("unreadable", "study") else "trial-0000.jsonl")
    has_begun = how not in ("unreadable", "study")
    if has_begun:
        assert actor.step()["report"]["step"] == 10
    if how == "unreadable":

        def refuse(place):
            if place.name == "study.jsonl":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(place)

        monkeypatch.setattr(durable, "read_file", refuse)
    elif how == "moved":
        ledger.rename(ledger.with_name("elsewhere"))
    else:
        path.rename(path.with_name("away"))
        if how == "copied":
            path.write_bytes(path.with_name("away").read_bytes())
    report = actor.step()["report"]
    assert report["done"]
    assert path.name in report["unwritten"]
    assert "violation" not in report["failure"]
    study = KnownTrial(step=10, kept_step=0, charged=4)
    with pytest.raises(StorageError, match=path.name) as stopped:
        refuse_unwritten(TrialReport(**report), study)
    assert "put the file back" in stopped.value.fix
    charged = [(event.step, event.charged) for event in study.written]
    assert charged == ([(10, 10)] if has_begun else [])
    actor.cleanup()
    monkeypatch.setattr(durable, "read_file", read)
    if how == "moved":
        ledger.with_name("elsewhere").rename(ledger)
    elif how != "unreadable":
        path.with_name("away").replace(path)
    again = lab.open(settings, task)
    assert again.position == len(again.ledger) == (10 if has_begun else 0)
    again.close()


def test_a_ledger_that_is_not_where_it_was_when_the_trial_was_admitted_is_missed(lab, make_actor):
    """Else it would be made anew, and what another process of the trial has charged forgotten."""
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 30})
    actor = make_actor(settings, task)
    digests = {"plan_sha256": plan_digest(task.full_plan), "task_sha256": task.digest}
    with open_log(settings.ledger / STUDY_FILE) as log:
        log.append({"kind": "reserve", "trial": 0, "has_file": True, **digests})
    report = actor.step()["report"]
    assert "trial-0000.jsonl is not there" in report["unwritten"]
    assert "violation" not in report["failure"]
    assert not trial_file(settings.ledger, 0).exists()


@pytest.mark.parametrize("how", ["an older copy", "removed"])
def test_what_a_process_has_charged_is_not_forgotten_with_its_ledger(
    lab, make_actor, monkeypatch, how
):
    """After the last report it has charged more, which an older copy does not know."""
    monkeypatch.setattr(pace, "CHARGE_S", 1e-9)  # a charge for each step
    monkeypatch.setattr(pace, "TIMES_CHARGING", 0.0)
    settings = lab.settings()
    actor = make_actor(settings, lab.task(settings, {"train.max_steps": 30}))
    assert actor.step()["report"]["charged"] == 10
    path = trial_file(settings.ledger, 0)
    older, run = path.read_bytes(), actor._execution.method.run

    def interfered(start, stop):
        run(start, stop)
        path.with_name("new").write_bytes(older)
        path.with_name("new").replace(path)
        if how == "removed":
            path.unlink()

    actor._execution.method.run = interfered
    report = TrialReport(**actor.step()["report"])
    assert (report.done, report.charged) == (True, 11)
    if how == "an older copy":
        assert report.failure.startswith("privacy violation")
        return
    study = KnownTrial(step=10, kept_step=10, charged=10)
    with pytest.raises(StorageError, match="was removed while"):
        refuse_unwritten(report, study)
    (event,) = study.written
    assert event.charged == report.charged
    path.write_bytes(older)
    with pytest.raises(LedgerError, match=f"at least {report.charged} were charged"):
        trial_spent(settings.ledger, 0, at_least=event.charged)
