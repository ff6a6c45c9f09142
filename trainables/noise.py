"""Secret Gaussian noise on any device; every private method draws its noise here."""

from __future__ import annotations

import torch

from dpsweep.privacy.randomness import secret_numpy_generator, secret_seed


class SecretNoise:
    """Gaussian noise from a generator that is seeded anew by the operating system.

    Guarantees:
        The seed is never stored, logged or derived from anything known. On the CPU noise comes
        from numpy's PCG64 with 128 bits of state: torch's CPU generator keeps only 32 bits of a
        seed, few enough to try them all against one released step. On CUDA it comes from Philox
        with a 63-bit seed.

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
            values = self._numpy.standard_normal(tensor.numel(), dtype="float32")
            return torch.from_numpy(values).view_as(tensor).to(tensor.dtype).mul_(scale)
        return torch.empty_like(tensor).normal_(0.0, scale, generator=self._torch)
