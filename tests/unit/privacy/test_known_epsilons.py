"""Known answers: ours against the values of implementations that are not ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import Plan

ROWS = json.loads((Path(__file__).parents[2] / "golden" / "known_epsilons.json").read_text())


def test_the_table_is_large_and_each_row_has_two_witnesses() -> None:
    assert len(ROWS) >= 25
    for row in ROWS:
        assert len(row["rdp"]) + len(row.get("pld", {})) >= 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_rdp_agrees_with_every_witness(row: dict) -> None:
    plan = Plan.from_json(row["events"])
    epsilon = epsilon_of(plan, delta=row["delta"], accountant="rdp")
    # The pure sum is a bound of its own; ours is the smaller of the two.
    witnesses = row["rdp"]
    if row["name"].startswith("tiny epsilon"):
        # The witnesses' orders are powers of two up there; the best whole one is 1,380.
        accountant = RdpAccountant(orders=range(1300, 1450))
        accountant.compose(PoissonSampledDpEvent(0.001, GaussianDpEvent(10.0)), 100)
        best = accountant.get_epsilon(row["delta"])
        assert best * (1 - 1e-9) <= epsilon <= 1.001 * best < 0.8 * witnesses["dp_accounting"]
        return
    expected = min(witnesses.values()) if "pure sum" in witnesses else None
    for witness in [expected] if expected is not None else witnesses.values():
        assert epsilon == pytest.approx(witness, rel=5e-3)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "row", [row for row in ROWS if "pld" in row], ids=[r["name"] for r in ROWS if "pld" in r]
)
def test_pld_agrees_with_every_witness(row: dict) -> None:
    plan = Plan.from_json(row["events"])
    epsilon = epsilon_of(plan, delta=row["delta"], accountant="pld")
    if "exact" in row["pld"]:
        assert epsilon == pytest.approx(row["pld"]["exact"], rel=1e-6)
        assert epsilon >= row["pld"]["exact"] * (1 - 1e-9)
    if row["name"].startswith("tiny epsilon"):
        # The witness's fixed discretisation is a third of this epsilon; ours is finer.
        assert 0.9 * row["pld"]["dp_accounting"] < epsilon < row["pld"]["dp_accounting"]
    else:
        assert epsilon == pytest.approx(row["pld"]["dp_accounting"], rel=5e-3)


@pytest.mark.parametrize(
    ("events", "rdp", "pld"),
    [
        ([(1.0, 0.01, 1000)], 2.1014, 1.8282),
        ([(0.8, 0.01, 500), (1.6, 0.01, 500)], 3.0410, 2.4661),
    ],
)
def test_published_values(events: list, rdp: float, pld: float) -> None:
    segments = [
        {"event": "poisson_gaussian", "noise_multiplier": s, "sample_rate": q, "steps": n}
        for s, q, n in events
    ]
    plan = Plan.from_json(segments)
    assert round(epsilon_of(plan, delta=1e-5, accountant="rdp"), 4) == rdp
    assert round(epsilon_of(plan, delta=1e-5, accountant="pld"), 4) == pld
