"""DP-BiTFiT: private training of the biases and the classifier of a trained network.

Bu et al. 2024, "Differentially private bias-term fine-tuning of foundation models"
(https://arxiv.org/abs/2210.00036), with what the paper compares it to. Which parameters train
changes neither the plan nor its epsilon. Loads no torch until ``prepare`` or ``preflight``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.privacy.events import Plan
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.hyperparameters import CLIP_RULE
from dpsweep.trainables.networks.own_models import HEAD_FIX, is_own
from dpsweep.trainables.networks.pretrained.weights import PUBLISHED

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.data.losses import Loss
    from dpsweep.trainables.gradients.per_example import GradientEngine

_NO_HEAD = "this network does not say which layers are its classifier"
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
        "Expected passes of the first phase of two_phase, which trains everything. In the second "
        "the classifier trains too; the paper's X+BiTFiT holds it there.",
        low=0,
        open_low=True,
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
    CLIP_RULE,
)

#: Phase in which everything trains; every other phase is named after what does.
_FULL = "full"


class BiTFiT(DPSGD):
    """DP-SGD on biases and the classifier, or on another small part of a network.

    ``bitfit.variant`` says what trains, always with the classifier (language models have none):

    - ``bitfit``: the parameters whose own name is ``bias``, those of frozen BatchNorm included.
    - ``bitfit_add``: the same, after layers without bias were given one of zeros.
    - ``two_phase``: everything for ``bitfit.full_epochs`` expected passes (at least one step, the
      whole plan if that is shorter), then ``bitfit`` with a new optimizer; one plan and one ledger.
      Unlike the paper's X+BiTFiT (its appendix E.3), the classifier goes on training.
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
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        DPSGD.hyperparameters + BITFIT_HYPERPARAMETERS
    )

    @classmethod
    def trains(cls, name: str, parameter: torch.nn.Parameter, *, in_head: bool) -> bool:
        """Say what variant ``bitfit`` trains: biases and the classifier."""
        return in_head or _is_bias(name)

    @classmethod
    def preflight(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo
    ) -> list[tuple[str, str, str]]:
        """Return what cannot work; networks are built, and tried on a random record (seconds)."""
        from dpsweep.trainables.networks.build import build_model

        problems = super().preflight(values, info)
        variants = cls._possible(values, "bitfit.variant")
        if "two_phase" in variants:
            problems += cls._phase_problems(values)
        starts = {c for c in cls._possible(values, "model.checkpoint") if c == PUBLISHED} or {None}
        for name, norm, size, start, normalize in product(
            cls._possible(values, "model.name"),
            cls._possible(values, "model.norm"),
            cls._possible(values, "model.image_size"),
            sorted(starts, key=str),
            cls._possible(values, "model.normalize"),
        ):
            options = {"norm": norm, "image_size": size, "checkpoint": start, "is_initial": False}
            if start != PUBLISHED:
                options["normalize"] = normalize
            try:
                model = build_model(name, info, seed=0, **options)
            except BadInputError:
                continue  # said above
            reasons: dict[str, list[str]] = {}
            for variant in variants:
                try:
                    _try(copy.deepcopy(model), variant, info, name)
                except ModelError as error:
                    reason = error.message + (f" ({error.because})" if error.because else "")
                    reasons.setdefault(reason, []).append(variant)
            fix = "use another model.name, or another bitfit.variant"
            fix = HEAD_FIX if is_own(name) and any(_NO_HEAD in said for said in reasons) else fix
            problems += [
                ("bitfit.variant", f"{', '.join(which)} cannot train {name}: {reason}", fix)
                for reason, which in reasons.items()
            ]
        return problems

    @classmethod
    def _check_gradients(cls, model: torch.nn.Module, info: DatasetInfo) -> None:
        """Nothing here: ``preflight`` tries each variant's own engine."""

    @classmethod
    def notes(cls, values: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return what works, but hardly as it is meant: random weights that never train."""
        whole = ("full", "two_phase")
        random = cls._notes_on_random_weights(values, "bitfit.variant", whole=whole)
        return super().notes(values) + random

    @classmethod
    def _phase_problems(cls, values: Mapping[str, Sequence[Any]]) -> list[tuple[str, str, str]]:
        """Say if no configuration has a step left for the second phase."""
        shortest = min(cls._possible(values, "bitfit.full_epochs"))
        longest = max(cls._possible(values, "train.epochs"))
        if None not in cls._possible(values, "train.max_steps") or shortest < longest:
            return []
        wrong = f"{shortest:g} leaves two_phase no second phase: train.epochs is {longest:g}"
        return [("bitfit.full_epochs", wrong, f"below {longest:g}, or bitfit.variant: full")]

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """See ``DPSGD``; and set the learning rates of both phases.

        Raises:
            ModelError: A parameter that is to train has no gradient per example.
        """
        from dpsweep.trainables.methods.optim import learning_rates

        super().prepare(data, hparams, plan, context)
        if hparams["bitfit.variant"] == "two_phase":
            full_lr = hparams["bitfit.full_lr"]
            first = np.full(self._border, hparams["optim.lr"] / 10 if full_lr is None else full_lr)
            rest = learning_rates(hparams, self._num_steps - self._border)
            self._learning_rates = np.concatenate([first, rest])

    def _build_model(self, *, is_initial: bool = True) -> torch.nn.Module:
        model = super()._build_model(is_initial=is_initial)
        seed = public_seed(self._context.seed, self._context.trial, "low rank")
        self._added = _extend(model, self._hparams, seed)
        return model

    def _trainable(self) -> list[torch.nn.Parameter]:
        """Choose what trains in each phase, and enter the first."""
        variant = self._hparams["bitfit.variant"]
        self._last_phase = _last_phase(variant)
        self._border = 0  # step at which the last phase begins
        if variant == "two_phase":
            steps = max(1, round(self._hparams["bitfit.full_epochs"] / self._sample_rate))
            self._border = min(steps, self._num_steps)
        phases = {self._phase_at(0), self._phase_at(self._num_steps - 1)}
        self._chosen = {phase: _chosen(self._model, phase, self._added) for phase in phases}
        return self._free(self._phase_at(0))

    def _phase_at(self, step: int) -> str:
        return _FULL if step < self._border else self._last_phase

    def _free(self, phase: str) -> list[torch.nn.Parameter]:
        """Let the parameters of a phase train, and no others; return them in order."""
        self._phase = phase
        return _free(self._model, self._chosen[phase])

    def _enter(self, phase: str) -> None:
        """Train the parameters of a phase from here on, with a new optimizer."""
        from dpsweep.trainables.methods.optim import build_optimizer

        for parameter in self._parameters:
            parameter.grad = None
        self._parameters = self._free(phase)
        self._optimizer = build_optimizer(self._groups(), self._hparams)
        self._engine = self._engines[phase]

    def _make_engine(self) -> GradientEngine:
        """Make the engines of all phases now: what cannot work is known before the first step."""
        first, last = self._phase_at(0), self._phase_at(self._num_steps - 1)
        self._engines = {}
        # In this order: Opacus copies layers, which must not carry another engine's hooks.
        for phase in dict.fromkeys((first, last)):
            self._free(phase)
            self._engines[phase] = _engine(
                self._model,
                phase,
                int(self._hparams["batch.physical"]),
                self._expected_batch,
                loss=self._loss,
                rule=self._hparams["clip.rule"],
            )
            if phase != first:  # checks itself, on shapes alone: no row is read
                none = np.arange(0)
                self._engines[phase].clipped_gradient_sum(self._inputs, self._labels, none, 1.0)
        self._free(first)
        return self._engines[first]

    def _take_step(self, step: int) -> None:
        if self._phase_at(step) != self._phase:
            self._enter(self._phase_at(step))
        super()._take_step(step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, in the phase that its optimizer belongs to."""
        self._enter(self._phase_at(max(int(state["position"]) - 1, 0)))
        super().load_state_dict(state)


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


def _last_phase(variant: str) -> str:
    """Return the phase that a variant ends with, which says what trains."""
    return "bitfit" if variant in ("bitfit_add", "two_phase") else variant


def _extend(model: torch.nn.Module, hparams: Mapping[str, Any], seed: int) -> list[str]:
    """Add the parts of a variant to a network; return the names of the layers that are new."""
    from dpsweep.trainables.networks.low_rank import add_adapters, add_biases, add_lora

    variant = hparams["bitfit.variant"]
    if variant == "bitfit_add":
        add_biases(model)
    if variant.startswith("lora"):
        return add_lora(model, hparams["lora.rank"], hparams["lora.alpha"], seed)
    if variant.startswith("adapter"):
        return add_adapters(model, hparams["adapter.width"], seed)
    return []


def _chosen(model: torch.nn.Module, phase: str, added: Sequence[str]) -> set[str]:
    """Return the names of the parameters that train in a phase.

    A parameter that the network froze stays frozen, but for the weights of BatchNorm. A language
    model has no classifier: its last layer trains in phase ``full`` alone.

    Raises:
        ModelError: Another network does not say which layers are its classifier.
    """
    from torch.nn.modules.batchnorm import _BatchNorm

    from dpsweep.trainables.networks.layers import head_layers
    from dpsweep.trainables.networks.text import is_language_model

    head = head_layers(model)
    if not head and not is_language_model(model):
        raise ModelError(
            _NO_HEAD,
            fix="use another model.name",
        )
    whole = {*head, *added}
    names = set()
    for path, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            if not (parameter.requires_grad or isinstance(module, _BatchNorm)):
                continue
            is_small = _is_bias(own) and phase.endswith("bitfit")
            if phase == _FULL or path in whole or is_small:
                names.add(f"{path}.{own}" if path else own)
    return names


def _free(model: torch.nn.Module, names: set[str]) -> list[torch.nn.Parameter]:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _engine(
    model: torch.nn.Module,
    phase: str,
    physical_batch: int,
    expected_batch: float,
    *,
    loss: Loss,
    rule: str,
) -> GradientEngine:
    """Return what computes the clipped sums of the parameters that require a gradient."""
    from dpsweep.trainables.gradients.bias_engine import BiasEngine
    from dpsweep.trainables.gradients.clipping import clip_rule_factors
    from dpsweep.trainables.gradients.per_example import make_engine
    from dpsweep.trainables.gradients.sums import chunk_size

    factors = clip_rule_factors(rule)
    if phase != _FULL:
        device = next(model.parameters()).device
        chunk = chunk_size(expected_batch, physical_batch, device)
        return BiasEngine(model, chunk, loss=loss, factors=factors)
    return make_engine(
        model, physical_batch, loss=loss, factors=factors, expected_batch=expected_batch
    )


def _try(model: torch.nn.Module, variant: str, info: DatasetInfo, name: str) -> None:
    """Make a variant's engines for a network that may be changed, and try that of few parameters.

    Of a user's own network, that of all parameters is tried too.

    Raises:
        ModelError: It cannot be trained.
    """
    import torch

    from dpsweep.trainables.methods.own_model_checks import stand_in_loss, try_engine

    small = {"bitfit.variant": variant, "lora.rank": 1, "lora.alpha": 1.0, "adapter.width": 1}
    added = _extend(model, small, seed=0)
    phases = [_FULL] * (variant == "two_phase") + [_last_phase(variant)]
    chosen = {phase: _chosen(model, phase, added) for phase in phases}
    for phase in phases:
        _free(model, chosen[phase])
        engine = _engine(model, phase, 1, 1, loss=stand_in_loss, rule="abadi")
        if phase == _FULL and is_own(name):
            try_engine(engine, info)
    if phase == _FULL:
        return  # its first gradients may need much memory: that is the trial's
    is_text = name.startswith("text/")
    x = torch.zeros(1, *info.input_shape, dtype=torch.int64 if is_text else torch.float32)
    try:
        engine.clipped_gradient_sum(x, torch.zeros(1, dtype=torch.int64), np.arange(0), 1.0)
    except AttributeError as error:
        raise ModelError(
            "an attention reads the weights of a layer that is to be extended", because=str(error)
        ) from error
