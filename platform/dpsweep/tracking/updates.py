"""From journal events to updates of runs: one pure reading of the events for every tracker."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation.version import __version__
from dpsweep.study import events
from dpsweep.study.trial import NO_BUDGET_LEFT
from dpsweep.tracking.drafts import ENDED, OVER_BUDGET, Drafts, RunUpdate, count_name
from dpsweep.tracking.labels import (
    MAX_REASON,
    downgraded_card,
    downgraded_tags,
    final_run,
    is_sealed,
    is_shown_by_sealed,
    joint_sampling,
    tags_of_trial,
)
from dpsweep.tracking.schema import (
    BEST_TRIAL,
    CURVE,
    OBJECTIVE,
    PEAK_MEMORY,
    STUDY_SPENT,
    TRAIN_SECONDS,
    as_text,
    finite,
    is_of_model,
    missing_statement,
)
from dpsweep.tracking.state import PRETRAIN_ROLE, PRETRAINING, TrackingState, name_of
from dpsweep.tracking.views import intro_of_trial, note_of_trial

#: A line of a journal (``dpsweep.study.events``).
Event = Mapping[str, Any]

# A pruned trial has not finished, and it is not broken; its tag dpsweep.state says what stopped it.
_STATUS = {
    "finished": "FINISHED",
    "pruned": "KILLED",
    OVER_BUDGET: "KILLED",
    "failed": "FAILED",
    "infeasible": "FAILED",
    "interrupted": "KILLED",
}
_OPEN = ("running", "paused")


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


def read_events(state: TrackingState, lines: Sequence[Event]) -> Reading:
    """Read lines of a journal into updates; events that ``state`` has seen already are skipped.

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
    reader = _Reader(Drafts(copy.deepcopy(state)))
    for line in lines:
        if line["seq"] > reader.state.seq:
            reader.read(line)
            reader.state.seq = line["seq"]
    drafts = reader.drafts
    drafts.relabel()
    parent = [drafts.updates.pop(None)] if None in drafts.updates else []
    return Reading(reader.state, parent + list(drafts.updates.values()), drafts.refused)


