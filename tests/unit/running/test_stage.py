"""What the driver writes down and carries out, without Ray's actors: reports, verdicts, claims."""

import dataclasses
from types import SimpleNamespace

import pytest
from launches import Driver, report

from dpsweep.foundation.errors import ChangedCodeError, StorageError, StudyError, SweepError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.results.study import load_sweep
from dpsweep.running.modes import searching
from dpsweep.schedulers.base import promotion
from dpsweep.search.searcher import TaskSearcher
from dpsweep.search.sources import MAX_UNAFFORDABLE_IN_A_ROW
from dpsweep.spec.cluster import Share
from dpsweep.study.trial import Decision, TrialReport, TrialState, Verdict
from dpsweep.trainables.data.supplies import NO_SUPPLIES
from dpsweep.trainables.execution.settings import NOT_RELEASED


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def test_the_study_admits_what_fits_and_waits_for_the_rest(driver):
    source = driver.source()
    tasks = []
    while (task := source.next_task(num_running=len(tasks))) is not None:
        tasks.append(task)
    assert len(tasks) >= 2
    assert not source.is_exhausted  # something is in flight and may give budget back
    spent = max(driver.ledger.committed.values())
    assert spent <= driver.composition.budget
    # One trial is pruned after a tenth of its plan: what it gives back buys another one.
    first = tasks[0]
    driver.stage.on_report(report(first, driver.charge(first, len(first.plan) // 10)))
    driver.stage._stop_reasons[first.trial] = "worse"
    driver.stage.on_end(first.trial)
    assert driver.study.view.trials[first.trial].state is TrialState.PRUNED
    assert max(driver.ledger.committed.values()) < spent
    assert source.next_task(num_running=len(tasks) - 1) is not None


def test_the_study_ends_when_nothing_fits(driver):
    source = driver.source()
    while (task := source.next_task(num_running=1)) is not None:
        driver.charge(task, len(task.plan))
        driver.stage.on_report(report(task, len(task.plan), done=True))
        driver.stage.on_end(task.trial)
    assert source.next_task(num_running=0) is None
    assert source.is_exhausted
    assert "budget is used up" in source.end_reason
    states = [t.state.name for t in source._suggestions._study.trials]
    assert states.count("FAIL") == MAX_UNAFFORDABLE_IN_A_ROW
    assert max(driver.ledger.committed.values()) <= driver.composition.budget


def test_a_private_metric_never_arrives_and_costs_the_claim(driver):
    task = driver.source().next_task(num_running=0)
    leaky = TrialReport(task.trial, 1, {"validation/accuracy": 0.5, "train/loss": 0.1}, 0.4)
    assert driver.stage.on_report(leaky).metrics == {"validation/accuracy": 0.5}
    assert "train/loss" in driver.ledger.downgraded
    assert any("for good" in text for text in driver.observer.messages)
    result = load_sweep("stage", root=driver.study.files.path.parent)
    assert result.claims.accounting == "unaccounted"
    assert result.study_statement() is None
    assert "train/loss" in result.claims.caption()
    assert "no guarantee" in result.claims.caption()
    driver.close()
    again = StudyLedger(driver.study.files.ledger)
    again.downgrade("another reason")
    assert "train/loss" in again.downgraded  # the first reason stays, the label too
    again.close()


def test_a_claim_given_up_on_the_ledger_alone_is_given_up(driver):
    """A kill between the two records, or a journal without the second one, changes nothing."""
    driver.ledger.downgrade("a reason")
    claims = load_sweep("stage", root=driver.study.files.path.parent).claims
    assert not driver.study.view.downgraded
    assert (claims.accounting, claims.study_statement()) == ("unaccounted", None)


def test_a_run_time_never_arrives(driver):
    """Whatever an actor says: time tells of the sizes of batches."""
    task = driver.source().next_task(num_running=0)
    shown = driver.stage.on_report(report(task, 1, wall_s=3.0, memory_mb=900.0))
    assert (shown.wall_s, shown.memory_mb) == (0.0, 0.0)
    rows = [r for r in read_log(driver.study.files.journal) if r["event"] == "trial_report"]
    assert [row["wall_s"] for row in rows] == [None]
    assert not any("memory_mb" in row for row in rows)
    assert not driver.stage.settings().is_timed


def test_a_run_time_arrives_where_nothing_is_claimed(tmp_path):
    driver = Driver(tmp_path, accounting="unaccounted", study_epsilon=None)
    task = driver.source().next_task(num_running=0)
    shown = driver.stage.on_report(report(task, 1, wall_s=3.0, memory_mb=900.0))
    assert (shown.wall_s, shown.memory_mb) == (3.0, 900.0)
    view = driver.study.view.trials[task.trial]
    assert (view.wall_s, view.memory_mb) == (3.0, 900)
    assert driver.stage.settings().is_timed
    driver.close()


@pytest.mark.parametrize(
    ("accounting", "validation", "leaves"),
    [
        ("composed", {"visibility": "public"}, ("exact", None)),
        ("composed", {"visibility": "noisy", "noise_std": 0.05}, ("noisy", 18.0)),
        ("unaccounted", {"visibility": "noisy", "noise_std": 0.05}, ("noisy", 18.0)),
        ("unaccounted", {"visibility": "exact"}, ("exact", None)),
        ("unaccounted", {"visibility": "public"}, ("exact", None)),
    ],
)
def test_scores_leave_the_actor_as_declared(tmp_path, accounting, validation, leaves):
    """Of 1,797 digits a fifth validates: 359 records, so that 0.05 is a deviation of 18."""
    driver = Driver(
        tmp_path, accounting=accounting, study_epsilon=2.0 if accounting == "composed" else None,
        data={"dataset": "digits", "validation": {"fraction": 0.2, **validation}},
    )  # fmt: skip
    settings = driver.stage.settings()
    kind, noise = leaves
    assert settings.validation == kind
    assert settings.validation_noise == (None if noise is None else pytest.approx(noise, rel=0.01))
    assert not settings.show_test
    driver.close()


def test_only_the_accuracy_of_noisy_scores_may_leave(tmp_path):
    noisy = {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.05}
    driver = Driver(tmp_path, data={"dataset": "digits", "validation": noisy})
    task = driver.source().next_task(num_running=0)
    both = TrialReport(task.trial, 1, {"validation/accuracy": 0.5, "validation/loss": 0.1}, 0.4)
    assert driver.stage.on_report(both).metrics == {"validation/accuracy": 0.5}
    assert "validation/loss" in driver.ledger.downgraded
    driver.close()


def test_exact_scores_of_private_records_do_not_leave_a_study_with_a_claim(driver):
    """The spec refuses them; if it did not, they would stay inside."""
    validation = driver.spec.data.validation.model_copy(update={"visibility": "exact"})
    data = driver.spec.data.model_copy(update={"validation": validation})
    driver.stage.spec = driver.spec.model_copy(update={"data": data})
    assert driver.stage.settings().validation == "hidden"


def test_a_charge_over_the_reservation_costs_the_claim(driver):
    task = driver.source().next_task(num_running=0)
    half = len(task.plan) // 2
    driver.charge(task, half)
    path = trial_file(driver.study.files.ledger, task.trial)
    rogue = TrialLedger(path, budget=None, accountant="rdp")  # somebody else's process
    rogue.charge(0, len(task.plan), task.plan)
    rogue.close()
    driver.stage.on_report(report(task, half))
    driver.stage.on_end(task.trial)
    assert "more than its reservation" in driver.study.view.downgraded
    assert driver.ledger.downgraded == driver.study.view.downgraded


def test_a_verdict_that_a_crash_cut_off_is_carried_out(tmp_path):
    driver = Driver(tmp_path)
    source = driver.source()
    good, bad = (source.next_task(num_running=n) for n in (0, 1))
    for task, accuracy in ((good, 0.9), (bad, 0.1)):
        driver.charge(task, 3)
        driver.stage.on_report(report(task, 3, accuracy, rung=1))
    driver.close()  # killed before the verdict on the second one was written

    again = Driver(tmp_path)
    again.stage.replay()
    view = again.study.view
    assert view.trials[good.trial].state is TrialState.RUNNING
    assert view.trials[bad.trial].state is TrialState.PRUNED
    assert "cut-off" in view.trials[bad.trial].reason
    # The policy knows both again: a third one is judged against them.
    third = TrialReport(7, 3, {"validation/accuracy": 0.5}, 0.5, rung=1)
    assert again.policy.on_report(third).decision is Decision.STOP
    again.close()


@pytest.mark.parametrize("killed", ["before the verdict", "after the verdict"])
def test_why_a_paused_trial_goes_on_is_written_once(tmp_path, killed):
    """The reservation and the start come first, so that a launch may die between them and it."""
    driver = Driver(tmp_path, variant="promote")
    source = driver.source()
    tasks = [source.next_task(num_running=n) for n in range(2)]
    for task, accuracy in zip(tasks, (0.9, 0.1), strict=True):
        driver.charge(task, 3)
        shown = driver.stage.on_report(report(task, 3, accuracy, rung=1))
        driver.stage.on_verdict(shown, driver.policy.on_report(shown))
        driver.stage.on_pause(task.trial)
    best = tasks[0].trial
    assert driver.policy.choose_paused({task.trial for task in tasks}) == best
    assert tasks[0].reserve(driver.ledger, is_promoted=True)
    driver.stage.admit(tasks[0])
    if killed == "after the verdict":
        last = driver.study.last_report(best)
        driver.stage.on_verdict(last, promotion(driver.policy, best))
    driver.close()

    for _ in range(2):  # and a launch that dies again changes nothing
        again = Driver(tmp_path, variant="promote")
        again.stage.replay()
        again.close()
    rows = load_sweep("stage", root=driver.study.files.path.parent).decisions()
    assert [(row["trial"], row["verdict"]) for row in rows] == [
        (best, "pause"),
        (tasks[1].trial, "pause"),
        (best, "continue"),
    ]
    assert "is to be promoted: place 1 of 2" in rows[-1]["reason"]


def judged_at_its_rung(root):
    """Return a launch, and its trial, of which it is written that it is to pause."""
    driver = Driver(root, variant="promote")
    task = driver.source().next_task(num_running=0)
    driver.charge(task, 3)
    shown = driver.stage.on_report(report(task, 3, 0.9, rung=1))
    driver.stage.on_verdict(shown, driver.policy.on_report(shown))
    return driver, task


def test_a_trial_that_went_on_without_a_reason_can_still_be_continued(tmp_path):
    """Earlier versions lost the reason; the policy no longer holds the trial at its rung."""
    driver, task = judged_at_its_rung(tmp_path)
    driver.stage.on_pause(task.trial)
    assert task.reserve(driver.ledger, is_promoted=True)
    driver.stage.admit(task)
    later = dataclasses.replace(report(task, 4, 0.9, rung=1), charged=3)
    driver.stage.on_report(later)
    driver.close()

    again = Driver(tmp_path, variant="promote")
    again.stage.replay()
    assert again.study.view.trials[task.trial].state is TrialState.RUNNING
    again.close()
    (row,) = load_sweep("stage", root=driver.study.files.path.parent).decisions()
    assert row["verdict"] == "pause"


def test_a_crash_between_verdict_and_pause_writes_one(tmp_path):
    driver, task = judged_at_its_rung(tmp_path)
    driver.close()  # killed before the pause was written

    again = Driver(tmp_path, variant="promote")
    again.stage.replay()
    assert again.study.view.trials[task.trial].state is TrialState.PAUSED
    again.close()
    (row,) = load_sweep("stage", root=driver.study.files.path.parent).decisions()
    assert row["verdict"] == "pause"


def test_a_violation_stops_the_study(driver):
    task = driver.source().next_task(num_running=0)
    failed = TrialReport(
        task.trial, 0, {}, 0.0, done=True, failure="privacy violation: positions 0 to 9"
    )
    driver.stage.on_report(failed)
    assert driver.stage.violation == failed.failure


def test_infeasible_configurations_are_told_with_their_terms(driver):
    driver.stage.refuse(3, {"optim.lr": 1.0}, SweepError("no plan costs epsilon 1"))
    (text,) = driver.observer.messages
    for term in ("delta 1e-05", "example", "add_or_remove_one", "sampling", "rdp", "composed"):
        assert term in text
    assert driver.study.view.num_infeasible == 1


def test_a_refusal_without_an_epsilon_has_none_of_its_terms(driver):
    driver.stage.refuse(3, {"labels.max": 9}, SweepError("labels.max=9 is more than 5 steps"))
    assert driver.observer.messages == [
        "configuration 3 is infeasible: labels.max=9 is more than 5 steps"
    ]


@pytest.mark.parametrize(
    "reason", ["over Epsilon=3", "eps 3 is too little", "trial_epsilon", "costs 3", "a budget of 3"]
)
def test_whatever_a_refusal_calls_an_epsilon_it_stands_with_its_terms(driver, reason):
    driver.stage.refuse(3, {"optim.lr": 1.0}, SweepError(reason))
    assert driver.observer.messages[0].startswith(f"configuration 3 is infeasible: {reason} (delta")


def test_few_infeasible_configurations_are_told(driver):
    for number in range(30):
        driver.stage.refuse(number, {"optim.lr": 1.0}, SweepError("no plan costs epsilon 1"))
    *told, last = driver.observer.messages
    assert [text.split(" is")[0] for text in told] == [f"configuration {n}" for n in range(5)]
    assert "dpsweep plan" in last
    assert driver.study.view.num_infeasible == 30


def test_a_verdict_is_one_line_of_the_log(driver):
    task = driver.source().next_task(num_running=0)
    driver.stage.on_verdict(report(task, 3), Verdict(Decision.STOP, 1, 0.5, 0.7, "too low"))
    (row,) = load_sweep("stage", root=driver.study.files.path.parent).decisions()
    assert row == {
        "trial": task.trial, "step": 3, "epsilon": 0.5, "rung": 1, "rung_epsilon": 0.5, "value": 0.5, "cutoff": 0.7,
        "verdict": "stop", "reason": "too low",
    }  # fmt: skip


def test_a_trained_trial_without_a_score_is_finished_and_told_of(tmp_path):
    """It cannot be ranked; `best` says so, and where its model is."""
    driver = Driver(tmp_path)
    assert driver.source().next_task(num_running=0)
    why = "no validation scores: RuntimeError at models.py:1"
    charged = driver.charge(driver.study.files.task(0), 3)
    driver.stage.on_report(
        TrialReport(
            0,
            3,
            {},
            0.1,
            done=True,
            charged=charged,
            unscored=why,
            reason=f"plan complete; {why}",
        )
    )
    driver.stage.on_end(0)
    assert driver.study.view.trials[0].state is TrialState.FINISHED
    assert f"trial 0 is trained and kept; {why}" in driver.observer.messages
    with pytest.raises(SweepError) as caught:
        load_sweep("stage", root=driver.study.files.path.parent).best()
    assert "trained, but without a score to be ranked by: trial 0" in caught.value.because
    assert "trials/0000/last.json" in caught.value.because
    driver.close()


@pytest.mark.parametrize(
    ("key", "problem", "error"),
    [
        ("unwritten", "cannot write best.ckpt: No space left on device", StorageError),
        ("changed", "the file of nets:build has changed since trials", ChangedCodeError),
    ],
)
def test_a_trial_that_cannot_go_on_ends_the_launch_and_not_the_trial(driver, key, problem, error):
    task = driver.source().next_task(num_running=0)
    driver.charge(task, 9)
    last = dataclasses.replace(
        report(task, 3, done=True), charged=9, failure=problem, **{key: problem}
    )
    with pytest.raises(error, match=problem):
        driver.stage.on_report(last)
    assert driver.study.view.trials[task.trial].state is TrialState.RUNNING
    last_event = read_log(driver.study.files.journal)[-1]
    if key == "changed":
        assert last_event["event"] == "trial_started"
    else:  # its ledger may be gone, and an older copy put in its place
        assert (last_event["event"], last_event["charged"]) == ("trial_charged", 9)
        assert driver.study.view.trials[task.trial].charged == 9


def test_a_paused_trial_waits_for_a_slot_and_reserves_nothing_before(driver):
    task = driver.source().next_task(num_running=0)
    driver.stage.running.add(task.trial)
    driver.stage.on_report(report(task, driver.charge(task, 1)))
    driver.stage.on_pause(task.trial)
    paused = dict(driver.ledger.committed)
    driver.stage._max_concurrent = 1
    driver.stage.running.add(99)
    assert not driver.stage._may_resume(task.trial)
    assert driver.ledger.committed == paused
    assert driver.study.view.trials[task.trial].state is TrialState.PAUSED
    driver.stage.running.discard(99)
    assert driver.stage._may_resume(task.trial)
    assert max(driver.ledger.committed.values()) > max(paused.values())
    assert driver.stage.running == {task.trial}


def searcher_of(driver, source):
    return TaskSearcher(
        source, max_concurrent=1, running=driver.stage.running, paused=[], is_held=lambda: False,
        directory_of=driver.study.files.trial, share_of=lambda trial: Share(1, 0),
    )  # fmt: skip


def ended(driver, task):
    """Run a trial to its end."""
    driver.stage.on_report(report(task, driver.charge(task, len(task.plan)), done=True))
    driver.stage.on_end(task.trial)


def test_the_process_of_the_last_trial_alone_is_asked_for_the_best_model(tmp_path):
    """Not while another one runs or may come, and not after a violation."""
    driver, asked = Driver(tmp_path, study_epsilon=4.0), []
    try:
        source = driver.source()
        source._num_trials = 2
        searcher = searcher_of(driver, source)
        driver.stage._hand_on = SimpleNamespace(expect=lambda: None, take=asked.append)
        driver.stage.begin(source)
        number = searcher.suggest("a")["trial"]
        driver.stage._on_free(searcher, "a trial runs")
        ended(driver, driver.study.files.task(number))
        driver.stage._on_free(searcher, "more may come")
        driver.stage._on_free(searcher, "the next one is admitted")
        assert not searcher.is_done
        assert [trial.state.value for trial in driver.study.view.trials.values()] == [
            "finished", "running",
        ]  # fmt: skip
        assert searcher.suggest("b")["trial"] == number + 1  # that one, though the slot is taken
        assert searcher.is_done
        ended(driver, driver.study.files.task(number + 1))
        assert asked == []
        driver.stage.violation = "privacy violation"
        driver.stage._on_free(searcher, "it ends")
        driver.stage.violation = ""
        driver.stage._on_free(searcher, "the last")
        assert asked == ["the last"]
    finally:
        driver.close()


def test_a_search_that_ends_by_its_budget_asks_the_process_of_its_last_trial(driver):
    """Whether anything still fits is known when the last trial has ended, and not before."""
    source, asked = driver.source(), []
    searcher = searcher_of(driver, source)
    driver.stage._hand_on = SimpleNamespace(expect=lambda: None, take=asked.append)
    driver.stage.begin(source)
    numbers = []
    while not asked:
        numbers.append(searcher.suggest("")["trial"])
        assert not searcher.is_done
        ended(driver, driver.study.files.task(numbers[-1]))
        driver.stage._on_free(searcher, numbers[-1])
    assert asked == [numbers[-1]]
    assert 2 <= len(numbers) == len(driver.study.view.trials)
    assert searcher.is_done
    assert "budget is used up" in source.end_reason


def test_a_look_ahead_that_fails_ends_the_search_and_asks_no_process(driver):
    """Tune would wrap what it raises; the launch raises it as it is."""
    source, asked = driver.source(), []
    searcher = searcher_of(driver, source)
    driver.stage._hand_on = SimpleNamespace(expect=lambda: None, take=asked.append)
    driver.stage.begin(source)
    number = searcher.suggest("")["trial"]
    ended(driver, driver.study.files.task(number))

    def refuse(number, values):
        raise StudyError("the study is not what it was")

    source._plan = refuse
    driver.stage._on_free(searcher, "the first")
    assert asked == []
    assert "not what it was" in str(searcher.failure)
    assert searcher.suggest("") == searcher.FINISHED


@pytest.mark.parametrize("is_last", [True, False])
def test_a_search_before_a_final_run_asks_no_process(tmp_path, monkeypatch, is_last):
    """Its best trial is not what the study delivers: its records are others than the study's."""

    class Enough(Exception):
        pass

    driver, made = Driver(tmp_path), []

    def stage(*args, **more):
        made.append(more)
        raise Enough

    monkeypatch.setattr(searching, "prefetch", lambda *args: None)
    launch = SimpleNamespace(
        study=driver.study, observer=driver.observer, target=None, supplies=NO_SUPPLIES,
        stage=stage, policy=lambda: None, data="records",
    )  # fmt: skip
    with pytest.raises(Enough):
        searching._search(launch, driver.checked, "records" if is_last else "others")
    driver.close()
    assert made == [{"is_last": is_last}]


def test_actors_keep_what_the_study_would_take_the_claim_for(driver):
    released = driver.stage.settings().released
    assert {"validation/accuracy", "validation/loss"} <= released
    assert "train/loss" not in released


def test_scores_that_stay_in_their_actors_are_told_of_once(driver):
    source = driver.source()
    tasks = [source.next_task(num_running=number) for number in range(2)]
    kept = f"its method returns 1 score {NOT_RELEASED}"
    for note in (kept, "last.pt is damaged", f"memory is short\n{kept}", f"{kept}\nno report"):
        for task in tasks:
            driver.stage.on_report(dataclasses.replace(report(task, 1), note=note))
    notes = (kept, "damaged", "memory", "no report")
    said = [text for text in driver.observer.messages if any(note in text for note in notes)]
    assert said == [
        f"trial 0: {kept}",
        "trial 0: last.pt is damaged",
        "trial 1: last.pt is damaged",
        "trial 0: memory is short",
        "trial 1: memory is short",
        "trial 0: no report",
        "trial 1: no report",
    ]
    assert not driver.ledger.downgraded
