"""One trial, without Ray: charges, the hard stop, reservations, crashes, restores."""

import contextlib
import dataclasses
import hashlib
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dpsweep.foundation.errors import BudgetExceededError, LedgerError, ModelError, SweepError
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.spec.study import DataSpec
from dpsweep.study.recall import Recall
from dpsweep.testing.conformance import tiny_data
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.execution import checkpoints, execution
from dpsweep.trainables.execution.checkpoint_files import find, find_resumption
from dpsweep.trainables.execution.checkpoints import CheckpointStore
from dpsweep.trainables.execution.execution import TrialExecution
from dpsweep.trainables.execution.finished import trials as finished
from dpsweep.trainables.execution.finished.trials import export_model
from dpsweep.trainables.execution.pace import Left, Pace
from dpsweep.trainables.methods.dp_sgd import DPSGD

DELTA = 1e-5
COSINE = {"noise.shape": "cosine", "noise.end_ratio": 0.5}


def test_stops_after_exactly_881_steps(lab):
    settings = lab.settings(report_every=100)
    given = {
        "batch.sample_rate": 0.01,
        "noise.noise_multiplier": 1.0,
        "train.max_steps": 5000,
    }
    reports = lab.run(settings, lab.task(settings, given))
    assert [r.step for r in reports] == [*range(100, 900, 100), 881]
    assert reports[-1].done
    assert reports[-1].reason == "plan complete"
    assert reports[-1].epsilon <= 2.0
    assert len(trial_spent(settings.ledger, 0)) == 881
    one_more = Plan((EventRun(PoissonGaussian(1.0, 0.01), 882),))
    assert epsilon_of(one_more, delta=DELTA) > 2.0


def test_calibrated_plan_spends_nearly_all_and_never_more(lab):
    settings = lab.settings(report_every=None)
    task = lab.task(settings, {**COSINE, "train.max_steps": 60})
    reports = lab.run(settings, task)
    assert len(reports) == 10
    assert 0.97 * 2.0 <= reports[-1].epsilon <= 2.0
    epsilons = [r.epsilon for r in reports]
    assert epsilons == sorted(epsilons)
    assert [r.next_epsilon for r in reports[:-1]] == pytest.approx(epsilons[1:])
    assert trial_spent(settings.ledger, 0) == task.plan.merged()


def test_learns_and_keeps_the_best(lab):
    settings = lab.settings(report_every=None, show_test=True)
    task = lab.task(settings, {"train.max_steps": 60, "optim.lr": 1.0})
    reports = lab.run(settings, task)
    assert reports[-1].value == max(r.metrics["validation/accuracy"] for r in reports) > 0.8
    assert "test/accuracy" in reports[-1].delivered
    assert all("test/accuracy" not in r.delivered | r.metrics for r in reports[:-1])
    model, example = export_model(lab.directory(), task, study_seed=0, data=lab.data)
    x, y = lab.data.parts["validation"]
    accuracy = (model(torch.tensor(x)).argmax(1).numpy() == y).mean()
    assert accuracy == pytest.approx(reports[-1].value)
    assert example.shape == (1, 12)
    assert not example.any()


def test_hidden_validation_scores_stay_inside(lab):
    settings = lab.settings(validation="hidden", report_every=None)
    reports = lab.run(settings, lab.task(settings, {"train.max_steps": 20}))
    assert all(not r.metrics and r.value is None for r in reports)


@pytest.mark.parametrize("is_timed", [False, True])
def test_run_times_leave_the_actor_only_where_they_may(lab, is_timed):
    settings = lab.settings(report_every=None, is_timed=is_timed)
    reports = lab.run(settings, lab.task(settings, {"train.max_steps": 20}))
    assert {report.wall_s > 0 for report in reports} == {is_timed}
    assert {report.memory_mb > 0 for report in reports} == {is_timed}


