"""The privacy-utility picture: score against epsilon, with what cannot be beaten at its price."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from dpsweep.results.choosing import REPEATS, unbeaten
from dpsweep.results.pictures.base import Picture, nominal, of_epsilon, quantitative, tooltip
from dpsweep.results.study import SweepResult
from dpsweep.results.tables.spread import half_width
from dpsweep.results.trial import TrialResult


def privacy_utility(result: SweepResult) -> Picture | None:
    """Return score against epsilon, one point a configuration, a bar where it was repeated.

    Only trials that ran to their end are there: what one had spent when its score stopped it is no
    bound on its epsilon. Of a public search there is one private run, and no picture; of one on a
    part of the records the final run is on others, and does not compare.
    """
    trials = [t for t in result.results if _is_drawn(t)]
    spec = result.spec
    if len(trials) < 2 or spec.privacy.mode.is_public_search or spec.search.on is not None:
        return None
    rows = [_row(group) for group in _groups(trials)]
    front = unbeaten(
        rows, lambda row: (row["epsilon"], row["score"]), is_maximized=result.is_maximized
    )
    rows = [row | {"is_best_so_far": row in front} for row in rows]
    rows.sort(key=lambda row: row["epsilon"])
    metric = trials[0].metric
    place = {
        "x": of_epsilon("epsilon of one trial alone"),
        "y": quantitative("score", metric),
    }
    chart = {
        "layer": [
            {
                "transform": [{"filter": "datum.is_best_so_far"}],
                "mark": {"type": "line", "interpolate": "step-after", "opacity": 0.4},
                "encoding": place,
            },
            {
                "transform": [{"filter": "isValid(datum.low)"}],
                "mark": {"type": "rule", "opacity": 0.6},
                "encoding": {
                    "x": place["x"],
                    "y": quantitative("low", metric),
                    "y2": {"field": "high"},
                    "color": nominal("method"),
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.9},
                "encoding": {**place, "color": nominal("method"), "tooltip": tooltip(rows)},
            },
        ]
    }
    bars = "Bars are 95% intervals of the mean over repetitions, by Student's t. "
    return Picture(
        "privacy_utility",
        "Score against epsilon",
        "Each point is a configuration that ran to its end; the line joins those that no cheaper "
        f"one beats. {bars if any(row['repetitions'] > 1 for row in rows) else ''}"
        + result.claims.brief([t.trial_id for t in trials], more=""),
        rows,
        chart,
        {
            **result.claims.epsilon_terms(),
            "released": "; or ".join(dict.fromkeys(t.statement.released for t in trials)),
        },
    )


def _is_drawn(trial: TrialResult) -> bool:
    is_whole = trial.state.value == "finished" and trial.value is not None
    return is_whole and math.isfinite(trial.epsilon)


def _groups(trials: Sequence[TrialResult]) -> list[list[TrialResult]]:
    groups: dict[str, list[TrialResult]] = {}
    for trial in trials:
        rest = {name: value for name, value in trial.config.items() if name not in REPEATS}
        groups.setdefault(json.dumps(rest, sort_keys=True), []).append(trial)
    return list(groups.values())


def _row(group: Sequence[TrialResult]) -> dict[str, Any]:
    scores = [trial.value for trial in group if trial.value is not None]
    mean, half = fmean(scores), half_width(scores)
    most = 1.0 if group[0].metric.endswith("/accuracy") else math.inf  # whatever Student's t says
    return {
        "trials": ", ".join(str(trial.trial_id) for trial in group),
        "method": group[0].config["method"],
        "score": mean,
        "low": None if half is None else max(mean - half, 0.0),
        "high": None if half is None else min(mean + half, most),
        "repetitions": len(group),
        "epsilon": max(trial.epsilon for trial in group),
        "sampling": group[0].statement.sampling,
    }
