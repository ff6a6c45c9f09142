from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.accountants import analytic_gaussian_epsilon
from dpsweep.trainables.methods.adamix import instance_privacy as ip


def test_a_record_that_is_always_clipped_spends_what_the_plan_spends() -> None:
    # T = 200 full-batch steps at sigma = 40: mu .353553, epsilon 1.356467 at 1e-5.
    sums = np.full(3, 200 / 40**2)
    mu = ip.per_instance_mu(sums)
    assert mu == pytest.approx(np.full(3, 0.353553), abs=1e-6)
    assert ip.per_instance_epsilon(mu, 1e-5) == pytest.approx(np.full(3, 1.356467), abs=1e-6)


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2, 0.4])
def test_vectorised_epsilon_equals_the_accountants(delta: float) -> None:
    mu = np.concatenate([[0.0], np.geomspace(1e-6, 60, 40)])
    expected = [analytic_gaussian_epsilon(float(value), delta) for value in mu]
    found = ip.per_instance_epsilon(mu, delta)
    assert found == pytest.approx(np.array(expected), rel=1e-9, abs=1e-12)
    assert (np.diff(found) >= 0).all()
    assert found[0] == 0.0


def test_an_epsilon_is_not_below_the_exact_one() -> None:
    exact = 6.275706196212564953e-05  # to 60 digits, by mpmath
    (epsilon,) = ip.per_instance_epsilon([4e-5], 1e-6)
    assert exact <= epsilon <= exact * (1 + 1e-5)


def test_epsilons_are_not_mixed_up_between_records() -> None:
    rng = np.random.default_rng(0)
    mu = rng.exponential(size=500) * (rng.random(500) < 0.8)
    order = rng.permutation(500)
    assert (
        ip.per_instance_epsilon(mu, 1e-5)[order] == ip.per_instance_epsilon(mu[order], 1e-5)
    ).all()


def test_many_records_are_quick() -> None:
    import time

    start = time.process_time()
    ip.per_instance_epsilon(np.random.default_rng(0).exponential(size=60_000), 1e-5)
    assert time.process_time() - start < 10


def test_auc_is_the_area_under_the_roc_curve() -> None:
    rng = np.random.default_rng(1)
    members, others = rng.exponential(0.8, 300).round(1), rng.exponential(1.0, 200).round(1)
    labels = np.r_[np.ones(300), np.zeros(200)]
    expected = roc_auc_score(labels, -np.concatenate([members, others]))  # rounded: many ties
    found = ip.membership_auc(members, others)
    assert found == pytest.approx(expected, abs=1e-12)
    assert found > 0.5
    assert ip.membership_auc(others, members) == pytest.approx(1 - expected, abs=1e-12)


def test_auc_at_the_ends() -> None:
    assert ip.membership_auc([0.0, 0.1], [0.2, np.inf]) == 1.0
    assert ip.membership_auc([0.3], [0.1, 0.2]) == 0.0
    assert ip.membership_auc(np.ones(5), np.ones(7)) == 0.5


def test_report_says_first_that_it_is_private_and_loses_no_record() -> None:
    rng = np.random.default_rng(2)
    mu = rng.exponential(size=1000)
    figures = ip.report(mu, 1e-5, rng.random(30), rng.random(20), steps_covered=7, num_bins=13)
    assert next(iter(figures)) == "private"
    assert "do not publish" in figures["private"]
    assert json.loads(json.dumps(figures)) == figures
    for name, values in (("mu", mu), ("epsilon", ip.per_instance_epsilon(mu, 1e-5))):
        part = figures[name]
        assert sum(part["histogram"]["counts"]) == 1000
        assert len(part["histogram"]["edges"]) == 14
        assert part["quantiles"]["0.5"] == pytest.approx(float(np.median(values)))
        assert part["quantiles"]["1"] == pytest.approx(values.max())
        assert part["mean"] == pytest.approx(values.mean())
    assert figures["epsilon"]["delta"] == 1e-5
    assert figures["steps_covered"] == 7
    assert (figures["membership"]["members"], figures["membership"]["others"]) == (30, 20)


def test_report_of_records_that_spent_nothing() -> None:
    figures = ip.report(np.zeros(4), 1e-5, [0.1], [0.2])
    assert figures["mu"]["histogram"]["counts"][0] == 4
    assert figures["epsilon"]["mean"] == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ip.per_instance_mu([-1.0]), "negative"),
        (lambda: ip.per_instance_mu([[1.0]]), "shape"),
        (lambda: ip.per_instance_epsilon([np.inf], 1e-5), "not numbers"),
        (lambda: ip.per_instance_epsilon([1.0], 0.0), "delta"),
        (lambda: ip.membership_auc([], [1.0]), "both sides"),
        (lambda: ip.membership_auc([np.nan], [1.0]), "not numbers"),
        (lambda: ip.report([], 1e-5, [1.0], [1.0]), "no record"),
    ],
)
def test_nonsense_is_refused(call, message) -> None:
    with pytest.raises(BadInputError, match=message):
        call()
