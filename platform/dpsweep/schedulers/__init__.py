"""Trial policies: pure decisions from reports, and their adapter to Ray Tune."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry

POLICIES = Registry(
    "scheduler",
    {
        "epsilon_halving": "dpsweep.schedulers.epsilon_halving:EpsilonHalving",
        "fifo": "dpsweep.schedulers.fifo:FifoPolicy",
        "median": "dpsweep.schedulers.median:MedianPolicy",
        "noisy_prefix": "dpsweep.schedulers.noisy_prefix:NoisyPrefix",
    },
)

__all__ = ["POLICIES"]
