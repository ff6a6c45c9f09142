"""The suite of privacy events: subclass it once per event of a package, which is installed.

class TestMyEvent(EventConformance):
    event = MyEvent(noise_multiplier=4.0)
    quiet = MyEvent(noise_multiplier=1e9)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EVENTS, EventRun, Plan, PrivacyEvent
from dpsweep.privacy.events.multiset import multiset, plan_curve
from dpsweep.privacy.terms import SAMPLINGS

_DELTA = 1e-5


def _refusal(call: Callable[[], object]) -> str:
    """Return the message of the ``BadInputError`` that a call must raise."""
    try:
        answer = call()
    except BadInputError as error:
        return error.message
    raise AssertionError(f"{answer!r} was not refused")


class EventConformance:
    """The suite of privacy events: each must pass it.

    Guarantees:
        None about the method that causes it. Contradictions are found: between an event and its
        file, between its curve at different orders, and between its curve and its ``dp_event``,
        whose privacy loss distribution is nearly exact: a curve below it is too low. An event
        without a ``dp_event`` has no such witness.

    Attributes:
        event: An event of usual noise, of an epsilon between 0.01 and 100 for 10 of it, or one
            that is never private.
        quiet: The same with so much noise that it costs next to nothing; None if there is none.
    """

    event: ClassVar[PrivacyEvent]
    quiet: ClassVar[PrivacyEvent | None] = None

    def test_it_is_in_the_table_by_its_name(self) -> None:
        """A ledger that holds it can be read; its package is installed."""
        assert EVENTS[self.event.name] is type(self.event)

    def test_it_is_frozen_and_equal_by_value(self) -> None:
        """It is a key of tables of costs."""
        event = self.event
        again = type(event).from_json(event.to_json())
        assert (again, hash(again), repr(again)) == (event, hash(event), repr(event))
        assert (again.sort_key(), again.simplified()) == (event.sort_key(), event.simplified())
        for key in event.checks:
            try:
                setattr(event, key, getattr(event, key))
            except FrozenInstanceError:
                continue
            raise AssertionError(f"{key} can be changed")

    def test_it_survives_its_file(self) -> None:
        """An event read back from JSON is the same event, with its count, phase and part."""
        for part in ("private", "validation"):
            plan = Plan((EventRun(self.event, 3, "other", part),))  # type: ignore[arg-type]
            assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan

    def test_mistakes_of_a_file_are_told(self) -> None:
        """Each field that is missing or senseless, and each key that is none, by its name."""
        kind, right = type(self.event), self.event.to_json()
        wrong: list[tuple[str, dict[str, Any]]] = [("no_such_key", {**right, "no_such_key": 1})]
        for key in self.event.checks:
            wrong.append((key, {name: value for name, value in right.items() if name != key}))
            wrong.append((key, {**right, key: "\0"}))
        for key, segment in wrong:
            said = _refusal(partial(kind.from_json, segment))
            assert key in said, (key, said)

    def test_sampling_is_named(self) -> None:
        """And is what a plan of it says."""
        assert self.event.sampling in SAMPLINGS
        assert Plan((EventRun(self.event, 2),)).sampling == self.event.sampling

    def test_what_forecasts_ask_of_it_has_a_meaning(self) -> None:
        """Its share of the records, the same event at another share, and its noise."""
        assert 0 <= self.event.expected_share() <= 1
        assert (self.event.relative_noise() or 0.0) >= 0
        half = self.event.at_share(0.5)
        if half is None:
            assert self.event.expected_share() == 1
        else:
            assert (type(half), half.expected_share()) == (type(self.event), 0.5)
            assert half.relative_noise() == self.event.relative_noise()

    def test_its_curve_is_one(self) -> None:
        """It is not negative and does not fall, at any orders; infinite if it is not private."""
        for orders in (rdp.ORDERS, rdp.orders_at(5), np.array([1.01, 2.345, 77.7, 30_000.0])):
            curve = self.event.renyi(orders)
            assert curve.shape == orders.shape
            assert not np.any(np.isnan(curve))
            assert np.all(curve >= 0)
            if not self.event.is_private:
                assert np.all(np.isinf(curve))
                continue
            finite = np.isfinite(curve)
            assert np.any(finite)
            assert np.all(finite[:-1] | ~finite[1:])
            assert np.all(curve[1:][finite[1:]] >= curve[:-1][finite[1:]] * (1 - 1e-9))

    def test_its_curve_is_the_same_in_company(self) -> None:
        """One order at a time, several events at once, and at one order of a filter."""
        curve = self.event.renyi(rdp.ORDERS)
        both = type(self.event).curves([self.event, self.event], rdp.ORDERS)
        np.testing.assert_allclose(both, [curve, curve], rtol=1e-9)
        simplified = plan_curve(multiset(Plan((EventRun(self.event),))))
        np.testing.assert_allclose(simplified, curve, rtol=1e-7)
        for index in range(0, len(rdp.ORDERS), 20):
            order = float(rdp.ORDERS[index])
            alone = self.event.renyi(np.array([order]))
            np.testing.assert_allclose(alone, curve[index], rtol=1e-7)
            cost = math.fsum(type(self.event).costs_at([(self.event, 3)], order))
            np.testing.assert_allclose(cost, 3 * curve[index], rtol=1e-7)
            between = order * (1 + 1e-4)
            cost = math.fsum(type(self.event).costs_at([(self.event, 1)], between))
            assert cost >= self.event.renyi(np.array([between]))[0] * (1 - 1e-7)

    def test_more_of_it_costs_more_and_more_noise_costs_nothing(self) -> None:
        """Epsilon grows with the count; the quiet event hardly has one."""
        costs = [epsilon_of(Plan((EventRun(self.event, n),)), delta=_DELTA) for n in (1, 10, 100)]
        assert 0 <= costs[0] <= costs[1] <= costs[2]
        assert costs[1] > 0
        if self.quiet is not None:
            assert type(self.quiet) is type(self.event)
            assert np.all(self.quiet.renyi(rdp.ORDERS) <= self.event.renyi(rdp.ORDERS))
            assert epsilon_of(Plan((EventRun(self.quiet),)), delta=_DELTA) < 1e-3

    def test_its_curve_is_not_below_its_privacy_loss(self) -> None:
        """Epsilon of the distribution of ``dp_event`` is at most that of the curve; without one,
        accountant pld refuses the event.
        """
        event = self.event
        if not event.is_private:
            return
        if event.dp_event() is None or event.no_pld is not None:
            plan = Plan((EventRun(event),))
            said = _refusal(lambda: epsilon_of(plan, delta=_DELTA, accountant="pld"))
            assert event.name in said
            return
        for count in (1, 10):
            renyi = epsilon_of(Plan((EventRun(event, count),)), delta=_DELTA)
            interval = max(renyi, 1e-3) * 1e-4
            exact = event.privacy_loss(interval).self_compose(count)
            for delta in (1e-5, 1e-8):
                bound = epsilon_of(Plan((EventRun(event, count),)), delta=delta)
                assert exact.get_epsilon_for_delta(delta) <= bound * 1.001 + 2 * count * interval
            if math.isfinite(event.pure_epsilon()):
                most = count * event.pure_epsilon() + 2 * count * interval
                assert exact.get_epsilon_for_delta(1e-12) <= most

    def test_what_accountants_use_of_it_bounds_it(self) -> None:
        """Its variance as a Gaussian, and fewer events in place of many."""
        variance = self.event.gaussian_variance()
        if variance is not None:
            curve = self.event.renyi(rdp.ORDERS)
            np.testing.assert_allclose(curve, rdp.ORDERS / (2 * variance), rtol=1e-6)
        items = type(self.event).coarsened([(self.event, 4)])
        assert sum(count for _, count in items) == 4
        cost = sum(count * event.renyi(rdp.ORDERS) for event, count in items)
        assert np.all(cost >= 4 * self.event.renyi(rdp.ORDERS) * (1 - 1e-9))
