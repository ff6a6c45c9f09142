"""Mutants of gradients that are clipped around a public one."""

from mutant import Mutant

_TESTS = "tests/unit/trainables/methods/test_dope_sgd.py"
CENTRED = (
    Mutant(
        "rows of zeros that add less the centre",
        "trainables/gradients/centred.py",
        "add_clipped(sums, each, max_grad_norm, self._factors, count)",
        "add_clipped(sums, each, max_grad_norm, self._factors)",
        (f"{_TESTS}::test_a_record_moves_the_sum_by_the_bound_at_most[tanh_cnn-0.1]",),
        "a record that leaves a batch leaves a row behind that moves the sum as well",
    ),
    Mutant(
        "a centre of private records",
        "trainables/methods/dope_sgd.py",
        'part = "private" if data.records == "public" else "public"',
        'part = "private"',
        (f"{_TESTS}::test_public_batches_are_public_and_differ",),
        "the centre is added without noise",
    ),
)
