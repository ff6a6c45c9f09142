"""Steps that a privacy budget allows at a noise multiplier."""

from __future__ import annotations

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import NO_PLAN, EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.privacy.terms import ACCOUNTANTS, AccountantName

_MAX_STEPS = 10**9


def max_steps(
    budget: PrivacyBudget,
    *,
    sample_rate: float,
    noise_multiplier: float,
    accountant: AccountantName = "rdp",
    before: Plan = NO_PLAN,
) -> int:
    """Return how many steps at a constant noise multiplier the budget allows.

    >>> budget = PrivacyBudget(target_epsilon=2.0, delta=1e-5)
    >>> max_steps(budget, sample_rate=0.01, noise_multiplier=1.0)
    881

    Guarantees:
        The epsilon after the returned number of steps is within the target, and after one more
        it is not. Poisson sampling and add-or-remove-one only.

    Args:
        budget: Target epsilon and delta.
        sample_rate: Probability in (0, 1] that one record enters a batch.
        noise_multiplier: Noise standard deviation divided by ``max_grad_norm``, > 0.
        accountant: ``rdp`` or ``pld``.
        before: Events charged already.
    Returns:
        Number of steps, 0 if not even one is allowed.
    Raises:
        BadInputError: More than 1e9 steps would be allowed.
    """
    rate = validate.in_unit_interval("sample_rate", sample_rate, one=True)
    sigma = validate.positive("noise_multiplier", noise_multiplier)
    return _most_steps(budget, PoissonGaussian(sigma, rate), accountant, before)


def gaussian_steps(
    budget: PrivacyBudget, *, noise_multiplier: float, accountant: AccountantName = "rdp"
) -> int:
    """Return how many Gaussian-noised sums over all records the budget allows.

    Under ``pld`` by the exact curve: T of them are mu-GDP with mu = sqrt(T) / noise_multiplier
    (Dong, Roth and Su 2022, https://arxiv.org/abs/1905.02383, corollary 2).

    >>> budget = PrivacyBudget(target_epsilon=1.36, delta=1e-5)
    >>> gaussian_steps(budget, noise_multiplier=40.0, accountant="pld")
    200
    >>> gaussian_steps(budget, noise_multiplier=40.0)
    171

    Guarantees:
        The epsilon after the returned number of steps is within the target, and after one more
        it is not. Full batches and add-or-remove-one only.

    Args:
        budget: Target epsilon and delta.
        noise_multiplier: Noise standard deviation divided by the L2 sensitivity, > 0.
        accountant: ``rdp`` or ``pld``.
    Returns:
        Number of steps, 0 if not even one is allowed.
    Raises:
        BadInputError: More than 1e9 steps would be allowed.
    """
    sigma = validate.positive("noise_multiplier", noise_multiplier)
    return _most_steps(budget, Gaussian(sigma), accountant, NO_PLAN)


def _most_steps(
    budget: PrivacyBudget,
    event: PoissonGaussian | Gaussian,
    accountant: AccountantName,
    before: Plan,
) -> int:
    """Return how many times ``event`` fits into the budget after ``before``."""
    validate.one_of("accountant", accountant, ACCOUNTANTS)

    def allowed(steps: int) -> bool:
        plan = before + Plan((EventRun(event, steps),) if steps else ())
        epsilon = epsilon_of(plan, delta=budget.delta, accountant=accountant)
        return epsilon <= budget.target_epsilon

    if not allowed(0):
        return 0
    low = 0
    if accountant == "pld":
        low = _most_steps(budget, event, "rdp", before)
    high = low + max(1, low // 2)
    while allowed(high):
        if high > _MAX_STEPS:
            raise BadInputError(
                f"more than {_MAX_STEPS:g} steps stay within epsilon={budget.target_epsilon:g}",
                because=f"every step is {event}",
                fix="lower the noise multiplier",
            )
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low
