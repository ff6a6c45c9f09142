"""Clipping: norms of gradients, factors that bound them, and what noise allows for beyond C.

All that limits what one example adds to a sum is here: factors, the rules that a method may offer,
and the rounding that is allowed on top (``noise_margin``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError

#: Least that noise allows for beyond C, in parts of C; see ``noise_margin``.
TOLERANCE = 1e-4
#: Most that rounding lets one example add beyond C: of its norm, of its factor, of products.
EXAMPLE_TOLERANCE = 5e-5
#: The part of it that the rounding of products may take up.
PRODUCT_TOLERANCE = 1.5e-5
#: Most terms, of examples and positions, that are added up in one product of weights.
MOST_TERMS = 256
#: Most that the terms of such a gradient may add up to, in parts of C.
MOST_CANCELLED = 512

#: From norms (examples,) and C to the factor of each example, at most C / norm. Rows that are no
#: examples, which fill a chunk up, have an infinite norm.
Factors = Callable[[torch.Tensor, float], torch.Tensor]


def clip_factors(norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """Return min(1, C / norm) per example; 0 where that is not exact (``exact_factors``).

    >>> clip_factors(torch.tensor([0.0, 1.0, 4.0, float("nan")]), 2.0).tolist()
    [1.0, 1.0, 0.5, 0.0]
    """
    factors = max_grad_norm / norms.clamp(min=max_grad_norm)
    return exact_factors(factors, norms)


def exact_factors(factors: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
    """Return factors, 0 where the norm is not finite or the factor is subnormal.

    A subnormal quotient may have been rounded up by more than a little, and the example would add
    more than C.
    """
    is_exact = norms.isfinite() & (factors >= torch.finfo(factors.dtype).tiny)
    return torch.where(is_exact, factors, torch.zeros_like(factors))


def product_of_norms(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return |g||a| in float32; infinite where it is too large for that.

    One of the two must come in float64: in float32 the squares of entries below 1e-19 vanish, and a
    norm of zero beside one of 1e19 would hide a product that is not small.
    """
    return (one.double() * other.double()).float()


#: Entries that are squared and added up in float32 at once.
_ADDED_AT_ONCE = 1024
#: Entries that torch's reductions load at once on CUDA, of rows of at least so many. They begin
#: where such a vector does, so that how a row is added up follows from where in memory it lies.
_LOADED_AT_ONCE, _LOADED_SO_FROM = 4, 128


