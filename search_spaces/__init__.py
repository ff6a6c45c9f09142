"""Search spaces: named parameters with conditions, recommended spaces per method."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry
from dpsweep.search_spaces.base import Parameter, SearchSpace
from dpsweep.search_spaces.presets import preset_spec, preset_titles
from dpsweep.search_spaces.starter import starter_spec

__all__ = ["SPACES", "Parameter", "SearchSpace", "preset_spec", "preset_titles", "starter_spec"]

#: Method name -> its recommended spaces, each a mapping from dataset to ``search.space``.
SPACES = Registry(
    "recommended space",
    {
        "active_learning": "dpsweep.search_spaces.active_learning:RECOMMENDED",
        "adamix": "dpsweep.search_spaces.adamix:RECOMMENDED",
        "bitfit": "dpsweep.search_spaces.bitfit:RECOMMENDED",
        "dp_sgd": "dpsweep.search_spaces.dp_sgd:RECOMMENDED",
        "scatternet": "dpsweep.search_spaces.scatternet:RECOMMENDED",
        "sparse": "dpsweep.search_spaces.sparse:RECOMMENDED",
    },
    group="dpsweep.search_spaces",
)
