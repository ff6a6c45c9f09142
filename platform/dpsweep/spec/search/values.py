"""Single values of hyperparameters in a search section."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from dpsweep.spec.space.parameters import canonical_scalar


def _point_value(value: Any) -> Any:
    try:
        return canonical_scalar(value)
    except ValueError as error:
        raise ValueError(error.args[0]) from None


PointValue = Annotated[Any, BeforeValidator(_point_value)]