def test_run_times_stay_inside_unless_asked_for(lab):
    settings = lab.settings(report_every=None)
    reports = lab.run(settings, lab.task(settings, {"train.max_steps": 20}))
    assert {report.wall_s for report in reports} == {0.0}
    assert {report.memory_mb for report in reports} == {0.0}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"validation": "exact", "validation_noise": 50.0}, "'exact' does not go with"),
        ({"validation": "hidden", "validation_noise": 50.0}, "'hidden' does not go with"),
        ({"validation": "noisy"}, "'noisy' does not go with"),
        ({"rungs": (1.0, 0.5)}, "rungs must ascend"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(lab, given, word):
    with pytest.raises(ValueError, match=word):
        lab.settings(**given)


@pytest.mark.slow
def test_they_are_refused_where_assertions_are_switched_off():
    """A subprocess under -O, in which exact scores would leave for noisy ones."""
    code = (
        "from pathlib import Path\n"
        "from dpsweep.privacy.budget import PrivacyBudget\n"
        "from dpsweep.trainables.execution.execution import ExecutionSettings\n"
        "assert False, 'assertions are on'\n"
        "ExecutionSettings(Path('.'), PrivacyBudget(1.0, 1e-5), 'rdp', 0, 'validation/accuracy',\n"
        "    True, None, 1, 'exact', False, validation_noise=50.0)\n"
    )
    found = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert "ValueError: validation 'exact' does not go with" in found.stderr


def test_a_crash_costs_what_was_charged_and_the_cap_holds(lab):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 60})
    before = lab.crash_in_segment(lab.open(settings, task), 3)
    assert [r.step for r in before] == [10, 20]
    assert len(trial_spent(settings.ledger, 0)) == 30

    resumed = lab.open(settings, task)
    assert resumed.position == 20
    after = lab.finish(resumed)
    spent = trial_spent(settings.ledger, 0)
    assert after[0].step == 30
    expected = epsilon_of(task.plan.slice(0, 40), delta=DELTA)
    assert after[0].epsilon == pytest.approx(expected, rel=1e-9)
    epsilons = [r.epsilon for r in before + after]
    assert epsilons == sorted(epsilons)
    assert len(spent) == 60  # 10 lost steps, so the model stops at 50
    assert after[-1].step == 50
    assert after[-1].reason == (
        "stopped at the cap after 50 of 60 steps: 10 charged steps were lost to crashes"
    )
    assert after[-1].epsilon == pytest.approx(epsilon_of(spent, delta=DELTA), rel=1e-9)
    assert after[-1].epsilon <= 2.0


@pytest.mark.parametrize("noise", [{}, {"validation": "noisy", "validation_noise": 50.0}])
def test_a_trial_that_lost_all_its_steps_fails_without_a_score(lab, noise):
    settings = lab.settings(report_every=60, **noise)
    scores = Plan((EventRun(Gaussian(50.0), 1, "score", "validation"),))
    task = lab.task(settings, {"train.max_steps": 60}, validation_plan=scores)
    lab.crash_in_segment(lab.open(settings, task), 1)
    (report,) = lab.run(settings, task)
    assert (report.step, report.charged, report.done) == (0, 60, True)
    assert "60 charged steps were lost" in report.reason
    assert report.failure == report.reason
    assert (report.metrics, report.value) == ({}, None)
    assert len(trial_spent(settings.ledger, 0)) == 60  # and none for a score


@pytest.mark.parametrize("validation", ["exact", "noisy"])
def test_a_report_that_may_have_been_lost_is_made_again(lab, validation):
    """Killed after the checkpoint, before anybody has the report: the same one, at no cost."""
    noise = {"validation": "noisy", "validation_noise": 50.0} if validation == "noisy" else {}
    settings = lab.settings(rungs=(0.8,), report_every=1000, show_test=True, **noise)
    scores = Plan((EventRun(Gaussian(50.0), 2, "score", "validation"),))
    task = lab.task(settings, {"train.max_steps": 60}, validation_plan=scores)
    trial = lab.open(settings, task)
    lost = trial.advance()
    trial.close()
    assert lost.rung == 1
    charged = trial_spent(settings.ledger, 0)

    def known(report):
        floats = {"wall_s": 0.0, "memory_mb": 0.0, "epsilon": 0.0, "next_epsilon": None}
        return dataclasses.replace(report, **floats)

    resumed = lab.open(settings, task)
    again = resumed.advance()
    assert known(again) == known(lost)
    assert again.epsilon == pytest.approx(lost.epsilon, rel=1e-12)
    assert again.next_epsilon == pytest.approx(lost.next_epsilon, rel=1e-12)
    assert trial_spent(settings.ledger, 0) == charged
    last = resumed.advance()
    resumed.close()
    assert (last.step, last.done) == (60, True)
    assert known(lab.open(settings, task).advance()) == known(last)  # the last report too
    assert len(trial_spent(settings.ledger, 0)) == last.charged


