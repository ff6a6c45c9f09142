"""The episodes section of a spec: every configuration on many small private datasets.

The few-shot protocol of Luo et al. 2021 ("Scalable Differential Privacy with Sparse Network
Finetuning", section 5.2, assessment of the CD-FSL challenge, Guo et al. 2019,
https://arxiv.org/abs/1912.07200): 60 random 5-way tasks of 5, 20 or 50 shots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import AS_WHOLE, Count, Part, dotted, given, peek, peek_mode, peek_word

#: Hyperparameter that says which episode a trial runs on; the platform adds it to the space.
EPISODE = "train.episode"


class EpisodesSpec(Part):
    """Each configuration is trained on many episodes and judged by its mean over them.

    An episode simulates a data owner of its own: ``ways`` classes, of each of which ``shots``
    records of the private part are the whole private dataset, and ``queries`` records of the
    validation part (and of the test part, if it is public) are scored on.

    Guarantees:
        An epsilon is that of one trial, for one record of its episode's ``ways * shots``. Drawing
        episodes reads the labels of the pool and is covered by no epsilon; nor is a record of the
        pool that is in several episodes, or what several configurations tell of one episode.
    """

    ways: Annotated[int, Field(ge=2), AS_WHOLE] = Field(
        default=5, description="Classes of an episode, drawn by a public seed."
    )
    shots: Count = Field(default=5, description="Private records of each class of an episode.")
    number: Count = Field(
        default=60, le=10_000, description="Episodes that each configuration runs on."
    )
    queries: Count = Field(
        default=15, description="Validation and test records of each class of an episode."
    )
    seed: Annotated[int, Field(ge=0, lt=2**32), AS_WHOLE] | None = Field(
        default=None, description="Fixes which records are drawn; null: the study's seed."
    )


def episode_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what episodes demand of the other sections of a spec; ``raw`` may hold anything."""
    if raw.get("episodes") is None:
        return
    mode = peek_mode(raw, "privacy", "accounting")
    if mode.is_accounted:
        yield Mistake(
            "privacy.accounting",
            f"{mode.name} cannot cover episodes: drawing them reads labels of the private part, "
            "and one record may be in several",
            "use unaccounted: every epsilon is then for one example of one episode",
        )
    task = peek_word(raw, "data", "task")
    if task in ("multi_label", "causal_lm"):
        yield Mistake(
            "data.task",
            f"episodes draw records class by class, and a record of {task} has no one class",
            "use classification, or remove `episodes:`",
        )
    sampler = peek_word(raw, "search", "sampler")
    if sampler and sampler != "grid" and not mode.is_sealed:
        yield Mistake(
            "search.sampler",
            f"{sampler!r} cannot run every configuration on every episode",
            "use grid, or leave it out",
        )
    if not mode.is_sealed and given(raw, "search", "num_trials"):
        yield Mistake(
            "search.num_trials",
            "has no meaning with episodes: every configuration of the grid runs on every episode",
            "remove it; episodes.number is how many there are",
        )
    if not mode.is_sealed and given(raw, "search", "objectives"):
        yield Mistake(
            "search.objectives",
            "compare single trials, and those of different episodes do not compare",
            "remove them",
        )
    scheduler = peek_word(raw, "scheduler", "type", default="fifo")
    if scheduler in ("median", "epsilon_halving", "noisy_prefix"):
        yield Mistake(
            "scheduler.type",
            f"{scheduler} compares trials of different episodes, and would stop the hard episodes",
            "use fifo: a mean over episodes needs all of them",
        )
    space = peek(raw, "search", "space")
    if isinstance(space, Mapping) and EPISODE in space:
        yield Mistake(
            dotted(("search", "space", EPISODE)),
            "is what `episodes:` adds to the space",
            "remove it; episodes.number says how many there are",
        )
