"""Which network, from which weights, and how images reach them: in [0, 1] or normalised.

Published weights bring their normalisation. A file says nothing of it, so whoever names the file
says it: ``model.normalize``. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.networks.pretrained.weights import PUBLISHED, WORDS

_OWN = "PACKAGE.MODULE:FUNCTION"


def _weights_in_words(checkpoint: str) -> str:
    if checkpoint == "pretrain":
        return "weights trained on public records"
    return "published weights" if checkpoint == PUBLISHED else f"weights {checkpoint}"


NORMALIZE = Hyperparameter(
    "model.normalize",
    "str",
    None,
    "Images become RGB and are normalised in the network, as weights in a file may want it: "
    "imagenet (mean and deviation of ImageNet), timm (what timm says of the network) or figures, "
    "as 0.5/0.25. Where absent, they stay in [0, 1], but for published weights, which bring their "
    "own.",
    choices=("imagenet", "timm", "MEAN/STD"),
    form=r"[-+0-9.,eE ]+/[-+0-9.,eE ]+",
    optional=True,
)
OPTIONS = Hyperparameter(
    "model.options",
    "str",
    None,
    "Further arguments of timm's network, as {act_layer: gelu}; see timm.create_model.",
    choices=("{NAME: VALUE}",),
    form=r"(?s)\{.*\}",
    optional=True,
)
STEM = Hyperparameter(
    "model.stem",
    "str",
    None,
    "First layers of a ResNet of timm's: cifar, one convolution of 3 x 3 with stride 1 and no "
    "pooling, as images of 32 pixels want it; where absent, timm's own.",
    choices=("cifar",),
    optional=True,
)
STANDARDIZE = Hyperparameter(
    "model.weight_standardization",
    "bool",
    False,
    "Weights of convolutions are standardised before they are used: mean 0 and one size for each "
    "output, times a gain that trains. For weights from scratch, or a file of such a network.",
)
PRECISION = Hyperparameter(
    "model.precision",
    "str",
    "float32",
    "In what a network computes forwards and backwards: bfloat16 is faster on GPUs that have it "
    "and refused there for products over positions, as of transformers. Gradients of examples, "
    "norms, sums, noise and weights stay float32 or better, and so does evaluation; no effect on "
    "plan or epsilon.",
    choices=("float32", "bfloat16"),
)
#: Those of a network that later versions added: older records have none.
ADDED = (NORMALIZE, STANDARDIZE, OPTIONS, STEM)
#: What ``build_model`` calls a hyperparameter, if not by the end of its name.
_ARGUMENTS = {STANDARDIZE.name: "standardize"}
MODEL_HYPERPARAMETERS = (
    Hyperparameter(
        "model.name",
        "str",
        "linear",
        "Network: linear, tanh_cnn, tanh_cnn_deep, tanh_cnn_small, small_resnet, timm/NAME, "
        "text/DIRECTORY (transformers), or your own, PACKAGE.MODULE:FUNCTION.",
        choices=(
            "linear",
            "tanh_cnn",
            "tanh_cnn_deep",
            "tanh_cnn_small",
            "small_resnet",
            "timm/",
            "text/",
            _OWN,
        ),
    ),
    Hyperparameter(
        "model.norm",
        "str",
        "refuse",
        "What becomes of BatchNorm: refuse it, rebuild it as GroupNorm, or freeze its statistics.",
        choices=("refuse", "group", "frozen"),
    ),
    Hyperparameter(
        "model.checkpoint",
        "str",
        None,
        "Initial weights, which must be public: a file (a torch or safetensors state dict), "
        "published: timm's own, or pretrain: those of the spec's section pretrain.",
        optional=True,
        uses_public=_weights_in_words,
    ),
    Hyperparameter(
        "model.image_size",
        "int",
        None,
        "Images are stretched to a square of this many pixels in the network, without a crop; "
        "where absent, they stay as they are.",
        low=1,
        optional=True,
    ),
    *ADDED,
    PRECISION,
)


def front_of(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``build_model`` gets of a configuration besides name, seed and weights.

    Args:
        hparams: Values of a configuration; older records have fewer.
    """
    return {
        "norm": hparams["model.norm"],
        "image_size": hparams["model.image_size"],
        **{_argument(knob.name): hparams.get(knob.name, knob.default) for knob in ADDED},
    }


def _argument(name: str) -> str:
    return _ARGUMENTS.get(name, name.removeprefix("model."))


