"""What a plain session shows of a study, and what it says of the wrong kind of thing."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_studies import copy_studies

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.preflight import preflight
from dpsweep.results.study import load_sweep


def test_a_trial_is_three_lines_with_both_epsilons_and_their_terms(tmp_path: Path) -> None:
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    best = result.best()
    head, alone, study = repr(best).splitlines()
    assert head.startswith(f"<trial {best.trial_id}: finished, validation/accuracy={best.value}")
    assert alone == f" alone: {best.statement.one_line()}"
    assert study == f" the study: {result.study_statement().one_line()}>"


@pytest.mark.parametrize("wrong", ["digits.yaml", {"name": "digits"}])
def test_a_sweep_is_run_from_a_spec(wrong: object) -> None:
    with pytest.raises(BadInputError, match=f"this is a {type(wrong).__name__}") as refused:
        preflight(wrong)  # type: ignore[arg-type]
    assert "SweepSpec.from_yaml(path)" in str(refused.value.fix)


def test_a_study_is_opened_by_its_name() -> None:
    with pytest.raises(BadInputError, match="opened by its name, and this is a NoneType"):
        load_sweep(None)  # type: ignore[arg-type]
