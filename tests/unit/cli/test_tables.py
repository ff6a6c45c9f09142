"""Tables for people: whole words at every width, blocks, equal columns said once."""

import re

import pytest

from dpsweep.cli.output import Format, print_records
from dpsweep.cli.tables import lines_of_table, wrapped

ROWS = [
    {
        "trial": number,
        "state": state,
        "method": "scatternet",
        "validation/accuracy": 0.9276 - number / 100,
        "epsilon": 2.0,
        "steps": f"{number * 10}/125",
        "features.name": "scatter_cnn_deep",
        "clip.max_grad_norm": 0.2433,
        "noise.end_ratio": 1.0,
        "optim.lr": 1.3422,
        "reason": "validation/accuracy 0.128134 at rung 1 of 2 is below the cut-off",
    }
    for number, state in enumerate(["finished", "pruned", "interrupted"])
]


def shown(capsys, columns, **changes):
    print_records(ROWS, Format.TABLE, **changes)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 160])
def test_no_word_is_broken_and_no_line_is_too_long(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(capsys, columns, caption="epsilon: of one trial alone, add_or_remove_one, " * 3)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if line != line.rstrip()]
    for row in ROWS:
        for value in (row["state"], row["method"], row["features.name"], row["steps"]):
            assert re.search(rf"(?<!\S){re.escape(value)}(?!\S)", text), value
    for word in ("accuracy", "epsilon", "features", "grad", "norm", "add_or_remove_one"):
        assert re.search(rf"(?<![a-z]){word}(?![a-z])", text), word


def test_what_does_not_fit_beside_goes_below_with_the_names_of_its_rows(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = shown(capsys, 60)
    rules = [number for number, line in enumerate(lines) if set(line) == {"-"}]
    assert len(rules) > 1
    for rule in rules:
        assert lines[rule - 1].split()[0] == "trial"
        assert lines[rule + 1].split()[0] == "0"


def test_equal_columns_are_said_once_and_empty_ones_not_at_all(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rows = [{"trial": n, "method": "dp_sgd", "optim.lr": n, "missing": None} for n in range(2)]
    print_records(rows, Format.TABLE, collapsible={"method", "optim.lr"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["trial", "optim.lr"]
    assert lines[-1] == "in all rows: method=dp_sgd"
    print_records(rows, Format.CSV, collapsible={"method", "optim.lr"})
    assert capsys.readouterr().out.splitlines()[0] == "trial,method,optim.lr,missing"


def test_a_word_longer_than_the_terminal_stays_whole():
    path = "a/very/long/path/that/is/copied.json"
    assert wrapped(f"see {path} now", 20) == ["see", path, "now"]
    lines = lines_of_table(["name", "path"], [{"name": "a", "path": path}], [], 20)
    assert any(path in line for line in lines)


def test_a_header_breaks_at_dots_only_where_it_fits_no_block():
    rows = [{"trial": "1", "optim.lr": "0.1", "clip.max_grad_norm": "0.2"}]
    lines = lines_of_table(list(rows[0]), rows, list(rows[0]), 26)
    assert "trial  optim.lr" in lines
    assert "trial  clip.max_grad_norm" in lines
    narrow = lines_of_table(list(rows[0]), rows, list(rows[0]), 20)
    assert any(line.endswith("max_grad_norm") for line in narrow)


def test_what_is_missing_in_a_table_is_a_dash(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_records([{"": "*", "trial": 0, "cutoff": None}, {"": "", "trial": 1, "cutoff": 0.5}],
                  Format.TABLE)  # fmt: skip
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [["*", "0", "-"], ["1", "0.5000"]]
