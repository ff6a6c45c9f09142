"""Phases of DP-BiTFiT: which parameters of a network train when, and their gradient engines."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dpsweep.foundation.errors import BadInputError, Mistake, ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.losses import Loss
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.clipping import Factors, clip_factors
from dpsweep.trainables.gradients.layer_gradients import Views
from dpsweep.trainables.gradients.per_example import GradientEngine, make_engine
from dpsweep.trainables.gradients.sums import chunk_size
from dpsweep.trainables.methods.own_model_checks import (
    stand_in_loss,
    try_engine,
    try_forward,
)
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import head_layers
from dpsweep.trainables.networks.low_rank import add_adapters, add_biases, add_lora
from dpsweep.trainables.networks.own_models import HEAD_FIX, is_own, unended
from dpsweep.trainables.networks.text import is_language_model

_NO_HEAD = "this network does not say which layers are its classifier"
#: Phase in which everything trains; every other phase is named after what does.
_FULL = "full"


class Phases:
    """Phases of a trial: what trains at which step, and what computes its gradients.

    Attributes:
        border: Step at which the last phase begins.
        first: Phase of the first step.
        in_order: The phases that the trial has, one or two, in their order.
        now: Phase that was entered last.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        variant: str,
        added: Sequence[str],
        *,
        border: int,
        num_steps: int,
        holds_head: bool = False,
    ) -> None:
        """Choose the parameters of every phase.

        Args:
            model: The network, extended as the variant wants it; what trains in it is changed.
            variant: Value of ``bitfit.variant``.
            added: What ``extend`` returned.
            border: Step at which the last phase begins: 0 for all variants but ``two_phase``.
            num_steps: Steps of the trial, at least 1.
            holds_head: Whether the classifier stays as it is in the last of two phases.
        Raises:
            ModelError: The network does not say which layers are its classifier, or nothing is left
                that trains.
        """
        self._model, self._last, self.border = model, _last_phase(variant), border
        self.first = self.now = self.at(0)
        self.in_order = tuple(dict.fromkeys((self.first, self.at(num_steps - 1))))
        self._names = {
            phase: chosen_names(
                model, phase, added, has_head=not holds_head or border == 0 or phase == _FULL
            )
            for phase in self.in_order
        }

    def at(self, step: int) -> str:
        """Return the phase of a step."""
        return _FULL if step < self.border else self._last

    def enter(self, phase: str) -> list[torch.nn.Parameter]:
        """Let the parameters of a phase train, and no others; return them in order."""
        self.now = phase
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(name in self._names[phase])
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]

    def make_engine(
        self,
        phase: str,
        physical_batch: int,
        expected_batch: float,
        *,
        loss: Loss,
        factors: Factors = clip_factors,
        views: Views | None = None,
        precision: str = "float32",
    ) -> GradientEngine:
        """Enter a phase, and return what computes the clipped sums of its parameters.

        Args:
            phase: One of ``in_order``.
            physical_batch: Value of ``batch.physical``.
            expected_batch: Declared expected number of records in a batch.
            loss: From outputs and labels to the sum of the losses of the examples.
            factors: From norms and C to the factor of each example, at most C / norm.
            views: Of every record, where its gradient is a mean over some.
            precision: Value of ``model.precision``.
        Raises:
            ModelError: The gradients of single examples cannot be computed.
        """
        self.enter(phase)
        if phase != _FULL:
            device = next(self._model.parameters()).device
            chunk = chunk_size(expected_batch, physical_batch, device)
            return BiasEngine(
                self._model, chunk, loss=loss, factors=factors, views=views, precision=precision
            )
        return make_engine(
            self._model,
            physical_batch,
            loss=loss,
            factors=factors,
            expected_batch=expected_batch,
            views=views,
            precision=precision,
        )


