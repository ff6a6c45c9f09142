"""The composition of a search on a part of the records and one final run on the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.base import Composition, Cost
from dpsweep.privacy.composition.declared import DeclaredComposition
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events.plan import NO_PLAN, REST, Plan
from dpsweep.privacy.terms import AccountantName

#: Name of the limit that one final run takes the whole of.
FINAL_RUN = "final_run"
_OF_SEARCHES: Mapping[str, type[Composition]] = {
    kind.kind: kind for kind in (RenyiFilter, GaussianFilter, DeclaredComposition)
}


@dataclass(frozen=True)
class SplitComposition(Composition):
    """A search on one part of the records (``private``), then one run on all others (``rest``).

    >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
    >>> search = RenyiFilter.at(8, target_epsilon=2.0, delta=1e-5)
    >>> split = SplitComposition(search, 0.1, "rdp")
    >>> run = Plan((EventRun(PoissonGaussian(1.0, 0.01), 800),))
    >>> split.cost(run)["private"] == search.cost(run)["private"], split.cost(run)["final_run"]
    (True, 0.0)
    >>> split.cost(run.moved("private", "rest"))  # epsilon 1.9: the one run that there may be
    {'private': 0.0, 'validation': 0.0, 'final_run': 1.0}

    Guarantees:
        The whole interaction is (target_epsilon, delta)-DP under add-or-remove-one, which is the
        larger of what its parts cost and not their sum.

        Why: let X1 be the part that is searched on, X2 the rest, V the validation records. Which of
        them a record is in is a function of its position and of declared numbers, never of another
        record, so neighboring data sets differ in one of the three alone.

        They differ in X1: every event on X2 or V has, given all that was released before, the same
        distribution for both, and only the choice of what it does depends on X1, through what was
        released. So all of them, the final run above all, are randomness that the search's
        adversary may draw itself, or post-processing of what the search has released: the loss of
        the whole transcript is that of the events on X1, chosen adaptively, and ``search`` bounds
        it. They differ in V: likewise, by ``search``, whose limit for V the scores of all trials
        share, those of the final run among them, which are ``kept`` for it from the start.

        They differ in X2: everything before the final run has one and the same distribution for
        both, as nothing of it reads X2. Given an outcome w of it, the final run's plan is fixed,
        and the accountant bounds it: Q_w(S) <= exp(target_epsilon) Q'_w(S) + delta for every set
        S. Both sides averaged over w, the same holds for the whole. That the winner carries
        information on X1 into the run on X2 matters to none of the three. One final run only: the
        first one takes the whole limit, and nothing is given back once it has charged anything.
        Parallel composition: McSherry 2009, https://doi.org/10.1145/1559845.1559850.

        A plan that reads both X1 and X2 is refused (``refusal``); events on V that were not kept
        are added to the search's.

        Not covered: a record that is in both parts, as copies of it are; a share that is chosen
        after records were seen; and outputs that no event describes.

    Attributes:
        search: Of all that the search charges, on X1 and on V; of the whole target.
        part: Share of the private records that are in X1.
        final_accountant: Accountant of the final run.
        kept: Noisy scores of the final run, which the search leaves room for.
        target_epsilon: That of the search, and of the final run, hence of the whole.
        delta: Likewise.
    Raises:
        BadInputError: A value is out of range, or what is kept is more than there is.
    """

    kind: ClassVar[str] = "split"

    search: Composition
    part: float
    final_accountant: AccountantName
    kept: Plan = NO_PLAN
    target_epsilon: float = field(init=False)
    delta: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "part", validate.in_unit_interval("part", self.part))
        object.__setattr__(self, "target_epsilon", self.search.target_epsilon)
        object.__setattr__(self, "delta", self.search.delta)
        validate.one_of("final_accountant", self.final_accountant, ("rdp", "pld"))
        if any(run.part != "validation" for run in self.kept.runs):
            raise BadInputError("only scores on validation records can be kept for the final run")
        if not all(left >= 0 for left in self.limits.values()):
            raise BadInputError(
                "the scores of the final run alone cost more than the study may spend",
                fix="a larger data.validation.noise_std, or fewer report.points",
            )

    @property
    def title(self) -> str:
        """That of the search."""
        return self.search.title

    @property
    def choice(self) -> str:
        """That of the search."""
        return self.search.choice

    @property
    def measure(self) -> str:
        """That of the search."""
        return self.search.measure

    @property
    def accountant(self) -> str:
        """That of the search; ``final_accountant`` bounds the final run."""
        return self.search.accountant

    @property
    def slack(self) -> float:
        """That of the search."""
        return self.search.slack

    @property
    def searched_share(self) -> float:
        """Share of the private records that the search is on."""
        return self.part

    @property
    def of_trials(self) -> Composition:
        """What bounds the search."""
        return self.search

    @cached_property
    def _kept_cost(self) -> Cost:
        return self.search.cost(self.kept)

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """Limits of the search without what is kept, and one final run, with room for its slack."""
        limits = {name: limit - self._kept_cost[name] for name, limit in self.search.limits.items()}
        return {**limits, FINAL_RUN: 1.0 + 2 * self.slack}

    def cost(self, plan: Plan) -> dict[str, float]:
        """Return what a plan takes: of the search's limits, and the final run if it is one.

        A final run on the rest takes its scores out of what is kept, first of all; one that costs
        more than the target takes more than there is.
        """
        final, other = plan.part(REST), plan.without(REST)
        cost = self.search.cost(other)
        if not final:
            return {**cost, FINAL_RUN: 0.0}
        cost = {name: max(amount - self._kept_cost[name], 0.0) for name, amount in cost.items()}
        return {**cost, FINAL_RUN: 1.0 if self._is_within(final) else math.inf}

    def _is_within(self, final: Plan) -> bool:
        epsilon = epsilon_of(final, delta=self.delta, accountant=self.final_accountant)
        return epsilon <= self.target_epsilon

    def words(self, name: str, amount: float) -> str:
        """Return an amount of one limit in words."""
        if name != FINAL_RUN:
            return self.search.words(name, amount)
        return (
            f"{amount:g} final runs"
            if math.isfinite(amount)
            else f"a final run of more than epsilon={self.target_epsilon:g}"
        )

    def about(self) -> str:
        """Return what bounds the search, on which share, and that the rest has the same budget."""
        return (
            f"{self.search.about()} on {self.part:.4g} of the private records, and one final run "
            "on all others"
        )

    def of_search(self, cost: Cost) -> Cost:
        """Return the part of a cost that is the search's."""
        return {name: cost[name] for name in self.search.limits}

    @property
    def spent_accountant(self) -> str:
        """That of the search, and that of the final run."""
        of_search = self.search.spent_accountant
        return of_search and f"{of_search}, of the final run {self.final_accountant}"

    def spent_epsilon(self, cost: Cost) -> float:
        """Return an epsilon of what was spent, for information; see ``Composition``.

        Of the search alone until there is a final run, which may take all that is declared.
        """
        spent = self.search.spent_epsilon(self.of_search(cost))
        return max(spent, self.target_epsilon) if cost[FINAL_RUN] else spent

    def share(self, cost: Cost) -> float:
        """Return the largest share of a limit of the search: a final run takes none of these."""
        return max(
            (cost[n] / self.limits[n] for n in self.search.limits if self.limits[n]), default=0
        )

    def phase(self, name: str) -> int | None:
        """Return the phase of the search; the final run is no part of them."""
        return 0 if name == FINAL_RUN else self.search.phase(name)

    def verify(self) -> None:
        """See ``Composition``."""
        self.search.verify()

    def refusal(self, plan: Plan) -> str:
        """Say why a plan would never be admitted: it reads both parts, or as the search says."""
        final = plan.part(REST)
        if final and plan.part("private"):
            return "it reads both the part that is searched on and the rest"
        if final and not self._is_within(final):
            return f"its final run would cost more than epsilon={self.target_epsilon:g}"
        if final and any(self.cost(plan)[name] for name in self.search.limits):
            return "its final run would release more noisy scores than are kept for it"
        return self.search.refusal(plan.without(REST))

    def as_declared(self, plan: Plan) -> Plan:
        """Return a plan of the search as that says; the final run's events are not declared."""
        return plan if plan.part(REST) else self.search.as_declared(plan)

    def to_json(self) -> dict[str, Any]:
        """Return the fields; floats survive ``json`` exactly."""
        return {
            "search": {"kind": self.search.kind, **self.search.to_json()},
            "part": self.part,
            "final_accountant": self.final_accountant,
            "kept": self.kept.to_json(),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> SplitComposition:
        """Rebuild what ``to_json`` wrote.

        Raises:
            BadInputError: It is none.
        """
        search = raw["search"]
        kind = validate.one_of("search.kind", search["kind"], tuple(_OF_SEARCHES))
        return cls(
            _OF_SEARCHES[kind].from_json(search),
            raw["part"],
            raw["final_accountant"],
            Plan.from_json(raw["kept"]),
        )
