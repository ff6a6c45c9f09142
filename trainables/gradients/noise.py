"""Secret Gaussian noise on any device; every private method draws its noise here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpsweep.privacy.randomness import secret_numpy_generator, secret_seed


@dataclass(frozen=True)
class Released:
    """A release as an audit sees it.

    Attributes:
        exact: The sum before noise, float64; as private as its records.
        noisy: The sum with noise, as it was released, of the same shape.
        scale: Standard deviation that the noise should have.
    """

    exact: torch.Tensor
    noisy: torch.Tensor
    scale: float


_watchers: list[Callable[[Released], None]] = []


@contextmanager
def watched_releases(watcher: Callable[[Released], None]) -> Iterator[None]:
    """Show every release of this process to a watcher, for an audit on synthetic records alone.

    Guarantees:
        None: the watcher sees exact sums. Nothing that trains on private records may run within.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


class SecretNoise:
    """Gaussian noise from a generator that is seeded anew by the operating system.

    Guarantees:
        The seed is never stored, logged or derived from anything known. On the CPU noise comes
        from numpy's PCG64 with 128 bits of state: torch's CPU generator keeps only 32 bits of a
        seed, few enough to try them all against one released step. On CUDA it comes from Philox
        with a 63-bit seed, drawn on the device: neither noise nor sums come to the host.

        Not covered: neither generator is cryptographic, and floating-point noise has fewer values
        than real noise (see ``dpsweep.privacy.randomness``).

    Args:
        device: Where the noise is needed, ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self._numpy = secret_numpy_generator() if device == "cpu" else None
        self._torch: torch.Generator | None = None
        if self._numpy is None:
            self._torch = torch.Generator(device=device)
            self._torch.manual_seed(secret_seed())

    def like(self, tensor: torch.Tensor, scale: float) -> torch.Tensor:
        """Return N(0, scale^2) in the shape, dtype and device of ``tensor``."""
        if self._numpy is not None:
            dtype: Any = "float64" if tensor.dtype == torch.float64 else "float32"
            values = self._numpy.standard_normal(tensor.numel(), dtype=dtype)
            return torch.from_numpy(values).view_as(tensor).to(tensor.dtype).mul_(scale)
        return torch.empty_like(tensor).normal_(0.0, scale, generator=self._torch)

    def release(
        self,
        total: torch.Tensor,
        noise_multiplier: float,
        bound: float,
        *,
        observer: Callable[[torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """Add noise to a private sum, in place, and return it: the one way out of a sum.

        Guarantees:
            One release of the Gaussian mechanism with this noise multiplier, if one example moves
            ``total`` by at most ``bound`` in L2 norm. Noise and sum are added in the precision of
            ``total``; whoever rounds, rounds what is returned.

        Args:
            total: The private sum, float64.
            noise_multiplier: Standard deviation of the noise / ``bound``.
            bound: Sensitivity of the sum; of clipped gradients ``clipping.noise_bound``.
            observer: Sees the noise; for tests.
        """
        exact = total.clone() if _watchers else None
        noisy = self._noisy(total, noise_multiplier, bound, observer)
        if exact is not None:
            for watcher in _watchers:
                watcher(Released(exact, noisy.clone(), noise_multiplier * bound))
        return noisy

    def _noisy(
        self,
        total: torch.Tensor,
        noise_multiplier: float,
        bound: float,
        observer: Callable[[torch.Tensor], None] | None,
    ) -> torch.Tensor:
        noise = self.like(total, noise_multiplier * bound)
        if observer is not None:
            observer(noise)
        return total.add_(noise)


class BandedNoise(SecretNoise):
    """Noise n of which ``C n`` is independent, C the banded matrix of ``methods.extras.bands``.

    Releases of one step are told apart by their order, which is the same at each step. Before the
    first step noise is independent.

    Guarantees:
        With noise z_t independent, N(0, (noise multiplier * bound)^2) for the step's, n_t is
        (z_t - sum_j c_j n_{t-j}) / c_0. What is kept of the past stays in this process.

    Args:
        device: As for ``SecretNoise``.
        column: c_0 .. c_{b-1}, of norm 1 at most.
    """

    def __init__(self, device: str, column: np.ndarray) -> None:
        super().__init__(device)
        self._column = [float(entry) for entry in column]
        self._past: list[list[torch.Tensor]] = []

    @property
    def bands(self) -> int:
        """Number of entries of a column of C that are not 0."""
        return len(self._column)

    def forget(self) -> None:
        """Begin C anew."""
        self._past.clear()

    def next_step(self) -> None:
        """Begin a step; call before its first release."""
        self._past.insert(0, [])
        del self._past[self.bands :]

    def like(self, tensor: torch.Tensor, scale: float) -> torch.Tensor:
        """Return the noise of the next release, ``scale`` being the deviation of its z."""
        noise = super().like(tensor, scale)
        if not self._past:
            return noise
        now, *before = self._past
        for entry, step in zip(self._column[1:], before):
            noise.sub_(step[len(now)], alpha=entry)
        now.append(noise.div_(self._column[0]))
        return noise


def noisy_accuracy(
    num_correct: int, *, num_declared: int, noise_multiplier: float, generator: np.random.Generator
) -> float:
    """Return ``(num_correct + N(0, z^2)) / num_declared``, z the noise multiplier.

    Guarantees:
        One release of the Gaussian mechanism with noise multiplier z (Dwork and Roth 2014, "The
        algorithmic foundations of differential privacy", section 3.5.3) on the validation records:
        adding or removing a record changes the count by at most 1 (``data.tasks.outputs_of``), and
        the denominator is declared, not counted. The value is not clipped to [0, 1], so noise
        around 0 and 1 is unbiased.

        Not covered: the discreteness of floating point numbers (``dpsweep.privacy.randomness``).

    Args:
        num_correct: Validation records that the model classifies correctly. Private.
        num_declared: Declared (public) number of validation records.
        noise_multiplier: Standard deviation of the noise on the count.
        generator: Secret; see ``secret_numpy_generator``.
    """
    return (num_correct + noise_multiplier * float(generator.standard_normal())) / num_declared
