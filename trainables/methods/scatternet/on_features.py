"""Training on frozen features: what private and non-private methods of it have in common.

Tramer & Boneh 2021, "Differentially private learning needs better features (or much more data)"
(https://arxiv.org/abs/2011.11660). Loads no torch until ``prepare``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.foundation.errors import DataError, Mistake, ModelError
from dpsweep.privacy.events import Plan
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.features.blocks import features_of
from dpsweep.trainables.features.choice import (
    FEATURE_HYPERPARAMETERS,
    feature_problems,
    feature_spec,
    possible_choices,
    with_defaults,
)
from dpsweep.trainables.features.store import FeatureParts
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.batches import num_private_of, sample_rate_of
from dpsweep.trainables.methods.classifier import ClassifierMethod
from dpsweep.trainables.methods.hyperparameters import (
    BATCH_HYPERPARAMETERS,
    OPTIM_HYPERPARAMETERS,
    TRAIN_HYPERPARAMETERS,
)
from dpsweep.trainables.methods.input_norms import (
    PublicInputs,
    check_linear,
    mean_norm,
    norm_by_construction,
    only_value,
)
from dpsweep.trainables.methods.noise_rates import follows_noise
from dpsweep.trainables.methods.scatternet.normalize import (
    NORMALIZE_HYPERPARAMETERS,
    PHASE,
    build_front,
    clipped_channel_sum,
    normalization_of,
    set_statistic,
    statistic_bound,
)

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.features.spec import FeatureSpec

#: Batch size at which the learning rate is the base rate (ibid., section 3).
BASE_BATCH = 512

HEAD_HYPERPARAMETERS = (
    Hyperparameter(
        "model.name",
        "str",
        "linear",
        "Model on the features: linear, scatter_cnn, scatter_cnn_deep or scatter_cnn_small.",
        choices=("linear", "scatter_cnn", "scatter_cnn_deep", "scatter_cnn_small"),
    ),
)
_LR_SCALING = Hyperparameter(
    "optim.lr_scaling",
    "str",
    "batch",
    f"batch: optim.lr is the rate at a batch of {BASE_BATCH} and grows with batch.expected; none. "
    "No effect on rates that follow the noise.",
    choices=("batch", "none"),
)
#: With the paper's values as defaults.
TRAINING_HYPERPARAMETERS = (
    *with_defaults(OPTIM_HYPERPARAMETERS, {"optim.lr": 1.0}),
    _LR_SCALING,
    *with_defaults(BATCH_HYPERPARAMETERS, {"batch.expected": 8192}),
    *with_defaults(TRAIN_HYPERPARAMETERS, {"train.epochs": 40.0}),
)


class OnFeatures(ClassifierMethod):
    """Training on frozen features, private or not.

    Under ``normalize.kind: private_data`` the plan's first two positions release the channel
    means and mean squares of the features, and the steps see the features normalised by them.
    """

    tasks: ClassVar[frozenset[str]] = frozenset({"classification"})
    reads_text: ClassVar[bool] = False

    @classmethod
    def extractor(cls, hparams: Mapping[str, Any], info: DatasetInfo) -> FeatureSpec:
        """See ``OnFrozenFeatures``."""
        is_group = normalization_of(hparams) == "group"
        norm = f"group:{hparams['normalize.groups']}" if is_group else "none"
        return feature_spec(hparams, info, norm=norm)

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return the features, groups, models and batch sizes that work in no combination."""
        problems = cls._batch_problems(values, info)
        shapes: list[tuple[str, tuple[int, ...]]] = []
        for choice in possible_choices(FEATURE_HYPERPARAMETERS, values):
            described, wrong = feature_problems(choice, info, norm="none")
            problems += [problem for problem in wrong if problem not in problems]
            if described is not None:
                shapes.append((choice["features.name"], described.input_shape))
        kinds = cls._possible(values, "normalize.kind")
        grouped = [
            shape
            for name, shape in shapes
            for kind in kinds
            if normalization_of({"normalize.kind": kind, "features.name": name}) == "group"
        ]
        for groups in cls._possible(values, "normalize.groups"):
            errors = [_group_error(groups, shape) for shape in grouped]
            if None not in errors:  # it works with none of the features
                problems += [error for error in errors[:1] if error]
        for name in cls._possible(values, "model.name"):
            if name != "linear" and shapes and all(len(shape) != 3 for _, shape in shapes):
                misfit = (
                    f"{name} needs features that are images, these are {shapes[0][1][0]} numbers"
                )
                problems.append(
                    Mistake("model.name", misfit, "use linear, or features.name: scatternet")
                )
        return problems

    @classmethod
    def input_norm(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo, public: PublicInputs
    ) -> float:
        """Return the mean norm of features of public records; see ``KnowsInputNorm``.

        Without public records, and of features that private statistics will normalise, it is the
        norm that features of mean square 1 have by construction, which is a bound.

        Raises:
            BadInputError: Features are not the same in each configuration, they cannot be had, the
                model is not linear, or nothing is known of features that are not normalised.
        """
        check_linear(cls._possible(values, "model.name"))
        decide = (*FEATURE_HYPERPARAMETERS, *NORMALIZE_HYPERPARAMETERS[:2])
        hparams = {p.name: only_value(cls._possible(values, p.name), p.name) for p in decide}
        features, kind = cls.extractor(hparams, info), normalization_of(hparams)
        bound = norm_by_construction(features.describe(info).input_shape)
        if kind == "private_data":
            return bound
        try:
            inputs = public()
        except DataError:
            if kind == "group":
                return bound
            raise
        return mean_norm(features_of(features, info, inputs))

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Open the features and build model and engine; nothing is learned from a record here.

        Raises:
            ModelError: The features cannot be computed, or the model does not fit them.
            ValueError: The plan holds an event that is not this method's.
        """
        hparams = dict(hparams)
        extractor = self.extractor(hparams, data.info)
        self._features = FeatureParts(data, extractor, context.supplies.feature_root)
        self._plan = plan
        self._num_before = 2 if normalization_of(hparams) == "private_data" else 0
        if any(run.phase != PHASE for run in plan.slice(0, self._num_before).runs):
            raise ValueError(f"{self.name} cannot execute {plan.at(0)} first")
        if hparams["optim.lr_scaling"] == "batch" and not follows_noise(hparams):
            declared = data.info.num_private
            expected = sample_rate_of(hparams, declared) * num_private_of(hparams, declared)
            hparams["optim.lr"] *= expected / BASE_BATCH
        super().prepare(self._part("private"), hparams, plan, context)

    def _part(self, part: str) -> SweepData:
        return self._features[part]

    def _build_model(self, *, is_initial: bool = True) -> torch.nn.Module:
        return self._with_front(list(self._build_head(self._initial_seed)))

    def _build_head(self, seed: int) -> torch.nn.Sequential:
        from torch import nn

        from dpsweep.trainables.networks.build import build_model

        model = build_model(self._hparams["model.name"], self._data.info, seed=seed)
        assert isinstance(model, nn.Sequential)
        return model

    def _with_front(self, layers: Sequence[torch.nn.Module]) -> torch.nn.Sequential:
        from torch import nn

        front = [build_front(self._data.info.input_shape)] if self._num_before else []
        return nn.Sequential(*front, *layers)

    def _before_training(self, position: int) -> None:
        """Release the channel means (position 0) or mean squares (1) of the private features."""
        import torch

        assert isinstance(self._model, torch.nn.Sequential)
        bound = statistic_bound(self._hparams, position)
        total = self._channel_sum(self._rows, position)
        self._add_noise(total, position, bound)
        # The normaliser is declared: the true number of records is private.
        total /= num_private_of(self._hparams, self._data.info.num_private)
        least = self._hparams["normalize.min_variance"]
        set_statistic(self._model[0], position, total, min_variance=least)

    def _channel_sum(self, rows: np.ndarray, position: int) -> torch.Tensor:
        """Return the clipped statistics of rows at position 0 or 1, without noise."""
        return clipped_channel_sum(
            self._inputs,
            rows,
            power=position + 1,
            max_norm=statistic_bound(self._hparams, position),
            device=self._context.device,
        )

    @abstractmethod
    def _add_noise(self, total: torch.Tensor, position: int, max_norm: float) -> None:
        """Add to a sum over all records, of sensitivity ``max_norm``, the noise of its event."""

    def export(self) -> torch.nn.Module:
        """Return extractor, normalisation and trained model as one network on raw records."""
        from torch import nn

        raw = self._features.raw.info
        assert not raw.features, "an exported model takes raw records"
        return nn.Sequential(self._features.spec.build(raw), super().export()).eval()


def _group_error(groups: int, shape: tuple[int, ...]) -> Mistake | None:
    from dpsweep.trainables.features.extractors import norm_layers

    try:
        norm_layers(f"group:{groups}", shape)
    except ModelError as error:
        return Mistake(
            "normalize.groups", error.message, error.fix or "use another number of groups"
        )
    return None
