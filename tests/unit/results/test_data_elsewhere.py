"""A study's data, asked for in another directory than that of its launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from whole_studies import make_spec

from dpsweep.foundation.errors import DataError
from dpsweep.results.origins import reading_data
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.data.loading import describe_dataset


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_path_of_another_directory_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_absolute: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "d.npz") if is_absolute else "d.npz"
    data = {"dataset": "npz", "path": path, "num_records": 600, "num_classes": 2}
    data |= {"validation": {"fraction": 0.2, "visibility": "public"}}
    spec = SweepSpec(**{**make_spec(tmp_path, "elsewhere"), "data": data})
    with pytest.raises(DataError) as caught, reading_data(spec):
        describe_dataset(spec.data)
    is_told = "begins where it was launched" in str(caught.value)
    assert is_told is not is_absolute
    assert "no file" in caught.value.message
