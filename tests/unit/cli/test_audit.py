"""The verb ``audit``: what it prints, what it keeps, and what it refuses."""

import json

import numpy as np
import pytest
import yaml
from stored_studies import copy_studies
from whole_studies import cli_here
from written_studies import write_study

from dpsweep.results.study import load_sweep
from dpsweep.results.study_card import card
from dpsweep.study.audits import audit_file, read_audits
from dpsweep.trainables.gradients.noise import SecretNoise

QUICK = ("--quick", "--canaries", 100)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("audited")
    return write_study(root, [1.0, 1.0])


def audit(study, *words):
    return cli_here("audit", *words, "--root", study.files.path.parent)


def test_a_trial_is_audited_and_its_card_says_so(study):
    before = card(study)
    assert "Audit" not in before
    done = audit(study, "digits", 1, *QUICK, "-f", "json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["verdict"] == "consistent"
    assert (record["canaries"], record["guesses"], record["positions"]) == (100, 10, 4)
    assert 0 < record["claim"]["epsilon"] < 2.0
    assert record["claim"]["accounting"] == "composed"
    said = " ".join(done.stderr.split())
    assert "this proves nothing" in said
    assert "never the privacy of a model" in said
    assert "nothing was charged" in said
    assert f"not audited: positions 5 to {record['planned']} of the plan" in said
    (kept,) = read_audits(study.files.path)
    assert kept.to_dict() == record
    after = card(study)
    (line,) = [line for line in after.splitlines() if line not in before.splitlines()]
    assert line.startswith("- Audit: trial 1: consistent with epsilon <= ")
    assert f"for 4 of {record['planned']} positions: " in line
    assert line.endswith("this proves nothing")
    assert "unit: one example" in line
    assert str(record["lower_bound"])[:5] not in line or record["lower_bound"] == 0


def test_nothing_of_the_study_changes_but_the_record(study):
    def contents():
        files = [path for path in study.files.path.rglob("*") if path.is_file()]
        return {p: p.read_bytes() for p in files if "audits" not in p.parts}

    before = contents()
    assert audit(study, "digits", 0, *QUICK).returncode == 0
    assert contents() == before


def test_a_broken_trial_exits_with_1(study, monkeypatch):
    monkeypatch.setattr(
        SecretNoise, "like", lambda self, tensor, scale: tensor.new_zeros(tensor.shape)
    )
    done = audit(study, "digits", 1, "--positions", 20, "--canaries", 300)
    assert done.returncode == 1
    assert "FAIL: not consistent with" in " ".join(done.stderr.split())
    assert "FAIL" in done.stdout
    result = next(r for r in read_audits(study.files.path) if r.trial == 1)
    assert result.is_refuted
    assert "- Audit: trial 1: FAIL: not consistent with epsilon <= " in card(study)


def test_the_winner_of_a_selection_is_audited_alone_and_its_claim_stands_beside(tmp_path):
    root = copy_studies(tmp_path, ["select"])
    done = cli_here("audit", "select", 0, "--quick", "--root", root, "-f", "json")
    claim = load_sweep("select", root=root).trial(0).statement
    audited = json.loads(done.stdout)["claim"]
    assert audited["accounting"] == "single_run"
    assert audited["epsilon"] < claim.epsilon
    assert f"what is claimed of the winner: {claim.one_line()}" in " ".join(done.stderr.split())


def test_a_damaged_record_does_not_stop_the_card(study):
    path = audit_file(study.files.path, 0)
    path.parent.mkdir(exist_ok=True)
    path.write_text("{")
    text = card(study)
    path.unlink()
    assert "- Audit: unreadable: " in text
    assert "is damaged" in text


def test_no_record_of_the_study_is_read(study, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("records were read")

    monkeypatch.setattr("dpsweep.trainables.data.loading.load_dataset", refuse)
    monkeypatch.setattr("sklearn.datasets.load_digits", refuse)
    assert audit(study, "digits", 0, *QUICK).returncode == 0


def test_a_method_of_the_table_in_each_format(tmp_path):
    rows = {}
    for name in ("json", "yaml", "csv"):
        done = cli_here("audit", "--method", "active_learning", "-f", name)
        assert done.returncode == 0
        rows[name] = done.stdout
    (record,) = json.loads(rows["json"])
    assert yaml.safe_load(rows["yaml"]) == [record]
    assert record["verdict"] == "not audited"
    assert rows["csv"].startswith("method,verdict,claim,")


def test_a_ceiling_below_the_claim_is_said():
    done = cli_here("audit", "--method", "adamix", "--epsilon", 8, *QUICK)
    assert done.returncode == 0
    said = " ".join(done.stderr.split())
    assert "this test could not fail: its ceiling is" in said
    assert "--canaries 89320 or more" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to audit is named"),
        (("digits",), "no trial of study 'digits' is named"),
        (("digits", 7), "study 'digits' has no trial 7"),
        (("nobody", 0), "no study 'nobody'"),
        (("digits", 0, "--method", "dp_sgd"), "a study and --method are two audits"),
        (("digits", 0, "--epsilon", 1), "--epsilon goes with --method"),
        (("--method", "dp_sgd", "--positions", 2), "--positions goes with a trial"),
        (("--method", "dp_sdg"), "no method 'dp_sdg'"),
        (("--method", "all", "--epsilon", 0), "--epsilon must be > 0"),
        (
            ("digits", 0, "--canaries", 19),
            "'--canaries': Input should be greater than or equal to 20",
        ),
        (
            ("digits", 0, "--positions", 0),
            "'--positions': Input should be greater than or equal to 1",
        ),
        (("digits", "one"), "'TRIAL': must be a whole number"),
    ],
)
def test_bad_input_is_refused_with_one_clear_line(study, words, said):
    done = audit(study, *words)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_batches_of_a_trial_are_those_of_its_declared_records(tmp_path):
    """A trial on some of the private records has their number for its rates, here too."""
    space = {"method": "dp_sgd", "train.max_steps": 2, "train.num_private": 200}
    search = {"sampler": "random", "num_trials": 1, "space": {**space, "batch.expected": 20}}
    study = write_study(tmp_path, [1.0], search=search)
    done = audit(study, "digits", 0, "--canaries", 60, "-f", "json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert np.isclose(study.files.task(0).plan.at(0).sample_rate, 0.1)
    assert (record["positions"], record["not_audited"]) == (2, [])
