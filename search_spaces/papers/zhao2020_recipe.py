"""Presets of Zhao et al. 2020 on the paper's own data: MNIST with Q-MNIST, SVHN, and its pollution.

https://arxiv.org/abs/1910.01177, sections 4.1 to 4.3. Public records come from files of yours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.active_learning import WHY
from dpsweep.search_spaces.papers.zhao2020 import SOURCE, space_of_study, start_section
from dpsweep.search_spaces.presets import Preset

_RUNS = {"choice": [0, 1, 2, 3, 4]}
_VALIDATION = """\
  validation:                  # what configurations are compared on
    fraction: 0.02
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {visibility: public}   # scored once, at the end of a trial
"""
_MNIST = """\
  dataset: mnist
  path: mnist                  # EDIT: the directory of the idx files
  public:                      # the pool: 50,000 digits of Q-MNIST, rebuilt from the lost ones
    path: qmnist.npz           # EDIT: x_train of (records, 1, 28, 28); labels as y_train
    labels: bought
"""
_SVHN = """\
  dataset: svhn
  path: svhn                   # EDIT: the directory of train_32x32.mat and test_32x32.mat
  public:                      # the pool: 531,131 easier images
    path: svhn_extra.npz       # EDIT: x_train of (records, 3, 32, 32), of extra_32x32.mat
    labels: bought
"""
_POLLUTED = """\
  dataset: svhn
  path: svhn                   # EDIT: the directory of train_32x32.mat and test_32x32.mat
  max_private: 30000
  public:                      # the pool: 40,000 records of the task, and others
    fraction: 0.546
    labels: bought
    pollution:                 # a fifth of the pool is CIFAR-10
      dataset: cifar10
      path: cifar10            # EDIT: the directory of cifar-10-batches-py
      records: 10000
"""


_ROTATIONS = """\
  objective: rotations         # of the pool: which way up an image is
  model: tanh_cnn
  epochs: 20
"""
_SPACE: Mapping[str, Any] = space_of_study(
    start__run=_RUNS,
    train__repeat=_RUNS,
    labels__max={"choice": [500, 1000, 4000, 10_000]},
    select__candidates=10_000,
)
_OURS = (
    "The network is that of the TensorFlow Privacy tutorial, five runs, up to 10,000 labels, as in "
    "the paper, which finds its rates by a search that it does not tell; these are ours of "
    "Fashion-MNIST. Here a fresh network is taught by the release first; the paper's finetuning is "
    "finetune.recipe: plain with finetune.replay: 0, its voters are select.voters: top_k, its sum "
    "of epsilons is split.rule: sum."
)


def _preset(title: str, about: str, data: str, start: str, epsilon: float, **more: Any) -> Preset:
    return Preset(
        title=title,
        source=SOURCE,
        about=(about, _OURS),
        data=data + _VALIDATION,
        start=start,
        space=_SPACE,
        why=WHY,
        epsilon=epsilon,
        then=("dpsweep report {name} --by select.by,labels.max --over start.run,train.repeat",),
        **more,
    )


PRESETS: Mapping[str, Preset] = {
    "mnist_qmnist": _preset(
        "MNIST with a pool of Q-MNIST: figure 1.",
        "near_private starts at epsilon 2.2 and spends 1.0 on its questions, the others start at "
        "3.2, where the paper's model has 97.5 %.",
        _MNIST,
        start_section(5, "[2.2, 3.2]"),
        3.2,
    ),
    "svhn": _preset(
        "SVHN with a pool of its extra images, after rotations: figure 2.",
        "The network learns which way up public images are, then privately; near_private starts at "
        "epsilon 5 (the paper's model: 73.5 %), the others at 6 (75.0 %). The paper reports up to "
        "85 %.",
        _SVHN,
        start_section(5, "[5.0, 6.0]").replace(
            "tanh_cnn\n", "tanh_cnn\n    model.checkpoint: pretrain\n"
        ),
        6.0,
        pretrain=_ROTATIONS,
    ),
    "svhn_pollution": _preset(
        "SVHN with a pool of which a fifth is CIFAR-10: figure 3.",
        "30,000 private records, 40,000 others of SVHN and 10,000 of CIFAR-10. The paper finds "
        "near_private ahead of diverse_public by over 2 points here.",
        _POLLUTED,
        start_section(5, "[5.0, 6.0]"),
        6.0,
    ),
}
