"""The budget of a dataset: studies add up, in any number of processes, and nothing comes back."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import threading
import time

import pytest

from dpsweep.foundation import records as log_records
from dpsweep.foundation.errors import BadInputError, LedgerError, LockedError, StorageError
from dpsweep.foundation.logs import open_log
from dpsweep.foundation.postgres import sessions
from dpsweep.ledgers import dataset as dataset_ledger
from dpsweep.ledgers import records as kinds
from dpsweep.ledgers.caps import DatasetBudgetError
from dpsweep.ledgers.dataset import (
    DatasetLedger,
    check_dataset_budget,
    read_dataset_ledger,
)
from dpsweep.ledgers.dataset_account import DatasetAccount
from tests.helpers.logs import content, put

CAPS = {"cap_epsilon": 8.0, "cap_delta": 1e-4}
PARTS = {"data.classes": None, "data.public.fraction": 0.2}


def charge(path, study_id, epsilon=2.0, delta=1e-5, **options):
    DatasetLedger(path).reserve(
        study_id,
        f"study-{study_id}",
        **{
            "directory": f"studies/{study_id}",
            "dataset": "digits",
            "parts": PARTS,
            "accounting": "composed",
            **options,
        },
        epsilon=epsilon,
        delta=delta,
    )


@pytest.fixture
def path(ledgers):
    return ledgers / "budgets" / "digits.jsonl"


def test_a_ledger_of_before_the_first_version_is_told_as_another_version_s(path):
    """Its first record had no ``parts``, and nobody has edited it."""
    with open_log(path) as log:
        log.append({"kind": "dataset", "dataset": "digits", **CAPS})
    with pytest.raises(LedgerError, match="record 'dataset' has no 'parts'") as refused:
        read_dataset_ledger(path)
    assert refused.value.because == (
        "the file was edited, or another version of dpsweep has written it"
    )


def test_studies_add_up_to_the_cap_and_not_beyond(path):
    for number in range(3):
        charge(path, f"s{number}", **CAPS)
    charge(path, "s3", epsilon=1.5, delta=5e-5)
    account = read_dataset_ledger(path)
    assert (account.epsilon, account.delta) == (7.5, 8e-5)
    assert (account.cap_epsilon, account.cap_delta, account.dataset) == (8.0, 1e-4, "digits")
    assert [study.name for study in account.studies] == [f"study-s{n}" for n in range(4)]
    before = content(path)
    with pytest.raises(DatasetBudgetError) as caught:
        charge(path, "s4", epsilon=0.6)
    text = str(caught.value)
    for part in ("epsilon=0.6 at delta=1e-05", "epsilon=7.5 at delta=8e-05", "epsilon=8 at delta="
                 "0.0001", "study-s0 (2, 1e-05)", "study-s3 (1.5, 5e-05)", "epsilon <= 0.5",
                 "delta <= 2e-05", "deleting one gives nothing back"):  # fmt: skip
        assert part in text
    with pytest.raises(DatasetBudgetError):
        charge(path, "s4", epsilon=0.1, delta=2.1e-5)
    with pytest.raises(DatasetBudgetError, match="epsilon=inf"):
        charge(path, "s4", epsilon=math.inf)
    assert content(path) == before
    charge(path, "s4", epsilon=0.5, delta=2e-5)
    assert read_dataset_ledger(path).epsilon == 8.0


def test_sums_are_those_of_the_written_numbers(path):
    """0.1 + 0.1 + 0.1 is more than 0.3 in floating point, and not for who wrote the caps."""
    for number in range(3):
        charge(path, str(number), epsilon=0.1, delta=1e-5, cap_epsilon=0.3, cap_delta=3e-5)
    with pytest.raises(DatasetBudgetError):
        charge(path, "3", epsilon=1e-12, delta=0)


def test_a_study_is_charged_once_however_often_it_is_launched(path):
    charge(path, "a", **CAPS)
    charge(path, "a")
    assert read_dataset_ledger(path).epsilon == 2.0
    with pytest.raises(BadInputError, match="was charged epsilon=2 at delta=1e-05"):
        charge(path, "a", epsilon=1.0)


def test_a_study_that_is_deleted_and_run_again_counts_again(path):
    for study_id in ("first", "again"):
        charge(path, study_id, epsilon=3.0, **CAPS)
    with pytest.raises(DatasetBudgetError):
        charge(path, "and again", epsilon=3.0)
    assert read_dataset_ledger(path).epsilon == 6.0


def test_the_first_study_sets_the_caps_and_the_dataset(path):
    with pytest.raises(BadInputError, match="has no caps yet"):
        charge(path, "a", cap_epsilon=8.0)
    with pytest.raises(BadInputError, match="dataset_epsilon must be > 0"):
        charge(path, "a", cap_epsilon=0, cap_delta=1e-5)
    with pytest.raises(BadInputError, match="dataset_delta must be in"):
        charge(path, "a", cap_epsilon=1, cap_delta=1)
    with pytest.raises(DatasetBudgetError):
        charge(path, "a", epsilon=9.0, **CAPS)
    assert read_dataset_ledger(path) == DatasetAccount(), "a refused study sets nothing"
    charge(path, "a", **CAPS)
    charge(path, "b", **CAPS)
    with pytest.raises(BadInputError, match=r"dataset_epsilon is 9, and .* was made with 8"):
        charge(path, "c", cap_epsilon=9.0)
    with pytest.raises(BadInputError, match="dataset_delta is 1e-06"):
        charge(path, "c", cap_delta=1e-6)
    with pytest.raises(BadInputError, match="ledger of dataset 'digits', not of 'letters'"):
        charge(path, "c", dataset="letters")
    for wrong in (math.nan, -1.0):
        with pytest.raises(BadInputError, match="must be >= 0"):
            charge(path, "c", epsilon=wrong)
    assert len(read_dataset_ledger(path).studies) == 2


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({**PARTS, "data.public.fraction": 0.1}, "data.public.fraction: 0.2"),
        ({**PARTS, "data.classes": [0, 1]}, "data.classes: null"),
        ({**PARTS, "pretrain.classes": [5, 6]}, "pretrain.classes: null"),
        ({}, "data.public.fraction: 0.2"),
    ],
)
def test_a_study_that_shows_other_records_for_free_is_refused(path, declared, told):
    """Records that one study has public and another private cost the second one nothing."""
    charge(path, "a", **CAPS)
    charge(path, "b", parts=json.loads(json.dumps(PARTS)))
    before = content(path)
    for study_id in ("c", "a"):  # a new one, and one whose spec was changed
        with pytest.raises(BadInputError) as caught:
            charge(path, study_id, parts=declared)
        assert told in caught.value.message
    assert content(path) == before


def test_a_study_that_an_earlier_version_has_charged_goes_on(path):
    """Its file lacks keys that decide, too; its own terms hold them. Other studies are refused."""
    charge(path, "a", **CAPS)
    charge(path, "a", parts={**PARTS, "data.class_names": ["a", "b"]})
    with pytest.raises(BadInputError, match="class_names: null"):
        charge(path, "b", parts={**PARTS, "data.class_names": ["a", "b"]})


def test_a_copy_of_a_study_elsewhere_is_refused(path):
    """It has the study's name and its whole budget, which would be spent twice for one charge."""
    charge(path, "a", directory="/studies/a", **CAPS)
    charge(path, "a", directory="/studies/a")
    with pytest.raises(BadInputError, match="in /studies/a, and this is /other/a"):
        charge(path, "a", directory="/other/a")