def test_a_paused_trial_runs_on_at_once(lab):
    """Its report has arrived; made again, it would be paused again, without end."""
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 30})
    trial = lab.open(settings, task)
    trial.advance()
    trial.pause()
    for step in (20, 30):
        trial = lab.open(settings, task)
        assert trial.advance().step == step
        trial.pause()


def test_a_trial_paused_before_its_first_report_starts_at_its_start(lab):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 30})
    lab.open(settings, task).pause()
    assert lab.open(settings, task).advance().step == 10


def test_noise_is_never_repeated_after_a_restore(lab, monkeypatch):
    seen = []
    monkeypatch.setattr(
        DPSGD,
        "noise_observer",
        staticmethod(lambda noise: seen.append(hashlib.sha256(noise.numpy().tobytes()).digest())),
    )
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 60})
    lab.crash_in_segment(lab.open(settings, task), 3)
    first = len(seen)
    lab.run(settings, task)
    assert first >= 25
    assert len(seen) > first
    assert len(set(seen)) == len(seen)


def test_an_old_checkpoint_does_not_lower_the_ledger(lab):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 60})
    trial = lab.open(settings, task)
    trial.advance()
    old = {path.name: path.read_bytes() for path in lab.directory().iterdir()}
    trial.advance()
    trial.advance()
    trial.close()
    ledger = trial.ledger.path.read_bytes()
    for path in lab.directory().iterdir():
        path.unlink()
    for name, content in old.items():
        (lab.directory() / name).write_bytes(content)
    resumed = lab.open(settings, task)
    assert resumed.position == 10
    assert len(resumed.ledger) == 30
    assert resumed.ledger.path.read_bytes().startswith(ledger)
    expected = epsilon_of(task.plan.slice(0, 40), delta=DELTA)
    assert resumed.advance().epsilon == pytest.approx(expected, rel=1e-9)
    resumed.close()


@pytest.mark.parametrize("loss", ["deleted", "last record", "older copy"])
def test_a_lost_ledger_is_refused(lab, loss):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 60})
    trial = lab.open(settings, task)
    path = trial.ledger.path
    trial.advance()
    older = path.read_bytes()
    trial.advance()
    trial.close()
    if loss == "deleted":
        path.unlink()
    elif loss == "older copy":
        path.write_bytes(older)
    else:
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="but at least 20 were charged"):
        lab.open(settings, task)


def test_a_crash_between_best_and_last_keeps_the_score_with_its_model(lab):
    settings = lab.settings(metric="validation/loss", maximize=False)
    task = lab.task(settings, {"train.max_steps": 60, "optim.lr": 0.05})
    trial = lab.open(settings, task)
    trial.advance()
    old = {path.name: path.read_bytes() for path in lab.directory().glob("last*")}
    report = trial.advance()
    trial.close()
    assert report.best_step == 20
    for path in lab.directory().glob("last*"):
        path.unlink()
    for name, content in old.items():
        (lab.directory() / name).write_bytes(content)
    resumed = lab.open(settings, task)
    assert resumed.position == 10
    assert (resumed.value, resumed.best_step) == (report.value, 20)
    resumed.close()


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("hurt", "name", "step"),
    [
        (["last-000030.ckpt"], "best", 30),
        (["last.json"], "best", 30),
        (["last-000030.ckpt", "best-000030.ckpt"], "previous", 20),
        (["last.json", "best.json"], "previous", 20),
        (["best-000030.ckpt"], "last", 30),
    ],
)
def test_a_trial_goes_on_from_its_latest_whole_checkpoint(lab, hurt, name, step):
    settings = lab.settings(metric="validation/loss", maximize=False)
    task = lab.task(settings, {"train.max_steps": 60, "optim.lr": 0.05})
    trial = lab.open(settings, task)
    reports = [trial.advance() for _ in range(3)]
    trial.close()
    assert reports[-1].best_step == 30
    for file in hurt:
        flip(lab.directory() / file)
    resumed = lab.open(settings, task)
    assert resumed.position == step
    rest = lab.finish(resumed)
    assert all(str(lab.directory() / file) in rest[0].note for file in hurt)
    assert f"goes on from its {name} checkpoint, at step {step}" in rest[0].note
    lost = 30 - step
    assert (rest[-1].step, rest[-1].charged) == (60 - lost, 60)
    assert len(trial_spent(settings.ledger, 0)) == 60
    assert rest[-1].value is not None
    assert CheckpointStore(lab.directory()).load("best").step == rest[-1].best_step
    again = lab.open(settings, task)  # whatever was damaged is whole again
    assert again.advance().note == ""
    again.close()


