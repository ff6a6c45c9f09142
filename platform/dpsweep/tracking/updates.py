"""From journal events to updates of runs: one pure reading of the events for every tracker."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsweep.foundation.version import __version__
from dpsweep.tracking.labels import (
    MAX_REASON,
    downgraded_card,
    downgraded_tags,
    is_sealed,
    is_shown_by_sealed,
    joint_sampling,
    tells_number_of_trials,
    why_unreleased,
)
from dpsweep.tracking.schema import (
    BEST_OBJECTIVE,
    CURVE,
    EPSILON,
    OBJECTIVE,
    STUDY_SPENT,
    TRAIN_SECONDS,
    Kind,
    UnloggableError,
    as_text,
    check_loggable,
    finite,
    is_of_model,
    missing_statement,
)
from dpsweep.tracking.state import PRETRAIN_ROLE, PRETRAINING, TrackingState, name_of

Event = Mapping[str, Any]

# A pruned trial ended as planned and its model is valid, so it is not shown as broken; its tag
# dpsweep.state says that the scheduler stopped it.
_STATUS = {
    "finished": "FINISHED",
    "pruned": "FINISHED",
    "failed": "FAILED",
    "infeasible": "FAILED",
    "interrupted": "KILLED",
}
_CLAIM_TAGS = (
    "dp.delta", "dp.trial_epsilon", "dp.study_epsilon", "dp.filter_order", "dp.released",
    "dp.accountant", "dp.sampling",
)  # fmt: skip
_OF_STUDY_ALONE = ("dp.study_epsilon", "dp.released")  # what a trial's run must not claim
_OF_SEALED = "dp.trial_epsilon"  # below the released winner's epsilon, and not about it
_COUNTED = ("finished", "pruned", "failed", "infeasible")
_OPEN = ("running", "paused")
_ROUNDING = 1e-6  # a table and a single evaluation of one epsilon may differ by so much


@dataclass(frozen=True)
class MetricPoint:
    """One value of one metric; ``time_ms`` is the journal's, so that a replay is identical."""

    name: str
    value: float
    time_ms: int
    step: int


@dataclass
class RunUpdate:
    """What is new for one run.

    ``trial`` is None for the study's own run, ``PRETRAINING`` for that of public pre-training.

    Attributes:
        opens: True when the run must exist and be RUNNING before the rest is applied.
        start_ms: Time at which it (re)opened.
        status: Final status, or None while it is open.
        end_ms: Time of the final status.
        texts: Small text artifacts by file name.
        artifacts: Local files or directories to store.
    """

    trial: int | None
    opens: bool = False
    start_ms: int = 0
    status: str | None = None
    end_ms: int = 0
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[MetricPoint] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)


@dataclass
class Reading:
    """The result of reading a batch of events.

    Attributes:
        state: State after the batch; the one that was given is unchanged.
        updates: One update per touched run, the parent first.
        refused: What was not logged, and why, one line each.
    """

    state: TrackingState
    updates: list[RunUpdate]
    refused: list[str]


def read_events(state: TrackingState, events: Sequence[Event]) -> Reading:
    """Read events into updates; events that ``state`` has seen already are skipped.

    Guarantees:
        A value reaches an update only under a name that ``schema.check_loggable`` lets pass, and
        an epsilon only when delta, unit, adjacency, sampling, accountant and accounting mode stand
        beside it and, for a trial, it did not go down. Values that are not finite never become
        numbers.

        After ``study_downgraded`` no update carries the study's earlier label: every run that
        exists is told ``unaccounted``, and so is every later one, whatever later events say. Of a
        study in ``select`` only the released winner (trial 0) gets a run, and nothing that tells
        how many trials there were passes.
    """
    reader = _Reader(copy.deepcopy(state))
    for event in events:
        if event["seq"] > reader.state.seq:
            reader.read(event)
            reader.state.seq = event["seq"]
    reader.relabel()
    parent = [reader.updates.pop(None)] if None in reader.updates else []
    return Reading(reader.state, parent + list(reader.updates.values()), reader.refused)