def test_a_check_says_the_same_and_writes_nothing(path):
    asked = {"dataset": "digits", "parts": PARTS, "epsilon": 5.0, "delta": 1e-5}
    with pytest.raises(BadInputError, match="no caps yet"):
        check_dataset_budget(path, **asked)
    check_dataset_budget(path, **asked, **CAPS)
    assert not path.exists()
    charge(path, "a", epsilon=4.0, **CAPS)
    before = content(path)
    with pytest.raises(DatasetBudgetError, match="epsilon <= 4"):
        check_dataset_budget(path, **asked)
    check_dataset_budget(path, **{**asked, "epsilon": 4.0})
    with pytest.raises(BadInputError, match=r"where data\.public\.fraction: 0\.2"):
        check_dataset_budget(path, **{**asked, "parts": {**PARTS, "data.public.fraction": 0.3}})
    assert content(path) == before


def test_a_broken_claim_ends_the_dataset(path):
    charge(path, "a", **CAPS)
    charge(path, "b")
    DatasetLedger(path).break_claim("b", "a score was shown without noise")
    DatasetLedger(path).break_claim("a", "later")
    for study_id in ("a", "b", "c"):
        with pytest.raises(DatasetBudgetError, match="study 'study-b': a score was shown"):
            charge(path, study_id)
    with pytest.raises(DatasetBudgetError, match="accepts no study any more"):
        check_dataset_budget(path, dataset="digits", parts=PARTS, epsilon=0.1, delta=0)
    account = read_dataset_ledger(path)
    assert account.broken == "study 'study-b': a score was shown without noise"
    assert account.epsilon == 4.0


