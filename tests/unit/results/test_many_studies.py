"""Lists and comparisons of studies, and what a dataset has cost: damage is a line, not a crash."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml
from stored_studies import NAMES, copy_studies, track
from whole_studies import cli_here
from written_studies import write_study

from dpsweep import load_sweep
from dpsweep.foundation.durable import write_atomically
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.privacy.terms import COLUMNS
from dpsweep.results.tables.budget import GONE
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import anchored

PARTS = {"data.classes": None, "data.public.fraction": 0.2}


@pytest.fixture
def studies(tmp_path):
    return copy_studies(tmp_path)


def rows_of(*words):
    done = cli_here(*words, "-f", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_list_has_every_study_with_its_claim_and_all_terms(studies):
    rows = {row["study"]: row for row in rows_of("list", studies.parent)}
    assert sorted(rows) == NAMES
    for name, row in rows.items():
        result = load_sweep(name, root=studies)
        claim = result.study_statement()
        assert row["epsilon"] == (None if claim is None else claim.epsilon)
        terms = {} if claim is None else claim.columns()
        assert {term: row[term] for term in COLUMNS} == {t: terms.get(t) for t in COLUMNS}
        assert row["best"] == result.choose().score
        assert (row["state"], row["problem"]) == (result.state, None)
        assert row["trials"] == (None if name == "select" else len(result.results))
    table = cli_here("list", studies).stdout
    assert "none" in table
    assert "it makes no claim" in table


def test_a_mean_of_one_run_is_one_run(studies):
    done = cli_here("best", "composed", "--by", "mean", "--root", studies)
    assert done.returncode == 0, done.stderr
    assert "mean over 1 run " in done.stdout
    assert "1 runs" not in done.stdout + done.stderr


def test_a_damaged_study_is_a_line_with_the_reason(studies):
    (studies / "composed" / "ledger" / "study.jsonl").write_text("no record\n")
    (studies / "features" / "spec.yaml").write_text("- no\n- spec\n")
    (studies / "public" / "journal.jsonl").write_text("")
    shutil.copytree(studies / "labels", studies / "a-copy")
    (studies / "empty").mkdir()
    rows = {row["study"]: row for row in rows_of("list", studies)}
    damaged = {name for name, row in rows.items() if row["state"] == "damaged"}
    assert damaged == {"composed", "features", "public", "a-copy"}
    assert "record damaged or missing" in rows["composed"]["problem"]
    assert "is not the spec that was written there" in rows["features"]["problem"]
    assert "of a study of another name" in rows["a-copy"]["problem"]
    assert all(rows[name]["epsilon"] is None for name in damaged)
    assert cli_here("list", studies).returncode == 0


def test_a_folder_without_studies_and_no_folder(tmp_path):
    done = cli_here("list", tmp_path, "-f", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert "no study in" in done.stderr
    done = cli_here("list", tmp_path / "nowhere")
    assert (done.returncode, "no folder" in done.stderr) == (2, True)


@pytest.mark.slow
def test_a_store_lists_what_folders_do(studies):
    for name in NAMES:
        uri = track(studies.parent, name)
    stored = {row["study"]: row for row in rows_of("list", f"mlflow:{uri}")}
    local = {row["study"]: row for row in rows_of("list", studies)}
    assert stored.keys() == local.keys()
    for name, row in local.items():
        differ = {key for key in row if row[key] != stored[name][key]}
        allowed = {"where", "started"}
        if row["epsilon"] is not None:
            assert stored[name]["epsilon"] == pytest.approx(row["epsilon"], abs=1e-6)
            allowed.add("epsilon")
        if name == "interrupted":  # one of its trials has not ended
            allowed.add("trials")
        assert differ <= allowed, (name, differ)
        assert stored[name]["where"] == f"mlflow:{name}/{name}"


def test_a_study_does_not_differ_from_the_spec_that_it_was_launched_from(tmp_path, monkeypatch):
    """It keeps the addresses of its stores by whole paths."""
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path, [1, 0.5])
    path = tmp_path / "studies" / "digits" / "spec.yaml"
    spec = SweepSpec.from_yaml(path, is_stored=True)
    tracking = spec.tracking.model_copy(update={"uri": "sqlite:///mlflow.db"})
    own = spec.model_copy(update={"tracking": tracking})
    (tmp_path / "own.yaml").write_text(own.to_yaml())
    write_atomically(path, anchored(own).to_yaml().encode())
    compared = rows_of("compare", "digits", "own.yaml", "--root", tmp_path / "studies")
    assert compared["spec"] == []


def test_a_comparison_names_every_key_claim_and_what_compares(studies):
    compared = rows_of("compare", "composed", "interrupted", "--root", studies)
    assert {"key": "search.num_trials", "a": 6, "b": 4} in compared["spec"]
    assert (compared["is_comparable"], compared["why_not"]) == (True, [])
    facts = compared["studies"]
    assert facts["epsilon of the study"] == {"a": 3.0, "b": 3.0}
    for name, side in (("composed", "a"), ("interrupted", "b")):
        best = load_sweep(name, root=studies).best()
        assert facts["best validation/accuracy"][side] == best.value
        assert facts["epsilon of the best trial"][side] == best.epsilon
        assert facts["its sampling"][side] == best.statement.sampling
    assert {"delta", "accountant", "neighboring_relation", "privacy_unit", "accounting"} < set(
        facts
    )
    other = rows_of("compare", "composed", "unaccounted", "--root", studies)
    assert not other["is_comparable"]
    assert any("accounting is composed and unaccounted" in line for line in other["why_not"])
    done = cli_here("compare", "composed", "select", "--root", studies, "-f", "csv")
    keys = {row["key"] for row in csv.DictReader(io.StringIO(done.stdout))}
    assert {"privacy.accounting", "epsilon of the study"} < keys
    assert "not comparable: epsilons" in done.stderr


def test_a_spec_file_is_compared_with_the_study_whose_name_it_has(studies, tmp_path):
    tree = yaml.safe_load((studies / "composed" / "spec.yaml").read_text())
    tree["data"]["test"]["fraction"] = 0.1
    tree["seed"] = 7
    changed = tmp_path / "mine.yaml"
    changed.write_text(yaml.safe_dump(tree))
    compared = rows_of("compare", "composed", changed, "--root", studies)
    assert [each["key"] for each in compared["spec"]] == ["data.test.fraction", "seed"]
    assert any("scores: on other records" in line for line in compared["why_not"])
    assert compared["studies"]["state"]["b"] == "a spec, not a study"
    assert cli_here("compare", "composed", tmp_path / "no.yaml").returncode == 2
    refused = cli_here("validate", changed, "--set", f"storage.path={studies}")
    assert refused.returncode == 2
    assert "data.test.fraction (0.2 -> 0.1), seed (0 -> 7)" in refused.stderr


def test_a_clash_of_names_shows_eight_keys_and_where_the_others_are(studies):
    sets = [
        "seed=7", "search.sampler=tpe", "search.space={method: dp_sgd, optim.lr: 0.5}",
        "data.test.fraction=0.1", "data.validation.fraction=0.1", "privacy.study_epsilon=2.5",
        "privacy.trial_epsilon=0.9", "report.points=3", "scheduler={type: fifo}",
    ]  # fmt: skip
    words = [word for text in [*sets, f"storage.path={studies}"] for word in ("--set", text)]
    refused = cli_here("validate", studies / "composed" / "spec.yaml", *words)
    assert refused.returncode == 2
    assert "more: `dpsweep compare composed SPEC`" in refused.stderr


def charge(path, study_id, name, directory, epsilon=2.0):
    DatasetLedger(path).reserve(
        study_id, name, directory=directory, dataset="digits", parts=PARTS, accounting="composed",
        epsilon=epsilon, delta=1e-5, cap_epsilon=8.0, cap_delta=1e-4,
    )  # fmt: skip


def test_a_budget_has_who_spent_what_what_is_left_and_what_it_means(studies, tmp_path):
    path = tmp_path / "digits.jsonl"
    own = load_sweep("composed", root=studies).claims.account.study_id
    charge(path, own, "composed", studies / "composed", 3.0)
    charge(path, "gone", "deleted-one", tmp_path / "nowhere" / "deleted-one", 0.1)
    charge(path, "other", "replaced", studies / "public", 0.2)
    budget = rows_of("budget", path)
    assert (budget["epsilon"], budget["left_epsilon"]) == (3.3, 4.7)
    assert (budget["delta"], budget["left_delta"]) == (3e-5, 7e-5)
    first, gone, replaced = budget["studies"]
    assert (first["state"], first["accountant"], first["sampling"]) == (
        "finished",
        "rdp",
        "poisson",
    )
    assert (first["privacy_unit"], budget["privacy_unit"]) == ("example", "example")
    assert gone["state"] == GONE
    assert replaced["state"] == "deleted; another study stands in its directory"
    assert "before it trained on a private record" in budget["meaning"][1]
    assert "while it checks them is not charged" in budget["meaning"][1]
    assert all(len(study["charged"]) == len("2026-11-23") for study in budget["studies"])
    page = cli_here("budget", path).stdout
    for words in (
        "data.public.fraction: 0.2", "epsilon=3.3000 at delta=3e-05", "epsilon=8.0000 at delta=0.0001",
        "epsilon=4.7000 at delta=7e-05", "add_or_remove_one", "basic composition", "unit: example",
        "what it means:", "what it does not cover:", "do not name this file",
    ):  # fmt: skip
        assert words in page
    lines = list(csv.DictReader(io.StringIO(cli_here("budget", path, "-f", "csv").stdout)))
    assert [line["line"] for line in lines] == ["study"] * 3 + ["sum", "cap", "left"]
    assert [float(line["epsilon"]) for line in lines] == [3.0, 0.1, 0.2, 3.3, 8.0, 4.7]


def test_a_broken_budget_promises_nothing(tmp_path):
    path = tmp_path / "digits.jsonl"
    charge(path, "a", "one", tmp_path / "one")
    DatasetLedger(path).break_claim("a", "a pruner was attached")
    budget = rows_of("budget", path)
    assert (budget["left_epsilon"], budget["left_delta"]) == (0.0, 0.0)
    assert "NO bound any more" in budget["meaning"][0]
    page = cli_here("budget", path).stdout
    assert "which is NO bound any more" in page
    assert "factor of at most e" not in page


def test_a_ledger_of_an_earlier_version_has_no_day(studies, tmp_path, monkeypatch):
    path = tmp_path / "digits.jsonl"
    monkeypatch.setattr("dpsweep.ledgers.dataset.time.strftime", lambda *_: None)
    own = load_sweep("composed", root=studies).claims.account.study_id
    charge(path, own, "composed", studies / "composed")
    charge(path, "gone", "deleted-one", tmp_path / "nowhere")
    monkeypatch.undo()
    first, gone = rows_of("budget", path)["studies"]
    assert (first["charged"], gone["charged"]) == ("2026-11-23", None)


def test_what_is_no_ledger_is_refused(tmp_path):
    for name, text in (("none.jsonl", None), ("empty.jsonl", ""), ("other.jsonl", "no record\n")):
        if text is not None:
            (tmp_path / name).write_text(text)
        done = cli_here("budget", tmp_path / name)
        assert (done.returncode, done.stdout) == (2, "")
    (tmp_path / "damaged.jsonl").write_text('{"seq":0,"kind":"dataset"}\n')
    assert cli_here("budget", tmp_path / "damaged.jsonl").returncode == 1


def test_a_trial_that_is_not_there_and_one_that_failed(studies):
    done = cli_here("show", "composed", "9", "--root", studies)
    assert (done.returncode, "trials: 0 to 5" in done.stderr) == (2, True)
    shown = rows_of("show", "composed", "1", "--root", studies)
    assert (shown["state"], shown["trial_id"], len(shown["curve"])) == ("pruned", 1, 2)
    assert all(set(COLUMNS) < set(point) for point in shown["curve"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "words",
    ["list", "show composed 0", "compare composed public", "best composed", "budget b.jsonl"],
)
def test_a_verb_that_reads_files_loads_nothing_heavy(studies, words):
    charge(studies.parent / "b.jsonl", "gone", "deleted-one", studies / "nowhere")
    code = (
        "import sys; from dpsweep.cli.app import app; "
        f"app({words.split()!r}, standalone_mode=False); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'optuna', 'pandas') if m in sys.modules])"
    )
    said = subprocess.check_output(
        [sys.executable, "-c", code], text=True, cwd=studies.parent,
        env={**os.environ, "DPSWEEP_STUDIES": str(studies)},
    )  # fmt: skip
    assert said.strip().splitlines()[-1] == "[]"
