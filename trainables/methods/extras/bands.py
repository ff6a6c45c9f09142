"""Noise that takes itself back: banded matrix factorization, as a switch of DP-SGD.

Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization: A unified approach to private
training" (https://arxiv.org/abs/2306.08153), with the banded square root of Kalinin & Lampert 2024
(https://arxiv.org/abs/2405.13763) as the matrix. With b bands (``noise.bands``) the noise of step t

    n_t = (z_t - sum_{j=1}^{b-1} c_j n_{t-j}) / c_0,  z_t ~ N(0, (z C)^2 I)

takes part of the last b - 1 away again. c holds the first b coefficients of (1 - x)^(-1/2), divided
by their norm. A position of the plan is a *round* of b steps. Each record has one of b groups,
uniform, independent of all else and secret; step t samples the group t mod b alone, at b times the
rate of the batch, so that the expected batch is what it is without bands.

Guarantees:
    T steps cost at most as much as ceil(T / b) sampled Gaussians of noise multiplier z and rate
    b q under add-or-remove-one; the event of a round is charged before its first step. Proof: let
    C be the lower triangular matrix with c_0 .. c_{b-1} below each other in every column, G the
    clipped sums of the steps. What is released, G + n with C n = z, is a function of C G + z, one
    row a step. Let k be the group of a record that one neighbour has and the other has not. It is
    drawn whatever the records are, so the two are as close as they are for the worst k (joint
    convexity), and so with the groups and samples of all others. In group k the record takes part
    in steps k, k + b, .. at most, with the probability b q each. In one of these it adds
    a vector g of norm C at most, fixed by what was released before, to rows t .. t + b - 1, times
    c_0 .. c_{b-1}. No row has parts of two of its steps. Without the others, which are the same for
    both neighbours, these rows are one Gaussian on a sampled vector c x g, whose norm is
    that of g since c has norm 1: its event. It could be drawn whole at step t, which is after the
    charge of t's round, and the rows be computed from it. So charges, filters and adaptive
    composition see a common Poisson-sampled Gaussian. Columns cut short, at the end of a trial or
    where it breaks off, have smaller norms.

    Noise of the past is as secret as a batch: with n_t .. known, n_{t+1} is a smaller one. It is in
    no checkpoint, so a trial that goes on after a checkpoint has forgotten it: C begins anew,
    groups are drawn anew, and the rest are rounds of their own. A round that was broken off is
    charged again where it is repeated, as lost positions always are; checkpoints lie between
    rounds, since positions are rounds. A last round of fewer than b steps, or one that an error
    ended, is followed by no other without all being drawn anew: within b steps the same group
    would come twice.

    Not covered beyond that: what ``DPSGD`` does not cover. What was not proved beside it is refused
    with the plan (``_beside``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError, Mistake
from dpsweep.privacy.randomness import secret_numpy_generator
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.methods.hyperparameters import CLIP_RULE, QUANTILE

if TYPE_CHECKING:
    from dpsweep.privacy.events import PoissonGaussian
    from dpsweep.trainables.gradients.noise import BandedNoise

BANDS = Hyperparameter(
    "noise.bands",
    "int",
    1,
    "b: noise of a step takes part of that of the last b - 1 away again, and each record is in one "
    "step of b at most; a position of the plan is b steps. 1: independent noise.",
    low=1,
    high=1024,
    changes_privacy=True,
)
#: b q may be above 1 by so much, from rounding, and is 1 then.
_ROUNDING = 1e-9


def bands_of(hparams: Mapping[str, Any]) -> int:
    """Return b; older records have none.

    >>> bands_of({"noise.bands": 4}), bands_of({})
    (4, 1)
    """
    return int(hparams.get(BANDS.name, 1))


def without_bands(declared: Iterable[Hyperparameter]) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters of a method whose steps were not shown to allow bands."""
    return tuple(knob for knob in declared if knob.name != BANDS.name)


def column(bands: int) -> NDArray[np.float64]:
    """Return c, float64 (bands,), of norm 1.

    >>> column(1).tolist(), (column(3) / column(3)[0]).round(9).tolist()
    ([1.0], [1.0, 0.5, 0.375])
    """
    factors = [1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))]
    root = np.cumprod(factors)
    return np.asarray(root / np.linalg.norm(root))


