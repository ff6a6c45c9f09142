"""Sparse finetuning: few parameters of a public network are trained on private data.

Luo et al. 2021, "Scalable Differential Privacy with Sparse Network Finetuning" (CVPR), with its
baselines. Loads no torch until ``prepare``, so that plans can be made and checked without it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.foundation.errors import ModelError
from dpsweep.foundation.words import counted
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.hyperparameters import CLIP_RULE
from dpsweep.trainables.networks.own_models import HEAD_FIX, is_own
from dpsweep.trainables.networks.pretrained.weights import PUBLISHED

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo
    from dpsweep.trainables.gradients.per_example import GradientEngine
    from dpsweep.trainables.gradients.sparse_mask import MaskedWeight, Scope

#: Kinds of parameters that train under each ``sparse.train`` (``layer_noise.KINDS``).
_KINDS: Mapping[str, frozenset[str]] = {
    "cls": frozenset({"cls"}),
    "cls+norm": frozenset({"cls", "norm"}),
    "cls+conv": frozenset({"cls", "conv"}),
    "all": frozenset({"cls", "norm", "conv"}),
    "full": frozenset({"cls", "norm", "conv", "other"}),
    "scratch": frozenset({"cls", "norm", "conv", "other"}),
}
_MASKED = ("cls+conv", "all")
_WHOLE = ("full", "scratch")

SPARSE_HYPERPARAMETERS = (
    Hyperparameter(
        "sparse.train",
        "str",
        "all",
        "What trains: cls (the classifier), norm (weights and biases of normalisation layers), "
        "conv (the chosen convolution weights); all: these three; full: the whole network; "
        "scratch: the whole network from random weights, model.checkpoint is then ignored.",
        choices=tuple(_KINDS),
    ),
    Hyperparameter(
        "sparse.density",
        "float",
        0.01,
        "Share of the convolution weights that train, those of largest magnitude in the initial "
        "network; no effect on epsilon, and no meaning without conv.",
        low=0,
        high=1,
        open_low=True,
    ),
    Hyperparameter(
        "sparse.scope",
        "str",
        "global",
        "Where they are the largest: over all convolutions together, or in each layer.",
        choices=("global", "layer"),
    ),
    Hyperparameter(
        "sparse.body_lr",
        "float",
        None,
        "Peak learning rate of everything but the classifier; where absent, optim.lr.",
        low=0,
        open_low=True,
        optional=True,
    ),
    CLIP_RULE,
)


class SparseFinetuning(DPSGD):
    """DP-SGD on the classifier, norms and the largest convolution weights of a public network.

    Luo et al. 2021, section 4.4: procedure 1 is ``cls+norm``, procedure 2 is ``all``; the others
    are the baselines of their tables. The chosen convolution weights are those of largest
    magnitude in the initial network. Everything else keeps its bits: it gets no gradient and no
    noise, and is no part of the norm that is clipped. Biases of convolutions, linear layers within
    the network and parameters beside layers train under ``full`` and ``scratch`` alone. With
    ``model.norm: frozen`` the weights and biases of BatchNorm train as those of any norm; its
    statistics stay as they are, also under ``full``. Under ``scratch`` they are then 0 and 1, so
    that BatchNorm normalises nothing: use ``group`` for it.

    Guarantees:
        Those of DP-SGD: position t releases a noisy sum of clipped gradients by what trains, and
        nothing else. Which entries train is a function of the initial weights and hyperparameters.
        The plan, and with it epsilon, is the same for every ``sparse.*``. Not covered: initial
        weights that come from private records.
    """

    name: ClassVar[str] = "sparse"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        SPARSE_HYPERPARAMETERS + DPSGD.hyperparameters
    )

    @classmethod
    def preflight(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo
    ) -> list[tuple[str, str, str]]:
        """Return also the networks without convolutions to choose from, and empty choices."""
        problems = super().preflight(values, info)
        trains = [kind for kind in cls._possible(values, "sparse.train") if kind != "cls"]
        if problems:
            return problems
        for name in cls._possible(values, "model.name"):
            if is_own(name):  # all of them are tried, cls too
                trains = list(cls._possible(values, "sparse.train"))
            if trains:
                problems += cls._choice_problems(name, trains, values, info)
        return problems

    @classmethod
    def _check_gradients(cls, model: torch.nn.Module, info: DatasetInfo) -> None:
        """Nothing here: ``preflight`` tries the engine of each ``sparse.train``."""

    @classmethod
    def notes(cls, values: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return what works, but hardly as it is meant: random weights that never train."""
        random = cls._notes_on_random_weights(values, "sparse.train", whole=_WHOLE)
        return super().notes(values) + random

    @classmethod
    def _choice_problems(
        cls,
        name: str,
        trains: Sequence[str],
        values: Mapping[str, Sequence[Any]],
        info: DatasetInfo,
    ) -> list[tuple[str, str, str]]:
        """Try what each ``sparse.train`` would do; weights do not matter, only their number."""
        from dpsweep.trainables.gradients.sparse_engine import SparseEngine
        from dpsweep.trainables.methods.own_model_checks import (
            check_gradients,
            stand_in_loss,
            try_engine,
        )
        from dpsweep.trainables.networks.build import build_model
        from dpsweep.trainables.networks.layers import head_layers

        norms, sizes, starts, normalizes = (
            cls._possible(values, f"model.{key}")
            for key in ("norm", "image_size", "checkpoint", "normalize")
        )
        model = build_model(
            name,
            info,
            norm=norms[0],
            seed=0,
            checkpoint=starts[0],
            image_size=sizes[0],
            normalize=None if starts[0] == PUBLISHED else normalizes[0],
            is_initial=False,
        )
        if is_own(name) and not head_layers(model) and set(trains) - set(_WHOLE):
            wrong = f"{name} does not say which layers are its classifier"
            return [("model.name", wrong, HEAD_FIX)]
        density = min(cls._possible(values, "sparse.density"))
        problems = []
        for train in trains:
            for scope in cls._possible(values, "sparse.scope"):
                try:
                    network = copy.deepcopy(model)
                    masks = choose_parameters(network, train, density, scope)
                    if train not in _WHOLE:
                        engine = SparseEngine(network, masks, 1, loss=stand_in_loss)
                        if is_own(name):
                            try_engine(engine, info)
                    elif is_own(name):
                        check_gradients(network, info)
                except ModelError as error:
                    key = "sparse.density" if "density" in error.message else "sparse.train"
                    wrong = f"{train} of {name}: {error.message}"
                    problems.append((key, wrong, error.fix or "use another model"))
        return list(dict.fromkeys(problems))

    def _build_model(self, *, is_initial: bool = True) -> torch.nn.Module:
        """Return the network; ``scratch`` reads no initial weights."""
        is_scratch = self._hparams["sparse.train"] == "scratch"
        return super()._build_model(is_initial=is_initial and not is_scratch)

    def _trainable(self) -> list[torch.nn.Parameter]:
        """Choose by the initial weights: those in the model now; later states come after this."""
        masks = choose_parameters(
            self._model,
            self._hparams["sparse.train"],
            self._hparams["sparse.density"],
            self._hparams["sparse.scope"],
        )
        return self._with_masks(masks)

    def _with_masks(self, masks: list[MaskedWeight]) -> list[torch.nn.Parameter]:
        """Take values of their own for masked weights; return all that trains, these first."""
        from dpsweep.trainables.gradients.sparse_mask import SparseValues

        self._masks = masks
        self._values = SparseValues(masks)
        whole = [p for p in self._model.parameters() if p.requires_grad]
        return [*self._values.parameters, *whole]

    def _groups(self) -> list[dict[str, Any]]:
        rate = self._hparams["sparse.body_lr"]
        if rate is None:
            return super()._groups()
        kinds = self._kinds()
        head = [p for p, kind in zip(self._parameters, kinds) if kind == "cls"]
        body = [p for p, kind in zip(self._parameters, kinds) if kind != "cls"]
        factor = rate / self._hparams["optim.lr"]
        groups = [{"params": head}, {"params": body, "lr_factor": factor}]
        return [group for group in groups if group["params"]]

    def _kinds(self) -> list[str]:
        from dpsweep.trainables.networks.layers import layer_kinds

        kinds = layer_kinds(self._model)
        return [kinds[layer] for layer in self.gradient_layers()]

    def gradient_layers(self) -> list[str]:
        """Return the layer of each tensor of a gradient: those of masks come first."""
        masked = dict(zip(map(id, self._values.parameters), self._masks))
        names = {id(p): name.rpartition(".")[0] for name, p in self._model.named_parameters()}
        return [masked[id(p)].name if id(p) in masked else names[id(p)] for p in self._parameters]

    def _make_engine(self) -> GradientEngine:
        """Return the engine of masked weights; that of whole networks where all of one trains."""
        from dpsweep.trainables.gradients.clipping import clip_rule_factors
        from dpsweep.trainables.gradients.per_example import make_engine
        from dpsweep.trainables.gradients.sparse_engine import SparseEngine
        from dpsweep.trainables.gradients.sums import chunk_size

        physical = int(self._hparams["batch.physical"])
        factors = clip_rule_factors(self._hparams["clip.rule"])
        is_whole = all(p.requires_grad for p in self._model.parameters())
        if is_whole or self._hparams["sparse.train"] in _WHOLE:
            return make_engine(
                self._model,
                physical,
                loss=self._loss,
                factors=factors,
                expected_batch=self._expected_batch,
            )
        device = next(self._model.parameters()).device
        chunk = chunk_size(self._expected_batch, physical, device)
        return SparseEngine(self._model, self._masks, chunk, loss=self._loss, factors=factors)

    def _after_step(self) -> None:
        self._values.write()

    def state_dict(self) -> dict[str, Any]:
        """Return also which entries of convolutions were chosen."""
        return {**super().state_dict(), "chosen": {m.name: m.index for m in self._masks}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        The choice is that of the first process. It is made anew only if the initial weights are
        others here, as random ones of a trial with a secret seed are.
        """
        self._restore_choice(state["chosen"])
        super().load_state_dict(state)
        self._values.read()

    def _restore_choice(self, chosen: Mapping[str, torch.Tensor]) -> None:
        import torch

        from dpsweep.trainables.gradients.sparse_mask import MaskedWeight
        from dpsweep.trainables.methods.optim import build_optimizer

        own = {mask.name: mask.index for mask in self._masks}
        if own.keys() == chosen.keys() and all(torch.equal(own[k], chosen[k]) for k in own):
            return
        masks = []
        for name, index in chosen.items():
            layer = self._model.get_submodule(name)
            assert isinstance(layer, torch.nn.Conv2d)
            masks.append(MaskedWeight(name, layer, index))
        self._parameters = self._with_masks(masks)
        self._optimizer = build_optimizer(self._groups(), self._hparams)
        self._engine = self._make_engine()


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
    from torch.nn.modules.batchnorm import _BatchNorm

    from dpsweep.trainables.gradients.sparse_mask import magnitude_mask
    from dpsweep.trainables.networks.layers import layer_kinds, own_parameters

    kinds, wanted = layer_kinds(model), _KINDS[train]
    among = []
    for path, layer, name, parameter in own_parameters(model):
        kind: str = kinds[path]
        if kind == "conv" and name != "weight":
            kind = "other"  # their biases are no convolution weights
        can_train = parameter.requires_grad or isinstance(layer, _BatchNorm)
        parameter.requires_grad_(can_train and kind in wanted)
        if kind == "conv" and can_train:
            among.append(path)
    if train not in _MASKED:
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
    from torch import nn

    layer = model.get_submodule(path)
    assert isinstance(layer, nn.Conv2d)
    return layer
