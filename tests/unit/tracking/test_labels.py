"""What each accounting mode shows in a tracking store, and that a lost label never comes back."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsweep.privacy.modes import CLAIMS
from dpsweep.tracking.base import TrackingRefusedError
from dpsweep.tracking.labels import downgraded_card, downgraded_tags
from dpsweep.tracking.memory import MemoryTracker

LABEL = downgraded_tags("a pruner was attached")


def deliver(events: list[dict[str, Any]], tracker: MemoryTracker | None = None) -> tuple:
    """Return a tracker that has had the events, one by one, and what it refused."""
    tracker = tracker or MemoryTracker()
    refused: list[str] = []
    for event in events:
        try:
            tracker.handle([event])
        except TrackingRefusedError as error:
            refused += error.refused
    return tracker, refused


@pytest.mark.parametrize("mode", CLAIMS)
def test_a_journal_of_each_mode_is_shown_whole(story, mode: str) -> None:
    tracker, refused = deliver(story.journal_of(mode))
    assert refused == []
    assert {run.tags["dp.accounting"] for run in tracker.runs.values()} == {mode}
    ends = {run.tags["dpsweep.state"]: run.status for run in tracker.runs.values()}
    pruned = {"pruned": "KILLED"} if mode in ("composed", "unaccounted") else {}
    assert ends == {"finished": "FINISHED", **pruned}
    assert len(tracker.runs) == {"select": 2, "public": 5}.get(mode, 4)


@pytest.mark.parametrize("mode", CLAIMS)
def test_any_split_and_replay_of_each_mode_gives_the_same_runs(story, mode: str) -> None:
    events = story.journal_of(mode)
    middle = len(events) // 2
    story.events, after = events[:middle], events[middle:]
    story.downgrade()
    events = [{**e, "seq": number} for number, e in enumerate([*story.events, *after])]
    whole = MemoryTracker()
    whole.handle(events)
    for cut in range(len(events) + 1):
        tracker = MemoryTracker()
        tracker.handle(events[:cut])
        tracker.handle(events)
        assert tracker.runs == whole.runs


def test_trials_on_public_records_show_that_they_cost_nothing(story) -> None:
    tracker, _ = deliver(story.journal_of("public"))
    for trial in range(3):
        run = tracker.runs[trial]
        assert run.history("dp/epsilon") == [(25, 0.0), (100, 0.0)]
        assert (run.tags["dp.records"], run.tags["dp.sampling"]) == ("public", "none")
    final = tracker.runs[3]
    assert final.history("dp/epsilon") == [(100, 1.99)]
    assert final.tags["dp.sampling"] == "poisson"
    assert "dp.records" not in final.tags


def test_the_spending_of_a_study_is_a_curve_beside_its_statement(story) -> None:
    tracker, _ = deliver(story.journal_of("composed"))
    parent = tracker.runs[None]
    assert parent.history("dp/study_spent_epsilon") == [(1, 0.5), (2, 2.2), (3, 2.9)]
    assert parent.tags["dp.study_epsilon"] == "3.0"
    assert parent.tags["dp.filter_order"] == "8.0"
    assert parent.tags["dp.sampling"] == "poisson"


@pytest.mark.parametrize(
    ("samplings", "joint"),
    [(["poisson", "none"], "poisson"), (["full_batch", "poisson"], "mixed"), (["none"], "none")],
)
def test_the_sampling_of_a_study_is_that_of_its_trials(
    story, samplings: list[str], joint: str
) -> None:
    story.start(tags=tags_with("composed") | STATED)
    for trial, sampling in enumerate(samplings):
        story.start_trial(trial, tags={"dp.sampling": sampling})
    story.start_trial(9, private=False, tags={"dp.private": False, "dp.sampling": "full_batch"})
    story.spent(0.5)
    tracker, refused = deliver(story.events)
    assert refused == []
    assert tracker.runs[None].history("dp/study_spent_epsilon") == [(0, 0.5)]
    assert tracker.runs[None].tags["dp.sampling"] == joint


def test_no_study_epsilon_without_its_statement(story) -> None:
    story.start(tags=LABEL)
    story.spent(0.5)
    story.end(metrics={"dp/composed_epsilon": 0.5, "best/value": 0.9})
    tracker, refused = deliver(story.events)
    assert [p.name for p in tracker.runs[None].metrics if "epsilon" in p.name] == []
    assert tracker.runs[None].history("best/value") == [(0, 0.9)]
    for name in ("dp/study_spent_epsilon", "dp/composed_epsilon"):
        assert any(f"{name} is not logged without dp.delta, dp.unit" in line for line in refused)


@pytest.mark.parametrize("mode", CLAIMS)
def test_a_downgrade_relabels_every_run_now_and_later(story, mode: str) -> None:
    story.journal_of(mode)
    story.downgrade(card=f"> **{CLAIMS['unaccounted']}.** downgraded")
    tracker, _ = deliver(story.events)
    assert len(tracker.runs) > 1
    for run in tracker.runs.values():
        assert {name: run.tags[name] for name in LABEL} == LABEL
        assert run.status in ("FINISHED", "KILLED")
    assert "downgraded" in tracker.runs[None].texts["privacy_card.md"]

    story.start(tags=tags_with(mode), card=f"> **{CLAIMS['composed']}.**")
    story.start_trial(0, tags={**tags_with(mode), "dp.sampling": "poisson"})
    story.end(tags=tags_with(mode), card=f"> **{CLAIMS['select']}.**")
    deliver(story.events, tracker)
    for run in tracker.runs.values():
        assert {name: run.tags[name] for name in LABEL} == LABEL
    card = tracker.runs[None].texts["privacy_card.md"]
    assert [claim for claim in CLAIMS.values() if claim in card] == [CLAIMS["unaccounted"]]
    assert "a pruner was attached" in card


def tags_with(mode: str) -> dict[str, Any]:
    return {"dp.accounting": mode, "dp.study_epsilon": 3.0, "dp.released": "everything"}


def test_a_downgrade_that_only_the_ledger_remembers_comes_with_the_next_launch(story) -> None:
    story.start(tags=tags_with("composed"))
    story.start_trial(0)
    story.start(tags={**tags_with("composed"), "dp.downgraded": "trial 0 overspent"})
    tracker, _ = deliver(story.events)
    for trial in (None, 0):
        assert tracker.runs[trial].tags["dp.accounting"] == "unaccounted"
        assert tracker.runs[trial].tags["dp.downgraded"] == "trial 0 overspent"
    story.downgrade("another reason")
    deliver(story.events, tracker)
    assert tracker.runs[0].tags["dp.downgraded"] == "trial 0 overspent"


def test_a_card_of_a_downgraded_study_makes_no_claim() -> None:
    honest = f"> **{CLAIMS['unaccounted']}.**"
    assert downgraded_card(honest, "why") == honest
    for card in (None, "", f"{honest} {CLAIMS['composed']}", CLAIMS["public"]):
        written = downgraded_card(card, "the loader shuffles")
        assert "the loader shuffles" in written
        assert [claim for claim in CLAIMS.values() if claim in written] == [CLAIMS["unaccounted"]]


TRIALS = st.integers(0, 3)
MODES = st.sampled_from(list(CLAIMS))
STEPS = st.one_of(
    st.tuples(st.just("launch"), MODES),
    st.tuples(st.just("start_trial"), TRIALS, MODES),
    st.tuples(st.just("report"), TRIALS, st.integers(0, 99)),
    st.tuples(st.just("verdict"), TRIALS, st.sampled_from(["stop", "pause", "continue"])),
    st.tuples(st.just("pause"), TRIALS),
    st.tuples(st.just("end_trial"), TRIALS, MODES),
    st.tuples(st.just("infeasible"), TRIALS),
    st.tuples(st.just("spent")),
    st.tuples(st.just("downgrade")),
    st.tuples(st.just("end"), MODES),
    st.tuples(st.just("nonsense")),
)


def tell(story, step: tuple) -> None:
    """Append one event, well-formed or not so much, in whatever order hypothesis asks for."""
    kind, *rest = step
    if kind == "launch":
        card = f"> **{CLAIMS[rest[0]]}.**"
        story.start(tags={**STATED, **tags_with(rest[0])}, card=card)
    elif kind == "start_trial":
        story.start_trial(rest[0], tags={**tags_with(rest[1]), "dp.sampling": "poisson"})
    elif kind == "report":
        story.report(rest[0], rest[1], rest[1] / 50, 0.5)
    elif kind == "verdict":
        story.verdict(rest[0], 25, rest[1])
    elif kind == "pause":
        story.pause(rest[0], 25)
    elif kind == "end_trial":
        story.end_trial(rest[0], tags=tags_with(rest[1]))
    elif kind == "infeasible":
        story.add("trial_infeasible", trial=rest[0], hparams={}, reason="over budget")
    elif kind == "spent":
        story.spent(1.0)
    elif kind == "downgrade":
        story.downgrade()
    elif kind == "end":
        story.end(tags=tags_with(rest[0]), card=f"> **{CLAIMS[rest[0]]}.**")
    else:
        story.add("study_started", tags=tags_with("composed"))  # malformed: it has no name


STATED = {
    "dp.unit": "example",
    "dp.adjacency": "add_or_remove_one",
    "dp.accountant": "rdp",
    "dp.delta": 1e-05,
}
LIMITS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@LIMITS
@given(
    before=st.lists(STEPS, max_size=12),
    after=st.lists(STEPS, max_size=12),
    mode=MODES,
    is_batched=st.booleans(),
)
def test_no_label_is_upgraded_after_a_downgrade(
    new_story, before: list, after: list, mode: str, is_batched: bool
) -> None:
    story = new_story()
    for step in [("launch", mode), *before, ("downgrade",)]:
        tell(story, step)
    tracker, _ = deliver(story.events)
    length = len(story.events)
    for step in after:
        tell(story, step)
    if is_batched:
        with contextlib.suppress(TrackingRefusedError):
            tracker.handle(story.events[length:])
    else:
        for number in range(length, len(story.events)):
            deliver(story.events[number : number + 1], tracker)
            assert all(run.tags["dp.accounting"] == "unaccounted" for run in tracker.runs.values())
    assert tracker.last_seq == story.events[-1]["seq"]
    for run in tracker.runs.values():
        assert {name: run.tags[name] for name in LABEL} == LABEL
    claims = [
        claim for claim in CLAIMS.values() if claim in tracker.runs[None].texts["privacy_card.md"]
    ]
    assert claims == [CLAIMS["unaccounted"]]


@LIMITS
@given(
    steps=st.lists(
        st.one_of(STEPS, st.tuples(st.just("start_trial"), st.just(0), MODES)), max_size=20
    )
)
def test_select_shows_one_trial_whatever_the_journal_says(new_story, steps: list) -> None:
    story = new_story()
    for step in [("launch", "select"), *steps]:
        tell(story, step)
    story.end(metrics={"dp/composed_epsilon": 9.0, "best/trial": 17, "search/pruned": 8})
    tracker, refused = deliver(story.events)
    assert set(tracker.runs) <= {None, 0}
    names = {point.name for run in tracker.runs.values() for point in run.metrics}
    hidden = {"dp/composed_epsilon", "best/trial", "dp/study_spent_epsilon", "time/train_s"}
    assert not names & hidden
    assert {name for name in names if name.startswith("search/")} <= {"search/objective"}
    assert "dpsweep.verdict" not in tracker.runs.get(0, tracker.runs[None]).tags
    assert not any(f"trial {number}" in line for line in refused for number in (1, 2, 3))


def test_select_shows_no_counts_of_trials(story) -> None:
    story.journal_of("select")
    story.end(artifacts=["study.jsonl"], tags={"dpsweep.trials.failed": 4})
    tracker, refused = deliver(story.events)
    assert tracker.runs[None].artifacts == ["study.jsonl"]
    assert "dpsweep.trials.failed" not in tracker.runs[None].tags
    assert refused == [
        "study: tag 'dpsweep.trials.failed' is not logged: it would tell how many trials a study "
        "in select ran"
    ]


def test_a_study_downgraded_from_select_keeps_the_other_trials_to_itself(story) -> None:
    story.journal_of("select")
    story.downgrade()
    story.start(tags=tags_with("unaccounted"))
    story.start_trial(4)
    tracker, refused = deliver(story.events)
    assert set(tracker.runs) == {None, 0}
    assert refused == ["select: events of trials other than the released winner are not shown"]


def test_the_select_refusal_is_one_line_a_batch(story) -> None:
    story.start(tags=tags_with("select"))
    for trial in range(1, 9):
        story.start_trial(trial)
    with pytest.raises(TrackingRefusedError) as caught:
        MemoryTracker().handle(story.events)
    assert len(caught.value.refused) == 1


@pytest.mark.parametrize(
    ("validation", "mode", "shown"),
    [
        ("public", "composed", {"validation/accuracy", "validation/loss", "search/objective"}),
        ("noisy", "composed", {"validation/accuracy", "search/objective"}),
        ("noisy", "unaccounted", {"validation/accuracy", "search/objective"}),
        ("exact", "unaccounted", {"validation/accuracy", "validation/loss", "search/objective"}),
        ("exact", "composed", set()),
    ],
)
def test_no_exact_score_of_private_records_beside_a_claim(
    story, validation: str, mode: str, shown: set[str]
) -> None:
    story.start(tags={**STATED, "dp.accounting": mode, "dp.validation": validation})
    story.start_trial(0)
    metrics = {"validation/accuracy": 0.9, "validation/loss": 0.3}
    story.end_trial(0, metrics=metrics, delivered=metrics)
    best = {f"best/{name}": value for name, value in metrics.items()}
    story.end(metrics=best)
    tracker, refused = deliver(story.events)
    told = {p.name for p in tracker.runs[0].metrics}
    assert {name for name in told if name.startswith(("valid", "search"))} == shown
    curves = {name.removeprefix("curve/") for name in told if name.startswith("curve/")}
    assert curves == shown - {"search/objective"}
    assert bool(tracker.runs[None].history("best/value")) == ("search/objective" in shown)
    told = {p.name for p in tracker.runs[None].metrics}
    assert told & set(best) == {f"best/{name}" for name in shown - {"search/objective"}}
    assert bool(refused) == (len(shown) < 3)


def test_exact_scores_that_cost_a_study_its_claim_are_shown_beside_none(story) -> None:
    story.start(tags={**STATED, "dp.accounting": "composed", "dp.validation": "exact"})
    story.start_trial(0)
    story.downgrade("exact scores were reported")
    story.report(0, 25, 0.5, 0.6)
    tracker, refused = deliver(story.events)
    assert refused == []
    assert tracker.runs[0].history("curve/validation/accuracy") == [(25, 0.6)]
    assert tracker.runs[0].tags["dp.accounting"] == "unaccounted"


def test_private_test_scores_are_refused(story) -> None:
    story.start(tags={**STATED, "dp.accounting": "composed", "dp.test": "private"})
    story.start_trial(0)
    story.end_trial(0, delivered={"test/accuracy": 0.9})
    story.end(metrics={"best/test/accuracy": 0.9})
    tracker, refused = deliver(story.events)
    assert tracker.runs[0].history("test/accuracy") == []
    assert tracker.runs[None].history("best/test/accuracy") == []
    assert refused == [
        "trial 0: metric 'test/accuracy' is not logged: the test records are declared private",
        "study: metric 'best/test/accuracy' is not logged: the test records are declared private",
    ]
