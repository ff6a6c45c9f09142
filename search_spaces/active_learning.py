"""Recommended search spaces of active_learning, one per dataset, beside a section start.

Zhao et al. 2020 (https://arxiv.org/abs/1910.01177): labels are few, and a total epsilon is shared
by the start and what near_private asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.recommended import Recommended

_CLUSTERED = {"select.by": "diverse_public"}
_ASKING = {"select.by": "near_private"}


def _space(**changes: Any) -> dict[str, Any]:
    space: dict[str, Any] = {
        "method": "active_learning",
        "select.by": {"choice": ["margin", "diverse_public", "near_private"]},
        "labels.max": {"choice": [500, 1000, 2000]},
        "select.candidates": 5000,
        "select.components": 10,
        "select.clusters": {"choice": [50, 100, 200], "when": _CLUSTERED},
        "split.pca": {"uniform": [0.2, 0.8], "when": _ASKING},
        "finetune.distill_epochs": 10,
        "finetune.epochs": {"choice": [10, 20]},
        "finetune.lr": 0.001,
        "finetune.replay": {"choice": [0.5, 1]},
    }
    return changed(space, changes)


#: Dataset name -> ``search.space`` of a spec.
SPACES: Mapping[str, Mapping[str, Any]] = {
    "digits": _space(
        labels__max={"choice": [50, 100]},
        select__candidates=300,
        select__clusters={"choice": [10, 20], "when": _CLUSTERED},
    ),
    "fashion_mnist": _space(),
    "npz": _space(),
    "image_folder": _space(),
}


def _fixed(**changes: Any) -> dict[str, Any]:
    """Return one configuration: nothing private is asked, so the start may have all of epsilon."""
    space: dict[str, Any] = {
        "method": "active_learning",
        "select.by": "margin",
        "labels.max": 1000,
        "select.candidates": 5000,
        "finetune.distill_epochs": 10,
        "finetune.epochs": 10,
        "finetune.lr": 0.001,
        "finetune.replay": 1,
    }
    return changed(space, changes)


#: Dataset name -> one configuration; the paper's selector that costs nothing and does well.
FIXED: Mapping[str, Mapping[str, Any]] = {
    "digits": _fixed(labels__max=100, select__candidates=300),
    "fashion_mnist": _fixed(),
    "npz": _fixed(),
    "image_folder": _fixed(),
}

#: Share of all records that a starter declares public: the pool.
PUBLIC: Mapping[str, float] = {
    "digits": 0.3,
    "fashion_mnist": 0.3333,
    "npz": 0.3,
    "image_folder": 0.3,
}


def _start(epsilons: str, lr: float, batch: int, length: str) -> str:
    return f"""\
start:                         # DP-SGD on the private records, once, before the search; needs
                               # accounting composed or unaccounted
  epsilons: {epsilons:<18} # the last models within each are released; trials start from one
  runs: 1                      # independent ones, for `start.run`
  hyperparameters:
    model.name: tanh_cnn
    optim.lr: {lr}
    clip.max_grad_norm: 0.1
    batch.expected: {batch}
    batch.physical: {min(batch, 256)}
    {length}
"""


_LARGE = _start("[2.2, 3.2]", 2, 1024, "train.epochs: 30")
#: Dataset name -> section ``start`` of a starter.
START: Mapping[str, str] = {
    "digits": _start("[2.0, 3.2]", 1, 128, "train.max_steps: 100"),
    "fashion_mnist": _LARGE,
    "npz": _LARGE,
    "image_folder": _LARGE,
}
#: ``trial_epsilon`` and ``study_epsilon`` of a starter: room for some trials that ask.
BUDGET = ("3.2", "10.0")

#: Why each parameter is there, for the comments of a starter spec.
WHY: Mapping[str, str] = {
    "method": "a released private model, improved on public records with bought labels",
    "start.epsilon": "which release of the start; where absent, the largest that leaves enough",
    "start.run": "which of the start's runs",
    "select.by": "whom to label: random, entropy, margin, diverse_public, near_private",
    "labels.max": "labels that a trial may buy",
    "select.uncertainty": "what makes a record uncertain",
    "select.candidates": "k: the most uncertain public records, which clusters and votes are about",
    "select.components": "p: principal components that records are compared in",
    "select.clusters": "N_cluster",
    "select.each": "N_each: labels for each cluster",
    "split.extra": "epsilon of the DP-PCA plus that of the counts, whatever the start has cost",
    "split.pca": "share of what the start leaves that goes to the DP-PCA; the rest to the counts",
    "split.rule": "tight composes all events; sum adds epsilons and deltas up, as the paper",
    "finetune.recipe": "distill, plain (the paper's, with replay 0), labels_only (nothing private)",
    "finetune.distill_epochs": "passes over the public records, taught by the start",
    "finetune.epochs": "passes over the labelled records",
    "finetune.lr": "learning rate of Adam",
    "finetune.replay": "weight of the start's opinion of other records; 0 in the paper",
    "train.repeat": "numbers the repetitions: another selection seed, other initial weights",
}

RECOMMENDED = Recommended(
    SPACES,
    WHY,
    PUBLIC,
    START,
    BUDGET,
    fixed=FIXED,
    of_public=("labels.max", "select.candidates"),
    scheduler="""\
scheduler:                     # no rungs: trials begin with most of their epsilon spent
  type: fifo                   # every trial to its end
""",
)
