"""Presets of Bu et al. 2024 with the paper's own recipe on images (appendix D.2): CIFAR, CelebA.

https://arxiv.org/abs/2210.00036: rows of tables 5, 6 and 16, and tables 14 and 15; with the biases
that section 3.4 adds to convolutions (DP-BiTFiT-Add). They read a file of yours, load ImageNet
weights from timm's hub, and want a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.bitfit import WHY as WHY_BITFIT
from dpsweep.search_spaces.papers.bu2024 import _RECIPE, _TWO_PHASE, SOURCE
from dpsweep.search_spaces.presets import Preset

_DATA = """\
  dataset: npz                 # x_train, x_test in [0, 1] or uint8; integer y_train, y_test
  path: {path:<23}# EDIT: the file; images of shape (records, 3, 32, 32)
  num_records: 50000           # of x_train
  num_classes: {classes}
  validation:                  # what configurations are compared on
    fraction: 0.1
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {{visibility: public}}   # x_test: scored once, at the end of a trial
"""
#: Learning rates of appendix D.2: of biases and of the whole network.
_BIASES, _WHOLE = 5e-3, 5e-4
_BUDGETS = {"choice": [1, 2, 4, 8]}
#: Task -> variant -> accuracy in per cent of ViT-base at epsilon 1, 2, 4, 8 (tables 14 and 15).
_ACCURACY: Mapping[str, Mapping[str, str]] = {
    "cifar10": {"two_phase": "95.2, 97.7, 97.7 and 97.6", "full": "96.8, 97.1, 97.2 and 97.4"},
    "cifar100": {"two_phase": "64.3, 77.0, 83.0 and 83.8", "full": "83.9, 85.5, 87.2 and 87.1"},
}
_RATES: Mapping[str, float] = {
    "last_layer": _BIASES,
    "bitfit": _BIASES,
    "two_phase": _BIASES,
    "full": _WHOLE,
}
_PLACES: Mapping[str, str] = {
    "last_layer": "the recipe of a row of table 5",
    "bitfit": "the recipe of a row of table 5",
    "two_phase": "1+BiTFiT of tables 14 and 15",
    "full": "the recipe of a row of table 5",
}
_WHY: Mapping[str, str] = {
    **WHY_BITFIT,
    "model.name": "86 million weights; timm/vit_large_patch16_224 is the paper's best",
    "model.checkpoint": "its ImageNet weights, from timm's hub",
    "model.image_size": "images are enlarged to this, in pixels",
    "noise.target_epsilon": "the noise is the least that stays within it",
    "batch.physical": "examples at a time, for memory; no effect on results",
    "train.epochs": "expected passes over the private records",
    "bitfit.full_lr": "learning rate of the first phase, which trains everything",
    "bitfit.full_epochs": "X: passes of the first phase",
}


def _preset(task: str, variant: str) -> Preset:
    """Return one variant on CIFAR-10 or CIFAR-100 at the paper's four budgets."""
    classes = int(task.removeprefix("cifar"))
    accuracy = _ACCURACY[task].get(variant)
    about = (
        "ViT-base with ImageNet weights, images at 224 pixels, Adam, a clipping norm of .1, three "
        "epochs of 1,000, no decay, no augmentation, as in the paper (appendix D.2), which has a "
        f"rate for ViT-large alone: {_RATES[variant]:g}. "
    )
    about += f"It reports {accuracy} % at epsilon 1, 2, 4 and 8. " if accuracy else ""
    about += (
        "It trains on all 50,000 records and converts epsilon from Renyi DP, as here; a tenth of "
        "the records is kept apart here."
    )
    more = {"bitfit.full_epochs": 1.0, "bitfit.full_lr": _WHOLE} if variant == "two_phase" else {}
    space: dict[str, Any] = {
        "method": "bitfit",
        "model.name": "timm/vit_base_patch16_224",
        "model.checkpoint": "published",
        "model.image_size": 224,
        **_RECIPE,
        "bitfit.variant": variant,
        "optim.lr": _RATES[variant],
        **more,
        "noise.target_epsilon": _BUDGETS,
        "batch.expected": 1000,
        "batch.physical": 50,
        "train.epochs": 3,
    }
    return Preset(
        title=f"DP-BiTFiT on CIFAR-{classes}, variant {variant}: {_PLACES[variant]}.",
        source=SOURCE,
        about=(about, _TWO_PHASE) if variant == "two_phase" else (about,),
        data=_DATA.format(path=f"{task}.npz", classes=classes),
        space=space,
        why=_WHY,
        epsilon=8.0,
        then=("dpsweep report {name} --by noise.target_epsilon",),
    )


