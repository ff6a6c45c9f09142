"""The suite of samplers: subclass it once per sampler of a package.

class TestMySampler(SamplerConformance):
    @staticmethod
    def build(seed):
        return MySampler(seed)
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from dpsweep.search import built_in, suggestions
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec

SPACE = {
    "method": {"choice": ["a", "b"]},
    "optim.lr": {"loguniform": [1e-3, 10]},
    "layers": {"int": [1, 4]},
    "share": {"uniform": [0, 1], "when": {"method": "b"}},
}
_OUTCOMES: tuple[suggestions.Outcome, ...] = ("finished", "failed", "finished", "pruned")


class SamplerConformance:
    """The suite of samplers; one is built anew, with a seed of its own, for every trial."""

    @staticmethod
    def build(seed: int) -> Any:
        """Return the sampler, as the entry point does."""
        raise NotImplementedError

    def _searched(self, num_trials: int = 12) -> list[dict[str, Any]]:
        """Return the configurations of a search in which trials end in every way."""
        spec = SweepSpec.model_validate(
            {
                "name": "samples",
                "data": {
                    "dataset": "digits",
                    "validation": {"fraction": 0.2, "visibility": "public"},
                },
                "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
                "search": {"space": SPACE, "num_trials": num_trials},
            }
        )
        configs = []
        with patch.object(suggestions, "make_sampler", lambda name, seed: self.build(seed)):
            search = suggestions.Suggestions(spec, SearchSpace.from_spec(spec.space), path=None)
            for number in range(num_trials):
                asked = search.ask()
                assert asked is not None
                assert asked[0] == number
                configs.append(asked[1])
                outcome = _OUTCOMES[number % len(_OUTCOMES)]
                score = asked[1]["layers"] / 4
                if outcome != "failed":
                    search.report(number, 10, score)
                search.tell(number, outcome, [score] if outcome == "finished" else None)
        return configs

    def test_it_is_a_sampler_of_optuna(self) -> None:
        """Optuna can ask what the entry point builds."""
        with patch.object(built_in, "SAMPLERS", {"mine": self.build}):
            built_in.make_sampler("mine", seed=0)

    def test_configurations_lie_in_the_space(self) -> None:
        """Each has the parameters that apply to it, with values that they may have."""
        space = SearchSpace.from_spec(SPACE)
        for values in self._searched():
            active = space.active(values)
            assert {parameter.name for parameter in active} == set(values)
            assert [parameter.problem(values[parameter.name]) for parameter in active] == [
                None
            ] * len(active)

    def test_the_same_seed_searches_alike(self) -> None:
        """All that it knows stands in the study, so that a study can go on in another process."""
        assert self._searched() == self._searched()

    def test_it_does_not_repeat_one_configuration(self) -> None:
        """Trials with seeds of their own are not all the same."""
        assert len({str(sorted(values.items())) for values in self._searched()}) > 1
