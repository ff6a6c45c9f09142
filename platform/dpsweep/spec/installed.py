"""Keys that name a part of dpsweep, or one that an installed package adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from dpsweep.foundation.registry import did_you_mean, installed, of_a_package
from dpsweep.spec.base import seen

#: Context of the validation of a study's own spec: it can be read when a package is gone.
AS_STORED = {"is_stored": True}


def known_name(built_in: Sequence[str], group: str) -> Callable[[Any, ValidationInfo], str]:
    """Return the check of a key that names one of ``built_in`` or of an entry point group.

    Packages are looked at only for names that are not built in, and nothing of them is imported.
    """

    def check(value: Any, info: ValidationInfo) -> str:
        if isinstance(value, str) and (value in built_in or info.context == AS_STORED):
            return value
        outside = list(installed(group))
        if isinstance(value, str) and value in outside:
            return value
        names = [*built_in, *outside]
        hint = did_you_mean(str(value), names)
        fix = (hint + " " if hint else "") + f"known: {', '.join(names)}"
        fix += of_a_package(value, names) if isinstance(value, str) else ""
        problem = f"unknown value {seen(value)}"
        raise PydanticCustomError("mistake", "mistake", {"what": problem, "fix": fix})

    return check


def name_schema(built_in: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of such a key: editors complete what is built in."""
    return {"anyOf": [{"enum": list(built_in)}, {"type": "string", "minLength": 1}]}
