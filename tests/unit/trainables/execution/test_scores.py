"""Noisy validation scores: charged first, noised at the charged scale, never more than planned."""

import dataclasses
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from raised import PanicException, raising
from scipy import stats

from dpsweep.foundation.errors import LedgerError
from dpsweep.ledgers.trial import TrialLedger, trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.trainables.devices.failures import NoRoomError
from dpsweep.trainables.execution.checkpoints import CheckpointStore
from dpsweep.trainables.gradients.noise import noisy_accuracy

DELTA = 1e-5
PLAN = Plan((EventRun(PoissonGaussian(3.0, 0.05), 50),))


def scores(noise_multiplier, count):
    event = Gaussian(noise_multiplier)
    return Plan((EventRun(event, count, "score", "validation"),)) if count else Plan(())


@pytest.fixture(autouse=True)
def _whole(accuracy):
    """An accuracy is the share of a whole number of records."""
    accuracy(lambda position: position / 200)


def noisy(lab, noise_multiplier=30.0, count=5, **changes):
    settings = lab.settings(validation="noisy", validation_noise=noise_multiplier, **changes)
    task = lab.scripted(PLAN, validation_plan=scores(noise_multiplier, count))
    return settings, task


def test_each_score_is_charged_to_the_validation_records(lab):
    settings, task = noisy(lab)
    reports = lab.run(settings, task)
    assert [set(report.metrics) for report in reports] == [{"validation/accuracy"}] * 5
    spent = trial_spent(settings.ledger, 0)
    assert spent.part("validation").merged() == scores(30.0, 5)
    assert spent.part("private").merged() == PLAN
    assert reports[-1].charged == 55
    for number, report in enumerate(reports, start=1):
        training = epsilon_of(PLAN.slice(0, report.step), delta=DELTA)
        released = epsilon_of(scores(30.0, number), delta=DELTA)
        assert report.epsilon == pytest.approx(max(training, released), rel=1e-12)


def test_the_reported_epsilon_is_the_larger_of_the_two_parts(lab):
    settings, task = noisy(lab, noise_multiplier=6.0, count=5)
    released = [epsilon_of(scores(6.0, count), delta=DELTA) for count in range(1, 6)]
    assert released[-1] > epsilon_of(PLAN, delta=DELTA)
    reports = lab.run(settings, task)
    assert [report.epsilon for report in reports] == pytest.approx(released, rel=1e-12)
    expected = [report.epsilon for report in reports[1:]]
    assert [report.next_epsilon for report in reports[:-1]] == pytest.approx(expected, rel=1e-12)


def test_only_the_noisy_accuracy_leaves_the_actor(lab, accuracy):
    """Neither the loss nor the exact accuracy is in a report, a checkpoint or the ledger."""
    exact = 0.735
    accuracy(lambda position: exact)
    settings, task = noisy(lab)
    reports = lab.run(settings, task)
    written = json.dumps([dataclasses.asdict(report) for report in reports])
    for path in [*lab.directory().glob("*.json"), *settings.ledger.iterdir()]:
        written += path.read_text()
    assert "validation/accuracy" in written
    assert not re.search(r"0\.735(?!\d)", written)  # more digits: noise that has come near
    assert "loss" not in written
    num_correct = round(exact * 200) / 200
    assert all(report.metrics["validation/accuracy"] != num_correct for report in reports)


NUM_SCORES = 1500


@pytest.mark.sampled(3)
@pytest.mark.parametrize("num_right", [0, 117, 200])
def test_released_noise_by_kolmogorov_smirnov(lab, accuracy, num_right):
    """The charged scale passes; 2/3 and 3/2 of it do not. Not clipped at 0 and 1 either."""
    accuracy(lambda position: num_right / 200)
    settings, task = noisy(lab, noise_multiplier=120.0, count=NUM_SCORES)
    trial = lab.open(settings, task)
    released = [trial._scores.now()["validation/accuracy"] for _ in range(NUM_SCORES)]
    trial.close()
    noise = np.array(released) * lab.data.info.num_validation - num_right
    charged = trial_spent(settings.ledger, 0).part("validation").at(0).noise_multiplier
    for scale, passes in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        p_value = stats.kstest(noise, "norm", args=(0, scale * charged)).pvalue
        assert bool(p_value > 1e-6) is passes
    assert len(set(released)) == NUM_SCORES


