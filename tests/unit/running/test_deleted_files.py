"""Whatever is deleted of a study, and whenever it is killed: what it claims is what it has spent."""

import re

import pytest
from mortal_studies import MortalStudies

from dpsweep.results.study import load_sweep

CHANCES = (0.0, 0.01, 0.03, 0.1)
KINDS = ("composed", "declared", "public", "probe", "prefix")
SHARES = (0.0, 0.03, 0.1, 0.5)
#: Each kind is killed and deleted from in CI; what takes many whole launches more, one of them.
SOME = [
    kind if kind == "composed" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS
]


def play(tmp_path, monkeypatch, seed, accounting):
    """Launch a study up to six times; kill it and delete files at random; check after each step."""
    studies = MortalStudies(tmp_path, seed, monkeypatch, accounting=accounting)
    for _ in range(6):
        deletes = studies.rng.random() < 0.3
        studies.launch(chance=studies.rng.choice(CHANCES), deletes=deletes)
        studies.check()
        if studies.rng.random() < 0.7:
            studies.delete(studies.rng.choice(SHARES))
            studies.check()
    return studies


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_of_kills_and_deletions_spends_more_than_is_claimed(
    tmp_path, monkeypatch, seed
):
    assert play(tmp_path, monkeypatch, seed, KINDS[seed % len(KINDS)]).num_launches == 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5, 210))
def test_two_hundred_schedules(tmp_path, monkeypatch, seed):
    play(tmp_path, monkeypatch, seed, KINDS[seed % len(KINDS)])


@pytest.mark.slow
@pytest.mark.parametrize("accounting", SOME)
def test_a_study_that_nobody_touches_finishes_after_any_number_of_kills(
    tmp_path, monkeypatch, accounting
):
    studies = MortalStudies(tmp_path, 7, monkeypatch, accounting=accounting)
    while studies.launch(chance=0.03) == "killed":
        assert studies.check() != "refused"
    assert studies.num_kills > 0
    assert studies.check() == "claimed"
    if accounting == "probe":
        result = load_sweep("mortal", root=studies.study.parent)
        assert result.best().trial_id == result.spec.final_trial
        assert max(result.view.trials) == result.spec.final_trial
    assert studies.launch(chance=0.0) == "ran"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accounting", SOME)
def test_a_study_of_which_all_but_its_own_ledger_is_deleted_runs_nothing(
    tmp_path, monkeypatch, accounting
):
    studies = MortalStudies(tmp_path, 0, monkeypatch, accounting=accounting)
    assert studies.launch(chance=0.0) == "ran"
    assert studies.check() == "claimed"
    ran = studies.num_run
    for kind in ("journal.jsonl", "optuna.db", "trials/*/*", "ledger/trial-*.jsonl"):
        for path in studies.study.rglob(kind):
            path.unlink()
    said = studies.launch(chance=0.0)
    assert re.search("knows trials that the journal does not: 0(, 1, 2| to [4-9])", said), said
    assert studies.num_run == ran
    assert "refused" in studies.check()