def test_without_any_whole_checkpoint_a_trial_starts_anew(lab):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 60})
    trial = lab.open(settings, task)
    trial.advance()
    trial.close()
    for path in lab.directory().glob("*.ckpt"):
        path.unlink()
    reports = lab.run(settings, task)
    assert "it starts anew" in reports[0].note
    assert (reports[-1].step, reports[-1].charged) == (50, 60)


def test_a_killed_save_leaves_two_whole_checkpoints(lab, monkeypatch):
    """At whatever write of a save the process dies."""
    settings = lab.settings()
    write, calls = checkpoints.write_atomically, []

    def dying(path, content, **options):
        calls.append(path.name)
        if len(calls) == dying.at:
            raise lab.Killed
        write(path, content, **options)

    for at in range(1, 20):
        trial = lab.open(settings, lab.task(settings, {"train.max_steps": 60}, trial=at))
        trial.advance()
        trial.advance()
        calls.clear()
        dying.at = at
        monkeypatch.setattr(checkpoints, "write_atomically", dying)
        try:
            trial.advance()
        except lab.Killed:
            pass
        else:
            assert at > 3  # of the tensors, of previous.json, of last.json at least
            break
        finally:
            monkeypatch.setattr(checkpoints, "write_atomically", write)
            trial.close()
        found = find_resumption(lab.directory(at))
        assert (found.step, found.damages) in ((20, ()), (30, ()))
        assert find(lab.directory(at), "previous").meta["step"] in (10, 20)
    else:
        pytest.fail("it never ended")


def test_a_model_that_is_not_finite_is_no_result(lab, monkeypatch):
    settings = lab.settings()
    plan = lab.task(settings, {"train.max_steps": 20}).plan
    state = {"weight": torch.tensor([1.0, math.nan])}
    monkeypatch.setattr(
        execution.TRAINABLES["scripted"],
        "state_dict",
        lambda self: {"position": self._position, **state},
    )
    last = lab.run(settings, lab.scripted(plan))[-1]
    assert last.failure == "diverged: parameters are not finite at step 10"
    assert last.value is None
    assert last.charged == len(trial_spent(settings.ledger, 0)) == 10  # no more is spent on it
    (again,) = lab.run(settings, lab.scripted(plan))  # its report was lost
    assert (again.failure, again.charged) == (last.failure, 10)


def test_a_model_that_was_finite_stays_the_result(lab, monkeypatch):
    settings = lab.settings()
    plan = lab.task(settings, {"train.max_steps": 30}).plan

    def state_dict(self):
        weight = torch.tensor([1.0 if self._position <= 10 else math.inf])
        return {"position": self._position, "weight": weight}

    monkeypatch.setattr(execution.TRAINABLES["scripted"], "state_dict", state_dict)
    last = lab.run(settings, lab.scripted(plan))[-1]
    assert (last.failure, last.best_step) == ("", 10)
    assert last.reason.startswith("diverged: parameters are not finite at step 20; its best model")
    assert last.charged == len(trial_spent(settings.ledger, 0)) == 20


class Short(Pace):
    """Four steps at a time."""

    def __init__(self):
        super().__init__()
        self.steps = 4

    def running(self, steps):
        return contextlib.nullcontext()


def test_a_process_that_is_to_leave_keeps_the_segment_that_it_runs(lab):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 30})
    trial = lab.open(settings, task, pace=Short())
    run = trial.method.run

    def signalled(start, stop):
        trial.leaving.is_told = True
        run(start, stop)

    trial.method.run = signalled
    with pytest.raises(Left):
        trial.advance()
    trial.close()  # as the end of the process does
    resumed = lab.open(settings, task)
    assert resumed.position == 4
    assert len(trial_spent(settings.ledger, 0)) == 4  # nothing is lost
    assert lab.finish(resumed)[-1].step == 30


