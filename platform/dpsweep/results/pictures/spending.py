"""The spending over time: what the study had committed of its budget at each moment."""

from __future__ import annotations

from typing import Any

from dpsweep.foundation.logs import read_log
from dpsweep.results.pictures.base import Picture, of_epsilon, quantitative, tooltip
from dpsweep.results.study import SweepResult
from dpsweep.study.events import StudySpent, event_of


def epsilon_over_time(result: SweepResult) -> Picture | None:
    """Return the study's committed epsilon against hours of work; None without a study budget.

    Only a study of accounting composed has a budget that fills up; time without a launch counts
    nothing.
    """
    if not result.claims.mode.is_filtered:
        return None
    rows = _rows(result)
    study = result.study_statement()
    if len(rows) < 2 or study is None:
        return None
    cap = study.epsilon
    terms = {
        **result.claims.epsilon_terms(),
        "sampling": study.sampling,
        "accountant": study.accountant,
        "released": study.released,
    }
    line = of_epsilon("epsilon committed")
    chart = {
        "layer": [
            {
                "mark": {"type": "line", "interpolate": "step-after"},
                "encoding": {
                    "x": quantitative(
                        "minutes",
                        "minutes of work",
                        scale={"zero": True},
                        axis={"tickCount": 6, "format": ".2~f"},
                    ),
                    "y": line,
                    "tooltip": tooltip(rows),
                },
            },
            {
                "mark": {"type": "rule", "strokeDash": [6, 4], "color": "#D55E00"},
                "encoding": {"y": {"datum": cap}},
            },
        ]
    }
    return Picture(
        "epsilon_over_time",
        "Privacy spent over time",
        "What is committed at each end of a trial, for information: spent, or reserved for those "
        "that run then (the line falls where a stopped one frees what it did not spend). It is "
        "no sum of the trials' epsilons: by the study's composition the first one may stand for "
        "more than its own, and many for less. The "
        f"dashed line is what the study claims, whatever was used: {study.one_line()}.",
        rows,
        chart,
        terms,
    )


def _rows(result: SweepResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    worked_ms, last_ms = 0, None
    for record in read_log(result.files.journal):
        if record["event"] == "study_started":
            last_ms = record["time_ms"]  # the pause between two launches
        worked_ms += 0 if last_ms is None else max(record["time_ms"] - last_ms, 0)
        last_ms = record["time_ms"]
        event = event_of(record)
        if isinstance(event, StudySpent):
            minutes = round(worked_ms / 60000, 3)
            rows.append({"minutes": minutes, "epsilon": event.epsilon, "share": event.share})
    return rows
