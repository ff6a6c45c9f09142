"""Hyperparameters that methods share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dpsweep.spec.space.hyperparameters import Beside, Hyperparameter

EMA = Hyperparameter(
    "optim.ema",
    "float",
    0.0,
    "Decay of an exponential moving average of the weights, which is evaluated and exported in the "
    "place of the last ones; shorter in the first steps. 0: none.",
    low=0,
    high=0.999999,
)
#: Update rules that divide by the size of noisy gradients.
ADAMS = ("adam", "adamw", "adam_bc")
_OF_SGD, _OF_ADAMS = Beside("optim.name", ("sgd",)), Beside("optim.name", ADAMS)
#: Of ``adam_bc``, which only methods with noise have.
FLOOR = Hyperparameter(
    "optim.floor",
    "float",
    0.3,
    "Least second moment of adam_bc, once the noise is subtracted, in parts of that noise.",
    low=0,
    high=1e6,
    open_low=True,
    only_beside=Beside("optim.name", ("adam_bc",)),
)
OPTIM_HYPERPARAMETERS = (
    Hyperparameter("optim.name", "str", "sgd", "Update rule.", choices=("sgd", "adam", "adamw")),
    Hyperparameter("optim.lr", "float", 0.1, "Peak learning rate.", low=0, high=1e6, open_low=True),
    Hyperparameter(
        "optim.momentum", "float", 0.9, "Momentum of sgd.", low=0, high=0.9999, only_beside=_OF_SGD
    ),
    Hyperparameter(
        "optim.beta1",
        "float",
        0.9,
        "First moment decay of adams.",
        low=0,
        high=0.9999,
        only_beside=_OF_ADAMS,
    ),
    Hyperparameter(
        "optim.beta2",
        "float",
        0.999,
        "Second moment decay of adams.",
        low=0,
        high=0.999999,
        only_beside=_OF_ADAMS,
    ),
    Hyperparameter(
        "optim.weight_decay",
        "float",
        0.0,
        "L2 penalty on the weights; of adamw and adam_bc decoupled: times the rate, the share of a "
        "weight that a step takes away.",
        low=0,
        high=1e6,
    ),
    Hyperparameter(
        "optim.schedule",
        "str",
        "constant",
        "Learning rate after the warm-up: constant, or cosine down to zero.",
        choices=("constant", "cosine"),
    ),
    Hyperparameter(
        "optim.warmup_fraction",
        "float",
        0.0,
        "Share of the steps over which the learning rate rises linearly to its peak.",
        low=0,
        high=1,
    ),
    EMA,
)
NOISE_RATE_HYPERPARAMETERS = (
    Hyperparameter(
        "optim.noise_lr",
        "float",
        None,
        "In the place of optim.lr: the learning rate times noise multiplier times bound on a "
        "gradient, which suits every epsilon; with adams the rate itself.",
        low=0,
        high=1e9,
        open_low=True,
        optional=True,
        wins_over="optim.lr",
    ),
    Hyperparameter(
        "optim.noise_scale",
        "float",
        None,
        "In the place of optim.lr: standard deviation of the noise of all steps in one output of "
        "a linear layer, which suits every batch and length too; 5 is a start, 1 for adamix. Of "
        "sgd alone.",
        low=0,
        high=1e6,
        open_low=True,
        optional=True,
        wins_over="optim.lr",
    ),
    Hyperparameter(
        "optim.input_norm",
        "float",
        None,
        "Mean L2 norm of what enters that layer, for optim.noise_scale: a declared bound, or a "
        "mean over public records, which `public` stands for; never over private ones.",
        low=0,
        high=1e9,
        open_low=True,
        optional=True,
    ),
)
BATCH_HYPERPARAMETERS = (
    Hyperparameter(
        "batch.expected",
        "int",
        256,
        "Expected number of examples in a Poisson batch (logical size).",
        low=1,
        changes_privacy=True,
    ),
    Hyperparameter(
        "batch.sample_rate",
        "float",
        None,
        "Probability that one example enters a batch; wins over batch.expected.",
        low=0,
        high=1,
        open_low=True,
        optional=True,
        changes_privacy=True,
        wins_over="batch.expected",
    ),
    Hyperparameter(
        "batch.physical",
        "int",
        64,
        "Examples whose gradients are held in memory at once; no effect on plan or epsilon.",
        low=1,
    ),
)
TRAIN_REPEAT = Hyperparameter(
    "train.repeat",
    "int",
    0,
    "Number of a repetition: trials that differ in it alone are one configuration, run again.",
    low=0,
)
TRAIN_HYPERPARAMETERS = (
    Hyperparameter(
        "train.epochs",
        "float",
        20.0,
        "Expected passes over the private records.",
        low=0,
        high=1e6,
        open_low=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "train.max_steps",
        "int",
        None,
        "Number of optimizer steps; wins over train.epochs.",
        low=1,
        high=1e9,
        optional=True,
        changes_privacy=True,
        wins_over="train.epochs",
    ),
    Hyperparameter(
        "train.num_private",
        "int",
        None,
        "Train on this many of the declared private records, chosen without looking at them.",
        low=1,
        optional=True,
        changes_privacy=True,
    ),
    TRAIN_REPEAT,
)


def with_noise_rates(
    parameters: Iterable[Hyperparameter], *, input_norm: float | None = None
) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters of a private method: those that only noise gives a meaning, too.

    Rates that follow it stand behind ``optim.lr``, which is null where one of these is given
    (``noise_rates``); the update rules have ``adam_bc`` among them, which subtracts it.

    Args:
        parameters: With ``optim.lr`` among them.
        input_norm: Default of ``optim.input_norm``.
    """
    *rates, norm = NOISE_RATE_HYPERPARAMETERS
    wider: list[Hyperparameter] = []
    for parameter in parameters:
        if parameter.name == "optim.lr":
            own = (*rates, replace(norm, default=input_norm))
            wider += [replace(parameter, optional=True), *own]
        elif parameter.name == "optim.name":
            doc = "Update rule; adam_bc is adam that subtracts the noise from its second moment."
            wider.append(replace(parameter, doc=doc, choices=("sgd", *ADAMS)))
        elif parameter.name == "optim.beta2":
            wider += [parameter, FLOOR]
        else:
            wider.append(parameter)
    return tuple(wider)


