"""What records are said to add is what a release holds, and no more than the bound each."""

import numpy as np
import pytest

from dpsweep.auditing.audit import AuditSettings
from dpsweep.auditing.canaries import make_canaries
from dpsweep.auditing.randomness import step_alone
from dpsweep.auditing.subject import built_in
from dpsweep.trainables.gradients import noise
from dpsweep.trainables.gradients.clipping import TOLERANCE
from dpsweep.trainables.method import RunContext

WHOLE = {"batch.sample_rate": 1.0, "optim.lr": 0.01}
LINEAR = {"model.name": "linear", **WHOLE}
STATISTICS = {"normalize.kind": "private_data", "features.name": "none", "normalize.mean_norm": 0.1}
CASES = {
    "a linear model": ("dp_sgd", LINEAR, 1.0),
    "a network": ("dp_sgd", {"model.name": "tanh_cnn", **WHOLE}, 1000.0),
    "biases": ("bitfit", WHOLE, 1000.0),
    "automatic clipping": ("bitfit", {"clip.rule": "automatic", **WHOLE}, 1000.0),
    "two phases": ("bitfit", {"bitfit.variant": "two_phase", "bitfit.full_epochs": 1.0, **WHOLE}, 10.0),
    "masked weights": ("sparse", {"sparse.density": 0.1, **WHOLE}, 1000.0),
    "statistics": ("scatternet", {**STATISTICS, **LINEAR}, 1.0),
    "heads": ("scatternet", {"heads.count": 3, "features.name": "none", **LINEAR}, 1.0),
    "sums of least squares": ("least_squares", {}, 1.0),
    "steps over a covariance": ("least_squares", {"least_squares.variant": "feature_covariance"}, 1.0),
    "public parts": ("adamix", {}, 1.0),
    "public records as private": ("adamix", {"adamix.variant": "fully_private"}, 1.0),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_contributions_add_up_to_a_release(case):
    name, given, factor = CASES[case]
    subject = built_in(name, 8.0, 2, given)
    data = make_canaries(subject, 30, np.random.default_rng(0)).candidates
    method = subject.method_class()
    method.prepare(data, subject.hparams, subject.plan, RunContext(0, 0))
    method.amplify(factor)
    for position in range(len(subject.plan)):
        said = method.contributions(position)
        exact, noisy = step_alone(method, position)
        rows = said.rows.double().numpy()
        total = rows.sum(axis=0)
        if said.public is not None:
            total = total + said.public.double().numpy()
        assert exact == pytest.approx(total, abs=2e-5 * said.bound * len(rows) ** 0.5)
        norms = np.linalg.norm(rows, axis=1)
        assert norms.max() <= said.bound * (1 + TOLERANCE)
        assert norms.max() > 0.5 * said.bound
        scale = subject.plan.at(position).noise_multiplier * said.bound
        assert np.std(noisy - exact) == pytest.approx(scale, rel=5 / np.sqrt(len(exact)))


def test_gradients_are_as_much_larger_as_they_are_to_be():
    """Where nothing is clipped, and in the direction that they had."""
    rows = []
    for factor in (1.0, 7.0):
        subject = built_in("dp_sgd", 8.0, 2, {"clip.max_grad_norm": 1e6})
        data = make_canaries(subject, 5, np.random.default_rng(0)).candidates
        method = subject.method_class()
        method.prepare(data, subject.hparams, subject.plan, RunContext(0, 0))
        method.amplify(factor)
        rows.append(method.contributions(0).rows.numpy())
    assert rows[1] == pytest.approx(7 * rows[0], rel=1e-3, abs=1e-6 * float(np.abs(rows[1]).max()))


def test_releases_are_shown_to_nobody_once_an_audit_is_over():
    subject = built_in("dp_sgd", 8.0, 1, LINEAR)
    data = make_canaries(subject, 20, np.random.default_rng(0)).candidates
    method = subject.method_class()
    method.prepare(data, subject.hparams, subject.plan, RunContext(0, 0))
    with pytest.raises(RuntimeError, match="stopped"), noise.watched_releases(lambda _: stop()):
        method.run(0, 1)
    assert noise._watchers == []
    assert AuditSettings().guesses == 100


def stop():
    raise RuntimeError("stopped")
