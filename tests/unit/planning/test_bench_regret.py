"""The bench of regret: its reference, its rows, and going on where it was."""

import json
from pathlib import Path

import pytest

from dpsweep.planning.reading import read_spec
from tests.benchmarks.bench_regret import ORACLE, Results, Single, print_table, reference
from tests.benchmarks.draw_regret import settings_of

SPEC = read_spec("tests/benchmarks/regret_digits.yaml").to_dict()
ABOUT = {"base": SPEC, "grid": [1.25, 20.0, 3]}


def single(strategy, seed, *tests, **changes):
    fields = {"epsilon": 1.0, "trial_epsilon": 0.5, "trials": 8, "seconds": 2.0, **changes}
    return Single(strategy=strategy, seed=seed, tests=list(tests), **fields)


@pytest.fixture
def results(tmp_path):
    results = Results(tmp_path / "regret.json", ABOUT)
    results.add(single(ORACLE, 0, (1.25, 0.70), (5.0, 0.92), (20.0, 0.93)))
    results.add(single(ORACLE, 1, (1.25, 0.70), (5.0, 0.90), (20.0, 0.87)))
    results.add(single("fifo", 0, (3.0, 0.86)))
    results.add(single("fifo", 1, (9.0, 0.88)))
    return results


def test_the_reference_is_the_best_mean_and_no_lucky_seed(results):
    assert reference(results, 1.0) == (5.0, [0.92, 0.90])
    assert reference(results, 3.0) is None


def test_regret_is_in_points_with_the_error_of_the_difference(results, capsys):
    results.add(single("select", 0, (5.0, 0.91), trials=None))
    refused = {(1.0, "halving"): "a trial has 4 steps"}
    print_table(results, 1.0, ["fifo", "select", "halving", "probe"], refused)
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "4.00 +- 1.41" in rows["fifo"]
    assert "secret" in rows["select"]
    assert "+-" not in rows["select"]
    assert rows["halving"].endswith("a trial has 4 steps")
    assert rows["probe"].endswith("nothing was run")
    assert "END OF THE GRID" not in rows["reference:"]


def test_a_reference_at_an_end_of_the_grid_is_pointed_out(results, capsys):
    for seed in (0, 1):
        results.add(single(ORACLE, seed, (1.25, 0.70), (5.0, 0.8), (20.0, 0.9)))
    print_table(results, 1.0, ["fifo"], {})
    assert "widen --oracle-range" in capsys.readouterr().out


def test_a_bench_goes_on_with_its_own_results_alone(results):
    again = Results(results.path, ABOUT)
    assert again.singles == results.singles
    with pytest.raises(SystemExit, match="another spec or grid"):
        Results(results.path, {**ABOUT, "grid": [1, 2, 3]})
    other = {**SPEC, "seed": 1}
    with pytest.raises(SystemExit, match="another spec or grid"):
        Results(results.path, {**ABOUT, "base": other})


def test_a_bench_goes_on_after_an_upgrade_that_gave_the_spec_a_key(results):
    old = json.loads(results.path.read_text())
    del old["about"]["base"]["resources"]["hang_minutes"]
    results.path.write_text(json.dumps(old))
    assert Results(results.path, ABOUT).singles == results.singles


def test_the_picture_has_every_figure_of_the_table():
    page = Path("BENCHMARKS.md").read_text()
    settings = settings_of(page)
    assert len(settings) == 5
    assert settings["ScatterNet + linear"][3.0, "default"] == (0.09, 0.12)
    assert settings["biases of MiniLM"][1.0, "probe"][0] == -1.69
    with pytest.raises(SystemExit, match=r"at 1: cannot read '3\.29'"):
        settings_of(page.replace("| 3.29 (1) |", "| 3.29 |"))
