"""A selection whose sealed trials break its claim, without Ray's actors."""

import dataclasses
import shutil
from types import SimpleNamespace

import pytest
from whole_studies import make_spec

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.dataset import DatasetLedger, read_dataset_ledger
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, steps_charged, trial_file, trial_spent
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.selection.bounds import RenyiBound
from dpsweep.results.study import load_sweep
from dpsweep.running.modes import sealed
from dpsweep.schedulers import POLICIES
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import StudyDowngraded
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import TrialReport
from dpsweep.trainables.data.supplies import NO_SUPPLIES


class Selecting:
    """One launch of a study with accounting select, charged to a dataset ledger."""

    def __init__(self, root):
        self.budget = root / "digits.budget"
        raw = make_spec(root, "sealed-study", tracking={"uri": None}, scheduler={"type": "fifo"})
        raw["search"] = {
            "sampler": "random", "num_trials": None, "space": {"method": "dp_sgd", "optim.lr": 1.0},
        }  # fmt: skip
        raw["privacy"] = {
            "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "select",
            "selection": {"mean": 3, "shape": 1}, "dataset_ledger": str(self.budget),
            "dataset_epsilon": 50.0, "dataset_delta": 1e-4,
        }  # fmt: skip
        self.spec = SweepSpec(**raw)
        self.checked = preflight(self.spec)
        self.study = Study(self.spec)
        self.ledger = StudyLedger(self.study.files.ledger)
        charge = choose_selection(self.checked)
        self.ledger.charge_selection(charge.selection, charge.bound, charge.epsilon, 1e-5)
        DatasetLedger(self.budget).reserve(
            self.ledger.study_id, self.spec.name, directory=root, dataset="digits", parts={},
            accounting="select", epsilon=charge.epsilon, delta=1e-5, cap_epsilon=50.0,
            cap_delta=1e-4,
        )  # fmt: skip
        fifo = POLICIES["fifo"].from_spec(self.spec.scheduler, metric="", maximize=True)
        self.launch = SimpleNamespace(
            checked=self.checked, study=self.study, ledger=self.ledger, selection=charge,
            num_draws=2, data=None, observer=Observer(), target=None, policy=lambda: fifo,
            supplies=NO_SUPPLIES,
        )  # fmt: skip

    def claims(self):
        result = load_sweep(self.spec.name, root=self.study.files.path.parent)
        return result.claims, read_dataset_ledger(self.budget)


@pytest.fixture
def selecting(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed, "prefetch", lambda *args, **more: None)
    selecting = Selecting(tmp_path)
    yield selecting
    selecting.study.close()
    selecting.ledger.close()


def breaking(then):
    """Return a stage's ``execute`` in which a sealed trial reports what it must not."""

    def execute(stage, source, target):
        stage.study.write(StudyDowngraded("SECRET train/loss"))
        return then()

    return execute


def interrupted():
    return "interrupted"


def fails():
    raise SweepError("out of memory")


def check_broken(selecting):
    claims, account = selecting.claims()
    assert claims.accounting == "unaccounted"
    assert claims.study_statement() is None
    assert "not run as planned" in account.broken
    assert "SECRET" not in claims.downgraded + account.broken


def test_an_interrupted_selection_whose_trials_broke_its_claim_has_none(selecting, monkeypatch):
    monkeypatch.setattr(sealed.Stage, "execute", breaking(interrupted))
    assert sealed.run_selection(selecting.launch).state == "interrupted"
    check_broken(selecting)


def test_so_has_one_that_ends_by_an_error(selecting, monkeypatch):
    monkeypatch.setattr(sealed.Stage, "execute", breaking(fails))
    with pytest.raises(SweepError, match="out of memory"):
        sealed.run_selection(selecting.launch)
    check_broken(selecting)


