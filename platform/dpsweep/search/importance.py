"""Importance of hyperparameters, by Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna

from dpsweep.search_spaces.base import SearchSpace


def importances(
    space: Mapping[str, Any], trials: Sequence[tuple[Mapping[str, Any], float]], *, seed: int
) -> tuple[dict[str, float], list[str]]:
    """Return the importance of each hyperparameter that all trials have, greatest first.

    Functional analysis of variance of a random forest (Hutter, Hoos & Leyton-Brown 2014, An
    Efficient Approach for Assessing Hyperparameter Importance), as Optuna implements it.

    Args:
        space: The search space, as a spec has it.
        trials: Configurations and their scores; those that are not points of the space, as a method
            has changed a value on admission, are left out.
        seed: Of the forest; equal seeds give equal figures.
    Returns:
        Name -> share, adding up to 1, and the varied hyperparameters that some trials lack; nothing
        where all scores are equal or fewer than two trials remain.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parsed = SearchSpace.from_spec(space)
    names = {p.key: p.name for p in parsed.parameters}
    study = optuna.create_study()
    for config, value in trials:
        frozen = _frozen(parsed, config, value)
        if frozen is not None:
            study.add_trial(frozen)
    points = study.get_trials(deepcopy=False)
    common = [key for key in names if all(key in trial.params for trial in points)]
    seen = {key for trial in points for key in trial.params}
    left_out = sorted({names[key] for key in seen if key not in common})
    varied = [key for key in common if len({str(trial.params[key]) for trial in points}) > 1]
    if len({trial.value for trial in points}) < 2 or not varied:
        return {}, left_out
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator, params=varied)
    return {names[key]: float(share) for key, share in shares.items()}, left_out


def load() -> None:
    """Load the forest that ``importances`` grows, which takes most of a second."""
    assert optuna.importance.FanovaImportanceEvaluator


def _frozen(
    space: SearchSpace, config: Mapping[str, Any], value: float
) -> optuna.trial.FrozenTrial | None:
    """Return a trial as Optuna has it; None if it is no point of the space."""
    fixed = optuna.trial.FixedTrial({p.key: config.get(p.name) for p in space.parameters})
    try:
        space.suggest(fixed)
        return optuna.trial.create_trial(
            params=fixed.params, distributions=fixed.distributions, value=value
        )
    except ValueError:
        return None