def test_a_damaged_ledger_is_refused(path):
    charge(path, "a", **CAPS)
    charge(path, "b")
    lines = content(path).decode().splitlines(keepends=True)
    put(path, (lines[0] + lines[2]).encode())
    with pytest.raises(LedgerError, match="damaged or missing"):
        charge(path, "c")
    with pytest.raises(LedgerError, match="damaged or missing"):
        read_dataset_ledger(path)


def test_a_place_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "EARLY_S", 1.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="cannot write the dataset ledger"):
        charge(tmp_path / "file" / "budget.jsonl", "a", **CAPS)
    nowhere = "postgresql://ada@127.0.0.1:1/nothing#census"
    with pytest.raises(StorageError, match=r"nothing does not answer: Connection refused"):
        read_dataset_ledger(nowhere)


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_the_group_may_write_a_ledger_if_the_umask_lets_it(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        charge(tmp_path / "budget.jsonl", "a", **CAPS)
    finally:
        os.umask(before)
    assert (tmp_path / "budget.jsonl").stat().st_mode & 0o777 == mode


def test_whoever_may_not_write_a_ledger_is_not_sent_to_another_one(tmp_path, monkeypatch):
    charge(tmp_path / "budget.jsonl", "a", **CAPS)

    def refuse(path, **options):
        raise StorageError(f"cannot write {path}: Permission denied", fix="make room")

    monkeypatch.setattr("dpsweep.ledgers.dataset.open_log", refuse)
    with pytest.raises(BadInputError, match="cannot write the dataset ledger") as caught:
        charge(tmp_path / "budget.jsonl", "b", **CAPS)
    assert "chmod g+rw" in caught.value.fix
    assert "another file would forget" in caught.value.fix
    with pytest.raises(BadInputError, match="cannot write") as caught:
        charge(tmp_path / "new.jsonl", "b", **CAPS)
    assert "a place that can be written" in caught.value.fix


# --- Several processes ----------------------------------------------------------------------


def _charge_many(path, worker, start, results):
    start.wait()
    accepted = 0
    for number in range(12):
        try:
            charge(path, f"{worker}-{number}", epsilon=1.0, delta=1e-6, **CAPS)
            accepted += 1
        except DatasetBudgetError:
            pass
    results.put(accepted)


def test_two_processes_at_once_pass_no_cap(path):
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=_charge_many, args=(path, worker, start, results))
        for worker in range(2)
    ]
    for worker in workers:
        worker.start()
    assert results.get(timeout=60) + results.get(timeout=60) == 8
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    account = read_dataset_ledger(path)
    assert (account.epsilon, len(account.studies)) == (8.0, 8)
    first = json.loads(content(path).decode().splitlines()[0])
    assert first["kind"] == "dataset"


def test_a_held_file_is_waited_for_and_then_given_up(path, monkeypatch):
    holder = open_log(path)
    monkeypatch.setattr(dataset_ledger, "_WAIT_S", 0.2)
    with pytest.raises(LockedError):
        charge(path, "a", **CAPS)
    monkeypatch.setattr(dataset_ledger, "_WAIT_S", 30)
    threading.Timer(0.3, holder.close).start()
    start = time.monotonic()
    charge(path, "a", **CAPS)
    assert 0.2 < time.monotonic() - start < 10
    assert read_dataset_ledger(path).epsilon == 2.0


# --- What study and dataset know of each other ----------------------------------------------


def charged(ledgers):
    """Return a ledger that has charged a study, and that charge."""
    ledger = DatasetLedger(ledgers / "digits.budget")
    charge = {
        "directory": ledgers, "dataset": "digits", "parts": {}, "accounting": "composed",
        "epsilon": 1.0, "delta": 1e-5,
    }  # fmt: skip
    ledger.reserve("id", "study", **charge, cap_epsilon=9.0, cap_delta=1e-4)
    return ledger, charge


def once(*trials):
    return dict.fromkeys(trials, 1)


def test_a_study_that_forgot_its_trials_is_not_charged_once_more_for_nothing(ledgers):
    ledger, charge = charged(ledgers)
    for trial in (0, 2, 2):
        ledger.note_trial("id", trial)
    assert read_dataset_ledger(ledger.path).trials == {"id": {0: 1, 2: 1}}
    ledger.reserve("id", "study", **charge, trials=once(0, 1, 2), is_charged=True)
    with pytest.raises(LedgerError, match=r"knows trials of study 'study' that its own .*: 2"):
        ledger.reserve("id", "study", **charge, trials=once(0), is_charged=True)
    assert read_dataset_ledger(ledger.path).epsilon == 1.0


