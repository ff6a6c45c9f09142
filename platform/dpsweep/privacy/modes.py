"""Modes of accounting, and what each may claim of a whole study."""

from __future__ import annotations

from collections.abc import Mapping

# What each accounting mode lets a study say, and nothing more.
CLAIMS: Mapping[str, str] = {
    "composed": "(eps, delta)-DP for the whole sweep, adaptive search included",
    "select": "(eps', delta)-DP for the released winner only",
    "public": "tuned on public data; eps is the final run's",
    "unaccounted": "eps = one run only. Search cost NOT included",
}
