"""The recommended spaces of every method pass the suite."""

import pytest

from dpsweep.search_spaces import SPACES
from dpsweep.testing.spaces import RecommendedConformance
from dpsweep.trainables import TRAINABLES


def suite(name):
    parts = {"method": TRAINABLES[name], "recommended": SPACES[name]}
    return type(f"Of_{name}", (RecommendedConformance,), parts)


@pytest.mark.parametrize("name", list(SPACES))
def test_recommended_spaces_suit_their_method(name):
    checks = suite(name)()
    for test in (word for word in dir(checks) if word.startswith("test_")):
        getattr(checks, test)()


def test_the_suite_notices_a_space_of_another_method():
    checks = type("Wrong", (RecommendedConformance,), {})()
    checks.method, checks.recommended = TRAINABLES["bitfit"], SPACES["dp_sgd"]
    with pytest.raises(AssertionError):
        checks.test_every_sample_suits_the_method()