class _Reader:
    def __init__(self, drafts: Drafts) -> None:
        self.drafts, self.state = drafts, drafts.state

    def read(self, line: Event) -> None:
        kind, refused = line["event"], self.drafts.refused
        if kind not in events.KINDS:
            refused.append(f"event {line['seq']}: unknown kind {kind!r}")
        elif kind != events.StudyStarted.kind and not self.state.study_id:
            refused.append(f"event {line['seq']}: {kind} before study_started")
        elif self.state.is_sealed and not is_shown_by_sealed(line, self.state.study_tags):
            # Said once and without a number: a count of these lines is the number of trials.
            said = "select: events of trials other than the released winner are not shown"
            refused += [said] if said not in refused else []
        else:
            try:
                if kind == events.StudyStarted.kind:  # holds even if the rest cannot be read
                    self.state.is_sealed = self.state.is_sealed or is_sealed(line)
                self._read(events.event_of(line))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                # One malformed event must not hold up all that follow it.
                refused.append(f"event {line['seq']}: malformed {kind}: {error!r}")

    def _read(self, event: events.Event | None) -> None:
        match event:
            case events.StudyStarted():
                self._study_started(event)
            case events.Pretrained():
                self._pretrained(event)
            case events.TrialStarted():
                self._trial_started(event)
            case events.TrialEnded():
                self._trial_ended(event)
            case events.TrialReported():
                self._trial_report(event)
            case events.TrialJudged():
                self._trial_verdict(event)
            case events.TrialPaused():
                self._trial_paused(event)
            case events.TrialCharged():
                self._trial_charged(event)
            case events.TrialInfeasible():
                self._count(event, "infeasible")
            case events.ModelLogged():
                self._model_logged(event)
            case events.StudySpent():
                self.drafts.log_study(event, {STUDY_SPENT: event.epsilon}, {})
            case events.StudyDowngraded():
                self._study_downgraded(event)
            case events.CardRenewed():
                self._take_card(event)
            case events.StudyEnded():
                self._study_ended(event)

    def _study_started(self, event: events.StudyStarted) -> None:
        state, update = self.state, self.drafts.update_of(None)
        tags = self.drafts.texts(event.tags, "tag", "study")
        state.study = event.name
        if not state.study_id:
            first = f"{event.name}@{event.time_ms}"
            digest = hashlib.sha256(first.encode()).hexdigest()[:16]
            state.study_id = tags.get("dpsweep.study_id", digest)
        state.study_tags = {name: text for name, text in tags.items() if name.startswith("dp.")}
        self.drafts.open(update, event)
        update.params |= self.drafts.texts(event.params, "param", "study")
        state.mode = update.params.get("search.mode", state.mode)
        state.metric = update.params.get("search.metric", state.metric)
        self.drafts.note_final_run(final_run(update.params, state.study_tags))
        state.constants = self.drafts.texts(event.constants, "param", "study")
        update.params = {**state.constants, **update.params}
        state.searched, state.datasets = list(event.searched), [dict(d) for d in event.datasets]
        state.started_ms = state.started_ms or event.time_ms
        update.datasets = state.datasets
        update.tags |= {
            **tags,
            "dpsweep.study": state.study,
            "dpsweep.study_id": state.study_id,
            "dpsweep.version": __version__,
            "dpsweep.state": "running",
        }
        if event.spec_yaml:
            update.texts["sweep.yaml"] = event.spec_yaml
        self._take_downgrade(tags.get("dp.downgraded"))
        self._take_card(event)

    def _pretrained(self, event: events.Pretrained) -> None:
        """Open and close the run of public pre-training; weights of a file have none."""
        if not event.epochs:
            return
        of, update = name_of(PRETRAINING), self.drafts.update_of(PRETRAINING)
        self.drafts.open(update, event)
        facts = {"pretrain.about": event.about, "pretrain.records": event.records}
        update.params |= self.drafts.texts({**event.params, **facts}, "param", of)
        update.tags |= {
            "dpsweep.study": self.state.study,
            "dpsweep.study_id": self.state.study_id,
            "dpsweep.role": PRETRAIN_ROLE,
            "dpsweep.pretrained": event.address,
            "dpsweep.state": "finished",
            "dp.records": "public",
        }
        for number, scores in enumerate(event.epochs, start=1):
            named = {f"pretrain/{name}": value for name, value in scores.items()}
            self.drafts.log_metrics(PRETRAINING, event, named, number)
        seconds = {"pretrain/seconds": event.seconds}
        self.drafts.log_metrics(PRETRAINING, event, seconds, len(event.epochs))
        update.artifacts += event.artifacts
        update.status, update.end_ms = _STATUS["finished"], event.time_ms

    def _take_card(
        self,
        event: events.StudyStarted
        | events.StudyDowngraded
        | events.CardRenewed
        | events.StudyEnded,
    ) -> None:
        card, reason = event.card, self.state.downgraded
        if reason:
            card = downgraded_card(card, reason)
        if card:
            self.drafts.update_of(None).texts["privacy_card.md"] = card
        if not isinstance(event, events.StudyStarted):
            self.drafts.update_of(None).artifacts += event.artifacts

    def _take_downgrade(self, reason: str | None) -> None:
        """Give all runs that exist the label of a downgraded study; the first reason stays."""
        state = self.state
        state.downgraded = state.downgraded or reason or ""
        if not state.downgraded:
            return
        label = downgraded_tags(state.downgraded)
        state.study_tags |= label
        for trial in (None, *state.unstated) if reason else (None,):
            self.drafts.update_of(trial).tags |= label

    def _study_downgraded(self, event: events.StudyDowngraded) -> None:
        self._take_downgrade(event.reason or "no reason was given")
        self._take_card(event)

    def _trial_started(self, event: events.TrialStarted) -> None:
        trial, state = event.trial, self.state
        of, update = f"trial {trial}", self.drafts.update_of(trial)
        plan = dict(event.plan)
        own = self.drafts.texts(event.tags, "tag", of)
        no_claim = "epsilon" in plan and finite(plan["epsilon"]) is None
        drawn = {**state.study_tags, **own}
        tags = tags_of_trial(state.study_tags, own, is_sealed=state.is_sealed, no_claim=no_claim)
        if tags["dp.private"] == "false":
            plan.pop("epsilon", None)
        else:
            state.sampling = joint_sampling(state.sampling, drawn.get("dp.sampling", ""))
        state.unstated[trial] = missing_statement(tags)
        self._continue(event)
        state.states[trial] = "running"
        self.drafts.note_start(trial, own)
        self.drafts.open(update, event)
        hparams = self.drafts.texts(event.hparams, "param", of)
        same = state.constants.items()
        update.params |= dict(item for item in hparams.items() if item not in same)
        planned = {f"plan.{name}": value for name, value in plan.items()}
        state.intros[trial] = intro_of_trial(trial, hparams, state)
        update.note = note_of_trial(trial, "running", "", state)
        is_public = tags.get("dp.records") == "public"
        update.datasets = [d for d in state.datasets if not is_public or d["context"] != "private"]
        update.tags |= {
            **tags,
            **self.drafts.texts(planned, "tag", of),
            "dpsweep.study": state.study,
            "dpsweep.study_id": state.study_id,
            "dpsweep.trial": as_text(trial),
            "dpsweep.state": "running",
        }

    def _trial_report(self, event: events.TrialReported) -> None:
        trial = event.trial
        if trial not in self.state.unstated:
            self.drafts.refused.append(f"trial {trial}: report before its start")
            return
        self._continue(event)
        curve = {
            f"{CURVE}{name}" if is_of_model(name) else name: value
            for name, value in event.metrics.items()
            if not name.startswith("test/")  # the test records are scored once, of one model
        }
        self.drafts.log_metrics(trial, event, curve, event.step)
        if event.epsilon is not None:
            self.drafts.log_epsilon(trial, event)
        if event.wall_s is not None and not self.state.is_sealed:
            usage = {TRAIN_SECONDS: event.wall_s, PEAK_MEMORY: event.memory_mb}
            said = {name: value for name, value in usage.items() if value is not None}
            self.drafts.log_metrics(trial, event, said, event.step)

    def _trial_verdict(self, event: events.TrialJudged) -> None:
        trial, reason = event.trial, event.reason[:MAX_REASON]
        if trial not in self.state.unstated:
            self.drafts.refused.append(f"trial {trial}: verdict before its start")
            return
        tags = self.drafts.update_of(trial).tags
        tags["dpsweep.verdict"] = reason
        if event.verdict == "stop":
            tags["dpsweep.reason"] = reason

    def _trial_paused(self, event: events.TrialPaused) -> None:
        trial, states = event.trial, self.state.states
        if trial not in self.state.unstated or states.get(trial) not in _OPEN:
            self.drafts.refused.append(f"trial {trial}: paused while it was not running")
            return
        if event.epsilon is not None:
            self.drafts.log_epsilon(trial, event)
        self.drafts.update_of(trial).tags["dpsweep.state"] = states[trial] = "paused"
        self.drafts.log_counts(event, ["paused"])

    def _trial_charged(self, event: events.TrialCharged) -> None:
        trial = event.trial
        if trial not in self.state.unstated:
            self.drafts.refused.append(f"trial {trial}: charges before its start")
        elif event.epsilon is not None:
            self.drafts.log_epsilon(trial, event)

    def _continue(self, event: events.TrialStarted | events.TrialReported) -> None:
        """Note that a trial which was paused runs again."""
        trial, states = event.trial, self.state.states
        if states.get(trial) == "paused":
            self.drafts.update_of(trial).tags["dpsweep.state"] = states[trial] = "running"
            self.drafts.log_counts(event, ["paused"])

    def _trial_ended(self, event: events.TrialEnded) -> None:
        trial, ended, state = event.trial, event.state, self.state
        if ended == "pruned" and event.reason.endswith(NO_BUDGET_LEFT):
            ended = OVER_BUDGET
        if trial in state.unstated:
            self._trial_report(event)
            self._log_delivered(event)
            update = self.drafts.update_of(trial)
            update.tags |= self.drafts.texts(event.tags, "tag", f"trial {trial}")
            update.tags["dpsweep.state"] = ended
            reason = event.reason[:MAX_REASON]
            if reason:
                update.tags["dpsweep.reason"] = reason
            update.note = note_of_trial(trial, ended, reason, state)
            update.status, update.end_ms = _STATUS[ended], event.time_ms
            update.artifacts += event.artifacts
        self._count(event, ended)
        if ended == "finished":
            self.drafts.log_best(event)

    def _log_delivered(self, event: events.TrialEnded) -> None:
        """Log the scores of the model that a trial delivers, once, at the step it is from.

        Events of earlier versions do not say: there only those of a model are logged that is the
        last one too.
        """
        metrics, value, step = event.metrics, event.value, event.step
        at = step if value is None or event.best_step is None else event.best_step
        is_last = value is None or (at == step and value in metrics.values())
        scores = event.delivered or (metrics if is_last else {})
        objective = {} if value is None else {OBJECTIVE: value}
        curves = self.state.last.get(str(event.trial), {})
        for name, score in {**scores, **objective}.items():
            begun = curves.get(name, [at])[0]  # a run of an earlier version has a curve there
            self.drafts.log_metrics(event.trial, event, {name: score}, max(at, int(begun)))

    def _count(self, event: events.TrialEnded | events.TrialInfeasible, ended: str) -> None:
        self.state.states[event.trial] = ended
        self.drafts.log_counts(event, [ended])

    def _model_logged(self, event: events.ModelLogged) -> None:
        self.state.model_uris[event.trial] = event.uri
        if event.artifacts:
            self.drafts.update_of(event.trial).artifacts += event.artifacts

    def _study_ended(self, event: events.StudyEnded) -> None:
        state, update = self.state, self.drafts.update_of(None)
        for trial in [trial for trial, now in state.states.items() if now in _OPEN]:
            child = self.drafts.update_of(trial)
            child.status, child.end_ms = "KILLED", event.time_ms
            child.tags["dpsweep.state"] = state.states[trial] = "interrupted"
            child.note = note_of_trial(trial, "interrupted", "", state)
        counted = state.last.get("study", {})
        rare = [name for name in ("paused", OVER_BUDGET) if count_name(name) in counted]
        self.drafts.log_counts(event, [*ENDED, *rare])
        best = finite(event.metrics.get(BEST_TRIAL))
        state.best_trial = state.best_trial if best is None else int(best)
        tags = self.drafts.texts(event.tags, "tag", "study")
        self.drafts.log_study(event, event.metrics, tags)
        if event.end_reason:
            update.tags["dpsweep.reason"] = event.end_reason[:MAX_REASON]
        update.tags |= tags
        update.tags["dpsweep.state"] = event.state
        update.status, update.end_ms = _STATUS[event.state], event.time_ms
        self._take_downgrade(tags.get("dp.downgraded"))
        self._take_card(event)