class _Reader:
    def __init__(self, state: TrackingState) -> None:
        self.state = state
        self.updates: dict[int | None, RunUpdate] = {}
        self.refused: list[str] = []

    def read(self, event: Event) -> None:
        handlers = {
            "study_started": self._study_started,
            "pretrained": self._pretrained,
            "trial_started": self._trial_started,
            "trial_report": self._trial_report,
            "trial_verdict": self._trial_verdict,
            "trial_paused": self._trial_paused,
            "trial_charged": self._trial_charged,
            "trial_ended": self._trial_ended,
            "trial_infeasible": self._trial_infeasible,
            "model_logged": self._model_logged,
            "study_spent": self._study_spent,
            "study_downgraded": self._study_downgraded,
            "study_ended": self._study_ended,
        }
        kind = event["event"]
        if kind not in handlers:
            self.refused.append(f"event {event['seq']}: unknown kind {kind!r}")
        elif kind != "study_started" and not self.state.study_id:
            self.refused.append(f"event {event['seq']}: {kind} before study_started")
        elif self.state.is_sealed and not is_shown_by_sealed(event):
            # Said once and without a number: a count of these lines is the number of trials.
            line = "select: events of trials other than the released winner are not shown"
            self.refused += [line] if line not in self.refused else []
        else:
            try:
                handlers[kind](event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                # One malformed event must not hold up all that follow it.
                self.refused.append(f"event {event['seq']}: malformed {kind}: {error!r}")

    def relabel(self) -> None:
        """Put a downgrade's label over that of every touched run: the only way out of here."""
        if self.state.downgraded:
            for update in self.updates.values():
                if update.opens or update.tags:
                    update.tags |= downgraded_tags(self.state.downgraded)

    def _update(self, trial: int | None) -> RunUpdate:
        return self.updates.setdefault(trial, RunUpdate(trial))

    def _pass(
        self, values: Mapping[str, Any] | None, kind: Kind, of: str
    ) -> Iterable[tuple[str, Any]]:
        for name, value in (values or {}).items():
            try:
                check_loggable(name, kind)
            except UnloggableError as error:
                self.refused.append(f"{of}: {error.message}")
                continue
            reason = why_unreleased(name, self.state.study_tags) if kind == "metric" else None
            if self.state.is_sealed and tells_number_of_trials(name, of_study=of == "study"):
                reason = "it would tell how many trials a study in select ran"
            if reason:
                self.refused.append(f"{of}: {kind} {name!r} is not logged: {reason}")
            else:
                yield name, value

    def _texts(self, values: Mapping[str, Any] | None, kind: Kind, of: str) -> dict[str, str]:
        passed = self._pass(values, kind, of)
        return {name: as_text(value) for name, value in passed if value is not None}

    def _open(self, update: RunUpdate, event: Event) -> None:
        update.opens, update.status = True, None
        update.start_ms = update.start_ms or event["time_ms"]

    def _study_started(self, event: Event) -> None:
        state, update = self.state, self._update(None)
        state.is_sealed = state.is_sealed or is_sealed(event)
        tags = self._texts(event.get("tags"), "tag", "study")
        state.study = event["name"]
        if not state.study_id:
            first = f"{event['name']}@{event['time_ms']}"
            digest = hashlib.sha256(first.encode()).hexdigest()[:16]
            state.study_id = tags.get("dpsweep.study_id", digest)
        state.study_tags = {name: text for name, text in tags.items() if name.startswith("dp.")}
        self._open(update, event)
        update.params |= self._texts(event.get("params"), "param", "study")
        state.mode = update.params.get("search.mode", state.mode)
        update.tags |= {
            **tags,
            "dpsweep.study": state.study,
            "dpsweep.study_id": state.study_id,
            "dpsweep.version": __version__,
            "dpsweep.state": "running",
        }
        if event.get("spec_yaml"):
            update.texts["sweep.yaml"] = event["spec_yaml"]
        self._take_downgrade(tags.get("dp.downgraded"))
        self._take_card(event)

    def _pretrained(self, event: Event) -> None:
        """Open and close the run of public pre-training; weights of a file have none."""
        if not event["epochs"]:
            return
        of, update = name_of(PRETRAINING), self._update(PRETRAINING)
        self._open(update, event)
        facts = {"pretrain.about": event["about"], "pretrain.records": event["records"]}
        update.params |= self._texts({**event["params"], **facts}, "param", of)
        update.tags |= {
            "dpsweep.study": self.state.study,
            "dpsweep.study_id": self.state.study_id,
            "dpsweep.role": PRETRAIN_ROLE,
            "dpsweep.pretrained": event["address"],
            "dpsweep.state": "finished",
            "dp.records": "public",
        }
        for number, scores in enumerate(event["epochs"], start=1):
            named = {f"pretrain/{name}": value for name, value in scores.items()}
            self._log_metrics(PRETRAINING, event, named, number)
        seconds = {"pretrain/seconds": event["seconds"]}
        self._log_metrics(PRETRAINING, event, seconds, len(event["epochs"]))
        update.artifacts += event["artifacts"]
        update.status, update.end_ms = _STATUS["finished"], event["time_ms"]

    def _take_card(self, event: Event) -> None:
        card, reason = event.get("card"), self.state.downgraded
        if reason:
            card = downgraded_card(card, reason)
        if card:
            self._update(None).texts["privacy_card.md"] = card

    def _take_downgrade(self, reason: str | None) -> None:
        """Give all runs that exist the label of a downgraded study; the first reason stays."""
        state = self.state
        state.downgraded = state.downgraded or reason or ""
        if not state.downgraded:
            return
        label = downgraded_tags(state.downgraded)
        state.study_tags |= label
        for trial in (None, *state.unstated) if reason else (None,):
            self._update(trial).tags |= label

    def _study_downgraded(self, event: Event) -> None:
        self._take_downgrade(event.get("reason") or "no reason was given")
        self._take_card(event)

    def _trial_started(self, event: Event) -> None:
        trial, state = event["trial"], self.state
        of, update = f"trial {trial}", self._update(trial)
        plan = dict(event.get("plan") or {})
        not_its_own = (*_OF_STUDY_ALONE, *([_OF_SEALED] if state.is_sealed else []))
        inherited = {n: t for n, t in state.study_tags.items() if n not in not_its_own}
        tags = {**inherited, **self._texts(event.get("tags"), "tag", of)}
        no_claim = "epsilon" in plan and finite(plan["epsilon"]) is None
        if no_claim or tags.get("dp.private") == "false":
            # A run that makes no privacy claim carries no delta or cap that would look like one.
            tags = {name: text for name, text in tags.items() if name not in _CLAIM_TAGS}
            tags |= {"dp.private": "false", "dp.epsilon": "inf"}
            plan.pop("epsilon", None)
        else:
            tags["dp.private"] = "true"
            state.sampling = joint_sampling(state.sampling, tags.get("dp.sampling", ""))
        if tags.get("dp.records") == "public":
            tags["dp.sampling"] = "none"  # it draws no private record, and its epsilon is 0
        state.unstated[trial] = missing_statement(tags)
        self._continue(event)
        state.states[trial] = "running"
        self._open(update, event)
        update.params |= self._texts(event.get("hparams"), "param", of)
        planned = {f"plan.{name}": value for name, value in plan.items()}
        update.params |= self._texts(planned, "param", of)
        update.tags |= {
            **tags,
            "dpsweep.study": state.study,
            "dpsweep.study_id": state.study_id,
            "dpsweep.trial": as_text(trial),
            "dpsweep.state": "running",
        }

    def _trial_report(self, event: Event) -> None:
        trial = event["trial"]
        if trial not in self.state.unstated:
            self.refused.append(f"trial {trial}: report before its start")
            return
        self._continue(event)
        curve = {
            f"{CURVE}{name}" if is_of_model(name) else name: value
            for name, value in (event.get("metrics") or {}).items()
            if not name.startswith("test/")  # the test records are scored once, of one model
        }
        self._log_metrics(trial, event, curve, event["step"])
        epsilon = event.get("epsilon")
        if epsilon is not None:
            self._log_epsilon(trial, event, epsilon)
        if event.get("wall_s") is not None and not self.state.is_sealed:
            self._log_metrics(trial, event, {TRAIN_SECONDS: event["wall_s"]}, event["step"])

    def _trial_verdict(self, event: Event) -> None:
        trial, reason = event["trial"], event["reason"][:MAX_REASON]
        if trial not in self.state.unstated:
            self.refused.append(f"trial {trial}: verdict before its start")
            return
        tags = self._update(trial).tags
        tags["dpsweep.verdict"] = reason
        if event["verdict"] == "stop":
            tags["dpsweep.reason"] = reason

    def _trial_paused(self, event: Event) -> None:
        trial, states = event["trial"], self.state.states
        if trial not in self.state.unstated or states.get(trial) not in _OPEN:
            self.refused.append(f"trial {trial}: paused while it was not running")
            return
        if event.get("epsilon") is not None:
            self._log_epsilon(trial, event, event["epsilon"])
        self._update(trial).tags["dpsweep.state"] = states[trial] = "paused"
        self._log_counts(event, ["paused"])

    def _trial_charged(self, event: Event) -> None:
        trial = event["trial"]
        if trial not in self.state.unstated:
            self.refused.append(f"trial {trial}: charges before its start")
        elif event["epsilon"] is not None:
            self._log_epsilon(trial, event, event["epsilon"])

    def _continue(self, event: Event) -> None:
        """Note that a trial which was paused runs again."""
        trial, states = event["trial"], self.state.states
        if states.get(trial) == "paused":
            self._update(trial).tags["dpsweep.state"] = states[trial] = "running"
            self._log_counts(event, ["paused"])

    def _log_epsilon(self, trial: int, event: Event, epsilon: Any) -> None:
        missing = self.state.unstated[trial]
        previous = self.state.last.get(str(trial), {}).get(EPSILON, [0, 0.0])[1]
        value = finite(epsilon)
        if value is None:
            self._update(trial).tags["dp.epsilon"] = "inf"
        elif missing:
            self.refused.append(
                f"trial {trial}: epsilon is not logged without {', '.join(missing)} beside it"
            )
        elif value < previous * (1 - _ROUNDING):
            self.refused.append(
                f"trial {trial}: epsilon went down from {previous:.6g} to {value:.6g} at step "
                f"{event['step']}; spent privacy never does, so the value is not logged"
            )
        else:
            self._log_metrics(trial, event, {EPSILON: max(value, previous)}, event["step"])

    def _log_metrics(
        self, trial: int | None, event: Event, metrics: Mapping[str, Any], step: int
    ) -> None:
        of = name_of(trial)
        last = self.state.last.setdefault("study" if trial is None else str(trial), {})
        update = self._update(trial)
        for name, raw in self._pass(metrics, "metric", of):
            value = finite(raw)
            if value is None:
                update.tags.setdefault("dpsweep.nonfinite", f"{name} at step {step}")
            elif last.get(name) != [step, value]:  # a trial's end repeats its last report
                update.metrics.append(MetricPoint(name, value, event["time_ms"], step))
                last[name] = [step, value]

    def _trial_ended(self, event: Event) -> None:
        trial, ended, state = event["trial"], event["state"], self.state
        if trial in state.unstated:
            self._trial_report(event)
            self._log_delivered(event)
            update = self._update(trial)
            update.tags |= self._texts(event.get("tags"), "tag", f"trial {trial}")
            update.tags["dpsweep.state"] = ended
            if event.get("reason"):
                update.tags["dpsweep.reason"] = event["reason"][:MAX_REASON]
            update.status, update.end_ms = _STATUS[ended], event["time_ms"]
            update.artifacts += event.get("artifacts") or []
        self._count(event, ended)
        if ended == "finished":
            self._improve(event)

    def _log_delivered(self, event: Event) -> None:
        """Log the scores of the model that a trial delivers, once, at the step it is from.

        Events of earlier versions do not say: there only those of a model are logged that is the
        last one too.
        """
        metrics, value, step = event.get("metrics") or {}, event.get("value"), event["step"]
        at = step if value is None else event.get("best_step", step)
        is_last = value is None or (at == step and value in metrics.values())
        scores = event.get("delivered") or (metrics if is_last else {})
        objective = {} if value is None else {OBJECTIVE: value}
        known = self.state.last.get(str(event["trial"]), {})
        for name, score in {**scores, **objective}.items():
            begun = known.get(name, [at])[0]  # a run of an earlier version has a curve there
            self._log_metrics(event["trial"], event, {name: score}, max(at, int(begun)))

    def _improve(self, event: Event) -> None:
        value, best = finite(event.get("value")), self.state.best
        sign = {"max": 1.0, "min": -1.0}.get(self.state.mode)
        if value is None or sign is None:
            return
        if best is None or sign * value > sign * best:
            self.state.best = value
            self._log_metrics(None, event, {BEST_OBJECTIVE: value}, self._num_ended())

    def _trial_infeasible(self, event: Event) -> None:
        self._count(event, "infeasible")

    def _count(self, event: Event, ended: str) -> None:
        self.state.states[event["trial"]] = ended
        self._log_counts(event, [ended])

    def _num_ended(self) -> int:
        return sum(state in _COUNTED for state in self.state.states.values())

    def _log_counts(self, event: Event, names: Sequence[str]) -> None:
        if self.state.is_sealed:
            return
        values = list(self.state.states.values())
        counts = {f"search/{name}": values.count(name) for name in names}
        self._log_metrics(None, event, counts, self._num_ended())

    def _model_logged(self, event: Event) -> None:
        self.state.model_uris[event["trial"]] = event["uri"]
        if event.get("artifacts"):
            self._update(event["trial"]).artifacts += event["artifacts"]

    def _study_spent(self, event: Event) -> None:
        self._log_study(event, {STUDY_SPENT: event["epsilon"]}, {})

    def _log_study(self, event: Event, metrics: Mapping[str, Any], tags: Mapping[str, Any]) -> None:
        """Log metrics of the study, an epsilon only with its statement beside it."""
        tags = {"dp.sampling": self.state.sampling, **self.state.study_tags, **tags}
        missing = missing_statement(tags)
        epsilons = [name for name in metrics if name.endswith("epsilon")]
        if epsilons and not missing:
            self._update(None).tags["dp.sampling"] = tags["dp.sampling"]
        unstated = epsilons if missing else []
        self.refused += [
            f"study: {name} is not logged without {', '.join(missing)} beside it"
            for name in unstated
        ]
        stated = {name: value for name, value in metrics.items() if name not in unstated}
        self._log_metrics(None, event, stated, self._num_ended())

    def _study_ended(self, event: Event) -> None:
        state, update = self.state, self._update(None)
        for trial in [trial for trial, now in state.states.items() if now in _OPEN]:
            child = self._update(trial)
            child.status, child.end_ms = "KILLED", event["time_ms"]
            child.tags["dpsweep.state"] = state.states[trial] = "interrupted"
        has_paused = "search/paused" in state.last.get("study", {})
        self._log_counts(event, [*_COUNTED, "paused"] if has_paused else _COUNTED)
        tags = self._texts(event.get("tags"), "tag", "study")
        self._log_study(event, event.get("metrics") or {}, tags)
        if event.get("end_reason"):
            update.tags["dpsweep.reason"] = event["end_reason"][:MAX_REASON]
        update.tags |= tags
        update.tags["dpsweep.state"] = event["state"]
        update.status, update.end_ms = _STATUS[event["state"]], event["time_ms"]
        self._take_downgrade(tags.get("dp.downgraded"))
        self._take_card(event)
        update.artifacts += event.get("artifacts") or []
