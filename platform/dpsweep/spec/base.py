"""The base of a spec's parts: strict values, one wording for mistakes, all mistakes at once."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from dpsweep.foundation.errors import Mistake, SpecError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.privacy.modes import MODES, UNDECIDED, Mode


def seen(value: Any) -> str:
    """Return how a value is shown in a message: as YAML says it, shortened.

    >>> seen(True), seen(None), seen("abc")
    ('true', 'null', "'abc'")
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = (
        f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else repr(value)
    )
    return text if len(text) <= 60 else text[:57] + "..."


#: Types of values as a spec file has them.
_OF_FILES = (str, int, float, bool, type(None))


def plain(value: Any) -> Any:
    """Return a value as a spec file would have it, so that both make the same spec.

    Numbers and arrays of NumPy (whatever has ``tolist``), ranges, fractions and paths become
    numbers, lists and texts, within mappings and lists, too; all else is returned as it is.

    >>> plain({"choice": range(3)})
    {'choice': [0, 1, 2]}
    """
    if type(value) in _OF_FILES or isinstance(value, (bool, type)):
        return value
    if isinstance(value, Mapping):
        changed = {key: plain(each) for key, each in value.items()}
        return changed if any(changed[key] is not value[key] for key in value) else value
    if type(value) in (list, tuple, range):
        items = [plain(each) for each in value]
        is_same = type(value) is not range and all(a is b for a, b in zip(items, value))
        return value if is_same else items
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


#: A number with a decimal comma.
_COMMA = re.compile(r"[+-]?\d+,\d+")


def number(value: Any) -> int | float:
    """Return a finite number; a text that reads as one counts (``1e-5`` is text in YAML 1.1).

    Raises:
        ValueError: The message completes "<key> ...".
    """
    result = value
    if isinstance(value, str):
        try:
            result = int(value)
        except ValueError:
            try:
                result = float(value)
            except ValueError:
                hint = "; its decimals stand behind a point" if _COMMA.fullmatch(value) else ""
                raise ValueError(f"must be a number, got {seen(value)}{hint}") from None
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        raise ValueError(f"must be a number, got {seen(value)}")
    try:
        if not math.isfinite(result):
            raise ValueError(f"must be a finite number, got {seen(value)}")
    except OverflowError:
        raise ValueError(f"is too large for a number, got {seen(value)}") from None
    return result


def maybe_number(value: Any) -> float | None:
    """Return a finite number, or None for anything else (reported elsewhere)."""
    try:
        return number(value)
    except ValueError:
        return None


def whole(value: Any) -> int:
    """Return a whole number; ``20.0`` and ``2e1`` count.

    Raises:
        ValueError: The message completes "<key> ...".
    """
    result = number(value)
    if result != int(result):
        raise ValueError(f"must be a whole number, got {seen(value)}")
    return int(result)


#: Longest text of a key: of a path, file systems take no more.
_LONGEST = 4000
#: Longest name in a path: file systems take no more.
_LONGEST_PART = 255


def _text(value: Any) -> str:
    if isinstance(value, str) and "\0" in value:  # no path and no name can have it
        raise ValueError("has a character of number 0")
    if isinstance(value, str) and len(value) > _LONGEST:
        raise ValueError(f"has {len(value)} characters, and at most {_LONGEST} are allowed")
    if (
        isinstance(value, str)
        and max(map(len, value.encode(errors="replace").split(b"/"))) > _LONGEST_PART
    ):
        raise ValueError(f"has a part of over {_LONGEST_PART} bytes between two slashes")
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, str):
        raise ValueError("must not be empty")
    hint = f'; put it in quotes: "{seen(value)}"' if isinstance(value, (int, float)) else ""
    raise ValueError(f"must be text, got {seen(value)}{hint}")


# Last in an Annotated, after its bounds: so the bounds reach the JSON schema under their own names.
AS_NUMBER = BeforeValidator(number)
AS_WHOLE = BeforeValidator(whole)
AS_TEXT = BeforeValidator(_text)
Text = Annotated[str, AS_TEXT]
Positive = Annotated[float, Field(gt=0), AS_NUMBER]
NotNegative = Annotated[float, Field(ge=0), AS_NUMBER]
Count = Annotated[int, Field(ge=1), AS_WHOLE]
#: A number of classes; each gets a name, so that a slip of the keyboard must not take all memory.
NumClasses = Annotated[int, Field(ge=2, le=1_000_000), AS_WHOLE]


