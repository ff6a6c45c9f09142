"""The privacy calculator: epsilon of events, steps for a budget, noise for a budget.

Every answer is a dictionary that says what its number means nothing without: delta, accountant,
neighboring relation, sampling, privacy unit, and that it is about a single run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpsweep.foundation.words import counted
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import ADD_OR_REMOVE_ONE, PrivacyBudget
from dpsweep.privacy.calibration import calibrate_noise_schedule, max_steps
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian, PrivacyEvent
from dpsweep.privacy.schedules import NoiseSchedule
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.privacy.terms import SINGLE_RUN, AccountantName

_PRIVACY_UNIT = "example"


def _statement(plan: Plan, delta: float, accountant: AccountantName) -> dict[str, Any]:
    parts = {(event.name, event.released_part): None for event in _events_within(plan)}
    released = "the outputs of these events"
    released += "".join(f", and of each {name} {part}" for name, part in parts if part)
    charged = {run.part for run in plan.runs if run.part != "public"}
    if len(charged) > 1:
        parted = " and ".join(sorted(charged))
        released += f"; the parts {parted} are taken to be disjoint, so that the dearest counts"
    if num_free := sum(run.count for run in plan.runs if run.part == "public"):
        released += f"; {counted(num_free, 'event')} on public records cost nothing"
    return PrivacyStatement(
        epsilon=epsilon_of(plan, delta=delta, accountant=accountant),
        delta=delta,
        accountant=accountant,
        neighboring_relation=ADD_OR_REMOVE_ONE,
        sampling=plan.sampling,
        privacy_unit=_PRIVACY_UNIT,
        accounting=SINGLE_RUN,
        released=released,
    ).to_json()


def _events_within(plan: Plan) -> Iterator[PrivacyEvent]:
    """Yield the events of a plan, each followed by those inside it."""
    for run in plan.runs:
        yield run.event
        for key in run.event.checks:
            inner = getattr(run.event, key)
            if isinstance(inner, Plan):
                yield from _events_within(inner)


def account_epsilon(
    events_json: Any, *, delta: float, accountant: AccountantName = "rdp"
) -> dict[str, Any]:
    """Return the epsilon of a list of event segments, with everything it refers to.

    Segments on different parts of the records (``part``) are taken to be on disjoint ones, and
    those on public records to be free; ``released`` says so.

    >>> segment = {"event": "poisson_gaussian", "noise_multiplier": 1.0, "sample_rate": 0.01,
    ...            "steps": 1000}
    >>> answer = account_epsilon([segment], delta=1e-5)
    >>> round(answer["epsilon"], 4), answer["accountant"], answer["sampling"]
    (2.1014, 'rdp', 'poisson')

    Guarantees:
        Those of ``dpsweep.privacy.accountants.epsilon_of``; about this one run and no search.

    Args:
        events_json: Segments in the format of ``Plan.from_json``, or a ``Plan``.
        delta: In (0, 1).
        accountant: ``rdp`` or ``pld``.
    Raises:
        BadInputError: With every mistake of every segment; or for a wrong delta or accountant, or
            ``pld`` with an event that has no privacy loss distribution.
    """
    is_plan = isinstance(events_json, Plan)
    return _statement(events_json if is_plan else Plan.from_json(events_json), delta, accountant)


def account_steps(
    *,
    sample_rate: float,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    accountant: AccountantName = "rdp",
) -> dict[str, Any]:
    """Return the last allowed step of DP-SGD at a constant noise multiplier.

    >>> account_steps(sample_rate=0.01, noise_multiplier=1.0, epsilon=2.0, delta=1e-5)["steps"]
    881

    Returns:
        ``steps`` (0 if not even one is allowed), ``target_epsilon``, the arguments, and the
        statement with the epsilon after those steps.
    Raises:
        BadInputError: A value is out of range, or more than 1e9 steps are allowed.
    """
    budget = PrivacyBudget(target_epsilon=epsilon, delta=delta)
    steps = max_steps(
        budget, sample_rate=sample_rate, noise_multiplier=noise_multiplier, accountant=accountant
    )
    event = PoissonGaussian(noise_multiplier, sample_rate)
    plan = Plan((EventRun(event, steps),) if steps else ())
    return {
        "steps": steps,
        "sample_rate": event.sample_rate,
        "noise_multiplier": event.noise_multiplier,
        "target_epsilon": budget.target_epsilon,
        **_statement(plan, budget.delta, accountant),
        "sampling": Plan((EventRun(event),)).sampling,
    }


def account_noise(
    *,
    sample_rate: float,
    steps: int,
    epsilon: float,
    delta: float,
    shape: str = "constant",
    end_ratio: float = 1.0,
    accountant: AccountantName = "rdp",
) -> dict[str, Any]:
    """Return the start value of a noise schedule that spends the budget over ``steps``.

    >>> answer = account_noise(sample_rate=0.01, steps=480, epsilon=2.0, delta=1e-5)
    >>> round(answer["noise_multiplier"], 4), answer["epsilon"] <= 2.0
    (0.9231, True)

    Returns:
        ``noise_multiplier`` of the first step (rounded up), ``target_epsilon``, the arguments,
        and the statement with the epsilon of the resulting plan.
    Raises:
        BadInputError: A value is out of range, or a constant shape has an end_ratio other than 1.
        InfeasibleBudgetError: No finite noise multiplier meets the budget.
    """
    budget = PrivacyBudget(target_epsilon=epsilon, delta=delta)
    schedule = NoiseSchedule(shape, end_ratio)
    start = calibrate_noise_schedule(
        budget, schedule=schedule, sample_rate=sample_rate, steps=steps, accountant=accountant
    )
    return {
        "noise_multiplier": start,
        "shape": schedule.shape,
        "end_ratio": schedule.end_ratio,
        "sample_rate": float(sample_rate),
        "steps": int(steps),
        "target_epsilon": budget.target_epsilon,
        **_statement(schedule.plan(start, sample_rate, steps), budget.delta, accountant),
    }
