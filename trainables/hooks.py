"""Hooks of a method: Protocols that some methods have besides ``Method``, asked by ``isinstance``.

A method has one by having its functions; it need not name it. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dpsweep.foundation.errors import Mistake
from dpsweep.foundation.file_paths import FilePath
from dpsweep.privacy.events import Plan
from dpsweep.privacy.terms import AccountantName
from dpsweep.trainables.data.releases import ReleaseKey
from dpsweep.trainables.method import Method, PlanContext
from dpsweep.trainables.outside import asked

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.features.spec import FeatureSpec
    from dpsweep.trainables.gradients.layer_noise import NoiseFigures


@runtime_checkable
class OnFrozenFeatures(Protocol):
    """A method that trains on features, which the platform computes once for all trials."""

    @classmethod
    def extractor(cls, hparams: Mapping[str, Any], info: DatasetInfo) -> FeatureSpec | None:
        """Return the frozen features that a configuration trains on; None for raw records.

        The platform computes them once for all trials, before the first one starts.

        Args:
            hparams: Every declared hyperparameter with its value.
            info: Shapes and declared sizes of the raw data.
        Raises:
            BadInputError: The features cannot be had here; says how to get them.
        """
        ...


@runtime_checkable
class FromRelease(Protocol):
    """A method whose trials start from a model that the section start of a spec releases."""

    @classmethod
    def starts_from(cls, hparams: Mapping[str, Any]) -> ReleaseKey | None:
        """Return the release that a configuration starts from, or None.

        Guarantees:
            A method that uses the model of a release, in any way, names it here: its events are
            then part of every epsilon of the trial.
        """
        ...


@runtime_checkable
class MayStart(Protocol):
    """A method that knows which spaces start from a release; without it, all of them may."""

    @classmethod
    def may_start(cls, values: Mapping[str, Sequence[Any]]) -> bool:
        """Say whether some configuration of a space starts from a run of the section start.

        Args:
            values: As for ``preflight``.
        """
        ...


@runtime_checkable
class ChecksStart(Protocol):
    """A method that demands something of the start; without it, every start will do."""

    @classmethod
    def start_problems(
        cls,
        values: Mapping[str, Sequence[Any]],
        info: DatasetInfo,
        start: Mapping[str, Any],
    ) -> list[Mistake]:
        """Return what is wrong about the start for this method.

        Args:
            values: As for ``preflight``.
            info: Shapes and declared sizes of the data.
            start: Every hyperparameter of the start's method with its value.
        Returns:
            A mistake for each problem, whose key is one of the spec.
        """
        ...


@runtime_checkable
class FittedDefaults(Protocol):
    """A method with defaults that are others for some data than declared."""

    @classmethod
    def fitted_defaults(
        cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo
    ) -> dict[str, Any]:
        """Return defaults that are others for these data than declared.

        Args:
            values: As for ``preflight``.
            info: Shapes and declared sizes of the data.
        """
        ...


@runtime_checkable
class ChecksRecords(Protocol):
    """A method that must look at public records before trials begin."""

    @classmethod
    def check_records(cls, values: Mapping[str, Sequence[Any]], data: SweepData) -> None:
        """Look at public records, once they are read and before anything is spent or computed.

        Args:
            values: As for ``preflight``.
            data: The records of the study; private ones are left alone.
        Raises:
            DataError: Some configuration cannot work with them.
        """
        ...


@runtime_checkable
class PlanFacts(Protocol):
    """A method whose plans have more worth knowing than epsilon, noise and steps."""

    @classmethod
    def plan_facts(
        cls, plan: Plan, inherited: Plan, *, delta: float, accountant: AccountantName
    ) -> dict[str, float]:
        """Return what else is worth knowing of a plan.

        Args:
            plan: Of a trial.
            inherited: Events of the release that it starts from.
            delta: Of the study.
            accountant: Of the study.
        """
        ...


@runtime_checkable
class RateByNoise(Protocol):
    """A method whose learning rate may follow from the noise of its plan."""

    @classmethod
    def peak_rate(cls, hparams: Mapping[str, Any], plan: Plan, num_private: int) -> float | None:
        """Return the largest learning rate that a configuration will have; None if it names it.

        Args:
            hparams: Every declared hyperparameter with its value.
            plan: Of the trial.
            num_private: Declared (public) number of private records.
        """
        ...


@runtime_checkable
class KnowsInputNorm(Protocol):
    """A method that can say the norm of what enters its linear layer (``optim.input_norm``)."""

    @classmethod
    def input_norm(
        cls,
        values: Mapping[str, Sequence[Any]],
        info: DatasetInfo,
        public: Callable[[], np.ndarray],
    ) -> float:
        """Return the mean norm over public records, or that which features have by construction.

        Args:
            values: As for ``preflight``.
            info: Shapes and declared sizes of the data.
            public: Returns public records, float32 (records, *input_shape), at least one; refuses
                where there are none. Private ones are out of reach.
        Raises:
            BadInputError: It is no public number in some configuration, or there are no records.
        """
        ...


@runtime_checkable
class CarriesOver(Protocol):
    """A method whose configurations, good on a part of the records, can be made good on more."""

    @classmethod
    def carried_over(
        cls, hparams: Mapping[str, Any], plan: Plan, before: PlanContext, after: PlanContext
    ) -> dict[str, Any]:
        """Return the hyperparameters of the final run after a search on a part of the records.

        Args:
            hparams: Every declared hyperparameter with its value, of a trial of the search.
            plan: Of that trial.
            before: What it was planned with.
            after: What the final run is planned with.
        Raises:
            InfeasibleBudgetError: There is no plan for it.
        """
        ...


@runtime_checkable
class TrainsSome(Protocol):
    """A method that trains some parameters of its network; others train all of them."""

    @classmethod
    def trains(cls, name: str, parameter: torch.nn.Parameter, *, in_head: bool) -> bool:
        """Say whether the method trains a parameter of its network.

        A parameter that its network freezes (``requires_grad`` is False) is not asked about.

        Args:
            name: Dotted name of the parameter in the network, as in ``blocks.0.attn.qkv.bias``.
            parameter: The parameter; it may have no data (``dpsweep describe`` looks at shapes).
            in_head: Whether it belongs to the classifier.
        """
        ...


@runtime_checkable
class PublicScores(Protocol):
    """A method with scores of its own that are public."""

    @classmethod
    def public_metrics(cls) -> Mapping[str, str]:
        """Return the names of its scores, each with a sentence on it."""
        ...

    def public_scores(self) -> dict[str, float]:
        """Return the scores as they are now, some or all.

        Guarantees:
            They are functions of public records and of what has been released: they leave the
            actor under every accounting mode, as ``public/NAME``.
        """
        ...


@runtime_checkable
class PrivateReport(Protocol):
    """A method with figures about single private records."""

    def private_report(self) -> dict[str, Any] | None:
        """Return figures about single private records, or None.

        They are private themselves: the platform writes them, at the end of a trial, to a local
        file that says so, never under accounting ``select``; they never leave the actor otherwise.
        """
        ...


@runtime_checkable
class Pictures(Protocol):
    """A method with something to see."""

    def pictures(self, directory: FilePath) -> list[FilePath]:
        """Draw what is worth seeing into a directory and return the files, as paths below it.

        Guarantees:
            Only public records, and what has been released, are in them: they go to the tracking
            store with the model.
        """
        ...


@runtime_checkable
class NoiseFigured(Protocol):
    """A method that can set its noise against its gradients, layer by layer."""

    def layer_noise(self, num_records: int) -> NoiseFigures:
        """Return the figures, from that many of the records that were prepared, at most."""
        ...


@runtime_checkable
class Auditable(Protocol):
    """A method that an audit can follow: it says what one record adds to a release.

    ``DPSGD`` has it, and so has what derives from it and keeps to its steps. The releases of others
    are not audited, and an audit says so.
    """

    def contributions(self, position: int) -> Contributions | None:
        """Return what each record that was prepared adds to the release at a position.

        They are computed at the state that is there, with the code that the position runs, noise
        left out; None where the position is no release of ``SecretNoise``.

        Guarantees:
            None: they are exact. An audit prepares the method with synthetic records.
        """
        ...

    def amplify(self, factor: float) -> None:
        """Make gradients of records that many times larger before they are clipped, if it can."""
        ...


@dataclass(frozen=True)
class Contributions:
    """What records add to one release, tensors side by side in the order of their release.

    Attributes:
        rows: float32 (records, entries), one row for each record that was prepared.
        bound: Most that the norm of a row should be; C.
        public: What public records add to the release besides, float64 (entries,), or None.
    """

    rows: torch.Tensor
    bound: float
    public: torch.Tensor | None = None


def features_of(
    method: type[Method], hparams: Mapping[str, Any], info: DatasetInfo
) -> FeatureSpec | None:
    """Return the features of a configuration; None for raw records (``OnFrozenFeatures``)."""
    if not issubclass(method, OnFrozenFeatures):
        return None
    spec: FeatureSpec | None = asked(method, "extractor", hparams, info)
    return spec


def release_key(method: type[Method], hparams: Mapping[str, Any]) -> ReleaseKey | None:
    """Return the release that a configuration starts from, or None (``FromRelease``)."""
    if not issubclass(method, FromRelease):
        return None
    key: ReleaseKey | None = asked(method, "starts_from", hparams)
    return key


def may_start(method: type[Method], values: Mapping[str, Sequence[Any]]) -> bool:
    """Say whether some configuration of a space starts from a run of the section start."""
    if issubclass(method, MayStart):
        return bool(asked(method, "may_start", values))
    return issubclass(method, FromRelease)


def facts_of(
    method: type[Method], plan: Plan, inherited: Plan, *, delta: float, accountant: AccountantName
) -> dict[str, float]:
    """Return what else is worth knowing of a plan, or nothing (``PlanFacts``)."""
    if not issubclass(method, PlanFacts):
        return {}
    facts: dict[str, float] = asked(
        method, "plan_facts", plan, inherited, delta=delta, accountant=accountant
    )
    return facts


def peak_rate_of(
    method: type[Method], hparams: Mapping[str, Any], plan: Plan, num_private: int
) -> float | None:
    """Return the learning rate that follows from the noise of a plan (``RateByNoise``), or None."""
    if not issubclass(method, RateByNoise):
        return None
    rate: float | None = asked(method, "peak_rate", hparams, plan, num_private)
    return rate
