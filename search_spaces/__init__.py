"""Search spaces: named parameters with conditions, recommended spaces per method."""

from __future__ import annotations

from dpsweep.registry import Registry
from dpsweep.search_spaces.base import Parameter, SearchSpace
from dpsweep.search_spaces.starter import starter_spec

__all__ = ["SPACES", "Parameter", "SearchSpace", "starter_spec"]

#: Method name -> its recommended spaces, each a mapping from dataset to ``search.space``.
SPACES = Registry(
    "recommended space",
    {"dp_sgd": "dpsweep.search_spaces.dp_sgd:RECOMMENDED"},
    group="dpsweep.search_spaces",
)
