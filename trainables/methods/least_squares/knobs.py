"""Hyperparameters of least squares, and the releases that they lead to. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.features.choice import FEATURE_HYPERPARAMETERS, with_defaults
from dpsweep.trainables.methods.hyperparameters import TRAIN_HYPERPARAMETERS
from dpsweep.trainables.methods.scatternet.normalize import NORMALIZE_HYPERPARAMETERS

CLOSED, STEPS = "closed_form", "feature_covariance"
#: Phases of a plan besides the training steps.
TARGETS, COVARIANCE = "targets", "covariance"
#: Variant -> (share of the covariance, ridge over noise), where a configuration names none.
SHARES: Mapping[str, float] = {CLOSED: 0.5, STEPS: 0.2}
RIDGE_SCALES: Mapping[str, float] = {CLOSED: 7.0, STEPS: 1.0}
#: Features that a covariance is formed of, at most: 800 MB each for it and for its eigenvectors.
MOST_FEATURES = 10_000

FEATURES = (
    *with_defaults(FEATURE_HYPERPARAMETERS, {"features.name": "efficientnet_lite0"}),
    Hyperparameter(
        "normalize.kind",
        "str",
        None,
        "What is done to a record's features before they are divided by their norm: group (see "
        "normalize.groups) or none. Where absent: group for scatternet, none for the rest.",
        choices=("group", "none"),
        optional=True,
    ),
    *(p for p in NORMALIZE_HYPERPARAMETERS if p.name == "normalize.groups"),
)
#: Those without a meaning for the closed form.
OF_STEPS = (
    Hyperparameter(
        "optim.lr",
        "float",
        10.0,
        "Learning rate of feature_covariance: a step is the rate times the inverse of the "
        "covariance times a noisy sum of gradients.",
        low=0,
        high=1e6,
        open_low=True,
    ),
    Hyperparameter(
        "clip.max_grad_norm",
        "float",
        1.0,
        "L2 bound on one example's gradient, of feature_covariance; features have norm 1.",
        low=1e-6,
        high=1e6,
    ),
    Hyperparameter(
        "train.max_steps",
        "int",
        10,
        "Full-batch steps of feature_covariance.",
        low=1,
        high=1e9,
        changes_privacy=True,
    ),
)
LEAST_SQUARES = (
    Hyperparameter(
        "least_squares.variant",
        "str",
        CLOSED,
        f"{CLOSED}: ridge regression by two sums (DP-LS); {STEPS}: steps of logistic regression, "
        "divided by the covariance (DP-FC).",
        choices=(CLOSED, STEPS),
        changes_privacy=True,
    ),
    Hyperparameter(
        "least_squares.covariance_share",
        "float",
        None,
        "Share of the privacy that the covariance gets: its noise is sigma / sqrt(share). Where "
        f"absent, {SHARES[CLOSED]:g} for {CLOSED} and {SHARES[STEPS]:g} for {STEPS}.",
        low=0.01,
        high=0.99,
        optional=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "least_squares.ridge_scale",
        "float",
        None,
        "Ridge over the noise that it holds down: that of the targets, or of all steps together. "
        f"Where absent, {RIDGE_SCALES[CLOSED]:g} for {CLOSED} and {RIDGE_SCALES[STEPS]:g} for "
        f"{STEPS}.",
        low=0,
        high=1e6,
        open_low=True,
        optional=True,
    ),
    *OF_STEPS,
    Hyperparameter(
        "noise.noise_multiplier",
        "float",
        None,
        "Noise multiplier sigma of all releases together; where absent it is calibrated.",
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
        "Epsilon that the noise is calibrated to; where absent, privacy.trial_epsilon.",
        low=0,
        open_low=True,
        optional=True,
        changes_privacy=True,
    ),
)
#: All of them, in the order in which they are shown.
LEAST_SQUARES_HYPERPARAMETERS = (
    *FEATURES,
    *LEAST_SQUARES,
    *(p for p in TRAIN_HYPERPARAMETERS if p.name in ("train.num_private", "train.repeat")),
)


def releases(hparams: Mapping[str, Any], noise_multiplier: float) -> Plan:
    """Return the releases of a configuration, which together have a noise multiplier.

    Gaussians of multipliers s_k on the same records are together one of multiplier
    (sum_k 1 / s_k^2)^(-1/2). The covariance gets the share w of 1 / sigma^2; of the rest, the
    targets get all, or each of the T steps its T-th part:

        s = sigma / sqrt(w),   sigma / sqrt(1 - w)   or   sigma sqrt(T / (1 - w)).

    The closed form releases its targets first: what is kept between the two is small, and a head
    already, that of an infinite ridge. Steps need the covariance before.
    """
    share = _of_variant(hparams, "least_squares.covariance_share", SHARES)
    covariance = EventRun(Gaussian(noise_multiplier / math.sqrt(share)), phase=COVARIANCE)
    if hparams["least_squares.variant"] == CLOSED:
        targets = Gaussian(noise_multiplier / math.sqrt(1 - share))
        return Plan((EventRun(targets, phase=TARGETS), covariance))
    steps = hparams["train.max_steps"]
    step = Gaussian(noise_multiplier * math.sqrt(steps / (1 - share)))
    return Plan((covariance, EventRun(step, count=steps)))


def ridge_of(hparams: Mapping[str, Any], noises: Sequence[float]) -> float:
    """Return the ridge that a configuration has: its scale times the noise that it holds down.

    Along a direction in which the covariance is 0, weights are what the noise of the targets, or of
    all steps, made of them, over the ridge. A record of norm 1 that lies there gets outputs with

        standard deviation   s / ridge   or   lr sqrt(sum_k s_k^2) / ridge,

    whatever the number of features, so the ridge scale is one over that. Outputs of the closed form
    are estimates of 0 and 1, and logits are several units apart, hence the two defaults. They were
    read off digits and Fashion-MNIST at epsilon .1 to 5: 5 to 10 was within 1.5 points of the best
    scale of the closed form with 64, 1,280 and 3,969 features, and 1 was near the best of steps
    with 64 and 1,280.

    >>> ridge_of({"least_squares.variant": CLOSED, "least_squares.ridge_scale": None}, [2.0])
    14.0

    Args:
        hparams: Every hyperparameter with its value.
        noises: Standard deviations of the noise of the targets, or of every step.
    """
    scale = _of_variant(hparams, "least_squares.ridge_scale", RIDGE_SCALES)
    rate = 1.0 if hparams["least_squares.variant"] == CLOSED else hparams["optim.lr"]
    return float(scale * rate * math.hypot(*noises))


def _of_variant(hparams: Mapping[str, Any], name: str, defaults: Mapping[str, float]) -> float:
    value = hparams[name]
    return defaults[hparams["least_squares.variant"]] if value is None else float(value)
