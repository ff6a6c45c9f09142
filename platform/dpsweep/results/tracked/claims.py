"""Claims of a study by the tags of its runs, where its ledger is not at hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

from dpsweep.ledgers.study_state import StudyState, account_of
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.privacy.terms import planned_sampling
from dpsweep.results.claims import Claims
from dpsweep.results.coverage import released_by_study
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.tracking.schema import finite


class TaggedRuns(Protocol):
    """The runs of a study, as far as claims are read from them."""

    @property
    def source(self) -> str:
        """Words on where they were read."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of the study's own run."""

    @property
    def composed_epsilon(self) -> float | None:
        """Epsilon of all trials composed, for indication; or None."""

    def tags_of(self, trial: int) -> Mapping[str, str]:
        """Return the tags of a trial's run."""

    def planned_epsilon(self, trial: int) -> float:
        """Return the epsilon of a trial's whole plan, infinite where that is not known."""


class TaggedClaims(Claims):
    """The privacy statements of a study, as its runs are tagged.

    Guarantees:
        Nothing is claimed that a tag does not state: a study that the store calls downgraded or
        unaccounted claims nothing, and neither does one without ``dp.study_epsilon``. An epsilon of
        a trial that is not in the store is that of its whole plan. Not covered: a store that
        somebody changed.

    Args:
        records: Of the study.
        spec: Its spec.
        view: How it stood.
    """

    def __init__(self, records: TaggedRuns, spec: SweepSpec, view: StudyView) -> None:
        self.spec, self.view, self._of = spec, view, records
        self._tags = records.tags
        self.account = account_of(StudyState(downgraded=view.downgraded or None))

    @cached_property
    def downgraded(self) -> str | None:
        """Why the claim was given up, by the store."""
        asked, stands = self.spec.privacy.accounting, self._tags.get("dp.accounting")
        if self.view.downgraded or stands == asked:
            return self.view.downgraded or None
        return f"its run in the tracking store is tagged {stands or 'without an accounting mode'}"

    @property
    def sampling(self) -> str:
        """How records enter the events of all trials together."""
        is_sealed = self.spec.privacy.mode.is_sealed
        return "none" if is_sealed else self._tags.get("dp.sampling") or "none"

    def study_statement(self) -> PrivacyStatement | None:
        """Return what may be said of the study as a whole, or None where nothing may."""
        mode = self.mode
        if mode.is_filtered or mode.is_sealed:
            epsilon = bound_of(self._tags.get("dp.study_epsilon"))
            if math.isinf(epsilon):
                return None
            winner = next((view.sampling for view in self.view.trials.values()), "none")
            sampling = planned_sampling(winner if mode.is_sealed else self.sampling)
            released = released_by_study(self.spec, mode)
            return self._statement(
                epsilon, sampling=sampling, released=released, accountant=self._study_accountant
            )
        return super().study_statement()

    @property
    def _study_accountant(self) -> str:
        """Which accountant the study's epsilon is by: a composition may have its own."""
        return self._tags.get("dp.study_accountant") or super()._study_accountant

    def _planned_sampling(self, view: TrialView) -> str:
        return view.sampling

    def trial_statement(self, view: TrialView) -> PrivacyStatement:
        """Return what may be said of one trial: alone, or as the winner of a selection."""
        if self.mode.is_sealed:
            statement = self.study_statement()
            if statement is not None:
                return statement
        if view.is_cut_short and self._has_promised(view):
            return self._final_statement(view)
        epsilon = view.epsilon
        if self._of.tags_of(view.trial).get("dp.epsilon") == "inf":
            epsilon = math.inf
        elif epsilon is None and view.records == "public":
            epsilon = 0.0
        elif epsilon is None:
            epsilon = self._of.planned_epsilon(view.trial)
        return self._statement(epsilon, sampling=view.sampling, released=self._released_by(view))

    def composed(self) -> PrivacyStatement | None:
        """Return the sum that the study logged at its end, for indication, or None without one."""
        epsilon = finite(self._of.composed_epsilon)
        if epsilon is None or self.spec.privacy.mode.is_sealed:
            return None
        return self._statement(
            epsilon,
            sampling=self.sampling,
            accountant="rdp",
            released="every trial ever run (indication, not a guarantee)",
        )

    def caption(self, *args: Any, **options: Any) -> str:
        """Return what ``Claims.caption`` does, and where it was read."""
        return f"{super().caption(*args, **options)}\nThis study was {self._of.source}."

    def brief(self, *args: Any, **options: Any) -> str:
        """Return what ``Claims.brief`` does, and where it was read."""
        return f"{super().brief(*args, **options)} Read from a tracking store, not from the ledger."


def bound_of(text: str | None) -> float:
    """Return an epsilon that a tag or param holds; infinite without one, or with none that can be.

    >>> bound_of("1.5"), bound_of("none: downgraded"), bound_of("-1"), bound_of("nan")
    (1.5, inf, inf, inf)
    """
    try:
        number = float(text) if text is not None else math.inf
    except ValueError:
        return math.inf
    return number if number >= 0 else math.inf
