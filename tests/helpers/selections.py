"""Whole selections whose trials run in this process, with a stand-in for Ray."""

import copy
import functools
from pathlib import Path

from no_cluster import execute_here
from whole_studies import make_spec

from dpsweep.cluster import private_directory
from dpsweep.cluster.private_directory import refuse_open
from dpsweep.running.modes import sealed
from dpsweep.running.nodes import cluster
from dpsweep.running.stage import Stage
from dpsweep.spec.study import SweepSpec

#: What the trials that ran here began with, in their order.
BEGUN = []
SPACE = {"method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 4]}, "train.max_steps": 4}


#: Validation records of which scores are counts with noise.
NOISY = {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.08}


def select_spec(root, space=SPACE, mean=3, *, is_noisy=False, **privacy):
    raw = make_spec(root, "selection", tracking={"uri": None}, scheduler={"type": "fifo"})
    if is_noisy:
        raw["data"]["validation"] = NOISY
    raw["search"] = {"sampler": "random", "num_trials": None, "space": space}
    raw["privacy"] = {
        "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "select",
        "selection": {"mean": mean, "shape": 1}, **privacy,
    }  # fmt: skip
    return SweepSpec(**raw)


def note(execution):
    BEGUN.append(copy.deepcopy(execution.method.state_dict()["model"]))


class FakeRay:
    """Stands for a cluster target: keeps all scores in a folder that it opens to everybody."""

    starting, joined = "starting nothing", ""

    def __init__(self, spec, resources, study_path, *, private_path=None, lock=None):
        self.path, self.is_up = private_path, False

    def begin(self, num_trials=None):
        assert num_trials is None  # it would be a secret

    @staticmethod
    def refuse_early(spec, resources):
        pass

    def __enter__(self):
        folder = self.path / "ray"
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "experiment_state.json").write_text("all scores")
        refuse_open(self.path)
        self.is_up = True
        return self

    def disconnect(self):
        assert not self.is_up or (self.path / "ray").exists()  # Ray ends first, then its files


def go_without_ray(patch, root: Path):
    """Let selections run here, with their private directories below a folder.

    Args:
        patch: ``setattr``, or a fixture's that is undone.
        root: The folder.
    """
    BEGUN.clear()
    patch(private_directory, "place", lambda: root)
    patch(sealed, "prefetch", lambda *args: None)
    patch(Stage, "execute", functools.partialmethod(execute_here, on_begin=note))
    patch(cluster, "TARGETS", {"local": FakeRay})