def test_a_claim_broken_before_a_kill_is_given_up_before_anything_runs(selecting, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*args):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(sealed, "give_up_claim", kill)
        patch.setattr(sealed.Stage, "execute", breaking(interrupted))
        with pytest.raises(Killed):
            sealed.run_selection(selecting.launch)
    assert selecting.claims()[0].accounting == "select"
    seen = []

    def execute(stage, source, target):
        seen.append(selecting.claims()[1].broken)
        return "interrupted"

    monkeypatch.setattr(sealed.Stage, "execute", execute)
    sealed.run_selection(selecting.launch)
    assert "not run as planned" in seen[0]
    check_broken(selecting)


def test_an_interrupted_selection_as_planned_keeps_its_claim(selecting, monkeypatch):
    monkeypatch.setattr(sealed.Stage, "execute", lambda *args: "interrupted")
    sealed.run_selection(selecting.launch)
    claims, account = selecting.claims()
    assert (claims.accounting, account.broken) == ("select", None)


@pytest.fixture
def ran(selecting, monkeypatch):
    """Tasks that ran to their ends, in three charges each."""
    tasks = []

    def execute(stage, source, target):
        while (task := source.next_task(num_running=0)) is not None:
            path = trial_file(stage.study.files.ledger, task.trial)
            budget = selecting.checked.budget
            ledger = TrialLedger(path, budget=budget, accountant="rdp", fresh=True)
            length, middle = len(task.plan), 3 + task.trial
            for start, stop in ((0, 1), (1, middle), (middle, length)):
                ledger.charge(start, stop, task.plan.slice(start, stop))
            ledger.close()
            write_atomically(stage.study.files.trial(task.trial) / "best.json", b"{}")
            tasks.append(task)
            metrics = {"validation/accuracy": 0.5}
            done = TrialReport(
                task.trial, length, metrics, 1.0, done=True, charged=length, value=0.5
            )
            stage.on_report(done)
            stage.on_end(task.trial)
        return "finished"

    monkeypatch.setattr(sealed.Stage, "execute", execute)
    return tasks


def test_the_released_ledger_does_not_tell_where_charges_ended(selecting, ran):
    """One charge covers about five seconds: its end tells how long steps took."""
    sealed.run_selection(selecting.launch)
    directory = selecting.study.files.ledger
    (record,) = read_log(trial_file(directory, 0))
    assert set(record) == {"seq", "kind", "start", "stop", "events"}
    assert trial_spent(directory, 0) in {task.plan.merged() for task in ran}
    assert steps_charged(directory, 0) == len(trial_spent(directory, 0))
    assert selecting.study.view.trials[0].charged == len(trial_spent(directory, 0))


def test_sealed_trials_have_secret_seeds_of_their_own_and_the_winner_shows_none(selecting, ran):
    """Weights from the study's seed would tell which draw has won, so how many there were."""
    sealed.run_selection(selecting.launch)
    seeds = [task.seed for task in ran]
    assert len(seeds) == 2
    assert None not in seeds
    assert len(set(seeds)) == 2
    shown = (selecting.study.files.trial(0) / "trial.json").read_text()
    assert not any(str(seed) in shown for seed in seeds)
    assert selecting.study.files.task(0).seed is None


def test_a_plan_dearer_than_what_was_charged_is_never_run(selecting, ran):
    """At one order it costs more than the curve that the selection was charged for."""
    charge = selecting.launch.selection
    curve = charge.bound.curve.copy()
    curve[len(curve) // 2] *= 0.99
    selecting.launch.selection = dataclasses.replace(charge, bound=RenyiBound(curve))
    with pytest.raises(SweepError, match="draws in a row were infeasible"):
        sealed.run_selection(selecting.launch)
    assert ran == []


def test_a_selection_whose_sealed_study_was_removed_is_not_drawn_anew(selecting, monkeypatch):
    """Whoever removes it until the winner suits has chosen the best of several draws."""
    monkeypatch.setattr(sealed.Stage, "execute", lambda *args: "interrupted")
    sealed.run_selection(selecting.launch)
    shutil.rmtree(selecting.study.files.path / sealed.SEALED)
    with pytest.raises(SweepError, match="was removed while the selection ran"):
        sealed.run_selection(selecting.launch)
    assert selecting.claims()[0].accounting == "unaccounted"
