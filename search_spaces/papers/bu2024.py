"""Presets of Bu et al. 2024, DP-BiTFiT on images: table 5 in kind, and tables 14 to 16.

https://arxiv.org/abs/2210.00036; tables 3 and 4 are about text. The settings are those of the
presets of Luo et al. 2021, so that both papers' methods can be compared. Learning rates are
searched on one grid for all variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpsweep.search_spaces.bitfit import WHY as WHY_BITFIT
from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.papers.luo2021 import FIVE_CLASSES, LITE0, REPEATS, Setting
from dpsweep.search_spaces.presets import Preset

SOURCE = "Bu et al. 2024, https://arxiv.org/abs/2210.00036."
_RECIPE = {
    "optim.name": "adam",
    "clip.max_grad_norm": 0.1,
}
_VARIANTS = ["last_layer", "bitfit", "two_phase", "full"]
#: Variant -> where the paper has it, for titles.
_PLACES: Mapping[str, str] = {
    "last_layer": "in kind a row of table 5",
    "bitfit": "in kind a row of table 5",
    "two_phase": "in kind X+BiTFiT of tables 14 to 16",
    "full": "in kind a row of table 5",
}
VIT = replace(
    FIVE_CLASSES,
    about=(
        "Public: five classes of Fashion-MNIST, on which a small vision transformer (timm's "
        "test_vit, 0.27 million weights, images enlarged to 64 pixels) learns classes and "
        "rotations. Private: the other five, 26,400 records."
    ),
    pretrain="""\
  classes: [0, 1, 5, 6, 8]     # declared public by this line
  model: timm/test_vit
  resize: 64
  objective: classes_and_rotations
  augment: true
  epochs: 20
  lr: 0.05
""",
    space={
        **FIVE_CLASSES.space,
        "model.name": "timm/test_vit",
        "model.image_size": 64,
    },
    network=("any vision transformer of timm", FIVE_CLASSES.network[1]),
    best={},
)
SETTINGS: Mapping[str, Setting] = {
    "five_classes": FIVE_CLASSES,
    "five_classes_vit": VIT,
    "lite0": LITE0,
}
#: Setting -> passes of two_phase over everything, where its one would be all that there are: 300
#: steps of 64 are a third of a pass over 54,000 records.
_FULL_EPOCHS = {"lite0": 0.1}
_TWO_PHASE = (
    "two_phase trains everything at first, then biases and the classifier; the paper's X+BiTFiT "
    "holds the classifier in the second phase (appendix E.3; bitfit.head_in_second_phase: false), "
    "so its figures are not comparable."
)
#: Setting -> variant -> the best rate found so far.
BEST: Mapping[str, Mapping[str, float]] = {
    "five_classes": {"last_layer": 0.03, "bitfit": 0.03, "two_phase": 0.03, "full": 0.003},
    "five_classes_vit": {"last_layer": 0.1, "bitfit": 0.03, "two_phase": 0.03, "full": 0.003},
    "lite0": {"last_layer": 0.003, "bitfit": 0.003, "two_phase": 0.003, "full": 0.001},
}


def _space(setting: Setting, variant: Any, lr: Any, **changes: Any) -> dict[str, Any]:
    space = {
        "method": "bitfit",
        **setting.space,
        **_RECIPE,
        "bitfit.variant": variant,
        "optim.lr": lr,
    }
    return changed(space, changes)


def _about(setting: Setting, what: str) -> tuple[str, ...]:
    """Return what the comments of every study on a setting say; ``what`` is said of its rates."""
    recipe = (
        f"Adam and a clipping norm of .1, as in the paper (appendix D.2), {setting.length}, where "
        "the paper finetunes transformers and ResNets with ImageNet weights for 3 to 10 epochs of "
        "500 or 1,000 on CIFAR-10, CIFAR-100 and CelebA. It finds the best learning "
        "rate of biases about ten times that of the whole network, and the accuracy of biases "
        "within a point or two of it."
    )
    return setting.about, what, recipe


def _rates(name: str, setting: Setting) -> Preset:
    """Return the search for the learning rates of all variants on one grid, at epsilon 1."""
    epochs = None
    if name in _FULL_EPOCHS:
        epochs = {"choice": [_FULL_EPOCHS[name]], "when": {"bitfit.variant": "two_phase"}}
    return Preset(
        title="DP-BiTFiT: one grid of learning rates for each variant, at epsilon 1.",
        source=SOURCE,
        about=_about(
            setting,
            "A variant whose best is at an end of the grid is to be searched again beyond it.",
        ),
        data=setting.data,
        pretrain=setting.pretrain,
        space=_space(
            setting,
            {"choice": _VARIANTS},
            {"choice": [0.001, 0.003, 0.01, 0.03, 0.1]},
            bitfit__full_epochs=epochs,
        ),
        why={**WHY_BITFIT, **setting.why},
        epsilon=1.0,
        points=2,
        then=("dpsweep report {name} --by bitfit.variant",),
    )


def _row(variant: str, name: str, setting: Setting) -> Preset:
    """Return one row of the table: a variant at the rate that the search found for it."""
    return Preset(
        title=f"DP-BiTFiT, variant {variant}: {_PLACES[variant]}.",
        source=SOURCE,
        about=_about(
            setting,
            f"The learning rate is the best that was found on grids like bu2024/rates_{name}, one "
            f"run of each point. {_TWO_PHASE if variant == 'two_phase' else ''}".rstrip(),
        ),
        data=setting.data,
        pretrain=setting.pretrain,
        space=_space(
            setting,
            variant,
            BEST[name][variant],
            bitfit__full_epochs=_FULL_EPOCHS.get(name) if variant == "two_phase" else None,
            train__repeat=REPEATS,
        ),
        why={**WHY_BITFIT, **setting.why},
        epsilon=1.0,
        points=1,
        then=("dpsweep report {name} --over train.repeat",),
    )


PRESETS: Mapping[str, Preset] = {
    **{f"rates_{name}": _rates(name, setting) for name, setting in SETTINGS.items()},
    **{
        f"{variant}_{name}": _row(variant, name, setting)
        for name, setting in SETTINGS.items()
        for variant in BEST.get(name, ())
    },
}
