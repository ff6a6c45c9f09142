"""A sweep under a simulated clock: the same policies, search and admission, no training.

    Suggestions -> plan -> CompositionAccount -> (events in simulated time) -> TrialPolicy -> score

Configurations are planned as a sweep plans them, so every step count, epsilon and rung is real;
only scores (``dpsweep.planning.simulation.curves``) and the seconds of a step are made up.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.preflight import Preflight
from dpsweep.planning.simulation.account import Account
from dpsweep.planning.simulation.curves import Curves
from dpsweep.planning.simulation.event_loop import Progress, Simulation
from dpsweep.planning.simulation.final_run import final_runs_of
from dpsweep.planning.simulation.policy_run import PolicyRun, num_rungs, specs_of
from dpsweep.planning.simulation.trials import Array, Planned, Planner, event_costs
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.privacy.randomness import public_seed
from dpsweep.privacy.selection.number import Selection
from dpsweep.schedulers import POLICIES
from dpsweep.schedulers.base import TrialPolicy

_INDICATIVE_ORDERS = rdp.ORDERS[::6]  # fewer orders only raise the epsilon


def simulate(
    checked: Preflight,
    curves: Curves,
    *,
    policies: Sequence[str],
    num_trials: int | None = None,
    slots: int = 8,
    progress: Progress = lambda policy, ended, share: None,
) -> list[PolicyRun]:
    """Run a sweep under a simulated clock, once for each policy.

    Guarantees:
        Nothing private is read. The same arguments give the same results, real seconds aside.

    Args:
        checked: A checked spec; its seed fixes everything that is drawn.
        curves: What configurations score.
        policies: Names of schedulers, each once.
        num_trials: Most trials to admit; None: as the spec says (under ``select``, as drawn).
        slots: Trials at once.
        progress: Told now and then: policy, trials ended, share done.
    Raises:
        BadInputError: A policy is unknown, or the spec does not allow it.
        SweepError: No configuration is feasible.
    """
    if checked.spec.start is not None:
        raise BadInputError("a study with a start cannot be simulated", fix="`dpsweep plan` it")
    if checked.spec.subset_rate is not None:
        raise BadInputError(
            "a search on a secret part of the records cannot be simulated",
            because="no curve tells how it ranks what is then run on all of them",
            fix="`dpsweep plan` it",
        )
    specs = specs_of(checked.spec, policies)
    num_trials = _num_trials(checked) if num_trials is None else num_trials
    # All policies share the reports of the one that has rungs, and the composition chosen for it.
    widest = max(specs.values(), key=lambda spec: len(spec.rungs))
    reference = dataclasses.replace(checked, spec=widest)
    composition = choose_composition(reference)
    if checked.spec.privacy.mode.is_public_search:
        reference = reference.for_public_search()
    orders = _INDICATIVE_ORDERS
    if composition is not None and isinstance(composition.of_trials, RenyiFilter):
        orders = np.array([composition.of_trials.order])
    final_runs = final_runs_of(checked, curves, orders, composition)
    planner = Planner(reference, curves, orders, composition)
    release, release_epsilon = _releases(reference, orders)
    score = reference.admission.score
    runs = []
    for policy, spec in specs.items():
        started = time.perf_counter()
        planned: dict[int, Planned] = {}
        account = Account(
            composition, planned, num_rungs=num_rungs(spec), release=release, score=score
        )
        scorer: TrialPolicy = POLICIES[policy].from_spec(
            spec.scheduler, metric=spec.search.metric, maximize=spec.search.mode == "max"
        )
        fields = Simulation(
            dataclasses.replace(reference, spec=spec),
            planner,
            scorer,
            account,
            planned,
            num_trials=num_trials,
            slots=slots,
            release_epsilon=release_epsilon,
            final_runs=final_runs,
            progress=progress,
        ).run()
        epsilon = account.epsilon(orders, spec.privacy.delta)
        seconds = time.perf_counter() - started
        runs.append(
            PolicyRun(
                policy=policy,
                composed_epsilon=epsilon,
                accountant=_accountant(checked, composition),
                regret=None,
                seconds=seconds,
                **fields,
            )
        )
    return _with_regret(runs, maximize=checked.spec.search.mode == "max")


def _accountant(checked: Preflight, composition: Composition | None) -> str:
    """Return the accountant of the epsilon of all that was run."""
    if composition is not None:
        return composition.accountant
    privacy = checked.spec.privacy
    return privacy.accountant if privacy.mode.is_public_search else "rdp"


def _num_trials(checked: Preflight) -> int:
    spec = checked.spec
    if not spec.privacy.mode.is_sealed:
        return checked.num_trials
    selection = Selection(spec.privacy.selection.mean, spec.privacy.selection.shape)
    seed = public_seed(spec.seed, 0, "number of simulated trials")
    return max(1, selection.draw(np.random.default_rng(seed)))


def _releases(checked: Preflight, orders: Array) -> tuple[Array, Callable[[int], float]]:
    """Return the Renyi cost of a noisy score at each order, and the epsilon of so many of them."""
    noise, delta = checked.admission.validation_noise, checked.spec.privacy.delta
    if noise is None:
        return np.zeros(len(orders)), lambda count: 0.0
    event = Gaussian(noise)

    @cache
    def epsilon(count: int) -> float:
        return epsilon_of(Plan((EventRun(event, count),)), delta=delta)

    return event_costs([event], orders)[0], epsilon


def _with_regret(runs: Sequence[PolicyRun], *, maximize: bool) -> list[PolicyRun]:
    """Compare each policy's winner with the best configuration that any policy drew."""
    drawn = [run.best_full for run in runs if run.best_full is not None]
    if not drawn:
        return list(runs)
    best = max(drawn) if maximize else min(drawn)
    return [
        run
        if run.full_score is None
        else dataclasses.replace(run, regret=abs(best - run.full_score))
        for run in runs
    ]
