"""Processes that Tune keeps: of trials that end at once too, and none for which no trial comes."""

from types import SimpleNamespace

import pytest
from ray.tune.utils.object_cache import _ObjectCache

from dpsweep.schedulers.keeping import KeptProcesses
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
    kept.release()
    kept.release()
    assert list(controller._actor_cache.flush_cached_objects()) == ["a", "b"]
    kept.keep(controller, TRIAL)  # a paused one that goes on: Tune's own way again
    assert controller._actor_cache.total_max_objects == 0


def test_none_is_kept_where_trials_occupy_different_shares(controller):
    """Two that wait would hold two CPUs, of which a trial that needs both would never get one."""
    mixed = ResourcesSpec(cpu=1, by_method={"bitfit": {"cpu": 2}})
    for kept in (KeptProcesses.of(mixed, 2), KeptProcesses()):
        kept.keep(controller, TRIAL)
        assert controller._actor_cache.total_max_objects == 0
        kept.release()
        assert controller._actor_cache.total_max_objects == 0
