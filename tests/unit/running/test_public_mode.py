"""A public search: which configuration its final run has, and what may be said before its end."""

from types import SimpleNamespace

import pytest
from whole_studies import make_spec

from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.modes import FINAL_RUN
from dpsweep.results.study import load_sweep
from dpsweep.running import modes
from dpsweep.running.stage import Stage
from dpsweep.schedulers import POLICIES
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import TrialReport, TrialState
from dpsweep.trainables.data.supplies import NO_SUPPLIES

#: Null asks for noise that is calibrated to train.max_steps; left out, it would be 20.
SPACE = {
    "method": "adamix",
    "features.name": "none",
    "noise.noise_multiplier": None,
    "train.max_steps": 40,
}


class PublicStudy:
    """A study whose public search has one finished trial, without Ray's actors."""

    def __init__(self, root):
        raw = make_spec(root, "public", tracking={"uri": None})
        raw["data"]["public"] = {"fraction": 0.2}
        raw["privacy"] = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "public"}
        raw["search"] = {"num_trials": 1, "sampler": "random", "space": SPACE}
        self.spec = SweepSpec(**raw)
        self.checked = preflight(self.spec)
        self.study = Study(self.spec)
        self.ledger = StudyLedger(self.study.files.ledger)
        searching = self.checked.for_public_search()
        self.searched = searching.admit(0, SPACE)
        self.finish(self.searched, self.stage(searching))

    def stage(self, checked):
        policy = POLICIES["fifo"].from_spec(self.spec.scheduler, metric="", maximize=True)
        return Stage(
            checked, self.study, self.ledger, filter=None, data=None, observer=Observer(),
            policy=policy,
        )  # fmt: skip

    def charge(self, task, steps):
        path = trial_file(self.study.files.ledger, task.trial)
        ledger = TrialLedger(path, budget=self.checked.budget, accountant="rdp")
        ledger.charge(0, steps, task.charges.slice(0, steps))
        ledger.close()

    def report(self, task, stage, step, *, done):
        scores = {"validation/accuracy": 0.5}
        stage.on_report(
            TrialReport(task.trial, step, scores, 0.5, charged=step, value=0.5, done=done)
        )

    def finish(self, task, stage):
        stage.admit(task)
        self.charge(task, len(task.plan))
        self.report(task, stage, len(task.plan), done=True)
        stage.on_end(task.trial)

    def run(self, monkeypatch, execute):
        """Run the mode, with ``execute(tasks, stage)`` in place of Tune."""
        stage = self.stage(self.checked)
        monkeypatch.setattr(modes, "_search", lambda *args: modes.Ending("finished"))
        monkeypatch.setattr(modes, "prefetch", lambda *args, **more: None)
        monkeypatch.setattr(stage, "execute", lambda source, target: execute(source, stage))
        launch = SimpleNamespace(
            study=self.study, observer=Observer(), checked=self.checked, ledger=self.ledger,
            data=SimpleNamespace(for_public_search=lambda with_test: None), target=None,
            stage=lambda *args: stage, fifo=lambda: None, supplies=NO_SUPPLIES,
        )  # fmt: skip
        return modes.run_public(launch)

    @property
    def result(self):
        return load_sweep("public", root=self.study.files.path.parent)


@pytest.fixture
def public(tmp_path):
    study = PublicStudy(tmp_path)
    yield study
    study.study.close()
    study.ledger.close()


def test_the_final_run_has_the_winners_configuration_with_its_nulls(public, monkeypatch):
    ran = []

    def execute(source, stage):
        ran.append(source.next_task(num_running=0))
        return "interrupted"

    public.run(monkeypatch, execute)
    (final,) = ran
    assert final.hparams == public.searched.hparams
    assert final.hparams["noise.noise_multiplier"] is None
    assert len(final.plan) == len(public.searched.plan) == 40
    (noise,) = {run.event.noise_multiplier for run in final.plan.runs}
    assert noise != 20
    trials = public.result.results
    assert trials[0].config == trials[1].config
    assert trials[0].config["noise.noise_multiplier"] is None  # another run of it is the same one


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.FAILED])
def test_a_final_run_that_has_not_finished_is_claimed_at_all_that_it_may_cost(
    public, monkeypatch, state
):
    """Who stops it may have looked at its scores; so what it happened to spend bounds nothing."""

    def execute(source, stage):
        final = source.next_task(num_running=0)
        public.charge(final, 4)
        public.report(final, stage, 4, done=False)
        if state is TrialState.FAILED:
            failed = TrialReport(final.trial, 4, {}, 0.4, charged=4, done=True, failure="died")
            stage.on_report(failed)
            stage.on_end(final.trial)
        return "interrupted"

    public.run(monkeypatch, execute)
    result = public.result
    final = result.results[1]
    assert final.state is state
    assert final.epsilon < 1
    claim = result.study_statement()
    assert (claim.epsilon, claim.sampling) == (2.0, final.statement.sampling)
    assert claim.released.startswith(FINAL_RUN)
    assert "epsilon <= 2" in claim.one_line() or "epsilon=2" in claim.one_line()


def test_a_final_run_that_has_finished_is_claimed_at_what_it_cost(public, monkeypatch):
    def execute(source, stage):
        final = source.next_task(num_running=0)
        public.charge(final, len(final.plan))
        public.report(final, stage, len(final.plan), done=True)
        stage.on_end(final.trial)
        return "finished"

    public.run(monkeypatch, execute)
    result = public.result
    claim = result.study_statement()
    assert claim == result.results[1].statement
    assert 1.9 < claim.epsilon <= 2.0


def test_the_search_is_handed_public_records_alone(public, monkeypatch):
    handed = []

    def search(launch, checked, data):
        handed.append((data, checked.records))
        return modes.Ending("interrupted")

    monkeypatch.setattr(modes, "_search", search)
    launch = SimpleNamespace(
        study=public.study, observer=Observer(), checked=public.checked, ledger=public.ledger,
        data=SimpleNamespace(for_public_search=lambda with_test: ("public", with_test)),
    )  # fmt: skip
    modes.run_public(launch)
    assert handed == [(("public", True), "public")]