def row_norms(values: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row of (rows, entries) float32, within 3.1e-5, as float32.

    That bound holds for every order of 1024 additions; 1e-6 is usual. On the CPU torch adds squares
    up one after the other in float32. Over millions of entries the sum falls short by up to a per
    cent, and an example would be clipped to more than C.

    >>> row_norms(torch.full((1, 5_000_000), 0.1)).square().round(decimals=1).tolist()
    [50000.0]
    """
    if values.is_cuda and values.shape[1] >= _LOADED_SO_FROM:
        values = _begun_alike(values)
    size = values.shape[1]
    whole = size - size % _ADDED_AT_ONCE
    if whole == 0 or size == _ADDED_AT_ONCE:
        return torch.linalg.vector_norm(values, dim=1)
    blocks = values[:, :whole].unflatten(1, (-1, _ADDED_AT_ONCE))
    parts = [torch.linalg.vector_norm(blocks, dim=2)]
    if whole < size:
        parts.append(torch.linalg.vector_norm(values[:, whole:], dim=1, keepdim=True))
    return norm64(torch.cat(parts, dim=1), 1).to(values.dtype)


def _begun_alike(values: torch.Tensor) -> torch.Tensor:
    """Return rows that all begin where a GPU loads; a copy with zeros behind them if need be."""
    if values.stride(0) % _LOADED_AT_ONCE == 0:
        return values
    return nn.functional.pad(values, (0, -values.shape[1] % _LOADED_AT_ONCE))


def norm64(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Return L2 norms along a dimension, in float64.

    >>> values = torch.tensor([[3.0, 5.0], [4.0, 12.0]])
    >>> norm64(values, 0).tolist(), norm64(values.T, 1).tolist()
    ([5.0, 13.0], [5.0, 13.0])
    """
    if dim in (-1, values.dim() - 1):
        return torch.linalg.vector_norm(values, dim=dim, dtype=torch.float64)
    # Along another dimension torch's kernel takes 5 to 20 times as long as this.
    return values.to(torch.float64, copy=True).square_().sum(dim).sqrt_()


def automatic_factors(
    norms: torch.Tensor, max_grad_norm: float, gamma: float = 0.01
) -> torch.Tensor:
    """Return C / (norm + gamma) per example, automatic clipping; 0 where the norm is not finite.

    Every example is normalised, so that the learning rate alone sets the size of a step (Bu et
    al. 2023, https://arxiv.org/abs/2206.07136, AUTO-S).

    >>> automatic_factors(torch.tensor([0.0, 0.99, float("inf")]), 2.0).tolist()
    [200.0, 2.0, 0.0]

    Guarantees:
        factor * norm < C for every norm, up to float32 rounding.

    Args:
        norms: Norms of the examples' gradients, float32 (examples,).
        max_grad_norm: Bound C > 0.
        gamma: Stability constant > 0 that keeps differences between small gradients.
    Raises:
        BadInputError: gamma is not positive, so that a gradient of zero would have no factor.
    """
    if not gamma > 0:
        raise BadInputError(f"gamma of automatic clipping is {gamma}", fix="use gamma > 0")
    return exact_factors(max_grad_norm / (norms + gamma), norms)


class CountedFactors:
    """``clip_factors``, and how many gradients they left as they were.

    Attributes:
        count: Of norms that were at most C, since it was set to 0; as private as the gradients. On
            the device of the norms, where nobody waits for it.
    """

    count: int | torch.Tensor

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
        """Return min(1, C / norm) per example; a norm that is infinite counts for nothing."""
        self.count = self.count + (norms <= max_grad_norm).sum()
        return clip_factors(norms, max_grad_norm)


def clip_rule_factors(rule: str) -> Factors:
    """Return the factors of a clipping rule, as ``CLIP_RULE`` names it; one counter for each call.

    >>> clip_rule_factors("abadi")(torch.tensor([4.0]), 2.0).tolist()
    [0.5]
    """
    if rule == "quantile":
        return CountedFactors()
    return {"abadi": clip_factors, "automatic": automatic_factors}[rule]


def noise_margin(num_examples: int) -> float:
    """Return the most that an example moves a sum beyond C by rounding, in parts of C.

    That of the example itself, and that of the sums of two batches of at most twice as many
    examples as are declared (``sums``, ``weight_products``): more are refused when the data are
    read. Nothing of it depends on ``batch.physical``.

    >>> noise_margin(200_000), round(noise_margin(1_000_000), 6)
    (0.0001, 0.000996)

    Args:
        num_examples: Declared number of examples.
    """
    most = 2 * num_examples
    roundings = most + MOST_TERMS * MOST_CANCELLED
    return max(TOLERANCE, EXAMPLE_TOLERANCE + 2.0**-52 * most * roundings)


def noise_bound(max_grad_norm: float, num_examples: int, *, joint: float = 1.0) -> float:
    """Return the most that one example moves a sum of clipped gradients, in L2 norm.

    Noise is relative to this: C, or ``joint`` times C, and what rounding adds (``noise_margin``).

    >>> noise_bound(0.5, 1000) / 0.5 == 1 + TOLERANCE
    True

    Args:
        max_grad_norm: Bound C > 0 on one example's gradient.
        num_examples: Declared number of examples.
        joint: Sensitivity of all sums together in parts of C, where several are clipped apart.
    """
    return (1 + noise_margin(num_examples)) * joint * max_grad_norm
