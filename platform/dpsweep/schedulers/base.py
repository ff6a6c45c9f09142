"""The interface of a trial policy."""

from __future__ import annotations

from typing import Protocol

from dpsweep.trial import Decision, TrialReport


class TrialPolicy(Protocol):
    """Decides from reports alone; sees neither Ray, nor a clock, nor global randomness.

    A policy is rebuilt on resume by replaying the reports of the journal, so it keeps no state
    that reports do not determine. A repeated report must get the answer it got before.
    """

    def on_report(self, report: TrialReport) -> Decision:
        """Say what happens to the trial that reported."""
        ...
