"""The choice of what trains in sparse finetuning: masks of convolutions, and what trains whole."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsweep.foundation.errors import Mistake, ModelError
from dpsweep.foundation.words import counted
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.losses import Loss
from dpsweep.trainables.gradients.clipping import Factors
from dpsweep.trainables.gradients.layer_gradients import Views
from dpsweep.trainables.gradients.per_example import GradientEngine, make_engine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import (
    MaskedWeight,
    Scope,
    SparseValues,
    magnitude_mask,
)
from dpsweep.trainables.gradients.sums import chunk_size
from dpsweep.trainables.methods.own_model_checks import (
    check_gradients,
    stand_in_loss,
    try_engine,
    try_forward,
)
from dpsweep.trainables.methods.sparse.knobs import KINDS, MASKED, WHOLE
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import head_layers, layer_kinds, own_parameters
from dpsweep.trainables.networks.own_models import HEAD_FIX, is_own, unended


class Choice:
    """Choice of what trains of a network: some entries of convolutions, and whole parameters.

    Attributes:
        masks: The entries of each convolution.
        values: Their values, which train.
        parameters: All that trains: these values first, then the whole parameters.
    """

    def __init__(self, model: nn.Module, masks: Sequence[MaskedWeight]) -> None:
        """Take values of their own for masked weights.

        Args:
            model: Network in which the whole parameters that train require gradients.
            masks: What ``choose_parameters`` returned, or a choice made before.
        """
        self._model, self.masks, self.values = model, tuple(masks), SparseValues(masks)
        whole = [p for p in model.parameters() if p.requires_grad]
        self.parameters = [*self.values.parameters, *whole]

    def layers(self) -> list[str]:
        """Return the name of the layer of each of ``parameters``."""
        names = {id(p): name.rpartition(".")[0] for name, p in self._model.named_parameters()}
        names |= {id(p): mask.name for p, mask in zip(self.values.parameters, self.masks)}
        return [names[id(parameter)] for parameter in self.parameters]

    def kinds(self) -> list[str]:
        """Return the kind of each of ``parameters``: a key of ``networks.layers.KINDS``."""
        kinds = layer_kinds(self._model)
        return [kinds[layer] for layer in self.layers()]

    def make_engine(
        self,
        physical_batch: int,
        expected_batch: float,
        *,
        loss: Loss,
        factors: Factors,
        views: Views | None,
        precision: str,
        is_whole: bool,
    ) -> GradientEngine:
        """Return what computes the clipped sums of ``parameters``.

        Args:
            physical_batch: Value of ``batch.physical``.
            expected_batch: Declared expected number of records in a batch.
            loss: From outputs and labels to the sum of the losses of the examples.
            factors: From norms and C to the factor of each example, at most C / norm.
            views: Of every record, where its gradient is a mean over some.
            precision: Value of ``model.precision``.
            is_whole: Whether the whole network is meant to train.
        Raises:
            ModelError: The gradients of single examples cannot be computed.
        """
        if is_whole or all(p.requires_grad for p in self._model.parameters()):
            return make_engine(
                self._model,
                physical_batch,
                loss=loss,
                factors=factors,
                expected_batch=expected_batch,
                views=views,
                precision=precision,
            )
        device = next(self._model.parameters()).device
        chunk = chunk_size(expected_batch, physical_batch, device)
        return SparseEngine(
            self._model,
            self.masks,
            chunk,
            loss=loss,
            factors=factors,
            views=views,
            precision=precision,
        )

    def indices(self) -> dict[str, torch.Tensor]:
        """Return the chosen entries of each convolution: ``MaskedWeight.index`` by its name."""
        return {mask.name: mask.index for mask in self.masks}

    def is_of(self, indices: Mapping[str, torch.Tensor]) -> bool:
        """Say whether these are the chosen entries."""
        own = self.indices()
        return own.keys() == indices.keys() and all(torch.equal(own[k], indices[k]) for k in own)

    def replaced(self, indices: Mapping[str, torch.Tensor]) -> Choice:
        """Return the choice of other entries of the same network."""
        masks = [MaskedWeight(n, _conv(self._model, n), index) for n, index in indices.items()]
        return Choice(self._model, masks)


def choice_problems(
    name: str,
    trains: Sequence[str],
    density: float,
    scopes: Sequence[Scope],
    info: DatasetInfo,
    options: Mapping[str, Any],
) -> list[Mistake]:
    """Try what each ``sparse.train`` would do; weights do not matter, only their number.

    Args:
        name: Value of ``model.name``.
        trains: Values of ``sparse.train``.
        density: The smallest value of ``sparse.density``.
        scopes: Values of ``sparse.scope``.
        info: Shape of the records, number of classes.
        options: Further arguments of ``build_model``.
    Returns:
        As ``Method.preflight``.
    """
    model = build_model(name, info, seed=0, is_initial=False, **options)
    if is_own(name) and not head_layers(model) and set(trains) - set(WHOLE):
        wrong = f"{name} does not say which layers are its classifier"
        return [Mistake("model.name", wrong, HEAD_FIX)]
    problems = []
    for train in trains:
        for scope in scopes:
            try:
                network = copy.deepcopy(model)
                masks = choose_parameters(network, train, density, scope)
                if train not in WHOLE:
                    engine = SparseEngine(network, masks, 1, loss=stand_in_loss)
                    with unended(name):
                        (try_engine if is_own(name) else try_forward)(engine, info)
                else:
                    with unended(name):
                        check_gradients(network, name, info)
            except ModelError as error:
                key = "sparse.density" if "density" in error.message else "sparse.train"
                wrong = f"{train} of {name}: {error.message}"
                problems.append(Mistake(key, wrong, error.fix or "use another model"))
    return list(dict.fromkeys(problems))


def choose_parameters(
    model: torch.nn.Module, train: str, density: float, scope: Scope
) -> list[MaskedWeight]:
    """Let what trains require gradients, and nothing else; return the masks of convolutions.

    Weights that the network froze before (those of a layer that normalises images) stay frozen,
    except the weights and biases of BatchNorm, which train with the norms.

    Args:
        model: Network with its public initial weights; what requires gradients is changed.
        train: Value of ``sparse.train``.
        density: Share of the convolution weights outside of the classifier, in (0, 1].
        scope: ``global`` or ``layer``.
    Returns:
        Masks of different convolutions, none without conv; their weights require no gradients.
    Raises:
        ModelError: There is no convolution to choose from, or the density chooses nothing.
    """
    kinds, wanted = layer_kinds(model), KINDS[train]
    among = []
    for path, layer, name, parameter in own_parameters(model):
        kind: str = kinds[path]
        if kind == "conv" and name != "weight":
            kind = "other"  # their biases are no convolution weights
        can_train = parameter.requires_grad or isinstance(layer, _BatchNorm)
        parameter.requires_grad_(can_train and kind in wanted)
        if kind == "conv" and can_train:
            among.append(path)
    if train not in MASKED:
        return []
    if not among:
        raise ModelError(
            "there are no convolution weights to choose from",
            fix="use a network with convolutions, or sparse.train: cls or cls+norm",
        )
    masks = magnitude_mask(model, density, scope=scope, among=among)
    if not masks:
        sizes = [_conv(model, path).weight.numel() for path in among]
        most = max(sizes) if scope == "layer" else sum(sizes)
        of = "the largest convolution" if scope == "layer" else "all convolutions"
        raise ModelError(
            f"a density of {density:g} chooses none of {counted(most, 'weight')} of {of}",
            fix=f"sparse.density >= {1 / most:.2g}",
        )
    for path in among:
        _conv(model, path).weight.requires_grad_(False)
    return masks


def _conv(model: torch.nn.Module, path: str) -> torch.nn.Conv2d:
    layer = model.get_submodule(path)
    assert isinstance(layer, nn.Conv2d)
    return layer
