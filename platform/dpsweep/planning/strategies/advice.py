"""Advice: every strategy of one base spec, priced and played on the noise model of curves."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError, SweepError
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.preflight import Preflight, preflight
from dpsweep.planning.simulation.noise_model import NoiseCurves, checked_signal
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.planning.strategies.base import Strategy, searched_range
from dpsweep.planning.strategies.table import STRATEGIES, all_of_epsilon
from dpsweep.privacy.randomness import public_seed
from dpsweep.privacy.terms import PrivacyTerms
from dpsweep.spec.study import SweepSpec

#: Points of regret by which a strategy must be better to be worth more compute: runs that differ in
#: nothing are .2 to .3 point apart.
NEGLIGIBLE = 0.1
_CHANCES = {"multi_label": 0.5}  # of a guess; of other tasks one over the number of classes


@dataclass(frozen=True)
class PlayedStrategy:
    """A strategy that was priced and played.

    Attributes:
        strategy: The strategy.
        spec: Its spec of the base, all of it within one epsilon.
        epsilon: Of the run that it delivers, alone, by the spec's accountant.
        terms: Of that epsilon.
        runs: Trials that it starts, on average.
        compute: Their steps over those of one full run, on average.
        regrets: Of each replicate, in points of accuracy: how far what it delivers is below runs of
            all of epsilon at the best value.
    """

    strategy: Strategy
    spec: SweepSpec
    epsilon: float
    terms: PrivacyTerms
    runs: float
    compute: float
    regrets: tuple[float, ...]

    @property
    def regret(self) -> float:
        """Their mean."""
        return statistics.fmean(self.regrets)

    @property
    def standard_error(self) -> float:
        """Of that mean."""
        return statistics.stdev(self.regrets) / math.sqrt(len(self.regrets))

    def to_dict(self) -> dict[str, Any]:
        """Return the row of ``dpsweep advise --json``."""
        return {
            "strategy": self.strategy.name,
            "about": self.strategy.about,
            "epsilon": self.epsilon,
            **self.terms.columns(),
            "composition": self.spec.privacy.composition
            if self.spec.privacy.mode.is_filtered
            else None,
            "runs": self.runs,
            "compute": self.compute,
            "regret": self.regret,
            "standard_error": self.standard_error,
            "noise_std": self.spec.data.validation.noise_std,
        }


@dataclass(frozen=True)
class Advice:
    """Strategies of a base spec, played on a noise model, and the one to take.

    Attributes:
        base: The base spec.
        epsilon: Of everything, search included.
        replicates: How often each was played.
        seed: Of all draws.
        played: Those that were played, in the order in which they are shown.
        refused: Those that the base or epsilon leaves no room for, and why.
    """

    base: SweepSpec
    epsilon: float
    replicates: int
    seed: int
    played: tuple[PlayedStrategy, ...]
    refused: tuple[tuple[Strategy, str], ...]

    @property
    def best(self) -> PlayedStrategy:
        """The one with the least regret."""
        return min(self.played, key=lambda one: one.regret)

    @property
    def choice(self) -> PlayedStrategy:
        """The one with the least compute among those as good as the best."""
        as_good = [one for one in self.played if one.regret <= self.best.regret + NEGLIGIBLE]
        return min(as_good, key=lambda one: one.compute)

    @property
    def is_taken(self) -> bool:
        """Whether the base spec is that of the choice already, its name aside."""
        return self.choice.spec.model_copy(update={"name": self.base.name}) == self.base


def advise(
    base: SweepSpec,
    *,
    epsilon: float,
    replicates: int,
    seed: int = 0,
    strategies: Sequence[Strategy] = STRATEGIES,
    tell: Callable[[str], None] = lambda title: None,
) -> Advice:
    """Price every strategy of a base spec and play it on the noise model of learning curves.

    Guarantees:
        Costs are those that a study would declare; regrets are a model's (``NoiseCurves``), and
        claim nothing of these records. None is read.

    Args:
        base: Searches one range (``searched_range``), by accuracy.
        epsilon: Of everything, search included.
        replicates: Plays of each strategy, at least 2: each draws another best value.
        seed: The same one gives the same advice.
        strategies: To choose from, at least one.
        tell: Told the title of each strategy before it is priced.
    Raises:
        BadInputError: The base searches something else, or no strategy fits into ``epsilon``.
    """
    epsilon = validate.positive("epsilon", epsilon)
    replicates = validate.whole("replicates", replicates, low=2)
    _check_base(base)
    reference = _Reference.of(base, epsilon, replicates, seed)
    played: list[PlayedStrategy] = []
    refused: list[tuple[Strategy, str]] = []
    for strategy in strategies:
        tell(strategy.title)
        try:
            played.append(reference.play(strategy, strategy.spec(base, epsilon=epsilon)))
        except SweepError as error:
            refused.append((strategy, error.message))
    if not played:
        raise BadInputError(
            f"no strategy fits into epsilon={epsilon:g}", because=refused[0][1], fix="a larger one"
        )
    return Advice(base, epsilon, replicates, seed, tuple(played), tuple(refused))


@dataclass(frozen=True)
class _Reference:
    """One run of all of epsilon: against its accuracy at the best value regrets are counted.

    Attributes:
        steps: Of that run.
        signal: Of its plan.
        curves: Of each replicate.
    """

    steps: int
    signal: float
    curves: tuple[NoiseCurves, ...]

    @classmethod
    def of(cls, base: SweepSpec, epsilon: float, replicates: int, seed: int) -> _Reference:
        checked = preflight(all_of_epsilon(base, epsilon))
        task, info = checked.sample[0], checked.info
        curves = [
            NoiseCurves(
                searched_range(base),
                seed=public_seed(seed, replicate, "advice") % 2**32,
                chance=_CHANCES.get(info.task, 1 / max(info.num_classes, 1)),
                num_validation=info.num_validation,
            )
            for replicate in range(replicates)
        ]
        signal = checked_signal(checked.admission.signal(task.plan, task.hparams))
        return cls(len(task.plan), signal, tuple(curves))

    def play(self, strategy: Strategy, spec: SweepSpec) -> PlayedStrategy:
        """Play a strategy once on the curves of each replicate.

        Raises:
            SweepError: Its study would not start.
        """
        checked = preflight(spec)
        delivered = Probing(checked).tasks[-1] if spec.final_trial else checked.sample[0]
        noise_std = spec.data.validation.noise_std or 0.0  # a strategy of many scores has more
        plays = [
            self._play(checked, dataclasses.replace(curves, noise_std=noise_std))
            for curves in self.curves
        ]
        runs, steps, regrets = zip(*plays)
        return PlayedStrategy(
            strategy,
            spec,
            epsilon=delivered.planned_epsilon,
            terms=spec.privacy_terms(delivered.sampling),
            runs=statistics.fmean(runs),
            compute=statistics.fmean(steps) / self.steps,
            regrets=regrets,
        )

    def _play(self, checked: Preflight, curves: NoiseCurves) -> tuple[int, int, float]:
        """Return trials, steps and regret of one replicate."""
        spec = checked.spec.model_copy(update={"seed": curves.seed})
        (run,) = simulate(
            dataclasses.replace(checked, spec=spec), curves, policies=[spec.scheduler.type]
        )
        delivered = curves.chance if run.full_score is None else run.full_score
        best = curves.accuracy(curves.best_value, self.signal)
        return run.started, run.steps, 100 * (best - delivered)


def _check_base(base: SweepSpec) -> None:
    """Refuse a base spec that strategies or the noise model are not for, with a way out.

    Raises:
        BadInputError: It searches something else than one range, or not by accuracy.
    """
    try:
        searched_range(base)
    except BadInputError as error:
        fix = error.fix
        if base.search.space.get("method") == "dp_sgd":
            fix = f"start from `dpsweep init --probe --dataset {base.data.dataset}`, or {fix}"
        raise BadInputError(error.message, because=error.because, fix=fix) from error
    if base.search.mode != "max" or not base.search.metric.endswith("/accuracy"):
        raise BadInputError(
            f"the noise model is one of accuracies, and this spec searches by {base.search.metric}",
            fix="--set search.metric=validation/accuracy --set search.mode=max",
        )
