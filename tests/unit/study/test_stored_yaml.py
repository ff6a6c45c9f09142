"""The spec that lies in a study's folder: read by libyaml, and no otherwise than by Python."""

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dpsweep.foundation.errors import SpecError
from dpsweep.spec.document.nodes import MAX_DEPTH
from dpsweep.spec.document.reading import parse_yaml
from dpsweep.spec.document.writing import dump_yaml
from dpsweep.study import files
from dpsweep.study.files import stored_yaml

LETTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SIGNS = st.text(":-#{}[],&*!|>'\"%@`? \n\t=~<", max_size=6)
VALUES = st.recursive(
    LETTERS | SIGNS | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LETTERS | SIGNS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(LETTERS | SIGNS, VALUES, max_size=3))
def test_what_was_written_reads_as_python_reads_it(tmp_path_factory, spec):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    text = dump_yaml(spec)
    path.write_bytes(text.encode())
    assert repr(stored_yaml(path)) == repr(yaml.load(text, Loader=yaml.SafeLoader))


def said(text, *, is_stored):
    try:
        return repr(parse_yaml(text, "spec.yaml", is_stored=is_stored))
    except SpecError as error:
        return f"refused: {error}"


@given(st.dictionaries(LETTERS | SIGNS, VALUES, max_size=3))
@example({})
@example({"config": 1, "metric": 2, "epsilon": 3})
@example({"name": "a", "data": {"file": "a: b"}, "search": {"space": [1, {"x": None}]}})
def test_a_written_spec_has_the_same_values_lines_and_mistakes(spec):
    text = dump_yaml(spec)
    assert said(text, is_stored=True) == said(text, is_stored=False)


def test_it_is_read_by_libyaml(tmp_path, monkeypatch):
    """In Python alone a spec takes 10 ms, and `list` reads those of all studies."""
    monkeypatch.setattr(yaml.SafeLoader, "__init__", None)
    path = tmp_path / "spec.yaml"
    path.write_text("name: digits\n")
    assert yaml.__with_libyaml__
    assert stored_yaml(path) == {"name": "digits"}


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ("{a: ", "}")])
@pytest.mark.parametrize(("more", "is_refused"), [(-1, False), (0, True), (20_000, True)])
def test_a_depth_that_no_spec_has_is_refused_before_it_is_put_together(
    tmp_path, monkeypatch, opened, closed, more, is_refused
):
    path, depth, loaded, load = tmp_path / "spec.yaml", MAX_DEPTH + more, [], files._Plain
    path.write_text(f"name: {opened * depth}1{closed * depth}\n")
    monkeypatch.setattr(files, "_Plain", lambda text: loaded.append(1) or load(text))
    if is_refused:
        with pytest.raises(ValueError, match="no YAML that this package has written"):
            stored_yaml(path)
    else:
        assert list(stored_yaml(path)) == ["name"]
    assert bool(loaded) != is_refused
