"""A selection whose sealed trials break its claim, without Ray's actors."""

from types import SimpleNamespace

import pytest
from whole_studies import make_spec

from dpsweep import sealed
from dpsweep.errors import SweepError
from dpsweep.preflight import preflight
from dpsweep.privacy.dataset_ledger import DatasetLedger, read_dataset_ledger
from dpsweep.privacy.study_ledger import StudyLedger
from dpsweep.results import load_sweep
from dpsweep.schedulers import POLICIES
from dpsweep.spec import SweepSpec
from dpsweep.study import Observer, Study


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
        charge = self.checked.choose_selection()
        self.ledger.charge_selection(charge.selection, charge.curve, charge.epsilon, 1e-5)
        DatasetLedger(self.budget).reserve(
            self.ledger.study_id, self.spec.name, directory=root, dataset="digits", parts={},
            accounting="select", epsilon=charge.epsilon, delta=1e-5, cap_epsilon=50.0,
            cap_delta=1e-4,
        )  # fmt: skip
        fifo = POLICIES["fifo"].from_spec(self.spec.scheduler, metric="", maximize=True)
        self.launch = SimpleNamespace(
            checked=self.checked, study=self.study, ledger=self.ledger, selection=charge,
            num_draws=2, data=None, observer=Observer(), target=None, policy=lambda: fifo,
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
        stage.study.write("study_downgraded", reason="SECRET train/loss")
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
