"""YAML as nodes, with the scalars of YAML 1.2: ``1e-5`` is a number, ``no`` is a word."""

from __future__ import annotations

import re

import yaml

from dpsweep.foundation.errors import Mistake, SpecError

_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan")
SCALARS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), "~nN\0"),
    ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), "-+0123456789"),
    ("tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), "-+.0123456789"),
)


#: By libyaml, where PyYAML was built with it: a seventh of the time.
QuickLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: No spec is nested as deeply.
MAX_DEPTH = 100


class _Loader(yaml.SafeLoader):
    """Composes nodes of what somebody has written, with words for each mistake."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (declared by the base class)


class _OfOurs(QuickLoader):  # type: ignore[misc, valid-type]  # one of two classes
    """Composes nodes of what this package has written, which Python would read as well."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


for _tag, _pattern, _first in SCALARS:
    _Loader.add_implicit_resolver(_tag, _pattern, ["" if c == "\0" else c for c in _first])


def refuse_foreign(text: str) -> None:
    """Raise YAMLError of text that stands for more than it says, or is nested as no spec is.

    Few aliases can stand for a great deal, a tag makes one type of another one's words, and
    libyaml's nodes know no depth that is too much for the stack.
    """
    depth = 0
    for event in yaml.parse(text, Loader=QuickLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(problem="an alias or a tag")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(problem="nested too deeply")


def compose(text: str, name: str, *, is_stored: bool = False) -> yaml.Node | None:
    """Return the node of a text's one document.

    Args:
        text: YAML.
        name: Of the text, for mistakes.
        is_stored: This package has written it, so that no mistake needs its own words.
    Raises:
        SpecError: It is none.
    """
    loader = None
    try:
        if is_stored:
            refuse_foreign(text)
        loader = (_OfOurs if is_stored else _Loader)(text)
        return loader.get_single_node()  # type: ignore[no-any-return]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise SpecError([Mistake(f"{name}:{line}", *_explain(error, text, line))]) from None
    except yaml.YAMLError as error:
        message = str(error).splitlines()[0]
        raise SpecError([Mistake(name, f"is not YAML: {message}")]) from None
    except RecursionError:
        raise SpecError([Mistake(name, "is nested too deeply")]) from None
    finally:
        if loader is not None:
            loader.dispose()


def _explain(error: yaml.MarkedYAMLError, text: str, line: int) -> tuple[str, str]:
    problem = error.problem or "cannot be read"
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\\t" in problem or "\t" in here[: len(here) - len(here.lstrip())]:
        return "a tab is used for indentation", "use spaces"
    if "mapping values are not allowed" in problem:
        return (
            f"is not YAML: unexpected `:` in {here.strip()!r}",
            "indent keys of one section alike, and put text that holds `: ` in quotes",
        )
    if "expected a single document" in (error.context or ""):
        return "holds a second document after `---`", "one file, one spec"
    if "undefined alias" in problem or "anchor" in problem:
        return "is not YAML: `*` and `&` have a special meaning", "put the text in quotes"
    if "expected <block end>" in problem:
        return (
            f"is not YAML: {here.strip()!r} does not fit what stands above",
            "indent keys of one section alike",
        )
    if "while parsing a flow" in (error.context or ""):
        start = error.context_mark.line + 1 if error.context_mark else line
        return (
            f"is not YAML: a bracket opened on line {start} is not closed here",
            "close it with ] or }, and separate entries with commas",
        )
    if "while scanning a simple key" in (error.context or ""):
        return "is not YAML: a key without `:`", "write `key: value`"
    if "while scanning a quoted scalar" in (error.context or ""):
        start = error.context_mark.line + 1 if error.context_mark else line
        return f"is not YAML: the quote opened on line {start} is not closed", "close it"
    return f"is not YAML: {problem}", "check quotes, brackets and indentation"
