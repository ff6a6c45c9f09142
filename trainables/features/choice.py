"""The frozen features a configuration trains on, as hyperparameters; shared by methods on features.

Loads no torch, so that specs can be checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import product
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import Mistake, ModelError, SweepError
from dpsweep.foundation.registry import package_of
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.features.spec import EXTRACTOR_GROUP, EXTRACTORS, FeatureSpec
from dpsweep.trainables.networks.pretrained.backbones import backbone_settings

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import DatasetInfo

#: The scattering network of Oyallon & Mallat 2015 with their defaults, as Tramer & Boneh 2021
#: (https://arxiv.org/abs/2011.11660, appendix C.1) use it.
SCATTERING = {"depth": 2, "angles": 8}

#: Features that no weights were learned for.
_UNLEARNED = ("none", "scatternet")

FEATURE_HYPERPARAMETERS = (
    Hyperparameter(
        "features.name",
        "str",
        "scatternet",
        "Frozen features: scatternet, none (the raw records), efficientnet_lite0, timm/NAME or "
        "clip/NAME, or the extractor of an installed package.",
        choices=("scatternet", "none", "efficientnet_lite0", "timm/", "clip/"),
        group=EXTRACTOR_GROUP,
        uses_public=lambda name: "" if name in _UNLEARNED else f"weights of {name}",
    ),
    Hyperparameter(
        "features.checkpoint",
        "str",
        None,
        "File with the weights of timm/NAME; it must be public. Other networks have their own.",
        optional=True,
    ),
    Hyperparameter(
        "features.image_size",
        "int",
        None,
        "Images are stretched to a square of this many pixels for a pretrained network, without a "
        "crop; where absent, its own size. No meaning for scatternet and none.",
        low=8,
        optional=True,
    ),
    Hyperparameter(
        "features.dtype",
        "str",
        "float32",
        "How features are stored: float16 takes half the space and rounds each value once.",
        choices=("float32", "float16"),
    ),
)


def with_defaults(
    parameters: Sequence[Hyperparameter], defaults: Mapping[str, Any]
) -> tuple[Hyperparameter, ...]:
    """Return the same hyperparameters, some with another default.

    >>> changed = with_defaults(FEATURE_HYPERPARAMETERS, {"features.name": "none"})
    >>> changed[0].default, changed[3].default
    ('none', 'float32')
    """
    unknown = set(defaults) - {parameter.name for parameter in parameters}
    assert not unknown, unknown
    return tuple(
        replace(parameter, default=defaults[parameter.name])
        if parameter.name in defaults
        else parameter
        for parameter in parameters
    )


def feature_spec(hparams: Mapping[str, Any], info: DatasetInfo, *, norm: str) -> FeatureSpec:
    """Return the features that a configuration names.

    Args:
        hparams: Values of ``FEATURE_HYPERPARAMETERS``.
        info: Facts of the raw data; no feature depends on more than the record itself.
        norm: ``none``, ``l2`` or ``group:COUNT``, applied to each record alone and stored.
    Returns:
        A spec whose settings determine the features; weights are named by their SHA-256.
    Raises:
        BadInputError: Weights are missing or not the expected ones; says how to get them.

    >>> hparams = {"features.name": "none", "features.dtype": "float32"}
    >>> feature_spec(hparams, None, norm="l2")
    FeatureSpec(extractor='identity', settings=(('norm', 'l2'),), dtype='float32')
    """
    name, dtype = hparams["features.name"], hparams["features.dtype"]
    if name == "none":
        return FeatureSpec.of("identity", dtype=dtype, norm=norm)
    if name == "scatternet":
        return FeatureSpec.of("scatternet", dtype=dtype, norm=norm, **SCATTERING)
    point = EXTRACTORS.outside().get(name)
    if point is not None:
        settings = _outside_settings(point, hparams)
        return FeatureSpec.of(name, dtype=dtype, norm=norm, **settings)
    settings = backbone_settings(
        name,
        checkpoint=hparams["features.checkpoint"],
        image_size=hparams["features.image_size"],
    )
    return FeatureSpec.of("backbone", dtype=dtype, **{**settings, "norm": norm})


def _outside_settings(point: EntryPoint, hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of another package's extractor.

    The version of the package is one: another one may compute other features.

    Raises:
        ModelError: A file of weights is given, which only networks of timm have.
    """
    if hparams["features.checkpoint"] is not None:
        raise ModelError(
            f"features.checkpoint is of no use with features.name {point.name}",
            because=f"what it computes is up to {package_of(point)}",
            fix="leave it out",
        )
    size = hparams["features.image_size"]
    return {"package": package_of(point)} | ({} if size is None else {"image_size": size})


def possible_choices(
    parameters: Sequence[Hyperparameter], values: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return every combination of the values that a space gives to ``parameters``.

    Args:
        parameters: Those of interest; one that the space does not name has its default.
        values: For each hyperparameter of the space, the values it can have.
    """
    names = [parameter.name for parameter in parameters]
    columns = [list(values.get(p.name, [p.default])) for p in parameters]
    return [dict(zip(names, row)) for row in product(*columns)]


def feature_problems(
    hparams: Mapping[str, Any], info: DatasetInfo, *, norm: str
) -> tuple[DatasetInfo | None, list[Mistake]]:
    """Build the extractor once and return the facts of its features, or why there are none.

    Args:
        hparams: Values of ``FEATURE_HYPERPARAMETERS``.
        info: Facts of the raw data.
        norm: As for ``feature_spec``.
    Returns:
        (facts or None, problems as ``Method.preflight`` returns them).
    """
    try:
        return feature_spec(hparams, info, norm=norm).describe(info), []
    except SweepError as error:
        wrong = error.message + (f": {error.because}" if error.because else "")
        checkpoint = hparams["features.checkpoint"]
        is_of_file = checkpoint is not None and ("checkpoint" in wrong or str(checkpoint) in wrong)
        key = "features.checkpoint" if is_of_file else "features.name"
        return None, [Mistake(key, wrong, error.fix or "use other features")]
