"""Range checks: one wording, and no surprise about what counts as a number."""

from __future__ import annotations

import numpy as np
import pytest

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError


@pytest.mark.parametrize("wrong", [True, "1", None, float("nan"), float("inf"), 10**400, [1]])
def test_what_is_no_number(wrong: object) -> None:
    with pytest.raises(BadInputError, match="x must be"):
        validate.number("x", wrong)


def test_what_is_a_number() -> None:
    assert validate.number("x", np.float64(2.5)) == 2.5
    assert validate.whole("n", 2**60 + 1) == 2**60 + 1
    assert validate.whole("n", np.int64(3)) == 3
    assert isinstance(validate.whole("n", 3.0), int)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: validate.positive("x", 0), "x must be > 0, got 0"),
        (lambda: validate.non_negative("x", -1e-9), "x must be >= 0, got -1e-09"),
        (lambda: validate.at_least("x", 0.5, 1), "x must be >= 1, got 0.5"),
        (lambda: validate.whole("x", 1.5), "x must be a whole number, got 1.5"),
        (lambda: validate.whole("x", 0, low=1), "x must be >= 1, got 0"),
        (lambda: validate.in_unit_interval("x", 0), r"x must be in \(0, 1\), got 0"),
        (lambda: validate.in_unit_interval("x", 2, one=True), r"x must be in \(0, 1\], got 2"),
        (lambda: validate.one_of("x", ["a"], ("a", "b")), r"x must be one of a, b; got \['a'\]"),
    ],
)
def test_wordings(check: object, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        check()
