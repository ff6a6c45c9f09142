"""Ray Tune's run: what Ctrl-C does, whose it is afterwards, and what becomes of an error."""

import signal
from types import SimpleNamespace

import pytest
import ray.tune.tune as tune_loop
from ray import cloudpickle
from ray.exceptions import RayError
from ray.tune.execution import class_cache
from ray.tune.experiment import trial as tune_trial

from dpsweep.foundation.errors import RayLostError, StorageError
from dpsweep.running import tuner
from dpsweep.running.tuner import run_trials
from dpsweep.schedulers.keeping import KeptProcesses
from dpsweep.schedulers.ray_adapter import PastTune
from dpsweep.study.recall import Recall
from dpsweep.trainables.execution.actor import bundle_of


def run(fit, folder, scheduler=None, say=print, recall=None):
    scheduler = scheduler or SimpleNamespace(release_actors=lambda: None, kept=KeptProcesses())
    return run_trials(SimpleNamespace(fit=fit), scheduler, recall or Recall(folder), say)


def test_ctrl_c_calls_trials_back_as_long_as_they_run(tmp_path):
    seen, told, recall = [], [], Recall(tmp_path)

    def fit():
        assert not recall.is_on()
        interrupted = tune_loop._setup_signal_catching()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGUSR1)  # another one of the same handler
        assert interrupted.is_set()
        while not told:
            pass
        seen.append((recall.is_on(), Recall(tmp_path).is_on()))

    Recall(tmp_path).begin()  # of a launch that was killed
    assert run(fit, tmp_path, say=told.append, recall=recall)  # interrupted, whatever has ended
    assert seen == [(True, False)]
    assert "trials keep their models" in told[0]
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_takes_no_recall_ends_all_the_same(tmp_path):
    def fit():
        tune_loop._setup_signal_catching()
        signal.raise_signal(signal.SIGINT)

    assert run(fit, tmp_path / "none" / "of" / "these")
    assert not run(lambda: None, tmp_path)


@pytest.mark.parametrize("fails", [False, True])
def test_ctrl_c_is_given_back_after_the_trials(fails, tmp_path):
    """Tune takes note of one, and leaves its handler there where none has come."""
    numbers = (signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]

    def fit():
        for number in numbers:
            signal.signal(number, lambda *_: None)
        if fails:
            raise ValueError("of a trial")

    try:
        run(fit, tmp_path)
    except ValueError:
        assert fails
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (PastTune(StorageError("the disk is full", fix="make room")), StorageError),
        (PastTune(KeyError("a mistake of ours")), KeyError),
        (PastTune(RayError("gone")), RayLostError),
        (RayError("gone"), RayLostError),
        (ValueError("of Tune's"), ValueError),
    ],
)
def test_an_error_is_raised_as_what_it_is_and_actors_are_let_go(raised, expected, tmp_path):
    released = []

    def fit():
        raise raised

    scheduler = SimpleNamespace(release_actors=lambda: released.append(1), kept=KeptProcesses())
    with pytest.raises(expected):
        run(fit, tmp_path, scheduler)
    assert released == [1]


@pytest.mark.parametrize("is_here", [True, False])
def test_actors_run_in_processes_that_are_there(monkeypatch, is_here):
    """With an environment of its own, whatever is in it, an actor waits for another process."""
    for name in ("TORCHFT_LIGHTHOUSE", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of the user")
    monkeypatch.setattr(tuner, "is_warm", SimpleNamespace(is_set=lambda: is_here))
    for name in ("DEFAULT_ENV_VARS", "ENV_VARS_TO_PROPAGATE"):  # to be put back
        monkeypatch.setattr(class_cache, name, getattr(class_cache, name))
    tuner._name_variables()
    made = []
    monkeypatch.setattr(class_cache.ray, "remote", lambda **given: lambda cls: made.append(given))
    class_cache._ActorClassCache().get(object)
    handed = {} if is_here else {"PL_DISABLE_FORK": "1", "TORCHFT_LIGHTHOUSE": "of the user"}
    assert made == [{"runtime_env": {"env_vars": handed}}]


def test_what_a_trials_process_hears_of_its_trial_is_read_without_tune():
    tuner._plain_infos()
    info = object.__new__(tune_trial._TrialInfo)
    info._trial_name, info._trial_id, info._experiment_name = "a name", "0003", "of all"
    info._trial_resources = bundle_of({"cpu": 1, "gpu": 0})
    written = cloudpickle.dumps({"__trial_info__": info})
    assert b"ray.tune.experiment" not in written
    read = cloudpickle.loads(written)["__trial_info__"]
    names = ("trial_name", "trial_id", "experiment_name", "trial_resources")
    assert [getattr(read, n) for n in names] == [getattr(info, n) for n in names]
