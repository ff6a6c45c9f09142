"""Episodes: many small private datasets drawn from one, for the few-shot protocol.

Luo et al. 2021, "Scalable Differential Privacy with Sparse Network Finetuning" (section 5.2, CD-FSL
assessment): the same configuration is trained on 60 random tasks of 5 classes with 5, 20 or 50
records each, and its mean accuracy is reported with a 95% interval. Loads no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError, Mistake
from dpsweep.foundation.words import counted
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.episodes import EPISODE
from dpsweep.spec.space.hyperparameters import Hyperparameter

if TYPE_CHECKING:
    from dpsweep.spec.study import SweepSpec
    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData

#: What the platform adds to the hyperparameters of every method in a study of episodes.
EPISODE_HYPERPARAMETERS = (
    Hyperparameter(EPISODE, "int", 0, "Number of the episode that a trial runs on.", low=0),
)
_SHOWN = 3


@dataclass(frozen=True)
class Episodes:
    """How a study's episodes are drawn from its records, the pool.

    Guarantees:
        Which classes an episode has is a function of the seed and its number alone. Which records
        it has depends on labels of the pool too: that is a simulation of a data owner who has just
        these records, and no epsilon covers it. Neighboring datasets are two sets of
        ``ways * shots`` records, one of them with one record taken out.

    Attributes:
        ways: Classes of an episode.
        shots: Private records of each class.
        queries: Validation records of each class, and test records where they are scored.
        number: Episodes.
        seed: Public seed of all draws.
        with_test: True if test records are scored.
    """

    ways: int
    shots: int
    queries: int
    number: int
    seed: int
    with_test: bool

    @classmethod
    def of(cls, spec: SweepSpec) -> Episodes | None:
        """Return the episodes of a study; None where trials train on all private records."""
        section = spec.episodes
        if section is None:
            return None
        seed = spec.seed if section.seed is None else section.seed
        with_test = spec.data.test.visibility == "public"
        return cls(section.ways, section.shots, section.queries, section.number, seed, with_test)

    @property
    def counts(self) -> dict[str, int]:
        """Records of each class that an episode takes from the parts of the pool."""
        counts = {"private": self.shots, "validation": self.queries}
        return {**counts, "test": self.queries} if self.with_test else counts

    def describe(self, pool: DatasetInfo) -> DatasetInfo:
        """Return the public facts of every episode.

        All sizes are exact but that of the public part, which is the pool's public records of the
        episode's classes: it is declared as their share of an even pool. Classes are ``way 0``,
        ``way 1`` ...; a drawn episode has their names.
        """
        return replace(
            pool,
            num_classes=self.ways,
            num_private=self.ways * self.shots,
            num_validation=self.ways * self.queries,
            num_test=self.ways * self.queries if self.with_test else 0,
            num_public=pool.num_public * self.ways // pool.num_classes,
            class_names=tuple(f"way {way}" for way in range(self.ways)),
            has_own_validation=False,
            has_own_test=False,
        )

    def problems(self, pool: DatasetInfo) -> list[Mistake]:
        """Return why a pool of these declared sizes cannot do, by keys of the spec."""
        problems = []
        if self.ways > pool.num_classes:
            wrong = (
                f"{self.ways} is more than the {counted(pool.num_classes, 'class')} of {pool.name}"
            )
            problems.append(Mistake("episodes.ways", wrong, f"at most {pool.num_classes}"))
        for part, count in self.counts.items():
            declared = getattr(pool, f"num_{part}")
            if self.ways * count > declared:
                key = "episodes.shots" if part == "private" else "episodes.queries"
                wrong = f"{self.ways} ways of {count} are more than the {declared} {part} records"
                fix = f"at most {declared // self.ways} for {self.ways} ways"
                if part != "private":
                    fix += f", or a larger data.{part}.fraction"
                problems.append(Mistake(key, wrong, fix))
        return problems

    def classes(self, number: int, num_classes: int) -> np.ndarray:
        """Return the classes of an episode, int64 (ways,), way by way; they depend on no record.

        >>> Episodes(3, 5, 15, 60, seed=0, with_test=False).classes(7, num_classes=10).tolist()
        [4, 1, 3]
        """
        rng = np.random.default_rng(public_seed(self.seed, number, "episode classes"))
        return rng.permutation(num_classes)[: self.ways]

    def check(self, pool: SweepData) -> None:
        """Refuse a pool that lacks records for some episode.

        Raises:
            DataError: It does. The message says which classes do not suffice, and so tells
                something of private labels to whoever runs the study.
        """
        drawn = [self.classes(n, pool.info.num_classes) for n in range(self.number)]
        used = np.unique(drawn)
        for part, count in self.counts.items():
            counts = np.bincount(pool.parts[part][1], minlength=pool.info.num_classes)
            short = [pool.info.class_names[c] for c in used if counts[c] < count]
            if short:
                names = ", ".join(map(repr, short[:_SHOWN]))
                more = f" and {len(short) - _SHOWN} more" if len(short) > _SHOWN else ""
                key = "episodes.shots" if part == "private" else "episodes.queries"
                raise DataError(
                    f"episodes cannot be drawn: class {names}{more} has fewer than {count} "
                    f"{part} records",
                    because=f"{key}={count} of each class are drawn without replacement",
                    fix=f"lower {key}, or give more records",
                )

    def for_trial(self, pool: SweepData, hparams: Mapping[str, Any]) -> SweepData:
        """Return the records of the episode that a trial's hyperparameters name."""
        return self.draw(pool, int(hparams[EPISODE]))

    def draw(self, pool: SweepData, number: int) -> SweepData:
        """Return one episode: the same records on every machine and whatever else is drawn.

        Labels are 0 to ``ways - 1``. Of two studies with one seed and other ``shots``, the larger
        episode holds the records of the smaller one, and both are scored on the same queries. Its
        public part is all of the pool's public records of its classes.

        Args:
            pool: Raw records, checked by ``check``.
            number: Of the episode, 0 to ``number - 1``.
        """
        classes = self.classes(number, pool.info.num_classes)
        way_of = np.full(pool.info.num_classes, -1, dtype=np.int64)
        way_of[classes] = np.arange(self.ways)
        rows, parts = {}, {}
        for part, (inputs, labels) in pool.parts.items():
            rows[part] = self._rows(part, number, classes, labels)
            parts[part] = (inputs[rows[part]], way_of[labels[rows[part]]])
        name = f"{pool.content_hash} {self} {number}"
        names = tuple(pool.info.class_names[c] for c in classes)
        return replace(
            pool,
            info=replace(self.describe(pool.info), class_names=names),
            parts=parts,
            content_hash=hashlib.sha256(name.encode()).hexdigest(),
            hashes={},
            episodes=None,
            pool=pool,
            rows=rows,
        )

    def _rows(self, part: str, number: int, classes: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the sorted rows of a part that an episode has; each part is drawn by itself."""
        if part == "public":
            return np.flatnonzero(np.isin(labels, classes))
        count = self.counts.get(part, 0)
        chosen = []
        for way, label in enumerate(classes):
            rng = np.random.default_rng(public_seed(self.seed, number, f"episode {part} {way}"))
            chosen.append(rng.permutation(np.flatnonzero(labels == label))[:count])
        return np.sort(np.concatenate(chosen))