def test_a_copy_of_before_a_trial_was_admitted_again_is_refused(ledgers):
    """A kill between two notes leaves a trial of which nothing ran; it may begin later."""
    ledger, charge = charged(ledgers)
    ledger.note_trial("id", 0)
    ledger.note_trial("id", 1)
    ledger.reserve("id", "study", **charge, trials=once(0, 1), is_charged=True)
    for _ in range(2):
        ledger.note_trial("id", 1, 2)
    assert read_dataset_ledger(ledger.path).trials == {"id": {0: 1, 1: 2}}
    ledger.reserve("id", "study", **charge, trials={0: 1, 1: 2}, is_charged=True)
    ledger.reserve("id", "study", **charge, trials={0: 1, 1: 3}, started={0, 1}, is_charged=True)
    with pytest.raises(LedgerError, match=r"knows trials of study 'study' that its own .*: 1"):
        ledger.reserve("id", "study", **charge, trials=once(0, 1), is_charged=True)


def test_a_ledger_that_has_lost_its_end_is_refused_by_the_study_that_wrote_it(ledgers):
    """What other studies were charged after that end is lost with it."""
    ledger, charge = charged(ledgers)
    # An earlier version noted no trials.
    ledger.reserve("id", "study", **charge, trials=once(0, 1), started={0, 1}, is_charged=True)
    ledger.note_trial("id", 0)
    ledger.reserve("id", "study", **charge, trials=once(0, 1), started={0}, is_charged=True)
    with pytest.raises(LedgerError, match=r"'study' has run trials that .*budget does not .*: 1"):
        ledger.reserve("id", "study", **charge, trials=once(0, 1), started={0, 1}, is_charged=True)


def test_a_study_that_was_charged_refuses_a_ledger_that_does_not_know_it(ledgers):
    ledger = DatasetLedger(ledgers / "new.budget")
    with pytest.raises(LedgerError, match=r"was charged to .*new.budget, which does not know it"):
        ledger.reserve(
            "id", "study", directory=ledgers, dataset="digits", parts={}, accounting="composed",
            epsilon=1.0, delta=1e-5, cap_epsilon=9.0, cap_delta=1e-4, is_charged=True,
        )  # fmt: skip
    assert read_dataset_ledger(ledger.path).studies == ()
    with pytest.raises(LedgerError, match="does not know the study whose trial 3 is to start"):
        ledger.note_trial("id", 3)


def test_a_note_decodes_and_checks_what_is_new_alone(ledgers, monkeypatch):
    """A file of all studies of a group has many records, and each trial waits for its lock."""
    ledger, _ = charged(ledgers)
    seen = []
    for module, name in ((log_records, "_decode"), (kinds, "_flaw")):
        as_it_is = getattr(module, name)
        counted = lambda *a, of=as_it_is, name=name: seen.append(name) or of(*a)  # noqa: E731
        monkeypatch.setattr(module, name, counted)
    ledger.note_trial("id", 0)
    for trial in range(1, 20):
        seen.clear()
        ledger.note_trial("id", trial)
        assert seen == ["_decode", "_flaw"], "of the trial before"
    assert read_dataset_ledger(ledger.path).trials == {"id": once(*range(20))}


@pytest.mark.parametrize("change", ["a byte", "a kind", "a trial", "no study"])
def test_a_note_sees_what_became_of_the_records_before_it(ledgers, change):
    ledger, _ = charged(ledgers)
    for trial in range(3):
        ledger.note_trial("id", trial)
    raw = content(ledger.path)
    lines = [json.loads(line) for line in raw.splitlines()]
    for line in lines:
        del line["crc"]
    if change == "a byte":
        put(ledger.path, raw.replace(b'"trial":1', b'"trial":7'))
    else:
        if change == "a kind":
            lines[2]["kind"] = "try"
        elif change == "a trial":
            lines[3]["trial"] = 7
        else:
            lines[1]["study_id"] = "other"
        put(ledger.path, "".join(map(log_records.encode_record, lines)).encode())
    told = {
        "a byte": ":4: record damaged", "a kind": "no kind of record is called 'try'",
        "no study": "does not know the study whose trial 1 is to start",
    }  # fmt: skip
    for _ in range(2):  # the second time as well
        if change == "a trial":
            ledger.note_trial("id", 1)
        else:
            with pytest.raises(LedgerError, match=told[change]):
                ledger.note_trial("id", 1)
    if change == "a trial":
        assert read_dataset_ledger(ledger.path).trials == {"id": once(0, 7, 2, 1)}
