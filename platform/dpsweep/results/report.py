"""Comparing studies: the best configuration of each cell, its mean over repetitions, differences.

A study is cut into cells by some hyperparameters (sizes, budgets). In each cell the configuration
with the best mean of the study's own metric over the repetitions is chosen, and what the models
that its trials deliver scored is reported: the test accuracy where all of them have one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.results.study import SweepResult
from dpsweep.results.tables.spread import costs_of, half_width, spread_of
from dpsweep.results.trial import TrialResult
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.cluster import ResourcesSpec
from dpsweep.spec.episodes import EPISODE
from dpsweep.study.trial import TrialState

TEST = "test/accuracy"

Key = tuple[Any, ...]


@dataclass(frozen=True)
class ReportedStudy:
    """A study, as far as a report needs it.

    Attributes:
        name: Of the study.
        trials: Its trials; only finished ones with a value are looked at.
        space: What its space names: parameter to the values it can have (None: a range).
        is_maximized: True when a high value of its metric is good.
        drawn_by: What decides which records a repetition has: seed, data and episodes of its spec.
        starts: Numbers of the trials that are runs of the start, and no configurations.
        notes: What must be said beside its test scores, one line each.
        resources: What its trials occupied.
    """

    name: str
    trials: Sequence[TrialResult]
    space: Mapping[str, Sequence[Any] | None]
    is_maximized: bool = True
    drawn_by: Mapping[str, Any] = field(default_factory=dict)
    starts: range = range(0)
    notes: Sequence[str] = ()
    resources: ResourcesSpec = field(default_factory=ResourcesSpec)

    @classmethod
    def of(cls, result: SweepResult) -> ReportedStudy:
        """Return a study as it stands; where one run is delivered, that one alone."""
        trials = result.results
        if result.spec.has_final_run:
            trials = [t for t in trials if result.claims.is_final(result.view.trials[t.trial_id])]
        parsed = SearchSpace.from_spec(result.spec.space)
        ranges = {p.name for p in parsed.parameters if p.is_range}
        values = parsed.values()
        space = {name: None if name in ranges else allowed for name, allowed in values.items()}
        tree = result.spec.to_dict()
        drawn_by = {f"data.{key}": value for key, value in tree["data"].items()}
        drawn_by |= {key: tree.get(key) for key in ("seed", "episodes")}
        starts, resources = range(result.spec.num_starts), result.spec.resources
        notes, maximize = result.score_notes(), result.is_maximized
        return cls(result.name, trials, space, maximize, drawn_by, starts, notes, resources)

    @property
    def varied(self) -> list[str]:
        """Names of the parameters that have more than one value."""
        return [name for name, values in self.space.items() if values is None or len(values) > 1]

    @property
    def finished(self) -> list[TrialResult]:
        """Trials that ran to their end and have a value, by number."""
        finished = [
            trial
            for trial in self.trials
            if trial.state is TrialState.FINISHED and trial.value is not None
        ]
        return sorted(finished, key=lambda trial: trial.trial_id)


@dataclass(frozen=True)
class Cell:
    """The chosen configuration of one study at one combination of the ``by`` values.

    Attributes:
        study: The study.
        by: Values of the ``by`` parameters.
        num_configurations: Configurations that finished at least one repetition.
        num_expected: Repetitions that a complete configuration has.
        chosen: Values of the other varied hyperparameters.
        repetitions: Trial of each repetition, by the values of the ``over`` parameters.
        configurations: Repetitions of every configuration of the cell, the chosen one included.
    """

    study: ReportedStudy
    by: Mapping[str, Any]
    num_configurations: int
    num_expected: int
    chosen: Mapping[str, Any]
    repetitions: Mapping[Key, TrialResult] = field(repr=False)
    configurations: Sequence[Mapping[Key, TrialResult]] = field(default=(), repr=False)

    def spread(self) -> dict[str, float]:
        """Return the spread of all its configurations, each at the mean of its repetitions.

        The score is the test accuracy where all have one, else the metric.
        """
        runs = [list(each.values()) for each in self.configurations]
        has_test = all(TEST in trial.metrics for trials in runs for trial in trials)
        score = TEST if has_test else _metric(self)
        means = [
            statistics.fmean(t.metrics[TEST] if has_test else t.value or 0.0 for t in trials)
            for trials in runs
        ]
        return spread_of(means, score) if means else {}

    def scores(self, score: str) -> dict[Key, float]:
        """Return a score of every repetition that has it."""
        scores = {}
        for key, trial in self.repetitions.items():
            value = trial.value if score == trial.metric else trial.metrics.get(score)
            if value is not None:
                scores[key] = value
        return scores

    def mean(self, score: str) -> float:
        """Return the mean of a score over the repetitions."""
        return statistics.fmean(self.scores(score).values())

    @property
    def costliest(self) -> PrivacyStatement:
        """The largest epsilon among the repetitions, with its terms."""
        return max((t.statement for t in self.repetitions.values()), key=lambda s: s.epsilon)


def build_report(
    studies: Sequence[ReportedStudy],
    *,
    by: Sequence[str] = (),
    over: Sequence[str] = (),
    lower: ReportedStudy | None = None,
    upper: ReportedStudy | None = None,
    is_paired: bool = False,
    has_costs: bool = False,
    has_spread: bool = False,
) -> list[dict[str, Any]]:
    """Return one record per study and per combination of the ``by`` values.

    A configuration is everything that its study varies besides ``by`` and ``over``; among those
    with the most repetitions, the one with the best mean value of the study's metric is chosen. Of
    several trials with equal values the first counts. ``test/accuracy`` is that of the model that a
    trial delivers, whose value stands beside it: of its best checkpoint.

    Beside each mean stand the standard deviation over the repetitions and ``95%``, the half width
    of Student's interval of the mean. The interval takes repetitions for independent; of the metric
    that the configuration was chosen by it is optimistic. The number of the episode, of studies
    that have some, is always in ``over`` unless it is in ``by``; their interval is about drawing
    episodes from the study's records, not about other records.

    The performance boost is ``(err_public - err_mixed) / (err_public - err_nonprivate)`` (Golatkar
    et al. 2022, https://arxiv.org/abs/2203.11481, section 4.1), with ``lower`` for public and
    ``upper`` for non-private. Cells of two studies belong together where their ``by`` values are
    equal; a parameter that the other study's space does not name has no meaning for it, and is left
    out of account.

    Guarantees:
        Every epsilon comes with its terms. It is that of the costliest repetition alone; neither
        the choice of the configuration nor the other trials are covered by it.

    Args:
        studies: What is compared; the first is what ``is_paired`` compares with.
        by: Hyperparameters that cut a study into cells, or ``method``.
        over: Hyperparameters whose values are repetitions of one configuration.
        lower: Study of the public records alone.
        upper: Study without privacy.
        is_paired: Add differences to the first study, repetition by repetition.
        has_costs: Mean seconds of a repetition, its largest peak memory in MiB, and the public data
            it rests on, in the place of the configuration. The first two are None where nothing
            tells them, see ``TrialResult``.
        has_spread: Add least, median, largest and median deviation over configurations.
    Raises:
        BadInputError: A parameter that no study has, one of ``lower`` and ``upper`` without the
            other, or studies that have no score in common where they are compared.
    """
    if (lower is None) != (upper is None):
        raise BadInputError(
            "the performance boost needs both bounds", fix="give --lower and --upper"
        )
    if is_paired and len(studies) < 2:
        raise BadInputError(
            "--paired compares studies, and there is one", fix="name a second study"
        )
    for study in studies[1:] if is_paired else ():
        _check_pairs(studies[0], study)
    others = [study for study in (lower, upper) if study is not None]
    has_episodes = any(EPISODE in study.space for study in [*studies, *others])
    if has_episodes and EPISODE not in (*by, *over):
        over = [*over, EPISODE]
    names = [study.name for study in studies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInputError(f"{', '.join(twice)} is named twice", fix="name each study once")
    _check_names([*studies, *others], by, over)
    cells = [cell for study in studies for cell in _cells(study, by, over)]
    bounds = [_cells(study, by, over) for study in others]
    compared = [*cells, *itertools.chain(*bounds)]
    score = _common_score(compared)
    if score is None and (is_paired or others):
        raise BadInputError(
            "these studies have no score in common that every trial has",
            because="metrics: " + ", ".join(sorted({_metric(cell) for cell in compared})),
            fix=f"use one metric, or data.test.visibility: public, which gives {TEST}",
        )
    rows = []
    for cell in cells:
        costs = costs_of(list(cell.repetitions.values())) if has_costs else None
        row = {**_row(cell), **(cell.chosen if costs is None else costs)}
        if has_spread:
            row.update(cell.spread())
        if others and score is not None:
            row[f"boost ({score})"] = _boost(cell, bounds[0], bounds[1], score)
        if is_paired and score is not None and cell.study is not studies[0]:
            first = _matching(cell, _cells(studies[0], by, over))
            row.update(_paired(cell, first, score))
        rows.append(row)
    return rows


def _check_names(studies: Sequence[ReportedStudy], by: Sequence[str], over: Sequence[str]) -> None:
    for name in by:
        if name in over:
            raise BadInputError(f"{name} is in --by and in --over", fix="name it in one of them")
    space = {name for study in studies for name in study.space}
    space |= {name for study in studies for trial in study.trials for name in trial.config}
    for option, names in (("--by", by), ("--over", over)):
        for name in names:
            if name not in space:
                raise BadInputError(
                    f"{option} {name}: no such hyperparameter in these studies",
                    fix=did_you_mean(name, sorted(space)) or "`dpsweep describe METHOD` lists them",
                )


def _cells(study: ReportedStudy, by: Sequence[str], over: Sequence[str]) -> list[Cell]:
    """Return the cells of a study in the order of their values; its start comes first."""
    others = [name for name in study.varied if name not in by and name not in over]
    table: dict[Key, dict[Key, dict[Key, TrialResult]]] = {}
    runs = {(t.trial_id,): t for t in study.finished if t.trial_id in study.starts}
    if runs and "method" not in (*others, *by, *over):
        others.insert(0, "method")  # the start has another
    for trial in study.finished:
        if trial.trial_id in study.starts:
            continue
        cell = table.setdefault(_values(trial, by), {})
        repetitions = cell.setdefault(_values(trial, others), {})
        repetitions.setdefault(_values(trial, over), trial)
    expected = _num_declared(study, over)
    result = []
    if runs:
        label = {**dict.fromkeys(by), **dict.fromkeys(by[:1], "(the start)")}
        method = {"method": next(iter(runs.values())).config["method"]}
        others_of_start = {} if "method" in by else method  # the label takes its place there
        result.append(Cell(study, label, 1, len(study.starts), others_of_start, runs))
    for values in sorted(table, key=_order):
        configurations = table[values]
        chosen = max(configurations.items(), key=lambda item: _rank(study, item[1]))
        result.append(
            Cell(
                study,
                dict(zip(by, values)),
                len(configurations),
                expected,
                dict(zip(others, chosen[0])),
                dict(sorted(chosen[1].items(), key=lambda item: _order(item[0]))),
                tuple(configurations.values()),
            )
        )
    return result


def _values(trial: TrialResult, names: Sequence[str]) -> Key:
    return tuple(trial.config.get(name) for name in names)


def _order(values: Key) -> list[tuple[int, float, str]]:
    """Return what sorts numbers by size, words by letter, and absent values first."""
    return [
        (0, 0.0, "")
        if value is None
        else (1, float(value), "")
        if isinstance(value, (int, float))
        else (2, 0.0, str(value))
        for value in values
    ]


def _rank(study: ReportedStudy, repetitions: Mapping[Key, TrialResult]) -> tuple[float, ...]:
    """Return what the best configuration has most of: repetitions, then its mean value."""
    mean = statistics.fmean(t.value for t in repetitions.values() if t.value is not None)
    first = min(t.trial_id for t in repetitions.values())
    return len(repetitions), mean if study.is_maximized else -mean, -first


def _num_declared(study: ReportedStudy, over: Sequence[str]) -> int:
    """Return the repetitions that the space declares by its choices; a range declares none."""
    return math.prod(len(study.space.get(name) or [None]) for name in over)


def _metric(cell: Cell) -> str:
    return next(iter(cell.repetitions.values())).metric


def _common_score(cells: Sequence[Cell]) -> str | None:
    """Return the score that all repetitions of all cells have, or None."""
    if cells and all(len(cell.scores(TEST)) == len(cell.repetitions) for cell in cells):
        return TEST
    metrics = {_metric(cell) for cell in cells}
    return metrics.pop() if len(metrics) == 1 else None


def _row(cell: Cell) -> dict[str, Any]:
    metric, count = _metric(cell), len(cell.repetitions)
    row: dict[str, Any] = {
        "study": cell.study.name,
        **cell.by,
        "configurations": cell.num_configurations,
        "repetitions": count,
    }
    if count < cell.num_expected:
        row["missing"] = cell.num_expected - count
    for score in (metric, TEST):
        scores = cell.scores(score)
        if scores:
            row[score] = statistics.fmean(scores.values())
            row[f"{score} std"] = statistics.stdev(scores.values()) if len(scores) > 1 else None
            row[f"{score} 95%"] = half_width(list(scores.values()))
    return {**row, **cell.costliest.to_json(), "epsilon": cell.costliest.epsilon}


def _matching(cell: Cell, candidates: Sequence[Cell]) -> Cell | None:
    """Return the cell of another study that one is compared with, or None."""
    for other in candidates:
        if all(
            other.by[name] == value or name not in other.study.space
            for name, value in cell.by.items()
        ):
            return other
    return None


def _boost(cell: Cell, lower: Sequence[Cell], upper: Sequence[Cell], score: str) -> float | None:
    """Return the performance boost of a cell; None without its bounds, or in the wrong order."""
    public, best = _matching(cell, lower), _matching(cell, upper)
    if public is None or best is None or _error(best, score) >= _error(public, score):
        return None
    gained = _error(cell, score) - _error(public, score)
    return gained / (_error(best, score) - _error(public, score))


def _check_pairs(first: ReportedStudy, other: ReportedStudy) -> None:
    """Refuse to call repetitions of two studies pairs that have other records.

    Raises:
        BadInputError: They differ in what their records are drawn by.
    """
    names = sorted(set(first.drawn_by) | set(other.drawn_by))
    changed = [n for n in names if first.drawn_by.get(n) != other.drawn_by.get(n)]
    if changed:
        raise BadInputError(
            f"repetitions of {first.name} and {other.name} are no pairs: they have other records",
            because=f"the specs differ in {', '.join(changed)}",
            fix="leave --paired out, or run both studies with the same",
        )


def _error(cell: Cell, score: str) -> float:
    """Return what is minimised: 1 - accuracy, or a loss as it is."""
    mean = cell.mean(score)
    return 1 - mean if score.endswith("accuracy") else mean


def _paired(cell: Cell, first: Cell | None, score: str) -> dict[str, Any]:
    """Return the mean difference to the first study and its sign in each common repetition."""
    if first is None:
        return {f"difference ({score})": None, "signs": ""}
    mine, theirs = cell.scores(score), first.scores(score)
    differences = [mine[key] - theirs[key] for key in mine if key in theirs]
    return {
        f"difference ({score})": statistics.fmean(differences) if differences else None,
        "signs": "".join("+" if d > 0 else "-" if d < 0 else "=" for d in differences),
    }