class Part(BaseModel):
    """A section of a spec: frozen, closed to unknown keys, checked when it is made.

    A subclass adds checks that involve several keys in ``rules``. They see the raw values, so
    that a mistake in one key does not hide those in the others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Whether a key that stands elsewhere is said to belong below this section.
    is_hinted: ClassVar[bool] = True

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise SpecError(mistakes_of(error)) from None

    # Tells pydantic that this is its own constructor with other errors, so that nested sections
    # are validated in place and their mistakes collected, instead of constructed one by one.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def complete(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``raw`` with the defaults that depend on other keys; it may hold anything."""
        return raw

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Yield what is wrong about the keys together; ``raw`` may hold anything."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _all_mistakes(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, cls):
            return handler(data)
        if isinstance(data, Mapping):
            data = cls.complete(plain(data))
        flaws: list[Mistake] = []
        part = None
        try:
            part = handler(data)
        except ValidationError as error:
            flaws = _flaws(cls, error.errors(include_url=False))
        if isinstance(data, Mapping):
            of_rules = list(cls.rules(data))
            better = {flaw.key for flaw in of_rules}
            flaws = [flaw for flaw in flaws if flaw.key not in better] + of_rules
        if not flaws and part is not None:
            return part
        raise ValidationError.from_exception_data(
            cls.__name__,
            [
                InitErrorDetails(
                    type=PydanticCustomError(
                        "mistake", "mistake", {"what": flaw.what, "fix": flaw.fix}
                    ),
                    loc=(flaw.key,) if flaw.key else (),
                    input=None,
                )
                for flaw in flaws
            ],
        )


def check_made(part: BaseModel) -> None:
    """Refuse a mapping in the place of a section: ``model_copy(update=..)`` makes none of it.

    Raises:
        TypeError: There is one.
    """
    for name, field in type(part).model_fields.items():
        value, kind = getattr(part, name), field.annotation
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        if isinstance(value, BaseModel):
            check_made(value)
        elif isinstance(value, Mapping) and any(
            isinstance(each, type) and issubclass(each, BaseModel) for each in kinds
        ):
            raise TypeError(f"{name} is a mapping, and no section")


def peek(raw: Any, *path: str, default: Any = None) -> Any:
    """Return the value at a path of raw mappings and finished parts, or ``default``."""
    for key in path:
        if isinstance(raw, Mapping) and key in raw:
            raw = raw[key]
        elif isinstance(raw, BaseModel) and hasattr(raw, key):
            raw = getattr(raw, key)
        else:
            return default
    return raw


def given(raw: Any, *path: str) -> bool:
    """Return whether a key was set, and not to null or an empty list, in mappings and parts.

    >>> given({"search": {"objectives": []}}, "search", "objectives")
    False
    """
    *above, key = path
    section = peek(raw, *above)
    if isinstance(section, BaseModel) and key not in section.model_fields_set:
        return False
    value = peek(section, key)
    return value is not None and not (isinstance(value, (list, tuple)) and not value)


def peek_word(raw: Any, *path: str, default: str = "") -> str:
    """Return the word at a path, ``default`` where there is none, ``""`` for anything else."""
    value = peek(raw, *path, default=default)
    return value if isinstance(value, str) else ""


def peek_mode(raw: Any, *path: str) -> Mode:
    """Return the accounting mode that a path names, ``UNDECIDED`` where it names none."""
    return MODES.get(peek_word(raw, *path), UNDECIDED)


def peek_number(raw: Any, *path: str, default: float) -> float:
    """Return the number at a path, or ``default`` where there is none (reported elsewhere)."""
    value = maybe_number(peek(raw, *path, default=default))
    return default if value is None else value


def dotted(path: tuple[str | int, ...]) -> str:
    """Return a path as people write it.

    >>> dotted(("search", "points_to_evaluate", 0, "optim.lr"))
    'search.points_to_evaluate[0].optim.lr'
    """
    text = ""
    for key in path:
        is_index = isinstance(key, int) or key.startswith("[")
        text += f"[{key}]" if isinstance(key, int) else ("" if is_index or not text else ".") + key
    return text


