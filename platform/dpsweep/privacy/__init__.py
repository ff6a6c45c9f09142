"""Privacy core: events, accountants, calibration, the epsilon clock and the ledger."""
