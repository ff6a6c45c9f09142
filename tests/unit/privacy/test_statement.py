"""Statements: what must stand beside an epsilon, and how it is shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.statement import PrivacyStatement, shown_epsilon

RIGHT = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "accountant": "rdp",
    "neighboring_relation": "add_or_remove_one",
    "sampling": "poisson",
    "privacy_unit": "example",
    "accounting": "single_run",
    "released": "one run",
}


@pytest.mark.parametrize("key", RIGHT)
@pytest.mark.parametrize("value", [None, "", "no such thing"])
def test_a_field_that_is_missing_or_unknown_is_refused(key: str, value: Any) -> None:
    if value == "no such thing" and key in ("privacy_unit", "released"):
        return
    with pytest.raises((BadInputError, TypeError)) as caught:
        PrivacyStatement(**{**RIGHT, key: value})
    if isinstance(caught.value, BadInputError):
        assert key in caught.value.message


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, True])
def test_what_is_no_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(BadInputError, match="epsilon must be >= 0"):
        PrivacyStatement(**{**RIGHT, "epsilon": epsilon})


@pytest.mark.parametrize(
    "epsilon", [1e-12, 9.999e-6, 1.00049e-4, 9.9951e-4, 0.001, 1.99991, 12.34567, 1e4]
)
def test_what_is_shown_is_never_below(epsilon: float) -> None:
    shown = float(shown_epsilon(epsilon))
    assert epsilon <= shown <= epsilon + max(1e-4, epsilon * 0.01) * (1 + 1e-9)
    if epsilon < 1e-3:
        assert shown <= epsilon * 1.01


def test_a_sampling_of_a_plan_is_said_once() -> None:
    """A running selection's line said "sampling of its plan sampling"."""
    statement = PrivacyStatement(**{**RIGHT, "sampling": "sampling of its plan"})
    assert "add_or_remove_one, sampling of its plan, unit: example" in statement.one_line()
    assert ", sampling=of its plan, rdp" in statement.line()
    assert "add_or_remove_one, poisson sampling, unit" in PrivacyStatement(**RIGHT).one_line()


def test_an_infinite_one_says_so() -> None:
    statement = PrivacyStatement(**{**RIGHT, "epsilon": math.inf})
    assert statement.to_json()["epsilon"] == "inf"
    assert "no privacy guarantee" in statement.one_line()
    assert "no privacy guarantee" not in PrivacyStatement(**RIGHT).one_line()


@given(st.floats(1e-15, 0.5))
def test_no_delta_is_shown_below_what_it_is(delta):
    """An epsilon at a smaller delta would be a larger one."""
    line = PrivacyStatement(**{**RIGHT, "delta": delta}).one_line()
    shown = float(line.partition("at delta=")[2].partition(" ")[0])
    assert delta * (1 - 1e-11) <= shown <= delta * (1 + 1e-5)
