"""What is said of events that the tracking store has not, at the end of a launch."""

from types import SimpleNamespace

import pytest

from dpsweep.running import delivery


class Outage:
    """A spool whose store is down, with so many events waiting."""

    is_held, is_down = False, True

    def __init__(self, lag, why=""):
        self._lag, self.why = lag, why

    def flush(self, timeout_s):
        return False

    def lag(self):
        return self._lag


@pytest.mark.parametrize(
    ("lag", "said"),
    [(0, []), (1, ["1 event"]), (7, ["7 events"])],  # 0: all is there, and nothing can be asked
)
def test_events_that_are_left_over_are_told_once_in_a_launch(lag, said):
    messages = []
    observer = SimpleNamespace(on_message=messages.append)
    assert not delivery.deliver(Outage(lag), observer, is_last=False)
    assert not delivery.deliver(Outage(lag), observer)
    assert messages == [
        f"not in the tracking store yet: {events}; nothing is lost: the same command delivers "
        "what is missing, once the store takes it"
        for events in said
    ]


def test_why_events_are_left_over_is_told():
    messages = []
    observer = SimpleNamespace(on_message=messages.append)
    why = "ConnectionError: password authentication failed"
    assert not delivery.deliver(Outage(26, why), observer)
    assert messages[0].startswith(
        f"not in the tracking store yet: 26 events ({why}); nothing is lost: "
    )


@pytest.mark.parametrize("is_logged", [True, False])
def test_the_delivery_of_a_model_leaves_the_word_to_the_last(monkeypatch, is_logged):
    """But for a model that was not logged before: its events may all be there at the end."""
    asked, messages = [], []
    best = SimpleNamespace(trial_id=0)
    result = SimpleNamespace(best=lambda: best)
    monkeypatch.setattr(delivery.SweepResult, "of", lambda study: result)
    monkeypatch.setattr(delivery, "deliver", lambda *_, **options: asked.append(options))
    monkeypatch.setattr(delivery, "_finished", lambda: None)
    spool = SimpleNamespace(is_enabled=True, release=lambda: None)
    study = SimpleNamespace(view=SimpleNamespace(model_uris={0: "models:/m"} if is_logged else {}))
    observer = SimpleNamespace(on_message=messages.append)
    delivery.log_best_model(None, study, spool, None, observer)
    assert asked == [{"is_last": False}]
    assert messages == ([] if is_logged else [
        "the best model is not in the tracking store: the same command logs it, once the store "
        "takes it"
    ])  # fmt: skip
