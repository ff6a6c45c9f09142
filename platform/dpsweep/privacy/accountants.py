"""Accountants: how much a plan costs, as an upper bound on epsilon at a given delta."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpsweep.foundation import _validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.events import (
    CHARGED_PARTS,
    Gaussian,
    Laplace,
    NonPrivate,
    Plan,
    PoissonGaussian,
    PrivacyEvent,
    RepeatAndSelect,
)

AccountantName = Literal["rdp", "pld"]
ACCOUNTANTS: tuple[AccountantName, ...] = ("rdp", "pld")

Array = NDArray[np.float64]
#: A plan as a multiset: (event, count), sorted. The order of a fixed plan has no cost.
Multiset = tuple[tuple[PrivacyEvent, int], ...]


class Accountant(Protocol):
    """Bounds the cost of a fixed plan."""

    name: AccountantName

    def epsilon(self, plan: Plan, *, delta: float) -> float:
        """Return an upper bound on the plan's epsilon at ``delta``; infinite if there is none."""


class RdpAccountant:
    """Renyi differential privacy: fast, about 15% above ``pld``."""

    name: AccountantName = "rdp"

    def epsilon(self, plan: Plan, *, delta: float) -> float:
        """Return the Renyi bound on the plan's epsilon, over all orders of ``rdp.ORDERS``."""
        delta = _validate.in_unit_interval("delta", delta)
        return max(epsilon_and_order(events, delta)[0] for events in by_part(plan).values())


class PldAccountant:
    """Privacy loss distributions: tight, for fixed plans only, and slower.

    Guarantees:
        Valid only for a plan that was fixed before the data was seen. A run that is stopped, or
        whose noise is chosen, by what it saw of the private data may be bounded by a Renyi filter
        but not by this accountant (https://arxiv.org/abs/2602.06756): never use it as one.
    """

    name: AccountantName = "pld"

    def epsilon(self, plan: Plan, *, delta: float) -> float:
        """Return the smaller of the PLD and the Renyi bound; both hold for a fixed plan."""
        delta = _validate.in_unit_interval("delta", delta)
        return max(_pld_epsilon(events, delta) for events in by_part(plan).values())


def make_accountant(name: str) -> Accountant:
    """Return the accountant of that name: ``rdp`` or ``pld``."""
    _validate.one_of("accountant", name, ACCOUNTANTS)
    return RdpAccountant() if name == "rdp" else PldAccountant()


def epsilon_of(plan: Plan, *, delta: float, accountant: AccountantName = "rdp") -> float:
    """Return an upper bound on the epsilon of a plan at ``delta``.

    >>> from dpsweep.privacy.events import EventRun
    >>> plan = Plan((EventRun(PoissonGaussian(1.0, 0.01), 1000),))
    >>> round(epsilon_of(plan, delta=1e-5), 4)
    2.1014
    >>> round(epsilon_of(plan, delta=1e-5, accountant="pld"), 4)
    1.8282

    Guarantees:
        Add-or-remove-one, Poisson sampling, fixed plan. Depends on the events and their counts
        alone, so any order of the same events has bitwise the same epsilon, and asking has no
        side effect. Private and validation records are disjoint parts of the data, split without
        looking at it: a record is in one of them, and what the other part's events released is
        post-processing for it, so the plan costs the larger of the two compositions and not their
        sum. Events on public records cost nothing.

        Under ``rdp``: the conversion of Canonne, Kamath and Steinke 2020 over a fixed grid of
        orders; Laplace events alone also by their pure sum. Under ``pld``: dp_accounting's
        pessimistic estimate; Gaussians over all records alone by the exact formula of Balle and
        Wang 2018; a plan with more than 128 different Poisson-sampled Gaussians has its noise
        multipliers rounded down onto a logarithmic grid, which over-counts by about two percent.

        Not covered: shuffled batches, replace-one neighbors, a split that depends on the data or
        is drawn again, and (``pld``) adaptive stops.

    Args:
        plan: The events; an empty plan costs 0.
        delta: In (0, 1).
        accountant: ``rdp`` or ``pld``.
    Returns:
        Epsilon >= 0; infinite where an event has none (no noise, ``NonPrivate``).
    Raises:
        BadInputError: ``pld`` is asked for a repeat-and-select event.
    """
    return make_accountant(accountant).epsilon(plan, delta=delta)


