"""Gaussian noise on a sum over a Poisson sample: a step of DP-SGD."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dpsweep.foundation import validate
from dpsweep.privacy import rdp
from dpsweep.privacy.events.base import Array, Check, PrivacyEvent
from dpsweep.privacy.events.gaussian import Gaussian
from dpsweep.privacy.events.sampled_gaussian import sampled_gaussian_loss

#: So many different noise multipliers of one sample rate have privacy loss distributions.
MAX_LEVELS = 256


def _rate(name: str, value: Any) -> float:
    return validate.in_unit_interval(name, value, zero=True, one=True)


@dataclass(frozen=True)
class PoissonGaussian(PrivacyEvent):
    """A Gaussian-noised sum over a Poisson sample of the records.

    Attributes:
        noise_multiplier: Noise standard deviation divided by the sensitivity, >= 0 (0 has no
            finite epsilon).
        sample_rate: Probability in [0, 1] that one record enters, independently of the others.
    """

    noise_multiplier: float
    sample_rate: float

    name: ClassVar[str] = "poisson_gaussian"
    count_key: ClassVar[str] = "steps"
    checks: ClassVar[Mapping[str, Check]] = {
        "noise_multiplier": validate.non_negative,
        "sample_rate": _rate,
    }

    @property
    def sampling(self) -> str:
        """Poisson samples; all records at rate 1."""
        return "poisson" if self.sample_rate < 1 else "full_batch"

    def renyi(self, orders: Array) -> Array:
        """Return the curve of Mironov, Talwar and Zhang 2019, rounded up."""
        return np.asarray(self.curves([self], orders)[0])

    @classmethod
    def curves(cls, events: Sequence[Self], orders: Array) -> Array:
        """Return the curves of several of them, computed at once; those on the grid are kept."""
        num_base = len(rdp.ORDERS)
        if not np.array_equal(orders[:num_base], rdp.ORDERS):
            return _off_grid(events, orders)
        rows = _base_curves(events)
        keys = [(event.sample_rate, event.noise_multiplier) for event in events]
        for order in orders[num_base:].tolist():
            rows = np.concatenate([rows, _column(keys, order)[:, None]], axis=1)
        return rows

    @classmethod
    def costs_at(cls, items: Sequence[tuple[Self, int]], order: float) -> list[float]:
        """Return the divergences at one order, exactly there."""
        sampled: dict[float, Counter[float]] = {}
        for event, count in items:
            sampled.setdefault(event.sample_rate, Counter())[event.noise_multiplier] += count
        terms: list[float] = []
        for rate, counts in sampled.items():
            noise = np.array(sorted(counts))
            times = np.array([counts[sigma] for sigma in sorted(counts)], dtype=np.float64)
            column = rdp.poisson_gaussian_rdp(noise, rate, np.array([order]))[:, 0]
            terms.extend((times * column).tolist())
        return terms

    def dp_event(self) -> Any:
        """Return it as a ``PoissonSampledDpEvent`` of a Gaussian."""
        import dp_accounting

        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        return dp_accounting.PoissonSampledDpEvent(self.sample_rate, gaussian)

    def pure_epsilon(self) -> float:
        """Return 0 where no record ever enters."""
        return 0.0 if self.sample_rate == 0 else math.inf

    def expected_share(self) -> float:
        """Return the sample rate."""
        return self.sample_rate

    def at_share(self, share: float) -> PrivacyEvent | None:
        """Return it at another sample rate."""
        return PoissonGaussian(self.noise_multiplier, share)

    def relative_noise(self) -> float | None:
        """Return the noise multiplier."""
        return self.noise_multiplier

    def simplified(self) -> PrivacyEvent | None:
        """Return nothing at rate 0, a Gaussian at rate 1."""
        if self.sample_rate == 0:
            return None
        return Gaussian(self.noise_multiplier) if self.sample_rate == 1 else self

    def sort_key(self) -> tuple[str, Any, Any]:
        """Sort by rate, then noise."""
        return ("poisson", self.sample_rate, self.noise_multiplier)

    @classmethod
    def coarsened(cls, items: Sequence[tuple[Self, int]]) -> Sequence[tuple[Self, int]]:
        """Round noise multipliers down to at most ``MAX_LEVELS`` levels per sample rate.

        The grid exp(j 2^-m) is finest where few levels are needed, and coarser grids are part of
        finer ones: a part of a plan is never rounded further down than the whole.
        """
        by_rate: dict[float, list[tuple[float, int]]] = {}
        result: Counter[Self] = Counter()
        for event, count in items:
            by_rate.setdefault(event.sample_rate, []).append((event.noise_multiplier, count))
        for rate, pairs in by_rate.items():
            logs = [math.log(sigma) for sigma, _ in pairs if sigma > 0]
            for sigma, count in pairs:
                rounded = sigma
                if len(pairs) > MAX_LEVELS and sigma > 0:
                    # One level more than the range over the spacing may be needed at either end.
                    spread = max(max(logs) - min(logs), 1e-9)
                    spacing = 2.0 ** math.ceil(math.log2(spread / (MAX_LEVELS - 2)))
                    level = math.floor(math.log(sigma) / spacing)
                    rounded = min(math.exp(level * spacing), sigma)
                result[cls(rounded, rate)] += count
        return list(result.items())

    def privacy_loss(self, interval: float) -> Any:
        """Return its distribution."""
        simplified = self.simplified()
        if simplified is None:
            from dp_accounting.pld import privacy_loss_distribution

            return privacy_loss_distribution.identity(interval)
        if simplified is not self:
            return simplified.privacy_loss(interval)
        return sampled_gaussian_loss(self.noise_multiplier, self.sample_rate, interval)


# --- Curves on the grid are computed once ---------------------------------------------------

_CACHED_CURVES = 20_000  # 165 orders of 8 bytes each: 26 MB
_curves: dict[tuple[float, float], Array] = {}
_high_curves: dict[tuple[float, float, float], float] = {}


def _off_grid(events: Sequence[PoissonGaussian], orders: Array) -> Array:
    curves = np.empty((len(events), len(orders)))
    rates = np.array([event.sample_rate for event in events])
    noises = np.array([event.noise_multiplier for event in events])
    for rate in np.unique(rates):
        chosen = rates == rate
        curves[chosen] = rdp.poisson_gaussian_rdp(noises[chosen], float(rate), orders)
    return curves


def _base_curves(events: Sequence[PoissonGaussian]) -> Array:
    """Return one curve per event on ``rdp.ORDERS``; new ones all at once."""
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
    return rows


def _column(keys: Sequence[tuple[float, float]], order: float) -> Array:
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
