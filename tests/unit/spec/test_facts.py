"""Refusals that speak of a privacy cost, and those that do not."""

import pytest

from dpsweep.spec.facts import terms, with_terms
from dpsweep.spec.study import SweepSpec

MINIMAL = {
    "name": "digits",
    "data": {"dataset": "digits", "validation": {"visibility": "public"}},
    "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
    "search": {"space": {"method": "dp_sgd"}},
}


@pytest.mark.parametrize(
    "text",
    [
        "epsilon=3 is over the study's",
        "ε=3 is too much",
        "(2.1, 1e-5)-DP is over 2",
        "releases 2.3 of a cap of 2",
        "charges 3",
        "it spends 3",
        "the budget is 2",
    ],
)
def test_no_epsilon_stands_without_its_terms(text):
    """Words of another package's plan, too."""
    spec = SweepSpec(**MINIMAL)
    assert with_terms(spec, text) == f"{text} ({terms(spec)})"


def test_a_refusal_without_a_cost_has_no_terms():
    text = "select.each=4 labels in select.clusters=10 are more than labels.max=0"
    assert with_terms(SweepSpec(**MINIMAL), text) == text
