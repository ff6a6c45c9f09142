"""Strategy ``probe``: very noisy runs find one number, and one run gets what they leave.

    Probing (tasks) -> ProbeSource (which is next) -> Stage

Probes and final run are two phases of one declared composition: the final run is reserved when no
probe runs any more, and none is run after it.
"""

from __future__ import annotations

from dataclasses import replace

from dpsweep.foundation.logs import read_log
from dpsweep.planning.costs.probing import Probing
from dpsweep.running.ending import Ending
from dpsweep.running.features import prefetch
from dpsweep.running.modes.launch import Launch, continued, mend
from dpsweep.running.modes.searching import run_search
from dpsweep.search.probes import NextRun, Probe, ProbeSource, told
from dpsweep.spec.search.probe import PROBE
from dpsweep.study.events import TrialJudged, event_of
from dpsweep.study.study import Study
from dpsweep.study.trial import MOVING, Decision, TrialState, Verdict


def run_composed(launch: Launch) -> Ending:
    """Run a composed study by its strategy, its new trials as they were declared."""
    launch = replace(launch, checked=replace(launch.checked, composition=launch.composition))
    is_probed = launch.checked.spec.search.strategy == PROBE
    return run_probes(launch) if is_probed else run_search(launch)


def run_probes(launch: Launch) -> Ending:
    """Run, or continue, the probes, their spares and the final run."""
    checked, study, spec = launch.checked, launch.study, launch.checked.spec
    probing = Probing(checked)
    features = prefetch(checked, launch.data, launch.target, launch.observer, tasks=probing.tasks)
    supplies = replace(launch.supplies, feature_root=features)
    stage = launch.stage(checked, launch.data, supplies, launch.policy(), is_last=True)
    stage.replay()
    mend(launch, stage, checked)
    waiting = continued(launch, stage)
    name, final = probing.parameter.name, spec.final_trial
    probes = [trial for trial in study.view.trials.values() if trial.trial != final]
    source = ProbeSource(
        probing,
        spares=spec.search.probe.spares,
        maximize=spec.search.mode == "max",
        ledger=launch.ledger,
        admit=stage.admit,
        tell=lambda run: _tell(launch, run, name),
        waiting=waiting,
        values={trial.trial: trial.hparams[name] for trial in probes},
        ended={
            trial.trial: Probe(trial.trial, trial.hparams[name], _score(study, trial.trial))
            for trial in probes
            if trial.state not in MOVING
        },
        is_final_begun=final in study.view.trials,
    )
    return Ending(stage.execute(source, launch.target), source.end_reason)


def _score(study: Study, trial: int) -> float | None:
    """Return the score of a probe that ran to its end."""
    view = study.view.trials[trial]
    return view.value if view.state is TrialState.FINISHED else None


def _tell(launch: Launch, run: NextRun, name: str) -> None:
    """Write down why a spare or the final run has its value, and say it."""
    report = launch.study.last_report(run.best.number)
    reason = told(run, name)
    judged = TrialJudged.of(report, Verdict(Decision.CONTINUE, value=run.best.score, reason=reason))
    if judged not in map(event_of, read_log(launch.study.files.journal)):  # of a killed launch
        launch.study.write(judged)
    launch.observer.on_message(reason)
