"""Each notebook runs from its first cell to its last, and is stored without what it showed."""

import json
import re

import pytest
from import_graph import ROOT
from notebooks import NOTEBOOKS, cells, run_cells
from pages import README, anchors, links

NAMES = [path.stem for path in NOTEBOOKS]
BY_NAME = dict(zip(NAMES, NOTEBOOKS))


def test_the_pages_lead_to_every_notebook():
    assert NAMES == ["choosing_epsilon", "quick_start"]
    for page, folder in ((README, "docs/notebooks/"), (ROOT / "docs" / "results.md", "notebooks/")):
        assert {f"{folder}{name}.ipynb" for name in NAMES} <= set(links(page))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_outputs_and_tells_a_story(name):
    raw = json.loads(BY_NAME[name].read_text())
    assert (raw["nbformat"], raw["metadata"]["kernelspec"]["name"]) == (4, "python3")
    story = cells(BY_NAME[name])
    code = [cell for cell in story if cell.kind == "code"]
    assert {(str(cell.raw["outputs"]), cell.raw["execution_count"]) for cell in code} == {
        ("[]", None)
    }
    assert len({cell.raw["id"] for cell in story}) == len(story)
    assert story[0].text.startswith("# ")
    assert sum(cell.kind == "markdown" for cell in story) >= len(code)


@pytest.mark.parametrize("name", NAMES)
def test_links_of_a_notebook_lead_somewhere(name):
    folder = BY_NAME[name].parent
    text = "\n".join(cell.text for cell in cells(BY_NAME[name]) if cell.kind == "markdown")
    named = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(named) > 2
    for link in named:
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve()
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.fixture
def desk(tmp_path, monkeypatch, ray_cluster):
    """An empty folder to open a notebook in; studies go below it, as for a reader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPSWEEP_STUDIES")
    return tmp_path


@pytest.mark.slow
@pytest.mark.ray
def test_the_quick_start_ends_with_a_claim(desk):
    names, shown = run_cells(BY_NAME["quick_start"])
    result, best = names["result"], names["best"]
    assert (result.state, len(result.results)) == ("finished", 6)
    assert shown[1]["epsilon"] == names["claim"].epsilon == 6.0
    pages = [page for page in shown if isinstance(page, str)]
    assert len(pages) == 3
    for page in pages[:2]:  # the study's and the trial's: each with the terms of its epsilons
        assert "add_or_remove_one" in page
        assert "composed" in page
    assert best.epsilon <= 2.0
    assert best.value > 0.5  # ten classes: it has learned something
    assert (desk / "studies" / "quick-start" / "ledger").is_dir()


@pytest.mark.ray
@pytest.mark.slow
def test_choosing_epsilon_prices_noise_search_and_accuracy(desk):
    names, shown = run_cells(BY_NAME["choosing_epsilon"])
    multipliers = list(names["noise"]["noise_multiplier"])
    assert multipliers == sorted(multipliers, reverse=True)
    prices = names["prices"].set_index(["one trial", "accounting"])["epsilon"]
    assert set(prices.index.get_level_values(1)) == {"composed", "select", "public"}
    for epsilon in (0.5, 1.0, 2.0):
        public, select, composed = (prices[epsilon, m] for m in ("public", "select", "composed"))
        assert public <= epsilon < select < composed
    result = names["result"]
    assert result.state == "finished"
    targets = [trial.config["noise.target_epsilon"] for trial in result.results]
    assert sorted(targets) == [0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert result.study_statement().epsilon == 10.0
    assert [page[:4] for page in shown if isinstance(page, bytes)] == [b"\x89PNG"]
