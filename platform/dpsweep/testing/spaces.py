"""The suite of recommended spaces: subclass it once per method of a package.

class TestMySpaces(RecommendedConformance):
    method = MyMethod
    recommended = RECOMMENDED
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpsweep.search_spaces.base import SearchSpace
from dpsweep.search_spaces.recommended import Recommended

if TYPE_CHECKING:
    from dpsweep.trainables.method import Method


class RecommendedConformance:
    """The suite of recommended spaces.

    Attributes:
        method: The method.
        recommended: What its entry point in ``dpsweep.search_spaces`` names.
    """

    method: ClassVar[type[Method]]
    recommended: ClassVar[Recommended]

    def test_there_is_a_space(self) -> None:
        """It is a ``Recommended``, with a space for some dataset."""
        assert isinstance(self.recommended, Recommended)
        assert self.recommended.spaces

    def test_every_sample_suits_the_method(self) -> None:
        """Names and values are those that the method declares."""
        declared = {parameter.name: parameter for parameter in self.method.hyperparameters}
        rng = np.random.default_rng(0)
        for domains in self.recommended.spaces.values():
            space = SearchSpace.from_spec(domains)
            for _ in range(20):
                values = space.sample(rng)
                assert values.pop("method") == self.method.name
                assert set(values) <= set(declared)
                problems = {name: declared[name].problem(value) for name, value in values.items()}
                assert not {name: problem for name, problem in problems.items() if problem}

    def test_nothing_is_overruled(self) -> None:
        """No parameter is without effect beside another."""
        declared = {self.method.name: self.method.hyperparameters}
        for domains in self.recommended.spaces.values():
            assert SearchSpace.from_spec(domains).overruled(declared) == []
