"""PATE (Papernot et al. 2018): teachers of disjoint private records vote on public ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.foundation.errors import Mistake
from dpsweep.privacy.calibration import gaussian_noise
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.method import PlanContext
from dpsweep_junipers.nearest import NearestMean

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo


class JuniperVotes(NearestMean):
    """Noisy votes of teachers label public records, of which the student is made.

    Guarantees:
        A record is one teacher's, by its position. Without it this teacher may vote for another
        class: two counts change by 1, an L2 norm of sqrt(2), which each query's noise is for.
        The student sees public inputs and noisy winners, no vote. Add-or-remove-one only.
    """

    name: ClassVar[str] = "juniper_votes"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        Hyperparameter(
            "votes.queries",
            "int",
            20,
            "Public records voted on.",
            low=1,
            changes_privacy=True,
            uses_public="{} records that are voted on".format,
        ),
        Hyperparameter("votes.teachers", "int", 50, "Teachers.", low=1),
    )

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return one Gaussian for each query, with the noise that the whole budget allows."""
        count = hparams["votes.queries"]
        noise = gaussian_noise(context.budget, steps=count, accountant=context.accountant)
        return Plan((EventRun(Gaussian(noise), count=count),))

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Refuse more queries than there are public records."""
        most = max(values.get("votes.queries", [20]))
        if most <= info.num_public:
            return []
        what = f"{most} queries of {info.num_public} public records"
        return [Mistake("votes.queries", what, "fewer, or a larger data.public.fraction")]

    def prepare(self, *args: Any) -> None:
        """Begin without a label."""
        super().prepare(*args)
        self._answers: list[int] = []
        self._teachers: torch.Tensor | None = None

    def _queries(self) -> torch.Tensor:
        """Return the inputs that are voted on; a public search has them among its own records."""
        from dpsweep.trainables.data.dataset import part_tensors

        part = "private" if self._data.records == "public" else "public"
        return part_tensors(self._data, part)[0].flatten(1)

    def _execute(self, position: int) -> None:
        import torch

        event = self._plan.at(position)
        assert isinstance(event, Gaussian)
        if self._teachers is None:  # they are private: never saved, and trained anew
            self._teachers = self._train()
        query = self._queries()[position]
        is_there = self._teachers.isfinite().all(dim=2)
        distance = (self._teachers - query).square().sum(dim=2)
        votes = distance.where(is_there, torch.inf).argmin(dim=1)
        counts = torch.bincount(votes, minlength=self._data.info.num_classes).double()
        counts += self._noise.like(counts, event.noise_multiplier * math.sqrt(2))
        self._answers.append(int(counts.argmax()))

    def _train(self) -> torch.Tensor:
        """Return the means of each teacher's records, (teachers, classes, features)."""
        import torch

        from dpsweep.trainables.data.dataset import part_tensors

        inputs, labels = part_tensors(self._data, "private")
        count, classes = self._hparams["votes.teachers"], self._data.info.num_classes
        place = torch.arange(len(labels)) % count * classes + labels
        sums = torch.zeros(count * classes, self._num_features)
        sums.index_add_(0, place, inputs.flatten(1))
        sizes = torch.bincount(place, minlength=count * classes)[:, None]
        return (sums / sizes).view(count, classes, -1)  # 0 / 0 where a class has no record

    def _means(self) -> torch.Tensor:
        import torch

        labels = torch.tensor(self._answers, dtype=torch.int64)
        classes = self._data.info.num_classes
        sums = torch.zeros(classes, self._num_features)
        sums.index_add_(0, labels, self._queries()[: len(labels)])
        sizes = torch.bincount(labels, minlength=classes)[:, None]
        return torch.where(sizes > 0, sums / sizes.clamp_min(1), 1e3)  # far from everything

    def state_dict(self) -> dict[str, Any]:
        """Return the labels that were released."""
        return {"answers": list(self._answers)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._answers = list(state["answers"])
        self._position = len(self._answers)
