"""Optuna's study in memory, and in a storage that is written to and not asked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

#: In the names of attributes that hold identifiers of trials: those of Optuna's genetic samplers.
_PARENTS = ":parent:"


class WriteThroughStorage(optuna.storages.InMemoryStorage):
    """One study, read from memory; what changes is written to another storage first.

    Optuna asks its storage for all trials some eight times for each that it suggests; memory
    answers at once. Nobody else writes to the study.

    A trial that runs is written when all is drawn for it (``write``), in one transaction, or when
    its state or a score of it changes. Of a process that dies before that nothing was drawn.

    Identifiers of trials are not those of the other storage. Where Optuna's own samplers keep some,
    they are written as the other has them.

    Args:
        kept: The storage that is written to.
        name: The study's.
        directions: Of its objectives, where ``kept`` has no study of that name yet.
    Raises:
        OptunaError, SQLAlchemyError: ``kept`` cannot be used; of what writes to it, too.
        AssertionError, LookupError, TypeError, ValueError: What it holds was damaged.
    """

    def __init__(
        self, kept: optuna.storages.BaseStorage, name: str, directions: Sequence[StudyDirection]
    ) -> None:
        super().__init__()
        self._kept = kept
        try:
            self._kept_study = kept.create_new_study(directions, name)
        except optuna.exceptions.DuplicatedStudyError:
            self._kept_study = kept.get_study_id_from_name(name)
        self._study = super().create_new_study(kept.get_study_directions(self._kept_study), name)
        for key, value in kept.get_study_user_attrs(self._kept_study).items():
            super().set_study_user_attr(self._study, key, value)
        self._kept_ids = dict[int, int]()  # identifier of a trial here -> in the other storage
        for number, trial in enumerate(kept.get_all_trials(self._kept_study, deepcopy=False)):
            if trial.number != number:
                raise optuna.exceptions.StorageInternalError(f"trial {number} is missing")
            self._kept_ids[super().create_new_trial(self._study, trial)] = trial._trial_id
        own_ids = {kept_id: own for own, kept_id in self._kept_ids.items()}
        for key, value in kept.get_study_system_attrs(self._kept_study).items():
            super().set_study_system_attr(self._study, key, _translated(key, value, own_ids))
        self._new: int | None = None  # the trial that is in memory alone

    def write(self) -> None:
        """Write the trial that is in memory alone, if there is one, with what was drawn for it."""
        new, self._new = self._new, None  # once: where Ctrl-C cuts this off, it may be written
        if new is not None:
            trial = self.get_trial(new)
            self._kept_ids[new] = self._kept.create_new_trial(self._kept_study, trial)

    def _kept_id(self, trial_id: int) -> int:
        self.write()
        return self._kept_ids[trial_id]

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set an attribute of the study."""
        self._kept.set_study_user_attr(self._kept_study, key, value)
        super().set_study_user_attr(study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set an attribute of the study that is a sampler's."""
        kept = _translated(key, value, self._kept_ids)
        self._kept.set_study_system_attr(self._kept_study, key, kept)
        super().set_study_system_attr(study_id, key, value)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial; without a template it is in memory alone at first."""
        self.write()
        if template_trial is None:
            self._new = super().create_new_trial(study_id)
            return self._new
        kept = self._kept.create_new_trial(self._kept_study, template_trial)
        trial_id = super().create_new_trial(study_id, template_trial)
        self._kept_ids[trial_id] = kept
        return trial_id

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        """Set a parameter; of a trial that is in memory alone it is written with all others."""
        if trial_id != self._new:
            self._kept.set_trial_param(
                self._kept_id(trial_id), param_name, param_value_internal, distribution
            )
        super().set_trial_param(trial_id, param_name, param_value_internal, distribution)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Change the state of a trial; say whether it was changed."""
        self._kept.set_trial_state_values(self._kept_id(trial_id), state, values)
        return super().set_trial_state_values(trial_id, state, values)

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        """Store a score of a trial at a step."""
        self._kept.set_trial_intermediate_value(self._kept_id(trial_id), step, intermediate_value)
        super().set_trial_intermediate_value(trial_id, step, intermediate_value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set an attribute of a trial; of one in memory alone it is written with the rest."""
        if trial_id != self._new:
            self._kept.set_trial_user_attr(self._kept_id(trial_id), key, value)
        super().set_trial_user_attr(trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set an attribute of a trial that is Optuna's own, or a sampler's, in the same way."""
        if trial_id != self._new:
            self._kept.set_trial_system_attr(self._kept_id(trial_id), key, value)
        super().set_trial_system_attr(trial_id, key, value)


def _translated(key: str, value: Any, ids: Mapping[int, int]) -> Any:
    return [ids[each] for each in value] if _PARENTS in key else value