def test_a_trial_that_is_called_back_keeps_its_model_and_runs_nothing_more(lab):
    recall = Recall(lab.path)
    settings = lab.settings(recall=recall.word)
    task = lab.task(settings, {"train.max_steps": 30})
    trial = lab.open(settings, task, pace=Short())
    run = trial.method.run

    def interrupted(start, stop):
        recall.begin()
        run(start, stop)

    trial.method.run = interrupted
    with pytest.raises(Left):
        trial.advance()
    trial.close()
    resumed = lab.open(settings, task)
    assert resumed.position == len(trial_spent(settings.ledger, 0)) == 4
    with pytest.raises(Left):
        resumed.advance()
    assert len(trial_spent(settings.ledger, 0)) == 4
    later = lab.settings(recall=Recall(lab.path).word)  # that of a launch that was killed stays
    resumed.close()
    assert lab.finish(lab.open(later, task))[-1].step == 30


def _prepare_at(position):
    def prepare(self, data, hparams, plan, context):
        self._plan, self._position, self.context = plan, position, context

    return prepare


def _prepare_other(self, data, hparams, plan, context):
    self._plan, self._position, self.context = Plan((EventRun(Gaussian(0.1), 9),)), 0, context


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("prepare", _prepare_at(5), "is at position 5, not at 0"),
        ("prepare", lambda *_: None, "another plan than the one that is charged"),
        ("prepare", _prepare_other, "another plan than the one that is charged"),
        ("state_dict", lambda self: {"at": [Path("x")]}, r"state\[\.\.\]\[\.\.\] is a PosixPath"),
        ("state_dict", lambda self: {"at": np.float64(1)}, r"state\[\.\.\] is a float64"),
        ("state_dict", lambda self: {np.int64(3): 1.0}, "a key of state is a int64"),
        ("state_dict", lambda self: [1], "it is no dict"),
    ],
)
def test_what_could_not_be_run_or_gone_on_with_is_charged_nothing(
    lab, monkeypatch, name, wrong, words
):
    settings = lab.settings()
    task = lab.scripted(Plan((EventRun(PoissonGaussian(3.0, 0.05), 30),)))
    monkeypatch.setattr(lab.Method, name, wrong)
    with pytest.raises(SweepError, match=words):
        lab.open(settings, task)
    assert not trial_spent(settings.ledger, 0)


def test_a_position_that_is_forgotten_is_found_before_a_charge(lab, monkeypatch):
    settings = lab.settings()
    task = lab.scripted(Plan((EventRun(PoissonGaussian(3.0, 0.05), 30),)))
    trial = lab.open(settings, task)
    trial.advance()
    trial.close()
    monkeypatch.setattr(lab.Method, "load_state_dict", lambda self, state: None)
    with pytest.raises(SweepError, match="is at position 0, not at 10"):
        lab.open(settings, task)
    assert len(trial_spent(settings.ledger, 0)) == 10


@pytest.mark.parametrize(
    ("export", "words"),
    [
        (lambda self: None, "has returned NoneType"),
        (lambda self: 1 / 0, r"(?s)fails.*ZeroDivisionError at test_execution.py:\d+"),
    ],
)
def test_a_model_that_cannot_be_exported_is_told_in_a_line(lab, monkeypatch, export, words):
    settings = lab.settings()
    task = lab.scripted(Plan((EventRun(PoissonGaussian(3.0, 0.05), 30),)))
    lab.run(settings, task)
    monkeypatch.setattr(finished, "TRAINABLES", execution.TRAINABLES)
    monkeypatch.setattr(lab.Method, "export", export)
    with pytest.raises(ModelError, match=words):
        export_model(lab.directory(), task, study_seed=0, data=lab.data)


def test_two_processes_cannot_run_one_trial(lab):
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 20})
    trial = lab.open(settings, task)
    with pytest.raises(LedgerError, match="another process"):
        lab.open(settings, task)
    trial.close()


def test_checkpoint_holds_no_secret_randomness(lab):
    settings = lab.settings()
    trial = lab.open(settings, lab.task(settings, {"train.max_steps": 20}))
    trial.advance()

    def keys(tree, prefix=""):
        for key, value in tree.items():
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from keys(value, f"{prefix}{key}.")

    names = list(keys(trial.method.state_dict()))
    assert any("model" in name for name in names)
    assert not [n for n in names if "secret" in n or "generator" in n or "noise" in n]
    trial.close()


def make_filter(task):
    return RenyiFilter.choose([task.plan], target_epsilon=6.0, delta=DELTA)


