"""Events that a package brings: written, read, charged; refused where they cannot be."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import dp_accounting
import numpy as np
import pytest
from outside import install

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.validate import positive
from dpsweep.privacy import accountants
from dpsweep.privacy.accountants import analytic_gaussian_epsilon, epsilon_of
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import (
    EVENTS,
    EventRun,
    Gaussian,
    Laplace,
    Plan,
    PoissonSubset,
    PrivacyEvent,
    RepeatAndSelect,
    losses,
    plan,
    to_dp_event,
)
from dpsweep.testing.events import EventConformance

DELTA = 1e-5


@dataclass(frozen=True)
class Doubled(PrivacyEvent):
    """Two Gaussian mechanisms at once, known by its curve and a form."""

    sigma: float

    name = "doubled"
    checks = {"sigma": positive}  # noqa: RUF012
    sampling = "full_batch"

    def renyi(self, orders: Any) -> Any:
        return orders / self.sigma**2

    def dp_event(self) -> Any:
        return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(self.sigma), 2)


@dataclass(frozen=True)
class Formless(Doubled):
    """The same, without a form."""

    name = "formless"

    def dp_event(self) -> Any:
        return None


@dataclass(frozen=True)
class Odd(Doubled):
    """One whose curve is that of ``wrong``, which a test sets."""

    wrong: ClassVar[Any] = None
    name = "odd"

    def renyi(self, orders: Any) -> Any:
        return type(self).wrong(orders)


@dataclass(frozen=True)
class Hiding(Doubled):
    """One with a field that JSON lacks."""

    rounds: int = 1
    name = "hiding"


@dataclass(frozen=True)
class Counted(PrivacyEvent):
    """One whose field a segment's own count would overwrite."""

    count: float
    name = "counted"
    checks = {"count": positive}  # noqa: RUF012
    sampling = "full_batch"

    def renyi(self, orders: Any) -> Any:
        return orders * self.count


class Undecorated(Doubled):
    """One that compares as its parent does."""

    name = "undecorated"


@dataclass(frozen=True)
class Overlooking(Doubled):
    """One whose comparisons overlook what its cost depends on."""

    sigma: float = field(compare=False)
    name = "overlooking"


@dataclass(frozen=True)
class Forgetful(Doubled):
    """One that is read back with other noise."""

    name = "forgetful"

    @classmethod
    def read(cls, key: str, raw: Any) -> Any:
        return 2.0 * raw


@dataclass(frozen=True)
class Unsound(Doubled):
    """One whose form has no epsilon, although its curve has."""

    name = "unsound"

    def dp_event(self) -> Any:
        return dp_accounting.NonPrivateDpEvent()


@dataclass(frozen=True)
class Understated(Doubled):
    """One whose curve is half of what its form says."""

    name = "understated"

    def renyi(self, orders: Any) -> Any:
        return 0.5 * orders / self.sigma**2


@dataclass(frozen=True)
class Shuffled(Doubled):
    """One that no statement can name the sampling of."""

    name = "shuffled"
    sampling = "shuffled"


@dataclass(frozen=True)
class Stranger(Doubled):
    """One that is in no table."""

    name = "stranger"


@dataclass(frozen=True)
class Impostor(Gaussian):
    """One that would be read back as another."""


FLAWED = (Hiding, Counted, Undecorated, Overlooking, Forgetful)
KINDS = (Doubled, Formless, Odd, Unsound, Understated, Shuffled, *FLAWED)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {kind.name: f"{__name__}:{kind.__name__}" for kind in KINDS}
    install(monkeypatch, "dpsweep.events", EVENTS, **places)
    monkeypatch.setattr(plan, "_IN_TABLE", set())


class TestDoubled(EventConformance):
    event = Doubled(6.0)
    quiet = Doubled(1e9)


class TestFormless(EventConformance):
    event = Formless(6.0)


def plan_of(*runs: tuple) -> Plan:
    return Plan(tuple(EventRun(event, count) for event, count in runs))


