"""A search on a secret part of the records and its final run, without Ray's actors."""

import json
import shutil

import numpy as np
import pytest
from secret_parts import SPACE, Seen, run_here, secret_spec, without_features
from whole_studies import cli_here

from dpsweep import sweep
from dpsweep.cli.best_spec import spec_of_trial
from dpsweep.foundation.errors import (
    BudgetExceededError,
    LedgerError,
    NothingWithinBudgetError,
    SweepError,
)
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.study_state import read_study_state
from dpsweep.ledgers.trial import TrialLedger, trial_file, trial_spent
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EventRun, Plan, PoissonSubset, RepeatAndSelect
from dpsweep.privacy.selection.on_subset import recorded_bound
from dpsweep.results.coverage import AT_ONCE
from dpsweep.results.study import load_sweep
from dpsweep.results.study_card import card
from dpsweep.running.modes import sealed, sealed_final
from dpsweep.running.stage import Stage
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import StudyView
from dpsweep.study.trial import TrialReport, TrialState
from dpsweep.sweep import run_sweep
from dpsweep.trainables.execution.trial_clock import limit_of


class Killed(BaseException):
    """Stands for a driver that is killed."""


def kill(*args, **more):
    raise Killed


@pytest.fixture
def spec(tmp_path, monkeypatch):
    run_here(tmp_path, monkeypatch)
    return SweepSpec(**secret_spec(tmp_path))


@pytest.fixture
def seen(spec, monkeypatch):
    return Seen(monkeypatch)


def result_of(spec):
    return load_sweep(spec.name, root=spec.storage.root)


def check_final(result):
    """The study has one trial, on all records, within what its ledger says it is charged."""
    assert list(result.view.trials) == [0]
    final = result.best()
    record = read_study_state(result.files.ledger).selection
    assert final.epsilon == result.study_statement().epsilon == record["epsilon"] <= 3.0
    spent = trial_spent(result.files.ledger, 0)
    assert epsilon_of(spent, delta=1e-5) <= record["subset"]["final_epsilon"]
    assert result.claims.downgraded is None
    return final


def test_it_searches_on_the_part_and_runs_the_best_once_on_all_records(spec, seen):
    result = run_sweep(spec)
    assert result.state == "finished"
    final = check_final(result)
    search, last = seen.stages
    *trials, task = seen.tasks
    assert len(trials) == 3
    assert search.data.info.num_private == 216  # declared: .2 of 1079
    assert 120 < len(search.data.parts["private"][1]) < 312
    assert last.data.info.num_private == 1079
    assert len(last.data.parts["private"][1]) == 1079
    winner = max(search.study.view.trials.values(), key=lambda trial: trial.value)
    found_rate = winner.hparams["optim.noise_lr"]
    assert final.config["optim.noise_lr"] == pytest.approx(found_rate * 80 / 16)
    assert (task.trial, task.hparams["batch.expected"], task.records) == (0, 80, "private")


def test_the_whole_costs_what_its_events_do(spec, seen):
    """The charge on the ledger, from the plans that ran: one class of each, so by hand."""
    result = run_sweep(spec)
    trial, task = seen.tasks[0], seen.tasks[-1]
    search = RepeatAndSelect(3, 1, trial.plan)
    events = [
        (PoissonSubset(0.2, plan_of(search)), 1),
        *((r.event, r.count) for r in task.plan.runs),
    ]
    whole = epsilon_of(plan_of(*events), delta=1e-5)
    assert whole <= result.study_statement().epsilon <= whole * (1 + 1e-6)
    assert whole >= 0.99 * 3


def plan_of(*events):
    pairs = [event if isinstance(event, tuple) else (event, 1) for event in events]
    return Plan(tuple(EventRun(event, count) for event, count in pairs))


