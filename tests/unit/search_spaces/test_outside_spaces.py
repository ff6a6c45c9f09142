"""Recommended spaces of other packages: written by `dpsweep init`, for any data or one dataset."""

from __future__ import annotations

import pytest
from outside import install

from dpsweep.foundation.errors import BadInputError
from dpsweep.search_spaces import SPACES, Recommended, starter_spec
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.data.sources import DATASETS

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