def test_it_costs_what_its_curve_says() -> None:
    twice = plan_of((Gaussian(6.0), 20))
    ours = plan_of((Doubled(6.0), 10))
    assert epsilon_of(ours, delta=DELTA) == pytest.approx(epsilon_of(twice, delta=DELTA), rel=1e-6)
    exact = analytic_gaussian_epsilon(math.sqrt(20) / 6, DELTA)
    pld = epsilon_of(ours, delta=DELTA, accountant="pld")
    assert exact * (1 - 1e-9) <= pld <= exact * 1.01
    both = ours + plan_of((Gaussian(6.0), 20))
    exact = analytic_gaussian_epsilon(math.sqrt(40) / 6, DELTA)
    assert exact <= epsilon_of(both, delta=DELTA, accountant="pld") <= exact * 1.01
    clock = EpsilonClock(both, delta=DELTA)
    assert clock.epsilon_after(10) == pytest.approx(epsilon_of(ours, delta=DELTA))
    assert clock.epsilon_after(len(both)) == pytest.approx(epsilon_of(both, delta=DELTA))
    chosen = RenyiFilter.choose([both], target_epsilon=8.0, delta=DELTA)
    assert chosen.cost(ours)["private"] == pytest.approx(10 * chosen.order / 36)
    assert to_dp_event(ours).events[0].count == 10
    assert (both.sampling, ours.sampling) == ("full_batch", "full_batch")


def test_a_cost_between_two_orders_is_the_higher_ones() -> None:
    chosen = RenyiFilter.at(70.0, target_epsilon=8.0, delta=DELTA)
    assert chosen.cost(plan_of((Doubled(6.0), 1)))["private"] == pytest.approx(128 / 36)


def test_a_sampling_that_no_statement_can_have_is_refused() -> None:
    plan = plan_of((Gaussian(6.0), 1), (Shuffled(6.0), 1))
    with pytest.raises(BadInputError, match=r"sampling of an event must be one of .*'shuffled'"):
        _ = plan.sampling
    assert plan.labelled("public").sampling == "none"


def test_an_event_that_is_in_no_table_is_refused() -> None:
    with pytest.raises(BadInputError, match="not a privacy event of the table") as caught:
        EventRun(Stranger(1.0))
    assert "'stranger' in the group dpsweep.events" in caught.value.fix
    with pytest.raises(BadInputError, match="not a privacy event of the table"):
        EventRun(Impostor(1.0))
    with pytest.raises(BadInputError, match="not a privacy event: 7"):
        EventRun(7)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match=r"event must be one of .*doubled.*; got 'stranger'"):
        Plan.from_json([{"event": "stranger", "sigma": 1}])


def test_without_its_package_a_ledger_is_refused_and_no_cost_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = json.dumps(plan_of((Doubled(6.0), 10)).to_json())
    install(monkeypatch, "dpsweep.events", EVENTS, doubled="no.such.module:Doubled")
    with pytest.raises(BadInputError, match=r"segment 0: event 'doubled' of .* cannot be loaded"):
        Plan.from_json(json.loads(raw))
    install(monkeypatch, "dpsweep.events", EVENTS)
    with pytest.raises(BadInputError, match="got 'doubled'"):
        Plan.from_json(json.loads(raw))


def test_what_is_no_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "dpsweep.events", EVENTS, doubled="posixpath:join")
    with pytest.raises(BadInputError, match="cannot be loaded"):
        Plan.from_json([{"event": "doubled", "sigma": 1}])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda orders: -1e-3 * orders,
        lambda orders: orders[:-1],
        lambda orders: np.where(orders > 100, -1.0, 1.0),
    ],
    ids=["negative", "short", "negative at high orders"],
)
def test_what_is_no_curve_is_refused(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "wrong", wrong)
    event = Odd(1.0)
    with pytest.raises(BadInputError, match="the Renyi curve of odd is no curve"):
        epsilon_of(plan_of((event, 1), (Gaussian(1.0), 1)), delta=DELTA)


@pytest.mark.parametrize("kind", FLAWED, ids=lambda kind: kind.name)
def test_what_a_ledger_would_not_give_back_is_refused(kind: type[PrivacyEvent]) -> None:
    with pytest.raises(BadInputError, match=rf"^{kind.name} (cannot be written|is another event)"):
        EventRun(kind(2.0))  # type: ignore[call-arg]


