"""Make the studies that later versions must open, continue and report alike.

    python tests/golden/make_studies.py

Each study goes to ``tests/golden/old_studies/NAME/`` with what readers said of it in ``readings.json``.
They are made once by a version and kept: a new version reads them as they are, and nothing is made
again unless what a study on disk means has changed on purpose (DECISIONS.md says so then).
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "helpers"))

from whole_studies import cli_here  # noqa: E402

DELTA = 1e-5
#: What is read of each study; a finished study is unchanged by it.
READERS = {
    "status": ("status", "{name}", "--root", "studies", "-f", "json"),
    "best": ("best", "{name}", "--root", "studies", "-f", "json"),
    "pareto": ("pareto", "{name}", "--root", "studies", "-f", "json"),
    "decisions": ("decisions", "{name}", "--root", "studies", "-f", "json"),
    "report": ("report", "{name}", "--root", "studies", "-f", "json"),
}
#: Files of a study that hold nothing of it: Ray's state, and the lock.
UNUSED = shutil.ignore_patterns("ray", "lock")
_SPACE = {
    "method": "dp_sgd",
    "optim.lr": {"loguniform": [0.1, 2]},
    "batch.expected": 128,
    "train.max_steps": 24,
}
_BASE = {
    "data": {
        "dataset": "digits",
        "validation": {"fraction": 0.2, "visibility": "public"},
        "test": {"fraction": 0.2, "visibility": "public"},
    },
    "report": {"every_steps": 6},
    "tracking": {"uri": None},
    "storage": {"path": "studies", "features": "features"},
}
_COMPOSED = {"accounting": "composed", "trial_epsilon": 1.0, "study_epsilon": 3.0, "delta": DELTA}
_SEARCH = {"sampler": "random", "num_trials": 4, "space": _SPACE}


def specs():
    """Return the raw spec of every golden study, by name."""
    public_data = {**_BASE["data"], "public": {"fraction": 0.2}}
    found = {
        "composed": {
            "privacy": _COMPOSED,
            "search": {**_SEARCH, "num_trials": 6},
            "scheduler": {"type": "epsilon_halving", "rungs": [0.7], "reduction_factor": 2},
        },
        "interrupted": {"privacy": _COMPOSED, "search": _SEARCH},
        "select": {
            "privacy": {
                "accounting": "select", "trial_epsilon": 0.5, "delta": DELTA,
                "selection": {"mean": 3, "shape": 1},
            },
            "search": {"sampler": "random", "space": _SPACE},
        },
        "public": {
            "data": public_data,
            "privacy": {"accounting": "public", "trial_epsilon": 1.0, "delta": DELTA},
            "search": {**_SEARCH, "num_trials": 3},
        },
        "unaccounted": {
            "privacy": {"accounting": "unaccounted", "trial_epsilon": 1.0, "delta": DELTA},
            "search": {
                **_SEARCH, "sampler": "grid",
                "space": {
                    **_SPACE,
                    "method": {"choice": ["dp_sgd", "non_private"]},
                    "optim.lr": {"choice": [0.5, 1.0]},
                },
            },
        },
        "features": {
            "privacy": _COMPOSED,
            "search": {
                "sampler": "grid", "num_trials": 2,
                "space": {
                    "method": "scatternet", "features.name": "scatternet", "batch.expected": 128,
                    "normalize.kind": {"choice": ["group", "private_data"]}, "train.max_steps": 24,
                },
            },
        },
        "labels": {
            "data": public_data,
            "privacy": {**_COMPOSED, "trial_epsilon": 2.5, "study_epsilon": 6.0},
            "start": {
                "epsilons": [1.0, 2.0],
                "hyperparameters": {
                    "model.name": "tanh_cnn", "train.max_steps": 20, "optim.lr": 0.5,
                },
            },
            "search": {
                "sampler": "grid", "num_trials": 2,
                "space": {
                    "method": "active_learning", "start.epsilon": 2.0, "labels.max": 20,
                    "select.by": {"choice": ["margin", "near_private"]},
                    "select.candidates": 60,
                    "finetune.distill_epochs": 1, "finetune.epochs": 1,
                },
            },
        },
    }  # fmt: skip
    return {name: {**_BASE, "name": name, **own} for name, own in found.items()}


def readings(name):
    """Return what every reader says of a study below ``studies``, by verb."""
    said = {}
    for verb, words in READERS.items():
        done = cli_here(*(word.format(name=name) for word in words))
        text = done.stdout.replace(f"{Path.cwd()}/", "")
        said[verb] = json.loads(text) if done.returncode == 0 else done.returncode
    return said


def make(name, raw):
    """Run one study in the current directory; ``interrupted`` is left in its third trial."""
    from dpsweep.spec.study import SweepSpec
    from dpsweep.study.study import Observer
    from dpsweep.sweep import run_sweep

    class Interrupter(Observer):
        is_done = False

        def on_view(self, view):
            if 2 in view.trials and view.trials[2].step >= 12 and not self.is_done:
                self.is_done = True
                signal.raise_signal(signal.SIGINT)

    observer = Interrupter() if name == "interrupted" else Observer()
    try:
        return run_sweep(SweepSpec(**raw), observer=observer).state
    except KeyboardInterrupt:
        return "interrupted"


def build():
    """Make every study and copy it here, without what only a running one needs."""
    import ray

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, raw in sorted(specs().items(), key=lambda item: item[0] != "select"):
            if name != "select" and not ray.is_initialized():  # select has a Ray of its own
                ray.init(address="local", include_dashboard=False, num_cpus=2)
            print(name, make(name, raw), file=sys.stderr)
            target = HERE / "old_studies" / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path("studies", name), target, ignore=UNUSED)
            (target / "readings.json").write_text(json.dumps(readings(name), indent=1) + "\n")
        ray.shutdown()


if __name__ == "__main__":
    build()
