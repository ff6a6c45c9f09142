"""The JSON schema of a search space, for editors."""

from __future__ import annotations

from typing import Any

from dpsweep.spec.space.parameter import RANGES

_SCALAR_SCHEMA = {"type": ["number", "string", "boolean", "null"]}
_RANGE_SCHEMA = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_DOMAIN_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        **{kind: _RANGE_SCHEMA for kind in RANGES},
        "choice": {"type": "array", "items": _SCALAR_SCHEMA, "minItems": 1},
        "num": {"type": "integer", "minimum": 1},
        "when": {
            "type": "object",
            "additionalProperties": {
                "anyOf": [
                    _SCALAR_SCHEMA,
                    {"type": "array", "items": _SCALAR_SCHEMA, "minItems": 1},
                ]
            },
        },
    },
}
_BY_SCHEMA = {
    "type": "object",
    "required": ["by"],
    "additionalProperties": False,
    "properties": {
        "by": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": {"anyOf": [_SCALAR_SCHEMA, _DOMAIN_SCHEMA]},
            },
        }
    },
}
SPACE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["method"],
    "patternProperties": {r"\.options$": {"type": ["object", "string", "null"]}},
    "additionalProperties": {"anyOf": [_SCALAR_SCHEMA, _DOMAIN_SCHEMA, _BY_SCHEMA]},
}
