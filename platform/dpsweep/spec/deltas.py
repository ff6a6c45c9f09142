"""The delta of a spec that names none."""

from __future__ import annotations

import math

#: The delta of a spec that names none, unless it has more than 10,000 records.
LARGEST_DERIVED = 1e-5


def derived_delta(num_records: int) -> float:
    """Return the delta of a spec that names none: 1e-5, or 1 / (10 N) rounded down to one digit.

    The smaller of the two. From the declared number alone; nothing is counted.

    >>> derived_delta(1797), derived_delta(60_000), derived_delta(1_000_000)
    (1e-05, 1e-06, 1e-07)
    """
    tenth = 0.1 / num_records
    exponent = math.floor(math.log10(tenth) + 1e-9)
    digit = math.floor(tenth / 10.0**exponent + 1e-9)
    return min(LARGEST_DERIVED, float(f"{digit}e{exponent}"))
