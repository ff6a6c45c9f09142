"""A study in a tracking store: its records where nothing but its runs is at hand.

Values are those that the study logged, which equal its own. Claims come from tags: whoever may
write to the store can change them, and what was charged stands on the study's ledger alone.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from dpsweep.foundation.errors import BadInputError, SpecError, StudyError
from dpsweep.foundation.validate import of_kind
from dpsweep.results.claims import Claims
from dpsweep.results.records import shown_hyperparameters
from dpsweep.results.tracked.claims import TaggedClaims, bound_of
from dpsweep.results.tracked.curves import Curves
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.trial import TrialState, TrialTask
from dpsweep.tracking.drafts import OVER_BUDGET
from dpsweep.tracking.mlflow_reader import MLflowReader, StoredRun, names_of
from dpsweep.tracking.schema import EPSILON, OBJECTIVE, is_of_model

#: What the name of a study in an MLflow store begins with.
SCHEME = "mlflow:"
_AT_ONCE = 8  # requests in flight
_STATE = "dpsweep.state"
_T = TypeVar("_T")


def is_stored(name: str) -> bool:
    """Say whether a name is of a study in a tracking store.

    Raises:
        BadInputError: It is no text.
    """
    fix = "load_sweep(spec.name, root=spec.storage.path)"
    of_kind("a study is opened by its name", name, str, fix)
    return name.startswith(SCHEME)


def find_stored(name: str, tracking_uri: str | None = None) -> StoredRecords:
    """Return the records of a study by ``mlflow:EXPERIMENT/NAME`` or ``...NAME@STUDY_ID``.

    Args:
        name: An experiment may have slashes in its name, a study has none.
        tracking_uri: Of the store (``default_uri``).
    Raises:
        BadInputError: The name has another form, or the store cannot be read.
        StudyError: There is no such study, or several have the name.
    """
    experiment, slash, last = name.removeprefix(SCHEME).rpartition("/")
    study, _, study_id = last.partition("@")
    if not slash or not experiment or not study:
        raise BadInputError(
            f"{name!r} names no study in a tracking store",
            fix="mlflow:EXPERIMENT/NAME; `dpsweep list mlflow:` shows them",
        )
    fix = 'tracking_uri="sqlite:///mlflow.db", or the address of a server'
    of_kind("a store is opened by its address", tracking_uri, (str, type(None)), fix)
    reader = MLflowReader(tracking_uri)
    of_name = reader.studies(experiment, study)
    matching = [run for run in of_name if study_id in ("", run.study_id)]
    if not matching:
        of_experiment = [run.study for run in reader.studies(experiment)]
        names = ", ".join(sorted(set(of_experiment))[:5]) or "none"
        raise StudyError(
            f"no study {last!r} in experiment {experiment!r} of {reader.shown_uri}",
            because=f"studies there: {names}",
            fix=f"`dpsweep list mlflow:{reader.shown_uri}` shows all",
        )
    if len(matching) > 1:
        raise StudyError(
            f"{len(matching)} studies are named {study!r} in experiment {experiment!r} of "
            f"{reader.shown_uri}",
            because="newest first: " + ", ".join(names_of(matching)),
            fix="name one of them so",
        )
    return StoredRecords(reader, matching[0])


class StoredRecords:
    """The runs of one study.

    Args:
        reader: Of the store.
        run: The study's own run.
    Raises:
        BadInputError: The store cannot be read, or does not hand out the study's spec.
    """

    def __init__(self, reader: MLflowReader, run: StoredRun) -> None:
        self._reader, self.run, self.name = reader, run, run.study
        self._trials = reader.trials(run)
        self._models = reader.models(run)
        self._incomplete: set[int] = set()

    @property
    def source(self) -> str:
        """Words on where it was read, and what was not there."""
        place = (
            f"read from the tracking store {self._reader.shown_uri}, which whoever may write there "
            "can change: the authority is the study's ledger"
        )
        if not self._incomplete:
            return place
        trials = ", ".join(map(str, self.incomplete))
        return (
            f"{place}; trial.json of trial {trials} cannot be read there, so that the "
            "configuration may be incomplete"
        )

    @property
    def incomplete(self) -> Sequence[int]:
        """Numbers of trials that have ended and whose configurations may lack something."""
        return sorted(self._incomplete)

    @property
    def files(self) -> StudyFiles:
        """Raise: they are elsewhere."""
        raise StudyError(
            f"study {self.name!r} was read from a tracking store, and its files are not here",
            fix="ask on the machine that ran it",
        )

    @cached_property
    def _spec(self) -> SweepSpec:
        text = self._reader.text(self.run, "sweep.yaml")
        if text is None:
            raise StudyError(
                f"the spec of study {self.name!r} cannot be read from {self._reader.shown_uri}",
                because="the store does not hand out sweep.yaml, a file of the study's run",
                fix="let the tracking server serve artifacts, or read it where its files are",
            )
        try:
            return SweepSpec.from_yaml(text, text_name="sweep.yaml", is_stored=True)
        except SpecError as error:
            raise StudyError(
                f"the spec of study {self.name!r} in {self._reader.shown_uri} is damaged",
                because=str(error).split("\n")[0],
                fix="read the study where its files are",
            ) from error

    @property
    def _is_maximized(self) -> bool:
        return self._spec.search.mode == "max"

    def spec(self) -> SweepSpec:
        """Return the spec of the last launch, as the study logged it."""
        return self._spec

    def view(self) -> StudyView:
        """Return how the study stood when it was last heard of."""
        tags = self.run.tags
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            views = list(pool.map(self._trial, sorted(self._trials)))
        return StudyView(
            trials={view.trial: view for view in views},
            state=tags.get(_STATE, "running"),
            first_ms=self.run.start_ms,
            last_ms=self.run.start_ms,
            end_reason=tags.get("dpsweep.reason", ""),
            downgraded=tags.get("dp.downgraded", ""),
            model_uris={
                number: self._models[run.run_id]
                for number, run in self._trials.items()
                if run.run_id in self._models
            },
        )

    def _trial(self, number: int) -> TrialView:
        run = self._trials[number]
        objective = self._reader.last(run, OBJECTIVE)
        spent = self._reader.last(run, EPSILON)
        curves = Curves(self._reader, run)
        value, best_step = (objective[1], objective[0]) if objective else (None, 0)
        delivered = {name: v for name, v in run.metrics.items() if is_of_model(name)}
        if value is None:  # it has not ended: what it would deliver now
            value, best_step, delivered = curves.best(self._spec.search.metric, self._is_maximized)
        is_done = run.tags.get(_STATE) == TrialState.FINISHED.value
        num_steps = _edited(run, "plan.steps", run.plan.get("plan.steps", "0"), int)
        last = spent[0] if spent else curves.last_step
        return TrialView(
            trial=number,
            hparams=self._config(number, run),
            state=_edited(run, _STATE, run.tags.get(_STATE, "running"), _state_of),
            reason=run.tags.get("dpsweep.reason", ""),
            step=last or (num_steps if is_done else 0),
            num_steps=num_steps,
            epsilon=spent[1] if spent else None,
            sampling=run.tags.get("dp.sampling") or "none",
            records=run.tags.get("dp.records", "private"),
            value=value,
            best_step=best_step,
            delivered=delivered,
            reports=curves,  # type: ignore[arg-type]  # a sequence that is read when it is asked
        )

    def _config(self, number: int, run: StoredRun) -> dict[str, Any]:
        """Return a trial's configuration: from its task, which a trial that goes on has not yet.

        Raises:
            BadInputError: The store fails at the moment: no configuration would be the whole one.
        """
        try:
            task = self.task(number)
        except StudyError:
            state = run.tags.get(_STATE, "running")
            if _edited(run, _STATE, state, _state_of) is not TrialState.RUNNING:
                self._incomplete.add(number)
            constant = {
                name.removeprefix("search.space."): text
                for name, text in self.run.params.items()
                if name.startswith("search.space.")
            }
            space = {name: constant[name] for name in constant if not _is_varied(self._spec, name)}
            own = {n: t for n, t in run.params.items() if not n.startswith("plan.")}
            return {name: _value_of(text) for name, text in {**space, **own}.items()}
        return {"method": task.method, **shown_hyperparameters(task)}

    def claims(self, spec: SweepSpec, view: StudyView) -> Claims:
        """Return what the tags of the runs claim."""
        return TaggedClaims(self, spec, view)

    def is_running(self) -> bool:
        """Return True: a store does not hear of a process that was killed."""
        return True

    def run_ids(self) -> Mapping[int, str]:
        """Return the run of each trial."""
        return {number: run.run_id for number, run in self._trials.items()}

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of the study's own run."""
        return self.run.tags

    @property
    def composed_epsilon(self) -> float | None:
        """Epsilon of all trials composed, as the study logged it at its end; or None."""
        return self.run.metrics.get("dp/composed_epsilon")

    def tags_of(self, trial: int) -> Mapping[str, str]:
        """Return the tags of a trial's run."""
        return self._trials[trial].tags

    def planned_epsilon(self, trial: int) -> float:
        """Return the epsilon of a trial's whole plan, infinite where that is not known."""
        return bound_of(self._trials[trial].plan.get("plan.epsilon"))

    def model_uri(self, trial: int, logged: str | None) -> str | None:
        """Return the logged model, or None."""
        return logged

    def model_damage(self, trial: int) -> str:
        """Return nothing: the store answers for its models itself."""
        return ""

    def task(self, trial: int) -> TrialTask:
        """Return a trial as it was admitted, by the file that its run keeps.

        Raises:
            StudyError: The store does not have it, or it is damaged.
            BadInputError: The store fails at the moment.
        """
        text = self._reader.text(self._trials[trial], "trial.json")
        try:
            return TrialTask.from_json(text or "")
        except (ValueError, KeyError, TypeError) as error:
            raise StudyError(
                f"trial.json of trial {trial} of study {self.name!r} cannot be read from "
                f"{self._reader.shown_uri}",
                because="a trial's run keeps it once the trial has ended",
                fix="ask again then, or where the study's files are",
            ) from error

    def journal(self) -> Sequence[Mapping[str, Any]]:
        """Raise: no store has it."""
        raise StudyError(
            f"the journal of study {self.name!r} is with its files, and no tracking store has it",
            fix="ask on the machine that ran it; decisions.csv is a file of the study's run",
        )


