"""AdaMix: a linear head on frozen features, from private and a few public records.

Golatkar et al. 2022 (https://arxiv.org/abs/2203.11481), with its baselines and ablations. Loads no
torch until ``prepare``, so that plans can be made and checked without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake
from dpsweep.privacy.calibration import gaussian_noise, gaussian_steps
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.privacy.randomness import public_seed
from dpsweep.privacy.terms import shown_delta
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.data.dataset import part_tensors
from dpsweep.trainables.hooks import Contributions
from dpsweep.trainables.method import PlanContext, RunContext, target_budget
from dpsweep.trainables.methods.adamix.checks import space_problems
from dpsweep.trainables.methods.adamix.few_shot import best_rate, fit_few_shot
from dpsweep.trainables.methods.adamix.instance_privacy import per_instance_mu, report
from dpsweep.trainables.methods.adamix.linear_probe import (
    PROBE_FEATURES,
    PROBE_TRAIN,
    LinearProbe,
)
from dpsweep.trainables.methods.adamix.parts import (
    ADAMIX_HYPERPARAMETERS,
    PUBLIC_HYPERPARAMETERS,
    REUSE_HYPERPARAMETERS,
    STEP_HYPERPARAMETERS,
    TWO_PHASES,
    clip_statistic,
    first_steps,
    parts_of,
    refuse_rate,
)
from dpsweep.trainables.methods.adamix.text_init import text_head
from dpsweep.trainables.methods.input_norms import PublicInputs
from dpsweep.trainables.methods.noise_rates import (
    follows_noise,
    noise_rates,
    rate_problems,
    settled,
)

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData


class AdaMix(LinearProbe):
    """Noisy-GD whose start, clipping norm, subspace and part of the gradient are public.

    Position t is one step of algorithm 2 of Golatkar et al. (2022), G the sum of the public
    gradients at w:

        w <- w - lr [P (sum_i clip(g_i, tau) + N(0, (sigma tau)^2 I)) + G + lambda (w - w_ref)]

    Gradients are summed, not averaged, as in the paper: no number of records enters the step, and
    one learning rate suits private sets of all sizes, since the noise is the same for all.

    ``private_public_gd`` (Wang & Zhou 2020, https://doi.org/10.1609/aaai.v34i04.6088, as Golatkar
    et al. describe it, with full batches) trains a private model without G in its first steps, from
    zero; then w and w_ref are that model, and G is added. tau is the norm of G over its records.

    Guarantees:
        Position t releases ``sum_i clip(g_i, tau_t) + N(0, (sigma tau_t)^2)`` over all private
        records, and nothing else: a Gaussian of noise multiplier sigma under add-or-remove-one.
        tau_t (a percentile of public gradient norms, or the norm of their mean), P (a projection;
        applied to the noisy sum, and a contraction besides), G, w_0 and w_ref are functions of
        public records, public seeds and earlier releases: no cost. Noise comes from a secret seed
        that is drawn anew in ``prepare`` and never stored. ``fully_private`` adds the public
        records to the clipped sum; with ``only_public`` no private record enters the weights, and
        the plan is empty. The noise is larger by 1e-4, which covers the rounding of the sum
        (``clipping.noise_margin``).
        Not covered: the privacy of the public records, kernels that round a record otherwise at
        another place in its block (``sums``), and the discreteness of floating point
        numbers (see ``dpsweep.privacy.randomness``).
    """

    name: ClassVar[str] = "adamix"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        ADAMIX_HYPERPARAMETERS
        + PROBE_FEATURES
        + STEP_HYPERPARAMETERS
        + REUSE_HYPERPARAMETERS
        + PUBLIC_HYPERPARAMETERS
        + PROBE_TRAIN
    )
    #: Called with every noise tensor just before it is added. For tests only: noise is secret.
    noise_observer: Callable[[torch.Tensor], None] | None = None

    @classmethod
    def complete(cls, hparams: Mapping[str, Any], context: PlanContext) -> dict[str, Any]:
        """Return the hyperparameters; the private report has the study's delta by default.

        ``optim.lr`` is null where it follows the noise of the plan.

        Raises:
            InfeasibleBudgetError: The learning rate is given twice, or not at all.
        """
        hparams, delta = settled(hparams, context), hparams["adamix.report_delta"]
        return {**hparams, "adamix.report_delta": context.budget.delta if delta is None else delta}

    @classmethod
    def peak_rate(cls, hparams: Mapping[str, Any], plan: Plan, num_private: int) -> float | None:
        """Return the rate over the clipping norm where it follows the noise; see ``RateByNoise``.

        The noise is that of a sum over all records, which nothing divides: B is 1, and there is no
        momentum. The pull to the reference and the projection, which take noise away, are left out.
        """
        noises = [
            run.event.noise_multiplier for run in plan.runs if isinstance(run.event, Gaussian)
        ]
        if not noises or not follows_noise(hparams):
            return None
        return float(noise_rates(hparams, np.ones(len(plan)), np.full(len(plan), noises[0]))[0])

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return one Gaussian over all private records per step; none for ``only_public``.

        With ``noise.noise_multiplier`` there are as many steps as ``noise.target_epsilon`` (or the
        whole budget) allows, at most ``train.max_steps``. Without it, the noise is the least that
        allows ``train.max_steps``.

        Raises:
            InfeasibleBudgetError: Not one step fits, or neither noise nor steps are given.
            BadInputError: The variant and the parts that are switched on contradict each other, or
                ``public.lr`` is to be chosen by one shot of each class.
        """
        parts_of(hparams)
        refuse_rate(hparams)
        if hparams["adamix.variant"] == "only_public":
            return Plan(())
        budget = target_budget(hparams["noise.target_epsilon"], context.budget)
        sigma, steps = hparams["noise.noise_multiplier"], hparams["train.max_steps"]
        if sigma is None and steps is None:
            raise InfeasibleBudgetError(
                "neither noise.noise_multiplier nor train.max_steps is given",
                fix="give one of them; the other is solved for",
            )
        if sigma is None:
            sigma = gaussian_noise(budget, steps=steps, accountant=context.accountant)
        else:
            allowed = gaussian_steps(budget, noise_multiplier=sigma, accountant=context.accountant)
            if allowed == 0:
                least = gaussian_noise(budget, steps=1, accountant=context.accountant)
                raise InfeasibleBudgetError(
                    f"noise.noise_multiplier={sigma:g} does not allow one step within epsilon="
                    f"{budget.target_epsilon:g} at delta={shown_delta(budget.delta)}",
                    because=f"full batch ({context.accountant}, {budget.neighboring_relation})",
                    fix=f"noise.noise_multiplier >= {least:.4g}, for one step",
                )
            steps = allowed if steps is None else min(steps, allowed)
        return Plan((EventRun(Gaussian(sigma), count=steps),))

    @classmethod
    def input_norm(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo, public: PublicInputs
    ) -> float:
        """Return 1, the norm that all features have by construction; see ``KnowsInputNorm``."""
        return 1.0

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return what no trial could run: contradicting parts, text weights without its pair."""
        problems = super().preflight(values, info)
        norms = cls._possible(values, "optim.input_norm")
        problems += rate_problems({**values, "optim.input_norm": norms})
        return problems + space_problems(lambda name: cls._possible(values, name), info)

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Set the initial weights from public records alone and draw a fresh secret seed.

        Raises:
            DataError: A class has fewer public records than ``public.shots``.
            ValueError: The plan holds an event that is not this method's.
        """
        import torch

        from dpsweep.trainables.gradients.noise import SecretNoise
        from dpsweep.trainables.methods.adamix.noisy_gd import PublicSubspace

        for run in plan.runs:
            if not isinstance(run.event, Gaussian):
                raise ValueError(f"adamix cannot execute {run.event}")
        self._parts = parts_of(hparams)
        rate = self.peak_rate(hparams, plan, data.info.num_private)
        if rate is not None:  # of a clipping norm of 1, whatever that of a step is
            hparams = {**hparams, "optim.lr": rate, "optim.step_over_clip": True}
        super().prepare(data, hparams, plan, context)
        self._chosen_rate: float | None = None
        if self._parts.public_init:
            self._reference = self._public_solution()
            self._weight = self._reference.clone()
        if self._parts.projection:
            self._subspace = PublicSubspace(
                self._weight.shape[1],
                hparams["projection.fraction"],
                seed=public_seed(context.seed, context.trial, "projection"),
                device=context.device,
            )
        self._noise = SecretNoise(context.device)
        self._spent: torch.Tensor | None = None
        if hparams["adamix.private_report"]:
            self._spent = torch.zeros(len(self._private), dtype=torch.float64)
        self._num_measured = 0

    def _public_solution(self) -> torch.Tensor:
        """Return the weights that public records, or the names of the classes, give alone."""
        if self._hparams["init.kind"] == "text":
            names = self._features.raw.info.class_names
            return text_head(self._hparams, names, self._weight)
        return self._fitted()

    def _fitted(self, *, pull: float = 0.0) -> torch.Tensor:
        """Return the weights that public records lead to from those that there are now.

        Args:
            pull: Weight of the pull back to these.
        """
        epochs, rate = self._hparams["public.epochs"], self._hparams["public.lr"]
        if rate is None:
            rate = self._chosen_rate = best_rate(self._public, self._weight, epochs=epochs)
        return fit_few_shot(self._public, self._weight, epochs=epochs, lr=rate, pull=pull)

    @classmethod
    def public_metrics(cls) -> dict[str, str]:
        """Return the names of ``public_scores``, with a sentence on each."""
        return {"few_shot_lr": "Learning rate of the public solution, where public.lr is null."}

    def public_scores(self) -> dict[str, float]:
        """Return the rate that public records have chosen, if they have."""
        return {} if self._chosen_rate is None else {"few_shot_lr": self._chosen_rate}

    def _clip_and_public(self) -> tuple[float, torch.Tensor | None]:
        """Return the clipping norm of a step, and the public gradient where the step needs it."""
        from dpsweep.trainables.methods.adamix.noisy_gd import mean_gradient_clip, percentile_clip

        hparams, parts = self._hparams, self._parts
        max_grad_norm = float(hparams["clip.max_grad_norm"])
        if not (parts.adaptive_clip or parts.projection or parts.public_gradient):
            return max_grad_norm, None
        public, public_norms = self._public.gradient_sum(self._weight)
        # Tasks of older studies name no statistic.
        cap, factor = hparams["clip.cap"], hparams.get("clip.factor", 1.0)
        if parts.adaptive_clip and clip_statistic(hparams) == "mean":
            max_grad_norm = mean_gradient_clip(public, len(self._public), factor, cap)
        elif parts.adaptive_clip:
            max_grad_norm = percentile_clip(public_norms, hparams["clip.percentile"], cap, factor)
        return max_grad_norm, public.to(self._weight)

    def contributions(self, position: int) -> Contributions | None:
        """Return the clipped gradients of the prepared records, each alone; see ``Auditable``."""
        import torch

        bound, _ = self._clip_and_public()
        each = [record.gradient_sum(self._weight, bound)[0] for record in self._private.alone()]
        public = None
        if self._hparams["adamix.variant"] == "fully_private":
            public = self._public.gradient_sum(self._weight, bound)[0].flatten().cpu()
        rows = torch.stack([total.flatten().float().cpu() for total in each])
        return Contributions(rows, bound, public)

    def amplify(self, factor: float) -> None:
        """Do nothing: gradients are as large as the features of a record; see ``Auditable``."""

    def _step(self, position: int) -> None:
        from dpsweep.trainables.gradients.clipping import noise_bound

        event = self._plan.at(position)
        assert isinstance(event, Gaussian)
        hparams, parts = self._hparams, self._parts
        max_grad_norm, public = self._clip_and_public()
        total, norms = self._private.gradient_sum(self._weight, max_grad_norm)
        if hparams["adamix.variant"] == "fully_private":
            total += self._public.gradient_sum(self._weight, max_grad_norm)[0]
        bound = noise_bound(max_grad_norm, self._num_private)
        total = self._noise.release(
            total, event.noise_multiplier, bound, observer=self.noise_observer
        ).to(self._weight)
        self._measure(norms, max_grad_norm, event.noise_multiplier)
        if parts.projection and public is not None:
            total = self._subspace.project(total, public)
        first = first_steps(hparams, len(self._plan))
        if parts.public_gradient and public is not None and position >= first:
            total += public
        is_second = 0 < first <= position
        self._descend(total, max_grad_norm, "reuse.weight" if is_second else "regularize.weight")
        if position + 1 == first:
            self._reuse()

    def _reuse(self) -> None:
        """Begin the second phase of ``private_public_gd`` at the private model that there is now.

        Where no steps are left for it, it is gradient descent on the public records alone.
        """
        hparams = self._hparams
        self._reference = self._weight.clone()
        self._mean, self._num_averaged = None, 0
        if first_steps(hparams, len(self._plan)) == len(self._plan):
            self._weight = self._fitted(pull=hparams["reuse.weight"])

    def _descend(self, total: torch.Tensor, max_grad_norm: float, penalty: str) -> None:
        """Move along the noisy sum of gradients, and back towards the reference."""
        hparams = self._hparams
        rate = hparams["optim.lr"]
        if hparams["optim.step_over_clip"]:
            rate /= max_grad_norm
        # More than the whole way back would be no descent: it would swing ever wider.
        pull = min(rate * hparams[penalty], 1.0)
        self._weight = self._weight + pull * (self._reference - self._weight) - rate * total

    def state_dict(self) -> dict[str, Any]:
        """Return also the private model that the second phase of ``private_public_gd`` pulls to."""
        state = super().state_dict()
        if self._hparams["adamix.variant"] == TWO_PHASES:
            state["reference"] = self._reference.detach().to("cpu", copy=True)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; secret randomness goes on afresh."""
        super().load_state_dict(state)
        if "reference" in state:
            self._reference = state["reference"].to(self._weight.device, copy=True)

    def _measure(self, norms: torch.Tensor, max_grad_norm: float, noise_multiplier: float) -> None:
        """Add what each private record spends at one step; stays in this process."""
        if self._spent is None:
            return
        shares = norms.clamp(max=max_grad_norm).double().cpu() / max_grad_norm
        self._spent += (shares / noise_multiplier) ** 2
        self._num_measured += 1

    def private_report(self) -> dict[str, Any] | None:
        """Return per-instance privacy and membership inference; None unless it is asked for.

        Members are the private records that were trained on; the others those of the test part,
        or of the validation part where there is no test part. Only the steps of this process are
        covered: what records spend is never stored.

        Guarantees:
            None: the figures are private, and exact. See ``hooks.PrivateReport``.
        """
        if self._spent is None:
            return None
        part = "test" if len(self._features.raw.parts["test"][1]) else "validation"
        inputs, labels = part_tensors(self._part(part), part)
        others = type(self._private)(inputs, labels, device=self._context.device)
        figures = report(
            per_instance_mu(self._spent.numpy()),
            self._hparams["adamix.report_delta"],
            self._private.losses(self._released).cpu().numpy(),
            others.losses(self._released).cpu().numpy(),
            steps_covered=self._num_measured,
        )
        return {**figures, "others": part}
