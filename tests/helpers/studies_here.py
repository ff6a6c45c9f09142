"""Whole studies of every accounting mode, run in this process with a stand-in for Ray."""

from __future__ import annotations

from dpsweep import sweep
from dpsweep.results.study import load_sweep
from dpsweep.running import modes
from dpsweep.running.stage import Stage
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.execution.execution import TrialExecution


class NoCluster:
    """Stands for a cluster target that has one slot, this process."""

    starting = "starting nothing"

    def __init__(self, spec, resources, study_path, *, private_path=None):
        pass

    @staticmethod
    def refuse_early(spec, resources):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def execute_here(stage, source, target):
    """Stand for ``Stage.execute``: run the trials to their ends, one after another."""
    stage._source = source
    while (task := source.next_task(num_running=0)) is not None:
        directory = stage.study.files.trial(task.trial)
        execution = TrialExecution(directory, task, settings=stage._settings(), data=stage.data)
        while not stage.on_report(execution.advance()).done:
            pass
        execution.close()
        stage.on_end(task.trial)
    return "finished"


def run_here(patch, raw):
    """Run a study that is not sealed, and return its results; ``patch`` is ``setattr`` or alike."""
    patch(modes, "prefetch", lambda *arguments, **options: None)
    patch(Stage, "execute", execute_here)
    patch(sweep, "TARGETS", {"local": NoCluster})
    sweep.run_sweep(SweepSpec(**raw))
    return load_sweep(raw["name"], root=raw["storage"]["path"])
