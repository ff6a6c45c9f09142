"""Fonts of PNGs: those that vl_convert brings, or all that the system has too.

vl_convert prefers a font of the system's to the same one of its own, and maps its file into memory
anew for every letter that it draws. Where mapping is slow, this is half of a picture's time.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

_CONFIG = "FONTCONFIG_FILE"
_NONE_OF_THE_SYSTEM = Path(__file__).with_name("fonts.conf")
#: Latin, Greek, Cyrillic, some punctuation and the minus sign, which vl_convert's own fonts have.
_COVERED = re.compile(
    "[\t\n\r -~\u00a0-\u024f\u0391-\u03c9\u0400-\u04ff\u2012-\u2022\u2026\u2212]*"
)


def leave_out_system_fonts(environment: MutableMapping[str, str]) -> None:
    """Let a process with this environment draw with vl_convert's own fonts, as soon as it draws.

    It has an effect where vl_convert finds fonts by fontconfig's rules, as on Linux.
    """
    environment[_CONFIG] = str(_NONE_OF_THE_SYSTEM)


def is_covered(words: str) -> bool:
    """Say whether vl_convert's own fonts have all letters; the system's may have others.

    >>> is_covered("Größe 10⁻⁵"), is_covered("Größe −5 …"), is_covered("大")
    (False, True, False)
    """
    return _COVERED.fullmatch(words) is not None