def test_nothing_of_the_search_is_left_but_the_configuration(spec, seen):
    result = run_sweep(spec)
    search, _ = seen.stages
    seed, *others = seen.seeds
    assert others == []
    secrets = {seed, str(int(seed, 16)), search.ledger.study_id}
    for task in seen.tasks[:-1]:
        secrets.add(repr(task.hparams["optim.noise_lr"])[:9])
    for trial in search.study.view.trials.values():
        secrets |= {repr(value)[:9] for value in (trial.metrics or {}).values()}
    for path in result.files.path.rglob("*"):
        text = path.read_bytes().decode("latin-1") if path.is_file() else ""
        assert not [secret for secret in secrets if secret in text], path
    assert not (result.files.path / sealed.SEALED).exists()
    kinds = [record["kind"] for record in read_log(result.files.ledger / "study.jsonl")]
    assert kinds == ["study", "selection", "begin_selection", "reserve", "settle"]
    opened = [r for r in read_log(trial_file(result.files.ledger, 0)) if r["kind"] == "open"]
    assert opened
    for record in opened:  # a number of a process would tell how many there were
        assert not {"pid", "host"} & set(record)
    times = {record["time_ms"] for record in read_log(result.files.journal)}
    assert all(time % 86_400_000 == 0 for time in times)
    told = result.status_line() + card(result) + json.dumps(result.best().to_dict())
    assert "3 trials" not in told


def test_what_is_said_names_the_part_and_what_is_released(spec):
    result = run_sweep(spec)
    claim = result.study_statement()
    assert claim.accounting == "select"
    assert claim.released.startswith("the final run on all private records and its configuration")
    assert "secret part of them, each with probability 0.2" in claim.released
    assert result.best().statement == claim
    text = card(result)
    assert "each of 1079 declared private records with probability 0.2" in text
    assert "Final run: " in text
    assert "the final run is released" in result.status_line()
    started = [r for r in read_log(result.files.journal) if r["event"] == "trial_started"]
    assert [r["plan"]["epsilon"] for r in started] == [claim.epsilon]
    said = [r["epsilon"] for r in read_log(result.files.journal) if "epsilon" in r]
    assert set(said) == {claim.epsilon}  # never the smaller one of the final run alone
    assert all("that a search" not in r["tags"]["dp.released"] for r in started)


def test_the_epsilon_of_each_report_is_called_what_it_is(spec):
    """All is charged at once: nothing had been "spent by then"."""
    run_sweep(spec)
    where = ("0", "--root", str(spec.storage.path))
    page = " ".join(cli_here("show", spec.name, *where).stdout.split())
    assert "epsilon: the study's, at every step, at the terms above." in page
    assert "spent by then" not in page
    curve = json.loads(cli_here("show", spec.name, *where, "-f", "json").stdout)["curve"]
    assert curve
    assert {point["released"] for point in curve} == {AT_ONCE}
    rows = json.loads(cli_here("logs", spec.name, *where[1:], "-f", "json").stdout)
    assert {row["released"] for row in rows if row["epsilon"] is not None} == {AT_ONCE}


def test_the_charge_is_on_the_ledger_before_the_first_trial(spec, monkeypatch):
    monkeypatch.setattr(Stage, "execute", kill)
    with pytest.raises(Killed):
        run_sweep(spec)
    state = read_study_state(StudyFiles.of(spec).ledger)
    assert state.selection["subset"]["rate"] == 0.2
    assert state.selection["epsilon"] <= 3.0
    assert state.has_begun
    assert result_of(spec).study_statement().epsilon == state.selection["epsilon"]


