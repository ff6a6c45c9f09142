"""Page of the spec's keys, written from its schema: ``make docs``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpsweep import SweepSpec

PAGE = Path(__file__).with_name("reference.md")
HEAD = """\
# Reference of the spec

<!-- Written by `make docs` from the schema of the spec; edits here are lost. -->

Every key of a spec, with its type and default. **required** stands where a spec must say it.
`dpsweep init sweep.yaml` writes the usual ones as a YAML file, `dpsweep init --schema` the JSON
schema for an editor. Keys of `search.space` are hyperparameters: `dpsweep describe METHOD`.
"""
_NUMBERS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def page(schema: Mapping[str, Any]) -> str:
    """Return the page for the JSON schema of a spec, in Markdown."""
    parts = [HEAD]
    plain, sections = [], []
    for name, field in schema["properties"].items():
        part = _part(field, schema)
        if part is None:
            plain.append((name, field))
        else:
            sections.append((name, field, part))
    parts.append("## The study\n\n" + _table(plain, schema))
    for name, field, part in sections:
        purpose = part["description"].split("\n\n")[0]
        if name not in schema["required"]:
            purpose = field.get("description", purpose)
        keys = list(_keys(part, schema, ""))
        parts.append(f"## `{name}`\n\n{_cell(purpose)}\n\n" + _table(keys, schema, part))
    return "\n".join(parts)


def _part(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the mapping that a field refers to, or None for a plain value."""
    options = [field, *field.get("anyOf", [])]
    names = [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]
    return schema["$defs"][names[0]] if names else None


def _keys(
    part: Mapping[str, Any], schema: Mapping[str, Any], above: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the dotted keys of a part and of the parts in it, with their fields."""
    required = part.get("required", ())
    for name, field in part["properties"].items():
        inner = _part(field, schema)
        if inner is None:
            yield above + name, {**field, "is_required": name in required}
            continue
        purpose = field.get("description") or inner["description"].split("\n\n")[0]
        shown = {"type": "mapping", "description": purpose, "is_required": name in required}
        yield above + name, shown
        yield from _keys(inner, schema, f"{above}{name}.")


def _table(
    keys: list[tuple[str, Mapping[str, Any]]],
    schema: Mapping[str, Any],
    part: Mapping[str, Any] | None = None,
) -> str:
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    required = schema.get("required", ()) if part is None else ()
    for name, field in keys:
        is_required = field.get("is_required", name in required)
        default = "**required**" if is_required else _default(field)
        meaning = _cell(field.get("description", ""))
        rows.append(f"| `{name}` | {_cell(_type(field))} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _default(field: Mapping[str, Any]) -> str:
    if field.get("type") == "mapping":
        return ""
    return f"`{json.dumps(field.get('default'))}`"


def _type(field: Mapping[str, Any]) -> str:
    """Return a type in words, with the values or the range that it allows."""
    if "anyOf" in field:
        words = [_type(option) for option in field["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "enum" in field:
        return ", ".join(str(value) for value in field["enum"])
    if "const" in field:
        return str(field["const"])
    word = {"object": "mapping", "array": "list"}.get(field.get("type", ""), field.get("type", ""))
    if word == "list" and "items" in field:
        word = f"list of {_type(field['items'])}"
    ranges = [f"{sign} {field[key]:.10g}" for key, sign in _NUMBERS.items() if key in field]
    return f"{word or 'any'} {', '.join(ranges)}".strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(SweepSpec.model_json_schema()))
