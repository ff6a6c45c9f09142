"""Presets of Bu et al. 2024, DP-BiTFiT: table 3, on public networks of this package's papers.

https://arxiv.org/abs/2210.00036. The settings are those of the presets of Luo et al. 2021, so that
both papers' methods can be compared. Learning rates are searched on one grid for all variants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.bitfit import WHY as WHY_BITFIT
from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.luo2021 import FIVE_CLASSES, Setting
from dpsweep.search_spaces.presets import Preset

SOURCE = "Bu et al. 2024, https://arxiv.org/abs/2210.00036."
_RECIPE = {
    "optim.name": "adam",
    "clip.max_grad_norm": 0.1,
}
_VARIANTS = ["last_layer", "bitfit", "two_phase", "full"]
SETTINGS: Mapping[str, Setting] = {"five_classes": FIVE_CLASSES}


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
        f"Adam and a clipping norm of .1, as in the paper (appendix D.2), {setting.length}. It "
        "finds the best learning rate of biases about ten times that of the whole network, and the "
        "accuracy of biases within a point or two of it."
    )
    return setting.about, what, recipe


def _rates(setting: Setting) -> Preset:
    """Return the search for the learning rates of all variants on one grid, at epsilon 1."""
    return Preset(
        title="DP-BiTFiT: one grid of learning rates for each variant, at epsilon 1.",
        source=SOURCE,
        about=_about(
            setting,
            "A variant whose best is at an end of the grid is to be searched again beyond it.",
        ),
        data=setting.data,
        pretrain=setting.pretrain,
        space=_space(setting, {"choice": _VARIANTS}, {"choice": [0.001, 0.003, 0.01, 0.03, 0.1]}),
        why={**WHY_BITFIT, **setting.why},
        epsilon=1.0,
        points=2,
        then=("dpsweep report {name} --by bitfit.variant",),
    )


PRESETS: Mapping[str, Preset] = {
    f"rates_{name}": _rates(setting) for name, setting in SETTINGS.items()
}
