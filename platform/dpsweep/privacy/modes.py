"""The four accounting modes: which claim each lets a study make, and what it demands for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

#: An epsilon that covers what a study in ``select`` releases.
WINNER = "the winner only: its configuration, score and model"
#: An epsilon that covers what a study in ``public`` releases of private records.
FINAL_RUN = "the final run; its configuration was chosen on public records"


#: The records of a search on a part of the private ones, and of its final run.
SEARCHED_PART = "on the part of the private records that is searched on"
UNSEARCHED_REST = "on the private records that the search does not read"


@dataclass(frozen=True)
class Mode:
    """How a study accounts for the privacy cost of its search.

    Attributes:
        name: Its word in a spec.
        claim: The sentence that a study may say of itself, and nothing more.
        released: The release that the study's epsilon covers; empty where the study has none.
        alone: The cover of a trial's own epsilon, in a sentence.
        brief: The same in few words.
        run: The same on the trial's run in the tracking store.
        trial: The same in the trial's statement, where it adds something to ``alone``.
        is_accounted: Whether the search has a claim at all: exact scores of private records,
            methods without an epsilon and run times of actors are for studies without one only.
        is_filtered: Whether a Renyi filter holds all trials together within ``study_epsilon``.
        is_sealed: Whether only the winner is released: no losing score, no number of trials, no
            time may leave the study.
        is_public_search: Whether trials run on public records, before one private run.
    """

    name: str
    claim: str
    released: str
    alone: str
    brief: str
    run: str
    trial: str
    is_accounted: bool = True
    is_filtered: bool = False
    is_sealed: bool = False
    is_public_search: bool = False

    @property
    def is_adaptive(self) -> bool:
        """Whether a trial may depend on scores of private records that others have released."""
        return not self.is_sealed and not self.is_public_search


_OF_STUDY = "this trial alone; for the study see its own run"
COMPOSED = Mode(
    name="composed",
    claim="(eps, delta)-DP for the whole sweep, adaptive search included",
    released="the whole sweep: all models, reported scores and the choice of trials",
    alone="one trial, as if it were the only one; the study's own epsilon is below",
    brief="one trial alone",
    run=_OF_STUDY,
    trial="this trial alone, as if it were the only one; the study as a whole:",
    is_filtered=True,
)
SELECT = Mode(
    name="select",
    claim="(eps', delta)-DP for the released winner only",
    released=WINNER,
    alone="",
    brief="",
    run=WINNER,
    trial=WINNER,
    is_sealed=True,
)
PUBLIC = Mode(
    name="public",
    claim="tuned on public data; eps is the final run's",
    released=FINAL_RUN,
    alone="one trial; those on public records cost nothing, the final run all of it",
    brief="one trial; on public records it costs nothing",
    run=FINAL_RUN,
    trial=FINAL_RUN,
    is_public_search=True,
)
UNACCOUNTED = Mode(
    name="unaccounted",
    claim="eps = one run only. Search cost NOT included",
    released="",
    alone="one trial; the cost of the search is NOT included",
    brief="one trial alone, the cost of the search NOT included",
    run=_OF_STUDY,
    trial="this trial alone; the cost of the search is not included",
    is_accounted=False,
)

#: All of them by name, in the order in which they are shown.
MODES: Mapping[str, Mode] = {mode.name: mode for mode in (COMPOSED, SELECT, PUBLIC, UNACCOUNTED)}
#: Of a spec whose mode is missing or unknown: no rule of a mode holds.
UNDECIDED = replace(UNACCOUNTED, name="")

#: What each lets a study say, by name.
CLAIMS: Mapping[str, str] = {mode.name: mode.claim for mode in MODES.values()}
