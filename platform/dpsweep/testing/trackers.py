"""The suite of trackers: subclass it once per tracker of a package.

class TestMyTracker(TrackerConformance):
    def make(self, folder):
        return MyTracker(str(folder / "runs.csv"), "digits", folder / "state.json")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpsweep.tracking.base import Tracker
from dpsweep.tracking.model_label import ModelLabel
from dpsweep.tracking.updates import Event

_TAGS = {
    "dp.unit": "example",
    "dp.adjacency": "add_or_remove_one",
    "dp.accountant": "rdp",
    "dp.accounting": "unaccounted",
    "dp.delta": 1e-05,
    "dp.trial_epsilon": 2.0,
}
_LABEL = ModelLabel(
    tags={"dp.claim": "no claim is made"},
    description="No claim is made.\n",
    metadata={"claim": None},
    card="## Privacy card\n",
)


def study_events(num_trials: int = 2) -> list[Event]:
    """Return the journal of a finished study: each trial reports once and ends."""
    events: list[Event] = []

    def add(event: str, **payload: Any) -> None:
        seq = len(events)
        events.append({"seq": seq, "time_ms": 1_790_000_000_000 + seq, "event": event, **payload})

    params = {"search.num_trials": num_trials, "search.mode": "max"}
    card = "## Privacy card\n"
    said = {"name": "digits", "spec_yaml": "name: digits\n", "params": params}
    add("study_started", **said, tags=_TAGS, card=card)
    for trial in range(num_trials):
        tags = {"dp.private": True, "dp.sampling": "poisson"}
        plan = {"steps": 100, "sample_rate": 0.01, "epsilon": 1.99}
        hparams = {"method": "dp_sgd", "optim.lr": 0.5}
        add("trial_started", trial=trial, hparams=hparams, plan=plan, tags=tags)
        score = {"validation/accuracy": 0.8 + trial / 100}
        ended = {"state": "finished", "reason": "plan complete", "tags": {}, "artifacts": []}
        for event, step, more in (
            ("trial_report", 50, {}),
            ("trial_ended", 100, {**ended, "delivered": score}),
        ):
            scored = {"metrics": score, "value": score["validation/accuracy"], "best_step": step}
            add(event, trial=trial, step=step, epsilon=step / 51, wall_s=1.0, **scored, **more)
    add("study_ended", state="finished", card=card, metrics={}, tags={}, artifacts=[])
    return events


class TrackerConformance:
    """The suite of trackers; pytest gives each test an empty folder, ``tmp_path``."""

    def make(self, folder: Path) -> Tracker:
        """Return a tracker on the store in ``folder``; called again, on the same store."""
        raise NotImplementedError

    def _told(self, folder: Path, events: list[Event]) -> Tracker:
        """Return a tracker that has got, as the spool gives them, the events that it lacks."""
        tracker = self.make(folder)
        tracker.handle([event for event in events if event["seq"] > tracker.last_seq])
        return tracker

    def test_there_is_a_run_for_the_study_and_each_trial(self, tmp_path: Path) -> None:
        """And none before they have started."""
        events = study_events()
        tracker = self.make(tmp_path)
        assert tracker.parent_run_id is None
        tracker.handle(events[:1])
        assert tracker.parent_run_id is not None
        assert tracker.run_id_of(0) is None
        tracker.handle(events[1:])
        runs = {tracker.parent_run_id, tracker.run_id_of(0), tracker.run_id_of(1)}
        assert len(runs - {None}) == 3
        assert tracker.run_id_of(2) is None
        assert tracker.last_seq == events[-1]["seq"]
        tracker.close()

    def test_what_it_is_told_twice_changes_no_run(self, tmp_path: Path) -> None:
        """Events are delivered at least once."""
        events = study_events()
        tracker = self._told(tmp_path, events)
        before = [tracker.parent_run_id, tracker.run_id_of(0), tracker.run_id_of(1)]
        tracker.handle(events)
        tracker.handle([])
        assert before == [tracker.parent_run_id, tracker.run_id_of(0), tracker.run_id_of(1)]
        assert tracker.last_seq == events[-1]["seq"]
        tracker.close()

    def test_a_later_launch_goes_on_with_the_same_runs(self, tmp_path: Path) -> None:
        """A study that was interrupted after its first trial has one run for it."""
        events = study_events()
        first = self._told(tmp_path, events[:4])
        before = [first.parent_run_id, first.run_id_of(0)]
        first.close()
        second = self._told(tmp_path, events)
        assert [second.parent_run_id, second.run_id_of(0)] == before
        assert second.run_id_of(1) not in (None, *before)
        second.close()

    def test_a_model_is_kept_once_and_can_be_labelled_anew(self, tmp_path: Path) -> None:
        """``log_model`` says where it is; of a trial without one, a label is no error."""
        import numpy as np

        from dpsweep.trainables.features.extractors import norm_layers

        tracker = self._told(tmp_path, study_events())
        assert not tracker.has_model(0)
        (model,) = norm_layers("l2", (3,))  # any network does
        place = tracker.log_model(0, model, np.zeros((1, 3), np.float32), _LABEL)
        assert place
        assert tracker.has_model(0)
        assert not tracker.has_model(1)
        tracker.label_model(0, _LABEL)
        tracker.label_model(1, _LABEL)
        tracker.close()

    def test_it_can_be_closed_twice(self, tmp_path: Path) -> None:
        """Also before it was told anything."""
        tracker = self.make(tmp_path)
        tracker.close()
        tracker.close()
