"""Audits in the privacy card: of trials that the study shows, with the terms of their claim."""

from types import SimpleNamespace

import pytest
from audit_records import CLAIM, record

from dpsweep.privacy.modes import MODES
from dpsweep.results.card import privacy_card
from dpsweep.results.study_card import audits
from dpsweep.study.audits import write_audit


def study(root, mode, trials, winner=0):
    return SimpleNamespace(
        files=SimpleNamespace(path=root),
        spec=SimpleNamespace(privacy=SimpleNamespace(mode=MODES[mode])),
        view=SimpleNamespace(trials=dict.fromkeys(trials)),
        best=lambda: SimpleNamespace(trial_id=winner),
    )


FACTS = {
    "name": "digits", "methods": ["dp_sgd"], "unbounded_methods": [], "dataset": "digits",
    "privacy_unit": "example", "neighboring_relation": "add_or_remove_one", "accountant": "rdp",
    "delta": 1e-05, "trial_epsilon": 2.0, "validation_visibility": "public",
    "test_visibility": "private",
}  # fmt: skip


def lines(result, mode):
    claim = {**CLAIM.to_json(), "accounting": mode, "epsilon": 3.0}
    own = {"composed": claim} if mode == "unaccounted" else {"study": claim}
    card = privacy_card({**FACTS, **own, "accounting": mode, "audits": audits(result)})
    return [line for line in card.splitlines() if line.startswith("- Audit")]


@pytest.mark.parametrize("mode", ["composed", "public", "unaccounted"])
def test_each_audited_trial_has_a_line(tmp_path, mode):
    write_audit(tmp_path, record(0))
    write_audit(tmp_path, record(2, is_refuted=True, correct=100))
    write_audit(tmp_path, record(1, claim=None, not_audited=("pca",)))
    first, second, third = lines(study(tmp_path, mode, [0, 1, 2]), mode)
    terms = (
        "at delta = 1e-05 (unit: one example; neighboring data sets: add or remove one record; "
        f"batch sampling: Poisson; accountant: rdp; accounting mode: `{mode}`), for 100 of 224 "
        "positions: "
    )
    assert first == (
        f"- Audit: trial 0: consistent with epsilon <= 1.23 {terms}61 of 100 guesses about 1000 "
        "canaries are right; this proves nothing"
    )
    assert second == "- Audit: trial 1: not audited, which is no pass: pca"
    assert third == (
        f"- Audit: trial 2: FAIL: not consistent with epsilon <= 1.23 {terms}100 of 100 guesses "
        "about 1000 canaries are right, which refutes it at 95% confidence"
    )
    assert "0.777" not in "".join((first, second, third))


def test_trials_that_the_study_does_not_have_are_left_out(tmp_path):
    write_audit(tmp_path, record(0))
    write_audit(tmp_path, record(9))
    assert len(lines(study(tmp_path, "composed", [0]), "composed")) == 1


def test_under_select_the_winner_alone_is_named_and_has_no_number(tmp_path):
    for trial in (0, 3):
        write_audit(tmp_path, record(trial))
    (line,) = lines(study(tmp_path, "select", [0, 3], winner=3), "select")
    assert line.startswith("- Audit: the winner: consistent with ")
    assert "trial 3" not in line
    assert "accounting mode: `single_run`), for 100 of 224 positions" in line


def test_without_audits_nothing_is_said(tmp_path):
    assert audits(study(tmp_path, "composed", [0])) == []
    assert lines(study(tmp_path, "composed", [0]), "composed") == []
