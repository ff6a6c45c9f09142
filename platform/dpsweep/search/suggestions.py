"""Optuna without Ray: suggests configurations of a study and is told how they did.

The Optuna study lives in SQLite, where Optuna's own tools can open it, or in memory for the
simulator.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import optuna
from optuna.distributions import check_distribution_compatibility
from optuna.study import StudyDirection
from optuna.trial import FixedTrial
from optuna.trial import TrialState as OptunaState

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.servers import brief
from dpsweep.privacy.randomness import public_seed
from dpsweep.search.built_in import make_sampler
from dpsweep.search.known import KnownTrial, Outcome
from dpsweep.search.optuna_file import (
    EPSILON,
    MEANING,
    STORAGE_ERRORS,
    OptunaPlace,
    difference,
    place_of,
    unusable,
)
from dpsweep.search.points import first_points
from dpsweep.search.write_through import WriteThroughStorage
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.search_spaces.draws import suggest_value
from dpsweep.spec.facts import terms
from dpsweep.spec.study import SweepSpec

#: What Optuna raises on rows that no Optuna has written.
_OF_DAMAGE = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)


class Suggestions:
    """The Optuna study of a sweep, with its grid or first points enqueued.

    Each suggestion is seeded by (study seed, trial number): the random sampler draws the same
    trial n whatever the number of workers, and after a resume.

    With two objectives (score, epsilon) a pruned trial is complete as it stands: its score at its
    epsilon is a point like any other, and Optuna keeps no intermediate values for several.

    What is stored follows the journal. A SQLite file that is damaged, or does not say the same, is
    set aside and written anew; so is a study in a database, which is deleted.

    Args:
        spec: The study's spec.
        space: Its search space.
        path: SQLite file, name in a database, or None to keep the study in memory.
        known: What the journal says of the trials so far, by number.
        meaning: Says what each epsilon depends on and covers now; default: the terms of its spec.
        on_message: Hears of a file that was written anew, and of another program's trials.
    Raises:
        SweepError: Another program holds the file, or it cannot be written.
    """

    def __init__(
        self,
        spec: SweepSpec,
        space: SearchSpace,
        *,
        path: LogPath | None,
        known: Mapping[int, KnownTrial] | None = None,
        meaning: Callable[[], str] | None = None,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        self._spec, self._space = spec, space
        self._place: OptunaPlace | None = None if path is None else place_of(path)
        self._storage: WriteThroughStorage | None = None
        self._on_message = on_message
        self._meaning = meaning or (lambda: terms(spec))
        self.objectives = spec.search.compared_by
        self._is_single = len(self.objectives) == 1
        self._live: dict[int, optuna.trial.Trial] = {}
        self._handed_out = set(known or ())
        self._nobodys, self._num_seen = set[int](), 0  # trials of Optuna's that nobody has
        trials = {number: self._frozen(trial) for number, trial in (known or {}).items()}
        with self._usable():
            self._study = self._open(trials)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Tell errors of the storage in a line; nothing depends on it, so nothing is lost."""
        try:
            yield
        except STORAGE_ERRORS as error:
            raise unusable(self._place, error) from error

    def _open(self, known: Mapping[int, optuna.trial.FrozenTrial]) -> optuna.Study:
        """Open the study; write it anew where it is not what the journal says."""
        place = self._place
        if place is None:
            return self._fill(self._create(), known)
        problem = place.problem()
        if not problem and place.exists():
            try:
                study = self._create()
                problem = difference(study, known)
                if not problem and not study.user_attrs.get("enqueued"):
                    problem = "was left unfinished"  # by a process that was killed as it began
                problem = problem or self._misfit(study)
                if not problem:
                    return self._catch_up(study, known)
            except (*STORAGE_ERRORS, *_OF_DAMAGE) as error:
                if "locked" in str(error):
                    raise
                problem = f"is damaged: {brief(error)}"
        is_gone = not place.exists()
        place.make_way()
        if known:
            state = "is missing" if is_gone else f"{problem}; it is set aside"
            self._on_message(f"{place} {state}; Optuna's study is written anew from the journal")
        return self._fill(self._create(), known)

    def _misfit(self, study: optuna.Study) -> str:
        """Say that another program has drawn a parameter in another way, or nothing.

        Optuna takes no other distribution of a parameter in a study from then on.
        """
        parameters = [p for p in self._space.parameters if p.kind != "fixed"]
        ours = FixedTrial({p.key: p.low if p.is_range else p.choices[0] for p in parameters})
        for parameter in parameters:
            suggest_value(parameter, ours)
        for trial in study.get_trials(deepcopy=False):
            for name in trial.distributions.keys() & ours.distributions.keys():
                try:
                    check_distribution_compatibility(
                        trial.distributions[name], ours.distributions[name]
                    )
                except ValueError:
                    return f"has {name} of another space, in trial {trial.number}"
        return ""

    def _create(self) -> optuna.Study:
        low, high = StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE
        score = high if self._spec.search.mode == "max" else low
        of = {EPSILON: low, self._spec.search.metric: score}
        directions, name = [of[each] for each in self.objectives], self._spec.name
        if self._place is not None:
            self._storage = WriteThroughStorage(self._place.storage(), name, directions)
        return optuna.create_study(
            storage=self._storage, study_name=name, directions=directions, load_if_exists=True
        )

    def _fill(
        self, study: optuna.Study, known: Mapping[int, optuna.trial.FrozenTrial]
    ) -> optuna.Study:
        """Give a new study its first trials: what is known, and points that wait, by number."""
        first, make = self._spec.num_starts, optuna.trial.create_trial
        waiting = self._points
        for number in range(max([first + len(waiting), *(number + 1 for number in known)])):
            if number < first:
                # The runs of a start have the first numbers; Optuna is to learn nothing from them.
                trial = make(state=OptunaState.FAIL, user_attrs={"start": number})
            elif number in known:
                trial = known[number]
            elif number - first < len(waiting):
                trial = waiting[number - first]
            else:
                trial = make(
                    state=OptunaState.FAIL, user_attrs={"infeasible": "was never admitted"}
                )
            study.add_trial(trial)
        study.set_user_attr("enqueued", True)
        return study

    @cached_property
    def _points(self) -> list[optuna.trial.FrozenTrial]:
        """Return what is evaluated before the sampler is asked, each point once."""
        points = first_points(self._spec, self._space)
        queue = optuna.create_study(directions=["minimize"] * len(self.objectives))
        for point in points:
            queue.enqueue_trial(self._space.named(point), skip_if_exists=True)
        return queue.get_trials(deepcopy=False)

    def _frozen(self, known: KnownTrial) -> optuna.trial.FrozenTrial:
        """Return a known trial as Optuna would have it."""
        make = optuna.trial.create_trial
        config = {p.key: known.config.get(p.name) for p in self._space.parameters}
        fixed = FixedTrial(config)
        facts: dict[str, Any] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self._space.suggest(fixed)
            facts = {"params": fixed.params, "distributions": fixed.distributions}
            make(state=OptunaState.FAIL, **facts)
        except (ValueError, UserWarning):  # the method has changed a value on admission
            facts = {}
        if self._is_single and known.scores:
            facts["intermediate_values"] = dict(known.scores)
        if known.reason:
            facts["user_attrs"] = {"infeasible": known.reason}
        elif known.outcome is not None:
            facts["user_attrs"] = self._epsilon_attrs(known.epsilon)
        if known.outcome is None:
            return make(state=OptunaState.RUNNING, **facts)
        if known.outcome == "pruned" and self._is_single:
            last = [known.scores[max(known.scores)]] if known.scores else None
            return make(state=OptunaState.PRUNED, values=last, **facts)
        if known.outcome == "failed" or known.values is None:
            return make(state=OptunaState.FAIL, **facts)
        return make(state=OptunaState.COMPLETE, values=known.values, **facts)

    def _catch_up(
        self, study: optuna.Study, known: Mapping[int, optuna.trial.FrozenTrial]
    ) -> optuna.Study:
        """Tell ends that the journal has and Optuna has not: the process died between the two."""
        trials = study.get_trials(deepcopy=False)
        for number, trial in known.items():
            if trial.state.is_finished() and not trials[number].state.is_finished():
                values = trial.values if trial.state is OptunaState.COMPLETE else None
                _attach(_reopened(study, trials[number]), trial.user_attrs)
                study.tell(number, values, state=trial.state)
        return study

    def _epsilon_attrs(self, epsilon: float | None) -> dict[str, Any]:
        """Return the epsilon of a trial for Optuna's tools, with all that it depends on."""
        if epsilon is None or not math.isfinite(epsilon):
            return {}
        return {EPSILON: epsilon, MEANING: self._meaning()}

    def ask(self) -> tuple[int, dict[str, Any]] | None:
        """Return a new configuration and its number, or None if the grid is used up.

        What was asked for and never admitted comes first, with all that was drawn for it: a process
        died, or a database's answer was lost. Else a point of a grid would never be tried.
        """
        with self._usable():
            while (trial := self._next()) is not None:
                config = self._config_of(trial)
                if config is not None:
                    if self._storage is not None:
                        self._storage.write()
                    return trial.number, config
        return None

    def _next(self) -> optuna.trial.Trial | None:
        """Return the trial whose turn it is, or None if the grid is used up."""
        left, trials = self._left()
        # As a trial was seeded first: points that wait have numbers before any is asked for.
        number = max(left[0], self._num_points) if left else len(trials)
        seed = public_seed(self._spec.seed, number, "search") % 2**32
        self._study.sampler = make_sampler(self._spec.search.sampler, seed)
        trial = None
        if not left:
            is_grid = self._spec.search.sampler == "grid"
            if is_grid and not any(t.state is OptunaState.WAITING for t in trials):
                return None
            trial = self._study.ask()
            left, trials = self._left()
        if trial is None or trial.number != left[0]:
            trial = _reopened(self._study, trials[left[0]])
        self._handed_out.add(trial.number)
        self._live[trial.number] = trial
        return trial

    def _config_of(self, trial: optuna.trial.Trial) -> dict[str, Any] | None:
        """Return the configuration of a trial, drawn where it is not fixed.

        None, and the trial has failed, where another program has asked for one that is not of the
        space, with Optuna's own tools.
        """
        frozen = self._study.get_trials(deepcopy=False)[trial.number]
        asked = {**frozen.params, **frozen.system_attrs.get("fixed_params", {})}
        problems = [
            f"{parameter.name} {problem}"
            for parameter in self._space.parameters
            if parameter.key in asked and (problem := parameter.problem(asked[parameter.key]))
        ]
        if not problems or trial.number < self._num_points:  # a spec's points are checked
            return self._space.suggest(trial)
        self.refuse(trial.number, "is not of the space")
        self._on_message(
            f"trial {trial.number} of {self._place}, which another program has asked for, is not "
            f"of the space and is not run: {'; '.join(problems)}"
        )
        return None

    @property
    def _num_points(self) -> int:
        """Number of trials whose configurations the spec gives: they have the first numbers."""
        return self._spec.num_starts + len(self._points)

    def keep(self) -> None:
        """Let what was told reach the disk; before that a power cut may damage the file."""
        if self._place is not None:
            self._place.keep()

    def _left(self) -> tuple[list[int], list[optuna.trial.FrozenTrial]]:
        """Return the trials that run in Optuna's study and that nobody has, and all trials."""
        trials = self._study.get_trials(deepcopy=False)
        self._nobodys |= {*range(self._num_seen, len(trials))}
        self._num_seen = len(trials)
        # What has ended or was handed out once is nothing to look at again.
        self._nobodys = {
            number
            for number in self._nobodys
            if number not in self._handed_out and not trials[number].state.is_finished()
        }
        running = [n for n in self._nobodys if trials[n].state is OptunaState.RUNNING]
        return sorted(running), trials

    def report(self, number: int, step: int, value: float) -> None:
        """Store an intermediate value; of a repeated step the first is kept."""
        if not self._is_single:
            return
        with self._usable(), warnings.catch_warnings():
            if number not in self._live:
                frozen = self._study.get_trials(deepcopy=False)[number]
                self._live[number] = _reopened(self._study, frozen)
            warnings.filterwarnings("ignore", message=".*is already reported.*")
            self._live[number].report(value, step)

    def refuse(self, number: int, reason: str) -> None:
        """Tell that a configuration was never run, and why."""
        self._live[number].set_user_attr("infeasible", reason)
        self.tell(number, "failed")

    def tell(
        self,
        number: int,
        state: Outcome,
        values: Sequence[float] | None = None,
        *,
        epsilon: float | None = None,
    ) -> None:
        """Tell how a trial ended.

        Args:
            number: Trial number, from ``ask``.
            state: How it ended.
            values: Its objectives, in the order of ``objectives``; None if it has no score.
            epsilon: Of everything charged to it, if that is finite.
        """
        live, attrs = self._live.pop(number, None), self._epsilon_attrs(epsilon)
        with self._usable():
            if live is None and attrs:
                frozen = self._study.get_trials(deepcopy=False)[number]
                live = None if frozen.state.is_finished() else _reopened(self._study, frozen)
            if live is not None:
                _attach(live, attrs)
            if state == "pruned" and self._is_single:
                self._study.tell(number, state=OptunaState.PRUNED, skip_if_finished=True)
            elif state == "failed" or values is None:
                self._study.tell(number, state=OptunaState.FAIL, skip_if_finished=True)
            else:
                self._study.tell(number, list(values), skip_if_finished=True)


def _reopened(study: optuna.Study, frozen: optuna.trial.FrozenTrial) -> optuna.trial.Trial:
    """Return a trial that an earlier launch asked for, to change it until it ends."""
    return optuna.trial.Trial(study, frozen._trial_id)


def _attach(trial: optuna.trial.Trial, attrs: Mapping[str, Any]) -> None:
    for name, value in attrs.items():
        trial.set_user_attr(name, value)
