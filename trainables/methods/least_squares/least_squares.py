"""Least squares on frozen features by noisy sums, and steps that are divided by the covariance.

Mehta, Krichene, Thakurta, Kurakin and Cutkosky 2023, "Differentially Private Image Classification
from Features" (https://arxiv.org/abs/2211.13403). Loads no torch until ``prepare``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake, ModelError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.calibration import gaussian_noise
from dpsweep.privacy.events import Gaussian, Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
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
    FEATURES,
    LEAST_SQUARES_HYPERPARAMETERS,
    MOST_FEATURES,
    OF_STEPS,
    releases,
)
from dpsweep.trainables.methods.scatternet.normalize import normalization_of

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.features.spec import FeatureSpec

_SCORE_BLOCK = 4096
#: Noise that is added first, in parts of it, where rounding has passed the budget.
_MORE_NOISE = 1e-9


class LeastSquares(Method):
    """A linear head without bias, by second-order information that is released once.

    X are the features of the private records, each divided by its L2 norm, Y their classes in
    one-hot rows. ``closed_form`` (DP-LS) is ridge regression on two releases,

        W = (Y^T X + noise) ((X^T X + noise)^+ + ridge I)^-1,

    ^+ with negative eigenvalues set to 0. ``feature_covariance`` (DP-FC) takes full-batch steps of
    logistic regression, w <- w - lr (sum_i clip(g_i, C) + noise) ((X^T X + noise)^+ + ridge I)^-1.
    The ridge is relative to the noise that it holds down (``knobs.ridge_of``), which is public.

    What is not as in the paper: each class's own covariance, which gives its records another weight
    than the rest's (alpha), is left out, as it costs a third release and changed nothing beyond the
    spread of seeds where we measured it; noise of the covariance is symmetric, which makes it
    smaller by sqrt(2); steps have softmax cross-entropy, where the paper has one logistic loss for
    each class.

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
        more = _MORE_NOISE
        while epsilon(least) > budget.target_epsilon:
            least, more = least * (1 + more), 10 * more
        if sigma is None:
            sigma = least
        elif epsilon(sigma) > budget.target_epsilon:
            raise InfeasibleBudgetError(
                f"noise.noise_multiplier={sigma:g} costs epsilon={shown_epsilon(epsilon(sigma))}, "
                f"over {budget.target_epsilon:g} at delta={shown_delta(budget.delta)}",
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

        from dpsweep.trainables.methods.least_squares.releases import Releases

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
        num_features = prod(private.info.input_shape)
        for problem in _size_problems(hparams["features.name"], num_features):
            raise ModelError(problem.what, fix=problem.fix)
        self._releases = Releases(
            inputs,
            labels,
            hparams=hparams,
            plan=plan,
            # The bound on rounding comes from declared numbers: the true number is private.
            num_private=num_private_of(hparams, declared),
            num_classes=data.info.num_classes,
            device=context.device,
        )
        self._weight = torch.zeros(
            data.info.num_classes, num_features, dtype=torch.float64, device=context.device
        )
        self._inverse: torch.Tensor | None = None

    def _part(self, part: str) -> SweepData:
        return self._features[part]

    def _execute(self, position: int) -> None:
        """Release the sum of a position, and make weights of it."""
        sums = self._releases
        released = sums.release(position, self._weight, self.noise_observer)
        if position != sums.covariance_at:
            if sums.is_closed:
                self._weight = released
                return
            assert self._inverse is not None
            self._weight = self._weight - self._hparams["optim.lr"] * released @ self._inverse
            return
        inverse = sums.inverse(released)
        if sums.is_closed:
            self._weight = inverse.applied(self._weight)
        else:
            self._inverse = (inverse.vectors * inverse.values) @ inverse.vectors.T

    def contributions(self, position: int) -> Contributions | None:
        """Return what each prepared record adds to a release, alone; see ``Auditable``.

        Raises:
            BadInputError: They take more memory than is sensible.
        """
        return self._releases.contributions(position, self._weight)

    def amplify(self, factor: float) -> None:
        """Do nothing: records are divided by their norms; see ``Auditable``."""

    def evaluate(self, part: str) -> dict[str, float]:
        """Return accuracy in [0, 1] and mean cross-entropy in nats on a part of the data.

        Outputs of the closed form estimate 0 and 1: as logits they are flat, and so is that loss.

        Raises:
            DataError: The part has no record.
        """
        device, network = self._context.device, self._releases.network(self._weight)
        return score(network, self._part(part), part, block=_SCORE_BLOCK, device=device)

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
        return nn.Sequential(extractor, *self._releases.network(self._weight).cpu()).eval()


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