@pytest.mark.parametrize("shape", [{}, COSINE, {"noise.shape": "linear", "noise.end_ratio": 2.0}])
def test_a_reservation_pays_for_the_whole_plan(lab, shape):
    """In segments of 7 steps, with a score between them, after three orderly continuations."""
    given = {**shape, "train.max_steps": 60, "batch.expected": 100}
    task = lab.task(lab.settings(), given)
    scores = Plan((EventRun(Gaussian(200.0), 9, "score", "validation"),))
    task = dataclasses.replace(task, validation_plan=scores)
    settings = lab.settings(
        report_every=7, composition=make_filter(task), validation="noisy", validation_noise=200.0
    )
    for _ in range(3):
        trial = lab.open(settings, task)
        trial.advance()
        trial.pause()
    reports = lab.run(settings, task)
    assert reports[-1].reason == "plan complete"
    assert reports[-1].step == 60
    assert all("validation/accuracy" in report.metrics for report in reports)
    spent = trial_spent(settings.ledger, 0)
    assert (len(spent.part("private")), len(spent.part("validation"))) == (60, 9)


def test_lost_steps_end_a_trial_at_its_reservation(lab):
    """A third of the cap: only the reservation can stop it."""
    given = {"noise.target_epsilon": 0.7, "train.max_steps": 60}
    task = lab.task(lab.settings(), given)
    settings = lab.settings(composition=make_filter(task))
    lab.crash_in_segment(lab.open(settings, task), 3)
    trial = lab.open(settings, task)
    assert trial.end == 50
    with pytest.raises(BudgetExceededError):
        trial.ledger.charge(20, 51, task.plan.slice(20, 51))
    reports = lab.finish(trial)
    assert reports[-1].step == 50
    assert reports[-1].reason == (
        "stopped at its reservation after 50 of 60 steps: "
        "10 charged steps were lost to crashes"
    )  # fmt: skip
    cost = settings.composition.cost(trial_spent(settings.ledger, 0))
    assert cost["private"] <= settings.composition.cost(task.plan)["private"] * (1 + 1e-12)

    unlimited = lab.settings(ledger=lab.path / "other")
    again = dataclasses.replace(task, trial=1)
    lab.crash_in_segment(lab.open(unlimited, again), 3)
    assert lab.run(unlimited, again)[-1].step == 60


def test_a_fresh_attempt_starts_anew_and_forgets_no_charge(lab):
    settings = lab.settings(fresh_attempts=True)
    task = lab.task(settings, {"train.max_steps": 40}, seed=77)
    first = lab.open(settings, task)
    weights = first.method.state_dict()["model"]
    before = lab.crash_in_segment(first, 3)
    assert before[-1].step == 20
    second = lab.open(settings, task)
    assert (second.position, second.value, len(second.ledger)) == (0, None, 0)
    assert not list(lab.directory().glob("*.ckpt"))
    for name, value in second.method.state_dict()["model"].items():
        assert torch.equal(value, weights[name])  # the same seed: the same initial weights
    reports = lab.finish(second)
    assert reports[-1].step == 40
    assert reports[-1].reason == "plan complete"
    assert len(trial_spent(settings.ledger, 0)) == 40
    assert len(list(settings.ledger.glob("trial-0000*"))) == 2  # the lost attempt is kept


def test_a_fresh_attempt_that_was_killed_at_its_start_keeps_no_old_checkpoint(lab):
    """Killed after the ledger was renewed and before the checkpoints were dropped."""
    settings = lab.settings(fresh_attempts=True)
    task = lab.task(settings, {"train.max_steps": 40})
    lab.crash_in_segment(lab.open(settings, task), 3)
    files = {path.name: path.read_bytes() for path in lab.directory().iterdir()}
    lab.open(settings, task).close()
    for name, content in files.items():
        (lab.directory() / name).write_bytes(content)
    third = lab.open(settings, task)
    assert (third.position, third.value) == (0, None)
    third.close()


def test_a_task_s_own_seed_replaces_the_study_s(lab):
    settings = lab.settings()
    given = {"train.max_steps": 5}

    def weights(trial, **more):
        opened = lab.open(settings, lab.task(settings, given, trial=trial, **more))
        opened.close()
        return next(iter(opened.method.state_dict()["model"].values()))

    plain, own = weights(0), weights(0, seed=5)
    assert not torch.equal(plain, own)
    assert torch.equal(own, weights(0, seed=5))
    assert torch.equal(plain, weights(0, seed=settings.study_seed))


