"""YAML with line numbers: reads a spec so that each mistake can be shown where it stands.

Scalars follow YAML 1.2: ``1e-5`` is a number, ``no`` and ``on`` are words, ``010`` is ten. Each
key may stand once. Anchors, aliases and tags are refused; a spec has no use for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from dpsweep.foundation.errors import Mistake, SpecError
from dpsweep.foundation.file_paths import FilePath, file_path, size_of
from dpsweep.spec.document.nodes import compose

MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class Document:
    """The content of a YAML file, and the line of each key.

    Attributes:
        name: File name as given, or ``<text>``.
        value: The mapping it holds.
        lines: Line (from 1) of each dotted path.
        overridden: Paths that ``--set`` replaced.
        mistakes: Mistakes of form (duplicate keys and the like), by dotted path.
    """

    name: str
    value: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    overridden: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    def line(self, path: str) -> int:
        """Return the line of a dotted path, or of the closest one above it that is in the file."""
        while path:
            if path in self.lines:
                return self.lines[path]
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return 1

    def where(self, path: str) -> str:
        """Return ``sweep.yaml:12 search.space.optim.lr`` for a dotted path."""
        for key in self.overridden:
            if path == key or path.startswith((key + ".", key + "[")):
                return f"--set {path}"
            if path not in self.lines and key.startswith(path + "."):
                return f"--set {key}"
        return f"{self.name}:{self.line(path)} {path}"

    def located(self, mistakes: Sequence[Mistake]) -> list[Mistake]:
        """Return mistakes with file and line, in the order of the lines."""
        ordered = sorted(mistakes, key=lambda mistake: self.line(mistake.key))
        return [mistake.at(self.where) for mistake in ordered]


def read_document(
    source: FilePath | str, *, text_name: str = "<text>", is_stored: bool = False
) -> Document:
    """Read a YAML file, or a text (recognised by a line break or ``: ``), called ``text_name``.

    What is stored was written by this package, and is read by libyaml.

    Raises:
        SpecError: There is no such file, or it is not YAML, empty or not a mapping.
    """
    is_text = isinstance(source, str) and (
        not source.strip() or "\n" in source or ": " in source or source.startswith("{")
    )
    if is_text:
        return parse_yaml(str(source), text_name, is_stored=is_stored)
    return parse_yaml(_read(file_path(source)), str(source), is_stored=is_stored)


def _read(path: FilePath) -> str:
    name = str(path)
    try:
        if size_of(path) > MAX_BYTES:
            raise SpecError([Mistake(name, "is too large for a spec", "give the YAML file")])
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        fix = f"write a first one with `dpsweep init {name}`"
        near = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        if near:
            fix = f"YAML files there: {', '.join(near[:5])}; or {fix}"
        raise SpecError([Mistake(name, "no such file", fix)]) from None
    except IsADirectoryError:
        raise SpecError([Mistake(name, "is a directory", "give the YAML file")]) from None
    except UnicodeDecodeError:
        fix = "save it as UTF-8; editors and shells of Windows may write UTF-16"
        raise SpecError([Mistake(name, "is not a text file (UTF-8)", fix)]) from None
    except OSError as error:
        raise SpecError([Mistake(name, f"cannot be read: {error.strerror}")]) from None


def parse_yaml(text: str, name: str, *, is_stored: bool = False) -> Document:
    """Return what a YAML text says, with lines.

    Raises:
        SpecError: It is not YAML, empty or not a mapping.
    """
    node = compose(text, name, is_stored=is_stored)
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value.strip()):
        raise SpecError(
            [Mistake(f"{name}:1", "is empty", "`dpsweep init` writes a spec to start from")]
        )
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        raise SpecError(
            [Mistake(f"{name}:1", f"must be a mapping of keys to values, is {kind}", "name: ...")]
        )
    reader = _Reader(name)
    value = reader.mapping(node, "")
    if {"config", "metric", "epsilon"} <= value.keys():
        problem = "is what `dpsweep best` prints of a configuration, and no spec"
        raise SpecError([Mistake(name, problem, "`dpsweep best NAME --as-spec` prints one")])
    return Document(name, value, reader.lines, (), tuple(reader.mistakes))


class _Reader:
    """Turns nodes into values, notes the line of each path, collects mistakes of form."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[str, int] = {}
        self.mistakes: list[Mistake] = []
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: str) -> Any:
        if id(node) in self._seen:
            self._complain(path, "a YAML alias (`*name`) is not supported", "write the value out")
            return None
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                place = f"{path}[{index}]"
                self.lines.setdefault(place, item.start_mark.line + 1)
                items.append(self.value(item, place))
            return items
        return self._scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            is_word = isinstance(key_node, yaml.ScalarNode) and key_node.tag.endswith(":str")
            if not is_word:
                shown = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list"
                self.lines.setdefault(f"{path}.{shown}" if path else str(shown), line)
                is_alone = value_node.tag.endswith(":null") and key_node.tag.endswith(":int")
                # `{a: 2,5}` is a: 2 and a key 5.
                fix = "the decimals of a number stand behind a point" if is_alone else ""
                self._complain(
                    f"{path}.{shown}" if path else str(shown), "a key must be a word", fix
                )
                continue
            key = str(key_node.value)
            place = f"{path}.{key}" if path else key
            if key in result:
                first = self.lines[place]
                self.lines[place] = line  # the complaint points at the second one
                self._complain(
                    place, f"stands twice, here and on line {first}", "remove one of the two"
                )
                continue
            # In a space, `optim.lr:` and `optim: {lr: ..}` share a path; the first one counts.
            self.lines.setdefault(place, line)
            result[key] = self.value(value_node, place)
        return result

    def _scalar(self, node: yaml.Node, path: str) -> Any:
        kind = node.tag.rpartition(":")[2]
        text = node.value
        if "\0" in text:  # no path and no name can have it
            self._complain(path, "has a character of number 0", "remove it")
            return text.replace("\0", "?")
        if not node.tag.startswith("tag:yaml.org,2002:") or kind not in _MAKE:
            self._complain(path, f"a YAML tag ({node.tag}) is not supported", "remove it")
            return None
        try:
            return _MAKE[kind](text)
        except ValueError:
            self._complain(path, f"{text!r} is not a {kind}", "remove the tag")
            return None

    def _complain(self, path: str, what: str, fix: str) -> None:
        self.mistakes.append(Mistake(path, what, fix))


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_MAKE: Mapping[str, Any] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": _float,
    "str": str,
}


def parse_scalar(text: str) -> Any:
    """Return what a YAML value says (``3``, ``[1, 2]``, ``{choice: [a, b]}``), for ``--set``.

    Raises:
        SpecError: It is not YAML.

    >>> parse_scalar("1e-5"), parse_scalar("no")
    (1e-05, 'no')
    """
    node = compose(text, "value")
    if node is None:
        return None
    reader = _Reader("value")
    value = reader.value(node, "value")
    if reader.mistakes:
        raise SpecError(reader.mistakes)
    return value
