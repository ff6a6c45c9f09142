"""The kinds of composition, by the kind of their record on a study's ledger."""

from __future__ import annotations

from collections.abc import Mapping

from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.composition.declared import DeclaredComposition
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.composition.split import SplitComposition

COMPOSITIONS: Mapping[str, type[Composition]] = {
    kind.kind: kind for kind in (RenyiFilter, GaussianFilter, DeclaredComposition, SplitComposition)
}
