"""The verb `advise`: a table with every term, five sentences, a command that is taken."""

import csv
import io
import json

import pytest
import yaml
from whole_studies import cli_here, make_spec

from dpsweep.planning.reading import read_spec
from dpsweep.planning.strategies import STRATEGIES

BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
SPACE = {
    "method": "dp_sgd", "model.name": "linear", "optim.noise_scale": {"loguniform": [0.05, 500]},
    "optim.input_norm": 3.9, "batch.expected": 256, "train.epochs": 3,
}  # fmt: skip
COMPOSED = {"delta": 1e-5, "trial_epsilon": 1.0, "accounting": "composed", "study_epsilon": 3.0}


@pytest.fixture
def base(tmp_path):
    def write(**changes):
        path = tmp_path / "base.yaml"
        spec = make_spec(tmp_path, privacy=COMPOSED, search__space=SPACE)
        path.write_text(yaml.safe_dump({**spec, **changes}))
        return str(path)

    return write


@pytest.mark.slow
def test_a_table_and_five_sentences(base, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    path = base()
    done = cli_here("advise", path, "--replicates", "20")
    assert done.returncode == 0, done.stderr
    table, _, rest = done.stdout.partition("\n\n")
    caption, _, sentences = rest.partition("\n\n")
    assert len(table.splitlines()) == 2 + 8
    assert sum(line.startswith("*") for line in table.splitlines()) == 1
    caption = " ".join(caption.split())
    for term in ("delta=1e-05", "unit=example", "add_or_remove_one", "sampling=poisson"):
        assert term in caption
    for column in ("accountant", "accounting", "regret", "compute"):
        assert column in table.splitlines()[0]
    lines = sentences.splitlines()
    assert len(lines) == 5
    assert [line.split()[0] for line in lines] == ["Take", "Why:", "Its", "The", "Costs"]
    assert "no measurement" in lines[-1]
    command = lines[2].split("`")[1]
    assert command.startswith(f"dpsweep advise {path} --epsilon 3 --as-spec ")


@pytest.mark.parametrize("name", ["probe", "select", "default"])
def test_the_spec_of_a_strategy_is_one(base, tmp_path, name):
    done = cli_here("advise", base(), "--set", "seed=4", "--as-spec", name)
    assert done.returncode == 0, done.stderr
    (tmp_path / "written.yaml").write_text(done.stdout)
    spec = read_spec(tmp_path / "written.yaml")
    expected = BY_NAME[name].spec(read_spec(tmp_path / "base.yaml"), epsilon=3.0)
    assert spec == expected.model_copy(update={"seed": 4})


def test_no_such_strategy(base):
    done = cli_here("advise", base(), "--as-spec", "prob")
    assert done.returncode == 2
    assert "no strategy 'prob'" in done.stderr


@pytest.mark.slow
def test_records_for_programs(base):
    arguments = ("advise", base(), "--epsilon", "2", "--replicates", "20", "--seed", "3")
    record = json.loads(cli_here(*arguments, "--json").stdout)
    assert (record["study_epsilon"], record["seed"], record["replicates"]) == (2.0, 3, 20)
    assert (record["delta"], record["neighboring_relation"]) == (1e-5, "add_or_remove_one")
    names = [row["strategy"] for row in record["strategies"]]
    assert record["take"] in names
    assert len(names) + len(record["not_possible"]) == 8
    assert "no measurement" in record["figures_are"]
    rows = list(csv.DictReader(io.StringIO(cli_here(*arguments, "-f", "csv").stdout)))
    assert [row["strategy"] for row in rows] == names
    assert {row["delta"] for row in rows} == {"1e-05"}
    assert all(float(row["epsilon"]) <= 2 for row in rows)


def test_a_spec_without_an_epsilon_of_all_needs_one(base):
    unaccounted = {"delta": 1e-5, "trial_epsilon": 1.0, "accounting": "unaccounted"}
    done = cli_here("advise", base(privacy=unaccounted))
    assert done.returncode == 2
    assert "has no privacy.study_epsilon" in done.stderr
    assert "--epsilon 2" in done.stderr


def test_a_spec_of_another_search_is_told_where_to_start(base):
    search = {"num_trials": 3, "space": {"method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 8]}}}
    done = cli_here("advise", base(search=search))
    assert done.returncode == 2
    assert "`dpsweep init --probe --dataset digits`" in " ".join(done.stderr.split())
