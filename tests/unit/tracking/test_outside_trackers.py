"""Trackers of other packages: chosen by a spec, fed by the spool, asked about their address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from outside import install
from typer.testing import CliRunner

from dpsweep.cli import app as cli
from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.spec.tracking import TrackingSpec
from dpsweep.tracking import TRACKERS, open_spool
from dpsweep.tracking.memory import MemoryTracker

TEXT = """
name: digits
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
privacy: {trial_epsilon: 2.0, accounting: unaccounted}
tracking: {kind: noted, uri: a place}
search:
  num_trials: 1
  space: {method: dp_sgd, optim.lr: 0.1}
"""
MADE: list[Any] = []


class Noted(MemoryTracker):
    """Remembers how it was made."""

    def __init__(self, uri: str, experiment: str, state_path: Path) -> None:
        super().__init__()
        self.made = (uri, experiment, state_path)
        MADE.append(self)

    @staticmethod
    def refuse_uri(uri: str) -> None:
        """Refuse a place that is nowhere."""
        if uri == "nowhere":
            raise BadInputError("there is no such place", because="it is nowhere", fix="go away")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.clear()
    places = {"noted": f"{__name__}:Noted", "broken": "no_such_module:Tracker"}
    install(monkeypatch, "dpsweep.trackers", TRACKERS, **places)


class Files:
    name = "digits"

    def __init__(self, journal: Path) -> None:
        self.journal, self.tracking = journal, journal.parent / "tracking.json"


def test_events_reach_the_tracker_that_the_spec_names(story: Any, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    story.whole()
    story.write(journal)
    with open_spool(Files(journal), TrackingSpec(kind="noted", uri="a place")) as spool:
        assert spool.flush(10)
    (tracker,) = MADE
    assert tracker.made == ("a place", "digits", journal.parent / "tracking-noted.json")
    assert tracker.last_seq == story.events[-1]["seq"]
    assert tracker.parent_run_id is not None


def test_a_spec_without_a_kind_means_mlflow() -> None:
    assert TrackingSpec().kind == "mlflow"
    assert TrackingSpec(uri=None).uri is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("tracking.kind=notd", r"unknown value 'notd' \(did you mean 'noted'\? known: mlflow, "),
        ("tracking.kind=memory", "unknown value 'memory'"),  # it would forget the study
        ("tracking={kind: noted}", "tracking.uri: is missing: the default is for mlflow"),
        ("tracking.uri=nowhere", r"tracking.uri: there is no such place: it is nowhere \(go away"),
        ("tracking.kind=broken", "tracker 'broken' of .* cannot be loaded: ModuleNotFoundError"),
        ("tracking={kind: mlflow, uri: a place}", "'a place' is a directory"),
    ],
)
def test_what_cannot_be_tracked_is_told_before_anything_starts(change: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        preflight(read_spec(TEXT, overrides=[change]))


def test_another_address_is_the_tracker_s_own() -> None:
    spec = preflight(read_spec(TEXT)).spec
    assert (spec.tracking.kind, spec.tracking.uri) == ("noted", "a place")
    assert preflight(read_spec(TEXT, overrides=["tracking={kind: broken, uri: null}"]))


def test_mlflow_s_ui_says_that_it_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stored:
        spec = read_spec(TEXT)

    monkeypatch.setattr("dpsweep.cli.verbs.machine.load_sweep", lambda name, root: Stored)
    done = CliRunner().invoke(cli.app, ["ui", "digits"])
    assert isinstance(done.exception, BadInputError)
    assert done.exception.message == (
        "study 'digits' is tracked by noted, which MLflow's UI does not show"
    )