def test_a_search_that_is_killed_goes_on_with_the_same_part(spec, seen, monkeypatch):
    with monkeypatch.context() as patch:
        ended = Stage.on_end

        def die_after_one(stage, trial, **more):
            ended(stage, trial, **more)
            raise Killed

        patch.setattr(Stage, "on_end", die_after_one)
        with pytest.raises(Killed):
            run_sweep(spec)
    assert not result_of(spec).view.trials
    check_final(run_sweep(spec))
    first, again = seen.seeds
    assert first == again
    parts = [stage.data.parts["private"][0] for stage in seen.stages[:2]]
    assert np.array_equal(*parts)
    assert len(seen.tasks) == 4  # three trials in all, and the final run


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moment", ["reserved", "admitted", "erased", "running"])
def test_a_launch_killed_between_search_and_end_is_followed_by_the_same_run(
    spec, seen, monkeypatch, moment
):
    with monkeypatch.context() as patch:
        if moment == "reserved":
            patch.setattr(sealed_final.FinalStage, "admit", kill)
        elif moment == "admitted":
            patch.setattr(sealed, "_emptied", kill)
        elif moment == "erased":
            patch.setattr(sealed, "run_final", kill)
        else:
            patch.setattr(sealed_final.FinalStage, "on_report", kill)
        with pytest.raises(Killed):
            run_sweep(spec)
    state = read_study_state(StudyFiles.of(spec).ledger)
    assert state.reserved[0]["plan_sha256"]
    frozen = next(stage for stage in seen.stages if stage.fresh_attempts)
    best = max(frozen.study.view.trials.values(), key=lambda trial: trial.value)
    is_erased = not (StudyFiles.of(spec).path / sealed.SEALED / "journal.jsonl").exists()
    assert is_erased == (moment in ("erased", "running"))
    num_admitted, before = len(seen.tasks), trial_spent(StudyFiles.of(spec).ledger, 0)
    result = run_sweep(spec)
    final = check_final(result)
    assert final.config["optim.noise_lr"] == pytest.approx(best.hparams["optim.noise_lr"] * 5)
    again = seen.tasks[num_admitted:]
    assert [task.trial for task in again] == [0]  # nothing more was searched
    assert len(trial_spent(result.files.ledger, 0)) >= len(before)
    assert not (result.files.path / sealed.SEALED).exists()


@pytest.mark.parametrize("is_charged", [True, False])
def test_an_older_copy_runs_no_second_final_run(tmp_path, spec, monkeypatch, is_charged):
    ledger = {"dataset_ledger": str(tmp_path / "all.budget"), "dataset_epsilon": 3.0}
    privacy = {**ledger, "dataset_delta": 1e-5} if is_charged else {}
    spec = SweepSpec(**secret_spec(tmp_path, name="copied", privacy=privacy))
    with monkeypatch.context() as patch:
        patch.setattr(sealed, "begin_final", kill)  # the search has ended, and nothing is out
        with pytest.raises(Killed):
            run_sweep(spec)
    folder, copy = StudyFiles.of(spec).path, tmp_path / "copy"
    shutil.copytree(folder, copy)
    run_sweep(spec)
    check_final(result_of(spec))
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    if is_charged:
        with pytest.raises(LedgerError, match="knows trials of study 'copied'"):
            run_sweep(spec)
    else:  # nothing outside of the study knows of it: not covered, as the pages say
        assert run_sweep(spec).state == "finished"


def test_a_lost_task_of_the_winner_loses_the_claim_and_tells_no_number(spec, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sealed, "begin_final", kill)
        with pytest.raises(Killed):
            run_sweep(spec)
    tasks = list((StudyFiles.of(spec).path / sealed.SEALED).rglob("trial.json"))
    assert len(tasks) == 3
    for task in tasks:
        task.unlink()
    with pytest.raises(SweepError, match="nothing is released") as refused:
        run_sweep(spec)
    assert "000" not in str(refused.value)
    assert result_of(spec).claims.downgraded
    assert result_of(spec).claims.downgraded == sealed._HISTORY_LOST


def test_a_final_run_that_has_ended_is_never_repeated(spec, seen):
    result = run_sweep(spec)
    length, num_stages = len(read_log(result.files.journal)), len(seen.stages)
    again = run_sweep(spec)
    assert len(read_log(again.files.journal)) == length
    assert len(seen.stages) == num_stages


