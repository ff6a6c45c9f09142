"""Optuna behind Ray Tune: suggests configurations, resumes admitted trials, tells truthful states.

Ray's own ``OptunaSearch`` keeps its study in a pickle and tells a trial that a scheduler stopped as
complete; here the Optuna study lives in SQLite, where Optuna's own tools can open it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState as OptunaState
from ray.tune.search import Searcher

from dpsweep.errors import BadInputError, StudyError, SweepError
from dpsweep.privacy.randomness import public_seed
from dpsweep.schedulers.ray_adapter import report_of
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec import SweepSpec
from dpsweep.study import TrialTask
from dpsweep.trial import TrialReport

Admit = Callable[[int, Mapping[str, Any]], TrialTask]
MAX_INFEASIBLE_IN_A_ROW = 200


def open_optuna_study(spec: SweepSpec, path: Path, space: SearchSpace) -> optuna.Study:
    """Open or create the Optuna study of a sweep, with its grid or first points enqueued."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    path.parent.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{path}",
        study_name=spec.name,
        direction="maximize" if spec.search.mode == "max" else "minimize",
        load_if_exists=True,
    )
    if not study.user_attrs.get("enqueued"):
        for point in first_points(spec, space):
            study.enqueue_trial(dict(point), skip_if_exists=True)
        study.set_user_attr("enqueued", True)
    return study


def first_points(spec: SweepSpec, space: SearchSpace) -> list[dict[str, Any]]:
    """Return what is evaluated before the sampler is asked; for a grid that is all of it.

    A grid has each of its points once: those that ``points_to_evaluate`` names come first.
    """
    wanted = [dict(point) for point in spec.search.points_to_evaluate]
    if spec.search.sampler != "grid":
        return wanted

    def rank(point: Mapping[str, Any]) -> int:
        for place, names in enumerate(wanted):
            if all(point.get(name) == value for name, value in names.items()):
                return place
        return len(wanted)

    return sorted(space.grid(), key=rank)


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of that name; ``grid`` needs none, since its points are enqueued."""
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed, multivariate=False)
    return optuna.samplers.RandomSampler(seed=seed)


class OptunaSearcher(Searcher):
    """Suggests admitted trials to Ray Tune.

    Trials that an earlier process left unfinished come first, then new ones. Each suggestion is
    seeded by (study seed, trial number): the random sampler draws the same trial n whatever the
    number of workers, and after a resume.

    Args:
        spec: The study's spec.
        study: From ``open_optuna_study``.
        space: The search space.
        admit: Plans and reserves a trial; raises BadInputError if it cannot run.
        on_infeasible: Called with the number, the values and the error of a refused trial.
        unfinished: Tasks to continue.
        num_admitted: Trials admitted so far, the unfinished ones included.
        max_concurrent: Trials that may run at once.
    """

    def __init__(
        self,
        spec: SweepSpec,
        study: optuna.Study,
        space: SearchSpace,
        *,
        admit: Admit,
        on_infeasible: Callable[[int, Mapping[str, Any], SweepError], None],
        unfinished: list[TrialTask],
        num_admitted: int,
        max_concurrent: int,
        directory_of: Callable[[int], Path],
    ) -> None:
        super().__init__(metric=spec.search.metric, mode=spec.search.mode)
        self._spec, self._study, self._space = spec, study, space
        self._admit, self._on_infeasible = admit, on_infeasible
        self._waiting = list(unfinished)
        self._num_admitted = num_admitted
        self._max_concurrent = max_concurrent
        self._directory_of = directory_of
        self._live: dict[str, optuna.trial.Trial] = {}
        self.is_exhausted = False
        self.failure: SweepError | None = None
        self._fail_orphans({task.trial for task in unfinished})

    def _fail_orphans(self, resumed: set[int]) -> None:
        """Tell trials that were asked for but never admitted, before the process died."""
        for frozen in self._study.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
            if frozen.number not in resumed:
                self._study.tell(frozen.number, state=OptunaState.FAIL)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial's config, None to wait, or FINISHED."""
        if len(self._live) >= self._max_concurrent:
            return None
        if self._waiting:
            task = self._waiting.pop(0)
            frozen = self._study.get_trials(deepcopy=False)[task.trial]
            trial = optuna.trial.Trial(self._study, frozen._trial_id)
        else:
            try:
                admitted = self._next_admitted()
            except SweepError as error:  # Tune would wrap it; the core loop raises it as it is
                self.failure, admitted = error, None
            if admitted is None:
                self.is_exhausted = True
                return str(Searcher.FINISHED)
            trial, task = admitted
            self._num_admitted += 1
        self._live[trial_id] = trial
        return {"trial": task.trial, "directory": str(self._directory_of(task.trial))}

    def _next_admitted(self) -> tuple[optuna.trial.Trial, TrialTask] | None:
        for _ in range(MAX_INFEASIBLE_IN_A_ROW):
            if self._num_admitted >= self._spec.search.num_trials or self._grid_is_empty():
                return None
            number = len(self._study.get_trials(deepcopy=False))
            seed = public_seed(self._spec.seed, number, "search") % 2**32
            self._study.sampler = make_sampler(self._spec.search.sampler, seed)
            trial = self._study.ask()
            values = self._space.suggest(trial)
            try:
                return trial, self._admit(trial.number, values)
            except StudyError:
                self._study.tell(trial, state=OptunaState.FAIL)
                raise
            except BadInputError as error:
                trial.set_user_attr("infeasible", error.message)
                self._study.tell(trial, state=OptunaState.FAIL)
                self._on_infeasible(trial.number, values, error)
        raise SweepError(
            f"{MAX_INFEASIBLE_IN_A_ROW} suggestions in a row were infeasible",
            fix="`dpsweep plan` shows the infeasible share of the space; narrow it, or raise "
            "privacy.trial_epsilon",
        )

    def _grid_is_empty(self) -> bool:
        if self._spec.search.sampler != "grid":
            return False
        return not self._study.get_trials(deepcopy=False, states=(OptunaState.WAITING,))

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Store an intermediate value."""
        if trial_id in self._live:
            self._report(self._live[trial_id], report_of(result))

    def _report(self, trial: optuna.trial.Trial, report: TrialReport) -> None:
        """Store a report's value; of a repeated step the first is kept."""
        value = report.metrics.get(self._spec.search.metric)
        if value is not None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*is already reported.*")
                trial.report(value, report.step)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna how a trial ended: COMPLETE with its score, PRUNED, or FAIL."""
        trial = self._live.pop(trial_id, None)
        if trial is None:
            return
        if error or not result:
            self._study.tell(trial, state=OptunaState.FAIL)
            return
        report = report_of(result)
        self._report(trial, report)  # Tune does not hand the last one to on_trial_result
        if report.failure or report.value is None:
            self._study.tell(trial, state=OptunaState.FAIL)
        elif report.done:
            self._study.tell(trial, report.value)
        else:
            self._study.tell(trial, state=OptunaState.PRUNED)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the state is in Optuna's storage and the study's journal."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore (see ``save``)."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what lives in this process; Tune pickles a searcher it never reads back."""
        return {"metric": self._metric, "mode": self._mode}
