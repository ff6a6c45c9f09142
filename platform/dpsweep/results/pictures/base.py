"""A picture: a table and a Vega-Lite chart of it, with the words that must stand beside both."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

from dpsweep.foundation.words import encodable
from dpsweep.results.study import SweepResult

#: One record of a table; a value is a number, a word, or None.
Row = Mapping[str, Any]

#: States of a trial with a colour each, told apart also by people who do not see red and green.
COLOURS = {
    "finished": "#0072B2",
    "pruned": "#E69F00",
    "failed": "#D55E00",
    "interrupted": "#999999",
    "running": "#009E73",
    "paused": "#CC79A7",
}


_NOT_OF_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE = 115  # letters of a line above a PNG


@dataclass(frozen=True)
class Picture:
    """One picture of a study.

    Guarantees:
        Everything that is drawn is in ``rows``, so whoever may read the table may see the picture;
        each row with an epsilon has the terms of that epsilon beside it.

    Attributes:
        name: File name without its ending, and anchor in a page.
        title: A few words.
        caption: One or two sentences: how to read it, and what its epsilons mean.
        rows: The table.
        chart: Vega-Lite's description without the data (https://vega.github.io/vega-lite).
        terms: Columns that stand beside each epsilon: delta, unit, adjacency, accountant, mode.
        study: Name of the study.
    """

    name: str
    title: str
    caption: str
    rows: Sequence[Row]
    chart: Mapping[str, Any]
    terms: Mapping[str, Any] = field(default_factory=dict)
    study: str = ""

    def vega_lite(self, *, width: int | str = 560) -> dict[str, Any]:
        """Return the whole description, with the data inside; it needs nothing else.

        Args:
            width: In pixels, or ``container``.
        """
        return {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "data": {"values": [dict(row) for row in self.rows]},
            "height": 300,
            "config": {"view": {"stroke": None}},
            **self.chart,
            **({} if "facet" in self.chart else {"width": width}),
        }

    def png(self) -> bytes:
        """Return the picture as PNG, on white, with its caption: it may be shown alone."""
        import vl_convert

        return vl_convert.vegalite_to_png(self._alone(), scale=2)  # type: ignore[no-any-return]

    def _repr_png_(self) -> bytes:
        return self.png()

    def words(self) -> str:
        """Return all that its PNG may write, and more."""
        return json.dumps(self._alone(), ensure_ascii=False)

    def _alone(self) -> dict[str, Any]:
        """Return what is drawn of it alone: on white, with its caption."""
        words = f"Study {self.study}. {self.caption}" if self.study else self.caption
        title = {
            "text": self.title,
            "subtitle": wrap(words, _LINE),
            "subtitleColor": "#555",
            "subtitleFontSize": 9,
            "offset": 12,
            "anchor": "start",
            "frame": "group",
        }
        return _drawable({**self.vega_lite(), "background": "white", "title": title})

    def csv(self) -> str:
        """Return the table as CSV, with the terms of its epsilons in every row."""
        has_epsilon = any("epsilon" in name for row in self.rows for name in row)
        rows = [{**row, **(self.terms if has_epsilon else {})} for row in self.rows]
        names = list(dict.fromkeys(name for row in rows for name in row))
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, fieldnames=names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return encodable(buffer.getvalue())


def _drawable(value: Any) -> Any:
    """Return a value without letters that XML does not have: they end the process that draws."""
    if isinstance(value, str):
        return _NOT_OF_XML.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {_drawable(key): _drawable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_drawable(part) for part in value]
    return value


def warm() -> None:
    """Load what draws PNGs, which takes a good part of a second."""
    import vl_convert

    vl_convert.vegalite_to_png({"data": {"values": [{}]}, "mark": {"type": "text", "text": "a"}})


#: Draws a picture of a study, or returns None where there is nothing to draw, or nothing may be.
Draw = Callable[[SweepResult], Picture | None]


def quantitative(name: str, title: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the encoding of a column of numbers; an axis begins where its data do."""
    scale = {"zero": False, **more.pop("scale", {})}
    return {
        "field": _escaped(name),
        "type": "quantitative",
        "title": title or name,
        "scale": scale,
        **more,
    }


def nominal(name: str, title: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the encoding of a column of words."""
    return {"field": _escaped(name), "type": "nominal", "title": title or name, **more}


def by_state(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the colours of trials' states, of those that occur."""
    states = [state for state in COLOURS if any(row["state"] == state for row in rows)]
    scale = {"domain": states, "range": [COLOURS[state] for state in states]}
    return nominal("state", scale=scale)


def of_epsilon(title: str) -> dict[str, Any]:
    """Return the axis of epsilons: from 0, so that nearly equal ones look equal."""
    return quantitative("epsilon", title, scale={"zero": True})


def tooltip(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what is shown of a row under the pointer: all of it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{"field": _escaped(name), "title": name} for name in names]


def _escaped(name: str) -> str:
    """Return a column's name as Vega-Lite takes it: a dot would be a path, a bracket an index."""
    for sign in ".[]":
        name = name.replace(sign, f"\\{sign}")
    return name
