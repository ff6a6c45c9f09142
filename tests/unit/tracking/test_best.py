"""The best trial on a study's run is one that ``best`` would return, or there is none."""

import pytest

from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.updates import read_events
from dpsweep.tracking.views import with_links

CASES = {
    "probe": ({"search.strategy": "probe"}, "composed", "dpsweep.role", "probe", "final"),
    "split": ({"search.on.split": "0.3"}, "composed", "dp.records", "split", "rest"),
    "public": ({"privacy.accounting": "public"}, "public", "dp.records", "public", "private"),
}


def start(story, case):
    params, mode, *_ = CASES[case]
    event = story.start_as(mode)
    event["params"] = {**event["params"], **params}


def run(story, case, trial, accuracy, *, is_final, state="finished"):
    _, _, tag, other, final = CASES[case]
    tags = {"dp.private": True, "dp.sampling": "poisson", tag: final if is_final else other}
    story.start_trial(trial, tags=tags)
    story.end_trial(trial, accuracy=accuracy, state=state)


def best_of(tracker):
    metrics = {point.name: point.value for point in tracker.runs[None].metrics}
    return {name: value for name, value in metrics.items() if name.startswith("best/")}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_split", [False, True])
def test_trials_before_the_final_run_are_no_best(story, case, is_split) -> None:
    start(story, case)
    run(story, case, 0, 0.9, is_final=False)
    tracker = MemoryTracker()
    if is_split:  # over two batches of events
        tracker.handle(story.events)
        assert best_of(tracker) == {}
    run(story, case, 1, 0.7, is_final=True, state="failed")
    story.end()
    tracker.handle(story.events)
    assert best_of(tracker) == {}


@pytest.mark.parametrize("case", CASES)
def test_the_final_run_is_the_best_whatever_others_scored(story, case) -> None:
    start(story, case)
    run(story, case, 0, 0.9, is_final=False)
    run(story, case, 1, 0.7, is_final=True)
    tracker = MemoryTracker()
    tracker.handle(story.events)
    best = best_of(tracker)
    assert (best["best/value"], best["best/trial"]) == (0.7, 1)
    assert [value for _, value in tracker.runs[None].history("best/value")] == [0.7]


def of_an_earlier_version(story, best, trial):
    """Return the state of a store with the best trial as an earlier version has noted it."""
    tracker = MemoryTracker()
    tracker.handle(story.events)
    state = read_events(tracker._state, []).state
    state.best, state.best_trial, state.run_ids = best, trial, {trial: "abc"}
    state.final_run, state.final_trial = [], None
    return state


def test_the_description_of_an_earlier_version_names_no_probe_any_more(story) -> None:
    start(story, "probe")
    run(story, "probe", 0, 0.9, is_final=False)
    run(story, "probe", 1, 0.6, is_final=False)
    state = of_an_earlier_version(story, 0.9, 0)
    card = with_links("## Card\n", state)
    assert "Best: [trial-0000]" in card
    start(story, "probe")
    state = read_events(state, story.events).state
    assert (state.best, state.best_trial) == (None, None)
    assert "Best:" not in with_links(card, state)


def test_the_final_run_that_an_earlier_version_called_the_best_stays_so(story) -> None:
    start(story, "probe")
    run(story, "probe", 0, 0.9, is_final=False)
    run(story, "probe", 1, 0.7, is_final=True)
    state = of_an_earlier_version(story, 0.7, 1)
    start(story, "probe")
    state = read_events(state, story.events).state
    assert (state.best, state.best_trial) == (0.7, 1)


def test_the_last_probe_is_the_best_of_an_earlier_version_until_the_final_run(story) -> None:
    start(story, "probe")
    run(story, "probe", 0, 0.9, is_final=False)
    state = of_an_earlier_version(story, 0.9, 0)
    start(story, "probe")
    run(story, "probe", 1, 0.7, is_final=True)
    state = read_events(state, story.events).state
    assert (state.best, state.best_trial) == (0.7, 1)
