"""Composed studies on disk as a run would leave them: ledgers, journal, tasks; nothing is run."""

import yaml
from whole_studies import make_spec

from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import TrialLedger, trial_file
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.preflight import preflight
from dpsweep.results.study import load_sweep
from dpsweep.running import entries
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Study
from dpsweep.study.trial import ALL_STARTED, TrialReport, TrialState

COMPOSED = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 6.0}


def write_study(root, shares, *, reason=ALL_STARTED, state="finished", privacy=COMPOSED, **changes):
    """Write a study ``digits``, each trial run to a share of its plan; the spec is study.yaml."""
    raw = make_spec(root, privacy=privacy, tracking={"uri": None}, **changes)
    raw["search"]["num_trials"] = len(shares)
    checked = preflight(SweepSpec(**raw))
    (root / "study.yaml").write_text(yaml.safe_dump(raw))
    study = Study(checked.spec)
    ledger = StudyLedger(study.files.ledger)
    chosen = choose_composition(checked)
    if chosen is not None:
        ledger.open_composition(lambda: chosen)
    study.write(entries.study_started(study))
    for number, (share, point) in enumerate(zip(shares, checked.draw(len(shares)))):
        task = checked.admit(number, point)
        assert ledger.reserve(number, task.full_plan, epsilon=task.planned_epsilon)
        study.write_task(task)
        study.write(entries.trial_started(checked.spec, task))
        steps = max(1, int(share * len(task.plan)))
        path = trial_file(study.files.ledger, number)
        own = TrialLedger(path, budget=checked.budget, accountant="rdp")
        own.charge(0, steps, task.plan.slice(0, steps))
        epsilon = own.epsilon()
        own.close()
        ledger.settle(number, "finished", at_least=steps)
        report = TrialReport(
            number, steps, {"validation/accuracy": 0.5}, epsilon=epsilon, done=True, charged=steps,
            value=0.5, best_step=steps,
        )  # fmt: skip
        end = TrialState.FINISHED if share == 1 else TrialState.PRUNED
        study.write_end(report, end, "", released="", artifacts=[])
    study.write(entries.study_ended(study, state, reason))
    study.close()
    ledger.close()
    return load_sweep("digits", root=root / "studies")
