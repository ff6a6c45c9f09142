"""A classifier that is trained step by step: the base of the methods that train one.

Knobs of model, optimizer, batch and length; batches by Poisson sampling; evaluation, state and
export. Loads no torch until ``prepare``, so that plans can be made and checked without it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import BadInputError, Mistake
from dpsweep.privacy.events import Plan
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.data.dataset import first_rows, training_tensors
from dpsweep.trainables.data.tasks import TASKS, score, task_of
from dpsweep.trainables.method import Method, PlanContext, RunContext
from dpsweep.trainables.methods.batches import (
    batch_problems,
    fitted_batch,
    num_private_of,
    sample_rate_of,
)
from dpsweep.trainables.methods.extras.average import Average
from dpsweep.trainables.methods.extras.views import view_problems, views_of
from dpsweep.trainables.methods.hyperparameters import (
    BATCH_HYPERPARAMETERS,
    OPTIM_HYPERPARAMETERS,
    TRAIN_HYPERPARAMETERS,
)
from dpsweep.trainables.methods.input_norms import PublicInputs, norm_before_linear
from dpsweep.trainables.methods.model_knobs import (
    ADDED,
    MODEL_HYPERPARAMETERS,
    PRECISION,
    front_of,
    networks_to_try,
    refuse_rounded,
    refuse_standardized,
    refuse_twice,
    scale_notes,
    text_problems,
    weight_problems,
)
from dpsweep.trainables.methods.optim import build_optimizer, learning_rates
from dpsweep.trainables.methods.states import copy_to_cpu
from dpsweep.trainables.networks.own_models import is_own, unended
from dpsweep.trainables.networks.pretrained.weights import PUBLISHED, checkpoint_of

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.data.losses import Loss


class ClassifierMethod(Method):
    """A method that updates one classifier once per plan position.

    Subclasses say the plan and compute the gradient of one step; everything here is the same for
    private and non-private training, so that their comparison is fair. Positions before the first
    step (releases of statistics) are a subclass' own: it sets ``_num_before`` ahead of ``prepare``.
    """

    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        MODEL_HYPERPARAMETERS
        + OPTIM_HYPERPARAMETERS
        + BATCH_HYPERPARAMETERS
        + TRAIN_HYPERPARAMETERS
    )

    tasks: ClassVar[frozenset[str]] = frozenset(TASKS)
    reads_text: ClassVar[bool] = True

    #: Positions of the plan before the first optimizer step.
    _num_before = 0

    @classmethod
    def notes(cls, values: Mapping[str, Sequence[Any]]) -> list[str]:
        """Return what works, but hardly as it is meant: weights that may want other images."""
        names = ("model.name", "model.checkpoint", "model.normalize")
        return scale_notes(*(cls._possible(values, name) for name in names))

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return the models, checkpoints and batch sizes of the space that cannot work."""
        problems = cls._batch_problems(values, info)
        problems += weight_problems(lambda name: cls._possible(values, name))
        problems += view_problems(values, info)
        for name in cls._possible(values, "model.name"):
            if info.text is not None or name.startswith("text/"):
                wrong = text_problems(cls._possible(values, "model.checkpoint"))
                problems += wrong or cls._model_problems(name, values, info)
                continue
            if name == "linear" and not cls._has_front(values):
                continue
            if len(info.input_shape) != 3 and not is_own(name):
                misfit = f"{name} needs images, and records here have shape {info.input_shape}"
                fix = "use linear"
                if name == "linear":
                    fix = "leave model.image_size, model.normalize and the weights out"
                problems.append(Mistake("model.name", misfit, fix))
            elif name.startswith("timm/") or is_own(name) or cls._has_front(values):
                problems += cls._model_problems(name, values, info)
        return problems

    @classmethod
    def _has_front(cls, values: Mapping[str, Sequence[Any]]) -> bool:
        """Say whether images may be resized or normalised in the network."""
        is_published = PUBLISHED in cls._possible(values, "model.checkpoint")
        names = ("model.image_size", *(knob.name for knob in ADDED))
        return is_published or any(any(cls._possible(values, name)) for name in names)

    @classmethod
    def _possible(cls, values: Mapping[str, Sequence[Any]], name: str) -> list[Any]:
        """Return the values that a space can give to a hyperparameter."""
        if name in values:
            return list(values[name])
        return [p.default for p in cls.hyperparameters if p.name == name]

    @classmethod
    def _batch_problems(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo
    ) -> list[Mistake]:
        has_rate = None not in cls._possible(values, "batch.sample_rate")
        return [] if has_rate else batch_problems(values, info.num_private, cls.name)

    @classmethod
    def complete(cls, hparams: Mapping[str, Any], context: PlanContext) -> dict[str, Any]:
        """Return the hyperparameters, with a default batch that the declared records can fill.

        A default above their number becomes an eighth of it; one that is named stays.

        Raises:
            InfeasibleBudgetError: Published weights are to be normalised twice, weights
                standardised that cannot be, or a linear model is to train in bfloat16.
        """
        refuse_twice(hparams)
        refuse_standardized(hparams)
        refuse_rounded(hparams)
        hparams = super().complete(hparams, context)
        is_default = context.given is not None and "batch.expected" not in context.given
        if is_default and hparams["batch.sample_rate"] is None:
            num_private = num_private_of(hparams, context.num_private)
            hparams["batch.expected"] = fitted_batch(hparams["batch.expected"], num_private)
        return hparams

    @classmethod
    def fitted_defaults(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo
    ) -> dict[str, Any]:
        """Return the default batch where all private records are fewer."""
        rates = cls._possible(values, "batch.sample_rate")
        if "batch.expected" in values or None not in rates:
            return {}
        default = cls._possible(values, "batch.expected")[0]
        fitted = fitted_batch(default, info.num_private)
        return {} if fitted == default else {"batch.expected": fitted}

    @classmethod
    def input_norm(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo, public: PublicInputs
    ) -> float:
        """Return the mean norm of public records in front of a linear network; ``KnowsInputNorm``.

        Raises:
            BadInputError: The network is none, or it is not the same in each configuration.
        """
        return norm_before_linear(
            lambda name: cls._possible(values, name),
            lambda **front: _network("linear", info, seed=0, **front),
            public,
        )

    @classmethod
    def _model_problems(
        cls, name: str, values: Mapping[str, Sequence[Any]], info: DatasetInfo
    ) -> list[Mistake]:
        """Build the network for each norm, size and start: only that shows whether it can run."""
        from dpsweep.trainables.methods.own_model_checks import check_own

        problems = []
        for front in networks_to_try(lambda knob: cls._possible(values, knob)):
            try:
                model = _network(name, info, seed=0, **front)
                with unended(name):
                    if is_own(name):
                        again = _network(name, info, seed=0, **front)
                        check_own(model, again, name, info)
                    cls._check_gradients(model, name, info)
            except BadInputError as error:
                named = [knob.name for knob in MODEL_HYPERPARAMETERS if knob.name != "model.name"]
                first = error.message.split()[0].rstrip(":")
                key = first if first in named else "model.name"
                key = "model.norm" if "BatchNorm" in error.message else key
                problem = error.message.removeprefix(f"{key}: ")
                problem += f": {error.because}" if error.because else ""
                problems.append(Mistake(key, problem, error.fix or "use another model"))
        return problems

    @classmethod
    def _check_gradients(cls, model: torch.nn.Module, name: str, info: DatasetInfo) -> None:
        """Check that a network, which may be changed, has the gradients that a method needs.

        Raises:
            ModelError: It has not.
        """

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """Build model, optimizer and gradient engine; take references to the data.

        The private records are only referenced here: nothing is computed from them.
        """
        from dpsweep.trainables.networks.layers import on_device

        self._hparams = dict(hparams)
        self._context = context
        self._data = data
        self._num_steps = len(plan)
        self._plan, self._position = plan, 0
        self._sample_rate = sample_rate_of(hparams, data.info.num_private)
        # The normaliser comes from declared numbers: the true batch size is private.
        self._expected_batch = self._sample_rate * num_private_of(hparams, data.info.num_private)
        self._model = on_device(self._build_model(), context.device)
        decay = hparams.get("optim.ema", 0.0)  # older records have none
        self._average = Average(self._model, decay) if decay else None
        self._views = views_of(hparams, public_seed(context.seed, context.trial, "views"))
        self._parameters = self._trainable()
        self._optimizer = build_optimizer(self._groups(), hparams)
        num_steps = self._num_steps - self._num_before
        self._learning_rates = self._rates(hparams, num_steps, self._sample_rate)
        self._inputs, self._labels = training_tensors(data, "private", context.device)
        self._rows = first_rows(
            data.info.num_private, hparams["train.num_private"], len(self._labels)
        )

    @classmethod
    def _rates(cls, hparams: Mapping[str, Any], num_steps: int, sample_rate: float) -> np.ndarray:
        """Return the learning rate of every step, float64 (num_steps,)."""
        return learning_rates(hparams, num_steps)

    def _build_model(self, *, is_initial: bool = True) -> torch.nn.Module:
        """Return the network on the CPU, free of hooks; a public checkpoint only if initial."""
        return _network(
            self._hparams["model.name"],
            self._data.info,
            seed=self._initial_seed,
            checkpoint=checkpoint_of(
                self._hparams["model.checkpoint"], self._context.supplies.pretrained
            ),
            is_initial=is_initial,
            **front_of(self._hparams),
        )

    def _trainable(self) -> list[torch.nn.Parameter]:
        """Choose what trains, in the order in which gradients come; called once, in ``prepare``."""
        return [p for p in self._model.parameters() if p.requires_grad]

    def _groups(self) -> list[dict[str, Any]]:
        """Return the same parameters in groups of the optimizer.

        ``lr_factor`` of a group multiplies the learning rate of a step; 1 where it is not given.
        """
        return [{"params": self._parameters}]

    @property
    def _loss(self) -> Loss:
        """From outputs and labels to the sum of the losses of the examples."""
        return task_of(self._data.info.task).loss_sum

    @property
    def _engine_options(self) -> dict[str, Any]:
        """What engines of any kind are made with, besides the network and their chunks."""
        return {
            "loss": self._loss,
            "expected_batch": self._expected_batch,
            "views": self._views,
            "precision": self._hparams.get(PRECISION.name, PRECISION.default),  # older: none
        }

    @property
    def _initial_seed(self) -> int:
        return public_seed(self._context.seed, self._context.trial, "initial weights")

    def _begin(self) -> None:
        from dpsweep.trainables.networks.layers import set_training_mode

        set_training_mode(self._model)

    def _execute(self, position: int) -> None:
        """Execute a position; past ``_num_before``, one step each."""
        if position < self._num_before:
            self._before_training(position)
        else:
            self._take_step(position - self._num_before)

    def _before_training(self, position: int) -> None:
        """Execute a position before the first step."""
        raise NotImplementedError

    def _take_step(self, step: int) -> None:
        self._look_at(step)
        for parameter, gradient in zip(self._parameters, self._gradient(step)):
            parameter.grad = gradient
        self._set_learning_rate(float(self._learning_rates[step]))
        self._optimizer.step()
        self._after_step()
        if self._average is not None:
            self._average.add(self._model, step)

    def _look_at(self, step: int) -> None:
        """Let images be seen as they are at a step."""
        if self._views is not None:
            self._views.step = step

    def _after_step(self) -> None:
        """Do what must follow an update of the parameters; nothing, for most methods."""

    def _set_learning_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group.get("lr_factor", 1.0)

    @abstractmethod
    def _gradient(self, step: int) -> list[torch.Tensor]:
        """Return one step's gradient for every trainable parameter, ready for the optimizer."""

    def _draw_batch(self, generator: np.random.Generator, sample_rate: float) -> np.ndarray:
        """Return the sorted rows of one Poisson batch, int64, possibly empty."""
        if sample_rate >= 1.0:
            return self._rows
        return self._rows[generator.random(len(self._rows)) < sample_rate]

    def evaluate(self, part: str) -> dict[str, float]:
        """Return accuracy (share in [0, 1]) and mean loss (nats) on a part of the data.

        Other tasks than classification have more scores, see ``dpsweep.trainables.data.tasks``.

        Raises:
            DataError: The part has no record.
        """
        return self._score(self._delivered, part)

    @property
    def _delivered(self) -> torch.nn.Module:
        """What is evaluated, exported and released: the network, or that of averaged weights."""
        return self._model if self._average is None else self._average.of(self._model)

    def _score(self, model: torch.nn.Module, part: str) -> dict[str, float]:
        block = int(self._hparams["batch.physical"])
        if self._data.info.text is None:  # outputs of text are large
            block = max(block, 256)
        return score(model, self._part(part), part, block=block, device=self._context.device)

    def _part(self, part: str) -> SweepData:
        """Return data in which a part is what the model reads."""
        return self._data

    def state_dict(self) -> dict[str, Any]:
        """Return model, optimizer and position (tensors on the CPU).

        ``model`` is what is delivered; where that is an average, ``last`` is what trains. Public
        randomness is a function of the position, and secret randomness is never stored.
        """
        state = {
            "model": copy_to_cpu(self._delivered.state_dict()),
            "optimizer": copy_to_cpu(self._optimizer.state_dict()),
            "position": self._position,
        }
        if self._average is not None:
            state["last"] = copy_to_cpu(self._model.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; secret randomness goes on afresh."""
        self._model.load_state_dict(state.get("last", state["model"]))
        if self._average is not None:
            self._average.of(self._model).load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._position = int(state["position"])

    def export(self) -> torch.nn.Module:
        """Return the trained network, rebuilt free of hooks, on the CPU and in eval mode."""
        model = self._build_model(is_initial=False)
        model.load_state_dict(copy_to_cpu(self._delivered.state_dict()))
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return model.eval()


def _network(name: str, info: DatasetInfo, **options: Any) -> torch.nn.Module:
    """Build a network (``build_model``), which loads torch."""
    from dpsweep.trainables.networks.build import build_model

    return build_model(name, info, **options)
