"""Feature extractors of other packages: named like ours, kept by the version of their package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from outside import install

from dpsweep.foundation.errors import ModelError, SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.trainables.features.choice import FEATURE_HYPERPARAMETERS, feature_spec
from dpsweep.trainables.features.spec import EXTRACTORS

TEXT = """
name: digits
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
privacy: {trial_epsilon: 2.0, accounting: unaccounted}
search:
  num_trials: 1
  space: {method: scatternet, features.name: halves}
"""
GIVEN: list[dict[str, Any]] = []


def build_halves(settings: Mapping[str, Any], info: Any) -> torch.nn.Module:
    """Return a network that averages pixels two by two."""
    GIVEN.append(dict(settings))
    if len(info.input_shape) != 3:
        raise ModelError("halves needs images")
    return torch.nn.AvgPool2d(2)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    GIVEN.clear()
    places = {"halves": f"{__name__}:build_halves", "broken": "no_such_module:build"}
    install(monkeypatch, "dpsweep.extractors", EXTRACTORS, **places)


def test_its_features_are_what_trials_train_on() -> None:
    checked = preflight(read_spec(TEXT))
    hparams = checked.sample[0].hparams
    spec = feature_spec(hparams, checked.info, norm="none")
    assert spec.extractor == "halves"
    assert spec.describe(checked.info).input_shape == (1, 4, 4)
    assert GIVEN[-1] == {"norm": "none", "package": "an unknown package"}
    sized = feature_spec({**hparams, "features.image_size": 16}, checked.info, norm="none")
    assert dict(sized.settings)["image_size"] == 16
    assert sized.key != spec.key


def test_another_version_of_its_package_has_other_features(monkeypatch: pytest.MonkeyPatch) -> None:
    hparams = {p.name: p.default for p in FEATURE_HYPERPARAMETERS} | {"features.name": "halves"}
    keys = set()
    for version in ("1.0", "1.1"):
        monkeypatch.setattr(
            "dpsweep.trainables.features.choice.package_of", lambda point, v=version: f"a {v}"
        )
        keys.add(feature_spec(hparams, None, norm="none").key)
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["search.space.features.name=halfs"], r"did you mean 'halves'\?; allowed: scatternet, "),
        (["search.space.features.checkpoint=w.pt"], "features.checkpoint is of no use with "),
        (["search.space.features.name=broken"], "feature extractor 'broken' of .* be loaded"),
    ],
)
def test_what_cannot_be_computed_is_told_before_anything_starts(
    changes: list[str], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        preflight(read_spec(TEXT, overrides=changes))
