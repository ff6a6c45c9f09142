"""Choosing the best trial: within caps, of one method, by its own score or a mean over runs.

Of equal scores the cheapest counts, of equal epsilons the first: neither looks at a record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, TypeVar, get_args

from dpsweep.foundation.errors import NothingWithinBudgetError
from dpsweep.foundation.validate import non_negative, of_kind, one_of
from dpsweep.foundation.words import counted
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.results.trial import TrialResult
from dpsweep.spec.episodes import EPISODE

#: By which score trials are compared: their own, or the mean of all runs of their configuration.
By = Literal["trial", "mean"]
#: Hyperparameters that repeat a configuration and are no part of it.
REPEATS = (EPISODE, "train.repeat")
#: How to go on after a selection without a winner.
DRAWS_AGAIN = "a new study, under another name, draws again; its cost adds to this one's"
_RUNS_AGAIN = "a new study, under another name, runs anew; its cost adds to this one's"
T = TypeVar("T")
_RULE = "of equal scores the cheapest counts, then the first"


@dataclass(frozen=True)
class Limits:
    """The trials that a choice may fall on; None: whatever they have.

    Attributes:
        max_epsilon: Largest epsilon of a trial alone (of a selection: of its winner).
        max_delta: Largest delta; all epsilons of a study have the same one.
        method: Training method.
    """

    max_epsilon: float | None = None
    max_delta: float | None = None
    method: str | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are none.

        Raises:
            BadInputError: One is no number, or negative; or the method is no text.
        """
        says = "a method is named by a text"
        of_kind(says, self.method, (str, type(None)), fix='method="dp_sgd"')
        for name, limit in (("max_epsilon", self.max_epsilon), ("max_delta", self.max_delta)):
            if limit is not None and limit != math.inf:
                non_negative(name, limit)

    def admit(self, trial: TrialResult) -> bool:
        """Say whether a trial is within the limits."""
        return (
            (self.max_epsilon is None or trial.epsilon <= self.max_epsilon)
            and (self.max_delta is None or trial.statement.delta <= self.max_delta)
            and (self.method is None or trial.config.get("method") == self.method)
        )

    def __str__(self) -> str:
        """Return the limits in words; empty without any."""
        parts = [
            *([] if self.method is None else [f"of method {self.method}"]),
            *([] if self.max_epsilon is None else [f"with epsilon <= {self.max_epsilon:.12g}"]),
            *([] if self.max_delta is None else [f"with delta <= {self.max_delta:.12g}"]),
        ]
        return " ".join(parts).replace(" with delta", " and delta") if parts else ""


@dataclass(frozen=True)
class Choice:
    """The best of some trials, and how it became that.

    Attributes:
        best: The trial.
        score: What was compared: its own value, or the mean over ``runs``.
        runs: Numbers of the finished runs of its configuration that the mean is over, ascending;
            of a choice by single trials its own number alone.
        ties: Trials with the same score that came second by the rule: each the one that would have
            been handed on in its place.
        is_mean: Whether the score is a mean over runs.
        stopped: Numbers of the runs of its configuration that a scheduler has stopped: the mean is
            over the others, which are the better ones.
    """

    best: TrialResult
    score: float
    runs: Sequence[int]
    ties: Sequence[int] = field(default_factory=tuple)
    is_mean: bool = False
    stopped: Sequence[int] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, Any]:
        """Return the record of the best trial, with its ties, and with the mean where there is one.

        It is the record that ``dpsweep best -f json`` prints (a stable interface).
        """
        record = {**self.best.to_dict(), "ties": list(self.ties)}
        if self.is_mean:
            record |= {"mean": self.score, "runs": list(self.runs), "stopped": list(self.stopped)}
        return record

    def notes(self) -> list[str]:
        """Return what is to be said of the choice, one line each; nothing where nothing is."""
        lines = []
        if self.is_mean and len(self.runs) == 1:
            lines.append(
                f"trial {self.best.trial_id} is the only run of its configuration: no mean, and a "
                "seed may have been lucky (train.repeat makes runs)"
            )
        elif self.is_mean:
            lines.append(
                f"{self.best.metric} {self.score:.4f} is the mean over "
                f"{counted(len(self.runs), 'run')} of this configuration (trial "
                f"{', '.join(map(str, self.runs))}); trial {self.best.trial_id} is handed on as "
                "the first of them: the best of its runs would be chosen for luck"
            )
        if self.is_mean and self.stopped:
            lines.append(
                f"trial {', '.join(map(str, self.stopped))} of this configuration stopped before "
                "the end: the mean is over the others, and too good where a scheduler stops what "
                "scores low (scheduler.type: fifo stops nothing)"
            )
        if self.ties:
            of = "has" if len(self.ties) == 1 else "have"
            shown = "the same mean" if self.is_mean else "the same score"
            lines.append(f"trial {', '.join(map(str, self.ties))} {of} {shown}: {_RULE}")
        return lines


