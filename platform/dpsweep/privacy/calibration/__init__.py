"""Calibration: accounting inverted, to the noise or the number of steps that a budget allows."""

from dpsweep.privacy.calibration.largest import largest_within
from dpsweep.privacy.calibration.noise import (
    calibrate_factors,
    calibrate_noise_multiplier,
    calibrate_noise_schedule,
    gaussian_noise,
)
from dpsweep.privacy.calibration.steps import gaussian_steps, max_steps

__all__ = [
    "calibrate_factors",
    "calibrate_noise_multiplier",
    "calibrate_noise_schedule",
    "gaussian_noise",
    "gaussian_steps",
    "largest_within",
    "max_steps",
]