def by_part(plan: Plan) -> dict[str, Multiset]:
    """Return the events on each part of the protected records, both keys always present."""
    return {part: multiset(plan.part(part)) for part in CHARGED_PARTS}


def multiset(plan: Plan) -> Multiset:
    """Return the plan's events with their counts, sorted; what costs nothing is left out.

    The two protected parts are not told apart: their sum bounds each of them.
    """
    counts: Counter[PrivacyEvent] = Counter()
    for run in plan.runs:
        event = run.event
        if run.part == "public":
            continue
        if isinstance(event, PoissonGaussian):
            if event.sample_rate == 0:
                continue
            if event.sample_rate == 1:
                event = Gaussian(event.noise_multiplier)
        counts[event] += run.count
    return tuple(sorted(counts.items(), key=_sort_key))


def _sort_key(item: tuple[PrivacyEvent, int]) -> tuple[Any, ...]:
    event = item[0]
    if isinstance(event, PoissonGaussian):
        return ("poisson", event.sample_rate, event.noise_multiplier)
    if isinstance(event, (Gaussian, Laplace)):
        amount = event.noise_multiplier if isinstance(event, Gaussian) else event.scale
        return (type(event).__name__, amount, 0.0)
    return (type(event).__name__, repr(event), 0.0)


# --- Renyi ----------------------------------------------------------------------------------

_CACHED_CURVES = 20_000  # 165 orders of 8 bytes each: 26 MB
_curves: dict[tuple[float, float], Array] = {}
_high_curves: dict[tuple[float, float, float], float] = {}


def orders_at(level: int) -> Array:
    """Return the grid of orders with the first ``level`` of ``rdp.HIGH_ORDERS`` appended."""
    return np.concatenate([rdp.ORDERS, np.array(rdp.HIGH_ORDERS[:level], dtype=np.float64)])


def _poisson_curves(events: Sequence[PoissonGaussian], level: int) -> Array:
    """Return one Renyi curve per event, shape (len(events), orders); new ones all at once."""
    missing: dict[float, set[float]] = {}
    for event in events:
        if (event.sample_rate, event.noise_multiplier) not in _curves:
            missing.setdefault(event.sample_rate, set()).add(event.noise_multiplier)
    fresh: dict[tuple[float, float], Array] = {}
    for rate, noises in missing.items():
        noise = np.array(sorted(noises))
        for sigma, curve in zip(noise.tolist(), rdp.poisson_gaussian_rdp(noise, rate)):
            fresh[rate, sigma] = curve
    keys = [(event.sample_rate, event.noise_multiplier) for event in events]
    rows = np.array([fresh[key] if key in fresh else _curves[key] for key in keys])
    if len(_curves) + len(fresh) > _CACHED_CURVES:
        _curves.clear()
    _curves.update(fresh)
    for order in rdp.HIGH_ORDERS[:level]:
        rows = np.concatenate([rows, _high_column(keys, order)[:, None]], axis=1)
    return rows


def _high_column(keys: Sequence[tuple[float, float]], order: int) -> Array:
    """Return the Renyi divergence at one high order for each (sample rate, noise multiplier)."""
    for rate in {rate for rate, _ in keys}:
        noises = {s for q, s in keys if q == rate and (q, s, order) not in _high_curves}
        noise = np.array(sorted(noises))
        column = rdp.poisson_gaussian_rdp(noise, rate, np.array([float(order)]))[:, 0]
        for sigma, value in zip(noise.tolist(), column.tolist()):
            _high_curves[rate, sigma, order] = value
    values = np.array([_high_curves[rate, sigma, order] for rate, sigma in keys])
    if len(_high_curves) > _CACHED_CURVES:
        _high_curves.clear()
    return values


