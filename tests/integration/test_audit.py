"""Every method of the table is audited, and each engine's clipping is missed where it is gone."""

import json

import pytest
import torch
from whole_studies import cli_here

from dpsweep.auditing.audit import AuditSettings, run_audit
from dpsweep.auditing.subject import built_in
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.gradients import bias_engine, per_example, sparse_engine
from dpsweep.trainables.gradients.layer_gradients import add_clipped

FOLLOWED = {"adamix", "bitfit", "dope_sgd", "dp_sgd", "least_squares", "scatternet", "sparse"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("epsilon", [1, 8])
def test_every_method_passes(epsilon):
    done = cli_here("audit", "--method", "all", "--quick", "--epsilon", epsilon, "-f", "json")
    records = {record["method"]: record for record in json.loads(done.stdout)}
    assert records.keys() == set(TRAINABLES)
    assert {name: r["problems"] for name, r in records.items() if r["problems"]} == {}
    assert done.returncode == 0, done.stderr
    for name, record in records.items():
        assert record["verdict"] == ("consistent" if name in FOLLOWED else "not audited")
        if name in FOLLOWED:
            assert record["claim"]["epsilon"] == pytest.approx(epsilon, rel=0.01)
            assert record["at_bound"] > 0.9
            assert record["not_audited"] == []


def without_bound(sums, samples, bound, factors, count=None):
    """Add gradients up as if the bound were so large that nothing is clipped."""
    add_clipped(sums, samples, 1e30, factors, count)


ENGINES = {
    "dp_sgd": (per_example, "add_clipped", without_bound),
    "sparse": (sparse_engine, "add_clipped", without_bound),
    "bitfit": (bias_engine, "exact_factors", lambda factors, norms: torch.ones_like(factors)),
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", ENGINES)
def test_an_engine_that_does_not_clip_fails(method, monkeypatch):
    """Half of the records in each batch, as no step after the first learns from what it was fed."""
    monkeypatch.setattr(*ENGINES[method])
    subject = built_in(method, 1.0, 2, {"batch.expected": 500})
    record = run_audit(subject, AuditSettings(300))
    assert record.is_refuted
