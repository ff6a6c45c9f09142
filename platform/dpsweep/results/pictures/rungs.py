"""The rung survival: how many trials came to each rung, and what the scheduler did with them."""

from __future__ import annotations

from collections import Counter

from dpsweep.results.pictures.base import Picture, nominal, tooltip
from dpsweep.results.study import SweepResult

_COLOURS = {"continue": "#0072B2", "pause": "#CC79A7", "stop": "#E69F00"}


def rung_survival(result: SweepResult) -> Picture | None:
    """Return counts of trials by rung and last verdict there; None without a rung."""
    verdicts = {
        (line["rung"], line["trial"]): line["verdict"]
        for line in result.decisions()
        if line["rung"]
    }
    if not verdicts:
        return None
    unit, rungs = f"rung_{result.spec.scheduler.rung_unit}", result.spec.rungs
    if not rungs:  # a barrier at a step that a plan says
        unit = "rung"
    counts = Counter((rung, verdict) for (rung, _), verdict in verdicts.items())
    rows = [
        {
            "rung": rung,
            **({unit: rungs[rung - 1] if rung <= len(rungs) else None} if rungs else {}),
            "verdict": verdict,
            "trials": count,
        }
        for (rung, verdict), count in sorted(counts.items())
    ]
    verdicts_there = [verdict for verdict in _COLOURS if any(v == verdict for _, v in counts)]
    colours = {"domain": verdicts_there, "range": [_COLOURS[v] for v in verdicts_there]}
    samplings = {trial.statement.sampling for trial in result.results}
    chart = {
        "mark": "bar",
        "encoding": {
            "x": {
                "field": unit,
                "type": "ordinal",
                "title": f"rung, at {result.spec.scheduler.rung_unit}" if rungs else "rung",
                "axis": {"labelAngle": 0},
            },
            "y": {
                "field": "trials",
                "type": "quantitative",
                "axis": {"tickMinStep": 1, "format": "d"},
            },
            "color": nominal("verdict", sort=verdicts_there, scale=colours),
            "tooltip": tooltip(rows),
        },
    }
    return Picture(
        "rung_survival",
        "Trials at each rung",
        "How many trials came to each rung, and how many of them went on; one that passed several "
        "at once is compared at none of them, and goes on. Rungs are public: they are in the spec. "
        + result.claims.brief(is_so_far=True, more=""),
        rows,
        chart,
        {**result.claims.epsilon_terms(), "sampling": ", ".join(sorted(samplings))},
    )
