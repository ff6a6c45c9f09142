"""Edits of privacy loss distributions: one event's, and many composed."""

from mutant import Mutant

_TESTS = "tests/unit/privacy/test_composed_losses.py::"
_CONVOLUTION = "platform/dpsweep/privacy/events/convolution.py"
_PROFILES = "platform/dpsweep/privacy/events/sampled_gaussian.py"

LOSSES: tuple[Mutant, ...] = (
    Mutant(
        "profiles of sampled Gaussians rounded down",
        _PROFILES,
        "more = 1 + _ROUNDING * (1 + noise)",
        "more = 1 - _ROUNDING * (1 + noise)",
        (f"{_TESTS}test_profiles_are_those_of_forty_digits_rounded_up",),
        "every pld epsilon of DP-SGD",
    ),
    Mutant(
        "the direction of adding left out",
        _PROFILES,
        "(-loss(far), -loss(-far))",
        "(-loss(far), 0.0)",
        (f"{_TESTS}test_one_loss_is_that_of_dp_accounting",),
        "pld epsilons where adding costs more",
    ),
    Mutant(
        "an infinite loss forgotten in a composition",
        _CONVOLUTION,
        "infinite = -math.expm1(log_finite) + _TAIL",
        "infinite = _TAIL",
        (f"{_TESTS}test_an_infinite_loss_is_kept_however_often_it_is_composed",),
        "what may release everything",
    ),
    Mutant(
        "a composition's losses in the wrong place",
        _CONVOLUTION,
        "np.roll(scipy.fft.irfft(spectrum, size), start - first)",
        "np.roll(scipy.fft.irfft(spectrum, size), start - first - 1)",
        (f"{_TESTS}test_a_composition_is_the_convolution_within_what_rounding_may_take",),
        "every pld epsilon",
    ),
    Mutant(
        "a window that cuts off what is likely",
        _CONVOLUTION,
        "return math.ceil((moment - math.log(_TAIL)) / float(best[0])) + 1",
        "return math.ceil((moment - math.log(1e-6)) / float(best[0])) + 1",
        (f"{_TESTS}test_a_composition_is_the_convolution_within_what_rounding_may_take",),
        "pld epsilons at small deltas",
    ),
)
