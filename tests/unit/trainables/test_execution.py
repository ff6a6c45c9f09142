"""One trial, without Ray: charges, the hard stop, crashes, restores."""

import hashlib
import json

import pytest

from dpsweep.errors import CheckpointError, LedgerError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.privacy.ledger import trial_spent
from dpsweep.trainables.dp_sgd import DPSGD
from dpsweep.trainables.execution import ExecutionSettings, TrialExecution, export_model
from dpsweep.trainables.method import PlanContext

DELTA = 1e-5


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing cleans up."""


def make_settings(tmp_path, **changes):
    values = {
        "ledger": tmp_path / "ledger",
        "budget": PrivacyBudget(target_epsilon=2.0, delta=DELTA),
        "accountant": "rdp",
        "study_seed": 0,
        "metric": "validation/accuracy",
        "maximize": True,
        "report_every": 100,
        "report_points": 10,
        "show_validation": True,
        "show_test": False,
    }
    return ExecutionSettings(**{**values, **changes})


def make_plan(settings, num_private=1000, **given):
    from dpsweep.hyperparameters import resolve

    hparams = resolve(DPSGD.hyperparameters, given)
    context = PlanContext(settings.budget, settings.accountant, num_private)
    return hparams, DPSGD.plan(hparams, context)


def open_trial(tmp_path, settings, hparams, plan, data, trial=0):
    return TrialExecution(
        tmp_path / "trial",
        trial=trial,
        method="dp_sgd",
        hparams=hparams,
        plan=plan,
        settings=settings,
        data=data,
    )


def run_to_end(execution):
    reports = []
    while not reports or not reports[-1].done:
        reports.append(execution.advance())
    execution.close()
    return reports


def test_stops_after_exactly_881_steps(tmp_path, blobs):
    settings = make_settings(tmp_path)
    given = {
        "batch.sample_rate": 0.01,
        "noise.noise_multiplier": 1.0,
        "train.max_steps": 5000,
    }
    hparams, plan = make_plan(settings, **given)
    reports = run_to_end(open_trial(tmp_path, settings, hparams, plan, blobs))
    assert [r.step for r in reports] == [*range(100, 900, 100), 881]
    assert reports[-1].done
    assert reports[-1].reason == "plan complete"
    assert reports[-1].epsilon <= 2.0
    assert len(trial_spent(settings.ledger, 0)) == 881
    one_more = Plan((EventRun(PoissonGaussian(1.0, 0.01), 882),))
    assert epsilon_of(one_more, delta=DELTA) > 2.0


def test_calibrated_plan_spends_nearly_all_and_never_more(tmp_path, blobs):
    settings = make_settings(tmp_path, report_every=None)
    hparams, plan = make_plan(
        settings, **{"noise.shape": "cosine", "noise.end_ratio": 0.5, "train.max_steps": 60}
    )
    reports = run_to_end(open_trial(tmp_path, settings, hparams, plan, blobs))
    assert len(reports) == 10
    assert 0.97 * 2.0 <= reports[-1].epsilon <= 2.0
    epsilons = [r.epsilon for r in reports]
    assert epsilons == sorted(epsilons)
    assert [r.next_epsilon for r in reports[:-1]] == pytest.approx(epsilons[1:])
    assert trial_spent(settings.ledger, 0) == plan.merged()


def test_learns_and_keeps_the_best(tmp_path, blobs):
    settings = make_settings(tmp_path, report_every=None, show_test=True)
    hparams, plan = make_plan(settings, **{"train.max_steps": 60, "optim.lr": 1.0})
    reports = run_to_end(open_trial(tmp_path, settings, hparams, plan, blobs))
    assert reports[-1].value == max(r.metrics["validation/accuracy"] for r in reports) > 0.8
    assert "test/accuracy" in reports[-1].metrics
    assert all("test/accuracy" not in r.metrics for r in reports[:-1])
    model, example = export_model(
        tmp_path / "trial", method="dp_sgd", hparams=hparams, plan=plan, study_seed=0, trial=0,
        data=blobs,
    )  # fmt: skip
    import torch

    x, y = blobs.parts["validation"]
    accuracy = (model(torch.tensor(x)).argmax(1).numpy() == y).mean()
    assert accuracy == pytest.approx(reports[-1].value)
    assert example.shape == (1, 12)
    assert not example.any()


def test_private_validation_scores_stay_inside(tmp_path, blobs):
    settings = make_settings(tmp_path, show_validation=False, report_every=None)
    hparams, plan = make_plan(settings, **{"train.max_steps": 20})
    reports = run_to_end(open_trial(tmp_path, settings, hparams, plan, blobs))
    assert all(not r.metrics and r.value is None for r in reports)


def crash_in_segment(execution, monkeypatch, number):
    """Advance until segment ``number`` has been charged, then die within it."""
    calls = []
    run = execution.method.run

    def dying(start, stop):
        calls.append(start)
        if len(calls) == number:
            run(start, start + (stop - start) // 2)
            raise Killed
        run(start, stop)

    monkeypatch.setattr(execution.method, "run", dying)
    reports = [execution.advance() for _ in range(number - 1)]
    with pytest.raises(Killed):
        execution.advance()
    execution.close()  # the operating system releases the lock of a killed process
    return reports


def test_a_crash_costs_what_was_charged_and_the_cap_holds(tmp_path, blobs, monkeypatch):
    settings = make_settings(tmp_path, report_every=10)
    hparams, plan = make_plan(settings, **{"train.max_steps": 60})
    before = crash_in_segment(open_trial(tmp_path, settings, hparams, plan, blobs), monkeypatch, 3)
    assert [r.step for r in before] == [10, 20]
    assert len(trial_spent(settings.ledger, 0)) == 30

    resumed = open_trial(tmp_path, settings, hparams, plan, blobs)
    assert resumed.position == 20
    after = run_to_end(resumed)
    spent = trial_spent(settings.ledger, 0)
    assert after[0].step == 30
    assert after[0].epsilon == pytest.approx(epsilon_of(plan.slice(0, 40), delta=DELTA), rel=1e-9)
    epsilons = [r.epsilon for r in before + after]
    assert epsilons == sorted(epsilons)
    assert len(spent) == 60  # 10 lost steps, so the model stops at 50
    assert after[-1].step == 50
    assert "10 charged steps were lost" in after[-1].reason
    assert after[-1].epsilon == pytest.approx(epsilon_of(spent, delta=DELTA), rel=1e-9)
    assert after[-1].epsilon <= 2.0


def test_noise_is_never_repeated_after_a_restore(tmp_path, blobs, monkeypatch):
    seen = []
    monkeypatch.setattr(
        DPSGD,
        "noise_observer",
        staticmethod(lambda noise: seen.append(hashlib.sha256(noise.numpy().tobytes()).digest())),
    )
    settings = make_settings(tmp_path, report_every=10)
    hparams, plan = make_plan(settings, **{"train.max_steps": 60})
    crash_in_segment(open_trial(tmp_path, settings, hparams, plan, blobs), monkeypatch, 3)
    first = len(seen)
    run_to_end(open_trial(tmp_path, settings, hparams, plan, blobs))
    assert first >= 25
    assert len(seen) > first
    assert len(set(seen)) == len(seen)


def test_an_old_checkpoint_does_not_lower_the_ledger(tmp_path, blobs):
    settings = make_settings(tmp_path, report_every=10)
    hparams, plan = make_plan(settings, **{"train.max_steps": 60})
    trial = open_trial(tmp_path, settings, hparams, plan, blobs)
    trial.advance()
    directory = tmp_path / "trial"
    old = {path.name: path.read_bytes() for path in directory.iterdir()}
    trial.advance()
    trial.advance()
    trial.close()
    for path in directory.iterdir():
        path.unlink()
    for name, content in old.items():
        (directory / name).write_bytes(content)
    resumed = open_trial(tmp_path, settings, hparams, plan, blobs)
    assert resumed.position == 10
    assert len(resumed.ledger) == 30
    report = resumed.advance()
    assert report.epsilon == pytest.approx(epsilon_of(plan.slice(0, 40), delta=DELTA), rel=1e-9)
    resumed.close()


@pytest.mark.parametrize("loss", ["deleted", "last record", "older copy"])
def test_a_lost_ledger_is_refused(tmp_path, blobs, loss):
    settings = make_settings(tmp_path, report_every=10)
    hparams, plan = make_plan(settings, **{"train.max_steps": 60})
    trial = open_trial(tmp_path, settings, hparams, plan, blobs)
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
        open_trial(tmp_path, settings, hparams, plan, blobs)


def test_a_crash_between_best_and_last_keeps_the_score_with_its_model(tmp_path, blobs):
    settings = make_settings(tmp_path, report_every=10, metric="validation/loss", maximize=False)
    hparams, plan = make_plan(settings, **{"train.max_steps": 60, "optim.lr": 0.05})
    trial = open_trial(tmp_path, settings, hparams, plan, blobs)
    trial.advance()
    directory = tmp_path / "trial"
    old = {path.name: path.read_bytes() for path in directory.glob("last*")}
    report = trial.advance()
    trial.close()
    assert report.best_step == 20
    for path in directory.glob("last*"):
        path.unlink()
    for name, content in old.items():
        (directory / name).write_bytes(content)
    resumed = open_trial(tmp_path, settings, hparams, plan, blobs)
    assert resumed.position == 10
    assert (resumed.value, resumed.best_step) == (report.value, 20)
    resumed.close()


def test_a_damaged_checkpoint_is_refused(tmp_path, blobs):
    settings = make_settings(tmp_path, report_every=10)
    hparams, plan = make_plan(settings, **{"train.max_steps": 60})
    trial = open_trial(tmp_path, settings, hparams, plan, blobs)
    trial.advance()
    trial.close()
    path = next((tmp_path / "trial").glob("last-*.ckpt"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        open_trial(tmp_path, settings, hparams, plan, blobs)
    meta = json.loads((tmp_path / "trial" / "last.json").read_text())
    assert meta["step"] == 10


def test_two_processes_cannot_run_one_trial(tmp_path, blobs):
    settings = make_settings(tmp_path)
    hparams, plan = make_plan(settings, **{"train.max_steps": 20})
    trial = open_trial(tmp_path, settings, hparams, plan, blobs)
    with pytest.raises(LedgerError, match="another process"):
        open_trial(tmp_path, settings, hparams, plan, blobs)
    trial.close()


def test_checkpoint_holds_no_secret_randomness(tmp_path, blobs):
    settings = make_settings(tmp_path, report_every=10)
    hparams, plan = make_plan(settings, **{"train.max_steps": 20})
    trial = open_trial(tmp_path, settings, hparams, plan, blobs)
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