def test_a_final_run_that_has_failed_is_never_repeated(spec, seen, monkeypatch):
    def fail(stage, task):
        stage.on_report(TrialReport(0, 2, {}, 0.4, charged=0, done=True, failure="died"))
        stage.on_end(0)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(
            sealed,
            "run_final",
            lambda launch, task, path: fail(
                sealed_final.FinalStage(launch, task, launch.supplies, path), task
            ),
        )
        with pytest.raises(Killed):
            run_sweep(spec)
    num_stages = len(seen.stages)
    result = run_sweep(spec)
    assert result.view.end_reason == "the final run has ended; it is never repeated"
    assert len(seen.stages) == num_stages
    assert result.view.trials[0].state is TrialState.FAILED
    assert result.study_statement().epsilon > 2.9


def test_a_study_on_all_records_cannot_be_given_a_part(spec, tmp_path, monkeypatch):
    raw = secret_spec(tmp_path, "whole", mean=2)
    del raw["search"]["on"]
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "execute", kill)
        with pytest.raises(Killed):
            run_sweep(SweepSpec(**raw))
    plain = SweepSpec(**raw)
    assert result_of(plain).study_statement() is not None
    path = StudyFiles.of(plain).spec
    path.write_text(SweepSpec(**secret_spec(tmp_path, "whole", mean=2)).to_yaml())
    with pytest.raises(LedgerError, match=r"search\.on\.subset is 0\.2"):
        result_of(plain)


def test_steps_lost_in_a_crash_are_paid_out_of_the_plan(spec, seen, monkeypatch, tmp_path):
    """However often a launch dies, no event is charged that is not in the plan.

    Its first steps have the most noise; by epsilon alone, they could be charged again and again.
    """
    space = {**SPACE, "noise.shape": "cosine", "noise.end_ratio": 0.5}
    spec = SweepSpec(**secret_spec(tmp_path, "again", space=space))
    with monkeypatch.context() as patch:
        patch.setattr(sealed_final.FinalStage, "on_report", kill)
        with pytest.raises(Killed):
            run_sweep(spec)
    task, stage, ledger = seen.tasks[-1], seen.stages[-1], StudyFiles.of(spec).ledger
    settings = stage.settings()
    limit, _ = limit_of(task, settings)
    spent = trial_spent(ledger, 0)
    assert 0 < len(spent) < len(task.plan) / 2
    first = task.plan.slice(0, 1)
    assert epsilon_of(spent + first, delta=1e-5) < settings.budget.target_epsilon
    charging = TrialLedger(
        trial_file(ledger, 0), budget=settings.budget, accountant="rdp", limit=limit
    )
    try:
        with pytest.raises(BudgetExceededError):
            charging.charge(0, 1, first)
    finally:
        charging.close()
    result = run_sweep(spec)
    assert result.view.trials[0].state is not TrialState.RUNNING
    bound = recorded_bound(read_study_state(ledger).selection)
    assert bound.covers_final(trial_spent(ledger, 0))


def test_a_part_that_was_removed_is_not_drawn_anew(spec, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "on_end", kill)
        with pytest.raises(Killed):
            run_sweep(spec)
    shutil.rmtree(StudyFiles.of(spec).path / sealed.SEALED)
    with pytest.raises(SweepError, match="would be drawn anew"):
        run_sweep(spec)
    result = result_of(spec)
    assert result.claims.accounting == "unaccounted"
    assert result.study_statement() is None


def test_a_record_without_its_part_is_not_completed(spec, monkeypatch):
    """A number of trials alone, as a selection on all records has it: who was searched is lost."""
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "on_end", kill)
        with pytest.raises(Killed):
            run_sweep(spec)
    monkeypatch.setattr(sealed.StudyLedger, "part_seed", None)
    with pytest.raises(SweepError, match="would be drawn anew"):
        run_sweep(spec)


def test_another_rate_is_another_study(spec, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "execute", kill)
        with pytest.raises(Killed):
            run_sweep(spec)
    path = StudyFiles.of(spec).spec
    path.write_text(path.read_text().replace("subset: 0.2", "subset: 0.1"))
    with pytest.raises(LedgerError, match=r"search\.on\.subset is 0\.1"):
        result_of(spec)


