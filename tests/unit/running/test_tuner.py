"""Ray Tune's run: whose Ctrl-C it is afterwards, and what becomes of an error."""

import signal
from types import SimpleNamespace

import pytest
from ray.exceptions import RayError

from dpsweep.foundation.errors import RayLostError, StorageError
from dpsweep.running.tuner import run_trials
from dpsweep.schedulers.ray_adapter import PastTune


@pytest.mark.parametrize("fails", [False, True])
def test_ctrl_c_is_given_back_after_the_trials(fails):
    """Tune takes note of one, and leaves its handler there where none has come."""
    numbers = (signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]

    def fit():
        for number in numbers:
            signal.signal(number, lambda *_: None)
        if fails:
            raise ValueError("of a trial")

    scheduler = SimpleNamespace(release_actors=lambda: None)
    try:
        run_trials(SimpleNamespace(fit=fit), scheduler)
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
def test_an_error_is_raised_as_what_it_is_and_actors_are_let_go(raised, expected):
    released = []

    def fit():
        raise raised

    scheduler = SimpleNamespace(release_actors=lambda: released.append(1))
    with pytest.raises(expected):
        run_trials(SimpleNamespace(fit=fit), scheduler)
    assert released == [1]
