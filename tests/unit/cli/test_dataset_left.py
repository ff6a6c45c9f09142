"""All verbs that price a study say what the ledger of its dataset has left, and whether it fits."""

import csv
import io
import json

import pytest
import yaml
from whole_studies import make_spec
from written_studies import COMPOSED, write_study

from dpsweep.cli.app import app
from dpsweep.foundation.errors import UnreachableError
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.planning.preflight import preflight
from dpsweep.spec.study import SweepSpec

RANGE = {
    "method": "dp_sgd", "model.name": "linear", "optim.noise_scale": {"loguniform": [0.05, 500]},
    "optim.input_norm": 3.9, "batch.expected": 256, "train.epochs": 3,
}  # fmt: skip
SELECT = (
    "--set", "privacy.accounting=select", "--set", "search.num_trials=null",
    "--set", "privacy.selection={mean: 2}",
)  # fmt: skip
REFUSED = "and does NOT fit: run will refuse it. The reason: a study of epsilon="


@pytest.fixture
def privacy(tmp_path):
    path = tmp_path / "digits.budget"
    return {
        **COMPOSED, "dataset_ledger": str(path), "dataset_epsilon": 20.0, "dataset_delta": 1e-4,
    }  # fmt: skip


@pytest.fixture
def spec(tmp_path, privacy):
    """A spec on a dataset of which the rest is 1."""
    raw = make_spec(tmp_path, privacy=privacy, tracking={"uri": None})
    return charged(tmp_path, raw, 19.0)


def charged(tmp_path, raw, epsilon):
    """Charge another study; return the file of a spec."""
    checked = preflight(SweepSpec(**raw))
    DatasetLedger(raw["privacy"]["dataset_ledger"]).reserve(
        "other", "other", directory=tmp_path / "other", dataset=checked.dataset_name,
        parts=checked.dataset_parts, accounting="composed", epsilon=epsilon, delta=1e-5,
        cap_epsilon=20.0, cap_delta=1e-4,
    )  # fmt: skip
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def said(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        app([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert not end.value.code, printed.err
    return printed


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("sets", [(), SELECT])
def test_simulate_says_what_is_left(spec, capsys, sets):
    arguments = ("simulate", spec, *sets, "--policies", "fifo")
    text = words(said(capsys, *arguments).out)
    assert "has (epsilon, delta)=(1.0000, 9e-05) left of (20, 0.0001)" in text
    assert REFUSED in text
    (row,) = json.loads(said(capsys, *arguments, "--json").out)
    assert (row["dataset_ledger"]["charged_epsilon"], row["dataset_ledger"]["fits"]) == (19, False)
    (line,) = csv.DictReader(io.StringIO(said(capsys, *arguments, "-f", "csv").out))
    assert json.loads(line["dataset_ledger"]) == row["dataset_ledger"]


def test_simulate_is_not_lost_for_a_ledger_that_is_away(spec, capsys, monkeypatch):
    def away(*_):
        raise UnreachableError("no answer of db:5432", fix="start it")

    monkeypatch.setattr("dpsweep.planning.costs.dataset.read_dataset_ledger", away)
    arguments = ("simulate", spec, "--policies", "fifo")
    text = words(said(capsys, *arguments).out)
    assert "The dataset's ledger cannot be asked now: no answer of db:5432" in text
    (row,) = json.loads(said(capsys, *arguments, "--json").out)
    assert "dataset_ledger" not in row


def test_simulate_of_a_study_without_a_ledger_says_nothing_of_one(tmp_path, capsys):
    raw = make_spec(tmp_path, privacy=COMPOSED, tracking={"uri": None})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(raw))
    arguments = ("simulate", tmp_path / "spec.yaml", "--policies", "fifo")
    assert "dataset's ledger" not in said(capsys, *arguments).out
    (row,) = json.loads(said(capsys, *arguments, "--json").out)
    assert "dataset_ledger" not in row


def test_a_dry_reproduction_says_what_is_left(tmp_path, privacy, capsys):
    write_study(tmp_path, [1.0], privacy=privacy)
    charged(tmp_path, yaml.safe_load((tmp_path / "study.yaml").read_text()), 19.0)
    root = tmp_path / "studies"
    printed = said(capsys, "reproduce", "digits", "0", "--root", root, "--dry-run")
    assert REFUSED in words(printed.err)
    assert yaml.safe_load(printed.out)["name"] == "digits-trial-0"


@pytest.fixture
def advised(tmp_path, privacy):
    raw = make_spec(tmp_path, privacy=privacy, tracking={"uri": None}, search__space=RANGE)
    return ("advise", charged(tmp_path, raw, 17.0), "--replicates", "20", "--epsilon")


@pytest.mark.slow
def test_advise_says_what_is_left_for_the_epsilon_it_is_asked_for(advised, capsys):
    text = words(said(capsys, *advised, "4").out)
    assert "has (epsilon, delta)=(3.0000, 9e-05) left of (20, 0.0001)" in text
    assert f"this study takes (4.0000, 1e-05), {REFUSED}4 at delta=1e-05 does not fit" in text


@pytest.mark.slow
def test_the_record_of_advise_has_what_is_left(advised, capsys):
    left = json.loads(said(capsys, *advised, "2", "--json").out)["dataset_ledger"]
    assert (left["this_study_epsilon"], left["fits"]) == (2.0, True)