def test_public_records_cost_nothing_and_are_charged_as_such(lab):
    lab.data = tiny_data(num_public=300)
    lab.data.parts["private"][0].fill(np.nan)
    settings = lab.settings(show_test=True)
    task = lab.task(settings, {"train.max_steps": 40, "optim.lr": 0.5}, records="public")
    before = lab.crash_in_segment(lab.open(settings, task), 2)
    reports = before + lab.run(settings, task)
    assert {report.epsilon for report in reports} == {0.0}
    assert {report.next_epsilon for report in reports} == {0.0, None}
    assert reports[-1].step == 40  # a crash costs nothing either
    assert reports[-1].value > 0.9
    spent = trial_spent(settings.ledger, 0)
    assert {run.part for run in spent.runs} == {"public"}
    assert len(spent) == 50
    assert epsilon_of(spent, delta=DELTA) == 0.0


@pytest.mark.parametrize("records", ["private", "public"])
def test_the_other_records_are_refused(lab, records):
    lab.data = tiny_data(num_public=300)
    settings = lab.settings()
    task = lab.task(settings, {"train.max_steps": 10}, records=records)
    wrong = lab.data.for_public_search(with_test=True) if records == "private" else lab.data
    with pytest.raises(LedgerError, match=f"is to train on {records} records"):
        TrialExecution(lab.directory(), task, settings=settings, data=wrong)
    assert not settings.ledger.exists()


def test_a_method_without_privacy_says_so_on_any_records(lab):
    lab.data = tiny_data(num_public=300)
    settings = lab.settings(rungs=(0.5, 1.0))
    for trial, more in enumerate([{}, {"records": "public"}]):
        task = lab.task(settings, {"train.max_steps": 20}, trial, method="non_private", **more)
        reports = lab.run(settings, task)
        assert [report.step for report in reports] == [10, 20]
        assert {report.epsilon for report in reports} == {float("inf")}
        assert {report.rung for report in reports} == {0}


EIGHT = [
    {"batch.expected": 50 * (1 + trial % 4), "train.max_steps": 40 + 13 * trial, **shape}
    for trial, shape in enumerate(
        [
            {},
            COSINE,
            {"noise.shape": "linear", "noise.end_ratio": 1.6},
            {"noise.noise_multiplier": 3.5},
            {"noise.shape": "exponential", "noise.end_ratio": 0.4},
            {"noise.noise_multiplier": 4.0, **COSINE},
            {"noise.target_epsilon": 1.4},
            {"noise.shape": "step", "noise.end_ratio": 0.6},
        ]
    )
]


def test_eight_trials_at_once_keep_their_caps_and_meet_at_the_rungs(lab):
    """Different noise, batches and schedules on real images, eight threads."""
    split = {"validation": {"fraction": 0.2, "visibility": "public"}}
    lab.data = load_dataset(DataSpec(dataset="digits", **split))
    rungs = (0.5, 1.0)
    settings = lab.settings(rungs=rungs, report_every=15)
    tasks = [lab.task(settings, given, trial) for trial, given in enumerate(EIGHT)]
    assert len({task.plan.at(0) for task in tasks}) == 8
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda task: lab.run(settings, task), tasks))
    for task, reports in zip(tasks, results):
        spent = trial_spent(settings.ledger, task.trial)
        assert epsilon_of(spent, delta=DELTA) <= 2.0
        assert max(report.epsilon for report in reports) <= 2.0
        for number, rung in enumerate(rungs, start=1):
            first = next(report for report in reports if report.rung >= number)
            one_less = task.plan.slice(0, first.step - 1)
            assert epsilon_of(one_less, delta=DELTA) < rung <= first.epsilon


def test_words_of_a_package_are_no_reason_of_an_export_that_fails(lab, monkeypatch):
    settings = lab.settings()
    task = lab.scripted(Plan((EventRun(PoissonGaussian(3.0, 0.05), 30),)))
    lab.run(settings, task)
    monkeypatch.setattr(finished, "TRAINABLES", execution.TRAINABLES)

    def secret(self):
        raise SweepError("record [0.25]")

    for name in ("export", "prepare", "load_state_dict"):
        with monkeypatch.context() as patch:
            patch.setattr(lab.Method, name, lambda self, *_: secret(self))
            with pytest.raises(ModelError, match=f"{name} of method scripted fails") as caught:
                export_model(lab.directory(), task, study_seed=0, data=lab.data)
        assert "0.25" not in str(caught.value)
