"""A public search without Ray: one trial on public records, then the run on private ones."""

from types import SimpleNamespace

from whole_studies import make_spec

from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.planning.preflight import preflight
from dpsweep.results.study import load_sweep
from dpsweep.running import entries
from dpsweep.running.ending import Ending
from dpsweep.running.modes import final_run, searching
from dpsweep.running.stage import Stage
from dpsweep.schedulers import POLICIES
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import TrialReport
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

    def __init__(self, root, scores=None):
        self.scores = scores  # of the trial of the search
        raw = make_spec(root, "public", tracking={"uri": None})
        raw["data"]["public"] = {"fraction": 0.2}
        raw["privacy"] = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "public"}
        raw["search"] = {"num_trials": 1, "sampler": "random", "space": SPACE}
        self.spec = SweepSpec(**raw)
        self.checked = preflight(self.spec)
        self.study = Study(self.spec)
        self.ledger = StudyLedger(self.study.files.ledger)
        self.study.write(entries.study_started(self.study))
        searching = self.checked.for_public_search()
        self.searched = searching.admit(0, SPACE)
        self.finish(self.searched, self.stage(searching))

    def stage(self, checked):
        policy = POLICIES["fifo"].from_spec(self.spec.scheduler, metric="", maximize=True)
        return Stage(
            checked, self.study, self.ledger, composition=None, data=None, observer=Observer(),
            policy=policy,
        )  # fmt: skip

    def charge(self, task, steps):
        path = trial_file(self.study.files.ledger, task.trial)
        ledger = TrialLedger(path, budget=self.checked.budget, accountant="rdp")
        ledger.charge(0, steps, task.charges.slice(0, steps))
        ledger.close()

    def report(self, task, stage, step, *, done, scores=None):
        scores = scores or {"validation/accuracy": 0.5}
        stage.on_report(
            TrialReport(task.trial, step, scores, 0.5, charged=step, value=0.5, done=done)
        )

    def finish(self, task, stage):
        assert self.ledger.reserve(
            task.trial, task.full_plan, epsilon=task.planned_epsilon, task=task.digest
        )
        stage.admit(task)
        self.charge(task, len(task.plan))
        self.report(task, stage, len(task.plan), done=True, scores=self.scores)
        stage.on_end(task.trial)

    def run(self, monkeypatch, execute):
        """Run the mode, with ``execute(tasks, stage)`` in place of Tune."""
        stage = self.stage(self.checked)
        monkeypatch.setattr(searching, "_search", lambda *args: Ending("finished"))
        monkeypatch.setattr(final_run, "prefetch", lambda *args, **more: None)
        monkeypatch.setattr(stage, "execute", lambda source, target: execute(source, stage))
        launch = SimpleNamespace(
            study=self.study, observer=Observer(), checked=self.checked, ledger=self.ledger,
            data=SimpleNamespace(for_public_search=lambda with_test: None), target=None,
            stage=lambda *args, **more: stage, fifo=lambda: None, supplies=NO_SUPPLIES,
        )  # fmt: skip
        return searching.run_public(launch)

    @property
    def result(self):
        return load_sweep("public", root=self.study.files.path.parent)
