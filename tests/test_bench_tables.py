"""Tables of the benchmarks: their Markdown, their places in a page, and what run.py writes there."""

import doctest
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from import_graph import ROOT

from dpsweep.foundation.errors import BadInputError

BENCHMARKS = ROOT / "tests" / "benchmarks"
PAGE = """# A page

Prose before.

<!-- bench: first -->

old first

<!-- end -->

Prose between, with a | bar.

<!-- bench: second -->
<!-- end -->
Prose behind.
"""
PRINTS = """
import json, sys
print("a library says something")
rows = [["own", "41.1", "1", ""], ["peer", "82.2", "0.50x", {"limit": "<= 0.4x", "is_held": False}]]
table = {"columns": ["variant", "ms", "own takes", "goal"], "rows": rows, "caption": "", "note": ""}
command = " ".join(["python", *sys.argv[1:]])
print(json.dumps({"command": command, "tables": [table], "figures": {}}))
"""
FAILS = "import sys; sys.exit('no peer here')"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import tables

    return tables


@pytest.fixture
def run(tables):
    from tests.benchmarks import run

    return run


@pytest.fixture
def benches(run, tmp_path, monkeypatch):
    """A function that runs fake benches, named first, second, ..., on a page."""
    monkeypatch.setattr(run, "machine", lambda device: "2026-11-25: a machine")
    monkeypatch.setattr(run.os, "getloadavg", lambda: (0.25, 0.0, 0.0))
    page = tmp_path / "PAGE.md"
    page.write_text(PAGE)

    def start(*sources, arguments=(), devices=run.CPU):
        names = ("first", "second", "third")
        for name, source in zip(names, sources):
            (tmp_path / f"{name}.py").write_text(source)
        made = [run.Bench(name, f"{name}.py", devices) for name, _ in zip(names, sources)]
        return run.main(arguments, benches=made, folder=tmp_path, page=page)

    start.page = page
    return start


def written(rounds=""):
    return f"""\
| variant | ms | own takes | goal |
| --- | --- | --- | --- |
| own | 41.1 | 1 | |
| peer | 82.2 | 0.50x | <= 0.4x, missed |

`python --json{rounds}`, 2026-11-25: a machine; load 0.2 before, 0.2 after."""


def test_a_table_is_written_as_the_page_has_it(tables):
    times = {"own": 41.08, "plain": 56.9, "peer": 690.5, "slow peer": 5636.2}
    goals = {"plain": 0.5, "peer": 1 / 11, "slow peer": None}
    cells = tables.compared(times, "own", goals, is_time=True)
    rows = tuple((name, *row) for name, row in cells.items())
    table = tables.Table(("a|b", "ms", "own takes", "goal"), rows, "Above.", "Below.")
    assert table.markdown() == (
        "Above.\n\n"
        "| a\\|b | ms | own takes | goal |\n"
        "| --- | --- | --- | --- |\n"
        "| own | 41.1 | 1 | |\n"
        "| plain | 56.9 | 0.72x | <= 0.5x, missed |\n"
        "| peer | 690 | 0.059x (17 times faster) | <= 0.091x, held |\n"
        "| slow peer | 5,636 | 0.007x (137 times faster) | |\n\n"
        "Below."
    )
    section = tables.Section("python bench.py", (table,))
    assert tables.Section.from_json(section.to_json({"more": 1})) == section


def test_the_examples_of_numbers_are_right(tables):
    results = doctest.testmod(tables)
    assert results.attempted >= 4
    assert results.failed == 0


def test_a_row_has_a_cell_for_each_column(tables):
    with pytest.raises(BadInputError, match="a row of 1 cells in a table of 2 columns"):
        tables.Table(("a", "b"), (("only",),))


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("no marker", "has no place for the tables of first"),
        (PAGE + "<!-- bench: first -->\n<!-- end -->\n", "has 2 places for the tables of first"),
        (PAGE.replace("<!-- end -->\n\n", "\n", 1), "have no end"),
        (PAGE.partition("<!-- end -->")[0], "have no end"),
    ],
)
def test_a_place_that_is_lacking_doubled_or_open_is_refused_before_anything_runs(
    page, message, benches, capsys
):
    benches.page.write_text(page)
    assert benches(PRINTS) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "fix:" in errors
    assert benches.page.read_text() == page


def test_tables_replace_what_stood_between_their_markers_and_no_prose(benches):
    assert benches(PRINTS, PRINTS, arguments=["--rounds", "2"]) == 0
    once = benches.page.read_text()
    text = written(" --rounds 2")
    assert once == PAGE.replace("old first", text).replace(
        "second -->\n<!--", f"second -->\n\n{text}\n\n<!--"
    )
    assert benches(PRINTS, PRINTS, arguments=["--rounds", "2"]) == 0
    assert benches.page.read_text() == once


