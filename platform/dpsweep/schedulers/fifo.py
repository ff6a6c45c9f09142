"""Every trial runs its whole plan, in the order of arrival."""

from __future__ import annotations

from dpsweep.trial import Decision, TrialReport


class FifoPolicy:
    """Never stops a trial."""

    def on_report(self, report: TrialReport) -> Decision:
        """Continue, whatever was reported."""
        return Decision.CONTINUE
