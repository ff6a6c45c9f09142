"""Features of a record, to the last bit the same however many records are computed with it."""

from __future__ import annotations

import numpy as np
import pytest

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.features.blocks import features_of
from dpsweep.trainables.features.choice import FEATURE_HYPERPARAMETERS, feature_spec


@pytest.mark.slow
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
