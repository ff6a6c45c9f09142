"""The words of `simulate`: whose scores it shows, and what its epsilons leave out."""

import csv
import io
import json

import pytest
import yaml
from whole_studies import make_spec
from written_studies import COMPOSED, write_study

from dpsweep.cli.app import app
from dpsweep.ledgers.study import StudyLedger

UNACCOUNTED = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "unaccounted"}
EXACT = {"fraction": 0.2, "visibility": "exact"}


def simulated(tmp_path, capsys, *options, **changes):
    """Simulate two trials; return what is printed on stdout."""
    changes = {"privacy": COMPOSED, "tracking": {"uri": None}, **changes}
    raw = make_spec(tmp_path, **changes)
    raw["name"] = "simulated"
    path = tmp_path / "simulated.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(SystemExit) as end:
        app(["simulate", str(path), "--policies", "fifo", *options])
    said = capsys.readouterr()
    assert not end.value.code, said.err
    return said.out


def words(text):
    return " ".join(text.split())


def recorded(tmp_path, visibility, **changes):
    """Write a study ``digits`` whose scores have a visibility."""
    data = {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": visibility}}
    if visibility == "noisy":
        data["validation"]["noise_std"] = 0.05
    write_study(tmp_path, [1.0, 1.0], data=data, **changes)


def test_scores_of_an_exact_study_are_said_to_be_uncovered(tmp_path, capsys):
    recorded(tmp_path, "exact", privacy=UNACCOUNTED)
    about = (
        "recorded ones of study 'digits' (accounting=unaccounted; exact validation scores; exact "
        "private validation scores and choices by them are not covered), which no epsilon here "
        "covers"
    )
    (row,) = json.loads(simulated(tmp_path, capsys, "--curves", "study:digits", "--json"))
    assert (row["curves"], row["scores_are"]) == ("study:digits", about)
    assert row["accounting"] == "composed"
    table = csv.DictReader(
        io.StringIO(simulated(tmp_path, capsys, "--curves", "study:digits", "-f", "csv"))
    )
    assert [line["scores_are"] for line in table] == [about]
    text = words(simulated(tmp_path, capsys, "--curves", "study:digits"))
    assert f"Scores are {about}." in text
    assert "about real training" not in text
    assert "without noise" not in text


def test_scores_of_a_noisy_study_are_said_to_be_noisy(tmp_path, capsys):
    recorded(tmp_path, "noisy")
    text = words(simulated(tmp_path, capsys, "--curves", "study:digits"))
    assert "study 'digits' (accounting=composed; noisy validation scores)" in text
    assert "have Gaussian noise of standard deviation 0.05" in text
    assert "without noise" not in text


def test_scores_of_a_study_that_lost_its_claim_are_unaccounted(tmp_path, capsys):
    recorded(tmp_path, "public")
    options = ("--curves", "study:digits", "--json")
    (row,) = json.loads(simulated(tmp_path, capsys, *options))
    assert "(accounting=composed; public validation scores)" in row["scores_are"]
    ledger = StudyLedger(tmp_path / "studies" / "digits" / "ledger")
    ledger.downgrade("a trial was charged off record")
    ledger.close()
    (row,) = json.loads(simulated(tmp_path, capsys, *options))
    assert "(accounting=unaccounted; public validation scores)" in row["scores_are"]


def test_scores_of_a_file_are_said_to_be_its(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = {"hparams": {"optim.lr": 1.0}, "curve": [[0.5, 0.3], [1, 0.7]]}
    (tmp_path / "own.jsonl").write_text(json.dumps(line))
    about = "recorded ones of own.jsonl, which no epsilon here covers"
    text = words(simulated(tmp_path, capsys, "--curves", "own.jsonl"))
    assert f"Simulated, seed 0: no training. Scores are {about}." in text
    assert "full length: its score at the end as recorded" in text


def test_the_clock_of_max_time_is_named(tmp_path, capsys):
    says = "search.max_time is held against simulated seconds."
    assert says not in words(simulated(tmp_path, capsys))
    assert says in words(simulated(tmp_path, capsys, "--set", "search.max_time=1h"))


def test_two_objectives_are_both_named(tmp_path, capsys):
    sets = ("--set", "search.objectives=[validation/accuracy, dp/epsilon]")
    text = words(simulated(tmp_path, capsys, *sets))
    assert (
        "best: validation/accuracy (objectives: validation/accuracy and dp/epsilon) as the best "
        "finished trial reported it" in text
    )
    (row,) = json.loads(simulated(tmp_path, capsys, *sets, "--json"))
    assert (row["metric"], row["objectives"]) == (
        "validation/accuracy",
        ["validation/accuracy", "dp/epsilon"],
    )
    (row,) = json.loads(simulated(tmp_path, capsys, "--json"))
    assert row["objectives"] == ["validation/accuracy"]


def test_made_up_scores_are_said_to_be_made_up(tmp_path, capsys):
    (row,) = json.loads(simulated(tmp_path, capsys, "--json"))
    assert (row["curves"], row["scores_are"]) == (None, "made up")
    text = words(simulated(tmp_path, capsys))
    assert "no figure but the costs is about real training" in text
    assert "full length: its score at the end without noise" in text
