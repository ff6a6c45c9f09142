"""A run of one policy: the spec it is simulated by, and how a simulated sweep went under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsweep.foundation.errors import BadInputError
from dpsweep.schedulers import POLICIES
from dpsweep.spec.study import SchedulerSpec, SweepSpec


@dataclass(frozen=True)
class PolicyRun:
    """How a sweep went under one policy.

    Attributes:
        policy: Its name.
        started: Trials that were admitted, the final run included where there is one.
        finished: Those that ran to their end.
        stopped: Those that the policy ended, or paused for good.
        infeasible: Configurations without a plan within the budget.
        steps: Sum of the steps that all trials ran, stopped ones included.
        composed_epsilon: Epsilon of everything that was run, composed: the Renyi cost that the
            study's filter has committed, converted at its order; without a filter an indication, at
            the best of a few orders. After a search on public records that of the final run; after
            one on a part of the private ones all that is declared. Infinite if something that ran
            has no finite epsilon.
        accountant: Of that epsilon.
        hours: Simulated time.
        best: Best score that a finished trial reported, or the final run; or None.
        full_score: Its score at full length without observation noise.
        best_full: The best such score of any configuration that this policy drew.
        regret: How far ``full_score`` is from the best configuration that any of the compared
            policies drew, at full length and without noise; 0 is perfect.
        end_reason: Why no further trial was started.
        sampling: How records enter the trials' steps.
        seconds: Real seconds of the simulation, planning included where it was the first.
    """

    policy: str
    started: int
    finished: int
    stopped: int
    infeasible: int
    steps: int
    composed_epsilon: float
    accountant: str
    hours: float
    best: float | None
    full_score: float | None
    best_full: float | None
    regret: float | None
    end_reason: str
    sampling: str
    seconds: float


def specs_of(spec: SweepSpec, policies: Sequence[str]) -> dict[str, SweepSpec]:
    """Return the spec under each of some schedulers, checked again; keys both know are kept.

    Raises:
        BadInputError: There are none, or some that cannot be compared with each other.
        SpecError: The accounting mode or the accountant does not allow one of them.
    """
    if not policies:
        raise BadInputError("no policy to simulate", fix=f"choose from {', '.join(POLICIES)}")
    if "noisy_prefix" in policies and len(policies) > 1:
        raise BadInputError(
            "noisy_prefix cannot be compared with other policies: what it declares is its own",
            fix="simulate it alone, and then the others",
        )
    return {policy: _with_policy(spec, policy) for policy in policies}


def _with_policy(spec: SweepSpec, policy: str) -> SweepSpec:
    keys = SchedulerSpec.KEYS.get(spec.scheduler.type, ())
    wanted = SchedulerSpec.KEYS.get(policy, ())
    scheduler = {key: getattr(spec.scheduler, key) for key in wanted if key in keys}
    return SweepSpec(**{**spec.to_dict(), "scheduler": {"type": policy, **scheduler}})


def num_rungs(spec: SweepSpec) -> int:
    """Return how many reports a trial makes besides those of its grid: at rungs, or a barrier."""
    return 1 if spec.scheduler.type == "noisy_prefix" else len(spec.rungs)
