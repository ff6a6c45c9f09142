"""A linear softmax head on frozen, normalised features, trained on private and public records.

Loads no torch until ``prepare``, so that plans can be made and checked without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import Mistake
from dpsweep.privacy.events import Plan
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.data.dataset import first_rows, training_tensors
from dpsweep.trainables.data.tasks import score
from dpsweep.trainables.features.choice import (
    FEATURE_HYPERPARAMETERS,
    feature_problems,
    feature_spec,
    possible_choices,
    with_defaults,
)
from dpsweep.trainables.features.store import FeatureParts
from dpsweep.trainables.method import Method, RunContext
from dpsweep.trainables.methods.adamix.few_shot import draw_shots
from dpsweep.trainables.methods.batches import num_private_of
from dpsweep.trainables.methods.hyperparameters import TRAIN_HYPERPARAMETERS

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.features.spec import FeatureSpec
    from dpsweep.trainables.methods.adamix.noisy_gd import HeadRecords

#: Every record's features are divided by their L2 norm (Golatkar et al. 2022, section 3).
NORM = "l2"
#: Records that are scored at once.
SCORE_BLOCK = 4096

PROBE_FEATURES = with_defaults(FEATURE_HYPERPARAMETERS, {"features.name": "efficientnet_lite0"})
PROBE_TRAIN = tuple(
    p for p in TRAIN_HYPERPARAMETERS if p.name in ("train.num_private", "train.repeat")
)
SHOT_HYPERPARAMETERS = (
    Hyperparameter(
        "public.shots",
        "int",
        5,
        "Public records that are used of each class.",
        low=1,
        uses_public="{} records a class".format,
    ),
    Hyperparameter(
        "public.draw",
        "int",
        0,
        "Which public records those are: one number, one draw, the same for every trial.",
        low=0,
    ),
)


class LinearProbe(Method):
    """A linear head on features, with one update a position: of AdaMix, private or not.

    The head has no bias: features have norm 1 and, being averages of activations, a large common
    part that does the same.
    """

    @classmethod
    def extractor(cls, hparams: Mapping[str, Any], info: DatasetInfo) -> FeatureSpec | None:
        """Return the L2-normalised features of a configuration."""
        return feature_spec(hparams, info, norm=NORM)

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return features that cannot be had, and shots that there are too few records for."""
        problems: list[Mistake] = []
        for hparams in possible_choices(PROBE_FEATURES, values):
            wrong = feature_problems(hparams, info, norm=NORM)[1]
            problems += [problem for problem in wrong if problem not in problems]
        if info.public_labels != "known":
            hidden = f"draws shots by the labels of public records, which are {info.public_labels}"
            problems.append(Mistake("method", hidden, "set data.public.labels: known"))
        most = max(cls._possible(values, "public.shots"))
        if most * info.num_classes > info.num_public:
            problems.append(
                Mistake(
                    "public.shots",
                    f"{most} records of each of {info.num_classes} classes are more than the "
                    f"{info.num_public} declared public records",
                    "declare more public records (data.public) or lower public.shots",
                )
            )
        return problems

    @classmethod
    def check_records(cls, values: Mapping[str, Sequence[Any]], data: SweepData) -> None:
        """Check that every class has its shots among the public records.

        Raises:
            DataError: One has fewer.
        """
        most = max(cls._possible(values, "public.shots"))
        names, labels = data.info.class_names, data.parts["public"][1]
        draw_shots(labels, names, shots=most, draw=0, study_seed=0)

    @classmethod
    def _possible(cls, values: Mapping[str, Sequence[Any]], name: str) -> list[Any]:
        default = next(p.default for p in cls.hyperparameters if p.name == name)
        return list(values.get(name, [default]))

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Open the features, draw the public records and set the initial weights.

        Where public records stand in for private ones, the shots are drawn from those, and the
        rest is trained on.

        Raises:
            DataError: A class has fewer public records than ``public.shots``.
        """
        import torch

        from dpsweep.trainables.methods.adamix.noisy_gd import HeadRecords

        self._hparams = dict(hparams)
        self._context = context
        self._plan = plan
        self._position = 0
        extractor = feature_spec(hparams, data.info, norm=NORM)
        self._features = FeatureParts(data, extractor, context.supplies.feature_root)
        stands_in = data.records == "public"
        shots = draw_shots(
            data.parts["private" if stands_in else "public"][1],
            data.info.class_names,
            shots=hparams["public.shots"],
            draw=hparams["public.draw"],
            study_seed=context.study_seed,
        )
        declared = data.info.num_private
        inputs, labels = training_tensors(self._part("private"), "private", context.device)
        public_inputs, public_labels = inputs, labels
        if not stands_in:
            features = self._part("public")
            public_inputs, public_labels = training_tensors(features, "public", context.device)
        rows = first_rows(declared, hparams["train.num_private"], len(labels))
        # The divisor comes from declared numbers: the true number of records is private.
        num_private = num_private_of(hparams, declared)
        if stands_in:
            rows = np.setdiff1d(rows, shots)
            num_private = len(rows)

        def records(x: torch.Tensor, y: torch.Tensor, chosen: np.ndarray) -> HeadRecords:
            if len(chosen) < len(y):
                index = torch.from_numpy(chosen).to(x.device)
                x, y = x.index_select(0, index), y.index_select(0, index)
            return HeadRecords(x, y, device=context.device)

        self._private = records(inputs, labels, rows)
        self._public = records(public_inputs, public_labels, shots)
        self._num_private = num_private
        self._weight = torch.zeros(
            data.info.num_classes, inputs[:1].flatten(1).shape[1], device=context.device
        )
        self._reference = self._weight.clone()
        # Weights that are released: the mean of the last ones, where there is one.
        self._mean: torch.Tensor | None = None
        self._num_averaged = 0

    def _part(self, part: str) -> SweepData:
        return self._features[part]

    def _execute(self, position: int) -> None:
        """Make one full-batch update."""
        length = len(self._plan)
        num_averaged = round(self._hparams.get("optim.average", 0.0) * length)
        self._step(position)
        if position >= length - num_averaged:
            self._num_averaged += 1
            if self._mean is None:
                self._mean = self._weight.clone()
            else:
                self._mean += (self._weight - self._mean) * self._share_of_newest(position)

    def _share_of_newest(self, position: int) -> float:
        """Return the share that the newest of the averaged weights has of their mean.

        The same for all, or, with ``linear``, in proportion to the number of the step (Golatkar et
        al. 2022, theorems 3 and 15: sum_t 2 t w_t / (T (T + 1))).
        """
        count = self._num_averaged
        if self._hparams.get("optim.average_weights", "uniform") == "uniform":
            return 1 / count
        return (position + 1) / (count * (2 * position + 3 - count) / 2)

    @abstractmethod
    def _step(self, position: int) -> None:
        """Update the weights once."""

    @property
    def _released(self) -> torch.Tensor:
        return self._weight if self._mean is None else self._mean

    def _head(self) -> torch.nn.Sequential:
        """Return the released head as a network on features."""
        from torch import nn

        num_classes, num_features = self._weight.shape
        head = nn.Linear(num_features, num_classes, bias=False, device=self._weight.device)
        head.weight.data.copy_(self._released)
        return nn.Sequential(nn.Flatten(), head).requires_grad_(False).eval()

    def evaluate(self, part: str) -> dict[str, float]:
        """Return accuracy in [0, 1] and mean cross-entropy in nats on a part of the data.

        Raises:
            DataError: The part has no record.
        """
        device = self._context.device
        return score(self._head(), self._part(part), part, block=SCORE_BLOCK, device=device)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, their mean and the position; all else follows from public facts."""
        return {
            "weight": self._weight.detach().to("cpu", copy=True),
            "mean": None if self._mean is None else self._mean.detach().to("cpu", copy=True),
            "num_averaged": self._num_averaged,
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; secret randomness goes on afresh."""
        device = self._weight.device
        self._weight = state["weight"].to(device, copy=True)
        self._mean = None if state["mean"] is None else state["mean"].to(device, copy=True)
        self._num_averaged = int(state["num_averaged"])
        self._position = int(state["position"])

    def export(self) -> torch.nn.Module:
        """Return extractor and head as one network on raw records, on the CPU, in eval mode."""
        from torch import nn

        extractor = self._features.spec.build(self._features.raw.info)
        return nn.Sequential(extractor, *self._head().cpu()).eval()
