"""Plain data as YAML that is read back without loss."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from dpsweep.foundation.words import plain
from dpsweep.spec.document.nodes import SCALARS


class _Dumper(yaml.SafeDumper):
    """Quotes a text that either YAML 1.1 or 1.2 would take for something else."""

    yaml_implicit_resolvers = copy.deepcopy(yaml.SafeDumper.yaml_implicit_resolvers)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_scalar(self, tag: str, value: str, style: str | None = None) -> yaml.ScalarNode:
        odd = '"' if set(value) & set("\x85\u2028\u2029") else None  # these end lines, too
        return super().represent_scalar(tag, value, style or odd)


for _tag, _pattern, _first in SCALARS:
    _Dumper.add_implicit_resolver(_tag, _pattern, ["" if c == "\0" else c for c in _first])


def dump_yaml(value: Mapping[str, Any]) -> str:
    """Return plain data as YAML that ``parse_yaml`` reads back without loss, keys in order.

    Letters stand as they are, or all escaped where a terminal would obey one of them.
    """
    style: dict[str, Any] = {"sort_keys": False, "default_flow_style": None, "width": 100}
    text = str(yaml.dump(dict(value), Dumper=_Dumper, allow_unicode=True, **style))
    return text if plain(text) == text else str(yaml.dump(dict(value), Dumper=_Dumper, **style))
