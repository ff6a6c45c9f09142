"""The page of the spec's keys is what ``make docs`` writes."""

import importlib.util

from import_graph import ROOT

from dpsweep import SweepSpec


def generator():
    path = ROOT / "docs" / "make_reference.py"
    spec = importlib.util.spec_from_file_location("make_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_the_one_that_is_generated():
    made = generator()
    assert made.PAGE.read_text() == made.page(SweepSpec.model_json_schema()), "run `make docs`"


def test_a_key_of_the_schema_is_on_the_page():
    schema = {
        "properties": {
            "name": {"type": "string", "description": "Its name."},
            "pot": {"$ref": "#/$defs/Pot"},
        },
        "required": ["name"],
        "$defs": {
            "Pot": {
                "description": "Where tea is.\n\nMore.",
                "required": ["lid"],
                "properties": {
                    "lid": {"enum": ["on", "off"], "description": "Say | whether."},
                    "tea": {"$ref": "#/$defs/Tea"},
                },
            },
            "Tea": {
                "description": "The tea.",
                "properties": {
                    "cups": {
                        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
                        "default": None,
                        "description": "How many.",
                    }
                },
            },
        },
    }
    lines = generator().page(schema).splitlines()
    assert "| `name` | string | **required** | Its name. |" in lines
    assert lines[lines.index("## `pot`") + 2] == "Where tea is."
    assert "| `lid` | on, off | **required** | Say \\| whether. |" in lines
    assert "| `tea` | mapping |  | The tea. |" in lines
    assert "| `tea.cups` | integer >= 1 | `null` | How many. |" in lines