SHAPES = ("constant", "linear", "cosine", "exponential", "step")
#: Of a bound, and of the last one relative to the first: squares of entries below 1e-20 vanish.
LEAST_CLIP, MOST_CLIP = 1e-6, 1e6
#: Word for a bound that follows a quantile (``extras.quantile``).
QUANTILE = "quantile"
#: Its factors are ``clip_rule_factors``.
CLIP_RULE = Hyperparameter(
    "clip.rule",
    "str",
    "abadi",
    "Scale of a gradient, given the bound C: abadi, min(1, C / norm); automatic (AUTO-S), "
    "C / (norm + .01); quantile: abadi's, and C follows a quantile of the norms, by noisy counts.",
    choices=("abadi", "automatic", QUANTILE),
)
_OF_QUANTILE = Beside("clip.rule", (QUANTILE,))
CLIP_HYPERPARAMETERS = (
    Hyperparameter(
        "clip.max_grad_norm",
        "float",
        1.0,
        "L2 bound on one example's gradient at the first step.",
        low=LEAST_CLIP,
        high=1e6,
    ),
    Hyperparameter(
        "clip.shape", "str", "constant", "How the bound moves over the steps.", choices=SHAPES
    ),
    Hyperparameter(
        "clip.end_ratio",
        "float",
        1.0,
        "Last bound divided by the first; no meaning for a constant shape.",
        low=LEAST_CLIP,
        high=1e6,
        only_beside=Beside("clip.shape", ("constant",), is_among=False),
    ),
    CLIP_RULE,
    Hyperparameter(
        "clip.quantile",
        "float",
        0.5,
        "Of quantile: share of the gradients of a batch whose norm the bound is to be above.",
        low=0,
        high=1,
        only_beside=_OF_QUANTILE,
    ),
    Hyperparameter(
        "clip.quantile_rate",
        "float",
        0.2,
        "Of quantile: how fast the bound moves; a share that is off by 1 moves its logarithm by "
        "this.",
        low=0,
        high=10,
        open_low=True,
        only_beside=_OF_QUANTILE,
    ),
    Hyperparameter(
        "clip.count_noise",
        "float",
        None,
        "Of quantile: standard deviation of the noise in the count, examples; where absent, a "
        "twentieth of the expected batch. What it costs is taken out of the gradients' share.",
        low=0,
        open_low=True,
        optional=True,
        only_beside=_OF_QUANTILE,
    ),
)
NOISE_HYPERPARAMETERS = (
    Hyperparameter(
        "noise.shape",
        "str",
        "constant",
        "How the noise multiplier moves over the steps.",
        choices=SHAPES,
        changes_privacy=True,
    ),
    Hyperparameter(
        "noise.end_ratio",
        "float",
        1.0,
        "Last noise multiplier divided by the first; no meaning for a constant shape.",
        low=0,
        open_low=True,
        changes_privacy=True,
        only_beside=Beside("noise.shape", ("constant",), is_among=False),
    ),
    Hyperparameter(
        "noise.prefix_factor",
        "float",
        1.0,
        "Noise multiplier of the first steps divided by that of the step after them; 1: no prefix. "
        "Learning rates that follow the noise (optim.noise_lr) keep their meaning in it.",
        low=1,
        high=1e6,
        changes_privacy=True,
    ),
    Hyperparameter(
        "noise.prefix_share",
        "float",
        0.15,
        "Share of the steps that are this prefix.",
        low=0,
        high=0.9,
        open_low=True,
        changes_privacy=True,
        only_beside=Beside("noise.prefix_factor", (1.0,), is_among=False),
    ),
    Hyperparameter(
        "noise.noise_multiplier",
        "float",
        None,
        "First noise multiplier, after a prefix; where absent it is calibrated to the budget.",
        low=0,
        open_low=True,
        optional=True,
        changes_privacy=True,
        wins_over="noise.target_epsilon",
    ),
    Hyperparameter(
        "noise.target_epsilon",
        "float",
        None,
        "Epsilon that the noise is calibrated to; where absent, privacy.trial_epsilon. "
        "noise.noise_multiplier wins over it.",
        low=0,
        open_low=True,
        optional=True,
        changes_privacy=True,
    ),
)
