"""Tables of a search: which trial is the best, and the values that the space varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import NothingWithinBudgetError
from dpsweep.search_spaces.base import SearchSpace

if TYPE_CHECKING:
    from dpsweep.results.study import SweepResult
    from dpsweep.results.trial import TrialResult


def best_id(result: SweepResult) -> int | None:
    """Return the number of the best trial, or None while there is none."""
    try:
        return result.best().trial_id
    except NothingWithinBudgetError:
        return None


def searched_values(result: SweepResult, trials: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Return of each trial the values that the space varies, in order, the method left out.

    None where a value has no meaning beside the others (``when``): the configuration has the
    method's own default then, which nobody has searched.
    """
    space, rows = SearchSpace.from_spec(result.spec.space), []
    for trial in trials:
        active = {parameter.name for parameter in space.active(trial.config)}
        names = [name for name in result.varied if name in trial.config]
        rows.append({name: trial.config[name] if name in active else None for name in names})
    return rows
