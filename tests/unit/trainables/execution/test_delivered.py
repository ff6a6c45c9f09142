"""Test scores are of the model that is delivered: its best checkpoint, whatever came after it."""

import json

import pytest
import torch
from blobs import blobs

from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.testing.conformance import MethodConformance
from dpsweep.trainables.execution.finished.trials import export_model
from dpsweep.trainables.gradients import bias_engine, per_example
from dpsweep.trainables.methods.scatternet.scatternet import ScatterNet

PLAN = Plan((EventRun(PoissonGaussian(3.0, 0.05), 50),))


def peak(position):
    """An accuracy that is best at 30."""
    return 0.9 - abs(position - 30) / 100


def test_the_test_score_is_of_the_model_with_the_value(lab, accuracy):
    accuracy(peak)
    settings = lab.settings(show_test=True)
    *before, last = lab.run(settings, lab.scripted(PLAN))
    assert (last.step, last.best_step, last.value) == (50, 30, peak(30))
    assert last.metrics == {"validation/accuracy": peak(50), "validation/loss": 0.25}
    scores = {"accuracy": peak(30), "loss": 0.25}
    told = {f"{part}/{name}": v for part in ("validation", "test") for name, v in scores.items()}
    assert last.delivered == told
    assert not [r for r in before if any("test" in name for name in r.delivered | r.metrics)]
    assert [r.delivered["validation/accuracy"] for r in before] == [r.value for r in before]


def test_the_model_stays_where_it_was(lab, accuracy):
    accuracy(peak)
    trial = lab.open(lab.settings(show_test=True), lab.scripted(PLAN))
    lab.finish(trial)
    assert trial.method._position == 50
    assert json.loads((lab.directory() / "last.json").read_text())["step"] == 50


def test_test_records_are_looked_at_once(lab, accuracy, monkeypatch):
    looked = []
    accuracy(peak)
    trial = lab.open(lab.settings(show_test=True), lab.scripted(PLAN))
    evaluate = trial.method.evaluate
    monkeypatch.setattr(
        trial.method, "evaluate", lambda part: looked.append(part) or evaluate(part)
    )
    lab.finish(trial)
    assert looked.count("test") == 1
    assert looked[-1] == "test"


def test_private_test_records_stay_closed(lab, accuracy):
    accuracy(peak)
    last = lab.run(lab.settings(), lab.scripted(PLAN))[-1]
    assert last.delivered == {"validation/accuracy": peak(30), "validation/loss": 0.25}


def test_a_report_that_was_lost_is_made_again_with_the_same_scores(lab, accuracy):
    accuracy(peak)
    settings, task = lab.settings(show_test=True), lab.scripted(PLAN)
    last = lab.run(settings, task)[-1]
    accuracy(lambda position: 0.1)  # nothing is scored again
    again = lab.open(settings, task).advance()
    assert dict(again.delivered) == dict(last.delivered)


def test_a_checkpoint_of_an_earlier_version_has_the_scores_of_its_best(lab, accuracy):
    accuracy(peak)
    settings, task = lab.settings(show_test=True), lab.scripted(PLAN)
    lab.run(settings, task)
    for path in lab.directory().glob("*.json"):
        meta = json.loads(path.read_text())
        del meta["delivered"], meta["crc"]
        path.write_text(json.dumps(meta))
    again = lab.open(settings, task).advance()
    assert again.delivered == {"validation/accuracy": peak(30), "validation/loss": 0.25}


def test_the_best_of_steps_that_a_crash_took_back_is_still_the_best(lab, accuracy):
    """Its step may come again, with another model: the file decides, not the number."""
    accuracy(peak)
    settings, task = lab.settings(show_test=True), lab.scripted(PLAN)
    trial = lab.open(settings, task)
    trial.advance()
    trial.advance()
    old = {path.name: path.read_bytes() for path in lab.directory().glob("last*")}
    trial.advance()
    trial.close()
    for path in lab.directory().glob("last*"):
        path.unlink()
    for name, content in old.items():
        (lab.directory() / name).write_bytes(content)
    accuracy(lambda position: 0.2)  # at 30 again, and worse than before
    trial = lab.open(settings, task)
    report = trial.advance()
    assert (report.step, report.best_step, report.metrics["validation/accuracy"]) == (30, 30, 0.2)
    assert report.delivered["validation/accuracy"] == report.value == peak(30)
    trial.close()


def test_without_a_score_the_last_model_is_delivered(lab, accuracy):
    accuracy(peak)
    settings = lab.settings(validation="hidden", show_test=True)
    last = lab.run(settings, lab.scripted(PLAN))[-1]
    assert last.value is None
    assert last.delivered == {"test/accuracy": peak(50), "test/loss": 0.25}


@pytest.mark.parametrize("method", ["dp_sgd", "non_private"])
def test_the_exported_model_has_the_reported_scores(lab, method):
    """The worst loss is called the best one, so that it is an early model's."""
    given = {
        "model.name": "linear", "optim.lr": 0.05, "batch.expected": 100, "train.max_steps": 50,
    }  # fmt: skip
    settings = lab.settings(show_test=True, metric="validation/loss", maximize=True)
    task = lab.task(settings, given, method=method)
    last = lab.run(settings, task)[-1]
    assert last.best_step < last.step == 50
    assert last.value == last.delivered["validation/loss"] != last.metrics["validation/loss"]
    model, _ = export_model(lab.directory(), task, study_seed=0, data=lab.data)
    for part in ("validation", "test"):
        x, y = lab.data.parts[part]
        out = model(torch.tensor(x))
        right = int((out.argmax(1).numpy() == y).sum())
        assert last.delivered[f"{part}/accuracy"] == right / len(y)
        loss = torch.nn.functional.cross_entropy(out, torch.tensor(y)).item()
        assert last.delivered[f"{part}/loss"] == pytest.approx(loss, rel=1e-5)
    here = lab.open(settings, task)
    assert here.method.evaluate("test")["loss"] != last.delivered["test/loss"]
    here.close()


@pytest.mark.parametrize("method", ["dp_sgd", "bitfit"])
def test_a_model_is_exported_without_a_check_of_gradients(lab, method, monkeypatch):
    """It takes the memory of training, and nothing is trained any more."""
    lab.data = blobs(200, (1, 16, 16), num_validation=50, num_test=50)
    given = {
        "model.name": "tanh_cnn_small",
        "batch.expected": 100,
        "train.max_steps": 2,
        "optim.lr": 0.1,
    }
    if method == "bitfit":
        given |= {"bitfit.variant": "two_phase", "bitfit.full_epochs": 0.1}
    checks = []
    for module in (per_example, bias_engine):
        check = module.check_gradients

        def noted(*args, check=check, **kwargs):
            checks.append(kwargs["failure"])
            check(*args, **kwargs)

        monkeypatch.setattr(module, "check_gradients", noted)
    task = lab.task(lab.settings(), given, method=method)
    lab.run(lab.settings(), task)
    assert len(checks) == (2 if method == "bitfit" else 1)
    checks.clear()
    export_model(lab.directory(), task, study_seed=0, data=lab.data)
    assert checks == []


def test_many_heads_look_back_as_one_model_does():
    """The head that is best on validation records is found anew."""
    given = {
        "train.max_steps": 24, "batch.expected": 100, "optim.lr": 0.3, "features.name": "none",
        "optim.lr_scaling": "none", "clip.max_grad_norm": 1.0, "heads.count": 3,
    }  # fmt: skip
    suite = type("Heads", (MethodConformance,), {"method": ScatterNet, "given": given})()
    suite.test_an_earlier_state_scores_as_it_did_then()
