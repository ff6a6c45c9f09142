"""The gallery shows every picture that can be drawn, from files that are there and small."""

import re

import pytest
from import_graph import ROOT
from pages import blocks, prose
from stored_studies import copy_studies

from dpsweep import load_sweep
from dpsweep.results.pictures.confusion import keep_confusion
from dpsweep.results.pictures.table import OF_BEST, OF_SEARCH

PAGE = ROOT / "docs" / "gallery.md"
SHOWN = re.findall(r'<img src="pictures/gallery/(\w+)\.png" alt="([^"]+)"', PAGE.read_text())
_MOST_BYTES = 60_000


def test_the_page_shows_every_picture_in_the_order_of_a_report():
    drawn = [draw.__name__ for draw in (*OF_SEARCH, *OF_BEST)]
    assert [name for name, _ in SHOWN] == drawn


def test_pictures_are_named_as_what_draws_them(tmp_path, monkeypatch):
    monkeypatch.setattr("dpsweep.results.pictures.importance.LEAST", 2)
    result = load_sweep("composed", root=copy_studies(tmp_path, ["composed"]))
    best = result.best().trial_id
    keep_confusion(result.files, trial=best, part="test", names="ab", counts=[[1, 0], [0, 1]])
    for draw in (*OF_SEARCH, *OF_BEST):
        picture = draw(result)
        assert picture is not None
        assert picture.name == draw.__name__


@pytest.mark.parametrize("name", [name for name, _ in SHOWN])
def test_its_file_is_there_and_small(name):
    path = ROOT / "docs" / "pictures" / "gallery" / f"{name}.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size <= _MOST_BYTES


def test_each_picture_has_a_sentence_on_how_to_read_it_and_one_for_those_who_cannot_see_it():
    parts = re.split(r"^## ", prose(PAGE), flags=re.MULTILINE)[1:]
    with_picture = [part for part in parts if "<img" in part]
    assert len(with_picture) == len(SHOWN)
    for part in with_picture:
        said = re.sub(r"<img[^>]*>", "", part.partition("\n")[2]).strip()
        assert said.endswith(".")
        assert len(said.split()) > 15, part
    assert all(len(alt.split()) > 5 for _, alt in SHOWN)


def test_the_study_of_the_page_is_the_one_beside_its_pictures():
    commands = [command for block in blocks(PAGE, "console") for command in block.commands]
    assert commands[0] == "dpsweep run docs/pictures/gallery.yaml"
    spec = (ROOT / "docs" / "pictures" / "gallery.yaml").read_text()
    assert "name: digits-gallery\n" in spec
    assert commands[1].startswith("dpsweep report digits-gallery --html ")