def charged_rounds(hparams: Mapping[str, Any], sample_rate: float, steps: int) -> tuple[float, int]:
    """Return the sampling rate and the number of the events that so many steps cost.

    >>> charged_rounds({"noise.bands": 4}, 0.125, 10), charged_rounds({}, 0.125, 10)
    ((0.5, 3), (0.125, 10))

    Raises:
        InfeasibleBudgetError: A group is smaller than the batch, or something stands beside bands
            that was not proved there.
    """
    bands = bands_of(hparams)
    if bands == 1:
        return sample_rate, steps
    for name, wrong in _beside(hparams).items():
        raise InfeasibleBudgetError(f"{name} with {BANDS.name}={bands}: {wrong}", fix=_FIX)
    if bands * sample_rate > 1 + _ROUNDING:
        raise InfeasibleBudgetError(
            f"{BANDS.name}={bands} with a sampling rate of {sample_rate:g}, which is above "
            f"1/{bands}: a batch would be more than its group of records",
            fix=f"{BANDS.name} <= {max(1, math.floor(1 / sample_rate))}, or a smaller batch",
        )
    return min(1.0, bands * sample_rate), math.ceil(steps / bands)


_FIX = "leave one of the two out"


def _beside(hparams: Mapping[str, Any]) -> dict[str, str]:
    wrong = {}
    for name in ("noise.shape", "clip.shape"):
        if hparams.get(name, "constant") != "constant":
            wrong[name] = "noise of one size cannot take away that of another"
    if hparams.get("noise.prefix_factor", 1) != 1:
        wrong["noise.prefix_factor"] = "noise of one size cannot take away that of another"
    if hparams.get(CLIP_RULE.name) == QUANTILE:
        wrong[CLIP_RULE.name] = "a bound that moves changes the size of noise from step to step"
    for name in ("optim.noise_lr", "optim.noise_scale"):
        if hparams.get(name) is not None:
            wrong[name] = "it is defined for noise that is independent from step to step"
    if hparams.get("optim.name") == "adam_bc":
        wrong["optim.name"] = "adam_bc subtracts noise that is independent from step to step"
    return wrong


def bands_problems(values: Mapping[str, Sequence[Any]]) -> list[Mistake]:
    """Return what cannot stand beside bands in any configuration, as ``preflight`` does."""
    if min(values.get(BANDS.name, [1])) == 1:
        return []
    mistakes = []
    for name, each in values.items():
        reasons = [_beside({name: value}).get(name) for value in each]
        if reasons and all(reasons):
            mistakes.append(Mistake(name, f"with {BANDS.name}: {reasons[0]}", _FIX))
    return mistakes


def refuse_figures(rounds: Rounds | None) -> None:
    """Refuse to look at single steps of a round.

    Raises:
        BadInputError: There are rounds.
    """
    if rounds is not None:
        raise BadInputError(
            f"{BANDS.name}={rounds.bands}: audits and figures of single layers are about steps "
            "whose noise is independent of that of others",
            fix=f"{BANDS.name}: 1",
        )


def make_rounds(
    hparams: Mapping[str, Any],
    events: Sequence[PoissonGaussian],
    num_steps: int,
    num_rows: int,
    device: str,
) -> Rounds | None:
    """Return the rounds of a trial; None where noise is independent.

    Args:
        hparams: Every hyperparameter with its value.
        events: Of the plan, one for each round.
        num_steps: That the hyperparameters ask for; the plan may end before.
        num_rows: Number of rows of the data, whatever of them takes part.
        device: Where the noise is needed.
    """
    from dpsweep.trainables.gradients.noise import BandedNoise

    bands = bands_of(hparams)
    if bands == 1:
        return None
    if math.ceil(num_steps / bands) < len(events):  # to measure times, with rounds of any number
        num_steps = bands * len(events)
    each = [event for event in events for _ in range(bands)][:num_steps]
    return Rounds(each, num_rows, BandedNoise(device, column(bands)))


class Rounds:
    """Groups of the records and noise of one process' part of a trial; both are secret.

    Attributes:
        events: For each step that of its round.
        noise: Noise of the steps.
        bands: b.
    """

    def __init__(self, events: list[PoissonGaussian], num_rows: int, noise: BandedNoise) -> None:
        self.events, self.noise, self.bands = events, noise, noise.bands
        self._num_rows = num_rows
        self._generator = secret_numpy_generator()
        self._groups: NDArray[np.int64] | None = None  # of the next round, if it goes on

    def forget(self) -> None:
        """Let the next round be the first one: other groups, and no noise to take away."""
        self._groups = None
        self.noise.forget()

    def steps(self, index: int) -> Iterator[int]:
        """Yield the steps of a round, each to be taken before the next is asked for."""
        groups = self._groups
        if groups is None:
            groups = self._generator.integers(self.bands, size=self._num_rows)
            self.noise.forget()
        first = index * self.bands
        stop = min(first + self.bands, len(self.events))
        # What leaves a round unfinished leaves no groups: those of the next are drawn anew.
        self._groups, self._now = None, groups
        for step in range(first, stop):
            self.noise.next_step()
            yield step
        if stop == first + self.bands:
            self._groups = groups

    def of_group(self, rows: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        """Return those of a sample's rows that may take part in a step."""
        return rows[self._now[rows] == step % self.bands]
