"""Samplers of other packages: named in a spec, built for every trial, kept out of a selection."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from outside import install

from dpsweep.foundation.errors import SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.search.samplers import SAMPLERS
from dpsweep.search.suggestions import Suggestions
from dpsweep.search_spaces import SearchSpace
from dpsweep.spec.study import SweepSpec

TEXT = """
name: dice
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
privacy: {trial_epsilon: 2.0, accounting: unaccounted}
search:
  sampler: dice
  num_trials: 3
  space: {method: dp_sgd, optim.lr: {loguniform: [0.01, 1]}}
"""
SEEDS: list[int] = []


def build_dice(seed: int) -> optuna.samplers.BaseSampler:
    SEEDS.append(seed)
    return optuna.samplers.RandomSampler(seed=seed)


def build_nothing(seed: int) -> Any:
    return "dice"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    SEEDS.clear()
    places = {"dice": f"{__name__}:build_dice", "nothing": f"{__name__}:build_nothing"}
    install(monkeypatch, "dpsweep.samplers", SAMPLERS, **places, lost="no_such_module:build")


def test_it_is_asked_for_every_trial_with_a_seed_of_its_own() -> None:
    spec = read_spec(TEXT)
    assert preflight(spec).num_trials == 3
    SEEDS.clear()
    search = Suggestions(spec, SearchSpace.from_spec(spec.space), path=None)
    rates = []
    for _ in range(3):
        asked = search.ask()
        assert asked is not None
        rates.append(asked[1]["optim.lr"])
    assert len(set(rates)) == len(set(SEEDS)) == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "search.sampler: sampler 'nothing' makes a str, not a sampler of Optuna's"),
        ("lost", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_one_that_cannot_be_asked_is_refused_before_anything_starts(name: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        preflight(read_spec(TEXT, overrides=[f"search.sampler={name}"]))
    assert said in str(refused.value)


def test_a_word_near_it_is_told() -> None:
    with pytest.raises(SpecError, match=r"unknown value 'dicee' \(did you mean 'dice'\? known: "):
        read_spec(TEXT, overrides=["search.sampler=dicee"])


def test_nobody_knows_whether_it_learns_so_a_selection_and_episodes_refuse_it() -> None:
    sets = ["privacy.accounting=select", "privacy.selection={mean: 3, shape: 1}"]
    with pytest.raises(SpecError, match="'dice' learns from other trials, and select needs them"):
        read_spec(TEXT.replace("  num_trials: 3\n", ""), overrides=sets)
    sets = ["episodes={number: 3, ways: 2, shots: 5}"]
    with pytest.raises(SpecError, match="'dice' cannot run every configuration on every episode"):
        read_spec(TEXT.replace("  num_trials: 3\n", ""), overrides=sets)


def test_a_study_can_be_read_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "dpsweep.samplers", SAMPLERS)
    with pytest.raises(SpecError, match="unknown value 'dice'"):
        SweepSpec.from_yaml(TEXT)
    assert SweepSpec.from_yaml(TEXT, is_stored=True).search.sampler == "dice"
