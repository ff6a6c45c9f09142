"""A selection on a secret part of the records, and one final run on all of them: its price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError, LedgerError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import multiset_epsilon
from dpsweep.privacy.events import Part, Plan
from dpsweep.privacy.events.base import Array, PrivacyEvent, no_pld_error
from dpsweep.privacy.events.losses import Profile, loss_of_profile, profile_of
from dpsweep.privacy.events.multiset import Multiset, in_order
from dpsweep.privacy.events.poisson_subset import (
    WHOLE_ORDERS,
    between_orders,
    subset_profile,
    subset_rdp,
)
from dpsweep.privacy.events.repeat_and_select import repeat_and_select_rdp, selected_profile
from dpsweep.privacy.selection.bounds import (
    ProfileBound,
    RenyiBound,
    TrialBound,
    bound_of,
    read_bound,
)
from dpsweep.privacy.selection.curves import orders_of
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.terms import ACCOUNTANTS, AccountantName

_FINE = 1e-4
#: The parts of the records that a search and its final run read; a record is in one of them.
READ_PARTS: tuple[Part, ...] = ("private", "validation")


@dataclass(frozen=True)
class Bounded(PrivacyEvent):
    """A run of which no more is known than bounds that hold whichever plan it has.

    It is priced beside other events and stands in no plan, hence on no ledger.

    Guarantees:
        A Renyi curve is taken between its orders along its chords, as (a - 1) times the divergence
        is convex in the order a and 0 at order 1; beyond them it is infinite.

    Attributes:
        curve: At the ``orders_of`` it.
        deltas: As ``ProfileBound`` has them; none where accountant pld is not asked.
    """

    curve: tuple[float, ...]
    deltas: tuple[float, ...]

    name: ClassVar[str] = "bounded"

    @property
    def sampling(self) -> str:
        """Not known."""
        return "none"

    @property
    def is_free(self) -> bool:
        """True where every plan under it costs nothing."""
        return not any(self.curve) and not any(self.deltas)

    def renyi(self, orders: Array) -> Array:
        """Return the curve, between its orders along the chords."""
        curve = np.array(self.curve)
        finite = int(np.isfinite(curve).sum())
        return between_orders(curve[:finite], orders, at=orders_of(curve))

    @property
    def profile(self) -> Profile:
        """The profile, at any epsilon.

        Raises:
            BadInputError: Only its Renyi curve is known.
        """
        if not self.deltas:
            raise no_pld_error(self.name, "only its Renyi curve is known")
        return ProfileBound(np.array(self.deltas)).profile

    def privacy_loss(self, interval: float) -> Any:
        """Return the distribution that dominates every mechanism with this profile."""
        return loss_of_profile(self.profile, interval)


@dataclass(frozen=True)
class BoundedSearch(PrivacyEvent):
    """A selection among runs that are known by their bounds, on a secret part of the records.

    It costs what ``PoissonSubset`` of ``RepeatAndSelect`` does, of one plan as dear as the bounds.

    Attributes:
        once: One run.
        selection: Distribution of their number.
        rate: Probability that a record is in the part; 1 for all records.
    """

    once: Bounded
    selection: Selection
    rate: float

    name: ClassVar[str] = "bounded_search"

    @property
    def sampling(self) -> str:
        """Not known."""
        return "none"

    def renyi(self, orders: Array) -> Array:
        """Return the curve of ``repeat_and_select_rdp``, amplified by ``subset_rdp``."""
        selected = self._selected(orders)
        if self.rate == 1:
            return selected
        last = max(orders[-1], rdp.ORDERS[-1])
        whole = self._selected(WHOLE_ORDERS[: int(np.searchsorted(WHOLE_ORDERS, last)) + 1])
        curve = subset_rdp(whole[: int(np.isfinite(whole).sum())], self.rate)
        return np.minimum(selected, between_orders(curve, orders))

    def _selected(self, orders: Array) -> Array:
        grid = np.union1d(orders_of(np.array(self.once.curve)), orders)
        once, (mean, shape) = self.once.renyi(grid), (self.selection.mean, self.selection.shape)
        return repeat_and_select_rdp(once, grid, mean, shape)[np.searchsorted(grid, orders)]

    def privacy_loss(self, interval: float) -> Any:
        """Return the distribution of ``selected_profile``, amplified by ``subset_profile``."""
        best = selected_profile(self.once.profile, self.selection.mean, self.selection.shape)
        if self.rate == 1:
            return loss_of_profile(best, interval)
        # Where an epsilon is small, that of the selection is 1 / rate times as large.
        finer = min(max(interval / 10, _FINE), interval / self.rate)
        convex = profile_of(loss_of_profile(best, finer))
        return loss_of_profile(subset_profile(convex, self.rate), interval)


@dataclass(frozen=True, eq=False)
class PartBound:
    """A bound on plans on one part of the records: a Renyi curve and, for ``pld``, a profile too.

    Attributes:
        curve: What no plan exceeds at any order.
        profile: What none exceeds at any epsilon; None under accountant ``rdp``.
    """

    curve: RenyiBound
    profile: ProfileBound | None

    @classmethod
    def of(cls, plans: Iterable[Plan], accountant: AccountantName) -> PartBound:
        """Return the bound that each of these plans keeps.

        Raises:
            BadInputError: As for ``bound_of``.
        """
        every = list(plans)
        curve = bound_of(every, "rdp", is_filled=True)
        profile = bound_of(every, "pld") if accountant == "pld" else None
        assert isinstance(curve, RenyiBound)
        assert profile is None or isinstance(profile, ProfileBound)
        return cls(curve, profile)

    def covers(self, plan: Plan) -> bool:
        """Say whether a plan stays within both."""
        return self.curve.covers(plan) and (self.profile is None or self.profile.covers(plan))

    @property
    def event(self) -> Bounded:
        """One run of a plan as dear as that."""
        deltas = () if self.profile is None else tuple(self.profile.deltas.tolist())
        return Bounded(tuple(self.curve.curve.tolist()), deltas)

    def to_json(self) -> dict[str, Any]:
        """Return both as plain data."""
        profile = {} if self.profile is None else self.profile.to_json()
        return {**self.curve.to_json(), **profile}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PartBound:
        """Rebuild what ``to_json`` wrote.

        Raises:
            LedgerError: It is none.
        """
        curve = read_bound({"curve": raw.get("curve", ())})
        assert isinstance(curve, RenyiBound)
        if "profile" not in raw:
            return cls(curve, None)
        profile = read_bound({"profile": raw["profile"], "step": raw.get("step")})
        assert isinstance(profile, ProfileBound)
        return cls(curve, profile)


@dataclass(frozen=True, eq=False)
class SubsetBound:
    """What bounds the trials of a search on a secret part of the records, and its final run.

    Guarantees:
        The configuration that the search has found, and the final run of it on all records, cost
        at most ``selected`` under add-or-remove-one. Conditions: each private record is in the part
        with probability ``rate``, independently of the others and in secret; the part is drawn
        once, nothing tells who is in it, its size included, and sampling rates and sizes on it are
        declared; the trials on it are those of a selection (``RepeatAndSelect``), each with a plan
        within ``search``; of all of them only the configuration of the best is used; the final run
        has a plan within ``final``, whatever configuration was found, and there is one.

        Why: a neighboring dataset differs in one record, which is a private or a validation one.
        Of the former, the search is ``PoissonSubset`` of the selection; its outcome determines
        which final run follows, and each is dominated by one and the same pair of distributions,
        that of ``final``. So both compose like two mechanisms that were fixed before (Zhu, Dong and
        Wang 2022, https://arxiv.org/abs/2106.08567, theorem 10; for Renyi divergences Mironov
        2017, https://arxiv.org/abs/1702.07476, proposition 1). That a bound holds at every order
        or epsilon, and not at one delta alone, is what makes it a pair for all of them. Of a
        validation record, the selection is not amplified, and the part is mere randomness of it.
        What is on the other part is post-processing in both cases, so the larger counts.

        Not covered: copies of a record, each of which enters by itself; and what
        ``selection_epsilon`` names.

    Attributes:
        rate: Probability that a private record is in the part.
        search: Part of the records -> what no trial exceeds there, as if it were all of them.
        final: Part of the records -> what the final run does not exceed there.
        final_epsilon: What a final run is planned within.
        accountant: The study's.
    """

    rate: float
    search: Mapping[Part, PartBound]
    final: Mapping[Part, PartBound]
    final_epsilon: float
    accountant: AccountantName

    @classmethod
    def of(
        cls,
        trials: Iterable[Plan],
        finals: Iterable[Plan],
        *,
        rate: float,
        final_epsilon: float,
        accountant: AccountantName,
    ) -> SubsetBound:
        """Return the bound that all of these trials and final runs keep.

        Args:
            trials: Plans on the part, at least one.
            finals: Plans on all records, at least one.
            rate: In (0, 1).
            final_epsilon: What the latter were planned within.
            accountant: The study's.
        Raises:
            BadInputError: As for ``bound_of``.
        """
        return cls(
            validate.in_unit_interval("rate", rate),
            _bounds(list(trials), accountant),
            _bounds(list(finals), accountant),
            final_epsilon,
            accountant,
        )

    def covers(self, plan: Plan) -> bool:
        """Say whether the plan of a trial stays within its bound."""
        return _covers(self.search, plan)

    def covers_final(self, plan: Plan) -> bool:
        """Say whether the plan of a final run stays within its bound."""
        return _covers(self.final, plan)

    def epsilon(self, *, delta: float) -> float:
        """Return the epsilon of one trial that is as dear as it may be, if all records were in."""
        return max(self._price(events, delta) for events in self._once())

    def _once(self) -> list[Multiset]:
        events = [bound.event for bound in self.search.values()]
        return [((event, 1),) for event in events if not event.is_free] or [()]

    def events(self, selection: Selection, part: Part, *, with_final: bool = True) -> Multiset:
        """Return what the search, and its final run, are on one part of the records.

        The part of the private records is secret; all validation records score every trial.
        """
        once, final = self.search[part].event, self.final[part].event
        kinds: list[tuple[PrivacyEvent, int]] = []
        if not once.is_free:
            rate = self.rate if part == "private" else 1.0
            kinds.append((BoundedSearch(once, selection, rate), 1))
        if with_final and not final.is_free:
            kinds.append((final, 1))
        return in_order(kinds)

    def selected(self, selection: Selection, *, delta: float) -> float:
        """Return the epsilon of the search and its final run together, rounded up."""
        return self._largest(selection, delta, with_final=True)

    def search_epsilon(self, selection: Selection, *, delta: float) -> float:
        """Return the epsilon of the search alone, rounded up."""
        return self._largest(selection, delta, with_final=False)

    def _largest(self, selection: Selection, delta: float, *, with_final: bool) -> float:
        parts = [self.events(selection, part, with_final=with_final) for part in READ_PARTS]
        return max(self._price(events, delta) for events in parts) * rdp.ROUND_UP

    def _price(self, events: Multiset, delta: float) -> float:
        return multiset_epsilon(events, delta=delta, accountant=self.accountant)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, for ``recorded_bound``."""
        return {
            "subset": {
                "rate": self.rate,
                "final_epsilon": self.final_epsilon,
                "accountant": self.accountant,
                "search": {part: bound.to_json() for part, bound in self.search.items()},
                "final": {part: bound.to_json() for part, bound in self.final.items()},
            }
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> SubsetBound:
        """Rebuild what ``to_json`` wrote.

        Raises:
            LedgerError: It is none.
        """
        try:
            rate = validate.in_unit_interval("rate", raw["rate"])
            final_epsilon = validate.positive("final_epsilon", raw["final_epsilon"])
            by: Any = validate.one_of("accountant", raw["accountant"], ACCOUNTANTS)
            search, final = (
                {part: PartBound.from_json(raw[key][part]) for part in READ_PARTS}
                for key in ("search", "final")
            )
            bounds = [*search.values(), *final.values()]
            if any((bound.profile is None) != (by == "rdp") for bound in bounds):
                raise BadInputError(f"its bounds are not those of accountant {by}")
        except (BadInputError, KeyError, TypeError) as error:
            raise LedgerError(
                "the record of a search on a secret part of the records is none",
                because=f"it was edited, or a later version has written it: {error}",
                fix="restore the ledger, or continue the study with the version that began it",
            ) from error
        return cls(rate, search, final, final_epsilon, by)


def _bounds(plans: list[Plan], accountant: AccountantName) -> Mapping[Part, PartBound]:
    return {p: PartBound.of([plan.part(p) for plan in plans], accountant) for p in READ_PARTS}


def _covers(bounds: Mapping[Part, PartBound], plan: Plan) -> bool:
    """Say whether a plan reads none but the known parts, and of each no more than its bound."""
    own = {part: plan.part(part) for part in READ_PARTS}
    if sum(map(len, own.values())) != len(plan):
        return False
    return all(bounds[part].covers(events) for part, events in own.items())


def recorded_bound(record: Mapping[str, Any]) -> TrialBound:
    """Return the bound of a selection's record on a study's ledger.

    Raises:
        LedgerError: There is none that this version knows.
    """
    subset = record.get("subset")
    return read_bound(record) if subset is None else SubsetBound.from_json(subset)
