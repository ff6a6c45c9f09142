"""A study whose end was broken off before its pictures were drawn: the same command draws them."""

import pytest
from studies_here import run_here
from whole_studies import make_spec

from dpsweep.foundation.logs import read_log
from dpsweep.results.page import drawing


@pytest.fixture
def raw(tmp_path):
    raw = make_spec(tmp_path, "late", search__num_trials=2)
    raw["search"]["space"] = {"method": "dp_sgd", "model.name": "linear", "train.max_steps": 5}
    raw["tracking"]["pictures"] = True
    return raw


@pytest.mark.slow
def test_pictures_that_an_end_has_left_out_are_drawn_by_the_same_command(raw, monkeypatch):
    files = run_here(monkeypatch.setattr, raw).files
    assert "finished (" in files.page.read_text()
    files.page.unlink()
    assert run_here(monkeypatch.setattr, raw).state == "finished"
    assert "finished (" in files.page.read_text()
    last = [line for line in read_log(files.journal) if line["event"] == "card_renewed"]
    assert [str(files.page) in line["artifacts"] for line in last] == [True]
    before = len(read_log(files.journal))
    run_here(monkeypatch.setattr, raw)  # nothing is left to do
    assert len(read_log(files.journal)) == before


@pytest.mark.slow
def test_pictures_that_cannot_be_drawn_are_tried_again(raw, monkeypatch):
    files = run_here(monkeypatch.setattr, raw).files
    files.page.unlink()

    def fail(result):
        raise ValueError("no such mark")

    with monkeypatch.context() as patch:
        patch.setattr(drawing, "draw", fail)
        run_here(monkeypatch.setattr, raw)
    assert not files.page.exists()
    run_here(monkeypatch.setattr, raw)
    assert files.page.exists()
