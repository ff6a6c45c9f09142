"""Presets of Golatkar et al. 2022 with the paper's own recipe: the six datasets of table 1.

https://arxiv.org/abs/2203.11481. They read directories of images of yours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dpsweep.search_spaces.adamix import WHY
from dpsweep.search_spaces.papers.golatkar2022 import DRAWS, RATES, SETTING, SOURCE
from dpsweep.search_spaces.presets import Preset


class Dataset(NamedTuple):
    """One of the paper's datasets.

    Attributes:
        name: As the paper calls it.
        num_records: Of its training part.
        num_classes: Its classes.
        shots: Public records of each class in the paper.
        share: Share declared public, so that each class has its shots with a chance of 95% (drawn
            blindly: the split must not look at private labels).
        errors: Test errors in per cent of table 1: paragon, only public; then fully private, PPGD
            and AdaMix at epsilon 1, and the same at 3.
    """

    name: str
    num_records: int
    num_classes: int
    shots: int
    share: float
    errors: tuple[float, ...]


DATASETS: Mapping[str, Dataset] = {
    "flowers": Dataset(
        "Flowers", 2040, 102, 2, 0.62, (12.34, 40.16, 95.12, 40.99, 39.48, 81.42, 39.22, 36.11)
    ),
    "cub": Dataset(
        "CUB-200", 5994, 200, 2, 0.3, (31.97, 64.01, 96.79, 64.20, 63.58, 81.61, 61.59, 59.15)
    ),
    "dogs": Dataset(
        "Dogs", 12_000, 120, 2, 0.1, (10.08, 16.58, 33.87, 16.42, 15.38, 15.93, 15.61, 12.72)
    ),
    "mit67": Dataset(
        "MIT-67", 5360, 67, 5, 0.18, (25.17, 43.58, 69.55, 42.02, 40.46, 42.99, 39.60, 33.03)
    ),
    "pets": Dataset(
        "Oxford Pets", 3680, 37, 5, 0.26, (7.17, 12.83, 26.02, 12.85, 11.54, 12.37, 11.15, 9.53)
    ),
    "caltech": Dataset(
        "Caltech", 15_420, 257, 5, 0.28, (14.64, 24.88, 60.72, 24.61, 23.74, 27.15, 23.71, 20.85)
    ),
}  # fmt: skip
_DATA = """\
  dataset: image_folder        # root/train/CLASS/*.jpg, and test in the place of train
  path: {path:<23}# EDIT: the directory
  num_records: {num_records:<16}# of train
  num_classes: {num_classes}
  image_size: 224
  validation:                  # what learning rates are compared on
    fraction: 0.1
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {{visibility: public}}   # scored once, at the end of a trial
  public: {{fraction: {share:<12}}} # the shots are drawn from it; the rest of it is not used
"""


def _preset(key: str, dataset: Dataset) -> Preset:
    """Return the private rows of table 1 on one dataset."""
    paragon, public, *private = dataset.errors
    at = [" / ".join(f"{error:g}" for error in private[i : i + 3]) for i in (0, 3)]
    return Preset(
        title=f"{dataset.name}: the rows of table 1, from a directory of yours.",
        source=SOURCE,
        about=(
            f"The paper reports a test error of {paragon:g} % without privacy (the paragon: "
            f"golatkar2022/{key}_paragon), {public:g} for {dataset.shots} public shots alone "
            f"(golatkar2022/{key}_only_public), and for fully private / PPGD / AdaMix {at[0]} at "
            f"epsilon 1 and {at[1]} at 3. It takes the shots of each class out of the training "
            "part and keeps all others private; here a part that is drawn blindly is declared "
            "public, large enough for the shots. 2,000 of "
            "2,048 directions are kept, as in the paper. ResNet-50 is timm's, with its ImageNet "
            "weights from the hub, or `features.checkpoint: FILE`.",
            SETTING,
        ),
        data=_DATA.format(path=key, **dataset._asdict()),
        space={
            "method": "adamix",
            "adamix.variant": {"choice": ["fully_private", "private_public_gd", "ngd", "adamix"]},
            "features.name": "timm/resnet50",
            "features.image_size": 224,
            "noise.target_epsilon": {"choice": [1, 3]},
            "noise.noise_multiplier": 20,
            "public.shots": dataset.shots,
            "public.draw": DRAWS,
            "optim.lr": RATES,
            "optim.step_over_clip": True,
            "regularize.weight": 0.01,
            "clip.max_grad_norm": 1.0,
            "projection.fraction": 0.977,
        },
        why=WHY,
        epsilon=3.0,
        accountant="pld",
        then=("dpsweep report {name} --by adamix.variant,noise.target_epsilon --over public.draw",),
    )


def _only_public(key: str, dataset: Dataset) -> Preset:
    """Return the row without private records: the few-shot solution, its rate tuned."""
    return Preset(
        title=f"{dataset.name}: the public shots alone, table 1's Only-Public.",
        source=SOURCE,
        about=(
            f"The paper reports a test error of {dataset.errors[1]:g} %. No private record is "
            "trained on, and no epsilon is spent.",
            SETTING,
        ),
        data=_DATA.format(path=key, **dataset._asdict()),
        space={
            "method": "adamix",
            "adamix.variant": "only_public",
            "features.name": "timm/resnet50",
            "features.image_size": 224,
            "public.shots": dataset.shots,
            "public.draw": DRAWS,
            "public.lr": {"choice": [1, 3, 10, 30]},
        },
        why=WHY,
        epsilon=3.0,
        accountant="pld",
        then=("dpsweep report {name} --over public.draw",),
    )


def _paragon(key: str, dataset: Dataset) -> Preset:
    """Return the same model without privacy on all records together."""
    return Preset(
        title=f"{dataset.name}: the same model without privacy, table 1's upper bound.",
        source=SOURCE,
        about=(
            f"The paper reports a test error of {dataset.errors[0]:g} %. No clipping and no noise: "
            "these trials have no finite epsilon.",
            SETTING,
        ),
        data=_DATA.format(path=key, **dataset._asdict()),
        space={
            "method": "adamix_paragon",
            "features.name": "timm/resnet50",
            "features.image_size": 224,
            "public.shots": dataset.shots,
            "public.draw": DRAWS,
            "optim.lr": {"choice": [1, 4, 16]},
            "train.max_steps": 300,
        },
        why=WHY,
        epsilon=3.0,
        accountant="pld",
        is_private=False,
        then=("dpsweep report {name} --over public.draw",),
    )


PRESETS: Mapping[str, Preset] = {
    **{key: _preset(key, dataset) for key, dataset in DATASETS.items()},
    **{f"{key}_only_public": _only_public(key, dataset) for key, dataset in DATASETS.items()},
    **{f"{key}_paragon": _paragon(key, dataset) for key, dataset in DATASETS.items()},
}
