"""The mathematics of privacy: events, accountants, calibration, filters; nothing on disk."""
