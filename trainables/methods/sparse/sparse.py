"""Sparse finetuning: few parameters of a public network are trained on private data.

Luo et al. 2021, "Scalable Differential Privacy with Sparse Network Finetuning" (CVPR), with its
baselines. Loads no torch until ``prepare``, so that plans can be made and checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.extras.bands import without_bands
from dpsweep.trainables.methods.model_knobs import STANDARDIZE, networks_to_try, random_notes
from dpsweep.trainables.methods.optim import build_optimizer
from dpsweep.trainables.methods.sparse.knobs import MASKED, SPARSE_HYPERPARAMETERS, WHOLE
from dpsweep.trainables.networks.own_models import is_own

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo
    from dpsweep.trainables.gradients.per_example import GradientEngine
    from dpsweep.trainables.method import PlanContext


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
    _plain_rates: ClassVar[tuple[str, ...]] = ("sparse.body_lr",)
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = SPARSE_HYPERPARAMETERS + without_bands(
        DPSGD.hyperparameters
    )

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
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
    def complete(cls, hparams: Mapping[str, Any], context: PlanContext) -> dict[str, Any]:
        """See ``DPSGD``.

        Raises:
            InfeasibleBudgetError: Also where entries are to be chosen of standardised weights, each
                of which depends on all the others of its output.
        """
        if hparams.get(STANDARDIZE.name) and hparams["sparse.train"] in MASKED:
            raise InfeasibleBudgetError(
                f"{STANDARDIZE.name}=true with sparse.train={hparams['sparse.train']}, which "
                "trains single weights of convolutions",
                fix=f"set {STANDARDIZE.name}: false, or sparse.train: cls+norm, full or scratch",
            )
        return super().complete(hparams, context)

    @classmethod
    def _check_gradients(cls, model: torch.nn.Module, name: str, info: DatasetInfo) -> None:
        """Nothing here: ``preflight`` tries the engine of each ``sparse.train``."""

    @classmethod
    def notes(cls, values: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return what works, but hardly as it is meant: random weights that never train."""
        possible = partial(cls._possible, values)
        return super().notes(values) + random_notes(possible, "sparse.train", whole=WHOLE)

    @classmethod
    def _choice_problems(
        cls,
        name: str,
        trains: Sequence[str],
        values: Mapping[str, Sequence[Any]],
        info: DatasetInfo,
    ) -> list[Mistake]:
        """Try what each ``sparse.train`` would do; weights do not matter, only their number."""
        from dpsweep.trainables.methods.sparse.choice import choice_problems

        fronts = networks_to_try(lambda knob: cls._possible(values, knob))
        options = next(fronts)
        density = min(cls._possible(values, "sparse.density"))
        scopes = cls._possible(values, "sparse.scope")
        return choice_problems(name, trains, density, scopes, info, options)

    def _build_model(self, *, is_initial: bool = True) -> torch.nn.Module:
        """Return the network; ``scratch`` reads no initial weights."""
        is_scratch = self._hparams["sparse.train"] == "scratch"
        return super()._build_model(is_initial=is_initial and not is_scratch)

    def _trainable(self) -> list[torch.nn.Parameter]:
        """Choose by the initial weights: those in the model now; later states come after this."""
        from dpsweep.trainables.methods.sparse.choice import Choice, choose_parameters

        masks = choose_parameters(
            self._model,
            self._hparams["sparse.train"],
            self._hparams["sparse.density"],
            self._hparams["sparse.scope"],
        )
        self._choice = Choice(self._model, masks)
        return self._choice.parameters

    def _groups(self) -> list[dict[str, Any]]:
        rate = self._hparams["sparse.body_lr"]
        if rate is None:
            return super()._groups()
        kinds = self._choice.kinds()
        head = [p for p, kind in zip(self._parameters, kinds) if kind == "cls"]
        body = [p for p, kind in zip(self._parameters, kinds) if kind != "cls"]
        factor = rate / self._hparams["optim.lr"]
        groups = [{"params": head}, {"params": body, "lr_factor": factor}]
        return [group for group in groups if group["params"]]

    def gradient_layers(self) -> list[str]:
        """Return the layer of each tensor of a gradient: those of masks come first."""
        return self._choice.layers()

    def _make_engine(self) -> GradientEngine:
        """Return the engine of masked weights; that of whole networks where all of one trains."""
        return self._choice.make_engine(
            int(self._hparams["batch.physical"]),
            factors=self._factors,
            **self._engine_options,
            is_whole=self._hparams["sparse.train"] in WHOLE,
        )

    def _after_step(self) -> None:
        self._choice.values.write()

    def state_dict(self) -> dict[str, Any]:
        """Return also which entries of convolutions were chosen."""
        return {**super().state_dict(), "chosen": self._choice.indices()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        The choice is that of the first process. It is made anew only if the initial weights are
        others here, as random ones of a trial with a secret seed are.
        """
        if not self._choice.is_of(state["chosen"]):
            self._choice = self._choice.replaced(state["chosen"])
            self._parameters = self._choice.parameters
            self._optimizer = build_optimizer(self._groups(), self._hparams)
            self._engine = self._make_engine()
        super().load_state_dict(state)
        self._choice.values.read()