def choose(
    trials: Sequence[TrialResult],
    *,
    is_maximized: bool,
    by: By = "trial",
    has_episodes: bool,
    stopped: Callable[[], Iterable[TrialResult]] = tuple,
) -> Choice | None:
    """Return the best of finished trials, None of none.

    By ``mean`` it is the first run of the configuration with the best mean over its runs, which are
    the trials that differ in nothing but ``REPEATS``; configurations with the most runs go before
    others, as a mean of few is mostly luck. Trials of episodes are compared so in any case, for the
    best of them would be the easiest episode.

    Args:
        trials: Each with a value.
        is_maximized: Whether a high value is good.
        by: What is compared.
        has_episodes: Whether trials ran on different episodes.
        stopped: Returns trials that a scheduler has stopped; asked for means alone.
    Raises:
        BadInputError: ``by`` is none of them.
    """
    one_of("by", by, get_args(By))
    sign = 1.0 if is_maximized else -1.0
    repeats = REPEATS if by == "mean" else (EPISODE,) if has_episodes else ()
    is_mean = bool(repeats)
    groups = _by_configuration(trials, repeats) if is_mean else [[trial] for trial in trials]
    if not groups:
        return None

    def score(group: Sequence[TrialResult]) -> tuple[int, float]:
        return len(group), sign * fmean(trial.value or 0.0 for trial in group)

    def rank(group: Sequence[TrialResult]) -> tuple[int, float, float, int]:
        dearest = max(trial.epsilon for trial in group)
        return *score(group), -dearest, -group[0].trial_id

    ranked = sorted(groups, key=rank, reverse=True)
    first = ranked[0]
    ties = [group[0].trial_id for group in ranked[1:] if score(group) == score(first)]
    own = _configuration(first[0], repeats)
    return Choice(
        best=first[0],
        score=sign * score(first)[1],
        runs=[trial.trial_id for trial in first],
        ties=sorted(ties),
        is_mean=is_mean,
        stopped=[
            trial.trial_id
            for trial in (stopped() if is_mean else ())
            if _configuration(trial, repeats) == own
        ],
    )


def unbeaten(
    items: Iterable[T], price: Callable[[T], tuple[float, float]], *, is_maximized: bool
) -> list[T]:
    """Return the items that no other one beats in score at the same or less epsilon.

    Cheapest first. Epsilons that are shown alike are the same.

    Args:
        items: Trials, or rows of a table.
        price: Returns the epsilon and the score of one.
        is_maximized: Whether a high score is good.
    """
    sign = 1.0 if is_maximized else -1.0

    def order(item: T) -> tuple[float, float]:
        epsilon, score = price(item)
        return float(shown_epsilon(epsilon)), -sign * score

    front: list[T] = []
    for item in sorted(items, key=order):  # of equal ones the first
        if not front or order(item)[1] < order(front[-1])[1]:
            front.append(item)
    return front


def _by_configuration(
    trials: Iterable[TrialResult], repeats: Sequence[str]
) -> list[list[TrialResult]]:
    """Return trials that differ in repetitions alone side by side, each by number."""
    groups: dict[str, list[TrialResult]] = {}
    for trial in sorted(trials, key=lambda trial: trial.trial_id):
        groups.setdefault(_configuration(trial, repeats), []).append(trial)
    return list(groups.values())


def _configuration(trial: TrialResult, repeats: Sequence[str]) -> str:
    rest = {name: value for name, value in trial.config.items() if name not in repeats}
    return json.dumps(rest, sort_keys=True)


def nothing_within(
    limits: Limits,
    finished: Sequence[TrialResult],
    *,
    study: str,
    noun: str,
    delta: float,
    unscored: str,
    failure: str,
    is_over: bool,
    ended_without: str = "",
) -> NothingWithinBudgetError:
    """Return the error of a choice that no trial is within the limits of.

    Args:
        limits: Of the choice.
        finished: The trials that could have been chosen.
        study: Name of the study.
        noun: Of such a trial.
        delta: Of all epsilons of the study.
        unscored: What else was trained, in words; or empty.
        failure: Why a trial failed, in words, to be said where none has finished; or empty.
        is_over: Whether the study has finished.
        ended_without: What a selection claims that has ended without a winner, in words; or empty.
    """
    if ended_without:
        message = f"study {study!r} has no finished trial"
        return NothingWithinBudgetError(message, because=ended_without, fix=DRAWS_AGAIN)
    of_method = [r for r in finished if limits.method in (None, r.config.get("method"))]
    because = f"{counted(len(of_method), noun)} {'has' if len(of_method) == 1 else 'have'} finished"
    if of_method:
        cheapest = min(of_method, key=lambda result: result.epsilon)
        because += (
            f"; the cheapest is trial {cheapest.trial_id}: "
            f"epsilon={shown_epsilon(cheapest.epsilon)} ({cheapest.statement.line()})"
        )
    elif failure:
        because += f"; {failure}"
    if unscored:
        because += f"; trained, but without a score to be ranked by: {unscored}"
    fix = "raise max_epsilon (`--max-epsilon`), or " if limits.max_epsilon is not None else ""
    if limits.max_delta is not None and limits.max_delta < delta:
        because = f"every epsilon of the study is at delta={shown_delta(delta)}; {because}"
        fix = f"allow max_delta (`--max-delta`) {shown_delta(delta)} or more, or "
    if not is_over:
        fix += "let the study go on: `dpsweep run SPEC`"
    elif failure and not of_method:  # neither more trials nor more epsilon would help
        fix += f"`dpsweep logs` has the reasons; mend them: {_RUNS_AGAIN}"
    else:
        fix += "`dpsweep logs` has the reasons; a new study may allow more trials or epsilon"
    bound = f" {limits}" if str(limits) else ""
    return NothingWithinBudgetError(
        f"study {study!r} has no finished trial{bound}", because=because, fix=fix
    )
