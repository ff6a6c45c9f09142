"""A launch of a composed study with everything but Tune, for tests of what the driver writes."""

from whole_studies import make_spec

from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.preflight import preflight
from dpsweep.running.stage import Stage
from dpsweep.schedulers import POLICIES
from dpsweep.search.sources import SearchSource
from dpsweep.search.suggestions import Suggestions
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import TrialReport


class Listening(Observer):
    def __init__(self):
        self.messages = []

    def on_message(self, text):
        self.messages.append(text)


class Driver:
    """One launch of a composed study, with everything but Tune."""

    def __init__(self, root, data=None, variant="stop", **privacy):
        raw = make_spec(root, "stage", tracking={"uri": None}, search__num_trials=50)
        raw["data"] = data or raw["data"]
        raw["privacy"] = {
            "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "composed", "study_epsilon": 2.0,
            **privacy,
        }  # fmt: skip
        raw["scheduler"] = {
            "type": "epsilon_halving", "rungs": [0.5], "reduction_factor": 2, "variant": variant,
        }  # fmt: skip
        self.spec = SweepSpec(**raw)
        self.checked = preflight(self.spec)
        self.study = Study(self.spec)
        self.ledger = StudyLedger(self.study.files.ledger)
        self.composition = None
        if self.spec.privacy.accounting == "composed":
            self.composition = self.ledger.open_composition(
                lambda: choose_composition(self.checked)
            )
        self.observer = Listening()
        policy = POLICIES["epsilon_halving"].from_spec(
            self.spec.scheduler, metric="validation/accuracy", maximize=True
        )
        self.policy = policy
        self.stage = Stage(
            self.checked, self.study, self.ledger, composition=self.composition, data=None,
            observer=self.observer, policy=policy,
        )  # fmt: skip

    def source(self):
        return SearchSource(
            Suggestions(self.spec, self.checked.space, path=self.study.files.optuna),
            plan=self.checked.admit,
            ledger=self.ledger,
            admit=self.stage.admit,
            refuse=self.stage.refuse,
            num_refused=lambda: self.study.view.num_infeasible,
            unfinished=[],
            num_admitted=0,
            num_trials=50,
            deadline=None,
        )

    def charge(self, task, steps):
        budget = self.checked.budget
        ledger = TrialLedger(
            trial_file(self.study.files.ledger, task.trial), budget=budget, accountant="rdp"
        )
        ledger.charge(0, steps, task.plan.slice(0, steps))
        ledger.close()
        return steps

    def close(self):
        self.study.close()
        self.ledger.close()


def report(task, step, accuracy=0.5, **more):
    return TrialReport(
        task.trial,
        step,
        {"validation/accuracy": accuracy},
        0.5,
        charged=step,
        value=accuracy,
        **more,
    )
