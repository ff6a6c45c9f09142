"""DP-SGD on frozen features: ScatterNet, a pretrained network, or the raw records.

Tramer & Boneh 2021, "Differentially private learning needs better features (or much more data)"
(https://arxiv.org/abs/2011.11660). Loads no torch until ``prepare``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake
from dpsweep.privacy.events import Gaussian, Plan
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.data.tasks import outputs_of
from dpsweep.trainables.features.choice import FEATURE_HYPERPARAMETERS, with_defaults
from dpsweep.trainables.hooks import Contributions
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.extras.bands import BANDS, bands_problems
from dpsweep.trainables.methods.extras.quantile import quantile_problems
from dpsweep.trainables.methods.hyperparameters import (
    CLIP_HYPERPARAMETERS,
    NOISE_HYPERPARAMETERS,
    with_noise_rates,
)
from dpsweep.trainables.methods.noise_rates import rate_problems
from dpsweep.trainables.methods.scatternet.normalize import (
    NORMALIZE_HYPERPARAMETERS,
    statistic_bound,
    statistics_plan,
)
from dpsweep.trainables.methods.scatternet.on_features import (
    HEAD_HYPERPARAMETERS,
    TRAINING_HYPERPARAMETERS,
    OnFeatures,
)

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData

_SCORE_BLOCK = 512
_CLIP_HYPERPARAMETERS = with_defaults(CLIP_HYPERPARAMETERS, {"clip.max_grad_norm": 0.1})
_HEADS_HYPERPARAMETERS = (
    Hyperparameter(
        "heads.count",
        "int",
        1,
        "Linear models trained at once on shared batches; the best on validation is the result.",
        low=1,
        high=1024,
        changes_privacy=True,
    ),
    Hyperparameter(
        "heads.lr_span",
        "float",
        1.0,
        "Largest learning rate of a head divided by the smallest; spread evenly in the logarithm "
        "around optim.lr.",
        low=1,
    ),
)


class ScatterNet(OnFeatures, DPSGD):
    """A linear model or a small CNN on frozen features, trained by DP-SGD.

    Guarantees:
        Features are functions of one record each and cost nothing. Under ``private_data``,
        positions 0 and 1 release ``sum_i clip(m_i, C) + N(0, (sigma_norm C)^2)`` over all private
        records (``clipped_channel_sum``), which are the plan's two Gaussian events; noise is
        relative to C and what rounding adds (``noise_bound``). The division by the declared number,
        the floor of the variance and everything after is post-processing.
        All later positions are those of ``DPSGD``.

        With ``heads.count`` M > 1 a step releases M noisy sums of one Poisson sample, each with
        sensitivity C and noise sigma C. Jointly that is one sampled Gaussian of sensitivity
        sqrt(M) C, so the plan holds one event of noise multiplier sigma / sqrt(M): for a given
        epsilon every head gets sqrt(M) times the noise of a single one (a given
        ``noise.noise_multiplier`` is sigma, that of one head). ``evaluate`` chooses the head with
        the best accuracy on the validation part, which costs nothing where that part is public
        and is not covered by any epsilon where its scores are exact. Noisy validation is refused:
        its charge covers the score of one model, not a choice by exact scores.
    """

    name: ClassVar[str] = "scatternet"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        FEATURE_HYPERPARAMETERS
        + NORMALIZE_HYPERPARAMETERS
        + HEAD_HYPERPARAMETERS
        + _CLIP_HYPERPARAMETERS
        + NOISE_HYPERPARAMETERS
        + (BANDS,)
        + with_noise_rates(TRAINING_HYPERPARAMETERS)
        + _HEADS_HYPERPARAMETERS
    )

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return what works in no combination; many heads need a linear model."""
        problems = super().preflight(values, info) + rate_problems(values)
        problems += quantile_problems(values) + bands_problems(values)
        has_linear = "linear" in cls._possible(values, "model.name")
        if min(cls._possible(values, "heads.count")) > 1 and not has_linear:
            problems.append(
                Mistake("heads.count", "many heads are linear models", "model.name: linear")
            )
        return problems

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return the releases of the normalisation and the Poisson-subsampled Gaussian steps.

        The steps get what the normalisation leaves of the budget (see ``DPSGD.plan``).

        Raises:
            InfeasibleBudgetError: As ``DPSGD.plan``; or many heads with a model that is not
                linear, or with noisy validation.
        """
        count = hparams["heads.count"]
        if count > 1:
            if hparams["model.name"] != "linear":
                raise InfeasibleBudgetError(
                    f"heads.count={count} needs linear models, not {hparams['model.name']}",
                    fix="set model.name: linear, or heads.count: 1",
                )
            if context.validation == "noisy":
                raise InfeasibleBudgetError(
                    f"heads.count={count} chooses a head by exact validation scores, which noisy "
                    "validation does not pay for",
                    fix="set heads.count: 1, or use public validation records",
                )
            joint_noise = hparams["noise.noise_multiplier"]
            if joint_noise is not None:
                hparams = {**hparams, "noise.noise_multiplier": joint_noise / math.sqrt(count)}
        return cls._plan_after(statistics_plan(hparams), hparams, context)

    @classmethod
    def _joint_sensitivity_of(cls, hparams: Mapping[str, Any]) -> float:
        return math.sqrt(hparams["heads.count"])

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """See ``OnFeatures.prepare``; draws fresh secret seeds."""
        self._num_heads = int(hparams["heads.count"])
        self._best_head: tuple[int, int] | None = None
        super().prepare(data, hparams, plan, context)
        for run in plan.slice(0, self._num_before).runs:
            if not isinstance(run.event, Gaussian):
                raise ValueError(f"{self.name} cannot execute {run.event} first")
        span = float(hparams["heads.lr_span"])
        places = np.linspace(-0.5, 0.5, self._num_heads) if self._num_heads > 1 else np.zeros(1)
        self._rate_factors = span**places
        if self._num_heads > 1:
            self._split_optimizer()

    def _split_optimizer(self) -> None:
        """Give every head its own group of the optimizer, so that rates can differ."""
        (group,) = self._optimizer.param_groups
        parameters = group.pop("params")
        self._optimizer.param_groups.clear()
        for head in range(self._num_heads):
            own = parameters[2 * head : 2 * head + 2]
            self._optimizer.add_param_group({**group, "params": own})

    def _set_learning_rate(self, rate: float) -> None:
        for group, factor in zip(self._optimizer.param_groups, self._rate_factors):
            group["lr"] = rate * float(factor)

    def _build_model(self, *, is_initial: bool = True) -> torch.nn.Module:
        if self._num_heads == 1:
            return super()._build_model(is_initial=is_initial)
        from torch import nn

        from dpsweep.trainables.networks.heads import LinearHeads

        heads = []
        for head in range(self._num_heads):
            seed = public_seed(self._context.seed, self._context.trial, f"head {head}")
            linear = self._build_head(seed)[-1]
            assert isinstance(linear, nn.Linear)
            heads.append(linear)
        return self._with_front([LinearHeads(heads)])

    def _add_noise(self, total: torch.Tensor, position: int, max_norm: float) -> None:
        event = self._plan.at(position)
        assert isinstance(event, Gaussian)
        bound = self._noise_bound(max_norm, self._data.info.num_private)
        self._noise.release(total, event.noise_multiplier, bound, observer=self.noise_observer)

    def contributions(self, position: int) -> Contributions | None:
        """Return those to the channel statistics too; see ``Auditable``."""
        if position >= self._num_before:
            return super().contributions(position)
        import torch

        bound = statistic_bound(self._hparams, position)
        each = [self._channel_sum(self._rows[i : i + 1], position) for i in range(len(self._rows))]
        return Contributions(torch.stack(each).float().cpu(), bound)

    def evaluate(self, part: str) -> dict[str, float]:
        """Return accuracy and loss of the model; of many heads, of the best on validation."""
        if self._num_heads == 1:
            return super().evaluate(part)
        return self._score(self._one_head(self._delivered, self._winner()), part)

    def _winner(self) -> int:
        """Return the head with the best accuracy on the validation part now."""
        if self._best_head is None or self._best_head[0] != self._position:
            self._best_head = (self._position, int(np.argmax(self._num_correct("validation"))))
        return self._best_head[1]

    def _num_correct(self, part: str) -> np.ndarray:
        """Return how many records of a part each head classifies correctly, int64 (heads,)."""
        counts = np.zeros(self._num_heads, np.int64)
        model, device = self._delivered, self._context.device
        said = outputs_of(model, self._part(part), part, block=_SCORE_BLOCK, device=device)
        for logits, labels in said:
            is_correct = logits.argmax(dim=2) == labels[:, None]
            counts += is_correct.sum(dim=0).cpu().numpy()
        return counts

    @staticmethod
    def _one_head(model: torch.nn.Module, head: int) -> torch.nn.Module:
        from torch import nn

        assert isinstance(model, nn.Sequential)
        *front, heads = model
        return nn.Sequential(*front, nn.Flatten(), heads.layers[head])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See ``ClassifierMethod.load_state_dict``; the best head is found anew."""
        super().load_state_dict(state)
        self._best_head = None

    def export(self) -> torch.nn.Module:
        """Return one network on raw records; of many heads, the best on validation."""
        if self._num_heads == 1:
            return super().export()
        from torch import nn

        extractor, model = super().export()
        return nn.Sequential(extractor, self._one_head(model, self._winner())).eval()
