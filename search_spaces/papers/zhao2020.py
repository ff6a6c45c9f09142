"""Presets of Zhao et al. 2020, active learning of private models: figures 1 to 5.

https://arxiv.org/abs/1910.01177. All selectors start from releases of the same private runs, so
that they can be compared run by run at one total epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpsweep.search_spaces.active_learning import WHY
from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.presets import Preset

SOURCE = "Zhao et al. 2020, https://arxiv.org/abs/1910.01177."
REPEATS = {"choice": [0, 1, 2]}
_ALL = ["random", "entropy", "margin", "diverse_public", "near_private"]

_WHY_NON_PRIVATE = {
    "method": "no clipping, no noise: no privacy",
    "model.name": "the network of the other studies",
    "optim.momentum": "of SGD",
    "optim.lr": "learning rate",
    "batch.expected": "expected batch size",
    "train.epochs": "expected passes over the private records",
    "train.repeat": "numbers the repetitions: other initial weights and batches",
}

SETTING = (
    "Private: 30,000 images of Fashion-MNIST, on which the tanh CNN of the TensorFlow Privacy "
    "tutorial learns by DP-SGD to epsilon 3.2, with a release at 2.2. Public: 20,000 others, whose "
    "labels are unknown until they are bought. near_private starts at 2.2 and spends the rest on "
    "its two questions; the others start at 3.2. The paper uses MNIST and SVHN, and trains the "
    "released network on the labels; here a fresh one is taught by it first, since finetuning it "
    "in place hardly helps. Its own finetuning is finetune.recipe: plain with finetune.replay: 0, "
    "its own voters are select.voters: top_k, and its own sum of epsilons is split.rule: sum. It "
    "has five runs and up to 10,000 labels."
)
_DATA = """\
  dataset: fashion_mnist       # 60000 grey 28x28 images and a test part of 10000
  max_private: 30000           # all that is left is 34,000
  validation:                  # what configurations are compared on
    fraction: 0.1
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {visibility: public}   # scored once, at the end of a trial
"""
_PUBLIC = "  public: {fraction: 0.3333}   # 19,998 records: the pool\n"
_POLLUTED = """\
  public:                      # the pool: 10,002 records of the task, and others
    fraction: 0.1667
    pollution: {records: 5000} # digits, and images of noise
"""


def start_section(runs: int, epsilons: str = "[2.2, 3.2]") -> str:
    """Return the section ``start``: so many independent runs; none leaves the network alone."""
    if not runs:
        return """\
  runs: 0                      # none is trained: only what the network is
  hyperparameters: {model.name: tanh_cnn}
"""
    return f"""\
  epsilons: {epsilons:<19}# the last models within each are released
  runs: {runs:<23}# independent ones
  hyperparameters:
    model.name: tanh_cnn
    optim.lr: 2
    optim.momentum: 0.9
    clip.max_grad_norm: 0.1
    batch.expected: 1024
    batch.physical: 256
    train.epochs: 30