def event_curves(events: Sequence[PrivacyEvent], level: int = 0) -> Array:
    """Return the Renyi curve of each event on ``orders_at(level)``, shape (len(events), orders)."""
    orders = orders_at(level)
    curves = np.empty((len(events), len(orders)))
    sampled = [i for i, event in enumerate(events) if isinstance(event, PoissonGaussian)]
    if sampled:
        curves[sampled] = _poisson_curves([events[i] for i in sampled], level)  # type: ignore[misc]
    for i, event in enumerate(events):
        if isinstance(event, Gaussian):
            curves[i] = rdp.poisson_gaussian_rdp(np.array([event.noise_multiplier]), 1.0, orders)[0]
        elif isinstance(event, Laplace):
            curves[i] = rdp.laplace_rdp(event.scale, orders)
        elif isinstance(event, RepeatAndSelect):
            once = plan_curve(multiset(event.of), level)
            curves[i] = rdp.repeat_and_select_rdp(once, orders, event.mean, event.shape)
        elif isinstance(event, NonPrivate):
            curves[i] = np.inf
    return curves


def plan_curve(events: Multiset, level: int = 0) -> Array:
    """Return the sum of the events' Renyi curves on ``orders_at(level)``."""
    if not events:
        return np.zeros(len(orders_at(level)))
    counts = np.array([count for _, count in events], dtype=np.float64)
    return np.asarray((counts[:, None] * event_curves([e for e, _ in events], level)).sum(axis=0))


def pure_epsilon(event: PrivacyEvent) -> float:
    """Return the epsilon of an event at delta = 0."""
    if isinstance(event, Laplace) and event.scale > 0:
        return 1.0 / event.scale
    return 0.0 if isinstance(event, PoissonGaussian) and event.sample_rate == 0 else math.inf


@lru_cache(maxsize=4096)
def epsilon_and_order(events: Multiset, delta: float) -> tuple[float, float]:
    """Return the Renyi bound on epsilon and the order that gives it.

    The grid is extended upwards while its last order is the best one.
    """
    if not events:
        return 0.0, math.inf
    for level in range(len(rdp.HIGH_ORDERS) + 1):
        orders = orders_at(level)
        found, best = rdp.epsilons(plan_curve(events, level)[None, :], orders, delta)
        epsilon, order = float(found[0]), float(orders[best[0]])
        if best[0] < len(orders) - 1 or epsilon == 0.0:
            break
    pure = math.fsum(count * pure_epsilon(event) for event, count in events)
    return min(epsilon, pure), order


# --- Privacy loss distributions -------------------------------------------------------------

_MAX_LEVELS = 128
_FEW = 4  # this many different events are discretised ten times finer
_LARGEST_PLD_EPSILON = 1e4  # above, the Renyi bound is as uninformative and much cheaper


def analytic_gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of Gaussian noise (mu = sensitivity / standard deviation).

    Solves delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Balle and Wang 2018,
    https://arxiv.org/abs/1805.06530, theorem 8), rounded up. Composition adds mu^2.

    >>> round(analytic_gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    mu = _validate.non_negative("mu", mu)
    delta = _validate.in_unit_interval("delta", delta)
    log_delta = math.log(delta)

    def log_delta_of(epsilon: float) -> float:
        top = float(special.log_ndtr(mu / 2 - epsilon / mu))
        bottom = epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu))
        # Cancels to nothing far out only, where the first term is tiny itself.
        return top + math.log(max(-math.expm1(min(bottom - top, 0.0)), 1e-300))

    if mu == 0 or log_delta_of(0.0) <= log_delta:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * log_delta) + 1e-12
    while log_delta_of(high) > log_delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if log_delta_of(middle) > log_delta else (low, middle)
    return high * (1 + 1e-12)


