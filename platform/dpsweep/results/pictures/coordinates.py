"""The parallel coordinates: every trial a line through its configuration to its score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpsweep.results.pictures.base import Picture, quantitative, tooltip
from dpsweep.results.study import SweepResult
from dpsweep.results.trial import TrialResult
from dpsweep.search_spaces.base import SearchSpace

_MAX_AXES = 10
#: The value at an end of each axis, once.
_ONE_EACH = [
    {"aggregate": [{"op": "min", "field": "value", "as": "end"}], "groupby": ["axis", "height"]},
    {"calculate": "isNumber(datum.end) ? format(datum.end, '.3~g') : datum.end", "as": "label"},
]


def parallel_coordinates(result: SweepResult) -> Picture | None:
    """Return what the space varies, an axis each, then the score; None for one trial or axis.

    An axis runs from the least to the greatest value, by logarithm where the space says so;
    choices are spread over it. A trial without a value on an axis passes it by.
    """
    trials = [trial for trial in result.results if trial.value is not None]
    names = [*(["method"] if _is_varied(trials, "method") else []), *result.varied]
    names = [name for name in names if _is_varied(trials, name)][:_MAX_AXES]
    if len(trials) < 2 or not names:
        return None
    space = SearchSpace.from_spec(result.spec.space)
    logs = {p.name for p in space.parameters if p.kind in ("loguniform", "logint")}
    metric = trials[0].metric
    active = [{p.name for p in space.active(trial.config)} for trial in trials]
    columns = {
        name: [t.config.get(name) if name in its else None for t, its in zip(trials, active)]
        for name in names
    }
    columns[metric] = [trial.value for trial in trials]
    rows: list[dict[str, Any]] = []
    for place, (name, values) in enumerate(columns.items()):
        heights = _heights(values, is_log=name in logs)
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
            if height is not None
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
    chart = {
        "layer": [
            {
                "mark": {"type": "line", "strokeWidth": 1.3, "opacity": 0.65},
                "encoding": {
                    "x": axis,
                    "y": height,
                    "order": {"field": "place", "type": "quantitative"},
                    "detail": {"field": "trial", "type": "nominal"},
                    "color": quantitative("score", metric),
                    "tooltip": tooltip(rows),
                },
            },
            *(
                {
                    "transform": [{"filter": f"datum.height === {end}"}, *_ONE_EACH],
                    "mark": {"type": "text", "dy": offset, "fontSize": 10},
                    "encoding": {"x": axis, "y": height, "text": {"field": "label"}},
                }
                for end, offset in ((0, 9), (1, -7))
            ),
        ]
    }
    return Picture(
        "parallel_coordinates",
        "Configurations and their scores",
        "Each line is a trial, through the values of its configuration to its score. Pruned trials "
        "are there with the score that they had.",
        rows,
        chart,
    )


def _is_varied(trials: Sequence[TrialResult], name: str) -> bool:
    return len({str(trial.config.get(name)) for trial in trials}) > 1


def _heights(values: Sequence[Any], *, is_log: bool) -> list[float | None]:
    """Return where values stand between the least (0) and the greatest (1); None where absent."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present):
        scaled = [
            None if v is None else math.log(v) if is_log and v > 0 else float(v) for v in values
        ]
        low = min(v for v in scaled if v is not None)
        span = max(v for v in scaled if v is not None) - low
        return [None if v is None else (v - low) / span if span else 0.5 for v in scaled]
    words = sorted({str(value) for value in present})
    top = max(len(words) - 1, 1)
    return [None if v is None else words.index(str(v)) / top for v in values]
