"""A search on a part of the records: what its final run is handed, charges, and may claim."""

import contextlib
import shutil

import pytest
from split_studies import SCORES, SplitStudy

from dpsweep.foundation.errors import BudgetExceededError, LedgerError, StudyError
from dpsweep.ledgers.study_state import read_study_state
from dpsweep.ledgers.trial import TrialLedger, study_spent, trial_file, trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study_card import card
from dpsweep.running.stage import Stage
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import refuse_other_spec
from dpsweep.study.trial import TrialReport, TrialState


class Killed(Exception):
    """Stands for a driver that is killed."""


@pytest.fixture
def split(tmp_path):
    study = SplitStudy(tmp_path)
    yield study
    study.close()


def finish(split, score=0.2):
    return lambda task, stage: [split.finish(task, stage, score), "finished"][1]


def no_search(*args):
    raise AssertionError("the search goes on, though the final run has begun")


def test_the_winner_is_carried_over_to_the_records_that_the_search_has_not_read(split):
    ran = []

    def execute(task, stage):
        ran.append((task, stage.settings()))
        return finish(split)(task, stage)

    assert split.run(execute).state == "finished"
    (_, searched, _), (_, rest, _) = split.handed
    assert (searched.info.num_private, rest.info.num_private) == (324, 755)
    assert len(searched.parts["private"][1]) + len(rest.parts["private"][1]) == 1079
    ((task, settings),) = ran
    assert (task.trial, task.records, settings.budget.target_epsilon) == (2, "rest", 3.0)
    assert task.hparams["batch.expected"] == 75
    assert task.hparams["optim.noise_lr"] == pytest.approx(2.0 * 75 / 32)
    assert 2.9 < task.planned_epsilon <= 3.0
    spent = trial_spent(split.study.files.ledger, 2)
    assert {run.part for run in spent.runs} == {"rest"}
    assert {run.part for run in trial_spent(split.study.files.ledger, 1).runs} == {"private"}


def test_the_final_run_is_delivered_by_rule_and_not_by_score(split):
    split.run(finish(split, score=0.2))
    result = split.result
    best = result.best()
    assert (best.trial_id, best.value) == (2, 0.2)
    assert max(SCORES) > 0.2
    assert [result.claims.is_final(result.view.trials[n]) for n in range(3)] == [False] * 2 + [True]
    assert [trial.trial_id for trial in result.pareto()] == [1]
    assert "of at most 3" in result.status_line()


def test_the_claim_is_the_larger_of_both_and_says_so(split):
    split.run(finish(split))
    result = split.result
    claim = result.study_statement()
    assert (claim.epsilon, claim.accounting) == (3.0, "composed")
    assert "0.3 of the private records" in claim.released
    assert "not the sum" in claim.released
    final, searched = result.results[2].statement, result.results[0].statement
    assert 2.9 < final.epsilon <= 3.0
    assert "that the search does not read" in final.released
    assert "that is searched on" in searched.released
    spent = study_spent(split.study.files.ledger, {0: 0, 1: 0, 2: 0})
    of_search = epsilon_of(spent.without("rest"), delta=1e-5)
    assert 1.0 < of_search < 3.0
    assert epsilon_of(spent, delta=1e-5) == max(of_search, final.epsilon)
    text = card(result)
    assert "324 declared records" in text
    assert "the other 755" in text
    assert "Final run: trial 2" in text
    assert "A record that is there twice" in text
    assert result.claims.downgraded is None


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.FAILED])
def test_the_whole_budget_is_claimed_however_little_the_final_run_spent(split, state):
    def execute(task, stage):
        split.charge(task, 4, stage.checked)
        split.report(task, stage, score=0.1, done=False, step=4)
        if state is TrialState.FAILED:
            failed = TrialReport(task.trial, 4, {}, 0.4, charged=4, done=True, failure="died")
            stage.on_report(failed)
            stage.on_end(task.trial)
        return "interrupted"

    split.run(execute)
    assert split.result.study_statement().epsilon == 3.0
    assert split.result.results[2].state is state


def kill(*args):
    raise Killed


def test_a_driver_killed_before_the_journal_knows_is_followed_by_the_same_run(split, monkeypatch):
    """The ledger has the reservation, nothing else has: the run keeps its number and its plan."""
    with monkeypatch.context() as patch:
        admit = Stage.admit
        patch.setattr(
            Stage, "admit", lambda s, task: kill() if task.records == "rest" else admit(s, task)
        )
        with pytest.raises(Killed):
            split.run(finish(split))
    assert split.ledger.final_run == 2
    assert 2 not in split.study.view.trials
    split.close()
    split.open(search={"num_trials": 9})  # which would let a search go on, and take the number
    ran = []

    def execute(task, stage):
        ran.append(task)
        return finish(split)(task, stage)

    assert split.run(execute, search=no_search).state == "finished"
    assert [task.trial for task in ran] == [2]
    assert split.result.study_statement().epsilon == 3.0
    assert split.result.claims.downgraded is None


