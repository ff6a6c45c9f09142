"""Optuna's samplers as they are used here, and one of them for long histories."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from dpsweep.foundation.errors import BadInputError
from dpsweep.search.samplers import SAMPLERS

#: TPE's model of good trials is made of a tenth of all, and of so many at most (Optuna's
#: ``default_gamma``).
_GOOD = 25
#: So many ended trials TPE looks at, at most: from here on its model of good ones does not grow.
SHOWN = 10 * _GOOD


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of that name; ``grid`` needs none, since its points are enqueued.

    Raises:
        BadInputError: What an installed package adds under that name makes no sampler.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = SAMPLERS[name](seed)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise BadInputError(
            f"sampler {name!r} makes a {type(sampler).__name__}, not a sampler of Optuna's",
            fix="ask the authors of its package",
        )
    return sampler


def random_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return what draws every configuration from the space's own distributions."""
    return optuna.samplers.RandomSampler(seed=seed)


def tpe_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return the tree-structured Parzen estimator, one parameter at a time."""
    return LongTPE(seed)


def nsga2_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return the genetic algorithm for two objectives."""
    return optuna.samplers.NSGAIISampler(seed=seed)


def cmaes_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return CMA-ES; choices and conditional parameters are beyond it and are drawn at random."""
    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def gp_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return the Gaussian process; conditional parameters are beyond it and drawn at random."""
    return optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)


class LongTPE(optuna.samplers.TPESampler):
    """TPE whose time for a suggestion does not grow with the number of trials for ever.

    Of more than ``SHOWN`` ended trials it is shown so many: the 25 best, which are all that its
    model of good trials is made of, and of the others every so-manieth, whose density stands for
    that of all. With several objectives it is shown all.

    Args:
        seed: Of its draws.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, multivariate=False)
        self._shown: optuna.Study | None = None  # of one trial: a sampler is made for each

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: optuna.distributions.BaseDistribution,
    ) -> Any:
        """Draw one parameter."""
        if self._shown is None:
            # Numbers begin at 0: of an early trial no storage need be asked for all of them.
            self._shown = study if trial.number <= SHOWN else self._thinned(study)
        return super().sample_independent(self._shown, trial, param_name, param_distribution)

    def _thinned(self, study: optuna.Study) -> optuna.Study:
        ended = (TrialState.COMPLETE, TrialState.PRUNED)
        trials = study.get_trials(deepcopy=False, states=ended)
        if len(trials) <= SHOWN or len(study.directions) > 1:
            return study
        shown = _Excerpt(thinned(trials, study.direction))
        return optuna.create_study(storage=shown, direction=study.direction)


class _Excerpt(optuna.storages.InMemoryStorage):
    """Some trials of another study, to be read; they are not copied, which takes longer than TPE.

    Args:
        trials: Of the one study that will be in it, whatever their numbers.
    """

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        super().__init__()
        self._trials = trials

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials that have one of these states."""
        return [trial for trial in self._trials if states is None or trial.state in states]


def thinned(
    trials: Sequence[FrozenTrial], direction: optuna.study.StudyDirection
) -> list[FrozenTrial]:
    """Return the best complete trials and an even share of the others, ``SHOWN`` in all, in order.

    Args:
        trials: Ended ones, more than ``SHOWN``.
        direction: Of the objective.
    """
    sign = -1.0 if direction is optuna.study.StudyDirection.MAXIMIZE else 1.0
    complete = [place for place, t in enumerate(trials) if t.state is TrialState.COMPLETE]
    best = heapq.nsmallest(_GOOD, complete, lambda place: sign * float(trials[place].value or 0.0))
    is_other = np.ones(len(trials), dtype=bool)
    is_other[best] = False
    others = np.flatnonzero(is_other)
    share = np.linspace(0, len(others) - 1, SHOWN - len(best)).round().astype(int)
    return [trials[place] for place in sorted({*best, *others[share].tolist()})]
