"""The search for garbage rests while modules are loaded, and goes on as it was."""

from __future__ import annotations

import gc
import weakref

import pytest

from dpsweep.foundation.process.garbage import loading, unsearched


class Thing:
    """Part of a cycle."""


def cycle() -> weakref.ref[Thing]:
    thing = Thing()
    thing.self = thing  # type: ignore[attr-defined]
    return weakref.ref(thing)


@pytest.fixture(autouse=True)
def _as_it_was():
    frozen = gc.get_freeze_count()
    yield
    gc.enable()
    if frozen == 0:
        gc.unfreeze()


@pytest.mark.parametrize("resting", [unsearched, loading])
def test_it_rests_within_and_goes_on_as_it_was(resting) -> None:
    with resting():
        assert not gc.isenabled()
        with unsearched():
            pass
        assert not gc.isenabled()  # it was off before that one
    assert gc.isenabled()
    with pytest.raises(ImportError), resting():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    with resting():
        pass
    assert not gc.isenabled()


def test_what_was_loaded_is_never_searched_again_and_what_comes_later_is() -> None:
    before = gc.get_freeze_count()
    with unsearched():
        pass
    assert gc.get_freeze_count() == before
    with loading():
        loaded = cycle()
    assert gc.get_freeze_count() > before
    later = cycle()
    gc.collect()
    assert loaded() is not None
    assert later() is None


def test_a_failed_import_freezes_nothing() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ImportError), loading():
        raise ImportError
    assert gc.get_freeze_count() == before
