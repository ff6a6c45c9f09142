"""Least squares on frozen features by noisy sums, and steps that are divided by the covariance.

Mehta, Krichene, Thakurta, Kurakin and Cutkosky 2023, "Differentially Private Image Classification
from Features" (https://arxiv.org/abs/2211.13403). Loads no torch until ``prepare``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError, Mistake, ModelError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.calibration import gaussian_noise
from dpsweep.privacy.events import Gaussian, Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.data.dataset import first_rows, training_tensors
from dpsweep.trainables.data.tasks import score
from dpsweep.trainables.features.choice import feature_problems, feature_spec
from dpsweep.trainables.features.store import FeatureParts
from dpsweep.trainables.hooks import Contributions
from dpsweep.trainables.method import Method, PlanContext, RunContext, target_budget
from dpsweep.trainables.methods.batches import num_private_of
from dpsweep.trainables.methods.least_squares.knobs import (
    CLOSED,
    COVARIANCE,
    FEATURES,
    LEAST_SQUARES_HYPERPARAMETERS,
    MOST_FEATURES,
    OF_STEPS,
    releases,
    ridge_of,
)
from dpsweep.trainables.methods.scatternet.normalize import normalization_of

if TYPE_CHECKING:
    import torch

    from dpsweep.privacy.events import PrivacyEvent
    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.features.spec import FeatureSpec

_SCORE_BLOCK = 4096
#: Bytes that an audit may hold of what canaries add.
_MOST_AUDITED = 4 * 2**30
#: Least step from a noise multiplier to a larger one, where rounding has passed the budget.
_MORE_NOISE = 1 + 1e-9


class LeastSquares(Method):
    """A linear head without bias, by second-order information that is released once.

    X are the features of the private records, each divided by its L2 norm, Y their classes in
    one-hot rows. ``closed_form`` (DP-LS) is ridge regression on two releases,

        W = (Y^T X + noise) ((X^T X + noise)^+ + ridge I)^-1,

    ^+ with negative eigenvalues set to 0. ``feature_covariance`` (DP-FC) takes full-batch steps of
    logistic regression, w <- w - lr (sum_i clip(g_i, C) + noise) ((X^T X + noise)^+ + ridge I)^-1.
    The ridge is relative to the noise that it holds down (``knobs.ridge_of``), which is public.

    What is not as in the paper: each class's own covariance, which gives its records another weight
    than the rest's (alpha), is left out, as it costs a third release and was no better where we
    measured it; noise of the covariance is symmetric, which makes it smaller by sqrt(2); steps have
    softmax cross-entropy, where the paper has one logistic loss for each class.

    Guarantees:
        The releases of a plan are ``statistics.class_sums`` and ``statistics.covariance`` over all
        private records, of sensitivity 1 each (proofs there), or sums of gradients that are
        clipped to C each, with Gaussian noise of the plan's multipliers times the sensitivity. The
        inverse, the ridge and the weights are functions of these and of public numbers. Noise is
        larger by 1e-4, which covers the rounding of sums (``clipping.noise_margin``), and comes
        from a secret seed that is drawn anew in ``prepare`` and never stored. A state holds
        releases and what follows from them, nothing exact. Add-or-remove-one only.
        Not covered: the discreteness of floating point numbers (``dpsweep.privacy.randomness``).
    """

    name: ClassVar[str] = "least_squares"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = LEAST_SQUARES_HYPERPARAMETERS
    #: Called with every noise tensor just before it is added. For tests only: noise is secret.
    noise_observer: Callable[[torch.Tensor], None] | None = None

    @classmethod
    def extractor(cls, hparams: Mapping[str, Any], info: DatasetInfo) -> FeatureSpec | None:
        """Return the features of a configuration; see ``OnFrozenFeatures``."""
        return feature_spec(hparams, info, norm=_norm_of(hparams))

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return the releases (``knobs.releases``), all of them Gaussians over all records.

        Raises:
            InfeasibleBudgetError: ``noise.noise_multiplier`` is too small for the budget, or
                no noise is large enough.
        """
        budget = target_budget(hparams["noise.target_epsilon"], context.budget)

        def epsilon(sigma: float) -> float:
            plan = releases(hparams, sigma)
            return epsilon_of(plan, delta=budget.delta, accountant=context.accountant)

        sigma = hparams["noise.noise_multiplier"]
        least = gaussian_noise(budget, steps=1, accountant=context.accountant)
        while epsilon(least) > budget.target_epsilon:
            least *= _MORE_NOISE
        if sigma is None:
            sigma = least
        elif epsilon(sigma) > budget.target_epsilon:
            raise InfeasibleBudgetError(
                f"noise.noise_multiplier={sigma:g} costs epsilon={shown_epsilon(epsilon(sigma))}, "
                f"over {budget.target_epsilon:g} at delta={budget.delta:g}",
                because=f"full batch ({context.accountant}, {budget.neighboring_relation})",
                fix=f"noise.noise_multiplier >= {least:.4g}, or leave it out",
            )
        return releases(hparams, sigma)

    @classmethod
    def carried_over(
        cls, hparams: Mapping[str, Any], plan: Plan, before: PlanContext, after: PlanContext
    ) -> dict[str, Any]:
        """Return the same configuration with the noise of the final run; see ``CarriesOver``.

        Ridge and rate are relative to the noise and to the covariance, which grow with the records.
        """
        return {**hparams, "noise.noise_multiplier": None, "noise.target_epsilon": None}

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return features that cannot be had or are too many, and what has no meaning."""
        problems: list[Mistake] = []
        columns = [cls._possible(values, parameter.name) for parameter in FEATURES]
        for row in product(*columns):
            hparams = dict(zip((parameter.name for parameter in FEATURES), row))
            described, wrong = feature_problems(hparams, info, norm=_norm_of(hparams))
            if described is not None:
                wrong = _size_problems(hparams["features.name"], prod(described.input_shape))
            problems += [problem for problem in wrong if problem not in problems]
        if cls._possible(values, "least_squares.variant") == [CLOSED]:
            problems += [
                Mistake(
                    parameter.name,
                    f"{CLOSED} takes no step that this could change",
                    "leave it out, or use least_squares.variant: feature_covariance",
                )
                for parameter in OF_STEPS
                if parameter.name in values
            ]
        return problems

    @classmethod
    def _possible(cls, values: Mapping[str, Sequence[Any]], name: str) -> list[Any]:
        default = next(p.default for p in cls.hyperparameters if p.name == name)
        return list(values.get(name, [default]))

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Open the features; weights are zero, and a fresh secret seed is drawn.

        Raises:
            ModelError: The features cannot be computed, or are too many for a covariance.
            ValueError: The plan holds an event that is not this method's.
        """
        import torch

        from dpsweep.trainables.gradients.noise import SecretNoise
        from dpsweep.trainables.methods.least_squares.statistics import UnitRecords

        for run in plan.runs:
            if not isinstance(run.event, Gaussian):
                raise ValueError(f"{self.name} cannot execute {run.event}")
        self._hparams, self._plan, self._context = dict(hparams), plan, context
        self._position = 0
        extractor = feature_spec(hparams, data.info, norm=_norm_of(hparams))
        self._features = FeatureParts(data, extractor, context.supplies.feature_root)
        private = self._part("private")
        inputs, labels = training_tensors(private, "private", context.device)
        declared = data.info.num_private
        rows = first_rows(declared, hparams["train.num_private"], len(labels))
        if len(rows) < len(labels):
            index = torch.from_numpy(rows).to(inputs.device)
            inputs, labels = inputs.index_select(0, index), labels.index_select(0, index)
        self._inputs, self._labels = inputs, labels
        # The bound on rounding comes from declared numbers: the true number of records is private.
        self._num_private = num_private_of(hparams, declared)
        self._shape = private.info.input_shape
        num_features = prod(self._shape)
        for problem in _size_problems(hparams["features.name"], num_features):
            raise ModelError(problem.what, fix=problem.fix)
        self._weight = torch.zeros(
            data.info.num_classes, num_features, dtype=torch.float64, device=context.device
        )
        self._inverse: torch.Tensor | None = None
        self._is_closed = hparams["least_squares.variant"] == CLOSED
        self._covariance_at = 1 if self._is_closed else 0
        self._noise = SecretNoise(context.device)
        self._records: UnitRecords | None = None
        if not self._is_closed:
            self._records = UnitRecords(inputs, labels, device=context.device)

    def _part(self, part: str) -> SweepData:
        return self._features[part]

    @property
    def _max_grad_norm(self) -> float:
        return float(self._hparams["clip.max_grad_norm"])

    def _bound(self, position: int) -> float:
        """Return the most that one record moves the sum of a position, rounding aside."""
        is_step = not self._is_closed and position != self._covariance_at
        return self._max_grad_norm if is_step else 1.0

    def _sum(
        self, position: int, inputs: torch.Tensor, labels: torch.Tensor, records: Any
    ) -> torch.Tensor:
        """Return the sum of a position over records, without noise, float64."""
        from dpsweep.trainables.methods.least_squares import statistics

        device = self._context.device
        if position == self._covariance_at:
            return statistics.covariance(inputs, device=device)
        if self._is_closed:
            return statistics.class_sums(inputs, labels, len(self._weight), device=device)
        total: torch.Tensor = records.gradient_sum(self._weight.float(), self._max_grad_norm)[0]
        return total

    def _execute(self, position: int) -> None:
        """Release the sum of a position, and make weights of it."""
        from dpsweep.trainables.gradients.clipping import noise_bound

        total = self._sum(position, self._inputs, self._labels, self._records)
        sigma = _noise_multiplier(self._plan.at(position))
        bound = noise_bound(self._bound(position), self._num_private)
        released = self._noise.release(total, sigma, bound, observer=self.noise_observer)
        if position == self._covariance_at:
            self._solve(released)
        elif self._is_closed:
            self._weight = released
        else:
            assert self._inverse is not None
            self._weight = self._weight - self._hparams["optim.lr"] * released @ self._inverse

    def _solve(self, triangle: torch.Tensor) -> None:
        """Take in the released covariance: solve for the weights, or keep its inverse for steps.

        Args:
            triangle: Released, float64 (d (d + 1) / 2,).
        """
        from dpsweep.trainables.methods.least_squares.solving import inverse
        from dpsweep.trainables.methods.least_squares.statistics import symmetric

        others = [run for run in self._plan.runs if run.phase != COVARIANCE]
        bound = 1.0 if self._is_closed else self._max_grad_norm
        noises = [bound * sqrt(run.count) * _noise_multiplier(run.event) for run in others]
        ridge = ridge_of(self._hparams, noises)
        solved = inverse(symmetric(triangle, self._weight.shape[1]), ridge)
        if self._is_closed:
            self._weight = solved.applied(self._weight)
        else:
            self._inverse = (solved.vectors * solved.values) @ solved.vectors.T

    def contributions(self, position: int) -> Contributions | None:
        """Return what each prepared record adds to a release, alone; see ``Auditable``.

        Raises:
            BadInputError: They take more than 4 GiB.
        """
        import torch

        num_classes, size = self._weight.shape
        is_covariance = position == self._covariance_at
        entries = size * (size + 1) // 2 if is_covariance else num_classes * size
        most = _MOST_AUDITED // (4 * entries)
        if len(self._labels) > most:
            raise BadInputError(
                f"what {len(self._labels)} canaries add to a covariance of {size} features takes "
                f"{len(self._labels) * entries * 4 / 2**30:.1f} GiB",
                because=f"each adds {entries} numbers, and 4 GiB are the most",
                fix=f"--canaries {most}, or an audit on fewer features: --method least_squares",
            )
        rows = [self._sum(position, *record).flatten().float().cpu() for record in self._alone()]
        return Contributions(torch.stack(rows), self._bound(position))

    def _alone(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, Any]]:
        alone = iter(()) if self._records is None else self._records.alone()
        for i in range(len(self._labels)):
            yield self._inputs[i : i + 1], self._labels[i : i + 1], next(alone, None)

    def amplify(self, factor: float) -> None:
        """Do nothing: records are divided by their norms; see ``Auditable``."""

    def _head(self) -> torch.nn.Sequential:
        """Return the head as a network on features."""
        from torch import nn

        from dpsweep.trainables.features.extractors import norm_layers

        num_classes, num_features = self._weight.shape
        head = nn.Linear(num_features, num_classes, bias=False, device=self._weight.device)
        head.weight.data.copy_(self._weight)
        layers = [*norm_layers("l2", self._shape), nn.Flatten(), head]
        return nn.Sequential(*layers).to(self._weight.device).requires_grad_(False).eval()

    def evaluate(self, part: str) -> dict[str, float]:
        """Return accuracy in [0, 1] and mean cross-entropy in nats on a part of the data.

        Outputs of the closed form estimate 0 and 1: as logits they are flat, and so is that loss.

        Raises:
            DataError: The part has no record.
        """
        device = self._context.device
        return score(self._head(), self._part(part), part, block=_SCORE_BLOCK, device=device)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, position, and for steps the inverse: all of it follows from releases."""
        return {
            "weight": self._weight.to("cpu", copy=True),
            "inverse": None if self._inverse is None else self._inverse.to("cpu", copy=True),
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; secret randomness goes on afresh."""
        device = self._weight.device
        self._weight = state["weight"].to(device, copy=True)
        kept = state["inverse"]
        self._inverse = None if kept is None else kept.to(device, copy=True)
        self._position = int(state["position"])

    def export(self) -> torch.nn.Module:
        """Return extractor and head as one network on raw records, on the CPU, in eval mode."""
        from torch import nn

        extractor = self._features.spec.build(self._features.raw.info)
        return nn.Sequential(extractor, *self._head().cpu()).eval()


def _noise_multiplier(event: PrivacyEvent) -> float:
    assert isinstance(event, Gaussian)
    return event.noise_multiplier


def _norm_of(hparams: Mapping[str, Any]) -> str:
    """Return the norm of stored features; all are divided by their L2 norm when they are read."""
    is_group = normalization_of(hparams) == "group"
    return f"group:{hparams['normalize.groups']}" if is_group else "l2"


def _size_problems(name: str, num_features: int) -> list[Mistake]:
    """Return what is wrong with so many features."""
    if num_features <= MOST_FEATURES:
        return []
    return [
        Mistake(
            "features.name",
            f"{name} has {num_features} features of a record, and least squares forms their "
            f"covariance, of at most {MOST_FEATURES}",
            "use features with fewer numbers, or method: scatternet",
        )
    ]