def test_the_denominator_is_declared(lab, accuracy):
    """Fewer records than declared: the count of correct ones over the declared number."""
    accuracy(lambda position: 1.0)
    inputs, labels = lab.data.parts["validation"]
    lab.data.parts["validation"] = (inputs[:80], labels[:80])
    settings, task = noisy(lab, noise_multiplier=1e-3, count=1, report_every=1000)
    settings = dataclasses.replace(
        settings, budget=dataclasses.replace(settings.budget, target_epsilon=1e9)
    )
    (report,) = lab.run(settings, task)
    assert report.metrics["validation/accuracy"] == pytest.approx(80 / 200, abs=1e-4)


def test_no_validation_record_at_all_is_no_error(lab):
    """An error would say so; the score is noise around zero."""
    inputs, labels = lab.data.parts["validation"]
    lab.data.parts["validation"] = (inputs[:0], labels[:0])
    settings, task = noisy(lab)
    task = lab.task(settings, {"train.max_steps": 20}, validation_plan=scores(30.0, 2))
    reports = lab.run(settings, task)
    assert all(abs(r.metrics["validation/accuracy"]) < 10 * 30.0 / 200 for r in reports)


def test_the_best_checkpoint_is_chosen_by_the_noisy_score(lab, accuracy):
    accuracy(lambda position: position / 1000)  # the exact best is always the last
    chosen = set()
    for number in range(12):
        settings, task = noisy(lab, ledger=lab.path / f"ledger-{number}")
        task = dataclasses.replace(task, trial=number)
        reports = lab.run(settings, task)
        best = max(reports, key=lambda report: report.metrics["validation/accuracy"])
        assert (reports[-1].value, reports[-1].best_step) == (
            best.metrics["validation/accuracy"], best.step
        )  # fmt: skip
        chosen.add(best.step)
    assert chosen - {50}  # the noise decides: standard deviation 0.15, differences of 0.01


def test_a_kill_between_charge_and_evaluation_keeps_the_charge(lab, accuracy):
    def dying(position):
        raise lab.Killed

    settings, task = noisy(lab)
    trial = lab.open(settings, task)
    trial.advance()
    accuracy(dying)
    with pytest.raises(lab.Killed):
        trial.advance()
    trial.close()
    spent = trial_spent(settings.ledger, 0)
    assert len(spent.part("validation")) == 2
    assert len(spent.part("private")) == 20

    accuracy(lambda position: 0.5)
    resumed = lab.open(settings, task)
    assert resumed.position == 10
    assert len(resumed.ledger) == 22
    reports = lab.finish(resumed)
    spent = trial_spent(settings.ledger, 0)
    assert len(spent.part("validation")) == 5
    assert reports[-1].reason == "plan complete"  # far below the cap: only the score was lost
    assert [bool(report.metrics) for report in reports] == [True, True, True, False]


def all_but_noise(trial):
    """Make a trial's noise vanish, for what is left of its scores."""
    trial._scores._noise = SimpleNamespace(standard_normal=lambda: 0.0)
    return trial


@pytest.mark.parametrize("wrong", [95.5, -0.1, 0.7391304347826086, float("nan")])
def test_what_is_no_share_of_records_is_released_as_none_right(lab, accuracy, wrong):
    """One record could move it by more than the noise is for."""
    accuracy(lambda position: wrong)
    settings, task = noisy(lab)
    reports = lab.finish(all_but_noise(lab.open(settings, task)))
    assert [report.metrics for report in reports] == [{"validation/accuracy": 0.0}] * 5
    assert (reports[-1].unscored, reports[-1].reason) == ("", "plan complete")
    assert len(trial_spent(settings.ledger, 0).part("validation")) == 5


@pytest.mark.parametrize("shape", ["fewer", "flat"])
def test_a_record_that_a_network_leaves_out_moves_no_other_answer(lab, shape):
    settings, _ = noisy(lab)
    task = lab.task(settings, {"train.max_steps": 20}, validation_plan=scores(30.0, 5))
    trial = all_but_noise(lab.open(settings, task))
    trial.advance()
    model = trial.method._model
    inputs, labels = trial._scores._data.parts["validation"]
    (well,) = trial._scores.now().values()

    class Odd(torch.nn.Module):
        def forward(self, x):
            is_odd = x.flatten(1)[:, 0] == 1e6
            outputs = model(x)
            if not is_odd.any():
                return outputs
            return outputs[~is_odd] if shape == "fewer" else outputs.flatten()

    trial.method._model = Odd()
    others = inputs.copy()
    others[3, 0] = 1e6
    trial._scores._data.parts["validation"] = others, labels
    (ill,) = trial._scores.now().values()
    assert well - 1 / 200 - 1e-9 <= ill <= well + 1e-9
    trial.close()


