"""Records of audits on disk, and what is said of them."""

import dataclasses
import json

import pytest

from dpsweep.foundation.errors import StudyError
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.study.audits import AuditRecord, audit_file, read_audits, write_audit

CLAIM = PrivacyStatement(
    epsilon=1.0, delta=1e-5, accountant="rdp", neighboring_relation="add_or_remove_one",
    sampling="poisson", privacy_unit="example", accounting="composed",
    released="the noisy sums of 100 positions",
)  # fmt: skip
RECORD = AuditRecord(
    study="digits", trial=3, method="dp_sgd", claim=CLAIM, lower_bound=0.1, ceiling=3.47,
    canaries=1000, guesses=100, correct=61, confidence=0.95, positions=100, planned=224,
    is_refuted=False, problems=(), without_sampling=None, at_bound=0.99,
    not_audited=("positions 101 to 224 of the plan",), version="0.1.0",
)  # fmt: skip
REFUTED = dataclasses.replace(RECORD, trial=1, correct=100, lower_bound=3.47, is_refuted=True)
UNSECRET = dataclasses.replace(
    RECORD, problems=("batches are not secret",), without_sampling=CLAIM, trial=12
)
UNFOLLOWED = dataclasses.replace(RECORD, claim=None, at_bound=None, trial=0, correct=0)


def test_records_are_read_as_they_were_written(tmp_path):
    for record in (RECORD, REFUTED, UNSECRET, UNFOLLOWED):
        assert write_audit(tmp_path, record) == audit_file(tmp_path, record.trial)
    assert read_audits(tmp_path) == [UNFOLLOWED, REFUTED, RECORD, UNSECRET]
    later = dataclasses.replace(RECORD, correct=70)
    write_audit(tmp_path, later)
    assert read_audits(tmp_path)[2] == later


def test_a_study_without_audits_has_none(tmp_path):
    assert read_audits(tmp_path) == []


@pytest.mark.parametrize(
    "damage", [lambda text: text.replace("61", "62"), lambda text: "", str.upper]
)
def test_a_damaged_record_is_refused(tmp_path, damage):
    path = write_audit(tmp_path, RECORD)
    path.write_text(damage(path.read_text()))
    with pytest.raises(StudyError, match=r"trial-0003.json is damaged.*\n.*audit the trial again"):
        read_audits(tmp_path)


def test_a_record_of_other_keys_is_refused(tmp_path):
    path = write_audit(tmp_path, RECORD)
    path.write_text(json.dumps({"trial": 3}))
    with pytest.raises(StudyError):
        read_audits(tmp_path)


def test_a_verdict_stands_with_its_claim_and_terms():
    assert [r.verdict for r in (RECORD, REFUTED, UNSECRET, UNFOLLOWED)] == [
        "consistent", "FAIL", "FAIL", "not audited",
    ]  # fmt: skip
    claim = f"epsilon=1.0000 ({CLAIM.line()})"
    assert RECORD.sentence() == (
        f"consistent with {claim}: 61 of 100 guesses about 1000 canaries are right; "
        "this proves nothing"
    )
    assert REFUTED.sentence() == (
        f"FAIL: not consistent with {claim}: 100 of 100 guesses about 1000 canaries are right, "
        "which refutes it at 95% confidence"
    )
    assert UNSECRET.sentence() == (
        f"FAIL: not consistent with {claim}: batches are not secret; 61 of 100 guesses about 1000 "
        "canaries are right"
    )
    assert "epsilon" not in UNFOLLOWED.sentence()


def test_a_ceiling_below_the_claim_could_not_fail():
    low = dataclasses.replace(RECORD, ceiling=0.99)
    assert RECORD.could_fail
    assert not low.could_fail
    assert not UNFOLLOWED.could_fail
