"""Features of a record, to the last bit the same however many records are computed with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from raised import PanicException, raising

from dpsweep.foundation.errors import SweepError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.features import blocks
from dpsweep.trainables.features.blocks import compute_block, features_of
from dpsweep.trainables.features.choice import FEATURE_HYPERPARAMETERS, feature_spec


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "size", "count"), [("scatternet", None, 40), ("efficientnet_lite0", 32, 140)]
)
def test_no_feature_moves_by_a_bit_with_how_many_records_there_are(
    name: str, size: int | None, count: int
) -> None:
    info = DatasetInfo("r", (3, 16, 16), 10, count, 0, 0, 0, ())
    defaults = {parameter.name: parameter.default for parameter in FEATURE_HYPERPARAMETERS}
    hparams = {**defaults, "features.name": name, "features.image_size": size}
    spec = feature_spec(hparams, info, norm="none")
    records = np.random.default_rng(0).random((count, 3, 16, 16)).astype(np.float32)
    whole = features_of(spec, info, records)
    assert len(whole) == count
    for present in (1, 2, 3, 5, 16, count - 11, count - 1):
        assert np.array_equal(features_of(spec, info, records[:present]), whole[:present])
    assert np.array_equal(features_of(spec, info, records[1:]), whole[1:])


@pytest.mark.parametrize("kind", [PanicException, ValueError])
def test_an_extractor_that_fails_says_nothing_of_a_record(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of Ray's would log its words, or die of it and be asked again."""
    monkeypatch.setattr(blocks, "features_of", raising(kind("record 4711"), module="others.nets"))
    job = SimpleNamespace(path=tmp_path, offset=0, spec=None, info=None, inputs=None)
    with pytest.raises(SweepError, match=rf"^features cannot be computed: {kind.__name__} at nets"):
        compute_block(cast("Any", job))
