"""The confusion matrix of the best model, on records whose scores may be shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import NothingWithinBudgetError
from dpsweep.foundation.file_paths import read_file
from dpsweep.foundation.shapes import fits
from dpsweep.results.pictures.base import Picture, Row, tooltip
from dpsweep.results.study import SweepResult
from dpsweep.study.files import StudyFiles

#: Beyond so many classes a matrix cannot be read.
MAX_CLASSES = 50
# The file's keys, and the shape of each.
_SHAPES: Mapping[str, Any] = {
    "trial": int, "part": str, "names": Sequence[str], "counts": Sequence[Sequence[int]],
}  # fmt: skip


def keep_confusion(
    files: StudyFiles,
    *,
    trial: int,
    part: str,
    names: Sequence[str],
    counts: Sequence[Sequence[int]],
) -> None:
    """Write down the confusion matrix of a study's best model, in the place of an earlier one.

    Args:
        files: The study's files.
        trial: Whose model it is.
        part: ``test`` or ``validation``: declared public.
        names: Of the classes.
        counts: Records by their class, then by the predicted one.
    """
    kept = {"trial": trial, "part": part, "names": list(names), "counts": [*map(list, counts)]}
    write_atomically(files.confusion, json.dumps(kept).encode())


def confusion(result: SweepResult) -> Picture | None:
    """Return the matrix that was kept at the end of the study, if its trial is still the best."""
    path = result.files.confusion
    try:
        kept = json.loads(read_file(path))
        is_ours = all(fits(kept[key], shape) for key, shape in _SHAPES.items())
        if not is_ours or len(kept["names"]) > MAX_CLASSES:
            return None
        if result.best().trial_id != kept["trial"]:
            return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, NothingWithinBudgetError):
        return None  # there is none, or another file stands there
    rows: list[Row] = [
        {"class": true, "predicted": predicted, "records": count}
        for true, counts in zip(kept["names"], kept["counts"])
        for predicted, count in zip(kept["names"], counts)
    ]
    of_trial = "" if result.spec.privacy.mode.is_sealed else f" of trial {kept['trial']}"
    order = {"sort": kept["names"], "type": "nominal"}
    place = {
        "x": {"field": "predicted", **order, "axis": {"labelAngle": -40}},
        "y": {"field": "class", **order},
    }
    half = max((row["records"] for row in rows), default=0) / 2
    ink = {"condition": {"test": f"datum.records > {half}", "value": "white"}, "value": "#444"}
    chart = {
        "height": {"step": 22},
        "encoding": place,
        "layer": [
            {
                "mark": "rect",
                "encoding": {
                    "color": {"field": "records", "type": "quantitative"},
                    "tooltip": tooltip(rows),
                },
            },
            {
                "transform": [{"filter": "datum.records > 0"}],
                "mark": {"type": "text", "fontSize": 9},
                "encoding": {"text": {"field": "records"}, "color": ink},
            },
        ],
    }
    return Picture(
        "confusion",
        "Confusion matrix of the best model",
        f"The model{of_trial} on the {kept['part']} records, which are declared public.",
        rows,
        chart,
    )
