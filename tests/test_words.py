"""Names of local variables and first words of docstrings say what a thing is."""

import json

import pytest
from words_of_code import DOCSTRING, LISTED, offences, offenders


def test_no_module_has_empty_words_that_are_not_listed():
    """offending_words.json has those of before the rule; it may only get shorter."""
    listed = json.loads(LISTED.read_text())
    new = {
        path: sorted(set(words) - set(listed.get(path, ()))) for path, words in offenders().items()
    }
    assert {path: words for path, words in new.items() if words} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("found = 1", ["found"]),
        ("for what in (): pass", ["what"]),
        ("def f(known): return known", []),
        ("with open('') as given: pass\n(told := 1)", ["given", "told"]),
        ("'''What a thing is.'''", [DOCSTRING]),
        ("'''Things.'''\nx.found = 1\ny = {'what': 2}", []),
    ],
)
def test_the_walk_sees_each_way_to_bind_a_name(source, expected):
    assert offences(source) == expected