def network_problems(
    name: str,
    variants: Sequence[str],
    info: DatasetInfo,
    options: Mapping[str, Any],
    *,
    holds_head: bool = False,
) -> list[Mistake]:
    """Return the variants that cannot train a network, as ``Method.preflight`` does.

    Args:
        name: Value of ``model.name``; nothing is said of one that cannot be built.
        variants: Values of ``bitfit.variant``.
        info: Shape of the records, number of classes.
        options: Further arguments of ``build_model``.
        holds_head: As of ``Phases``.
    """
    try:
        model = build_model(name, info, seed=0, is_initial=False, **options)
    except BadInputError:
        return []  # said of every method's networks
    reasons: dict[str, list[str]] = {}
    for variant in variants:
        try:
            _try(copy.deepcopy(model), variant, info, name, holds_head)
        except ModelError as error:
            reason = error.message + (f" ({error.because})" if error.because else "")
            reasons.setdefault(reason, []).append(variant)
    fix = "use another model.name, or another bitfit.variant"
    fix = HEAD_FIX if is_own(name) and any(_NO_HEAD in said for said in reasons) else fix
    return [
        Mistake("bitfit.variant", f"{', '.join(which)} cannot train {name}: {reason}", fix)
        for reason, which in reasons.items()
    ]


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


def _last_phase(variant: str) -> str:
    """Return the phase that a variant ends with, which says what trains."""
    return "bitfit" if variant in ("bitfit_add", "two_phase") else variant


def extend(model: torch.nn.Module, hparams: Mapping[str, Any], seed: int) -> list[str]:
    """Add the parts of a variant to a network; return the names of the layers that are new."""
    variant = hparams["bitfit.variant"]
    if variant == "bitfit_add":
        add_biases(model)
    if variant.startswith("lora"):
        return add_lora(model, hparams["lora.rank"], hparams["lora.alpha"], seed)
    if variant.startswith("adapter"):
        return add_adapters(model, hparams["adapter.width"], seed)
    return []


def chosen_names(
    model: torch.nn.Module, phase: str, added: Sequence[str], *, has_head: bool = True
) -> set[str]:
    """Return the names of the parameters that train in a phase.

    A parameter that the network froze stays frozen, but for the weights of BatchNorm. A language
    model has no classifier: its last layer trains in phase ``full`` alone. Without ``has_head``
    neither weights nor biases of the classifier train.

    Raises:
        ModelError: Another network does not say which layers are its classifier, or it has no bias
            besides it.
    """
    head = head_layers(model)
    if not head and not is_language_model(model):
        raise ModelError(_NO_HEAD, fix="use another model.name")
    whole = {*head, *added}
    names = set()
    for path, module in model.named_modules():
        if path in head and not has_head:
            continue
        for own, parameter in module.named_parameters(recurse=False):
            if not (parameter.requires_grad or isinstance(module, _BatchNorm)):
                continue
            is_small = _is_bias(own) and phase.endswith("bitfit")
            if phase == _FULL or path in whole or is_small:
                names.add(f"{path}.{own}" if path else own)
    if not names and not has_head:
        raise ModelError(
            "this network has no bias besides its classifier, which is held",
            fix="use another model",
        )
    return names


def _try(
    model: torch.nn.Module, variant: str, info: DatasetInfo, name: str, holds_head: bool
) -> None:
    """Make a variant's engines for a network that may be changed, and try that of few parameters.

    Of a user's own network, that of all parameters is tried too; others it runs forward alone.

    Raises:
        ModelError: It cannot be trained.
    """
    small = {"bitfit.variant": variant, "lora.rank": 1, "lora.alpha": 1.0, "adapter.width": 1}
    added = extend(model, small, seed=0)
    border = int(variant == "two_phase")
    phases = Phases(model, variant, added, border=border, num_steps=2, holds_head=holds_head)
    for phase in phases.in_order:
        engine = phases.make_engine(phase, 1, 1, loss=stand_in_loss)
        if phase == _FULL:
            with unended(name):
                (try_engine if is_own(name) else try_forward)(engine, info)
    if phase == _FULL:
        return  # its first gradients may need much memory: that is the trial's
    is_text = name.startswith("text/")
    x = torch.zeros(1, *info.input_shape, dtype=torch.int64 if is_text else torch.float32)
    try:
        with unended(name):
            engine.clipped_gradient_sum(x, torch.zeros(1, dtype=torch.int64), np.arange(0), 1.0)
    except ModelError as error:
        if not isinstance(error.__cause__, AttributeError):
            raise
        raise ModelError(
            "an attention reads the weights of a layer that is to be extended",
            because=str(error.__cause__),
            fix="use another model, or another bitfit.variant",
        ) from error
