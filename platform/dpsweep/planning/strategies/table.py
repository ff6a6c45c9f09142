"""The strategies: honest ways to search one range, from the cheapest that is known downwards."""

from __future__ import annotations

import math
from typing import Any, Literal

from dpsweep.planning.strategies.base import Make, Strategy, searched_range, study
from dpsweep.planning.strategies.trial_budget import (
    StudyCost,
    declared,
    filtered,
    halved,
    largest_trial_epsilon,
    quiet_enough,
    rungs_at,
    selected,
)
from dpsweep.spec.search.probe import NOISE_SCALE, PROBE
from dpsweep.spec.study import SweepSpec

#: Whole trials of ``fifo``.
NUM_WHOLE = 8
#: Trials of ``halving``, one in how many goes on from a rung, and the shares of its steps that a
#: trial has behind it there.
NUM_HALVED, REDUCTION = 16, 4
RUNGS = (0.1, 0.35)
#: Trials that are paid for up to each rung and to the end. They do not wait for each other, so some
#: go on that would not have, had all the others been there.
_PAID = (NUM_HALVED, NUM_HALVED // REDUCTION + 2, 2)
#: Expected number of trials of ``select``, and the spread of that number: the geometric one.
MEAN, SHAPE = 10, 1
#: A good ``optim.noise_scale`` of linear layers (``noise_rates``).
DEFAULT_SCALE = 5.0


def _probe(base: SweepSpec, epsilon: float) -> SweepSpec:
    # The final run may cost whatever is left, so the cap of one trial is that of all.
    privacy = {
        "accounting": "composed",
        "composition": "declared",
        "trial_epsilon": epsilon,
        "study_epsilon": epsilon,
    }
    return study(base, "probe", privacy=privacy, search={"strategy": PROBE})


def _halving(base: SweepSpec, epsilon: float) -> SweepSpec:
    def at(trial_epsilon: float, **rungs: list[float]) -> SweepSpec:
        scheduler = {"type": "epsilon_halving", "variant": "promote", **rungs}
        return study(
            base,
            "halving",
            privacy=_composed("filter", epsilon, trial_epsilon),
            search={"sampler": "random", "num_trials": NUM_HALVED},
            scheduler={**scheduler, "reduction_factor": REDUCTION},
        )

    base = quiet_enough(at(epsilon), base, epsilon, scores=sum(_PAID))
    # Its rungs are in epsilons of a trial, which must be there first.
    trial_epsilon = largest_trial_epsilon(at(epsilon), halved(RUNGS, _PAID))
    return at(trial_epsilon, rungs=rungs_at(at(epsilon), trial_epsilon, RUNGS))


def _whole_trials(name: str, composition: Literal["filter", "declared"], cost: StudyCost) -> Make:
    def make(base: SweepSpec, epsilon: float) -> SweepSpec:
        def at(trial_epsilon: float) -> SweepSpec:
            return study(
                base,
                name,
                privacy=_composed(composition, epsilon, trial_epsilon),
                search={"sampler": "random", "num_trials": NUM_WHOLE},
            )

        base = quiet_enough(at(epsilon), base, epsilon, scores=NUM_WHOLE)
        return at(largest_trial_epsilon(at(epsilon), cost))

    return make


def _selected(name: str, accountant: Literal["rdp", "pld"]) -> Make:
    def make(base: SweepSpec, epsilon: float) -> SweepSpec:
        def at(trial_epsilon: float, **cap: float) -> SweepSpec:
            privacy = {
                "accounting": "select",
                "accountant": accountant,
                "selection": {"mean": MEAN, "shape": SHAPE},
                "trial_epsilon": trial_epsilon,
                **cap,
            }
            return study(base, name, privacy=privacy, search={"sampler": "random"})

        return at(largest_trial_epsilon(at(epsilon), selected), study_epsilon=epsilon)

    return make


def all_of_epsilon(base: SweepSpec, epsilon: float) -> SweepSpec:
    """Return the spec of one random configuration that has all of epsilon."""
    return _one_run(base, "random", epsilon, None)


def _default(base: SweepSpec, epsilon: float) -> SweepSpec:
    return _one_run(base, "default", epsilon, default_value(base))


def default_value(base: SweepSpec) -> float:
    """Return the value that is taken without a search.

    5 for ``optim.noise_scale`` of a linear model; else the geometric middle of the range, which is
    what whoever wrote it holds for likely.
    """
    searched = searched_range(base)
    if searched.name == NOISE_SCALE and base.search.space.get("model.name") == "linear":
        return DEFAULT_SCALE
    return float(f"{math.sqrt(searched.low * searched.high):.3g}")


def _one_run(base: SweepSpec, name: str, epsilon: float, domain: float | None) -> SweepSpec:
    """Return one trial at all of epsilon: it is declared, so nothing is lost to a filter."""
    return study(
        base,
        name,
        privacy=_composed("declared", epsilon, epsilon),
        search={"sampler": "random", "num_trials": 1},
        domain=domain,
    )


def _composed(composition: str, epsilon: float, trial_epsilon: float) -> dict[str, Any]:
    return {
        "accounting": "composed",
        "composition": composition,
        "accountant": "pld" if composition == "declared" else "rdp",
        "study_epsilon": epsilon,
        "trial_epsilon": trial_epsilon,
    }


#: In the order in which they are shown.
STRATEGIES: tuple[Strategy, ...] = (
    Strategy(
        "probe",
        "probes",
        "very noisy runs over the whole range, then one run with all that is left; all declared",
        _probe,
    ),
    Strategy(
        "halving",
        "halving",
        f"{NUM_HALVED} random configurations, about one in {REDUCTION} goes on from each of "
        f"{len(RUNGS)} rungs; Renyi filter",
        _halving,
    ),
    Strategy(
        "fifo",
        "whole trials",
        f"{NUM_WHOLE} random configurations, each run to its end; Renyi filter",
        _whole_trials("fifo", "filter", filtered(NUM_WHOLE)),
    ),
    Strategy(
        "fifo_declared",
        "whole trials, declared",
        f"{NUM_WHOLE} random configurations, each run to its end; declared",
        _whole_trials("fifo_declared", "declared", declared(NUM_WHOLE)),
    ),
    Strategy(
        "select",
        "select",
        f"the best of a random number of trials, {MEAN} on average; only the winner is released",
        _selected("select", "rdp"),
    ),
    Strategy(
        "select_profiles",
        "select by profiles",
        "the same, bounded by the privacy profile of one trial in the place of its Renyi curve",
        _selected("select_profiles", "pld"),
    ),
    Strategy(
        "random",
        "one random trial",
        "one random configuration, which has all of epsilon",
        all_of_epsilon,
    ),
    Strategy(
        "default",
        "no search",
        "a value that is often good, which has all of epsilon",
        _default,
    ),
)
