"""A spec that was varied by pydantic's means is checked again before a sweep is run from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from whole_studies import make_spec

from dpsweep import Observer, SweepSpec, run_sweep
from dpsweep.foundation.errors import BadInputError


@pytest.mark.parametrize(
    ("section", "changes", "wanted"),
    [
        ("", {"name": "../evil"}, "name"),
        ("privacy", {"accounting": "foo"}, "a kind that none has"),
        ("privacy", {"trial_epsilon": -1.0}, "trial_epsilon"),
        ("data.validation", {"visibility": "exact"}, "exact"),
    ],
)
def test_what_no_spec_may_hold_runs_nothing(
    tmp_path: Path, section: str, changes: dict[str, Any], wanted: str
) -> None:
    raw = make_spec(tmp_path, "varied", tracking={"uri": None})
    raw["privacy"] = {"accounting": "composed", "trial_epsilon": 2.0, "study_epsilon": 4.0}
    spec = SweepSpec(**raw)
    update: Any = changes
    for name in reversed([part for part in section.split(".") if part]):
        parent = spec
        for other in section.split(".")[: section.split(".").index(name)]:
            parent = getattr(parent, other)
        update = {name: getattr(parent, name).model_copy(update=update)}
    with pytest.raises(BadInputError) as caught:
        run_sweep(spec.model_copy(update=update))
    assert wanted in str(caught.value)
    assert not (tmp_path / "studies").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.filterwarnings("ignore")  # pydantic's, of what it writes out
@pytest.mark.parametrize(
    "changes",
    [{"storage": {"path": "x"}}, {"tracking": {"uri": None}}, {"data": {"dataset": "digits"}}],
)
def test_a_mapping_is_no_section(tmp_path: Path, changes: dict[str, Any]) -> None:
    raw = make_spec(tmp_path, "varied", tracking={"uri": None})
    with pytest.raises(BadInputError, match="a kind that none has"):
        run_sweep(SweepSpec(**raw).model_copy(update=changes))
    spec = SweepSpec(**raw)
    validation = spec.data.model_copy(update={"validation": {"visibility": "public"}})
    with pytest.raises(BadInputError, match="a kind that none has"):
        run_sweep(spec.model_copy(update={"data": validation}))


@pytest.mark.parametrize("observer", [print, Observer, "me"])
def test_who_watches_is_an_observer(tmp_path: Path, observer: Any) -> None:
    spec = SweepSpec(**make_spec(tmp_path, "watched", tracking={"uri": None}))
    with pytest.raises(BadInputError, match="a sweep is watched by an Observer, and this is a"):
        run_sweep(spec, observer=observer)
    assert not (tmp_path / "studies").exists()
