"""TPE whose suggestion costs about the same after a thousand trials as after a hundred."""

from __future__ import annotations

from bisect import insort
from collections.abc import Container, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

#: TPE's model of good trials is made of a tenth of all, and of so many at most (Optuna's
#: ``default_gamma``).
_GOOD = 25
#: So many ended trials TPE looks at, at most: from here on its model of good ones does not grow.
SHOWN = 10 * _GOOD


class LongTPE(optuna.samplers.TPESampler):
    """TPE whose time for a suggestion does not grow with the number of trials for ever.

    Of more than ``SHOWN`` ended trials it is shown so many: the 25 best, which are all that its
    model of good trials is made of, and of the others every so-manieth, whose density stands for
    that of all. With several objectives it is shown all.

    What is read of an ended trial is read once for a study, not once for each parameter of each
    suggestion. A trial that has ended must stay as it is.

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
            self._shown = study if len(study.directions) > 1 else _excerpt(study)
        return super().sample_independent(self._shown, trial, param_name, param_distribution)


def _excerpt(study: optuna.Study) -> optuna.Study:
    """Return a study to be read, of what TPE is shown of another one."""
    history = _HISTORIES.setdefault(study, History(study.direction))
    shown = _Excerpt(history.shown(study.get_trials(deepcopy=False)))
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


class History:
    """The trials of one study with one objective, from one suggestion to the next.

    Args:
        direction: Of the objective.
    """

    def __init__(self, direction: optuna.study.StudyDirection) -> None:
        self._sign = -1.0 if direction is optuna.study.StudyDirection.MAXIMIZE else 1.0
        self._ended: dict[int, FrozenTrial] = {}  # by number
        self._order: list[int] = []  # their numbers, ascending
        self._complete: list[tuple[float, int]] = []  # value and number, the best first
        self._open: list[int] = []
        self._num_seen = 0

    def shown(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return what TPE is shown of all trials of the study, in the order of their numbers.

        Of many: the best complete trials and an even share of the others, ``SHOWN`` in all. Else
        all that have ended, and those that run.

        Args:
            trials: All that there are, by number.
        """
        self._learn(trials)
        if len(self._order) > SHOWN:
            return [self._ended[number] for number in self._excerpt()]
        running = [trials[n] for n in self._open if trials[n].state is TrialState.RUNNING]
        ended = [self._ended[number] for number in self._order]
        return sorted([*ended, *running], key=lambda trial: trial.number)

    def _learn(self, trials: Sequence[FrozenTrial]) -> None:
        """Look at the trials that had not ended so far."""
        waiting = [*self._open, *range(self._num_seen, len(trials))]
        self._open, self._num_seen = [], len(trials)
        for number in waiting:
            trial = trials[number]
            if not trial.state.is_finished():
                self._open.append(number)
            elif trial.state is not TrialState.FAIL:
                self._ended[number] = _Ended(trial)
                insort(self._order, number)
                if trial.state is TrialState.COMPLETE:
                    insort(self._complete, (self._sign * float(trial.value or 0.0), number))

    def _excerpt(self) -> list[int]:
        """Return the numbers of the best and of an even share of the others, ascending."""
        best = [number for _, number in self._complete[:_GOOD]]
        others = np.setdiff1d(self._order, best, assume_unique=True)
        share = np.linspace(0, len(others) - 1, SHOWN - len(best)).round().astype(int)
        return sorted({*best, *others[share].tolist()})


class _Ended(FrozenTrial):
    """A trial that has ended, with what TPE asks of it again and again as plain attributes.

    Optuna computes them each time: its constraints from all attributes of the system, its value
    from its values.

    Args:
        trial: The trial.
    """

    def __init__(self, trial: FrozenTrial) -> None:
        self.__dict__.update(vars(trial))

    @cached_property
    def number(self) -> int:
        """Number of the trial."""
        return super().number

    @cached_property
    def value(self) -> float | None:
        """Its objective."""
        return super().value

    @cached_property
    def params(self) -> dict[str, Any]:
        """Its parameters."""
        return super().params

    @cached_property
    def constraints(self) -> dict[str, float]:
        """Its constraints; ours have none."""
        return super().constraints


#: What is known of each study, for as long as it lives.
_HISTORIES = WeakKeyDictionary[optuna.Study, History]()
