"""Recommended spaces of other packages: written by `dpsweep init`, for any data or one dataset."""

from __future__ import annotations

import pytest
from outside import install
from raw_specs import mistakes

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning import reading
from dpsweep.search_spaces import SPACES, Recommended, starter_spec
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.data.sources import DATASETS

MINE = (Hyperparameter("optim.lr", "float", 0.1, "."), Hyperparameter("depth", "int", 1, "."))
SPACE = {"method": "mine", "optim.lr": {"loguniform": [0.1, 1]}, "depth": 3}
ANY = Recommended({"*": SPACE}, {"depth": "of the tree"})
DIGITS = Recommended({"digits": SPACE})
PLAIN = {"digits": SPACE}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name.lower(): f"{__name__}:{name}" for name in ("ANY", "DIGITS", "PLAIN")}
    places["dp_sgd"] = "no_such_module:SPACES"  # cannot take the place of what is built in
    install(monkeypatch, "dpsweep.search_spaces", SPACES, **places)
    install(monkeypatch, "dpsweep.datasets", DATASETS, spots="no_such_module:open")


@pytest.mark.parametrize("dataset", ["digits", "npz", "spots"])
def test_a_star_stands_for_any_dataset(dataset: str) -> None:
    text = starter_spec(dataset, "any")
    spec = SweepSpec.from_yaml(text)
    assert (spec.data.dataset, spec.search.space) == (dataset, SPACE)
    assert "    # of the tree\n    depth: 3\n" in text
    assert max(map(len, text.splitlines())) <= 100


def test_other_datasets_have_no_starter_and_it_is_said_who_has() -> None:
    assert SweepSpec.from_yaml(starter_spec("digits", "digits")).search.space == SPACE
    with pytest.raises(BadInputError, match="no starter spec for digits on npz") as refused:
        starter_spec("npz", "digits")
    assert refused.value.fix is not None
    assert refused.value.fix.startswith("use --method ")
    assert " or any" in refused.value.fix


def test_what_is_no_recommendation_is_named() -> None:
    with pytest.raises(BadInputError, match="of plain is a dict, not a Recommended"):
        starter_spec("digits", "plain")


def test_a_name_of_our_own_stays_ours() -> None:
    assert SweepSpec.from_yaml(starter_spec("digits", "dp_sgd")).search.space["method"] == "dp_sgd"


def test_a_word_near_one_is_told() -> None:
    with pytest.raises(BadInputError) as refused:
        starter_spec("spot", "any")
    assert "did you mean 'spots'?" in str(refused.value)


TEXT = """
name: short
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
privacy: {trial_epsilon: 2.0, accounting: unaccounted}
search: {preset: digits}
"""


def test_a_preset_stands_for_the_space_and_the_study_keeps_the_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "declared_hyperparameters", lambda: {"mine": MINE})
    spec = reading.read_spec(TEXT)
    assert spec.search.space == SPACE
    assert "preset" not in spec.to_dict()["search"]
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("digit", r"search\.preset: unknown recommended space 'digit' \(did you mean 'digits'\?"),
        ("plain", r"search\.preset: the recommended space of plain is a dict, not a Recommended"),
    ],
)
def test_a_preset_that_is_not_there_is_a_mistake_of_its_line(preset: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        reading.read_spec(TEXT, overrides=[f"search.preset={preset}"])


def test_a_preset_has_to_suit_the_data_and_stands_alone() -> None:
    data = "data={dataset: npz, path: a.npz, num_records: 9, num_classes: 2, validation: {visibility: public}}"
    with pytest.raises(SpecError, match=r"nothing is recommended for digits on npz \(known: .*any"):
        reading.read_spec(TEXT, overrides=[data])
    with pytest.raises(SpecError, match=r"search\.preset: stands beside space"):
        reading.read_spec(TEXT, overrides=["search.space={method: dp_sgd}"])
    raw = {
        "name": "short",
        "data": {"dataset": "digits", "validation": {"visibility": "public"}},
        "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
        "search": {"preset": "digits"},
    }
    assert any(
        "search.preset: is known to spec files alone" in line for line in mistakes(SweepSpec, **raw)
    )