def test_no_draw_has_a_final_run_dearer_than_what_was_charged(spec, tmp_path, monkeypatch, seen):
    """The price holds for final runs below the charged bound; a sample of plans may miss some.

    A shorter trial of the same noise is covered; its final run, of less noise, is not.
    """
    noise = {**SPACE, "noise.noise_multiplier": 4.0}
    wide_space = {**noise, "train.epochs": {"choice": [1, 4]}}
    wide = SweepSpec(**secret_spec(tmp_path, "wide", space=wide_space))
    narrow = preflight(SweepSpec(**secret_spec(tmp_path, "wide", space=noise)))
    charge = choose_selection(narrow)
    monkeypatch.setattr(sweep, "choose_selection", lambda checked: charge)
    without_features(monkeypatch.setattr, num_trials=12)
    run_sweep(wide)
    *trials, task = seen.tasks
    assert len(trials) == 12
    checked = preflight(wide)
    short = checked.admit(0, {**trials[0].hparams, "method": "dp_sgd", "train.epochs": 1.0})
    assert charge.bound.covers(short.full_plan)
    assert not charge.admits(checked, short)
    assert {trial.hparams["train.epochs"] for trial in trials} == {4.0}
    assert charge.bound.covers_final(task.full_plan)


def test_without_a_winner_there_is_no_final_run(spec, seen, monkeypatch):
    monkeypatch.setattr(StudyView, "best", lambda self, **more: None)
    result = run_sweep(spec)
    assert result.view.end_reason == "there is no winner"
    assert not result.view.trials
    assert result.study_statement().epsilon <= 3.0
    assert result.study_statement().sampling == "sampling of its plan"  # trials ran, sealed


def test_a_private_final_run_that_fails_keeps_the_whole_claim(spec, monkeypatch):
    def fail(stage, report):
        raise SweepError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(sealed_final.FinalStage, "on_report", fail)
        with pytest.raises(SweepError, match="out of memory"):
            run_sweep(spec)
    result = result_of(spec)
    assert result.view.trials[0].state is TrialState.RUNNING
    assert "the final run is not" in result.status_line()
    claim = result.study_statement()
    assert claim.epsilon == read_study_state(result.files.ledger).selection["epsilon"]


def test_a_final_run_that_has_failed_says_so_and_why(spec, monkeypatch):
    def fail(stage, source, target):
        if not isinstance(stage, sealed_final.FinalStage):
            return execute(stage, source, target)
        failure = "ValueError at net.py:21\nmore"
        stage.on_report(TrialReport(0, 2, {}, 0.4, charged=0, done=True, failure=failure))
        stage.on_end(0)
        return "finished"

    execute = Stage.execute
    monkeypatch.setattr(Stage, "execute", fail)
    result = run_sweep(spec)
    assert (result.state, result.view.trials[0].state) == ("finished", TrialState.FAILED)
    line = result.status_line()
    assert line.endswith("the search has ended; the final run has failed: ValueError at net.py:21")
    assert "the final run is not" not in line
    with pytest.raises(NothingWithinBudgetError, match="no finished trial") as caught:
        result.best()
    assert caught.value.because == (
        "0 final runs have finished; the final run has failed: ValueError at net.py:21"
    )
    assert "`dpsweep logs` has the reasons" in caught.value.fix
    assert "more trials or epsilon" not in caught.value.fix
    assert "a new study, under another name" in caught.value.fix


@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.slow)])
def test_its_configuration_can_be_run_again_as_it_was_planned(tmp_path, monkeypatch, accountant):
    run_here(tmp_path, monkeypatch, num_trials=1)
    result = run_sweep(SweepSpec(**secret_spec(tmp_path, privacy={"accountant": accountant})))
    spec = spec_of_trial(result, 0)
    assert (spec.search.on, spec.privacy.accounting) == (None, "composed")
    task, checked = result.files.task(0), preflight(spec)
    choose_composition(checked)
    events = {run.event.sample_rate for run in checked.sample[0].plan.runs}
    assert events == {run.event.sample_rate for run in task.plan.runs}
    assert checked.sample[0].planned_epsilon == pytest.approx(task.planned_epsilon, abs=2e-3)
