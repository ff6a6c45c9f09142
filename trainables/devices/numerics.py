"""The precision of training: where float32 is whole, and what may run in bfloat16.

``model.precision: bfloat16`` runs the forward and the backward pass of a network under torch's
autocast: layers that gain by it compute in bfloat16, each result rounded by a part of 2^-8. Weights
stay float32. What a layer was given and the gradient by its output are widened to float32 before
a gradient per example is formed of them, and norms, factors, sums, noise and updates are what they
always are.

Guarantees:
    What is clipped is what is added: the norm is of the float32 gradient that was formed from
    rounded numbers, and so is the sum. An example adds at most C (1 + 5e-5) in either precision,
    whatever its values. What bfloat16 costs is the accuracy of a gradient, not its bound.

    An example's gradient must also be a function of that example alone
    (``dpsweep.trainables.gradients.sums``). A kernel that rounds a row otherwise at another place
    moves it by about 2^-24 in float32, and by 2^-8 here. So engines look before the first batch
    (``dpsweep.trainables.devices.places``), and refuse what moves by a bit. Not covered: a kernel
    that does so for other numbers than were tried, or now and then, as those may that add up in
    the order in which threads end. cuDNN's convolutions are kept from it; products over positions,
    attention among them, are refused in bfloat16 on CUDA; in float32 kernels are torch's choice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError

#: Values of ``model.precision``.
PRECISIONS = ("float32", "bfloat16")
#: Largest relative error of one operation in bfloat16, which has 8 bits of significand.
BFLOAT16_EPSILON = 2.0**-8


class ForwardPass:
    """A network as an engine runs it.

    Args:
        model: On its device, with weights in float32.
        precision: One of ``PRECISIONS``.
    Raises:
        BadInputError: It is another.
    """

    def __init__(self, model: nn.Module, precision: str = "float32") -> None:
        if precision not in PRECISIONS:
            raise BadInputError(
                f"unknown model.precision {precision!r}", fix=f"one of {', '.join(PRECISIONS)}"
            )
        self.model = model
        self.is_rounded = precision == "bfloat16"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a chunk, float32, within its graph.

        In float32 this is the network's own call and no more.
        """
        if not self.is_rounded:
            outputs: torch.Tensor = self.model(x)
            return outputs
        with torch.autocast(x.device.type, torch.bfloat16):
            outputs = self.model(x)
        return outputs.float()

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Compute in float32 for a while."""
        before, self.is_rounded = self.is_rounded, False
        try:
            yield
        finally:
            self.is_rounded = before


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return numbers in float32; integers, and what is in float32 or wider, stay as they are.

    >>> widened(torch.ones(1, dtype=torch.bfloat16)).dtype, widened(torch.ones(1).int()).dtype
    (torch.float32, torch.int32)
    """
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


_one_at_a_time = threading.Lock()
_within = 0
_settings_before: tuple[Any, ...] = ()
#: Six precisions of float32; deterministic, benchmark; reduced sums of products in bfloat16.
_FULL = (*["ieee"] * 6, True, False, False)


@contextmanager
def full_float32() -> Iterator[None]:
    """Let products and convolutions in float32 be in float32, by kernels that repeat themselves.

    On CUDA cuDNN's convolutions use TensorFloat-32 as a default, with 10 bits of mantissa, and
    matrix products do so where a process allows it; some kernels add up in the order in which
    threads end. On the CPU a process may allow products in bfloat16. Around all of a clipped sum,
    so that gradients, norms and sums are of one precision, and an example's gradient is the same
    each time it is formed. Also, products in bfloat16 are added up in float32.

    Guarantees:
        Within, none of that; afterwards, also after an error, settings are what they were. They
        are the process': threads that are within at once leave them to the last one. Another
        thread that sets them itself meanwhile is not covered.
    """
    global _within, _settings_before
    with _one_at_a_time:
        if _within == 0:
            _settings_before = _settings()
        _within += 1
        _set(_FULL)
    try:
        yield
    finally:
        with _one_at_a_time:
            _within -= 1
            if _within == 0:
                _set(_settings_before)


def _kinds() -> tuple[Any, ...]:
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    products = torch.backends.cuda.matmul
    return products, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn


def _settings() -> tuple[Any, ...]:
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    reduced = products.allow_bf16_reduced_precision_reduction
    precisions = (kind.fp32_precision for kind in _kinds())
    return (*precisions, cudnn.deterministic, cudnn.benchmark, reduced)


def _set(settings: tuple[Any, ...]) -> None:
    *precisions, deterministic, benchmark, reduced = settings
    for kind, precision in zip(_kinds(), precisions):
        kind.fp32_precision = precision
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced


def may_skip(marked: torch.Tensor) -> bool:
    """Say whether nothing is marked, so that what is done to marked examples can be left out.

    Always false on CUDA: to look there means to wait until all that was asked for is computed. The
    work is then done for no one, with the same result.

    >>> may_skip(torch.tensor([False, True])), may_skip(torch.tensor([False]))
    (False, True)
    """
    return not marked.is_cuda and not bool(marked.any())


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; from the host to CUDA by pinned memory, without waiting for it.

    A copy from memory that can be paged out waits for what the device is doing.
    """
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