def _edited(run: StoredRun, tag: str, text: str, read: Callable[[str], _T]) -> _T:
    """Return the value of a tag that whoever may write to the store can edit.

    Raises:
        StudyError: It is none that dpsweep writes.
    """
    try:
        return read(text)
    except ValueError as error:
        raise StudyError(
            f"run {run.run_id} of study {run.study!r} has the tag {tag}={text!r}",
            because="dpsweep writes no such value: somebody has edited it",
            fix="write back what it was; or move tracking.json out of the study's folder, and its "
            "command writes all tags anew",
        ) from error


def _state_of(word: str) -> TrialState:
    """Return the state of a trial as its own study has it.

    An interrupted one is running there, and one that the study's budget stopped is pruned.
    """
    words = {"interrupted": TrialState.RUNNING, OVER_BUDGET: TrialState.PRUNED}
    return words.get(word) or TrialState(word)


def _is_varied(spec: SweepSpec, name: str) -> bool:
    return isinstance(spec.space.get(name), Mapping)


def _value_of(text: str) -> Any:
    """Return the value that ``schema.as_text`` wrote.

    >>> _value_of("true"), _value_of("1e-05"), _value_of("[1, 2]"), _value_of("linear")
    (True, 1e-05, [1, 2], 'linear')
    """
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text
