"""Search spaces: named parameters with conditions, recommended spaces per method."""

from __future__ import annotations

from dpsweep.search_spaces.base import Parameter, SearchSpace
from dpsweep.search_spaces.own_data import OwnData
from dpsweep.search_spaces.presets import preset_spec, preset_titles
from dpsweep.search_spaces.recommended import SPACES, Recommended
from dpsweep.search_spaces.starter import Kind, starter_spec

__all__ = [
    "SPACES",
    "Kind",
    "OwnData",
    "Parameter",
    "Recommended",
    "SearchSpace",
    "preset_spec",
    "preset_titles",
    "starter_spec",
]
