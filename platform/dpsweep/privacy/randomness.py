"""Two kinds of randomness that must never be mixed: public and reproducible, or secret."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np

_SEED_BITS = 63  # fits a signed 64-bit integer, which torch, numpy and SQLite accept


def secret_seed() -> int:
    """Return a fresh 63-bit seed from the operating system's entropy, for noise on a device.

    Not for torch's CPU generator, which keeps only the low 32 bits of a seed: use
    ``secret_numpy_generator`` there.

    >>> 0 <= secret_seed() < 2**63
    True

    Guarantees:
        Never derived from the study's seed, never logged or stored by this package. Whoever
        knows it can subtract the noise, so it must not enter a checkpoint or a log either.

        Not covered: the generators that are seeded with it (torch's Philox, numpy's PCG64) are not
        cryptographic, so an adversary who sees enough exact outputs may recover their state; and
        noise is a floating point number, whose low bits can betray the value below it (Mironov
        2012, "On significance of the least significant bits for differential privacy"). Every
        epsilon here is for ideal real-valued noise.
    """
    return secrets.randbits(_SEED_BITS)


def secret_numpy_generator() -> np.random.Generator:
    """Return a numpy generator seeded with 256 bits of the operating system's entropy.

    The same limits hold as for ``secret_seed``.
    """
    return np.random.default_rng(secrets.randbits(256))


def secret_hex() -> str:
    """Return 256 bits of the operating system's entropy, for what must be drawn again alike.

    The same limits hold as for ``secret_seed``, but for one: it is kept where nobody else reads.
    """
    return secrets.token_hex(32)


def public_seed(study_seed: int, trial: int, purpose: str) -> int:
    """Return the seed of one purpose of one trial, the same on every machine and version.

    Only for what may be known: initial weights, hyperparameter draws, synthetic data. Never for
    noise or for the choice of a batch of a private method.

    >>> public_seed(0, 7, "weights") == public_seed(0, 7, "weights")
    True
    >>> public_seed(0, 7, "weights") == public_seed(0, 8, "weights")
    False

    Returns:
        An integer in [0, 2**63).
    """
    text = f"dpsweep/{int(study_seed)}/{int(trial)}/{purpose}"
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
