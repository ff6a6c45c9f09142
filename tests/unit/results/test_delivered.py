"""One model, one number: whatever shows a trial shows the scores of the model it delivers."""

import json

import pytest
from whole_studies import cli_here, make_spec

from dpsweep.foundation.durable import DurableLog
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.planning.preflight import preflight
from dpsweep.results.study import SweepResult, load_sweep
from dpsweep.running import entries
from dpsweep.running.stage import Stage
from dpsweep.schedulers import POLICIES
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import enforced_terms
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import TrialReport, TrialState

AT_BEST = {"validation/accuracy": 0.776, "validation/loss": 0.5}
ON_TEST = {"test/accuracy": 0.740, "test/loss": 0.6}
AT_END = {"validation/accuracy": 0.758, "validation/loss": 0.7}
STEPS = 30


@pytest.fixture
def files(tmp_path):
    """A study of one trial whose best model, at step 20, is not its last, and one pruned trial."""
    space = {"method": "dp_sgd", "optim.lr": {"choice": [0.5, 2]}, "train.max_steps": STEPS}
    search = {"sampler": "grid", "space": space, "num_trials": 2}
    raw = make_spec(tmp_path, "over", search=search, tracking={"uri": None})
    checked = preflight(SweepSpec(**raw))
    study = Study(checked.spec)
    budget = StudyLedger(study.files.ledger, terms=enforced_terms(checked.spec))
    for number, point in enumerate(checked.space.grid()):
        task = checked.admit(number, point)
        budget.reserve(number, task.full_plan, epsilon=task.planned_epsilon)
        ledger = TrialLedger(
            trial_file(study.files.ledger, number), budget=checked.budget, accountant="rdp"
        )
        ledger.charge(0, STEPS, task.plan)
        ledger.close()
        study.write_task(task)
        study.write(entries.trial_started(checked.spec, task))
        common = {"trial": number, "epsilon": 1.0, "charged": STEPS, "value": 0.776}
        best = TrialReport(step=20, metrics=AT_BEST, best_step=20, delivered=AT_BEST, **common)
        study.write_report(best)
        if number == 0:
            last = TrialReport(
                step=STEPS, metrics=AT_END, best_step=20, done=True,
                delivered=AT_BEST | ON_TEST, **common,
            )  # fmt: skip
            budget.settle(number, "finished", at_least=STEPS)
            study.write_end(last, TrialState.FINISHED, "", released="", artifacts=[])
        else:
            budget.settle(number, "pruned", at_least=STEPS)
            study.write_end(best, TrialState.PRUNED, "", released="", artifacts=[])
    budget.close()
    study.close()
    return study.files


def as_an_earlier_version_wrote_it(files, last=AT_END | ON_TEST, best_step=20):
    """Take out what this version adds: test scores stood among those of the last model."""
    records = read_log(files.journal)
    files.journal.unlink()
    with DurableLog(files.journal) as log:
        for record in records:
            told = {k: v for k, v in record.items() if k not in ("seq", "delivered")}
            if record["event"] == "trial_ended" and record["state"] == "finished":
                told |= {"metrics": last, "best_step": best_step, "value": last.get("value", 0.776)}
            log.append(told)


def show(files, verb, *more):
    done = cli_here(verb, "over", "--root", files.path.parent, *more)
    assert done.returncode == 0, done.stderr
    return done


def test_every_door_shows_the_delivered_model(files):
    trial = load_sweep("over", root=files.path.parent).best()
    assert (trial.value, trial.step, trial.steps_run, trial.num_steps) == (0.776, 20, 30, 30)
    assert trial.metrics == AT_BEST | ON_TEST
    record = json.loads(show(files, "best", "-f", "json").stdout)
    assert (record["value"], record["step"], record["steps_run"]) == (0.776, 20, 30)
    assert record["metrics"] == AT_BEST | ON_TEST
    for verb in ("status", "pareto"):
        first = json.loads(show(files, verb, "-f", "json").stdout)[0]
        assert first["validation/accuracy"] == 0.776
        assert (first["test/accuracy"], first["step"], first["steps"]) == (0.740, 20, "30/30")
    (row,) = json.loads(show(files, "report", "-f", "json").stdout)
    assert (row["validation/accuracy"], row["test/accuracy"]) == (0.776, 0.740)
    words = " ".join(show(files, "best").stdout.split())
    assert "test/accuracy 0.7400 of the same model" in words
    told = json.dumps(entries.study_ended(SweepResult(files), "finished", "").metrics)
    assert json.loads(told) == {
        "best/trial": 0.0, "best/value": 0.776, "best/epsilon": SweepResult(files).best().epsilon,
        "dp/composed_epsilon": json.loads(told)["dp/composed_epsilon"],
        **{f"best/{name}": value for name, value in (AT_BEST | ON_TEST).items()},
    }  # fmt: skip


def test_a_pruned_trial_has_the_scores_of_its_best_model_and_no_test(files):
    trial = load_sweep("over", root=files.path.parent).trial(1)
    assert (trial.step, trial.metrics) == (20, AT_BEST)


def test_an_old_study_does_not_lend_the_last_models_test_score_to_the_best(files):
    as_an_earlier_version_wrote_it(files)
    trial = load_sweep("over", root=files.path.parent).best()
    assert (trial.value, trial.step, trial.metrics) == (0.776, 20, AT_BEST)
    for verb in ("status", "best", "report", "pareto"):
        done = show(files, verb, "-f", "json")
        assert "0.74" not in done.stdout
        assert "no test score of trial 0: an earlier version of dpsweep took it" in done.stderr


def test_an_old_study_keeps_the_test_score_of_a_best_model_that_is_the_last(files):
    last = {"validation/accuracy": 0.8, "test/accuracy": 0.79, "value": 0.8}
    as_an_earlier_version_wrote_it(files, last=last, best_step=STEPS)
    found = load_sweep("over", root=files.path.parent)
    trial = found.best()
    assert (trial.value, trial.step, trial.metrics["test/accuracy"]) == (0.8, STEPS, 0.79)
    assert found.score_notes() == []


def test_an_old_step_that_came_twice_names_no_model(files):
    """After a crash: the best value is not among what was reported at its step."""
    as_an_earlier_version_wrote_it(files, last={**AT_END, "value": 0.81}, best_step=20)
    records = read_log(files.journal)
    assert records[-1]["state"] == "pruned"
    trial = load_sweep("over", root=files.path.parent).best()
    assert (trial.value, trial.metrics["validation/accuracy"]) == (0.81, 0.81)


def test_what_may_not_leave_its_actor_does_not_leave_as_a_delivered_score(files, tmp_path):

    spec = SweepSpec.from_yaml(files.spec)
    study, ledger = Study(spec), StudyLedger(tmp_path / "apart")
    policy = POLICIES["fifo"].from_spec(spec.scheduler, metric="validation/accuracy", maximize=True)
    stage = Stage(
        preflight(spec),
        study,
        ledger,
        composition=None,
        data=None,
        observer=Observer(),
        policy=policy,
    )
    leaky = {**AT_BEST, "train/loss": 0.1}
    shown = stage.on_report(TrialReport(1, 29, AT_BEST, 1.0, delivered=leaky, charged=STEPS))
    study.close()
    ledger.close()
    assert dict(shown.delivered) == AT_BEST
    assert "train/loss" not in json.dumps(read_log(files.journal))
