"""Parts of AdaMix, and its hyperparameters.

Golatkar et al. 2022 (https://arxiv.org/abs/2203.11481). Loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dpsweep.foundation.errors import BadInputError
from dpsweep.spec.space.hyperparameters import Hyperparameter, Retired
from dpsweep.trainables.methods.adamix.linear_probe import SHOT_HYPERPARAMETERS
from dpsweep.trainables.methods.hyperparameters import LEAST_CLIP, with_noise_rates


class Parts(NamedTuple):
    """Which parts of AdaMix (Golatkar et al. 2022, algorithm 2) a configuration uses.

    Attributes:
        public_init: Weights start at, and are pulled towards, the public solution, not zero.
        adaptive_clip: The clipping norm is a percentile of the public gradient norms.
        projection: Noisy gradients are projected on a subspace that holds the public gradient.
        public_gradient: The public gradient is added, unclipped and without noise.
    """

    public_init: bool
    adaptive_clip: bool
    projection: bool
    public_gradient: bool


VARIANTS: Mapping[str, Parts] = {
    "adamix": Parts(True, True, True, True),
    "ngd": Parts(True, False, False, True),
    "private_public_gd": Parts(False, True, False, True),
    "public_pull": Parts(True, False, False, False),
    "fully_private": Parts(False, False, False, False),
    "only_public": Parts(True, False, False, False),
}
#: The variant that trains a private model first, and then a mixed one that is pulled towards it.
TWO_PHASES = "private_public_gd"
#: Name of a variant in older records -> its name now.
RENAMED: Mapping[str, str] = {"ppgd": "public_pull"}


def _switch(name: str, doc: str) -> Hyperparameter:
    text = f"{doc} Where absent, as adamix.variant has it."
    return Hyperparameter(f"adamix.{name}", "bool", None, text, optional=True)


ADAMIX_HYPERPARAMETERS = (
    Hyperparameter(
        "adamix.variant",
        "str",
        "adamix",
        "adamix; ngd (fixed clip, no projection), private_public_gd (the paper's PPGD: a private "
        "model, then a mixed one pulled towards it), public_pull (ngd without public gradients), "
        "fully_private (public records are trained on as if private) or only_public.",
        choices=tuple(VARIANTS),
        changes_privacy=True,
        retired=(
            Retired(
                "ppgd",
                "is called public_pull: it is a pull to the public solution at a fixed clip, and "
                "not the PPGD of the paper, which pulls to a private model and clips by public "
                "gradients and is called private_public_gd",
                "write public_pull, or private_public_gd for the paper's",
            ),
        ),
    ),
    _switch("public_init", "Start at the public solution and pull towards it, not zero."),
    _switch("adaptive_clip", "Clip to a percentile of the public gradient norms."),
    _switch("projection", "Project on a subspace that holds the public gradient."),
    _switch("public_gradient", "Add the public gradient to each step."),
    Hyperparameter(
        "adamix.private_report",
        "bool",
        False,
        "Measure what each private record spends, and membership inference; kept local.",
    ),
    Hyperparameter(
        "adamix.report_delta",
        "float",
        None,
        "Delta at which the private report states epsilons; where absent, privacy.delta.",
        low=0,
        high=0.5,
        open_low=True,
        optional=True,
    ),
)
_STEP = (
    Hyperparameter(
        "noise.noise_multiplier",
        "float",
        20.0,
        "Noise standard deviation over the clipping norm; the number of steps follows from the "
        "epsilon. Null: it is calibrated to train.max_steps.",
        low=0,
        open_low=True,
        optional=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "noise.target_epsilon",
        "float",
        None,
        "Epsilon that steps or noise are solved for; where absent, privacy.trial_epsilon.",
        low=0,
        open_low=True,
        optional=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "train.max_steps",
        "int",
        None,
        "Most full-batch steps; where absent, as many as the epsilon allows.",
        low=1,
        optional=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "optim.lr",
        "float",
        2e-3,
        "Learning rate; it multiplies the sum of the gradients, not their mean.",
        low=0,
        high=1e6,
        open_low=True,
    ),
    Hyperparameter(
        "optim.step_over_clip",
        "bool",
        True,
        "Divide each step by its clipping norm, so that one rate suits all clipping norms; free. "
        "The paper does not: false is its step.",
    ),
    Hyperparameter(
        "optim.average",
        "float",
        0.0,
        "Share of the last steps whose weights are averaged for scores and export; free.",
        low=0,
        high=1,
    ),
    Hyperparameter(
        "optim.average_weights",
        "str",
        "uniform",
        "Weights of that average: uniform; or linear, in proportion to the number of the step, "
        "which with optim.average 1 is the average of the paper's theorem 3.",
        choices=("uniform", "linear"),
    ),
    Hyperparameter(
        "regularize.weight",
        "float",
        1e-2,
        "Lambda: weight of the pull towards the public solution, or zero, beside that sum.",
        low=0,
    ),
    Hyperparameter(
        "clip.max_grad_norm",
        "float",
        0.5,
        "L2 bound on one record's gradient where the clip is not adaptive.",
        low=LEAST_CLIP,
    ),
    Hyperparameter(
        "clip.percentile",
        "float",
        90.0,
        "Percentile of the public gradient norms that is the adaptive bound.",
        low=0,
        high=100,
    ),
    Hyperparameter(
        "clip.statistic",
        "str",
        None,
        "What of the public gradients is the adaptive bound: the percentile of their norms, or the "
        "norm of their mean. Where absent, mean for private_public_gd and else percentile.",
        choices=("percentile", "mean"),
        optional=True,
    ),
    Hyperparameter(
        "clip.factor",
        "float",
        1.0,
        "What that statistic is multiplied by, before the cap.",
        low=0,
        high=1e6,
        open_low=True,
    ),
    Hyperparameter(
        "clip.cap",
        "float",
        None,
        "Upper end of the adaptive bound.",
        low=0,
        open_low=True,
        optional=True,
    ),
    Hyperparameter(
        "projection.fraction",
        "float",
        0.97,
        "Share of the feature directions that the projection keeps.",
        low=0,
        high=1,
        open_low=True,
    ),
)
#: Of the two phases of private_public_gd (Wang & Zhou 2020, https://doi.org/10.1609/aaai.v34i04.6088).
REUSE_HYPERPARAMETERS = (
    Hyperparameter(
        "reuse.first_share",
        "float",
        0.5,
        "Share of the steps of private_public_gd that train its private model; 1: all of them do, "
        "and the second phase is public.epochs steps on public records alone, which are free.",
        low=0,
        high=1,
        open_low=True,
    ),
    Hyperparameter(
        "reuse.weight",
        "float",
        1.0,
        "Lambda of the second phase of private_public_gd: weight of the pull towards the private "
        "model; regularize.weight is that of the first.",
        low=0,
    ),
)
#: Features have norm 1, so the mean norm of what enters the head is known.
STEP_HYPERPARAMETERS = with_noise_rates(_STEP, input_norm=1.0)
PUBLIC_HYPERPARAMETERS = (
    *SHOT_HYPERPARAMETERS,
    Hyperparameter(
        "public.epochs", "int", 200, "Gradient steps of the public solution, full batch.", low=0
    ),
    Hyperparameter(
        "public.lr",
        "float",
        1.0,
        "Learning rate of the public solution; a large one drives the public gradient norms, and "
        "with them the adaptive clip, towards 0. Null: the best of several, as in the paper, by "
        "the loss of left-out shots.",
        low=0,
        high=1e6,
        open_low=True,
        optional=True,
    ),
    Hyperparameter(
        "init.kind",
        "str",
        "public",
        "Public solution: trained on the shots, or text (clip/NAME only): encoded class names, "
        "which data.class_names gives where the data has numbers.",
        choices=("public", "text"),
    ),
    Hyperparameter(
        "init.prompt", "str", "a photo of a {}", "Text that is encoded, with the class for {}."
    ),
    Hyperparameter(
        "init.scale", "float", 100.0, "Norm of each class's text weights.", low=0, open_low=True
    ),
)


def refuse_rate(hparams: Mapping[str, Any]) -> None:
    """Refuse to choose the rate of the public solution where no shot can be left out.

    Raises:
        BadInputError: ``public.lr`` is null, and there is one shot of each class.
    """
    if hparams["public.lr"] is None and hparams["public.shots"] < 2:
        raise BadInputError(
            "public.lr is null, and of one shot of each class none can be left out to choose it by",
            fix="public.shots: 2, or give public.lr",
        )


def parts_of(hparams: Mapping[str, Any]) -> Parts:
    """Return what a configuration uses: the variant's parts, some switched on or off.

    >>> switched = dict.fromkeys(("adamix.public_init", "adamix.adaptive_clip"))
    >>> switched |= {"adamix.projection": False, "adamix.public_gradient": None}
    >>> tuple(parts_of({"adamix.variant": "adamix", **switched}))
    (True, True, False, True)

    Raises:
        BadInputError: ``fully_private`` is to use a public record as such.
    """
    variant = RENAMED.get(hparams["adamix.variant"], hparams["adamix.variant"])
    switches = {name: hparams[f"adamix.{name}"] for name in Parts._fields}
    parts = VARIANTS[variant]._replace(**{k: v for k, v in switches.items() if v is not None})
    if variant == "fully_private" and any(parts):
        wrong = ", ".join(f"adamix.{name}" for name, value in switches.items() if value)
        raise BadInputError(
            f"adamix.variant=fully_private uses no public record as such, but {wrong} is true",
            fix="leave it out, or choose another variant",
        )
    return parts


def first_steps(hparams: Mapping[str, Any], num_steps: int) -> int:
    """Return how many of the steps train the private model of ``private_public_gd``; else 0.

    >>> hparams = {"adamix.variant": "private_public_gd", "reuse.first_share": 0.25}
    >>> first_steps(hparams, 10), first_steps(hparams, 1)
    (2, 1)
    """
    if hparams["adamix.variant"] != TWO_PHASES:
        return 0
    return max(1, round(hparams["reuse.first_share"] * num_steps))


def clip_statistic(hparams: Mapping[str, Any]) -> str:
    """Return what of the public gradients the adaptive bound is: ``percentile`` or ``mean``.

    >>> clip_statistic({"adamix.variant": "adamix"})
    'percentile'
    """
    statistic = hparams.get("clip.statistic")
    if statistic is None:
        return "mean" if hparams["adamix.variant"] == TWO_PHASES else "percentile"
    return str(statistic)
