"""Optuna without Ray: suggests configurations of a study and is told how they did.

The Optuna study lives in SQLite, where Optuna's own tools can open it, or in memory for the
simulator.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import TrialState as OptunaState

from dpsweep.privacy.randomness import public_seed
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec import SweepSpec

Outcome = Literal["finished", "pruned", "failed"]


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of that name; ``grid`` needs none, since its points are enqueued."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            return optuna.samplers.TPESampler(seed=seed, multivariate=False)
        if name == "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed)
        if name == "cmaes":
            # Choices and conditional parameters are beyond CMA-ES and are drawn at random.
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        if name == "gp":
            return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


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


class Suggestions:
    """The Optuna study of a sweep, with its grid or first points enqueued.

    Each suggestion is seeded by (study seed, trial number): the random sampler draws the same
    trial n whatever the number of workers, and after a resume.

    With two objectives (score, epsilon) a pruned trial is complete as it stands: its score at its
    epsilon is a point like any other, and Optuna keeps no intermediate values for several.

    Args:
        spec: The study's spec.
        space: Its search space.
        path: SQLite file, or None to keep the study in memory.
    """

    def __init__(self, spec: SweepSpec, space: SearchSpace, *, path: Path | None) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        self._spec, self._space = spec, space
        score = "maximize" if spec.search.mode == "max" else "minimize"
        directions = {"dp/epsilon": "minimize", spec.search.metric: score}
        self.objectives = spec.search.objectives or (spec.search.metric,)
        self._is_single = len(self.objectives) == 1
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._study = optuna.create_study(
            storage=None if path is None else f"sqlite:///{path}",
            study_name=spec.name,
            directions=[directions[name] for name in self.objectives],
            load_if_exists=True,
        )
        self._live: dict[int, optuna.trial.Trial] = {}
        for run in range(len(self._study.get_trials(deepcopy=False)), spec.num_starts):
            # The runs of a start have the first numbers; Optuna is to learn nothing from them.
            self._study.add_trial(
                optuna.trial.create_trial(state=OptunaState.FAIL, user_attrs={"start": run})
            )
        if not self._study.user_attrs.get("enqueued"):
            for point in first_points(spec, space):
                self._study.enqueue_trial(point, skip_if_exists=True)
            self._study.set_user_attr("enqueued", True)

    def ask(self) -> tuple[int, dict[str, Any]] | None:
        """Return a new configuration and its number, or None if the grid is used up."""
        trials = self._study.get_trials(deepcopy=False)
        is_grid = self._spec.search.sampler == "grid"
        if is_grid and not any(trial.state is OptunaState.WAITING for trial in trials):
            return None
        seed = public_seed(self._spec.seed, len(trials), "search") % 2**32
        self._study.sampler = make_sampler(self._spec.search.sampler, seed)
        trial = self._study.ask()
        self._live[trial.number] = trial
        return trial.number, self._space.suggest(trial)

    def fail_orphans(self, kept: set[int]) -> None:
        """Tell trials that were asked for but never admitted, before the process died."""
        for frozen in self._study.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
            if frozen.number not in kept:
                self._study.tell(frozen.number, state=OptunaState.FAIL)

    def report(self, number: int, step: int, value: float) -> None:
        """Store an intermediate value; of a repeated step the first is kept."""
        if not self._is_single:
            return
        if number not in self._live:
            frozen = self._study.get_trials(deepcopy=False)[number]
            self._live[number] = optuna.trial.Trial(self._study, frozen._trial_id)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is already reported.*")
            self._live[number].report(value, step)

    def refuse(self, number: int, reason: str) -> None:
        """Tell that a configuration was never run, and why."""
        self._live[number].set_user_attr("infeasible", reason)
        self.tell(number, "failed")

    def tell(self, number: int, state: Outcome, values: Sequence[float] | None = None) -> None:
        """Tell how a trial ended.

        Args:
            number: Trial number, from ``ask``.
            state: How it ended.
            values: Its objectives, in the order of ``objectives``; None if it has no score.
        """
        self._live.pop(number, None)
        if state == "pruned" and self._is_single:
            self._study.tell(number, state=OptunaState.PRUNED, skip_if_finished=True)
        elif state == "failed" or values is None:
            self._study.tell(number, state=OptunaState.FAIL, skip_if_finished=True)
        else:
            self._study.tell(number, list(values), skip_if_finished=True)
