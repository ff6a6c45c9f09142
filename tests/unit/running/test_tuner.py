"""Ray Tune's run: whose Ctrl-C it is afterwards."""

import signal
from types import SimpleNamespace

import pytest

from dpsweep.running.tuner import run_trials


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
        run_trials(SimpleNamespace(fit=fit), scheduler, lambda: None)
    except ValueError:
        assert fails
    assert [signal.getsignal(number) for number in numbers] == before
