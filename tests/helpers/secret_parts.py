"""A search on a secret part of the records, as a spec, and without Ray."""

from selections import go_without_ray
from whole_studies import make_spec

from dpsweep.privacy.selection.number import Selection
from dpsweep.running.modes import final_run
from dpsweep.running.stage import Stage

SPACE = {
    "method": "dp_sgd",
    "model.name": "linear",
    "batch.expected": 16,
    "train.epochs": 4,
    "optim.noise_lr": {"loguniform": [0.1, 10]},
}


def secret_spec(root, name="secret", mean=3, space=SPACE, **changes):
    raw = make_spec(root, name, tracking={"uri": None})
    raw["privacy"] = {
        "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "select", "study_epsilon": 3.0,
        "selection": {"mean": mean, "shape": 1},
    }  # fmt: skip
    raw["search"] = {"on": {"subset": 0.2}, "space": space}
    raw["scheduler"] = {"type": "fifo"}
    for section, values in changes.items():
        raw[section] = {**raw.get(section, {}), **values}
    return raw


def run_here(tmp_path, monkeypatch, **more):
    """Run launches in this process, without Ray and ``without_features``, until the test ends."""
    private = tmp_path / "private"
    private.mkdir()
    go_without_ray(monkeypatch.setattr, private)
    without_features(monkeypatch.setattr, **more)


def without_features(patch, num_trials=3):
    """Let final runs compute no features, and searches have so many trials (``patch`` undoes)."""
    patch(final_run, "prefetch", lambda *args, **more: None)
    patch(Selection, "draw", lambda self, rng: num_trials)


class Seen:
    """What each stage of a study is handed, in their order, and its sealed ledger's seed.

    Args:
        monkeypatch: Undone at the end of the test; ``Stage.execute`` is replaced already.
    """

    def __init__(self, monkeypatch):
        self.stages, self.tasks = [], []
        execute, admit = Stage.execute, Stage.admit

        def looking(stage, source, target):
            self.stages.append(stage)
            return execute(stage, source, target)

        def admitting(stage, task):
            self.tasks.append(task)
            return admit(stage, task)

        monkeypatch.setattr(Stage, "execute", looking)
        monkeypatch.setattr(Stage, "admit", admitting)

    @property
    def seeds(self):
        return [stage.ledger.part_seed for stage in self.stages if stage.fresh_attempts]
