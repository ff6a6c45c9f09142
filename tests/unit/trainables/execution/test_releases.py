"""Releases along a run: at the last step within each epsilon of all that was ever charged."""

from __future__ import annotations

import json

import pytest

from dpsweep.foundation.errors import CheckpointError, LedgerError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import releases_of, trial_file, trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.trainables.execution.checkpoints import CheckpointStore
from dpsweep.trainables.execution.starts import release_name

PLAN = Plan((EventRun(PoissonGaussian(1.5, 0.02), 700),))
EPSILONS = (0.9, 1.6)


def cost(num):
    return epsilon_of(PLAN.slice(0, num), delta=1e-5)


def on_record(lab):
    """Return (charged, epsilon) of each release, after a look at its checkpoint."""
    path = trial_file(lab.path / "ledger", 0)
    spent, found = trial_spent(lab.path / "ledger", 0), {}
    for index, record in releases_of(read_log(path)).items():
        saved = CheckpointStore(lab.directory()).load(release_name(index))
        assert (saved.sha256, saved.charged) == (record["sha256"], record["charged"])
        covered = spent.slice(0, record["charged"])
        found[index] = (record["charged"], epsilon_of(covered, delta=1e-5), saved.step)
    return found


def test_a_run_stops_exactly_at_its_releases(lab):
    settings = lab.settings(report_every=250)
    reports = lab.run(settings, lab.scripted(PLAN, releases=EPSILONS))
    positions = [next(n for n in range(700) if cost(n + 1) > epsilon) for epsilon in EPSILONS]
    assert {r.step for r in reports} >= set(positions)
    assert reports[-1].step == positions[-1]  # nothing is spent for nobody
    assert {i: found[0] for i, found in on_record(lab).items()} == dict(enumerate(positions))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kills", [1, 2, 5])
def test_what_crashes_lost_is_part_of_every_release(lab, kills, monkeypatch):
    settings = lab.settings(report_every=25)
    task = lab.scripted(PLAN, releases=EPSILONS)

    def killed(start, stop):
        raise lab.Killed

    for _ in range(kills):
        trial = lab.open(settings, task)
        trial.advance()
        monkeypatch.setattr(trial.method, "run", killed)
        with pytest.raises(lab.Killed):
            trial.advance()
        trial.close()
    lab.run(settings, task)
    found = on_record(lab)
    assert set(found) == {0, 1}
    for index, epsilon in enumerate(EPSILONS):
        charged, spent, step = found[index]
        assert 0.9 * epsilon < spent <= epsilon
        assert step < charged


def test_where_the_rest_was_lost_the_model_that_is_there_is_released(lab, monkeypatch):
    settings = lab.settings(report_every=100)
    task = lab.scripted(PLAN, releases=(0.9,))
    trial = lab.open(settings, task)
    trial.advance()
    first = trial.position

    def killed(start, stop):
        raise lab.Killed

    while True:
        monkeypatch.setattr(trial.method, "run", killed)
        try:
            trial.advance()
        except lab.Killed:
            trial.close()
            trial = lab.open(settings, task)
        if on_record(lab):
            break
    assert on_record(lab)[0][2] == first
    assert trial.end == trial.position == first
    assert trial.advance().done
    trial.close()


def test_without_any_model_nothing_is_released(lab, monkeypatch):
    settings = lab.settings(report_every=1000)
    task = lab.scripted(PLAN, releases=(0.9,))

    def killed(start, stop):
        raise lab.Killed

    trial = lab.open(settings, task)
    monkeypatch.setattr(trial.method, "run", killed)
    with pytest.raises(lab.Killed):
        trial.advance()
    trial.close()
    with pytest.raises(LedgerError, match="no model can be released at epsilon"):
        lab.open(settings, task)


def test_a_release_is_made_once(lab):
    settings = lab.settings(report_every=100)
    task = lab.scripted(PLAN, releases=EPSILONS)
    lab.run(settings, task)
    before = on_record(lab)
    trial = lab.open(settings, task)
    assert trial.advance().done
    assert on_record(lab) == before
    with pytest.raises(LedgerError, match="release 1 was made before"):
        trial.ledger.note_release(1, "0" * 64)
    trial.close()


def test_the_ledger_says_what_a_release_costs_and_not_its_checkpoint(lab):
    settings = lab.settings(report_every=100)
    lab.run(settings, lab.scripted(PLAN, releases=EPSILONS))
    pointer = lab.directory() / f"{release_name(0)}.json"
    pointer.write_text(json.dumps({**json.loads(pointer.read_text()), "charged": 1}))
    path = trial_file(lab.path / "ledger", 0)
    assert releases_of(read_log(path))[0]["charged"] > 100


@pytest.mark.parametrize("damage", ["missing", "changed", "pointer"])
def test_a_release_that_is_lost_is_restored_or_nothing_is(lab, damage):
    """No trial can begin without it: no other checkpoint of its run takes its place."""
    lab.run(lab.settings(report_every=250), lab.scripted(PLAN, releases=EPSILONS))
    (path,) = lab.directory().glob("release-0-*.ckpt")
    if damage == "missing":
        path.unlink()
    elif damage == "changed":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        (lab.directory() / "release-0.json").write_text("{")
    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(lab.directory()).load(release_name(0))
    assert caught.value.fix == "restore it, or start a new study under another name"
    last = lab.directory() / json.loads((lab.directory() / "last.json").read_text())["file"]
    last.unlink()
    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(lab.directory()).load("last")
    assert "an unfinished trial goes on" in caught.value.fix
