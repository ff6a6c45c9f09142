"""A search on a part of the records without Ray: two trials there, then the run on the rest."""

import contextlib
from unittest import mock

from whole_studies import make_spec

from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, TrialLimit, trial_file
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.preflight import preflight
from dpsweep.results.study import load_sweep
from dpsweep.running import entries
from dpsweep.running.ending import Ending
from dpsweep.running.modes import final_run, searching
from dpsweep.running.modes.launch import Launch
from dpsweep.running.stage import Stage
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import enforced_terms
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import TrialReport
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.data.supplies import NO_SUPPLIES

SPACE = {
    "method": "dp_sgd",
    "model.name": "linear",
    "batch.expected": 32,
    "train.epochs": 4,
    "optim.noise_lr": {"choice": [0.5, 1.0, 2.0]},
}
RATES = (0.5, 2.0)  # of the trials of the search
SCORES = (0.4, 0.9)


def split_spec(root, name="split", **changes):
    raw = make_spec(root, name, tracking={"uri": None})
    raw["privacy"] = {
        "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "composed", "study_epsilon": 3.0,
    }  # fmt: skip
    raw["search"] = {"sampler": "random", "num_trials": 2, "on": {"split": 0.3}, "space": SPACE}
    raw["scheduler"] = {"type": "fifo"}
    for section, values in changes.items():
        raw[section] = {**raw.get(section, {}), **values}
    return raw


class SplitStudy:
    """A study whose search has finished trials, without Ray's actors; it may be opened again."""

    def __init__(self, root, **changes):
        self.raw = split_spec(root, **changes)
        self.data = None
        self.open()

    def open(self, **changes):
        for section, values in changes.items():
            self.raw[section] = {**self.raw[section], **values}
        self.spec = SweepSpec(**self.raw)
        self.checked = preflight(self.spec)
        self.data = self.data or load_dataset(
            self.spec.data, searched_share=self.spec.searched_share
        )
        self.study = Study(self.spec)
        self.ledger = StudyLedger(
            self.study.files.ledger,
            terms=enforced_terms(self.spec),
            in_journal=self.study.view.trials,
        )
        self.composition = self.ledger.open_composition(lambda: choose_composition(self.checked))
        self.ledger.settle_lost(self.study.view.ended())
        self.study.write(entries.study_started(self.study))
        self.handed, self.num_searches = [], 0

    def close(self):
        self.study.close()
        self.ledger.close()

    def launch(self):
        return Launch(
            self.checked, self.study, self.ledger, self.composition, None, 0, self.data,
            NO_SUPPLIES, Observer(), None,
        )  # fmt: skip

    def charge(self, task, steps, checked, *, start=0):
        limit = TrialLimit(self.composition, self.composition.cost(task.full_plan))
        path = trial_file(self.study.files.ledger, task.trial)
        ledger = TrialLedger(path, budget=checked.budget, accountant="rdp", limit=limit)
        with contextlib.closing(ledger):
            ledger.charge(start, steps, task.charges.slice(start, steps))

    def report(self, task, stage, *, score, done=True, step=None):
        step = len(task.plan) if step is None else step
        metrics = {"validation/accuracy": score}
        report = TrialReport(
            task.trial, step, metrics, 0.9, charged=step, value=score, done=done, delivered=metrics
        )
        stage.on_report(report)

    def finish(self, task, stage, score):
        self.charge(task, len(task.plan), stage.checked)
        self.report(task, stage, score=score)
        stage.on_end(task.trial)

    def search(self, launch, checked, data):
        """Run the trials of the search; a second call runs none."""
        self.num_searches += 1
        self.handed.append(("search", data, checked))
        stage = launch.stage(checked, data, NO_SUPPLIES, launch.fifo())
        for number, (rate, score) in enumerate(zip(RATES, SCORES)):
            if number not in self.study.view.trials:
                values = {**SPACE, "optim.noise_lr": rate}
                task = checked.admit(number, values)
                assert task.reserve(self.ledger)
                stage.admit(task)
                self.finish(task, stage, score)
        return Ending("finished", "all trials were started")

    def run(self, execute, search=None):
        """Run the mode, with ``execute(task, stage)`` in the place of Tune for the final run."""

        def instead(stage, source, target):
            task = source.next_task(num_running=0)
            self.handed.append(("final", stage.data, stage.checked))
            return execute(task, stage)

        with (
            mock.patch.object(searching, "_search", search or self.search),
            mock.patch.object(final_run, "prefetch", return_value=None),
            mock.patch.object(Stage, "execute", instead),
        ):
            return searching.run_search(self.launch())

    @property
    def result(self):
        return load_sweep("split", root=self.study.files.path.parent)
