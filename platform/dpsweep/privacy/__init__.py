"""Mathematics of privacy, without a disk: events, accountants, calibration, selection, filters."""
