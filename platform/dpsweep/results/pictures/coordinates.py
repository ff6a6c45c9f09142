"""The parallel coordinates: every trial a line through its configuration to its score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.results.coverage import noise_of_scores
from dpsweep.results.pictures.base import Picture, quantitative, tooltip
from dpsweep.results.study import SweepResult
from dpsweep.results.tables.searched import searched_values
from dpsweep.results.trial import TrialResult
from dpsweep.search_spaces.base import SearchSpace

_MAX_AXES = 10
#: From bad to good, to be seen on white and on black.
_SHADES = ("#E69F00", "#0072B2")
#: Where labels stand beside an axis, by their height on it.
_PLACES: Mapping[str, dict[str, Any]] = {
    "datum.height === 0": {"dy": 9},
    "datum.height === 1": {"dy": -7},
    "datum.height > 0 && datum.height < 1": {"dx": 5, "align": "left"},
}
#: Letters of a label, which stands beside those of the next axis.
_LABEL = 14


def parallel_coordinates(result: SweepResult) -> Picture | None:
    """Return what the space varies, an axis each, then the score; None for one trial or axis.

    An axis runs from the least to the greatest value, by logarithm where the space says so;
    choices are spread over it. The line of a trial without a value on an axis is broken there.
    """
    trials = [trial for trial in result.results if trial.value is not None]
    names = [*(["method"] if _is_varied(trials, "method") else []), *result.varied]
    names = [name for name in names if _is_varied(trials, name)][:_MAX_AXES]
    if len(trials) < 2 or not names:
        return None
    space = SearchSpace.from_spec(result.spec.space)
    logs = {p.name for p in space.parameters if p.kind in ("loguniform", "logint")}
    metric = trials[0].metric
    searched = searched_values(result, trials)
    methods = [trial.config["method"] for trial in trials]
    columns = {
        name: methods if name == "method" else [values.get(name) for values in searched]
        for name in names
    }
    columns[metric] = [trial.value for trial in trials]
    rows: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    for place, (name, values) in enumerate(columns.items()):
        heights = _heights(values, is_log=name in logs)
        labels += _labels(name, values, heights)
        rows += [
            {
                "trial": trial.trial_id,
                "state": result.state_of(trial),
                "axis": name,
                "place": place,
                "value": value,
                "height": height,
                "score": trial.value,
            }
            for trial, value, height in zip(trials, values, heights)
        ]
    axis = {
        "field": "axis",
        "type": "nominal",
        "sort": list(columns),
        "title": None,
        "axis": {
            "grid": True,
            "labelAngle": 20,  # to the right, where the legend has room
            "labelAlign": "left",
            "labelPadding": 14,
            "domain": False,
        },
        "scale": {"type": "point", "padding": 0.3},
    }
    height = {"field": "height", "type": "quantitative", "axis": None}
    texts: list[dict[str, Any]] = [
        {
            "data": {"values": labels},
            "transform": [{"filter": where}],
            "mark": place | {"type": "text", "fontSize": 10},
            "encoding": {"x": axis, "y": height, "text": {"field": "label"}},
        }
        for where, place in _PLACES.items()
    ]
    shades = [*_SHADES] if result.is_maximized else [*reversed(_SHADES)]
    chart = {
        "layer": [
            {
                "mark": {
                    "type": "line",
                    "strokeWidth": 1.3,
                    "strokeOpacity": 0.65,  # "opacity" takes a layer, and a while, for each line
                    "invalid": "break-paths-filter-domains",
                    "point": {"size": 8},  # of a value between two breaks
                },
                "encoding": {
                    "x": axis,
                    "y": height,
                    "order": {"field": "place", "type": "quantitative"},
                    "detail": {"field": "trial", "type": "nominal"},
                    "color": quantitative("score", metric, scale={"range": shades}),
                    "tooltip": tooltip(rows),
                },
            },
            *texts,
        ]
    }
    return Picture(
        "parallel_coordinates",
        "Configurations and their scores",
        "Each line is a trial, through the values of its configuration to its score; blue ones are "
        "good, orange ones bad. A line is broken where a value has no meaning beside the others. "
        "Pruned trials are there with the score that they had. "
        f"{' '.join(noise_of_scores(result.spec))}".strip(),
        rows,
        chart,
    )


def _is_varied(trials: Sequence[TrialResult], name: str) -> bool:
    return len({str(trial.config.get(name)) for trial in trials}) > 1


def _labels(
    axis: str, values: Sequence[Any], heights: Sequence[float | None]
) -> list[dict[str, Any]]:
    """Return what stands at an axis: its ends, every choice, or the one value that there is."""
    pairs = {height: value for height, value in zip(heights, values) if height is not None}
    is_number = all(_is_number(value) for value in pairs.values())
    shown = [h for h in pairs if h in (0, 1) or not is_number or len(pairs) == 1]
    return [{"axis": axis, "height": h, "label": _label(pairs[h])} for h in sorted(shown)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _label(value: Any) -> str:
    """Return a value in a few letters.

    >>> _label(0.0123456), _label("mine.networks:a_very_long_name")
    ('0.0123', 'mine.networks…')
    """
    text = f"{value:.3g}" if _is_number(value) else str(value)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _heights(values: Sequence[Any], *, is_log: bool) -> list[float | None]:
    """Return where values stand between the least (0) and the greatest (1); None where absent."""
    present = [value for value in values if value is not None]
    if all(map(_is_number, present)):
        scaled = [
            None if v is None else math.log(v) if is_log and v > 0 else float(v) for v in values
        ]
        low = min(v for v in scaled if v is not None)
        span = max(v for v in scaled if v is not None) - low
        return [None if v is None else (v - low) / span if span else 0.5 for v in scaled]
    words = sorted({str(value) for value in present})
    top = max(len(words) - 1, 1)
    return [None if v is None else words.index(str(v)) / top for v in values]
