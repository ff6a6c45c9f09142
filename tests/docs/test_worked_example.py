"""The prices of twenty trials come out of the commands that stand beside them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks
from whole_studies import cli_here

from dpsweep import SweepSpec, plan_sweep
from dpsweep.privacy.statement import shown_epsilon

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / f"search_{name}.md" for name in ("cost", "strategies")]
TEXT = "\n".join(page.read_text() for page in PAGES)
#: What changes the spec of declared trials, and how many of them fit then.
FIT = r"^\$ dpsweep plan declared\.yaml(?: --set (\S+))?   # (\d+) of them fit$"
FITS = re.findall(FIT, PAGES[1].read_text(), re.M)
PRICED = re.findall(r"^\$ (.*dpsweep account .*?)   # epsilon ([\d.]+)$", TEXT, re.M)


def test_the_worked_example_is_there():
    """Of no cases at all pytest would skip the tests below without a word."""
    assert len(PRICED) == 9
    assert len(FITS) == 2


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("command", "epsilon"), PRICED)
def test_the_worked_example(command, epsilon):
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"epsilon +{re.escape(epsilon)}\b", done.stdout), done.stdout


def written(file, folder, *changes):
    """Return the spec of a page's block that names its file."""
    (block,) = [b for page in PAGES for b in blocks(page, "yaml") if b.file == file]
    (folder / file).write_text(block.text)
    return SweepSpec.from_yaml(folder / file, overrides=[change for change in changes if change])


def _columns():
    """Return strategy -> (accounting, accountant, epsilon in 1, epsilon in 3), as the page has."""
    rows = re.findall(r"^\| ([a-z ,]+) \|(.*)\|$", PAGES[0].read_text(), re.M)
    cells = {title: [cell.strip() for cell in rest.split("|")] for title, rest in rows}
    return {
        title: (*row[:3], row[4])
        for title, row in cells.items()
        if len(row) == 7 and title != "strategy"
    }


@pytest.mark.slow
def test_the_table_of_strategies(monkeypatch):
    """Its epsilons are those of the command beside it, which do not depend on replicates."""
    monkeypatch.chdir(ROOT)
    command = re.search(r"`dpsweep (advise \S+ --epsilon) 1 (--set [^`]*)`", PAGES[0].read_text())
    table = {}
    for epsilon in ("1", "3"):
        words = [*command[1].split(), epsilon, *command[2].split(), "--replicates", "20"]
        done = cli_here(*words)
        assert done.returncode == 0, done.stderr
        for line in done.stdout.partition("\n\n")[0].splitlines()[2:]:
            title, shown, accountant, accounting, *_ = re.split(r"\s{2,}", line.lstrip("* "))
            terms = table.setdefault(title, (accounting, accountant))
            table[title] = (*terms, shown.removeprefix("0"))
    assert table == _columns()
    assert len(table) == 8


@pytest.mark.slow
def test_what_probes_leave(tmp_path):
    text = PAGES[1].read_text()
    shown = re.search(r"they take ([\d.]+) of 3 by themselves, and .* keeps (\d+\.\d+)\.", text)
    probing = plan_sweep(written("probe.yaml", tmp_path)).to_dict()["probing"]
    costs = [shown_epsilon(probing[f"{part}_epsilon"]) for part in ("probes", "final")]
    assert costs == [shown[1], shown[2]]


@pytest.mark.parametrize(("change", "number"), FITS)
def test_how_many_trials_fit(tmp_path, change, number):
    plan = plan_sweep(written("declared.yaml", tmp_path, change)).to_dict()
    fit = plan["declared"]["full_length_trials_that_fit"]
    if change:
        fit = plan["filter"]["full_length_trials_that_fit"]["at_max_cost"]
    assert fit == int(number)
