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

from dpsweep.foundation.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from dpsweep.trainables.data.dataset import DatasetInfo

EXTRACTOR_GROUP = "dpsweep.extractors"
#: Extractor name -> ``build(settings, info) -> nn.Module``: (records, *input_shape) float32 ->
#: (records, *feature_shape) float32, in eval mode on the CPU, nothing to train, made of classes
#: that load without this package, and every record treated alone.
EXTRACTORS = Registry(
    "feature extractor",
    {
        "backbone": "dpsweep.trainables.networks.pretrained.published_networks:build_backbone",
        "identity": "dpsweep.trainables.features.extractors:build_identity",
        "scatternet": "dpsweep.trainables.features.scattering:build_scattering",
    },
    group=EXTRACTOR_GROUP,
)


@dataclass(frozen=True)
class FeatureSpec:
    """The way from raw records to features.

    >>> spec = FeatureSpec.of("scatternet", depth=2, groups=27)
    >>> spec == FeatureSpec.of("scatternet", groups=27, depth=2), len(spec.key)
    (True, 32)

    Attributes:
        extractor: Name in ``EXTRACTORS``.
        settings: Everything its result depends on, sorted by name; weights by their SHA-256. The
            setting ``norm`` (``none``, ``l2`` or ``group:G``; absent: none) is applied to what
            the extractor returns.
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
        frozen = sorted((name, _frozen(value)) for name, value in settings.items())
        return cls(extractor, tuple(frozen), dtype)

    @property
    def key(self) -> str:
        """Hash of everything the features depend on besides the records, 32 hex digits."""
        text = json.dumps([self.extractor, self.settings, self.dtype])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def norm(self) -> str:
        """Norm of the features of a record: ``none``, ``l2`` or ``group:G``."""
        return str(dict(self.settings).get("norm", "none"))

    @property
    def label(self) -> str:
        """Name for people, say ``scatternet (group:27)``: extractor or model, norm, dtype."""
        name = dict(self.settings).get("model", self.extractor)
        notes = [note for note in (self.norm, self.dtype) if note not in ("none", "float32")]
        return name + (f" ({', '.join(notes)})" if notes else "")

    @property
    def is_raw(self) -> bool:
        """True if the features are the flattened records themselves, so that none are kept."""
        return (self.extractor, self.norm, self.dtype) == ("identity", "none", "float32")

    def build(self, info: DatasetInfo) -> nn.Module:
        """Return the extractor and its norm as a network on raw records (see ``EXTRACTORS``).

        Raises:
            ModelError: They cannot be built for records of this shape.
        """
        import torch
        from torch import nn

        from dpsweep.trainables.features.extractors import norm_layers

        settings: Mapping[str, Any] = dict(self.settings)
        extractor: nn.Module = EXTRACTORS[self.extractor](settings, info).eval()
        layers = []
        if self.norm != "none":
            with torch.no_grad():
                shape = tuple(extractor(torch.zeros(1, *info.input_shape)).shape[1:])
            layers = norm_layers(self.norm, shape)
        return nn.Sequential(extractor, *layers).eval().requires_grad_(False)

    def describe(self, info: DatasetInfo) -> DatasetInfo:
        """Return the facts of the data as features; unchanged if they are these features already.

        Raises:
            ModelError: The extractor cannot be built for records of this shape.
        """
        if info.features == self.key:
            return info
        return replace(info, input_shape=_feature_shape(self, info), features=self.key)


def _frozen(value: Any) -> Any:
    """Return a setting as a value that can be a key; JSON has lists where Python has tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


@lru_cache(maxsize=64)
def _feature_shape(spec: FeatureSpec, info: DatasetInfo) -> tuple[int, ...]:
    import torch

    module = spec.build(info)
    with torch.no_grad():
        return tuple(module(torch.zeros(1, *info.input_shape)).shape[1:])
