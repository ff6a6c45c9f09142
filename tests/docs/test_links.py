"""No page points at a file, a heading or a picture that is not there."""

import re

import pytest
from import_graph import ROOT
from pages import PAGES, README, anchors, links, prose

LINKED = [
    *PAGES,
    *(ROOT / n for n in ("CONTRIBUTING.md", "DECISIONS.md", "CHANGELOG.md", "BENCHMARKS.md")),
    ROOT / "SECURITY.md",
]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page):
    dead = []
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_test_that_security_names_is_there():
    text = (ROOT / "SECURITY.md").read_text()
    paths, names = (
        set(re.findall(r"`(tests/[\w/.]+)`", text)),
        set(re.findall(r"`(test_\w+)`", text)),
    )
    assert len(paths) > 8
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in sorted(names) if f"def {name}(" not in written] == []


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(README.read_text().splitlines()) <= 150
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= {
        link.partition("#")[0] for link in links(README)
    }


def test_no_picture_is_left_over_or_large():
    shown = {link.rpartition("/")[2] for page in LINKED for link in links(page)}
    pictures = list((ROOT / "docs" / "pictures").rglob("*.png"))
    assert {picture.name for picture in pictures} == {n for n in shown if n.endswith(".png")}
    assert [picture.name for picture in pictures if picture.stat().st_size > 150_000] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    folders = "platform|trainables|search_spaces|cluster|tests|docs"
    named = re.findall(rf"`((?:{folders})/[\w./]+)`", prose(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_files_that_the_table_of_additions_changes_are_there():
    """Of what is added only the folder can be there; what is changed is there already."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| .+ \| (.+) \| (.+) \|$", text.partition("| X | new files")[2], re.M)
    assert len(rows) > 10
    roots = (ROOT, ROOT / "platform" / "dpsweep")
    for new, changed in rows:
        for name in re.findall(r"`([\w./]+\.py)`", changed):
            assert any((root / name).is_file() for root in roots), name
        for name in re.findall(r"`([\w./]+/)[\w.]*`", new):
            assert any((root / name).is_dir() for root in roots), name
