"""Mutants of learning rates that follow from the noise."""

from mutant import Mutant

_FILE = "trainables/methods/noise_rates.py"
_TESTS = "tests/unit/trainables/methods/test_noise_rates.py"

RATES = (
    Mutant(
        "a rate that does not follow its noise",
        _FILE,
        "else rates / noise_stds",
        "else rates / noise_stds[0]",
        (
            f"{_TESTS}::test_steps_are_those_of_an_explicit_simulation[None]",
            f"{_TESTS}::test_noise_that_grows_within_a_run_moves_the_weights_as_constant_noise",
        ),
        "louder steps are as long as quiet ones: what was searched for is not what is run",
    ),
    Mutant(
        "momentum of another noise",
        _FILE,
        'state["momentum_buffer"].mul_(ratio)',
        'state["momentum_buffer"].div_(ratio)',
        (
            f"{_TESTS}::test_steps_are_those_of_an_explicit_simulation[7]",
            f"{_TESTS}::test_noise_that_grows_within_a_run_moves_the_weights_as_constant_noise",
        ),
        "the noise of earlier steps counts twice",
    ),
    Mutant(
        "a scale without its momentum",
        _FILE,
        "scale * expected_batch * left /",
        "scale * expected_batch /",
        (
            f"{_TESTS}::test_s_carries_over_to_another_batch_and_length",
            f"{_TESTS}::test_s_is_the_noise_in_a_logit[moving0]",
        ),
        "a scale that was chosen at one momentum means another noise at the next",
    ),
)
