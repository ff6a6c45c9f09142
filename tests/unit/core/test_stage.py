"""What the driver writes down and carries out, without Ray's actors: reports, verdicts, claims."""

import pytest
from whole_studies import make_spec

from dpsweep.errors import SweepError
from dpsweep.preflight import preflight
from dpsweep.privacy.ledger import TrialLedger, trial_file
from dpsweep.privacy.study_ledger import StudyLedger
from dpsweep.results import load_sweep
from dpsweep.schedulers import POLICIES
from dpsweep.sources import MAX_UNAFFORDABLE_IN_A_ROW, SearchSource
from dpsweep.spec import SweepSpec
from dpsweep.stage import Stage
from dpsweep.study import Observer, Study
from dpsweep.suggestions import Suggestions
from dpsweep.trial import Decision, TrialReport, TrialState, Verdict


class Listening(Observer):
    def __init__(self):
        self.messages = []

    def on_message(self, text):
        self.messages.append(text)


class Driver:
    """One launch of a composed study, with everything but Tune."""

    def __init__(self, root, **privacy):
        raw = make_spec(root, "stage", tracking={"uri": None}, search__num_trials=50)
        raw["privacy"] = {
            "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "composed", "study_epsilon": 2.0,
            **privacy,
        }  # fmt: skip
        raw["scheduler"] = {"type": "epsilon_halving", "rungs": [0.5], "reduction_factor": 2}
        self.spec = SweepSpec(**raw)
        self.checked = preflight(self.spec)
        self.study = Study(self.spec)
        self.ledger = StudyLedger(self.study.files.ledger)
        self.filter = self.ledger.open_filter(self.checked.choose_filter)
        self.observer = Listening()
        policy = POLICIES["epsilon_halving"].from_spec(
            self.spec.scheduler, metric="validation/accuracy", maximize=True
        )
        self.policy = policy
        self.stage = Stage(
            self.checked, self.study, self.ledger, filter=self.filter, data=None,
            observer=self.observer, policy=policy,
        )  # fmt: skip

    def source(self):
        return SearchSource(
            Suggestions(self.spec, self.checked.space, path=self.study.files.optuna),
            plan=self.checked.admit,
            ledger=self.ledger,
            admit=self.stage.admit,
            refuse=self.stage.refuse,
            unfinished=[],
            num_admitted=0,
            num_trials=50,
            deadline=None,
        )

    def charge(self, task, steps):
        budget = self.checked.budget
        ledger = TrialLedger(
            trial_file(self.study.files.ledger, task.trial), budget=budget, accountant="rdp"
        )
        ledger.charge(0, steps, task.plan.slice(0, steps))
        ledger.close()
        return steps

    def close(self):
        self.study.close()
        self.ledger.close()


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.close()


def report(task, step, accuracy=0.5, **more):
    return TrialReport(
        task.trial,
        step,
        {"validation/accuracy": accuracy},
        0.5,
        charged=step,
        value=accuracy,
        **more,
    )


def test_the_study_admits_what_fits_and_waits_for_the_rest(driver):
    source = driver.source()
    tasks = []
    while (task := source.next_task(num_running=len(tasks))) is not None:
        tasks.append(task)
    assert len(tasks) >= 2
    assert not source.is_exhausted  # something is in flight and may give budget back
    spent = max(driver.ledger.committed.values())
    assert spent <= driver.filter.budget
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
    assert max(driver.ledger.committed.values()) <= driver.filter.budget


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
        "trial": task.trial, "step": 3, "epsilon": 0.5, "rung": 1, "value": 0.5, "cutoff": 0.7,
        "verdict": "stop", "reason": "too low",
    }  # fmt: skip
