"""The table of pictures: which there are, and which of them a study may show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpsweep.results.pictures.base import Draw, Picture
from dpsweep.results.pictures.confusion import confusion
from dpsweep.results.pictures.coordinates import parallel_coordinates
from dpsweep.results.pictures.importance import importance
from dpsweep.results.pictures.learning import learning_curves
from dpsweep.results.pictures.rungs import rung_survival
from dpsweep.results.pictures.spending import epsilon_over_time
from dpsweep.results.pictures.utility import privacy_utility
from dpsweep.results.study import SweepResult

#: Of several trials, in the order of a page.
OF_SEARCH: Sequence[Draw] = (
    privacy_utility,
    parallel_coordinates,
    importance,
    learning_curves,
    rung_survival,
    epsilon_over_time,
)
#: Of the best trial's model.
OF_BEST: Sequence[Draw] = (confusion,)


def pictures_of(result: SweepResult) -> list[Picture]:
    """Return the pictures of a study as it stands.

    Guarantees:
        Of a study in ``select`` there are those of the winner's model alone: the others are about
        several trials, and such a study releases one, and not even how many there were. All are
        made from what is released already: reports of trials, and the best model on records that
        are declared public.
    """
    of_search = () if result.spec.privacy.mode.is_sealed else OF_SEARCH
    pictures = (draw(result) for draw in (*of_search, *OF_BEST))
    return [replace(picture, study=result.name) for picture in pictures if picture is not None]