@pytest.mark.parametrize("charged", [0, 4, 40])
def test_a_final_run_cut_off_goes_on_within_its_budget(split, charged):
    def die(task, stage):
        if charged:
            split.charge(task, charged, stage.checked)
        raise Killed

    with pytest.raises(Killed):
        split.run(die)
    split.close()
    split.open()

    def go_on(task, stage):
        steps = len(task.plan)
        assert stage.checked.budget.target_epsilon == 3.0
        if charged:  # what is repeated is charged again, and there is no room for it
            with pytest.raises(BudgetExceededError, match="over trial_epsilon=3"):
                split.charge(task, steps, stage.checked)
        split.charge(task, steps, stage.checked, start=charged)
        split.report(task, stage, score=0.3)
        stage.on_end(task.trial)
        return "finished"

    assert split.run(go_on, search=no_search).state == "finished"
    assert epsilon_of(trial_spent(split.study.files.ledger, 2), delta=1e-5) <= 3.0


@pytest.mark.parametrize("failed", [False, True])
def test_a_final_run_that_has_ended_is_never_repeated(split, failed):
    def execute(task, stage):
        if not failed:
            return finish(split)(task, stage)
        split.report(task, stage, score=0.1, done=False, step=0)
        stage.on_end(task.trial, died=True)
        return "finished"

    split.run(execute)
    split.close()
    split.open(search={"num_trials": 9})
    ending = split.run(lambda *args: pytest.fail("it is run again"), search=no_search)
    assert ending.reason == "the final run has ended; it is never repeated"


def test_a_lost_final_run_is_not_begun_anew(split):
    def die(task, stage):
        split.charge(task, 4, stage.checked)
        split.report(task, stage, score=0.1, done=False, step=4)
        raise Killed

    with pytest.raises(Killed):
        split.run(die)
    shutil.rmtree(split.study.files.trial(2))
    split.close()
    split.open()
    ending = split.run(lambda *args: pytest.fail("it is run again"), search=no_search)
    assert ending.reason == "the final run is lost; it is never repeated"


def test_without_a_winner_nothing_is_run_on_the_rest(split):
    def nothing(launch, checked, data):
        return type("E", (), {"state": "finished"})()

    ending = split.run(lambda *args: pytest.fail("it runs"), search=nothing)
    assert "no final run" in ending.reason
    assert split.ledger.final_run is None


def test_another_trial_that_charges_the_rest_takes_the_claim(split):
    """Even where all of it together would be within the budget: delta would count twice."""

    def begin(task, stage):
        split.charge(task, 4, stage.checked)
        return "interrupted"

    split.run(begin)
    assert split.result.study_statement().epsilon == 3.0
    charges = split.study.files.task(2).charges.slice(0, 1)
    ledger = TrialLedger(trial_file(split.study.files.ledger, 0), budget=None, accountant="rdp")
    with contextlib.closing(ledger):
        ledger.charge(0, 1, charges)
    assert "more than one trial has read the records" in split.result.claims.downgraded
    assert split.result.study_statement() is None


def test_a_share_that_was_changed_between_launches_is_refused(split):
    split.run(finish(split))
    for share in ({"split": 0.5}, None):
        raw = {**split.raw, "search": {**split.raw["search"], "on": share}}
        with pytest.raises(StudyError, match="was launched from another spec"):
            refuse_other_spec(SweepSpec(**raw))


@pytest.mark.parametrize("written", ["split: 0.5", "", "null"])
def test_a_share_that_was_edited_in_the_kept_spec_is_refused(split, written):
    split.run(finish(split))
    path = split.study.files.spec
    text = path.read_text()
    assert "split: 0.3" in text
    if written.startswith("split"):
        path.write_text(text.replace("split: 0.3", written))
    else:
        lines = [line for line in text.splitlines() if "split: 0.3" not in line]
        path.write_text("\n".join(line for line in lines if line.strip("' :") != "on"))
    with pytest.raises((LedgerError, StudyError)):
        split.result.study_statement()


def test_a_study_without_a_part_cannot_be_given_one(tmp_path):
    whole = SplitStudy(tmp_path, search={"on": None})
    assert whole.composition.searched_share is None
    whole.close()
    raw = {**whole.raw, "search": {**whole.raw["search"], "on": {"split": 0.3}}}
    whole.study.files.spec.write_text(SweepSpec(**raw).to_yaml())
    with pytest.raises(LedgerError, match=r"search\.on\.split is 0\.3"):
        whole.result.study_statement()


def test_what_the_final_run_takes_is_on_the_ledger_before_it_begins(split):
    seen = []

    def execute(task, stage):
        record = read_study_state(split.study.files.ledger).reserved[task.trial]
        seen.append((record["cost"], len(trial_spent(split.study.files.ledger, task.trial))))
        return finish(split)(task, stage)

    split.run(execute)
    ((cost, charged),) = seen
    assert (cost, charged) == ({"private": 0.0, "validation": 0.0, "final_run": 1.0}, 0)
