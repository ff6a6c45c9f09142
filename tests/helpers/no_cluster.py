"""A cluster target without a cluster: trials run in this process, one after another."""

from dpsweep.trainables.execution.execution import TrialExecution


class NoCluster:
    """Stands for a cluster target that has one slot, this process."""

    starting, joined = "starting nothing", ""

    def __init__(self, *args, **more):
        pass

    @staticmethod
    def refuse_early(*args):
        """Everything can be had."""

    def begin(self, num_trials=None):
        """Nothing takes long."""

    def disconnect(self):
        """Nothing was connected."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None


def execute_here(stage, source, target, on_begin=lambda execution: None):
    """Stand for ``Stage.execute``: run the trials to their ends; ``on_begin`` sees each before."""
    stage.begin(source)
    while (task := source.next_task(num_running=0)) is not None:
        directory = stage.study.files.trial(task.trial)
        execution = TrialExecution(directory, task, settings=stage.settings(), data=stage.data)
        try:
            on_begin(execution)
            while not stage.on_report(execution.advance()).done:
                pass
        finally:  # as a process that dies lets go of its ledger
            execution.close()
        stage.on_end(task.trial)
    return "finished"