"""


def space_of_study(**changes: Any) -> dict[str, Any]:
    """Return the space of one study; names are written with ``__``, None leaves one out."""
    space: dict[str, Any] = {
        "method": "active_learning",
        "start.run": REPEATS,
        "train.repeat": REPEATS,
        "select.by": {"choice": _ALL},
        "labels.max": {"choice": [500, 1000, 4000]},
        "select.candidates": 5000,
        "select.components": 10,
        "select.clusters": {"choice": [100], "when": {"select.by": "diverse_public"}},
        "finetune.distill_epochs": 10,
        "finetune.epochs": 20,
        "finetune.lr": 0.001,
        "finetune.replay": 1,
    }
    return changed(space, changes)


def _preset(
    title: str,
    about: str,
    by: str,
    space: Mapping[str, Any],
    *,
    start: str,
    data: str = _DATA + _PUBLIC,
) -> Preset:
    return Preset(
        title=title,
        source=SOURCE,
        about=(about, SETTING),
        data=data,
        start=start,
        space=space,
        why=WHY,
        epsilon=3.2,
        points=1,
        then=(f"dpsweep report {{name}} --by {by} --over start.run,train.repeat",),
    )


PRESETS: Mapping[str, Preset] = {
    "selectors": _preset(
        "Accuracy against the number of labels, for each selector: figures 1 and 2.",
        "Three private runs, three selections from each.",
        "select.by,labels.max",
        space_of_study(),
        start=start_section(3),
    ),
    "public_only": _preset(
        "The labels alone, without any private model: what belongs beside every figure.",
        "A fresh network learns 500, 1,000 or 4,000 random labels. No private record is read, and "
        "no epsilon is spent.",
        "labels.max",
        space_of_study(
            start__run=None,
            train__repeat={"choice": list(range(9))},
            select__by="random",
            select__candidates=None,
            select__components=None,
            select__clusters=None,
            finetune__recipe="labels_only",
            finetune__distill_epochs=None,
            finetune__replay=None,
            finetune__epochs=60,
        ),
        start=start_section(0),
    ),
    "non_private": replace(
        _preset(
            "The network without noise or clipping, on the same private records: an upper bound.",
            "It learns the 30,000 private records as usual, and buys no labels.",
            "optim.lr",
            {
                "method": "non_private",
                "model.name": "tanh_cnn",
                "optim.momentum": 0.9,
                "optim.lr": {"choice": [0.03, 0.1, 0.3]},
                "batch.expected": 256,
                "train.epochs": 10,
                "train.repeat": REPEATS,
            },
            start="",
        ),
        why=_WHY_NON_PRIVATE,
        is_private=False,
        then=("dpsweep report {name} --over train.repeat",),
    ),
    "clusters": _preset(
        "Number of clusters against labels for each of them: figure 4a.",
        "The paper sees more labels help, and no strong effect of how they are spread; it has 100 "
        "to 500 clusters and a start at 2.2, as zhao2020/clusters_paper has; here 50 to 200 and "
        "one at 3.2.",
        "select.clusters,select.each",
        space_of_study(
            start__run=0,
            select__by="diverse_public",
            labels__max=4000,
            select__clusters={"choice": [50, 100, 200]},
            select__each={"choice": [5, 10, 20]},
        ),
        start=start_section(1),
    ),
    "clusters_paper": replace(
        _preset(
            "Number of clusters against labels for each of them, at figure 4a's own ranges.",
            "100 to 500 clusters with 5 to 20 labels each: 500 to 10,000 labels, all chosen among "
            "the 10,000 most uncertain of the pool. All trials start at 2.2, as in the paper, and "
            "cost no more. Three selections from each of three private runs.",
            "select.clusters,select.each",
            space_of_study(
                start__epsilon=2.2,
                select__by="diverse_public",
                labels__max=10_000,
                select__candidates=10_000,
                select__clusters={"choice": [100, 200, 300, 400, 500]},
                select__each={"choice": [5, 10, 20]},
            ),
            start=start_section(3, "[2.2]"),
        ),
        epsilon=2.2,
    ),
    "extra_cost": replace(
        _preset(
            "Where near_private starts, at a fixed extra epsilon of 1.0: figure 5a.",
            "The PCA and the counts cost 0.5 each, whatever the start has cost, so that a trial "
            "costs its start and at most 1.0 more: one line per number of labels over the "
            "checkpoints of one training. The paper finds that 1,000 labels are hardly worth 1.0 "
            "at a late checkpoint, and that 4,000 and more are. Its horizontal axis is the epoch; "
            "here it is the epsilon that was spent by then (its figure 5b).",
            "labels.max,start.epsilon",
            space_of_study(
                start__run=0,
                start__epsilon={"choice": [1.2, 1.7, 2.2, 2.7, 3.2]},
                select__by="near_private",
                labels__max={"choice": [1000, 2000, 4000, 10_000]},
                select__candidates=10_000,
                select__clusters=None,
                split__extra=1.0,
                split__pca=0.5,
            ),
            start=start_section(1, "[1.2, 1.7, 2.2, 2.7, 3.2]"),
        ),
        epsilon=4.2,
    ),
    "split": _preset(
        "Where near_private starts, and how it splits what is left of 3.2: figure 5c, in kind.",
        "The paper finds a start in the middle best at a fixed total, which is 5.0 there. Its 5a, "
        "a fixed extra of 1.0 with more and more labels, is zhao2020/extra_cost.",
        "start.epsilon,split.pca",
        space_of_study(
            start__run=0,
            start__epsilon={"choice": [1.2, 1.7, 2.2, 2.7]},
            select__by="near_private",
            labels__max=1000,
            select__clusters=None,
            split__pca={"choice": [0.2, 0.5, 0.8]},
        ),
        start=start_section(1, "[1.2, 1.7, 2.2, 2.7]"),
    ),
    "pollution": _preset(
        "A pool with records that do not belong to the task: figure 3.",
        "A third of the pool is digits and noise; in the paper a fifth of SVHN's is CIFAR-10. "
        "MLflow has the share of labels that they got, `public/polluted_share`. The paper finds "
        "near_private ahead here.",
        "select.by",
        space_of_study(labels__max=1000),
        start=start_section(3),
        data=_DATA + _POLLUTED,
    ),
}
