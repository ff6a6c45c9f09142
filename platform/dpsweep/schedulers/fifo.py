"""Every trial runs its whole plan, in the order of arrival."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Self

from dpsweep.schedulers.base import NOT_JUDGED
from dpsweep.study.trial import TrialReport, Verdict

if TYPE_CHECKING:
    from dpsweep.spec.study import SchedulerSpec


class FifoPolicy:
    """Never stops or pauses a trial."""

    @classmethod
    def from_spec(cls, scheduler: SchedulerSpec, *, metric: str, maximize: bool) -> Self:
        """Return the policy; it needs nothing to be said."""
        return cls()

    def on_report(self, report: TrialReport) -> Verdict:
        """Continue, whatever was reported."""
        return NOT_JUDGED

    def choose_paused(self, paused: Collection[int]) -> int | None:
        """Choose none: this policy does not pause."""
        return None

    def choose_last(self, paused: Collection[int]) -> int | None:
        """Choose none: no trial was paused."""
        return None

    def standing(self, paused: int) -> Verdict:
        """Continue: this policy does not pause."""
        return NOT_JUDGED
