"""Write known_epsilons.json: each plan's epsilon by at least two implementations that are not ours.

Run it by hand (python tests/golden/make_known_epsilons.py) after adding a row; it takes a minute.
Nothing here imports dpsweep.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import dp_accounting as da
import numpy as np
from dp_accounting import dp_event, pld, rdp
from opacus.accountants.analysis import rdp as opacus_rdp
from scipy import integrate, optimize, stats

ORDERS = [*rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS]


def poisson(sigma, rate, steps):
    return {
        "event": "poisson_gaussian",
        "noise_multiplier": sigma,
        "sample_rate": rate,
        "steps": steps,
    }


def gaussian(sigma, count=1):
    return {"event": "gaussian", "noise_multiplier": sigma, "count": count}


def laplace(scale, count=1):
    return {"event": "laplace", "scale": scale, "count": count}


def select(mean, shape, of):
    return {"event": "repeat_and_select", "mean": mean, "shape": shape, "of": of}


def subset(rate, sigma, count):
    """A Gaussian on a secret subset, which others know as a step on a Poisson sample."""
    return {"event": "poisson_subset", "rate": rate, "of": [gaussian(sigma)], "count": count}


def schedule(start, factors):
    return [poisson(start * factor, 0.01, 20) for factor in factors]


T = np.arange(24) / 23
BASE = [poisson(1.51313, 0.01, 1000)]
ROWS = [
    ("dp-sgd", 1e-5, [poisson(1.0, 0.01, 1000)]),
    ("dp-sgd, last step within 2", 1e-5, [poisson(1.0, 0.01, 881)]),
    ("dp-sgd, last step within 3", 1e-5, [poisson(1.1, 0.004, 20923)]),
    ("dp-sgd, last step within 1", 1e-5, [poisson(1.5, 0.02, 212)]),
    ("dp-sgd, much noise", 1e-5, [poisson(15.0, 0.1, 1363)]),
    ("tiny epsilon, needs high orders", 1e-5, [poisson(10.0, 0.001, 100)]),
    ("mnist tutorial", 1e-5, [poisson(1.1, 256 / 60000, 14063)]),
    ("little noise, needs low orders", 1e-5, [poisson(0.7, 0.01, 300)]),
    ("very little noise", 1e-5, [poisson(0.5, 0.05, 50)]),
    ("half of the data", 1e-5, [poisson(5.0, 0.5, 100)]),
    ("few steps", 1e-5, [poisson(1.0, 0.1, 10)]),
    ("smaller delta", 1e-7, [poisson(2.0, 0.2, 50)]),
    ("larger delta", 1e-3, [poisson(1.2, 0.02, 400)]),
    ("tiny sample rate", 1e-5, [poisson(0.6, 1e-4, 10000)]),
    ("base of the selection table", 1e-5, BASE),
    ("two phases", 1e-5, [poisson(0.8, 0.01, 500), poisson(1.6, 0.01, 500)]),
    ("two sample rates", 1e-5, [poisson(1.0, 0.01, 300), poisson(1.4, 0.03, 150)]),
    ("linear schedule", 1e-5, schedule(2.28327, 1 - 0.65 * T)),
    ("cosine schedule", 1e-5, schedule(2.34454, 0.35 + 0.65 * (1 + np.cos(np.pi * T)) / 2)),
    ("exponential schedule", 1e-5, schedule(2.31453, 0.35**T)),
    ("step schedule", 1e-5, schedule(2.44756, 0.35 ** (np.arange(24) // 8 / 2))),
    ("growing schedule", 1e-5, schedule(0.79915, 1 + 1.857 * T)),
    ("one gaussian", 1e-5, [gaussian(1.0)]),
    ("hundred noisy scores", 1e-5, [gaussian(50.0, 100)]),
    ("full batch", 1e-5, [poisson(3.0, 1.0, 5)]),
    ("gaussians of two sizes", 1e-5, [gaussian(4.0, 3), gaussian(9.0, 20)]),
    ("one laplace, pure", 1e-5, [laplace(2.0)]),
    ("hundred laplace scores", 1e-5, [laplace(50.0, 100)]),
    ("laplace and gaussian", 1e-5, [laplace(2.0), gaussian(20.0)]),
    ("normalisation, then dp-sgd", 1e-5, [gaussian(20.0), poisson(1.0, 0.01, 500)]),
    ("select, logarithmic, E 10", 1e-5, [select(10.0, 0.0, BASE)]),
    ("select, eta 1/2, E 2", 1e-5, [select(2.0, 0.5, BASE)]),
    ("select, geometric, E 10", 1e-5, [select(10.0, 1.0, BASE)]),
    ("select, eta 2, E 100", 1e-5, [select(100.0, 2.0, BASE)]),
    ("select, poisson, E 30", 1e-5, [select(30.0, "poisson", BASE)]),
    ("a subset, then dp-sgd", 1e-5, [subset(0.1, 1.5, 1), poisson(1.5, 0.01, 1000)]),
    ("least squares: targets, covariance", 1e-5, [gaussian(5.27591), gaussian(5.27591)]),
    ("a covariance, then steps over it", 1e-5, [gaussian(3.10951), gaussian(4.91656, 10)]),
]


def to_event(segments):
    events = []
    for s in segments:
        if s["event"] == "poisson_gaussian":
            inner = da.GaussianDpEvent(s["noise_multiplier"])
            event = da.PoissonSampledDpEvent(s["sample_rate"], inner)
        elif s["event"] == "gaussian":
            event = da.GaussianDpEvent(s["noise_multiplier"])
        elif s["event"] == "laplace":
            event = da.LaplaceDpEvent(s["scale"])
        elif s["event"] == "poisson_subset":
            inner = da.GaussianDpEvent(s["of"][0]["noise_multiplier"])
            event = da.PoissonSampledDpEvent(s["rate"], inner)
        else:
            shape = math.inf if s["shape"] == "poisson" else s["shape"]
            event = dp_event.RepeatAndSelectDpEvent(to_event(s["of"]), s["mean"], shape)
        events.append(da.SelfComposedDpEvent(event, s.get("steps", s.get("count", 1))))
    return da.ComposedDpEvent(events)


def laplace_divergence(scale, order):
    """Renyi divergence of Laplace(0, b) from Laplace(1, b), by numerical integration."""

    def density(x):
        return math.exp(-order * abs(x) / scale - (1 - order) * abs(x - 1) / scale) / (2 * scale)

    parts = [(-60 * scale - 1, 0), (0, 1), (1, 60 * scale + 2)]
    total = sum(integrate.quad(density, a, b, epsabs=0, epsrel=1e-10)[0] for a, b in parts)
    return math.log(total) / (order - 1)


def plain_curve(segments):
    """Opacus for Gaussians, integration for Laplace, the two theorems in plain loops."""
    total = np.zeros(len(ORDERS))
    for s in segments:
        if s["event"] in ("poisson_gaussian", "gaussian"):
            total += opacus_rdp.compute_rdp(
                q=s.get("sample_rate", 1.0),
                noise_multiplier=s["noise_multiplier"],
                steps=s.get("steps", s.get("count")),
                orders=ORDERS,
            )
        elif s["event"] == "poisson_subset":
            noise = s["of"][0]["noise_multiplier"]
            total += opacus_rdp.compute_rdp(
                q=s["rate"], noise_multiplier=noise, steps=s["count"], orders=ORDERS
            )
        elif s["event"] == "laplace":
            total += s["count"] * np.array([laplace_divergence(s["scale"], a) for a in ORDERS])
        else:
            total += plain_selection(plain_curve(s["of"]), s["mean"], s["shape"])
    return total


def plain_selection(curve, mean, shape):
    if shape == "poisson":  # Papernot and Steinke 2022, theorem 6
        result = []
        for a, r in zip(ORDERS, curve):
            epsilon = math.log1p(1 / (a - 1))
            log_delta = min(
                (b - 1) * (s - epsilon + math.log1p(-1 / b)) - math.log(b)
                for b, s in zip(ORDERS, curve)
            )
            delta = math.exp(min(log_delta, 0))
            result.append(r + mean * delta + math.log(mean) / (a - 1))
        return np.array(result)

    def expected(gamma):  # theorem 2
        if shape == 0:
            return (1 / gamma - 1) / math.log(1 / gamma)
        return shape * (1 - gamma) / (gamma * (1 - gamma**shape))

    gamma = optimize.brentq(lambda g: expected(g) - mean, 1e-6, 1 - 1e-9, xtol=1e-14)
    constant = (1 + shape) * min(
        (1 - 1 / b) * s + math.log(1 / gamma) / b for b, s in zip(ORDERS, curve)
    )
    return np.array([r + math.log(mean) / (a - 1) + constant for a, r in zip(ORDERS, curve)])


def exact_gaussian(mu, delta):
    def excess(epsilon):
        return (
            stats.norm.cdf(mu / 2 - epsilon / mu)
            - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
            - delta
        )

    return optimize.brentq(excess, 0, 50, xtol=1e-12)


def is_full_gaussian(segment):
    return segment["event"] == "gaussian" or segment.get("sample_rate") == 1.0


def main():
    warnings.simplefilter("ignore")
    rows = []
    for name, delta, segments in ROWS:
        event = to_event(segments)
        curve = plain_curve(segments)
        row = {"name": name, "delta": delta, "events": segments}
        row["rdp"] = {
            "dp_accounting": float(rdp.RdpAccountant().compose(event).get_epsilon(delta)),
            "opacus or plain": float(
                opacus_rdp.get_privacy_spent(orders=ORDERS, rdp=curve, delta=delta)[0]
            ),
        }
        if all(s["event"] == "laplace" for s in segments):
            row["rdp"]["pure sum"] = sum(s["count"] / s["scale"] for s in segments)
        if segments[0]["event"] != "repeat_and_select":
            row["pld"] = {
                "dp_accounting": float(pld.PLDAccountant().compose(event).get_epsilon(delta))
            }
            if all(is_full_gaussian(s) for s in segments):
                mu2 = sum(
                    s.get("steps", s.get("count")) / s["noise_multiplier"] ** 2 for s in segments
                )
                row["pld"]["exact"] = exact_gaussian(math.sqrt(mu2), delta)
        rows.append(row)
    path = Path(__file__).with_name("known_epsilons.json")
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
