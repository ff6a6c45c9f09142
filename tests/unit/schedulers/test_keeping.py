"""Processes that Tune keeps: of trials that end at once too, and none for which no trial comes."""

from types import SimpleNamespace

import pytest
from ray.tune.utils.object_cache import _ObjectCache

from dpsweep.schedulers.keeping import IDLE_S, PATIENCE_S, KeptProcesses
from dpsweep.spec.cluster import ResourcesSpec

TRIAL = SimpleNamespace(placement_group_factory="one CPU")


@pytest.fixture
def controller():
    """Tune's, with its cache of processes."""
    return SimpleNamespace(_actor_cache=_ObjectCache(may_keep_one=True))


def ended(controller, *processes):
    """Let trials end at once; return which of their processes Tune keeps."""
    cache = controller._actor_cache
    kept = [p for p in processes if cache.cache_object(TRIAL.placement_group_factory, p)]
    ended = list(cache.flush_cached_objects())
    return [process for process in kept if process not in ended]


def test_tune_alone_ends_the_process_of_one_of_two_trials_that_end_at_once(controller):
    """Else there would be nothing to do here."""
    assert ended(controller, "a", "b") == ["a"]


def test_processes_of_all_trials_are_kept_until_no_new_one_comes(controller):
    kept = KeptProcesses.of(ResourcesSpec(cpu=1), 2)
    for _ in range(3):  # trials
        kept.keep(controller, TRIAL)
    assert ended(controller, "a", "b", "one too many") == ["a", "b"]
    for _ in range(2):
        kept.look(is_over=True)
    assert list(controller._actor_cache.flush_cached_objects()) == ["a", "b"]
    kept.keep(controller, TRIAL)  # a paused one that goes on: Tune's own way again
    assert controller._actor_cache.total_max_objects == 0


def test_processes_that_no_trial_takes_are_left_to_tune_until_a_trial_comes(controller):
    """As long as the slowest probe runs, the others' would hold GPUs, and may die unseen."""
    clock, cache = [0.0], controller._actor_cache
    kept = KeptProcesses(2, clock=lambda: clock[0])
    for _ in range(2):
        kept.look(is_over=False)  # before any trial
        kept.keep(controller, TRIAL)
        assert ended(controller, "a", "b") == ["a", "b"]
        for wait in (0, IDLE_S - 0.1):
            clock[0] += wait
            kept.look(is_over=False)
        assert list(cache.flush_cached_objects()) == []
        while cache.pop_cached_object(TRIAL.placement_group_factory):
            pass  # trials take them
        clock[0] += 1
        kept.look(is_over=False)
        assert ended(controller, "a", "b") == ["a", "b"]
        for wait in (0, IDLE_S):
            clock[0] += wait
            kept.look(is_over=False)
        assert cache.total_max_objects == 0
        assert list(cache.flush_cached_objects()) == ["a", "b"]


def test_a_tune_that_has_no_such_cache_is_left_alone():
    kept = KeptProcesses(2)
    kept.keep(SimpleNamespace(), TRIAL)
    kept.look(is_over=False)


def test_none_is_kept_where_trials_occupy_different_shares(controller):
    """Two that wait would hold two CPUs, of which a trial that needs both would never get one."""
    mixed = ResourcesSpec(cpu=1, by_method={"bitfit": {"cpu": 2}})
    for kept in (KeptProcesses.of(mixed, 2), KeptProcesses()):
        kept.keep(controller, TRIAL)
        assert controller._actor_cache.total_max_objects == 0
        kept.look(is_over=True)
        assert controller._actor_cache.total_max_objects == 0


@pytest.fixture
def waiting():
    """A controller with a trial whose own process is loading, and one that has none yet."""
    own, new, reset = (SimpleNamespace(trial_id=name) for name in ("own", "new", "reset"))
    tune = SimpleNamespace(
        _trial_to_actor=_ById(["own", "reset"]), _resetting_trials=_ById(["reset"])
    )
    return tune, own, new, reset


class _ById(list):
    def __contains__(self, trial):
        return any(name == trial.trial_id for name in self)


def test_a_trial_waits_for_its_own_process_and_new_ones_take_those_that_are_free(
    controller, waiting
):
    """Else its own, half loaded, is ended, and the next trial asks for another one."""
    tune, own, new, reset = waiting
    clock, asked, kept = [0.0], [], ["a", "b"]

    def take(controller, trial):
        asked.append(trial.trial_id)
        return bool(kept) and bool(kept.pop())

    processes = KeptProcesses(2, clock=lambda: clock[0])
    reuse = processes.instead_of(take)
    processes.keep(controller, TRIAL)
    for process in kept:
        controller._actor_cache.cache_object(TRIAL.placement_group_factory, process)
    processes.look(is_over=False)
    assert not reuse(tune, own)
    assert reuse(tune, reset)
    processes.look(is_over=False)
    clock[0] = PATIENCE_S - 0.1
    assert not reuse(tune, own)
    assert reuse(tune, new)  # from then on the other one is free
    assert not reuse(tune, new)
    processes.look(is_over=False)
    clock[0] = 2 * PATIENCE_S - 0.2
    assert not reuse(tune, own)
    clock[0] = 2 * PATIENCE_S  # no new one has come; and there may be no room for its own
    kept.append("c")
    assert reuse(tune, own)
    assert asked == ["reset", "new", "new", "own"]


def test_what_is_left_to_tune_is_its_own(controller, waiting):
    tune, own, _, _ = waiting
    kept = KeptProcesses(2)
    reuse = kept.instead_of(lambda controller, trial: True)
    assert reuse(tune, own)
    kept.keep(controller, TRIAL)
    assert not reuse(tune, own)
    kept.look(is_over=True)
    assert reuse(tune, own)
    assert KeptProcesses().instead_of(lambda controller, trial: True)(tune, own)
