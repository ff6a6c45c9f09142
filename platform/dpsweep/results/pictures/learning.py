"""The learning curves: score of each trial's model against what it had spent by then."""

from __future__ import annotations

from dpsweep.results.coverage import so_far
from dpsweep.results.pictures.base import Picture, by_state, of_epsilon, quantitative, tooltip
from dpsweep.results.study import SweepResult


def learning_curves(result: SweepResult) -> Picture | None:
    """Return score against epsilon at each report, a line a trial; None without two reports."""
    metric = result.spec.search.metric
    rows = [
        {
            "trial": trial.trial_id,
            "state": result.state_of(trial),
            "step": point["step"],
            "epsilon": point["epsilon"],
            "score": point["metrics"][metric],
            "sampling": trial.statement.sampling,
        }
        for trial in result.results
        for point in trial.curve
        if metric in point["metrics"]
    ]
    if len(rows) < 2:
        return None
    # Trials on public records would all stand at 0.
    is_public = result.spec.privacy.mode.is_public_search
    has_epsilon = not is_public and all(row["epsilon"] is not None for row in rows)
    place = of_epsilon("epsilon so far") if has_epsilon else quantitative("step")
    chart = {
        "mark": {"type": "line", "point": {"size": 20}, "strokeWidth": 1.2, "strokeOpacity": 0.7},
        "encoding": {
            "x": place,
            "y": quantitative("score", metric),
            "detail": {"field": "trial", "type": "nominal"},
            "color": by_state(rows),
            "tooltip": tooltip(rows),
        },
    }
    return Picture(
        "learning_curves",
        f"Learning curves against {'epsilon' if has_epsilon else 'steps'}",
        "Each line is a trial, from report to report; its end is where it finished or was stopped. "
        + result.claims.brief(is_so_far=True, more=""),
        rows,
        chart,
        {**result.claims.epsilon_terms(), "released": so_far(result.spec)},
    )