class Choosy(torch.nn.Module):
    """Fails on records that begin with one of four numbers, in ways of its own."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        first = x.flatten(1)[:, 0]
        if (first == 1e6).any():
            raise RuntimeError("on one of the records")
        if (first == -1e6).any():
            sys.exit(3)
        if (first == 2e6).any():
            raise PanicException("on one of the records")
        if (first == -2e6).any():
            raise MemoryError("on one of the records")
        return self.model(x)


@pytest.mark.parametrize("value", [1e6, -1e6, 2e6, -2e6])
@pytest.mark.parametrize("count", [1, 3, 200])
def test_a_record_that_a_network_fails_on_changes_a_noisy_score_by_one_answer(lab, value, count):
    """And nothing else tells of it: the noise is for one answer more or less."""
    settings, _ = noisy(lab)
    task = lab.task(settings, {"train.max_steps": 20}, validation_plan=scores(30.0, 5))
    trial = all_but_noise(lab.open(settings, task))
    trial.advance()
    trial.method._model = Choosy(trial.method._model)
    inputs, labels = trial._scores._data.parts["validation"]
    (well,) = trial._scores.now().values()
    assert well > 0.6
    others = inputs.copy()
    others[:count, 0] = value
    trial._scores._data.parts["validation"] = others, labels
    (ill,) = trial._scores.now().values()
    assert well - count / 200 - 1e-9 <= ill <= well + 1e-9
    assert count < 200 or ill == 0.0  # what fails is no answer of any class
    assert trial._scores.missing == {}
    trial.close()


class Full(torch.nn.Module):
    """Has no room for any block of records."""

    def forward(self, x):
        raise MemoryError("no room")


@pytest.mark.parametrize("present", [200, 0])
def test_a_lack_of_memory_is_told_of_a_noisy_score_too(lab, present):
    """It is a matter of the size of blocks; what is charged stays charged."""
    settings, _ = noisy(lab)
    task = lab.task(settings, {"train.max_steps": 20}, validation_plan=scores(30.0, 2))
    inputs, labels = lab.data.parts["validation"]
    lab.data.parts["validation"] = (inputs[:present], labels[:present])
    trial = lab.open(settings, task)
    trial.method._score = lambda model, part: ours(trial.method, Full(), part)
    reports = lab.finish(trial)
    assert [report.metrics for report in reports] == [{}] * 2
    assert "no validation scores: MemoryError" in reports[-1].unscored
    assert "for a block of 208 made-up records" in reports[-1].unscored
    assert len(trial_spent(settings.ledger, 0).part("validation")) == 2


def test_a_block_that_itself_has_no_room_is_told_of(lab, monkeypatch):
    settings, _ = noisy(lab)
    task = lab.task(settings, {"train.max_steps": 20}, validation_plan=scores(30.0, 2))
    trial = lab.open(settings, task)
    zeros = torch.zeros

    def full(*size, **options):
        if size and isinstance(size[0], tuple) and size[0][0] == 208:
            raise MemoryError("no room")
        return zeros(*size, **options)

    monkeypatch.setattr(torch, "zeros", full)
    reports = lab.finish(trial)
    assert [report.metrics for report in reports] == [{}] * 2
    assert "for a block of 208 made-up records" in reports[-1].unscored


def ours(method, model, part):
    return type(method)._score(method, model, part)


def test_a_lack_of_memory_that_records_alone_meet_is_not_told(lab, accuracy):
    """What an evaluation of another package needs may be a matter of what is in the records."""

    def full(position):
        raise MemoryError("no room")

    accuracy(full)
    settings, task = noisy(lab)
    reports = lab.finish(all_but_noise(lab.open(settings, task)))
    assert [report.metrics for report in reports] == [{"validation/accuracy": 0.0}] * 5
    assert (reports[-1].unscored, reports[-1].reason) == ("", "plan complete")


@pytest.mark.parametrize("kind", [NoRoomError, PanicException])
def test_what_others_raise_tells_nothing_of_a_noisy_score(lab, monkeypatch, kind):
    settings, task = noisy(lab)
    trial = all_but_noise(lab.open(settings, task))
    monkeypatch.setattr(trial.method, "evaluate", raising(kind("4711"), module="others.nets"))
    reports = lab.finish(trial)
    assert [report.metrics for report in reports] == [{"validation/accuracy": 0.0}] * 5
    assert reports[-1].unscored == ""


def test_a_panic_of_an_exact_score_fails_no_trial(lab, monkeypatch):
    panic = raising(PanicException("record 4711"), module="others.nets")
    monkeypatch.setattr(lab.Method, "evaluate", panic)
    last = lab.run(lab.settings(), lab.scripted(PLAN))[-1]
    assert (last.done, last.failure, last.step) == (True, "", 50)
    assert "no validation scores: PanicException at nets.py:2" in last.unscored
    assert "4711" not in last.reason


def test_whether_a_noisy_score_can_be_computed_is_not_said(lab, monkeypatch):
    """Of a method of another package, whose evaluation fails as a whole."""
    reports = []
    for number, score in enumerate((0.5, None)):
        settings, task = noisy(lab, ledger=lab.path / f"ledger-{number}")
        trial = all_but_noise(lab.open(settings, dataclasses.replace(task, trial=number)))

        def evaluate(part, score=score):
            if score is None:
                raise RuntimeError("on one of the records")
            return {"accuracy": score}

        monkeypatch.setattr(trial.method, "evaluate", evaluate)
        reports.append(lab.finish(trial))
        assert len(trial_spent(settings.ledger, number).part("validation")) == 5
    for well, ill in zip(*reports, strict=True):
        values = [r.metrics.pop("validation/accuracy") for r in (well, ill)]
        assert values == [0.5, 0.0]
        assert said(well) == said(ill)


def said(report):
    """Return what a report says but for its scores, its usage and its number."""
    left_out = ("delivered", "value", "best_step", "trial", "wall_s", "memory_mb")
    return {k: v for k, v in dataclasses.asdict(report).items() if k not in left_out}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (float("nan"), "evaluate has returned no finite validation/accuracy"),
        (95.5, "an accuracy is not between 0 and 1"),
    ],
)
def test_a_score_that_leads_nowhere_is_told(lab, accuracy, value, wanted):
    accuracy(lambda position: value)
    settings = lab.settings()
    last = lab.run(settings, lab.scripted(PLAN))[-1]
    assert "validation/accuracy" not in last.metrics
    assert wanted in last.reason


def test_numbers_of_other_libraries_are_scores(lab, accuracy):
    accuracy(lambda position: np.float32(0.5))
    last = lab.run(lab.settings(), lab.scripted(PLAN))[-1]
    assert type(last.metrics["validation/accuracy"]) is float


def test_training_goes_on_without_scores_that_cannot_be_paid(lab):
    """The cap allows three of the five planned scores."""
    cap = 1.05 * epsilon_of(scores(6.0, 3), delta=DELTA)
    settings, task = noisy(lab, noise_multiplier=6.0, count=5)
    assert epsilon_of(PLAN, delta=DELTA) < cap
    settings = dataclasses.replace(
        settings, budget=dataclasses.replace(settings.budget, target_epsilon=cap)
    )
    reports = lab.run(settings, task)
    assert [bool(report.metrics) for report in reports] == [True, True, True, False, False]
    assert reports[-1].step == 50
    assert reports[-1].epsilon <= cap
    assert reports[-1].value == max(r.metrics["validation/accuracy"] for r in reports[:3])


def test_an_orderly_continuation_pays_for_no_score_twice(lab):
    settings, task = noisy(lab)
    reports = []
    while not reports or not reports[-1].done:
        trial = lab.open(settings, task)
        reports.append(trial.advance())
        trial.pause()
    last = lab.open(settings, task).advance()  # opened once more after its end
    assert len(trial_spent(settings.ledger, 0).part("validation")) == 5
    assert last.metrics == reports[-1].metrics
    assert last.epsilon == pytest.approx(reports[-1].epsilon, rel=1e-12)


def test_restoring_an_older_checkpoint_keeps_the_scores_that_were_charged(lab):
    settings, task = noisy(lab)
    trial = lab.open(settings, task)
    trial.advance()
    old = {path.name: path.read_bytes() for path in lab.directory().iterdir()}
    trial.advance()
    trial.advance()
    trial.close()
    before = trial_spent(settings.ledger, 0)
    for path in lab.directory().iterdir():
        path.unlink()
    for name, content in old.items():
        (lab.directory() / name).write_bytes(content)
    resumed = lab.open(settings, task)
    assert resumed.position == 10
    assert resumed.ledger.spent == before
    lab.finish(resumed)
    assert len(trial_spent(settings.ledger, 0).part("validation")) == 5


def test_a_release_reaches_the_disk_before_the_score_exists(lab, monkeypatch):
    order = []
    release = TrialLedger.release

    def watched(ledger, events):
        release(ledger, events)
        order.append(("charged", len(trial_spent(ledger.path.parent, 0).part("validation"))))

    settings, task = noisy(lab)
    trial = lab.open(settings, task)
    monkeypatch.setattr(TrialLedger, "release", watched)
    evaluate = trial.method.evaluate

    def evaluated(part):
        order.append(part)
        return evaluate(part)

    monkeypatch.setattr(trial.method, "evaluate", evaluated)
    trial.advance()
    trial.close()
    assert order == [("charged", 1), "validation"]


def test_noisy_accuracy_is_a_count_over_the_declared_number():
    class Fixed:
        def standard_normal(self):
            return -1.5

    value = noisy_accuracy(70, num_declared=100, noise_multiplier=8.0, generator=Fixed())
    assert value == pytest.approx(0.58)


def break_scores(lab, monkeypatch, *parts):
    """Make the scores of some parts fail, with a record in the message of the error."""
    exact = lab.Method.evaluate

    def evaluate(method, part):
        if part in parts:
            raise RuntimeError("record 17 is 0.123456")
        return exact(method, part)

    monkeypatch.setattr(lab.Method, "evaluate", evaluate)


def test_a_trained_trial_does_not_fail_for_a_missing_test_score(lab, monkeypatch):
    """The score is missing, the reason is a kind and a place, and both models are kept."""
    break_scores(lab, monkeypatch, "test")
    settings = lab.settings(show_test=True)
    last = lab.run(settings, lab.scripted(PLAN))[-1]
    assert (last.done, last.failure, last.step) == (True, "", 50)
    assert set(last.metrics) == {"validation/accuracy", "validation/loss"}
    assert "no test scores: RuntimeError at test_scores.py:" in last.unscored
    assert last.reason == f"plan complete; {last.unscored}"
    assert "0.123456" not in last.reason
    kept = CheckpointStore(lab.directory())
    assert (kept.load("last").step, kept.load("best").step) == (50, 50)


def test_a_trial_without_validation_scores_is_trained_to_its_end(lab, monkeypatch):
    break_scores(lab, monkeypatch, "validation")
    settings, task = lab.settings(), lab.scripted(PLAN)
    reports = lab.run(settings, task)
    assert [report.metrics for report in reports] == [{}] * 5
    assert (reports[-1].done, reports[-1].failure, reports[-1].value) == (True, "", None)
    assert "no validation scores" in reports[-1].unscored
    assert CheckpointStore(lab.directory()).load("last").step == 50
    assert not len(trial_spent(settings.ledger, 0).part("validation"))


def test_a_violation_of_the_ledger_is_no_missing_score(lab, monkeypatch):
    settings, task = noisy(lab)
    trial = lab.open(settings, task)

    def refuse(plan):
        raise LedgerError("refused")

    monkeypatch.setattr(trial.ledger, "release", refuse)
    with pytest.raises(LedgerError):
        trial.advance()
    trial.close()


def test_scores_that_a_study_does_not_release_stay_in_the_actor(lab, monkeypatch):
    """How many is told; a name may be a record's, as a value is."""
    kind = lab.Method
    evaluate = kind.evaluate
    more = {"f1": 0.4711, "private_mean": 4711.0}
    monkeypatch.setattr(kind, "evaluate", lambda self, part: {**evaluate(self, part), **more})
    parts = ("validation", "test")
    released = frozenset(f"{part}/{name}" for part in parts for name in ("accuracy", "loss"))
    settings = lab.settings(show_test=True, released=released)
    reports = lab.run(settings, lab.scripted(PLAN))
    assert set(reports[0].metrics) == {"validation/accuracy", "validation/loss"}
    assert set(reports[-1].delivered) == released
    assert {report.note for report in reports} == {
        "its method returns 2 scores of names that a study like this does not release; the trial "
        "goes on without"
    }
    written = json.dumps([dataclasses.asdict(report) for report in reports])
    for path in [*lab.directory().glob("*.json"), *settings.ledger.iterdir()]:
        written += path.read_text()
    assert "4711" not in written
    assert "private_mean" not in written


def test_of_a_noisy_score_no_other_is_told(lab, monkeypatch):
    evaluate = lab.Method.evaluate
    more = {"f1": 0.5}
    monkeypatch.setattr(lab.Method, "evaluate", lambda self, part: evaluate(self, part) | more)
    settings, task = noisy(lab, released=frozenset({"validation/accuracy"}))
    assert [report.note for report in lab.run(settings, task)] == [""] * 5
