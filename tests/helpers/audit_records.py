"""Records of audits that no audit has made."""

from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.study.audits import AuditRecord

CLAIM = PrivacyStatement(
    epsilon=1.23, delta=1e-5, accountant="rdp", neighboring_relation="add_or_remove_one",
    sampling="poisson", privacy_unit="example", accounting="composed",
    released="the noisy sums of 100 positions",
)  # fmt: skip


def record(trial, **changes):
    """Return the record of an audit, by default one that refutes nothing."""
    values = dict(
        study="digits", trial=trial, method="dp_sgd", claim=CLAIM, lower_bound=0.777, ceiling=3.47,
        canaries=1000, guesses=100, correct=61, confidence=0.95, positions=100, planned=224,
        is_refuted=False, problems=(), without_sampling=None, at_bound=0.99, not_audited=(),
        version="0.1.0",
    )  # fmt: skip
    return AuditRecord(**{**values, **changes})
