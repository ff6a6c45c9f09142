from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpsweep.tracking.model_label import ModelLabel

Event = dict[str, Any]

STUDY_TAGS = {
    "dp.unit": "example",
    "dp.adjacency": "add_or_remove_one",
    "dp.accountant": "rdp",
    "dp.accounting": "unaccounted",
    "dp.delta": 1e-05,
    "dp.trial_epsilon": 2.0,
}


def tags_of(mode: str) -> dict[str, Any]:
    """The tags of a study under an accounting mode."""
    claim = {"dp.study_epsilon": 3.0, "dp.released": "what this mode releases"}
    tags = {**STUDY_TAGS, **(claim if mode != "unaccounted" else {}), "dp.accounting": mode}
    return {**tags, "dp.filter_order": 8.0} if mode == "composed" else tags


LABEL = ModelLabel(
    tags={"dp.claim": "epsilon=3 of the study", "dp.study_epsilon": "3.0"},
    description="What may be claimed: 3.\n",
    metadata={"claim": {"epsilon": 3.0}, "claim_in_words": "epsilon=3 of the study"},
    card="## Privacy card\n",
)


@pytest.fixture
def label() -> ModelLabel:
    return LABEL


class Story:
    """Writes the events of a study, numbered, with a clock of its own."""

    def __init__(self, start_ms: int = 1_790_000_000_000) -> None:
        self.events: list[Event] = []
        self.now = start_ms

    def add(self, event: str, **payload: Any) -> Event:
        self.now += 1000
        numbered = {"seq": len(self.events), "time_ms": self.now, "event": event, **payload}
        self.events.append(numbered)
        return numbered

    def start(self, name: str = "digits", **changes: Any) -> Event:
        payload = {
            "name": name,
            "spec_yaml": f"name: {name}\n",
            "params": {"search.num_trials": 12, "search.mode": "max"},
            "tags": STUDY_TAGS,
            "card": "## Privacy card\n",
        }
        return self.add("study_started", **{**payload, **changes})

    def start_as(self, mode: str) -> Event:
        """A launch of a study under an accounting mode."""
        return self.start(tags=tags_of(mode))

    def start_trial(self, trial: int, *, private: bool = True, **changes: Any) -> Event:
        payload: Event = {
            "trial": trial,
            "hparams": {"method": "dp_sgd", "optim.lr": 0.5 + trial, "model.checkpoint": None},
            "plan": {"steps": 100, "sample_rate": 0.01},
            "tags": {"dp.private": private, "dp.sampling": "poisson"},
        }
        if private:
            payload["plan"]["epsilon"] = 1.99
        return self.add("trial_started", **{**payload, **changes})

    def report(self, trial: int, step: int, epsilon: float | None, accuracy: float) -> Event:
        return self.add(
            "trial_report",
            trial=trial,
            step=step,
            epsilon=epsilon,
            metrics={"validation/accuracy": accuracy},
            value=accuracy,
            best_step=step,
            wall_s=step / 10,
        )

    def end_trial(
        self,
        trial: int,
        step: int = 100,
        epsilon: float | None = 1.99,
        accuracy: float = 0.9,
        state: str = "finished",
        **changes: Any,
    ) -> Event:
        payload = {
            "trial": trial,
            "step": step,
            "epsilon": epsilon,
            "metrics": {"validation/accuracy": accuracy},
            "value": accuracy,
            "best_step": step,
            "delivered": {"validation/accuracy": accuracy},
            "wall_s": step / 10,
            "state": state,
            "reason": "plan complete",
            "tags": {},
            "artifacts": [],
        }
        if "value" in changes:  # its best model is not its last
            payload["delivered"] = {"validation/accuracy": changes["value"]}
        return self.add("trial_ended", **{**payload, **changes})

    def verdict(self, trial: int, step: int, verdict: str, rung: int = 1, **changes: Any) -> Event:
        payload = {
            "trial": trial,
            "step": step,
            "epsilon": 0.5 * rung,
            "rung": rung,
            "value": 0.6,
            "cutoff": 0.7,
            "verdict": verdict,
            "reason": f"rung {rung}: {verdict} at 0.6, cut-off 0.7",
        }
        return self.add("trial_verdict", **{**payload, **changes})

    def pause(self, trial: int, step: int, epsilon: float = 0.5) -> Event:
        reason = "paused by the scheduler"
        return self.add("trial_paused", trial=trial, step=step, epsilon=epsilon, reason=reason)

    def spent(self, epsilon: float) -> Event:
        return self.add("study_spent", epsilon=epsilon, share=epsilon / 3)

    def downgrade(self, reason: str = "a pruner was attached", **changes: Any) -> Event:
        return self.add("study_downgraded", reason=reason, **changes)

    def end(self, state: str = "finished", **changes: Any) -> Event:
        payload = {"state": state, "card": "## Final card\n", "metrics": {}, "tags": {}}
        return self.add("study_ended", **{**payload, "artifacts": [], **changes})

    def whole(self, trials: int = 3, reports: int = 4) -> list[Event]:
        """A finished study."""
        self.start()
        for trial in range(trials):
            self.start_trial(trial)
            for number in range(1, reports):
                step = 100 * number // reports
                self.report(trial, step, 1.99 * number / reports, 0.5 + 0.1 * number)
            self.end_trial(trial, accuracy=0.9 + trial / 100)
        self.end()
        return self.events

    def journal_of(self, mode: str) -> list[Event]:
        """A finished study under an accounting mode, with the tags and events of that mode."""
        self.start_as(mode)
        if mode == "select":  # nothing is said of a trial before the winner is released
            self.start_trial(0)
            self.end_trial(0, epsilon=2.1)
            self.end()
            return self.events
        on_public = {"tags": {"dp.records": "public"}, "plan": {"steps": 100, "epsilon": 0.0}}
        for trial in range(3):
            self.start_trial(trial, **(on_public if mode == "public" else {}))
            self.report(trial, 25, 0.0 if mode == "public" else 0.5, 0.6)
        if mode == "public":
            for trial in range(3):
                self.end_trial(trial, epsilon=0.0)
            self.start_trial(3)
            self.end_trial(3)
        else:
            self.verdict(0, 25, "stop")
            self.end_trial(0, 25, 0.5, 0.6, state="pruned")
            self.spent(0.5)
            self.verdict(1, 25, "pause")
            self.pause(1, 25)
            self.verdict(2, 25, "continue")
            self.end_trial(2)
            self.spent(2.2)
            self.start_trial(1)
            self.end_trial(1)
            self.spent(2.9)
        self.end(tags={"dp.sampling": "poisson"})
        return self.events

    def write(self, path: Path, start: int = 0, stop: int | None = None) -> None:
        """Append events to a journal file."""
        with path.open("a") as file:
            for event in self.events[start:stop]:
                file.write(json.dumps({**event, "crc": "00000000"}) + "\n")


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def new_story() -> Callable[..., Story]:
    return Story


@pytest.fixture(scope="session")
def migrated_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database; migrating one takes seconds, copying it does not."""
    from dpsweep.tracking.mlflow import MLflowTracker

    folder = tmp_path_factory.mktemp("mlflow")
    MLflowTracker(f"sqlite:///{folder}/mlflow.db", "unused", folder / "state.json").close()
    return folder / "mlflow.db"


@pytest.fixture
def store_uri(migrated_db: Path, tmp_path: Path) -> str:
    path = tmp_path / "mlflow.db"
    shutil.copy(migrated_db, path)
    return f"sqlite:///{path}"


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    return tmp_path / "tracking.json"


@pytest.fixture
def client(store_uri: str):
    from mlflow import MlflowClient

    return MlflowClient(store_uri)