@pytest.mark.parametrize("variance", [-1.2, 0.0, math.nan])
def test_a_variance_that_would_refund_others_is_refused(
    variance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Doubled, "gaussian_variance", lambda self: variance)
    with pytest.raises(BadInputError, match="Gaussian variance of doubled is"):
        epsilon_of(plan_of((Doubled(6.0), 1), (Gaussian(1.0), 1)), delta=DELTA, accountant="pld")


@pytest.mark.parametrize("kept", [0, 2, 4])
def test_events_that_coarsening_loses_are_refused(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coarsened = classmethod(lambda cls, items: [(items[0][0], kept)])
    monkeypatch.setattr(Doubled, "coarsened", coarsened)
    with pytest.raises(BadInputError, match="loses events"):
        epsilon_of(plan_of((Doubled(6.0), 3)), delta=DELTA, accountant="pld")


@pytest.mark.parametrize("pure", [-1.0, math.nan])
def test_what_is_no_pure_epsilon_is_refused(pure: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doubled, "pure_epsilon", lambda self: pure)
    plan = plan_of((Doubled(6.5), 1), (Gaussian(6.0), 1))
    with pytest.raises(BadInputError, match="pure epsilon of doubled is"):
        epsilon_of(plan, delta=DELTA)
    with pytest.raises(BadInputError, match="pure epsilon of doubled is"):
        EpsilonClock(plan, delta=DELTA).table()


@pytest.mark.parametrize("term", [-1.0, math.nan])
def test_a_cost_that_would_refund_others_fits_into_no_budget(
    term: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Doubled, "costs_at", classmethod(lambda cls, items, order: [term, 1e-3]))
    chosen = RenyiFilter.at(8.0, target_epsilon=8.0, delta=DELTA)
    assert chosen.cost(plan_of((Doubled(6.0), 1), (Gaussian(1.0), 1)))["private"] == math.inf


def test_an_event_without_a_form_has_no_pld_and_no_exchange_format() -> None:
    formless = plan_of((Formless(6.0), 10))
    with pytest.raises(BadInputError, match="accountant pld cannot bound formless"):
        epsilon_of(formless, delta=DELTA, accountant="pld")
    with pytest.raises(BadInputError, match="formless has no form in dp_accounting"):
        to_dp_event(formless)
    with pytest.raises(BadInputError, match="pld cannot bound unsound") as caught:
        epsilon_of(plan_of((Unsound(6.0), 10)), delta=DELTA, accountant="pld")
    assert "not private" in caught.value.because


@pytest.mark.parametrize("around", [lambda of: RepeatAndSelect(10, 1, of),
                                    lambda of: PoissonSubset(0.1, of)])  # fmt: skip
def test_what_pld_cannot_bound_is_refused_inside_of_events(
    around: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of((around(plan_of((Laplace(6.0), 2))), 1))
    assert epsilon_of(plan, delta=DELTA, accountant="pld") > 0
    monkeypatch.setattr(Laplace, "no_pld", "it was said so")
    losses._one_step.cache_clear()
    accountants._pld_epsilon.cache_clear()
    with pytest.raises(BadInputError, match="accountant pld cannot bound laplace"):
        epsilon_of(plan, delta=DELTA, accountant="pld")


def test_the_suite_finds_a_curve_that_is_too_low() -> None:
    class Suite(EventConformance):
        event = Understated(6.0)

    with pytest.raises(AssertionError):
        Suite().test_its_curve_is_not_below_its_privacy_loss()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda orders: 10 / orders,
        lambda orders: np.full(len(orders), np.nan),
        lambda orders: np.where(orders < 50, np.inf, 1.0),
    ],
    ids=["falling", "no number", "infinite below"],
)
def test_the_suite_finds_what_is_no_curve(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "wrong", wrong)

    class Suite(EventConformance):
        event = Odd(1.0)

    with pytest.raises(AssertionError):
        Suite().test_its_curve_is_one()
