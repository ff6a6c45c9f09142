"""DP-BiTFiT: private training of the biases and the classifier of a trained network.

Bu et al. 2024, "Differentially private bias-term fine-tuning of foundation models"
(https://arxiv.org/abs/2210.00036), with what the paper compares it to. Which parameters train
changes neither the plan nor its epsilon. Loads no torch until ``prepare`` or ``preflight``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import Mistake
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.extras.bands import without_bands
from dpsweep.trainables.methods.model_knobs import networks_to_try, random_notes
from dpsweep.trainables.methods.optim import build_optimizer

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo
    from dpsweep.trainables.gradients.per_example import GradientEngine

HEAD_IN_SECOND = "bitfit.head_in_second_phase"
BITFIT_HYPERPARAMETERS = (
    Hyperparameter(
        "bitfit.variant",
        "str",
        "bitfit",
        "What trains besides the classifier: biases (bitfit), also new ones (bitfit_add), "
        "everything and then biases (two_phase), nothing (last_layer), everything (full), low-rank "
        "updates or adapters, with biases or without.",
        choices=(
            "bitfit",
            "bitfit_add",
            "two_phase",
            "last_layer",
            "full",
            "lora",
            "adapter",
            "lora+bitfit",
            "adapter+bitfit",
        ),
    ),
    Hyperparameter(
        "bitfit.full_epochs",
        "float",
        1.0,
        "Expected passes of the first phase of two_phase, which trains everything.",
        low=0,
        open_low=True,
    ),
    Hyperparameter(
        HEAD_IN_SECOND,
        "bool",
        True,
        "Whether the classifier goes on training in the second phase of two_phase; false is the "
        "paper's X+BiTFiT, which holds it there.",
    ),
    Hyperparameter(
        "bitfit.full_lr",
        "float",
        None,
        "Learning rate of the first phase of two_phase; where absent a tenth of optim.lr.",
        low=0,
        open_low=True,
        optional=True,
    ),
    Hyperparameter("lora.rank", "int", 8, "Rank of the low-rank updates.", low=1),
    Hyperparameter(
        "lora.alpha",
        "float",
        8.0,
        "Scale of the low-rank updates times lora.rank.",
        low=0,
        open_low=True,
    ),
    Hyperparameter("adapter.width", "int", 16, "Outputs of an adapter's first layer.", low=1),
)


class BiTFiT(DPSGD):
    """DP-SGD on biases and the classifier, or on another small part of a network.

    ``bitfit.variant`` says what trains, always with the classifier (language models have none):

    - ``bitfit``: the parameters whose own name is ``bias``, those of frozen BatchNorm included.
    - ``bitfit_add``: the same, after layers without bias were given one of zeros.
    - ``two_phase``: everything for ``bitfit.full_epochs`` expected passes (at least one step, the
      whole plan if that is shorter), then ``bitfit`` with a new optimizer; one plan and one ledger.
      With ``bitfit.head_in_second_phase: false`` the classifier is held in the second phase, as in
      the paper's X+BiTFiT (its appendix E.3).
    - ``last_layer``: the classifier alone. ``full``: everything.
    - ``lora``, ``adapter``: the parts of ``dpsweep.trainables.networks.low_rank``; ``+bitfit``: and
      biases.

    Learning rates: ``bitfit.full_lr`` at every step of the first phase of ``two_phase``, where
    absent a tenth of ``optim.lr`` (the paper finds that biases want about ten times the rate, its
    appendix E.4); ``optim.*``, warm-up and decay included, over the steps that follow. All other
    variants, ``full`` too, follow ``optim.*`` from the first step to the last.

    Guarantees:
        Those of ``DPSGD``: its plan, its events, its noise, for whatever trains. What trains when
        is a function of hyperparameters, declared numbers and the network's definition. Frozen
        parameters are in no norm that is clipped, and stay as they are to the last bit, as the
        statistics of BatchNorm always do. With ``clip.rule: automatic`` an example adds less than
        C too, so that its noise is the same.

        Not covered: the initial weights, which must be public.
    """

    name: ClassVar[str] = "bitfit"
    _plain_rates: ClassVar[tuple[str, ...]] = ("bitfit.full_lr",)
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        without_bands(DPSGD.hyperparameters) + BITFIT_HYPERPARAMETERS
    )

    @classmethod
    def trains(cls, name: str, parameter: torch.nn.Parameter, *, in_head: bool) -> bool:
        """Say what variant ``bitfit`` trains: biases and the classifier."""
        return in_head or name.rpartition(".")[2] == "bias"

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return what cannot work; networks are built, and tried on a random record (seconds)."""
        from dpsweep.trainables.methods.bitfit.phases import network_problems

        problems = super().preflight(values, info)
        variants = cls._possible(values, "bitfit.variant")
        holds = False in cls._possible(values, HEAD_IN_SECOND)
        if "two_phase" in variants:
            problems += cls._phase_problems(values)
        elif holds:
            wrong = "false has no meaning without bitfit.variant: two_phase"
            problems.append(Mistake(HEAD_IN_SECOND, wrong, "leave it out"))
        for name in cls._possible(values, "model.name"):
            for front in networks_to_try(lambda knob: cls._possible(values, knob)):
                problems += network_problems(name, variants, info, front, holds_head=holds)
        return problems

    @classmethod
    def _check_gradients(cls, model: torch.nn.Module, name: str, info: DatasetInfo) -> None:
        """Nothing here: ``preflight`` tries each variant's own engine."""

    @classmethod
    def notes(cls, values: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return what works, but hardly as it is meant: random weights that never train."""
        whole = ("full", "two_phase")
        possible = partial(cls._possible, values)
        return super().notes(values) + random_notes(possible, "bitfit.variant", whole=whole)

    @classmethod
    def _phase_problems(cls, values: Mapping[str, Sequence[Any]]) -> list[Mistake]:
        """Say if no configuration has a step left for the second phase."""
        shortest = min(cls._possible(values, "bitfit.full_epochs"))
        longest = max(cls._possible(values, "train.epochs"))
        if None not in cls._possible(values, "train.max_steps") or shortest < longest:
            return []
        wrong = f"{shortest:g} leaves two_phase no second phase: train.epochs is {longest:g}"
        return [Mistake("bitfit.full_epochs", wrong, f"below {longest:g}, or bitfit.variant: full")]

    @classmethod
    def _rates(cls, hparams: Mapping[str, Any], num_steps: int, sample_rate: float) -> np.ndarray:
        """Return those of both phases, one after the other."""
        border = cls._border(hparams, num_steps, sample_rate)
        rest = super()._rates(hparams, num_steps - border, sample_rate)
        if not border:
            return rest
        full_lr = hparams["bitfit.full_lr"]
        first = np.full(border, hparams["optim.lr"] / 10 if full_lr is None else full_lr)
        return np.concatenate([first, rest])

    @classmethod
    def _border(cls, hparams: Mapping[str, Any], num_steps: int, sample_rate: float) -> int:
        """Return the number of steps before the last phase; 0 where there is one phase."""
        if hparams["bitfit.variant"] != "two_phase":
            return 0
        return min(max(1, round(hparams["bitfit.full_epochs"] / sample_rate)), num_steps)

    def _build_model(self, *, is_initial: bool = True) -> torch.nn.Module:
        from dpsweep.trainables.methods.bitfit.phases import extend

        model = super()._build_model(is_initial=is_initial)
        seed = public_seed(self._context.seed, self._context.trial, "low rank")
        self._added = extend(model, self._hparams, seed)
        return model

    def _trainable(self) -> list[torch.nn.Parameter]:
        """Choose what trains in each phase, and enter the first."""
        from dpsweep.trainables.methods.bitfit.phases import Phases

        variant = self._hparams["bitfit.variant"]
        border = self._border(self._hparams, self._num_steps, self._sample_rate)
        self._phases = Phases(
            self._model,
            variant,
            self._added,
            border=border,
            num_steps=self._num_steps,
            holds_head=not self._hparams.get(HEAD_IN_SECOND, True),  # older records have none
        )
        return self._phases.enter(self._phases.first)

    def _enter(self, phase: str) -> None:
        """Train the parameters of a phase from here on, with a new optimizer."""
        for parameter in self._parameters:
            parameter.grad = None
        self._parameters = self._phases.enter(phase)
        self._optimizer = build_optimizer(self._groups(), self._hparams)
        self._engine = self._engines[phase]

    def _make_engine(self) -> GradientEngine:
        """Make the engines of all phases now: what cannot work is known before the first step."""
        first = self._phases.first
        self._engines = {}
        # In this order: Opacus copies layers, which must not carry another engine's hooks.
        for phase in self._phases.in_order:
            self._engines[phase] = self._phases.make_engine(
                phase,
                int(self._hparams["batch.physical"]),
                factors=self._factors,
                **self._engine_options,
            )
            if phase != first and self._context.is_run:  # checks itself, on shapes alone
                none = np.arange(0)
                self._engines[phase].clipped_gradient_sum(self._inputs, self._labels, none, 1.0)
        self._phases.enter(first)
        return self._engines[first]

    def _take_step(self, step: int) -> None:
        self._reach(step)
        super()._take_step(step)

    def _reach(self, step: int) -> None:
        phase = self._phases.at(step)
        if phase != self._phases.now:
            self._enter(phase)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, in the phase that its optimizer belongs to."""
        self._enter(self._phases.at(max(int(state["position"]) - 1, 0)))
        super().load_state_dict(state)
