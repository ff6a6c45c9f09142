"""What a newcomer is told: suggestions that help, refusals before any work, tables that say why."""

import html
import json
import shutil
from pathlib import Path

import pytest
import yaml
from whole_studies import cli_here, make_spec
from written_studies import write_study

from dpsweep import sweep
from dpsweep.foundation.durable import DurableLog
from dpsweep.foundation.errors import SpecError, StudyError
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.results.study import load_sweep
from dpsweep.spec.base import HYPERPARAMETERS
from dpsweep.spec.space.hyperparameters import without_effect
from dpsweep.spec.study import SweepSpec
from dpsweep.sweep import run_checked
from dpsweep.trainables import TRAINABLES

OLD = Path(__file__).parents[2] / "golden" / "old_studies"


def mistakes(raw):
    with pytest.raises(SpecError) as caught:
        preflight(SweepSpec(**raw))
    return str(caught.value)


def with_keys(tmp_path, **keys):
    return {**make_spec(tmp_path), **keys}


def test_a_hyperparameter_at_the_top_is_sent_to_the_space(tmp_path):
    """`--set train.epochs=5` suggested `tracking`, which has no such key."""
    said = mistakes(with_keys(tmp_path, train={"epochs": 5}))
    assert "hyperparameters stand below search.space" in said
    assert "did you mean" not in said


def test_the_first_words_of_hyperparameters_are_those_of_dp_sgd():
    names = {p.name.partition(".")[0] for p in TRAINABLES["dp_sgd"].hyperparameters}
    assert names == set(HYPERPARAMETERS)


def test_a_misspelt_section_is_still_recognised(tmp_path):
    said = mistakes(with_keys(tmp_path, trackin={"uri": None}))
    assert "did you mean 'tracking'?" in said


def test_another_spec_is_refused_before_the_data_are_read(tmp_path, monkeypatch):
    write_study(tmp_path, [1])
    raw = yaml.safe_load((tmp_path / "study.yaml").read_text())
    raw["search"]["space"]["optim.lr"] = 0.5

    def refuse(*args):
        raise AssertionError("the data were read")

    monkeypatch.setattr(sweep, "load_records", refuse)
    with pytest.raises(StudyError, match="launched from another spec"):
        run_checked(preflight(SweepSpec(**raw)))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(raw))
    done = cli_here("validate", str(tmp_path / "other.yaml"))
    assert done.returncode == 2
    assert "was launched from another spec" in done.stderr


@pytest.fixture
def selection(tmp_path):
    shutil.copytree(OLD / "select", tmp_path / "select")
    return tmp_path


def test_a_released_winner_is_told_once(selection):
    line = load_sweep("select", root=selection).status_line()
    assert line.count("the winner is released") == 1
    assert line.startswith("study 'select': finished")


def test_a_selection_that_has_released_nothing_says_when_it_will(selection):
    journal = selection / "select" / "journal.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    done = cli_here("status", "select", "--root", str(selection))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    words = " ".join(done.stderr.split())
    assert "nothing is released yet" in words
    assert "its trials are secret, and so is their number" in words
    assert "the best of them is shown once the study has finished" in words
    assert "run the same command again" in words
    assert cli_here("status", "select", "--root", str(selection), "-f", "json").stdout == "[]\n"


def test_a_selection_that_has_ended_without_a_winner_says_so_and_its_claim(selection, tmp_path):
    """It was said to be unfinished, and that the same command continues it."""
    journal = selection / "select" / "journal.jsonl"
    first, *_, last = map(json.loads, journal.read_text().splitlines())
    journal.unlink()
    with DurableLog(journal) as log:
        for record in (first, {**last, "end_reason": "there is no winner"}):
            log.append({k: v for k, v in record.items() if k not in ("seq", "crc")})
    root = str(selection)
    claim = load_sweep("select", root=root).study_statement()
    cost = f"it claims epsilon={shown_epsilon(claim.epsilon)} ({claim.line()})"
    status = cli_here("status", "select", "--root", root)
    best = cli_here("best", "select", "--root", root)
    report = cli_here("report", "select", "--root", root, "--html", tmp_path / "a.html")
    assert report.returncode == 0, report.stderr
    page = html.unescape((tmp_path / "a.html").read_text())
    page = page.partition('id="pictures"')[0].partition('id="card"')[0]
    assert (status.returncode, best.returncode) == (0, 3)
    for told in (status.stderr, best.stderr, page):
        words = " ".join(told.split())
        assert f"it has no winner, and nothing more will be shown; {cost}" in words
        assert "adds to this one" in words
        assert not any(wrong in words for wrong in ("released yet", "continue", "dpsweep logs"))