_CELEBA = """\
  dataset: celeba
  path: celeba                 # EDIT: the directory of img_align_celeba/ and its two lists
{task}\
  image_size: [218, 178]       # as they are
  validation: {{visibility: exact}}  # private, and exact: no guarantee covers them
  test: {{visibility: public}}   # the authors' test part: scored once, at the end of a trial
"""
_ONE_ATTRIBUTE = """\
  task: classification
  attributes: [{name}]
"""
_ALL_ATTRIBUTES = "  task: multi_label            # all 40, each with its own accuracy\n"
#: Task -> variant -> test accuracy in per cent of ResNet18 (table 6); of all attributes the mean,
#: at the larger of two epsilons (table 16), which are taken for 3 and 8, as those of tables 12, 13.
_OF_FACES: Mapping[str, Mapping[str, str]] = {
    "smiling": {"full": "91.02", "bitfit": "88.17", "last_layer": "66.15", "bitfit_add": ""},
    "male": {"full": "95.15", "bitfit": "92.29", "last_layer": "78.70", "bitfit_add": ""},
    "multi_label": {"full": "88.38", "bitfit": "86.87", "last_layer": "83.67", "bitfit_add": ""},
}


_ON_TOP = (
    "Its BiTFiT comes on top of training the last layer (section 4.3); here both train at once. "
)


def _faces(task: str, variant: str) -> Preset:
    """Return one variant on one attribute of CelebA, or on all of them, at two budgets."""
    rate = 1e-3 if variant == "full" else 8e-3
    accuracy = _OF_FACES[task][variant]
    place = "a row of table 6" if accuracy else "DP-BiTFiT-Add of section 3.4"
    about = (
        "ResNet18 with ImageNet weights, images of 218 x 178 pixels, Adam, a clipping norm of .1, "
        "ten epochs of 500, no decay, as in the paper (appendix D.2); its rate is "
        f"{rate:g}. "
    )
    if accuracy:
        about += f"It reports {accuracy} % at delta 5e-6 and the larger of two epsilons. "
    about += _ON_TOP if variant == "bitfit" else ""
    about += (
        "Statistics of BatchNorm stay those of ImageNet here (model.norm: frozen), since a batch "
        "of private records must not set them. Images are normalised as ImageNet's here; the "
        "paper's were not."
    )
    name = "all attributes" if task == "multi_label" else task.capitalize()
    wanted = _ALL_ATTRIBUTES if task == "multi_label" else _ONE_ATTRIBUTE.format(name=name)
    return Preset(
        title=f"DP-BiTFiT on CelebA, {name}, variant {variant}: {place}.",
        source=SOURCE,
        about=(about,),
        data=_CELEBA.format(task=wanted),
        space={
            "method": "bitfit",
            "model.name": "timm/resnet18",
            "model.checkpoint": "published",
            "model.norm": "frozen",
            **_RECIPE,
            "bitfit.variant": variant,
            "optim.lr": rate,
            "noise.target_epsilon": {"choice": [3, 8]},
            "batch.expected": 500,
            "batch.physical": 50,
            "train.epochs": 10,
        },
        why={**_WHY, "model.name": "11.7 million weights; biases are of its normalisation alone"},
        epsilon=8.0,
        delta="5e-6",
        then=("dpsweep report {name} --by noise.target_epsilon",),
    )


PRESETS: Mapping[str, Preset] = {
    **{f"{variant}_{task}_vit": _preset(task, variant) for task in _ACCURACY for variant in _RATES},
    **{
        f"{variant}_celeba_{task}": _faces(task, variant)
        for task, accuracies in _OF_FACES.items()
        for variant in accuracies
    },
}
