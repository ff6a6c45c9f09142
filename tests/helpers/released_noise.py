"""How much noise is in what was released: checks that see a per cent of it.

Two releases of the same sum differ by their noise alone, whatever the sum is. A million differences
tell their standard deviation to 0.07%, so noise that is 1% too small is 14 deviations off.
"""

import numpy as np
from scipy import stats

#: Values that a check needs. A deviation that is 1% off moves the mean square by 0.02, and that
#: scatters by sqrt(2 / LEAST) = 0.0014.
LEAST = 1_000_000
#: Probability that right noise fails one check.
FALSE_ALARM = 1e-10


def check_gaussian(first, second, scale):
    """Check that two releases of one sum differ by independent N(0, scale^2) in each.

    The margin of 1e-4 that most mechanisms add to their noise is a seventh of what one check can
    see.

    Args:
        first: Released values, of any shape.
        second: The same release, made again.
        scale: Standard deviation of the noise of one release, as it is charged for.
    """
    z = _differences(first, second) / (scale * np.sqrt(2))
    check_size(np.square(z).sum(), len(z))
    assert stats.kstest(z, "norm", method="asymp").pvalue > FALSE_ALARM
    # Noise that is drawn once and used twice has the right size, but not here.
    half = len(z) // 2
    assert abs(z[:half] @ z[half : 2 * half]) < 6.5 * np.sqrt(half)


def check_size(square, freedom):
    """Check a sum of squares of that many independent N(0, 1), two-sided."""
    assert freedom >= LEAST, f"{freedom} values have no power"
    low, high = stats.chi2.ppf(FALSE_ALARM / 2, freedom), stats.chi2.isf(FALSE_ALARM / 2, freedom)
    assert low < square < high, f"noise is {np.sqrt(square / freedom):.4f} of what is charged"


def check_laplace(first, second, scale):
    """Check that two releases of the same counts differ by independent Laplace noise in each.

    The difference X of two has the density (1 + |x| / b) exp(-|x| / b) / 4b, E|X| = 3b / 2 and a
    variance of |X| of 7b^2 / 4.

    Args:
        first: Released values.
        second: The same release, made again.
        scale: b of the density exp(-|x| / b) / 2b of one release, as it is charged for.
    """
    x = _differences(first, second) / scale
    mean, deviation = np.abs(x).mean(), np.sqrt(7 / 4 / len(x))
    assert abs(mean - 1.5) < 6.5 * deviation, f"noise is {mean / 1.5:.4f} of what is charged"
    assert stats.kstest(x, _laplace_difference, method="asymp").pvalue > FALSE_ALARM
    half = len(x) // 2
    assert abs(x[:half] @ x[half : 2 * half]) < 6.5 * 4 * np.sqrt(half)


def _laplace_difference(x):
    above = (2 + np.abs(x)) * np.exp(-np.abs(x)) / 4
    return np.where(x < 0, above, 1 - above)


def _differences(first, second):
    found = [np.asarray(values, dtype=np.float64).ravel() for values in (first, second)]
    x = found[0] - found[1]
    assert len(x) >= LEAST, f"{len(x)} values have no power"
    return x
