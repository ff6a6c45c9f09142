"""A search on a secret part of the records: its price, and what it leaves to the final run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning.costs.charge import SelectionCharge
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.accountants import analytic_gaussian_epsilon
from dpsweep.privacy.calibration.largest import largest_within
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.events import NO_PLAN, Plan
from dpsweep.privacy.selection.bounds import dearest
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.selection.on_subset import SubsetBound
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.study.trial import TrialTask

#: How near below ``study_epsilon`` search and final run come together, relative to it.
_CLOSE = 0.002
_LESS = "lower privacy.trial_epsilon, search.on.subset or privacy.selection.mean"


@dataclass(frozen=True)
class SecretPartFigures:
    """What a search on a secret part of the records costs, and what is left to its final run.

    Attributes:
        rate: Probability that a private record is in the part.
        records: Declared private records, of which that is the share.
        search_epsilon: Of the search alone.
        final_epsilon: What the final run is planned within; None where nothing fits.
        problem: Why nothing fits; empty where something does.
    """

    rate: float
    records: int
    search_epsilon: float
    final_epsilon: float | None
    problem: str = ""


@dataclass(frozen=True)
class SecretPart:
    """A search on a secret part of the records, and the final run of what it finds, priced.

    Attributes:
        checked: The checked spec.
    """

    checked: Preflight

    @property
    def selection(self) -> Selection:
        """Distribution of the number of trials."""
        chosen = self.checked.spec.privacy.selection
        return Selection(chosen.mean, chosen.shape)

    def search_epsilon(self) -> float:
        """Return what the search alone costs: its configuration, released without a final run."""
        return self.search_bound.search_epsilon(
            self.selection, delta=self.checked.spec.privacy.delta
        )

    @cached_property
    def search_bound(self) -> SubsetBound:
        """What no trial of the search exceeds; without a final run."""
        return self._bound([NO_PLAN], self._cap)

    def charge(self) -> SelectionCharge:
        """Return what the study costs, with the largest final run that the search leaves room for.

        It depends on the spec alone, so a study that goes on plans the same final run.

        Guarantees:
            Its epsilon is at most ``privacy.study_epsilon``, by bounds that hold for every
            configuration that is admitted, whichever of them is found (``SubsetBound``).

        Raises:
            SpecError: The search alone costs more than that, or too little is left.
        """
        cap = self._cap
        alone = self.search_epsilon()
        if not alone < cap:
            raise self._refusal(
                f"{cap:g} is below epsilon={shown_epsilon(alone)}, which the search on the secret "
                "part alone costs"
            )
        final_epsilon = self._final_epsilon(alone)
        if final_epsilon is None:
            raise self._refusal(
                f"{cap:g} leaves no final run beside the search on the secret part, which costs "
                f"epsilon={shown_epsilon(alone)} of it",
                ""
                if self.checked.admission.validation_noise is None
                else "; or raise data.validation.noise_std, as the scores of both add up",
            )
        bound = self._bound(self._finals(final_epsilon), final_epsilon)
        return SelectionCharge(self.selection, bound, self._cost(bound))

    @property
    def _cap(self) -> float:
        cap = self.checked.spec.privacy.study_epsilon
        assert cap is not None
        return cap

    def _final_epsilon(self, alone: float) -> float | None:
        """Return the largest epsilon of a final run, to four digits, that was seen to fit.

        Each guess plans anew the configurations whose trials are dearest somewhere, and all of them
        if those fit. The first guess takes search and final run for two Gaussian mechanisms.

        Args:
            alone: Epsilon of the search.
        """
        tasks, delta = self.checked.sample, self.checked.spec.privacy.delta
        by = self.checked.spec.privacy.accountant
        those = [tasks[index] for index in dearest([task.full_plan for task in tasks], by)]

        def cost(epsilon: float) -> float:
            price = math.inf
            for some in (those, tasks):
                finals = self._finals(epsilon, some)
                price = self._cost(self._bound(finals, epsilon)) if finals else math.inf
                if price > self._cap:
                    return price
            return price

        whole, searched = (
            GaussianFilter.at(target_epsilon=epsilon, delta=delta).budget
            for epsilon in (self._cap, alone)
        )
        guess = float(f"{analytic_gaussian_epsilon(math.sqrt(whole - searched), delta):.4g}")
        first = (guess, cost(guess)) if guess > 0 else None
        return largest_within(cost, self._cap, known=first, most=self._cap, close=_CLOSE)

    def _finals(self, epsilon: float, tasks: Sequence[TrialTask] | None = None) -> list[Plan]:
        """Return the plans of the final runs of trials, where they have one within an epsilon."""
        planner, plans = self.checked.with_final(epsilon), []
        for task in self.checked.sample if tasks is None else tasks:
            try:
                plans.append(planner.final_of(task.trial, task).full_plan)
            except BadInputError:
                continue  # such a configuration is not drawn
        return plans

    def _bound(self, finals: Sequence[Plan], final_epsilon: float) -> SubsetBound:
        spec = self.checked.spec
        assert spec.subset_rate is not None
        return SubsetBound.of(
            [task.full_plan for task in self.checked.sample],
            finals,
            rate=spec.subset_rate,
            final_epsilon=final_epsilon,
            accountant=spec.privacy.accountant,
        )

    def _cost(self, bound: SubsetBound) -> float:
        return bound.selected(self.selection, delta=self.checked.spec.privacy.delta)

    def _refusal(self, problem: str, more: str = "") -> SpecError:
        delta = self.checked.spec.privacy.delta
        return self.checked.refusal(
            "privacy.study_epsilon",
            f"{problem} at delta={shown_delta(delta)}",
            f"raise it, or {_LESS}{more}",
        )