def test_what_decides_nothing_is_named_with_its_reason():
    declared = TRAINABLES["dp_sgd"].hyperparameters
    config = {
        "noise.shape": "cosine", "noise.end_ratio": 0.5, "clip.shape": "constant",
        "clip.end_ratio": 1.0, "optim.name": "sgd", "optim.momentum": 0.9, "optim.beta1": 0.9,
        "train.epochs": 20.0, "train.max_steps": 24,
    }  # fmt: skip
    assert without_effect(declared, config) == {
        "clip.end_ratio": "clip.shape is constant",
        "optim.beta1": "optim.name is sgd",
        "train.epochs": "train.max_steps wins over it",
    }
    free = {**config, "train.max_steps": None, "optim.name": "adam", "clip.shape": "linear"}
    assert without_effect(declared, free) == {"optim.momentum": "optim.name is adam"}


def test_the_best_configuration_leaves_out_what_decides_nothing(tmp_path):
    write_study(tmp_path, [1])
    done = cli_here("best", "digits", "--root", str(tmp_path / "studies"))
    table, _, below = done.stdout.partition("Without effect here, and left out: ")
    assert "optim.beta1 (optim.name is sgd)" in below
    names = [line.split()[0] for line in table.splitlines() if line.strip()]
    assert "optim.lr" in names
    assert "optim.beta1" not in names


def test_another_log_is_no_dataset_ledger(tmp_path):
    files = write_study(tmp_path, [1]).files
    privacy = {
        "delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 6.0,
        "dataset_ledger": str(files.ledger / "study.jsonl"), "dataset_epsilon": 20.0,
        "dataset_delta": 1e-4,
    }  # fmt: skip
    raw = make_spec(tmp_path, "other", privacy=privacy)
    said = mistakes(raw)
    assert "privacy.dataset_ledger" in said
    assert "is no dataset ledger: it holds something else" in said
    assert "a file that is not there yet" in said
    own = tmp_path / "digits.budget"
    DatasetLedger(own).reserve(
        "id", "id", directory=tmp_path / "id", dataset="digits", parts={}, accounting="composed",
        epsilon=1.0, delta=1e-5, cap_epsilon=20.0, cap_delta=1e-4,
    )  # fmt: skip
    raw["privacy"]["dataset_ledger"] = str(own)
    preflight(SweepSpec(**raw))


@pytest.mark.parametrize("content", ["name: a spec\n", "{}\n", '{"seq": 0}\n', "no end of line"])
def test_a_file_that_is_no_log_is_no_damaged_ledger(content, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text(content)
    done = cli_here("budget", str(other))
    assert done.returncode == 2
    assert "is no dataset's ledger" in done.stderr
    privacy = {
        "delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 6.0,
        "dataset_ledger": str(other), "dataset_epsilon": 20.0, "dataset_delta": 1e-4,
    }  # fmt: skip
    said = mistakes(make_spec(tmp_path, "other", privacy=privacy))
    assert "privacy.dataset_ledger" in said
    assert "is no dataset ledger: it holds something else" in said
    assert other.read_text() == content


def test_a_damaged_ledger_is_not_taken_for_another_file(tmp_path):
    own = tmp_path / "digits.budget"
    DatasetLedger(own).reserve(
        "id", "id", directory=tmp_path / "id", dataset="digits", parts={}, accounting="composed",
        epsilon=1.0, delta=1e-5, cap_epsilon=20.0, cap_delta=1e-4,
    )  # fmt: skip
    own.write_bytes(own.read_bytes().replace(b"composed", b"compozed"))
    done = cli_here("budget", str(own))
    assert done.returncode == 1
    assert "the log cannot be trusted" in done.stderr


def test_an_unknown_study_names_the_nearest_of_many(tmp_path):
    for number in range(30):
        folder = tmp_path / f"digits-{number:02d}"
        folder.mkdir()
        (folder / "spec.yaml").write_text(f"name: digits-{number:02d}\n")
    with pytest.raises(StudyError) as caught:
        load_sweep("digits-077", root=tmp_path)
    because = caught.value.because
    assert "digits-07" in because
    assert because.count("digits-") == 5
    assert because.endswith(" and 25 more")


def test_an_unknown_study_names_all_of_few(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "spec.yaml").write_text("name: one\n")
    with pytest.raises(StudyError) as caught:
        load_sweep("zzz", root=tmp_path)
    assert caught.value.because == "studies there: one"
