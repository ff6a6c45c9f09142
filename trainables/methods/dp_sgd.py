"""DP-SGD (Abadi et al. 2016, https://arxiv.org/abs/1607.00133) with noise and clip schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import BadInputError, Mistake
from dpsweep.privacy.calibration import calibrate_noise_schedule
from dpsweep.privacy.events import NO_PLAN, Plan, PoissonGaussian
from dpsweep.privacy.randomness import secret_numpy_generator
from dpsweep.privacy.schedules import ClipSchedule, NoiseSchedule
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.hooks import Contributions
from dpsweep.trainables.method import PlanContext, RunContext, target_budget
from dpsweep.trainables.methods.batches import (
    cut_to_budget,
    num_private_of,
    num_steps_of,
    sample_rate_of,
)
from dpsweep.trainables.methods.carrying_over import carried_over
from dpsweep.trainables.methods.classifier import ClassifierMethod
from dpsweep.trainables.methods.extras.bands import (
    BANDS,
    bands_problems,
    charged_rounds,
    make_rounds,
    refuse_figures,
)
from dpsweep.trainables.methods.extras.quantile import (
    QuantileClip,
    checked_counts,
    follows_quantile,
    quantile_problems,
    refuse_beside_quantile,
)
from dpsweep.trainables.methods.extras.views import AUGMENT_HYPERPARAMETERS
from dpsweep.trainables.methods.hyperparameters import (
    BATCH_HYPERPARAMETERS,
    CLIP_HYPERPARAMETERS,
    CLIP_RULE,
    NOISE_HYPERPARAMETERS,
    OPTIM_HYPERPARAMETERS,
    TRAIN_HYPERPARAMETERS,
    with_noise_rates,
)
from dpsweep.trainables.methods.model_knobs import MODEL_HYPERPARAMETERS
from dpsweep.trainables.methods.noise_rates import (
    follows_noise,
    noise_rates,
    rate_problems,
    rescale_momentum,
    settled,
)
from dpsweep.trainables.methods.optim import tell_noise

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.gradients.layer_noise import NoiseFigures
    from dpsweep.trainables.gradients.per_example import GradientEngine


class DPSGD(ClassifierMethod):
    """Poisson batches, per-example clipping, Gaussian noise, then any optimizer.

    Guarantees:
        Position t releases ``sum_i clip(g_i, C_t) + N(0, (sigma_t C_t)^2)`` over a Poisson sample
        of the private records, and nothing else: the plan's event at t under add-or-remove-one.
        The noise is larger by 1e-4 (more, beyond 400,000 records), as rounding may let one example
        more or less move the sum by C_t (1 + 1e-4), and by no more, whatever the records
        (``clipping.noise_margin``). The divisor is the declared expected batch size, an
        empty batch takes its step, and batches and noise come from secret seeds that are drawn anew
        in ``prepare`` and never stored. With ``noise.bands`` a position is a round of steps, see
        ``extras.bands``. Not covered: the discreteness of floating point numbers,
        kernels that round an example otherwise at another place in its chunk
        (``sums``), and the statistical quality of the generators (see
        ``dpsweep.privacy.randomness``).
    """

    name: ClassVar[str] = "dp_sgd"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        MODEL_HYPERPARAMETERS
        + AUGMENT_HYPERPARAMETERS
        + with_noise_rates(OPTIM_HYPERPARAMETERS)
        + CLIP_HYPERPARAMETERS
        + NOISE_HYPERPARAMETERS
        + (BANDS,)
        + BATCH_HYPERPARAMETERS
        + TRAIN_HYPERPARAMETERS
    )
    #: Called with every noise tensor just before it is added. For tests only: noise is secret.
    noise_observer: Callable[[torch.Tensor], None] | None = None
    #: Learning rates besides ``optim.lr``, which have no meaning where that follows the noise.
    _plain_rates: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return also the learning rates that have no meaning beside each other."""
        problems = super().preflight(values, info)
        problems += quantile_problems(values) + bands_problems(values)
        return problems + rate_problems(values, plain=cls._plain_rates)

    @classmethod
    def complete(cls, hparams: Mapping[str, Any], context: PlanContext) -> dict[str, Any]:
        """See ``ClassifierMethod``; ``optim.lr`` is null where it follows the noise of the plan.

        Raises:
            InfeasibleBudgetError: The learning rate is given twice, or not at all; or something
                stands beside a bound that follows a quantile, and cannot.
        """
        refuse_beside_quantile(hparams)
        return settled(super().complete(hparams, context), context, plain=cls._plain_rates)

    @classmethod
    def carried_over(
        cls, hparams: Mapping[str, Any], plan: Plan, before: PlanContext, after: PlanContext
    ) -> dict[str, Any]:
        """See ``CarriesOver``."""
        return carried_over(cls, hparams, plan, before, after, plain=cls._plain_rates)

    @classmethod
    def _check_gradients(cls, model: torch.nn.Module, name: str, info: DatasetInfo) -> None:
        """Check that each example has a gradient by all that trains (``ClassifierMethod``)."""
        from dpsweep.trainables.methods.own_model_checks import check_gradients

        check_gradients(model, name, info)

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return the Poisson-subsampled Gaussian events of one trial.

        Without ``noise.noise_multiplier`` the schedule is calibrated to cost
        ``noise.target_epsilon`` over all steps, or the whole budget where that is absent too. With
        it, the plan ends at the last step whose epsilon is within the budget.

        Raises:
            InfeasibleBudgetError: Not one step fits into the budget, the target is over it, or the
                expected batch is larger than the declared number of records.
        """
        return cls._plan_after(NO_PLAN, hparams, context)

    @staticmethod
    def _plan_after(before: Plan, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return ``before`` and the steps, which get what it leaves of the budget."""
        sample_rate = sample_rate_of(hparams, context.num_private)
        steps = num_steps_of(hparams, sample_rate)
        sample_rate, steps = charged_rounds(hparams, sample_rate, steps)
        shape = hparams["noise.shape"]
        schedule = NoiseSchedule(
            shape,
            1.0 if shape == "constant" else hparams["noise.end_ratio"],
            prefix_share=hparams["noise.prefix_share"],
            prefix_factor=hparams["noise.prefix_factor"],
        )
        start = hparams["noise.noise_multiplier"]
        if start is None:
            start = calibrate_noise_schedule(
                target_budget(hparams["noise.target_epsilon"], context.budget),
                schedule=schedule,
                sample_rate=sample_rate,
                steps=steps,
                accountant=context.accountant,
                before=before,
            )
            plan = before + schedule.plan(start, sample_rate, steps)
            return checked_counts(plan, hparams, context.num_private)
        plan = checked_counts(
            before + schedule.plan(start, sample_rate, steps), hparams, context.num_private
        )
        return cut_to_budget(plan, len(before), context)

    @classmethod
    def _joint_sensitivity_of(cls, hparams: Mapping[str, Any]) -> float:
        """Return the L2 sensitivity of what one step releases, over the bound on one gradient."""
        return 1.0

    @classmethod
    def peak_rate(cls, hparams: Mapping[str, Any], plan: Plan, num_private: int) -> float | None:
        """Return the largest learning rate where it follows the noise; see ``RateByNoise``."""
        noises = [
            run.event.noise_multiplier
            for run in plan.runs
            if isinstance(run.event, PoissonGaussian)
            for _ in range(run.count)
        ]
        if not noises or not follows_noise(hparams):
            return None
        return float(cls._noise_rates(hparams, cls._noise_stds(hparams, noises), num_private).max())

    @classmethod
    def _bounds(cls, hparams: Mapping[str, Any], num_steps: int) -> np.ndarray:
        """Return the bound on one gradient at every step, float64 (num_steps,)."""
        shape = hparams["clip.shape"]
        clip = ClipSchedule(shape, 1.0 if shape == "constant" else hparams["clip.end_ratio"])
        return clip.values(hparams["clip.max_grad_norm"], num_steps)

    @classmethod
    def _noise_stds(cls, hparams: Mapping[str, Any], noises: Sequence[float]) -> np.ndarray:
        """Return the standard deviation of the noise in the sum of every step.

        Args:
            noises: Noise multiplier of every step's event.
        """
        bounds = cls._bounds(hparams, len(noises))
        return bounds * np.array(noises) * cls._joint_sensitivity_of(hparams)

    @classmethod
    def _noise_rates(
        cls, hparams: Mapping[str, Any], noise_stds: np.ndarray, num_private: int
    ) -> np.ndarray:
        """Return the learning rate of every step from the noise that was planned for it."""
        sample_rate = sample_rate_of(hparams, num_private)
        factors = cls._rates({**hparams, "optim.lr": 1.0}, len(noise_stds), sample_rate)
        expected_batch = sample_rate * num_private_of(hparams, num_private)
        return noise_rates(hparams, factors, noise_stds, expected_batch=expected_batch)

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Build what the steps need and draw fresh secret seeds.

        Raises:
            ValueError: The plan holds an event that is not this method's.
        """
        from dpsweep.trainables.gradients.clipping import clip_rule_factors, noise_bound
        from dpsweep.trainables.gradients.noise import SecretNoise

        if follows_noise(hparams):  # each step sets its rate, below
            hparams = {**hparams, "optim.lr": 1.0}
        super().prepare(data, hparams, plan, context)
        # The steps follow the plan, not the hyperparameters: what was charged is what is run.
        self._events: list[PoissonGaussian] = []
        for run in plan.slice(self._num_before, len(plan)).runs:
            if not isinstance(run.event, PoissonGaussian):
                raise ValueError(f"{self.name} cannot execute {run.event}")
            self._events += [run.event] * run.count
        steps, rows = num_steps_of(hparams, self._sample_rate), len(self._labels)
        self._rounds = make_rounds(hparams, self._events, steps, rows, context.device)
        if self._rounds is not None:
            self._events = self._rounds.events
            self._learning_rates = self._rates(hparams, len(self._events), self._sample_rate)
        self._max_grad_norms = self._bounds(hparams, len(self._events))
        self._joint_sensitivity = self._joint_sensitivity_of(hparams)
        self._momentum_ratios: np.ndarray | None = None
        if follows_noise(hparams):
            noises = [event.noise_multiplier for event in self._events]
            noise_stds = self._noise_stds(hparams, noises)
            self._learning_rates = self._noise_rates(hparams, noise_stds, data.info.num_private)
            self._momentum_ratios = np.append(1.0, noise_stds[1:] / noise_stds[:-1])
        factors: Any = clip_rule_factors(hparams.get(CLIP_RULE.name, "abadi"))  # older: none
        self._factors, self._noise_bound, self._quantile = factors, noise_bound, None
        if follows_quantile(hparams):
            self._quantile = QuantileClip(hparams, self._expected_batch, factors)
        self._engine = self._make_engine()
        if context.is_run:  # it checks itself, by shapes alone, before anything is charged
            self._engine.clipped_gradient_sum(self._inputs, self._labels, np.arange(0), 1.0)
        self._batches = secret_numpy_generator()
        self._noise = self._rounds.noise if self._rounds else SecretNoise(context.device)

    def _make_engine(self) -> GradientEngine:
        """Return what computes clipped sums, in the order of ``_parameters``."""
        from dpsweep.trainables.gradients.per_example import make_engine

        return make_engine(
            self._model,
            int(self._hparams["batch.physical"]),
            factors=self._factors,
            **self._engine_options,
        )

    def _execute(self, position: int) -> None:
        if self._rounds is None or position < self._num_before:
            super()._execute(position)
            return
        for step in self._rounds.steps(position - self._num_before):
            self._take_step(step)

    def _take_step(self, step: int) -> None:
        if self._momentum_ratios is not None:
            rescale_momentum(self._optimizer, float(self._momentum_ratios[step]))
        super()._take_step(step)

    def _gradient(self, step: int) -> list[torch.Tensor]:
        event, engine = self._events[step], self._engine_at(step)
        max_grad_norm, joint = self._bound_at(step)
        rows = self._draw_batch(self._batches, event.sample_rate)
        if self._rounds is not None:
            rows = self._rounds.of_group(rows, step)
        sums = engine.clipped_gradient_sum(self._inputs, self._labels, rows, max_grad_norm)
        num_private = self._data.info.num_private
        bound = self._noise_bound(max_grad_norm, num_private, joint=joint)
        released = [
            self._noise.release(t, event.noise_multiplier, bound, observer=self.noise_observer)
            for t in sums
        ]
        if self._quantile is not None:
            self._quantile.follow(float(released.pop()), event.noise_multiplier)
        tell_noise(self._optimizer, event.noise_multiplier * bound / self._expected_batch)
        return [total.float() / self._expected_batch for total in released]

    def _bound_at(self, step: int) -> tuple[float, float]:
        """Return C at a step that comes next, and the sensitivity of all it releases over C."""
        if self._quantile is None:
            return float(self._max_grad_norms[step]), self._joint_sensitivity
        joint = self._quantile.joint(self._events[step].noise_multiplier)
        return self._quantile.bound, joint * self._joint_sensitivity

    def _engine_at(self, step: int) -> GradientEngine:
        """Return what computes the sums that a step releases, in the order of ``_parameters``.

        One more tensor, the count, comes last where the bound follows a quantile.
        """
        if self._quantile is None:
            return self._engine
        return self._quantile.counting(self._engine, self._events[step].noise_multiplier)

    def state_dict(self) -> dict[str, Any]:
        """Return also the bound, where it follows a quantile."""
        state = super().state_dict()
        return state if self._quantile is None else {**state, "bound": self._quantile.bound}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See ``ClassifierMethod``; what noise of bands takes away is forgotten."""
        super().load_state_dict(state)
        if self._rounds is not None:
            self._rounds.forget()
        if self._quantile is not None:
            self._quantile.bound = float(state["bound"])

    def contributions(self, position: int) -> Contributions | None:
        """Return the clipped gradients of the prepared records, each alone; see ``Auditable``."""
        from dpsweep.trainables.gradients.canaries import clipped_gradients

        refuse_figures(self._rounds)
        step = position - self._num_before
        self._begin()
        self._reach(step)
        self._look_at(step)
        engine, (bound, joint) = self._engine_at(step), self._bound_at(step)
        rows = clipped_gradients(engine, self._inputs, self._labels, self._rows, bound)
        return Contributions(rows, bound * joint)

    def amplify(self, factor: float) -> None:
        """Multiply gradients that come back from the network's outputs; see ``Auditable``."""
        from dpsweep.trainables.gradients.canaries import amplify

        amplify(self._model, factor)

    def _reach(self, step: int) -> None:
        """Let what trains at a step be what trains now; nothing, for most methods."""

    def gradient_layers(self) -> list[str]:
        """Return the name of the layer that each tensor of a step's gradient belongs to."""
        names = {id(p): name.rpartition(".")[0] for name, p in self._model.named_parameters()}
        return [names[id(parameter)] for parameter in self._parameters]

    def layer_noise(self, num_records: int) -> NoiseFigures:
        """Return noise and gradient of the next step by layer, at the weights that are there now.

        After the last step, the figures are those of the last step's noise and bound.

        Guarantees:
            Refused unless the records that the method was prepared with are public ones
            (``SweepData.for_public_search``): the figures are exact.

        Args:
            num_records: How many of these records the gradient is estimated from, at most.
        Raises:
            BadInputError: The records are private, or there are none.
            ModelError: The gradients of the network cannot be computed.
        """
        from dpsweep.trainables.gradients.layer_noise import NoiseFigures, layer_noise
        from dpsweep.trainables.networks.layers import set_training_mode

        if self._data.records != "public":
            raise BadInputError("figures of single layers are exact, so they need public records")
        refuse_figures(self._rounds)
        step = min(self._position - self._num_before, len(self._events) - 1)
        max_grad_norm, joint = self._bound_at(step)
        noise_multiplier = self._events[step].noise_multiplier * joint
        inputs, labels = self._inputs[:num_records], self._labels[:num_records]
        set_training_mode(self._model)
        layers = layer_noise(
            self._model,
            self._engine,
            self.gradient_layers(),
            inputs,
            labels,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch=self._expected_batch,
        )
        return NoiseFigures(
            step, noise_multiplier, max_grad_norm, self._expected_batch, len(inputs), tuple(layers)
        )
