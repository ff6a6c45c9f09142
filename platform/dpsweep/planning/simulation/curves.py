"""Learning curves for the simulator: made up by a formula, or looked up in a table of real ones.

A curve says what a configuration would score at each of its reports. Nothing here trains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.words import listed
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.parameter import Parameter, same
from dpsweep.study.files import StudyFiles

Array = NDArray[np.float64]
Axis = Literal["fraction", "epsilon"]

_CHANCE, _CEILING = 0.1, 0.95  # accuracy of an untrained model, and of the best one there is
_NOISE = 0.004  # standard deviation of one score on a few thousand records
_MOST_MISTAKES, _MOST_NAMES = 20, 5


class Curves(Protocol):
    """Scores of configurations while they train."""

    def scores(
        self,
        trial: int,
        values: Mapping[str, Any],
        *,
        fractions: Array,
        epsilons: Array,
        signal: float | None = None,
    ) -> tuple[Array, Array]:
        """Return the scores a trial reports, and the same without observation noise.

        The same arguments give the same scores, whoever asks and in which order.

        Args:
            trial: Trial number.
            values: Drawn configuration.
            fractions: Share of the plan's steps done at each report, ascending, ending at 1.
            epsilons: Epsilon of the trial at each report.
            signal: Signal over noise of all its steps (``Admission.signal``), or None.
        """
        ...


def place(parameter: Parameter, value: Any) -> float:
    """Return where a value lies within a range, 0 at the lower bound and 1 at the upper.

    >>> place(Parameter("optim.lr", "loguniform", 0.01, 1.0), 0.1)
    0.5
    """
    low, high, at = parameter.low, parameter.high, float(value)
    if high <= low:
        return 0.5
    if parameter.kind in ("loguniform", "logint"):
        return (math.log(max(at, 1e-300)) - math.log(low)) / (math.log(high) - math.log(low))
    return (at - low) / (high - low)


class SyntheticCurves:
    """Made-up curves that can be told apart, cross each other and are noisy.

    Every searched parameter p gets a weight a_p (exponential draws, scaled to sum 1) and a loss in
    [0, 1]: of a range, ``1 - exp(-((u - o_p) / w_p)^2 / 2)`` at the place u in [0, 1] (log scale
    where the range has one), with optimum o_p ~ U(0.15, 0.85) and width w_p ~ U(0.2, 0.5); of a
    choice, a uniform draw per value, less the smallest, so that one value is best. A parameter
    that has no meaning beside the others loses nothing. The quality is ``Q = 1 - sum a_p loss_p``,
    and after a share x of its steps a trial has the accuracy

        chance + (ceiling - chance) Q^2 (1 - e^(-x/t)) / (1 - e^(-1/t)),  t = 0.06 * 10^s,

    where s in [0, 1] is another such weighted sum, of coefficients in [-1, 1] around the middle of
    each range: slow configurations begin below fast ones that they pass later. A report adds normal
    noise. Under a loss, the score is ``-log`` of the accuracy before noise. All draws depend on the
    seed and the names of the parameters; the noise on (seed, trial).

    The figures of real sweeps will differ: use recorded curves where there are some.

    Args:
        parameters: Parameters of the search space.
        seed: Seed of everything that is drawn.
        maximize: True for accuracy, False for a loss.
        noise: Further standard deviation of a report (noisy validation scores), added in squares.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        *,
        seed: int,
        maximize: bool = True,
        noise: float = 0.0,
    ) -> None:
        self._seed, self._maximize = seed, maximize
        self._noise = math.hypot(_NOISE, noise)
        self._searched = [p for p in parameters if p.kind != "fixed"]
        self._shapes: dict[str, tuple[float, float, float]] = {}
        self._losses: dict[str, list[float]] = {}
        self._slopes: dict[str, list[float]] = {}
        weights = {}
        for parameter in self._searched:
            rng = np.random.default_rng(public_seed(seed, 0, f"curves {parameter.key}"))
            weights[parameter.key] = float(rng.exponential()) + 0.1
            self._shapes[parameter.key] = (
                float(rng.uniform(0.15, 0.85)),
                float(rng.uniform(0.2, 0.5)),
                float(rng.uniform(-1, 1)),
            )
            losses = rng.uniform(size=max(len(parameter.choices), 1))
            self._losses[parameter.key] = (losses - losses.min()).tolist()
            slopes = rng.uniform(-0.5, 0.5, size=max(len(parameter.choices), 1))
            self._slopes[parameter.key] = slopes.tolist()
        total = sum(weights.values()) or 1.0
        self._weights = {name: weight / total for name, weight in weights.items()}

    def scores(
        self,
        trial: int,
        values: Mapping[str, Any],
        *,
        fractions: Array,
        epsilons: Array,
        signal: float | None = None,
    ) -> tuple[Array, Array]:
        """Return the scores a trial reports, and the same without observation noise."""
        loss, slowness = 0.0, 0.5
        for parameter in self._searched:
            name, key = parameter.name, parameter.key
            if name not in values or not parameter.may_apply(values):
                continue
            weight = self._weights[key]
            if parameter.is_range:
                at = place(parameter, values[name])
                optimum, width, slope = self._shapes[key]
                loss += weight * -math.expm1(-(((at - optimum) / width) ** 2) / 2)
                slowness += weight * slope * (at - 0.5)
            else:
                index = next(i for i, c in enumerate(parameter.choices) if same(c, values[name]))
                loss += weight * self._losses[key][index]
                slowness += weight * self._slopes[key][index]
        time = 0.06 * 10.0 ** min(max(slowness, 0.0), 1.0)
        growth = np.expm1(-fractions / time) / math.expm1(-1 / time)
        exact = _CHANCE + (_CEILING - _CHANCE) * (1.0 - loss) ** 2 * growth
        if not self._maximize:
            exact = -np.log(exact)
        rng = np.random.default_rng(public_seed(self._seed, trial, "observation noise"))
        seen = exact + self._noise * rng.standard_normal(len(exact))
        return np.clip(seen, 0.0, 1.0 if self._maximize else None), exact


