"""The interface of a DP method: say the plan first, then execute it position by position.

This module loads neither torch nor ray, so that plans can be made and checked without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake, SweepError
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan
from dpsweep.privacy.terms import AccountantName, shown_delta
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.data.releases import ReleaseKey
from dpsweep.trainables.data.supplies import NO_SUPPLIES, Supplies

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData


@dataclass(frozen=True)
class PlanContext:
    """The public facts a plan may depend on, besides the hyperparameters.

    Attributes:
        budget: Cap of one trial (trial_epsilon, delta, neighboring relation).
        accountant: Accountant that calibrates and bounds the plan.
        num_private: Declared (public) number of private training records; not ``len(data)``.
        validation: Whose the validation records are: public ones, private ones with noisy scores,
            or private ones with exact scores (no guarantee).
        starts: Release -> the private events that its model rests on, where the study has a start.
        given: Hyperparameters that the configuration names; the others have their defaults. None:
            all of them are named.
    """

    budget: PrivacyBudget
    accountant: AccountantName
    num_private: int
    validation: Literal["public", "noisy", "exact"] = "public"
    starts: Mapping[ReleaseKey, Plan] = field(default_factory=dict)
    given: frozenset[str] | None = None


@dataclass(frozen=True)
class RunContext:
    """Who is running: seeds everything that may be known, and nothing that must stay secret.

    Attributes:
        study_seed: Seed of the study, for what all its trials share, such as a draw of public
            records.
        trial: Trial number.
        device: ``cpu`` or ``cuda``.
        own_seed: Seed of this trial's own where trials must be independent (accounting select);
            it stays secret.
        supplies: What the study has prepared for its trials besides the records.
        is_run: Whether steps are to be run; a model that is only looked at needs no checks of them.
    """

    study_seed: int
    trial: int
    device: str = "cpu"
    own_seed: int | None = None
    supplies: Supplies = NO_SUPPLIES
    is_run: bool = True

    @property
    def seed(self) -> int:
        """Seed of initial weights and of all other public randomness of the trial."""
        return self.study_seed if self.own_seed is None else self.own_seed


def target_budget(epsilon: float | None, cap: PrivacyBudget) -> PrivacyBudget:
    """Return what noise or steps are solved for: the cap, or ``noise.target_epsilon`` below it.

    Raises:
        InfeasibleBudgetError: The target is over the cap.
    """
    if epsilon is None:
        return cap
    if epsilon > cap.target_epsilon:
        raise InfeasibleBudgetError(
            f"noise.target_epsilon={epsilon:g} is over privacy.trial_epsilon="
            f"{cap.target_epsilon:g} (delta={shown_delta(cap.delta)}, {cap.neighboring_relation})",
            fix=f"noise.target_epsilon <= {cap.target_epsilon:g}, or raise privacy.trial_epsilon",
        )
    return replace(cap, target_epsilon=float(epsilon))


def first_training_run(plan: Plan) -> EventRun:
    """Return the first events of a plan that are training steps; its first ones if none are."""
    return next((run for run in plan.runs if run.phase == "train"), plan.runs[0])


class Method(ABC):
    """One way of training a model, private or not.

    A plan position is one privacy event. The platform charges positions ``[start, stop)`` to the
    ledger durably and only then calls ``run(start, stop)``; a method must cause exactly the events
    of its plan at those positions, in that order, and no other access to private records.

    More that a method may have is in ``dpsweep.trainables.hooks``, a Protocol each: a method has it
    by having its functions.
    """

    name: ClassVar[str]
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]]
    is_private: ClassVar[bool] = True
    #: What it can learn, as ``data.task`` names it.
    tasks: ClassVar[frozenset[str]] = frozenset({"classification"})
    #: Whether it can learn from token ids.
    reads_text: ClassVar[bool] = False
    #: Whether it reads labels of public records, which a study with a start buys one by one.
    reads_public_labels: ClassVar[bool] = False
    #: Set by ``prepare``.
    _plan: Plan
    #: The next position of the plan; set by ``prepare`` and ``load_state_dict``, moved by ``run``.
    _position: int

    @classmethod
    def complete(cls, hparams: Mapping[str, Any], context: PlanContext) -> dict[str, Any]:
        """Return the hyperparameters with those filled in that follow from the study.

        Called before ``plan``; what it returns is what the trial has. Nothing, for most methods.

        Raises:
            InfeasibleBudgetError: The study has nothing to fill in.
        """
        return dict(hparams)

    @classmethod
    @abstractmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return the privacy events of one trial, from public facts alone.

        Args:
            hparams: Every declared hyperparameter with its value.
            context: Budget, accountant and declared number of records.
        Returns:
            A plan whose epsilon, that of the events it starts from included (``starts_from``), is
            at most ``context.budget.target_epsilon``. Positions on public records cost nothing.
        Raises:
            InfeasibleBudgetError: No plan meets the budget with these hyperparameters.
        """

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return what cannot work for some configuration, before anything starts.

        Args:
            values: For each hyperparameter, the values the space can give it (a single one if
                fixed; the two bounds of a numeric range).
            info: Shapes and declared sizes of the data.
        Returns:
            A mistake for each problem, whose key is the name of a hyperparameter.
        """
        return []

    @classmethod
    def notes(cls, values: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return what works, but hardly as it is meant; nothing, for most methods.

        Args:
            values: As for ``preflight``.
        """
        return []

    @abstractmethod
    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Build model and optimizer; read no private record in a way the plan does not charge."""

    def __init_subclass__(cls, **others: Any) -> None:
        super().__init_subclass__(**others)
        if "run" in vars(cls):
            raise TypeError(f"{cls.__name__} overrides run, which is final: write _execute")

    @final
    def run(self, start: int, stop: int) -> None:
        """Execute the plan's positions ``start`` to ``stop - 1``, which are charged by now.

        Raises:
            ValueError: The positions are not the next ones of this method's plan.
        """
        length = len(self._plan)
        if start != self._position or not start <= stop <= length:
            raise ValueError(
                f"cannot run positions {start} to {stop}: at {self._position} of {length}"
            )
        self._begin()
        for position in range(start, stop):
            self._execute(position)
            self._position = position + 1

    @final
    def check_at(self, plan: Plan, position: int) -> None:
        """Refuse to be charged for another plan than one's own, or at another position.

        Raises:
            SweepError: ``prepare`` or ``load_state_dict`` has set another one, or none.
        """
        name = type(self).__name__
        if getattr(self, "_plan", None) != plan:
            raise SweepError(
                f"{name} has another plan than the one that is charged",
                fix="let prepare set self._plan to the plan that it is given",
            )
        if getattr(self, "_position", None) != position:
            raise SweepError(
                f"{name} is at position {getattr(self, '_position', None)}, not at {position}",
                fix="let prepare set self._position to 0 and load_state_dict to what was saved",
            )

    def _begin(self) -> None:
        """Get ready to execute positions, once for all of a run; nothing, for most methods."""
        return

    @abstractmethod
    def _execute(self, position: int) -> None:
        """Cause the plan's event at one position, and learn from what it releases."""

    @abstractmethod
    def evaluate(self, part: str) -> dict[str, float]:
        """Return ``{"accuracy": .., "loss": ..}`` on a part of the data (validation, test).

        A task other than classification may add scores, see ``Task.metric_names``.

        The values are exact; whether they may leave the actor is decided by the caller.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return model, optimizer and public RNG state; never the state of secret randomness."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; secret randomness is drawn anew."""

    @abstractmethod
    def export(self) -> torch.nn.Module:
        """Return the trained model on the CPU, in eval mode, loadable without this package."""
