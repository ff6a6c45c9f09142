"""The runs of strategy ``probe``: which there are, what each may cost, how they are declared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpsweep.foundation.errors import InfeasibleBudgetError, SpecError
from dpsweep.foundation.words import counted
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.calibration.largest import largest_within
from dpsweep.privacy.composition.declared import (
    DeclaredClass,
    declared_classes,
    declared_epsilon,
)
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.events import Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.spec.space.parameter import Parameter
from dpsweep.study.trial import TrialTask

_CLOSE = 5e-4  # what may be left of the study's budget, as a share of it


@dataclass(frozen=True)
class ProbingFigures:
    """What probes and their final run cost.

    Attributes:
        parameter: The searched one.
        low: Its first point.
        high: Its last point.
        num_probes: Points from bound to bound.
        spares: Further probes that are declared.
        probe_epsilon: Of one probe alone.
        probes_epsilon: Of all of them together, spares included, by pld.
        final_epsilon: Of the final run alone.
    """

    parameter: str
    low: float
    high: float
    num_probes: int
    spares: int
    probe_epsilon: float
    probes_epsilon: float
    final_epsilon: float


@dataclass(frozen=True)
class Probing:
    """The probes of a study and its final run, as tasks.

    The epsilon of the final run is what the probes leave: the largest (of four digits) with which
    probes, spares and final run, declared in two phases, cost at most ``privacy.study_epsilon``.
    It depends on the spec alone, so a study that goes on plans the same final run.

    Attributes:
        checked: The study's checked spec.
    """

    checked: Preflight

    @property
    def parameter(self) -> Parameter:
        """The one range that is searched."""
        return next(p for p in self.checked.space.parameters if p.kind != "fixed")

    @property
    def num_probes(self) -> int:
        """Points of the range."""
        return self.checked.spec.search.probe.num_probes

    @property
    def ratio(self) -> float:
        """What one point of the range is over the one before."""
        low, high = self.parameter.low, self.parameter.high
        return float((high / low) ** (1 / (self.num_probes - 1)))

    @property
    def points(self) -> tuple[float, ...]:
        """The values of the probes, ascending: from bound to bound in equal ratios."""
        low, high = self.parameter.low, self.parameter.high
        inner = [low * self.ratio**index for index in range(1, self.num_probes - 1)]
        return (low, *inner, high)

    def task(self, number: int, value: float) -> TrialTask:
        """Return the run of a number as a task: a probe, a spare or the final run.

        Raises:
            InfeasibleBudgetError: It has no plan within what it may cost.
        """
        is_final = number == self.checked.spec.final_trial
        return self.final(value) if is_final else self.probe(number, value)

    def probe(self, number: int, value: float) -> TrialTask:
        """Return a probe as a task.

        Raises:
            InfeasibleBudgetError: It has no plan within ``search.probe.epsilon``.
        """
        overrides = self.checked.spec.search.probe.overrides
        return self._within(self.checked.spec.search.probe.epsilon).admit(
            number, {**self._values(value), **overrides}
        )

    def final(self, value: float) -> TrialTask:
        """Return the final run as a task.

        Raises:
            InfeasibleBudgetError: It has no plan within what the probes leave.
        """
        number = self.checked.spec.final_trial
        assert number is not None
        return self._within(self.final_epsilon).admit(number, self._values(value))

    def _within(self, epsilon: float) -> Preflight:
        training = replace(self.checked.budget, target_epsilon=epsilon)
        return replace(self.checked, training=training)

    def _values(self, value: float) -> Mapping[str, Any]:
        fixed = self.checked.space.sample(np.random.default_rng(0))
        return {**fixed, self.parameter.name: value}

    @cached_property
    def final_epsilon(self) -> float:
        """What the final run may cost alone, by the study's accountant.

        Raises:
            SpecError: The probes leave nothing that a run could be planned with.
        """
        privacy = self.checked.spec.privacy
        assert privacy.study_epsilon is not None

        def cost(epsilon: float) -> float:
            try:
                plan = self._planned(epsilon)
                # Two phases of one plan cannot be declared; of nearly the same plan they can.
                if plan == self.probe_plan:
                    plan = self._planned(0.999 * epsilon)
                return declared_epsilon(self._classes(plan), privacy.delta)
            except InfeasibleBudgetError:
                return math.nan

        epsilon = largest_within(
            cost,
            privacy.study_epsilon,
            most=self.checked.budget.target_epsilon,
            close=_CLOSE,
        )
        if epsilon is None:
            raise self._no_final_run()
        return epsilon

    def _no_final_run(self) -> SpecError:
        spec = self.checked.spec
        privacy, most, noise = spec.privacy, spec.search.probe.most, spec.data.validation.noise_std
        assert privacy.study_epsilon is not None
        terms = f"at delta={shown_delta(privacy.delta)} (pld, declared)"
        scores = self._scores()
        scored = declared_epsilon(scores, privacy.delta)
        if noise is not None and not scored < privacy.study_epsilon:
            filter = GaussianFilter.at(target_epsilon=privacy.study_epsilon, delta=privacy.delta)
            count = sum(declared.count for declared in scores)
            least = math.sqrt(count / filter.budget) / self.checked.info.num_validation
            return self.checked.refusal(
                "data.validation.noise_std",
                f"{noise:g} makes {counted(count, 'noisy score')} cost epsilon="
                f"{shown_epsilon(scored)} {terms}, over "
                f"study_epsilon={privacy.study_epsilon:g}",
                f"{math.ceil(least * 1e5) / 1e5:g} is enough",
            )
        return self.checked.refusal(
            "privacy.study_epsilon",
            f"{privacy.study_epsilon:g} leaves no final run: {most} probes cost epsilon="
            f"{shown_epsilon(self.probes_epsilon)} {terms}",
            "raise it, or lower search.probe.epsilon or search.probe.num_probes",
        )

    def _scores(self) -> tuple[DeclaredClass, ...]:
        """Return the noisy scores of all runs."""
        try:
            final = self._planned(self.checked.budget.target_epsilon)
        except InfeasibleBudgetError:  # one score costs more than everything may
            final = self.probe_plan
        classes = self._classes(final)
        return tuple(declared for declared in classes if declared.part == "validation")

    def _planned(self, epsilon: float) -> Plan:
        """Return the plan of a final run of this epsilon; it is the same at every point."""
        return self._within(epsilon).admit(0, self._values(self.points[0])).full_plan

    @cached_property
    def probe_plan(self) -> Plan:
        """The plan that every probe has.

        Raises:
            SpecError: One of them has none within ``search.probe.epsilon``.
        """
        try:
            tasks = [self.probe(n, value) for n, value in enumerate(self.points)]
        except InfeasibleBudgetError as error:
            problem = f"a probe has no plan: {error.message}"
            fix = error.fix or "raise search.probe.epsilon"
            raise self.checked.refusal("search.probe", problem, fix) from error
        return tasks[0].full_plan

    @property
    def phases(self) -> list[list[tuple[Plan, int]]]:
        """What is declared: the probes with their spares, then the final run."""
        most = self.checked.spec.search.probe.most
        return [[(self.probe_plan, most)], [(self._planned(self.final_epsilon), 1)]]

    def _classes(self, final: Plan) -> tuple[DeclaredClass, ...]:
        most = self.checked.spec.search.probe.most
        return declared_classes([[(self.probe_plan, most)], [(final, 1)]])

    @property
    def probes_epsilon(self) -> float:
        """What all probes and spares cost together, without the final run."""
        return declared_epsilon(self._classes(Plan(())), self.checked.spec.privacy.delta)

    @property
    def figures(self) -> ProbingFigures:
        """What the study does and what each part of it costs."""
        probe = self.checked.spec.search.probe
        return ProbingFigures(
            parameter=self.parameter.name,
            low=self.parameter.low,
            high=self.parameter.high,
            num_probes=probe.num_probes,
            spares=probe.spares,
            probe_epsilon=self.tasks[0].planned_epsilon,
            probes_epsilon=self.probes_epsilon,
            final_epsilon=self.tasks[-1].planned_epsilon,
        )

    @cached_property
    def tasks(self) -> list[TrialTask]:
        """Every probe of the range, and the final run at the range's middle."""
        middle = math.sqrt(self.parameter.low * self.parameter.high)
        probes = [self.probe(number, value) for number, value in enumerate(self.points)]
        return [*probes, self.final(middle)]