def rounded_down(events: Multiset) -> Multiset:
    """Put Poisson-sampled noise multipliers onto at most ``_MAX_LEVELS`` levels per sample rate.

    The grid exp(j 2^-m) is finest where few levels are needed, and coarser grids are part of finer
    ones: a part of a plan is never rounded further down than the whole.
    """
    by_rate: dict[float, list[tuple[float, int]]] = {}
    result: Counter[PrivacyEvent] = Counter()
    for event, count in events:
        if isinstance(event, PoissonGaussian):
            by_rate.setdefault(event.sample_rate, []).append((event.noise_multiplier, count))
        else:
            result[event] += count
    for rate, pairs in by_rate.items():
        logs = [math.log(sigma) for sigma, _ in pairs if sigma > 0]
        for sigma, count in pairs:
            rounded = sigma
            if len(pairs) > _MAX_LEVELS and sigma > 0:
                # One level more than the range over the spacing may be needed at either end.
                spread = max(max(logs) - min(logs), 1e-9)
                spacing = 2.0 ** math.ceil(math.log2(spread / (_MAX_LEVELS - 2)))
                level = math.floor(math.log(sigma) / spacing)
                rounded = min(math.exp(level * spacing), sigma)
            result[PoissonGaussian(rounded, rate)] += count
    return tuple(sorted(result.items(), key=_sort_key))


def _interval(epsilon: float, num_distributions: int) -> float:
    """Return the discretisation: a power of ten below 1/5000 of epsilon (1/500 for many).

    Powers of ten, so that a part of a plan is never discretised more coarsely than the whole.
    """
    wanted = epsilon * (2e-4 if num_distributions <= _FEW else 2e-3)
    return float(10.0 ** max(-5, math.floor(math.log10(wanted))))


@lru_cache(maxsize=256)
def _one_step(event: PrivacyEvent, interval: float) -> Any:
    """Return one event's privacy loss distribution; building it is most of the cost."""
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(event, Laplace):
        return privacy_loss_distribution.from_laplace_mechanism(
            event.scale, value_discretization_interval=interval
        )
    rate = event.sample_rate if isinstance(event, PoissonGaussian) else 1.0
    assert isinstance(event, (PoissonGaussian, Gaussian))
    return privacy_loss_distribution.from_gaussian_mechanism(
        event.noise_multiplier, value_discretization_interval=interval, sampling_prob=rate
    )


@lru_cache(maxsize=1024)
def _pld_epsilon(events: Multiset, delta: float) -> float:
    """Return the smaller of the pessimistic PLD estimate and the Renyi bound."""
    for event, _ in events:
        if isinstance(event, RepeatAndSelect):
            raise BadInputError(
                "accountant pld cannot bound repeat_and_select",
                because="the theorem (arXiv 2110.03620) is about Renyi curves",
                fix="accountant rdp",
            )
    renyi = epsilon_and_order(events, delta)[0]
    if renyi == 0 or renyi > _LARGEST_PLD_EPSILON:
        return renyi
    precision = math.fsum(
        count / event.noise_multiplier**2 for event, count in events if isinstance(event, Gaussian)
    )
    rest = rounded_down(tuple(item for item in events if not isinstance(item[0], Gaussian)))
    if not rest:
        return min(analytic_gaussian_epsilon(math.sqrt(precision), delta), renyi)
    if precision > 0:
        # Gaussians over all records compose exactly into a single one.
        rest = (*rest, (Gaussian(1 / math.sqrt(precision)), 1))
    interval = _interval(renyi, len(rest))
    total: Any = None
    for event, count in rest:
        step = _one_step(event, interval).self_compose(count)
        total = step if total is None else total.compose(step)
    return min(float(total.get_epsilon_for_delta(delta)), renyi)