@dataclass(frozen=True)
class Row:
    """A recorded curve.

    Attributes:
        hparams: Hyperparameters, at least some of them searched by the spec.
        points: (x, score) with x ascending.
        axis: What x is: the share of the steps done, or the epsilon spent.
    """

    hparams: Mapping[str, Any]
    points: tuple[tuple[float, float], ...]
    axis: Axis = "fraction"


class TableCurves:
    """The curve of the nearest recorded configuration, interpolated.

    The distance of two configurations is the mean over the searched parameters that have a meaning
    in the drawn one: of a range, the difference of the two places (see ``place``), at most 1; of a
    choice, 0 if equal and 1 if not; 1 where the recorded one lacks the parameter. The first of
    equally near rows counts. Between points the score is linear, beyond them it stays level.

    Args:
        rows: Recorded curves, at least one.
        parameters: Parameters of the search space.
        seed: Seed of the noise.
        noise: Standard deviation that noisy validation scores add to a report.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        parameters: Sequence[Parameter],
        *,
        seed: int = 0,
        noise: float = 0.0,
    ) -> None:
        self._rows, self._seed, self._noise = list(rows), seed, noise
        self._searched = [p for p in parameters if p.kind != "fixed"]
        self._places = {
            p.key: np.array([_recorded(p, row.hparams) for row in rows]) for p in self._searched
        }

    def nearest(self, values: Mapping[str, Any]) -> Row:
        """Return the recorded row that is nearest to a drawn configuration."""
        distance = np.zeros(len(self._rows))
        for parameter in self._searched:
            if parameter.name not in values or not parameter.may_apply(values):
                continue
            recorded = self._places[parameter.key]
            here = _recorded(parameter, values)
            if parameter.is_range:
                apart = np.minimum(np.abs(recorded - here), 1.0)
            else:
                apart = np.where(recorded == here, 0.0, 1.0)
            distance += np.where(np.isnan(recorded), 1.0, apart)
        return self._rows[int(np.argmin(distance))]

    def scores(
        self,
        trial: int,
        values: Mapping[str, Any],
        *,
        fractions: Array,
        epsilons: Array,
        signal: float | None = None,
    ) -> tuple[Array, Array]:
        """Return the scores a trial reports, and the same without observation noise."""
        row = self.nearest(values)
        x, y = (np.array(column) for column in zip(*row.points))
        exact = np.interp(fractions if row.axis == "fraction" else epsilons, x, y)
        rng = np.random.default_rng(public_seed(self._seed, trial, "observation noise"))
        return exact + self._noise * rng.standard_normal(len(exact)), exact


def _recorded(parameter: Parameter, hparams: Mapping[str, Any]) -> float:
    """Return a place of a range or the index of a choice; NaN for what cannot be placed."""
    value = hparams.get(parameter.name)
    if parameter.is_range:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return place(parameter, value) if is_number else math.nan
    for index, choice in enumerate(parameter.choices):
        if same(choice, value) and parameter.name in hparams:
            return float(index)
    return math.nan


def read_curves(
    source: str, *, metric: str, root: FilePath, parameters: Sequence[Parameter] = ()
) -> list[Row]:
    """Read recorded curves: a JSON-lines file, or the journal of a study (``study:NAME``).

    A line is ``{"hparams": {..}, "curve": [[x, score], ..]}``, where x is the share of the steps
    done, 0 to 1; with ``"axis": "epsilon"`` it is the epsilon spent.

    Args:
        source: Path, or ``study:NAME``.
        metric: Score to take from the reports of a study.
        root: Folder of studies.
        parameters: Of the search space. Where some are searched, each curve has a value of one of
            them: others would all be equally near to every configuration.
    Raises:
        BadInputError: With every mistake of the file, one line each; or it holds no curve.
    """
    if source.startswith("study:"):
        return _rows_of_study(source.removeprefix("study:"), metric, root, parameters)
    try:
        lines = Path(source).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise BadInputError(f"{source}: not a text file", fix="give a JSON-lines file") from error
    except OSError as error:
        raise BadInputError(f"{source}: {error.strerror}", fix="give an existing file") from error
    return _rows_of_lines(source, lines, parameters)


def _rows_of_lines(source: str, lines: Iterable[str], parameters: Sequence[Parameter]) -> list[Row]:
    rows, mistakes = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(_compared(_row_of(json.loads(line)), parameters))
        except json.JSONDecodeError as error:
            mistakes.append(f"{source}:{number}: not JSON: {error.msg}")
        except ValueError as error:
            mistakes.append(f"{source}:{number}: {error}")
    if len(mistakes) > _MOST_MISTAKES:
        rest = len(mistakes) - _MOST_MISTAKES
        mistakes = [*mistakes[:_MOST_MISTAKES], f"{source}: and {rest} more lines like these"]
    if not rows and not mistakes:
        mistakes = [f"{source}: holds no curve"]
    if mistakes:
        raise BadInputError(
            "\n".join(mistakes),
            fix='one object a line: {"hparams": {"optim.lr": 1}, "curve": [[0.5, 0.4], [1, 0.8]]}',
        )
    return rows


def _row_of(raw: Any) -> Row:
    """Return one line as a row.

    Raises:
        ValueError: What is wrong with it.
    """
    if not isinstance(raw, Mapping):
        raise ValueError("must be an object")
    unknown = sorted(set(raw) - {"hparams", "curve", "axis"})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; known: hparams, curve, axis")
    if not isinstance(raw.get("hparams"), Mapping) or not raw["hparams"]:
        raise ValueError("needs hparams, an object of hyperparameters")
    axis = raw.get("axis", "fraction")
    if axis not in ("fraction", "epsilon"):
        raise ValueError(f"axis must be fraction or epsilon, got {axis!r}")
    curve = raw.get("curve")
    if not isinstance(curve, list) or not curve:
        raise ValueError("needs curve, a list of [x, score] pairs")
    points = []
    for pair in curve:
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))):
            raise ValueError(f"curve must hold pairs of finite numbers, got {json.dumps(pair):.40}")
        points.append((float(pair[0]), float(pair[1])))
    xs = [x for x, _ in points]
    if any(b <= a for a, b in pairwise(xs)):
        raise ValueError("the x of curve must ascend")
    if xs[0] < 0 or (axis == "fraction" and xs[-1] > 1):
        raise ValueError('the x of curve must lie in [0, 1]; for epsilons add "axis": "epsilon"')
    return Row(raw["hparams"], tuple(points), axis)


def _compared(row: Row, parameters: Sequence[Parameter]) -> Row:
    """Return a row that can be compared with drawn configurations.

    Raises:
        ValueError: It says nothing that is searched.
    """
    searched = [p for p in parameters if p.kind != "fixed"]
    if searched and all(math.isnan(_recorded(p, row.hparams)) for p in searched):
        names = listed(list(dict.fromkeys(p.name for p in searched)), _MOST_NAMES)
        raise ValueError(f"no value of a searched parameter ({names}) is in hparams")
    return row


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _rows_of_study(
    name: str, metric: str, root: FilePath, parameters: Sequence[Parameter]
) -> list[Row]:
    rows = []
    for trial in StudyFiles.find(name, root).view().trials.values():
        points = [
            (report["step"] / trial.num_steps, report["metrics"][metric])
            for report in trial.reports
            if metric in report["metrics"] and report["step"] > 0
        ]
        if points:
            try:
                rows.append(_compared(Row(trial.hparams, tuple(points)), parameters))
            except ValueError as error:
                raise BadInputError(
                    f"study {name!r}: trial {trial.trial}: {error}",
                    fix="name a study of what this spec searches, or give a JSON-lines file",
                ) from error
    if not rows:
        raise BadInputError(
            f"study {name!r} has no report of {metric}",
            fix="name a study whose trials reported it, or give a JSON-lines file",
        )
    return rows