def mistakes_of(error: ValidationError) -> list[Mistake]:
    """Return the mistakes of a spec or a part of it, without file and line."""
    return [
        Mistake(dotted(detail["loc"]) or "spec", detail["ctx"]["what"], detail["ctx"]["fix"])
        for detail in error.errors(include_url=False)
    ]


_RANGES = {
    "greater_than": ("must be > {0}", "gt"),
    "greater_than_equal": ("must be >= {0}", "ge"),
    "less_than": ("must be < {0}", "lt"),
    "less_than_equal": ("must be <= {0}", "le"),
}


def _flaws(cls: type[Part], details: list[ErrorDetails]) -> list[Mistake]:
    """Translate the errors of one part; a misspelt key is not reported as missing as well."""
    unknown = [str(d["loc"][-1]) for d in details if d["type"] == "extra_forbidden"]
    meant = {did_you_mean(key, list(cls.model_fields)) for key in unknown}
    return [
        _flaw(cls, detail)
        for detail in details
        if detail["type"] != "missing" or f"did you mean {detail['loc'][-1]!r}?" not in meant
    ]


def _flaw(cls: type[Part], detail: ErrorDetails) -> Mistake:
    """Say in plain words what pydantic found; what a nested part said already passes through."""
    path, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    key = dotted(path)
    got = detail["input"]
    if kind == "mistake":
        return Mistake(key, context["what"], context["fix"])
    if kind == "extra_forbidden":
        fix = _which_key(cls, str(path[-1]))
        if "search" in cls.model_fields:
            if str(path[-1]).partition(".")[0] in HYPERPARAMETERS:
                fix = f"known: {', '.join(cls.model_fields)}"  # whatever section it resembles
            if fix.startswith("known") and _is_parameter(path, got):
                fix = f"hyperparameters stand below search.space; {fix} here"
        return Mistake(key, "unknown key", fix)
    if kind == "missing":
        description = cls.model_fields[str(path[-1])].description
        return Mistake(key, "is missing", description or "")
    if kind in _RANGES:
        wording, bound = _RANGES[kind]
        return Mistake(key, f"{wording.format(seen(context[bound]))}, got {seen(got)}")
    if kind == "literal_error":
        words = _literals(cls.model_fields[str(path[0])].annotation)
        hint = did_you_mean(str(got), words)
        return Mistake(
            key,
            f"unknown value {seen(got)}",
            (hint + " " if hint else "") + f"known: {', '.join(words)}",
        )
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        if got is None:
            return Mistake(key, "is empty", "give it keys, or leave the line out")
        return Mistake(key, f"must be a mapping of keys to values, got {seen(got)}")
    if kind in ("list_type", "tuple_type"):
        return Mistake(key, f"must be a list, got {seen(got)}")
    if kind == "string_pattern_mismatch":
        description = cls.model_fields[str(path[0])].description
        return Mistake(key, f"{seen(got)} is not allowed", description or "")
    if kind == "value_error":
        return Mistake(key, str(context["error"]))
    return Mistake(key, f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, got {seen(got)}")


#: First words of hyperparameters that many methods have.
HYPERPARAMETERS = ("augment", "batch", "clip", "model", "noise", "optim", "train")


def _is_parameter(path: Sequence[int | str], got: Any) -> bool:
    """Say whether an unknown key looks like ``optim.lr``, of a file or of ``--set``."""
    return "." in str(path[-1]) or isinstance(got, Mapping)


def _literals(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _literals(part)]


def _which_key(cls: type[Part], key: str) -> str:
    keys = list(cls.model_fields)
    hint = did_you_mean(key, keys)
    if not hint:
        sections = [part for part in Part.__subclasses__() if part.is_hinted]
        owners = [part for part in sections if key in part.model_fields]
        if len(owners) == 1:
            return f"it belongs below `{owners[0].__name__.removesuffix('Spec').lower()}:`"
    return (hint + " " if hint else "") + f"known: {', '.join(keys)}"
