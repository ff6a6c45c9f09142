"""Every spec on a page is accepted; every key that a page names is one of the spec."""

import re
import runpy
from pathlib import Path

import pytest
import yaml
from pages import PAGES, add_materials, blocks, localized, prose, whole_specs

from dpsweep import SweepSpec
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec

CORE = Path(__file__).parents[2] / "platform" / "dpsweep"
WITH_SPECS = [page for page in PAGES if blocks(page, "yaml")]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("page", WITH_SPECS, ids=lambda page: page.name)
def test_specs_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    add_materials(tmp_path, page)
    for block in blocks(page, "python"):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        if block.file and block.file.startswith("write_"):
            runpy.run_path(block.file)
    specs = whole_specs(page)
    assert specs
    for block, raw in specs:
        text = localized(yaml.safe_dump(raw, sort_keys=False), tmp_path)
        checked = preflight(read_spec(text, text_name=str(block)))
        assert checked.spec.name == raw["name"], block


def fields():
    """Return the dotted keys of a spec."""
    schema = SweepSpec.model_json_schema()

    def walk(properties, above):
        for name, field in properties.items():
            yield above + name
            for option in [field, *field.get("anyOf", [])]:
                if "$ref" in option:
                    part = schema["$defs"][option["$ref"].rpartition("/")[2]]
                    yield from walk(part["properties"], f"{above}{name}.")

    return set(walk(schema["properties"], ""))


def dotted(value, above=""):
    """Return the dotted keys of a mapping, without those of a space or of hyperparameters."""
    for key, inner in value.items():
        yield f"{above}{key}"
        if isinstance(inner, dict) and key not in ("space", "hyperparameters"):
            yield from dotted(inner, f"{above}{key}.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_that_a_page_names_are_keys_of_a_spec(page):
    keys_of_specs = fields()
    sections = {key for key in keys_of_specs if any(k.startswith(f"{key}.") for k in keys_of_specs)}
    tops = "|".join(section for section in sections if "." not in section)
    named = []
    for code in re.findall(r"`([^`\n]+)`", prose(page)):
        if re.fullmatch(rf"(?:{tops})\.[a-z_.]+", code):
            named += [code] * (not code.endswith((".json", ".yaml", ".html")))
        elif re.match(rf"(?:{tops}): \{{", code):
            named += dotted(yaml.safe_load(code.replace(", ...", "")))
    hyperparameters = {"start.epsilon", "search.space.method"}
    unknown = {key for key in named if key not in keys_of_specs | hyperparameters}
    rooms = [name.replace(".", "/") for name in unknown]
    is_package = [(CORE / room).is_dir() or (CORE.parents[1] / room).is_dir() for room in rooms]
    unknown = {name for name, is_one in zip(unknown, is_package) if not is_one}
    assert unknown == set(), page.name