@pytest.mark.parametrize("bad", [FAILS, "print('no table')", "print('{}')", ""])
def test_a_bench_that_fails_keeps_its_tables_and_the_others_run(bad, benches, capsys):
    assert benches(bad, PRINTS) == 1
    page = benches.page.read_text()
    assert "old first" in page
    assert f"second -->\n\n{written()}\n\n<!-- end -->\nProse behind." in page
    assert "first keeps its old tables" in capsys.readouterr().err


def test_only_some_run_and_an_unknown_one_is_told(benches, capsys):
    assert benches(FAILS, PRINTS, arguments=["--only", "second"]) == 0
    assert "old first" in benches.page.read_text()
    assert benches(FAILS, PRINTS, arguments=["--only", "second,other"]) == 2
    assert "choose from first, second" in capsys.readouterr().err


def test_check_prints_differences_and_writes_nothing(benches, capsys):
    benches(PRINTS, PRINTS)
    before = benches.page.read_text()
    other = PRINTS.replace("41.1", "99.9").replace("0.50x", "0.30x").replace("False", "True")
    assert benches(PRINTS, other, arguments=["--check"]) == 1
    output = capsys.readouterr().out
    assert [line for line in output.splitlines() if line.startswith("differs")] == [
        "differs: peer, own takes: 0.50x, now 0.30x",
        "differs: peer, goal: <= 0.4x, missed, now <= 0.4x, held",
    ]
    assert benches(PRINTS, PRINTS.replace("0.50x", "0.51x"), arguments=["--check"]) == 0
    assert benches(PRINTS, PRINTS.replace('"peer"', '"new"'), arguments=["--check"]) == 1
    assert capsys.readouterr().out.count("differs: ") == 2  # a row of now, and one of before
    assert benches(FAILS, PRINTS, arguments=["--check"]) == 1
    assert benches.page.read_text() == before


def test_a_page_of_ones_own_is_made_and_keeps_its_text(benches, tmp_path):
    out = tmp_path / "new" / "tables.md"
    assert benches(PRINTS, arguments=["--out", str(out)]) == 0
    assert out.read_text() == f"\n<!-- bench: first -->\n\n{written()}\n\n<!-- end -->\n"
    out.write_text("mine\n" + out.read_text())
    assert benches(PRINTS, PRINTS, arguments=["--out", str(out)]) == 0
    assert out.read_text().startswith("mine\n")
    assert out.read_text().count(written()) == 2
    assert benches.page.read_text() == PAGE


def test_tables_of_a_gpu_have_places_of_their_own(run, benches, tmp_path, capsys):
    assert benches(PRINTS, arguments=["--device", "cuda"]) == 0  # none runs there
    assert benches(PRINTS, arguments=["--device", "cuda"], devices=run.ANY) == 2
    assert "no place for the tables of first on cuda" in capsys.readouterr().err
    out = tmp_path / "gpu.md"
    arguments = ["--device", "cuda", "--out", str(out)]
    assert benches(PRINTS, arguments=arguments, devices=run.ANY) == 0
    assert f"<!-- bench: first on cuda -->\n\n{written(' --device cuda')}" in out.read_text()
    assert benches.page.read_text() == PAGE


@pytest.mark.slow
def test_an_interruption_keeps_what_was_whole(benches, tmp_path):
    waits = f"open({str(tmp_path / 'begun')!r}, 'w').close()\nimport time; time.sleep(60)"
    for name, source in (("first", PRINTS), ("second", waits)):
        (tmp_path / f"{name}.py").write_text(source)
    script = (
        "import pathlib, run, sys\n"
        f"at = pathlib.Path({str(tmp_path)!r})\n"
        "made = [run.Bench(name, f'{name}.py', run.CPU) for name in ('first', 'second')]\n"
        "sys.exit(run.main([], benches=made, folder=at, page=at / 'PAGE.md'))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(300):
        if (tmp_path / "begun").exists():
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to both
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted; PAGE.md has the tables of what was whole" in errors
    page = benches.page.read_text()
    assert "| peer | 82.2 | 0.50x | <= 0.4x, missed |" in page
    assert page.endswith("<!-- bench: second -->\n<!-- end -->\nProse behind.\n")


def test_benchmarks_md_has_a_place_for_each_bench_and_no_other(run, tables):
    page = (ROOT / "BENCHMARKS.md").read_text()
    names = [bench.name for bench in run.BENCHES if "cpu" in bench.devices]
    for name in names:
        block = page[tables.block(page, name, title="BENCHMARKS.md")]
        assert "\n| --- |" in block
    assert len(re.findall(r"^<!-- bench: ", page, re.MULTILINE)) == len(names)
    assert [b.script for b in run.BENCHES if not (BENCHMARKS / b.script).is_file()] == []


def test_costs_that_are_drawn_are_those_of_the_page():
    page = (ROOT / "BENCHMARKS.md").read_text()
    plots = json.loads((ROOT / "docs" / "pictures" / "costs.json").read_text())
    assert [f"docs/pictures/cost_{plot['name']}.png" in page for plot in plots] == [True] * 4
