"""Frozen features: which extractor, with which settings, and what it makes of a record.

A feature is a function of one record alone, so computing it costs no privacy; it is as private as
the record. Loads no torch until an extractor is built, so that specs can be checked without it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from dpsweep.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from dpsweep.trainables.data import DatasetInfo

#: Extractor name -> ``build(settings, info) -> nn.Module``: (records, *input_shape) float32 ->
#: (records, *feature_shape) float32, in eval mode on the CPU, nothing to train, made of classes
#: that load without this package, and every record treated alone.
EXTRACTORS = Registry(
    "feature extractor",
    {
        "backbone": "dpsweep.trainables.backbones:build_backbone",
        "scatternet": "dpsweep.trainables.scattering:build_scattering",
    },
    group="dpsweep.extractors",
)


@dataclass(frozen=True)
class FeatureSpec:
    """What turns raw records into features.

    >>> spec = FeatureSpec.of("scatternet", depth=2, groups=27)
    >>> spec == FeatureSpec.of("scatternet", groups=27, depth=2), len(spec.key)
    (True, 32)

    Attributes:
        extractor: Name in ``EXTRACTORS``.
        settings: Everything its result depends on, sorted by name; weights by their SHA-256.
        dtype: How features are stored; they are computed in float32 and rounded once.
    """

    extractor: str
    settings: tuple[tuple[str, Any], ...]
    dtype: Literal["float32", "float16"] = "float32"

    @classmethod
    def of(
        cls, extractor: str, *, dtype: Literal["float32", "float16"] = "float32", **settings: Any
    ) -> FeatureSpec:
        """Return the spec of an extractor with these settings."""
        return cls(extractor, tuple(sorted(settings.items())), dtype)

    @property
    def key(self) -> str:
        """Hash of everything the features depend on besides the records, 32 hex digits."""
        text = json.dumps([self.extractor, self.settings, self.dtype])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def build(self, info: DatasetInfo) -> nn.Module:
        """Return the extractor as a network on raw records (see ``EXTRACTORS``)."""
        settings: Mapping[str, Any] = dict(self.settings)
        module: nn.Module = EXTRACTORS[self.extractor](settings, info)
        return module

    def describe(self, info: DatasetInfo) -> DatasetInfo:
        """Return the facts of the data as features; unchanged if they are these features already.

        Raises:
            ModelError: The extractor cannot be built for records of this shape.
        """
        if info.features == self.key:
            return info
        return replace(info, input_shape=_feature_shape(self, info), features=self.key)


@lru_cache(maxsize=64)
def _feature_shape(spec: FeatureSpec, info: DatasetInfo) -> tuple[int, ...]:
    import torch

    with torch.no_grad():
        return tuple(spec.build(info)(torch.zeros(1, *info.input_shape)).shape[1:])