def networks_to_try(possible: Callable[[str], Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield each way in which a space can build one network, as arguments of ``build_model``.

    A file of weights stands for none: it is tried elsewhere.

    Args:
        possible: Returns the values that a space can give to a hyperparameter.
    """
    starts = {c for c in possible("model.checkpoint") if c == PUBLISHED} or {None}
    names = ["model.norm", "model.image_size", *(knob.name for knob in ADDED)]
    for start, *values in product(starts, *(possible(name) for name in names)):
        front = front_of(dict(zip(names, values)))
        if start == PUBLISHED and (front["normalize"] is not None or front["standardize"]):
            continue  # refused as a configuration
        yield {**front, "checkpoint": start}


def refuse_twice(hparams: Mapping[str, Any]) -> None:
    """Refuse a configuration that normalises images before published weights.

    Raises:
        InfeasibleBudgetError: It does.
    """
    how = hparams.get(NORMALIZE.name)
    if how is not None and hparams["model.checkpoint"] == PUBLISHED:
        raise InfeasibleBudgetError(
            f"{NORMALIZE.name}={how} with model.checkpoint={PUBLISHED}",
            because="published weights bring a normalisation of their own",
            fix=f"add `when: {{model.checkpoint: FILE}}` to {NORMALIZE.name}, or leave it out",
        )


def refuse_standardized(hparams: Mapping[str, Any]) -> None:
    """Refuse a configuration that standardises weights which are none, or were trained otherwise.

    Raises:
        InfeasibleBudgetError: It does.
    """
    if not hparams.get(STANDARDIZE.name):
        return
    wrong = _cannot_standardize(hparams["model.name"], hparams["model.checkpoint"])
    if wrong:
        raise InfeasibleBudgetError(
            f"{STANDARDIZE.name}=true with {wrong}", fix=f"set {STANDARDIZE.name}: false there"
        )


def refuse_rounded(hparams: Mapping[str, Any]) -> None:
    """Refuse a configuration that rounds a linear model, whose gradients have a closed form.

    Raises:
        InfeasibleBudgetError: It does.
    """
    precision = hparams.get(PRECISION.name, PRECISION.default)
    if precision != PRECISION.default and hparams["model.name"] == "linear":
        raise InfeasibleBudgetError(
            f"{PRECISION.name}={precision} with model.name=linear, {_CLOSED}",
            fix=f"set {PRECISION.name}: {PRECISION.default} there",
        )


_CLOSED = "which has gradients in closed form and no use for it"


def _cannot_standardize(name: str, checkpoint: str | None) -> str:
    """Say why the weights of a network are not to be standardised; empty: they may be."""
    if name == "linear" or name.startswith("text/"):
        return f"model.name={name}, which has no convolution"
    if checkpoint in WORDS:
        return f"model.checkpoint={checkpoint}, whose weights were trained without it"
    return ""


def weight_problems(possible: Callable[[str], Sequence[Any]]) -> list[Mistake]:
    """Return the weights that no configuration of a space can have, as ``preflight`` does.

    Args:
        possible: From the name of a hyperparameter to what it can be.
    """
    checkpoints, problems = possible("model.checkpoint"), []
    if list(checkpoints) == [PUBLISHED]:
        wrong = "comes on top of that of published weights"
        problems += [
            Mistake(NORMALIZE.name, f"{how} {wrong}", "remove it")
            for how in possible(NORMALIZE.name)
            if how is not None
        ]
    if any(possible(STANDARDIZE.name)):
        names = possible("model.name")
        reasons = [_cannot_standardize(name, file) for name in names for file in checkpoints]
        if all(reasons):
            problems.append(Mistake(STANDARDIZE.name, f"true with {reasons[0]}", "leave it out"))
    rounded = [value for value in possible(PRECISION.name) if value != PRECISION.default]
    if rounded and set(possible("model.name")) == {"linear"}:
        wrong = f"{rounded[0]} with model.name=linear, {_CLOSED}"
        problems.append(Mistake(PRECISION.name, wrong, "leave it out"))
    for path in checkpoints:
        if path in (None, *WORDS):
            continue
        if not Path(path).is_file():
            problems.append(Mistake("model.checkpoint", f"no file {path}", "give an existing file"))
        elif not Path(path).is_absolute():
            wrong = f"{path} is a relative path, and trials run in directories of their own"
            problems.append(Mistake("model.checkpoint", wrong, f"write {Path(path).resolve()}"))
    return problems


def random_notes(
    possible: Callable[[str], Sequence[Any]], part: str, *, whole: Collection[str]
) -> list[str]:
    """Return a note if weights that never train may be random.

    Args:
        possible: As for ``weight_problems``.
        part: Hyperparameter that says what trains.
        whole: Its values under which everything does.
    """
    names = [n for n in possible("model.name") if n != "linear" and not n.startswith("text/")]
    frozen = [value for value in possible(part) if value not in whole]
    if not names or not frozen or None not in possible("model.checkpoint"):
        return []
    return [
        f"without model.checkpoint the weights of {', '.join(names)} that {part}: "
        f"{', '.join(frozen)} never trains are random; published, pretrain or a file gives "
        "it public ones"
    ]


def text_problems(checkpoints: Sequence[str | None]) -> list[Mistake]:
    """Return a mistake if a network on text, which has weights of its own, may get others."""
    files = [file for file in checkpoints if file is not None]
    if not files:
        return []
    wrong = f"{files[0]} has no meaning for text: the directory holds the weights"
    return [Mistake("model.checkpoint", wrong, "leave it out")]


def scale_notes(
    names: Sequence[str], checkpoints: Sequence[str | None], ways: Sequence[str | None]
) -> list[str]:
    """Return a note if weights of a file may get other images than they were trained on.

    Args:
        names: What ``model.name`` can be.
        checkpoints: What ``model.checkpoint`` can be.
        ways: What ``model.normalize`` can be.
    """
    files = [file for file in checkpoints if file not in (None, *WORDS)]
    has_images = any(not name.startswith("text/") for name in names)
    if not files or not has_images or None not in ways:
        return []
    return [
        f"images reach the weights of {files[0]} as they are, in [0, 1]; weights that were trained "
        "on normalised images, as those of ImageNet are, want model.normalize: imagenet, or timm"
    ]
