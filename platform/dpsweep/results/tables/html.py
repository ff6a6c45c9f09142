"""HTML of a table and of lines: texts are escaped, for names and values are users' words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def heading(text: str) -> str:
    """Return a line in bold."""
    return f"<p><b>{escape(text)}</b></p>"


def paragraph(text: str) -> str:
    """Return lines of text.

    >>> paragraph("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{escape(text).replace(chr(10), '<br>')}</p>"


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; without names it has no head."""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_shown(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
