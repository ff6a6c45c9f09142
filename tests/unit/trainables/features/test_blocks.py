"""Features of a record, to the last bit the same however many records are computed with it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from raised import PanicException, raising

from dpsweep.foundation.errors import ResourceError, SweepError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.features import blocks
from dpsweep.trainables.features.blocks import compute_block, compute_rows, features_of
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


def _warning(_spec: object, _info: object, job: int) -> int:
    warnings.warn(f"record {job}", stacklevel=1)
    if job > 100:
        raise ValueError(f"record {job}")
    if job < 0:
        raise ResourceError("no room")
    if job == 50:
        raise PanicException(f"index out of range: {job}")
    if job == 51:
        sys.exit(f"record {job} is damaged")
    return job + 1


def test_features_tell_nothing_of_a_record(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of few records are computed in the driver, perhaps by another package's extractor."""
    monkeypatch.setattr(blocks, "features_of", _warning)

    def computed(jobs: list[int]) -> list[Any]:
        made = (SimpleNamespace(offset=0, spec=None, info=None, inputs=job) for job in jobs)
        return [features for _, features in map(compute_rows, cast("Any", made))]

    assert computed([1, 2]) == [2, 3]
    with pytest.raises(SweepError, match=r"^features cannot be computed: ValueError at") as caught:
        computed([101])
    assert "101" not in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(SweepError, match=r"computed: PanicException at \S+$"):
        computed([50])
    with pytest.raises(SystemExit) as ended:
        computed([51])
    assert ended.value.code == 1
    with pytest.raises(SweepError, match=r"^features cannot be computed: ResourceError at"):
        computed([-1])  # of another package, too
    assert recwarn.list == []


def test_what_is_ours_keeps_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "features_of", lambda *_: np.zeros((1, 1), np.float32))
    job = SimpleNamespace(path=tmp_path / "none", offset=0, spec=None, info=None, inputs=None)
    with pytest.raises(ResourceError, match="features cannot be written"):
        compute_block(cast("Any", job))
