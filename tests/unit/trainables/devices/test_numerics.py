"""Full float32 within a clipped sum, and masks without a look at them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.devices.numerics import ForwardPass, full_float32, may_skip, moved, widened
from dpsweep.trainables.gradients import bias_engine, layer_gradients, linear_head, weight_products
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.centred import CentredEngine
from dpsweep.trainables.gradients.clipping import CountedFactors
from dpsweep.trainables.gradients.linear_head import LinearHeadEngine, ManyHeadsEngine
from dpsweep.trainables.gradients.per_example import GradientEngine, OpacusEngine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import magnitude_mask
from dpsweep.trainables.methods.adamix import noisy_gd
from dpsweep.trainables.networks.build import build_model

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KINDS: dict[str, Any] = {
    "cuda.matmul": torch.backends.cuda.matmul,
    "cudnn.conv": torch.backends.cudnn.conv,
    "cudnn.rnn": torch.backends.cudnn.rnn,
    "mkldnn.matmul": torch.backends.mkldnn.matmul,
    "mkldnn.conv": torch.backends.mkldnn.conv,
    "mkldnn.rnn": torch.backends.mkldnn.rnn,
}
FULL = (*["ieee"] * len(KINDS), True, False, False)


def flags() -> tuple[object, ...]:
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    return (
        *(kind.fp32_precision for kind in KINDS.values()),
        cudnn.deterministic,
        cudnn.benchmark,
        products.allow_bf16_reduced_precision_reduction,
    )


def set_flags(values: tuple[Any, ...]) -> None:
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    for kind, precision in zip(KINDS.values(), values):
        kind.fp32_precision = precision
    cudnn.deterministic, cudnn.benchmark, reduced = values[len(KINDS) :]
    products.allow_bf16_reduced_precision_reduction = reduced


@contextmanager
def tensor_float32() -> Iterator[tuple[object, ...]]:
    """Allow all that a clipped sum must not use, and yield the flags."""
    before = flags()
    allowed = ("tf32", "tf32", "tf32", "bf16", "bf16", "bf16", False, True, True)
    try:
        set_flags(allowed)
        assert not any(one == full for one, full in zip(flags(), FULL))
        yield flags()
    finally:
        set_flags(before)


def test_flags_are_off_within_and_as_they_were_afterwards() -> None:
    with tensor_float32() as before:
        with full_float32():
            assert flags() == FULL
            with full_float32():
                assert flags() == FULL
            assert flags() == FULL
        assert flags() == before
        with pytest.raises(ZeroDivisionError), full_float32():
            1 / 0  # noqa: B018
        assert flags() == before


def test_threads_that_are_within_at_once_leave_the_flags_to_the_last_one() -> None:
    is_within, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with full_float32():
            is_within.set()
            may_leave.wait(10)

    with tensor_float32() as before:
        thread = threading.Thread(target=other)
        with full_float32():
            thread.start()
            assert is_within.wait(10)
        assert flags() == FULL  # the other one's
        may_leave.set()
        thread.join()
        assert flags() == before


@pytest.mark.parametrize("word", ["highest", "high", "medium"])
def test_torchs_older_word_for_products_is_kept(word: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(word)
        with full_float32():
            assert flags() == FULL
        assert torch.get_float32_matmul_precision() == word
    finally:
        torch.set_float32_matmul_precision(before)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))


def biases(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or name.startswith("3"))
    return model


class Broken(RuntimeError):
    """Raised within a clipped sum."""


@pytest.mark.parametrize(
    "make",
    [
        lambda factors: OpacusEngine(network(), 4, factors=factors),
        lambda factors: CentredEngine(network(), 4, factors=factors),
        lambda factors: BiasEngine(biases(network()), 4, factors=factors),
        lambda factors: SparseEngine(network(), [], 4, factors=factors),
    ],
    ids=["per example", "centred", "biases", "sparse"],
)
def test_the_whole_clipped_sum_is_in_full_float32(make: Callable[..., GradientEngine]) -> None:
    """Forward pass, rules and factors; also where one of them fails."""
    seen: list[tuple[object, ...]] = []
    is_broken = False

    def factors(norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
        seen.append(flags())
        if is_broken:
            raise Broken
        return torch.zeros_like(norms)

    engine: Any = make(factors)
    engine._forward.model.register_forward_hook(lambda *_: seen.append(flags()))
    x, y = torch.randn(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64)
    with tensor_float32() as before:
        engine.clipped_gradient_sum(x, y, np.arange(6), 1.0)
        assert len(seen) >= 4
        assert set(seen) == {FULL}
        assert flags() == before
        is_broken = True
        with pytest.raises(Broken):
            engine.clipped_gradient_sum(x, y, np.arange(6), 1.0)
        assert flags() == before


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_what_is_marked_is_looked_at_on_the_cpu_alone(device: str) -> None:
    none = torch.zeros(3, dtype=torch.bool, device=device)
    assert may_skip(none) == (device == "cpu")
    assert not may_skip(~none)
    values = torch.arange(3.0)
    assert torch.equal(moved(values, torch.device(device)).cpu(), values)


# --- The same sums whether or not anybody looks at the masks ----------------------------------

LOOKING: tuple[ModuleType, ...] = (
    bias_engine,
    layer_gradients,
    linear_head,
    noisy_gd,
    weight_products,
)


def small(name: str, device: str) -> nn.Module:
    info = DatasetInfo("r", (3, 16, 16), 4, 8, 0, 0, 0, tuple("0123"))
    return build_model(name, info, norm="group", seed=0).to(device)


def sparse(device: str) -> GradientEngine:
    model = small("small_resnet", device)
    return SparseEngine(model, magnitude_mask(model, 0.1), 4)


def head(device: str) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(768, 4).to(device)


def of_biases(device: str) -> GradientEngine:
    model = small("tanh_cnn", device)
    last = list(model.parameters())[-2:]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or any(parameter is p for p in last))
    return BiasEngine(model, 4)


ENGINES: dict[str, Callable[[str], GradientEngine]] = {
    "per example": lambda device: OpacusEngine(small("tanh_cnn", device), 4),
    "products": lambda device: OpacusEngine(small("small_resnet", device), 4),
    "biases": of_biases,
    "sparse": sparse,
    "head": lambda device: LinearHeadEngine(head(device)),
    "heads": lambda device: ManyHeadsEngine([head(device), head(device)]),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 3e38])
def test_masks_that_nobody_looks_at_change_no_sum(
    name: str, value: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(7, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    if value is not None:
        x[3, 0] = value
    y = torch.arange(7) % 4
    records = x.flatten(1) if name.startswith("head") else x
    expected = ENGINES[name]("cpu").clipped_gradient_sum(records, y, np.arange(7), 0.5)
    assert all(bool(total.isfinite().all()) for total in expected)
    asked = 0

    def unseen(_: torch.Tensor) -> bool:
        nonlocal asked
        asked += 1
        return False

    for module in LOOKING:
        monkeypatch.setattr(module, "may_skip", unseen)
    actual = ENGINES[name]("cpu").clipped_gradient_sum(records, y, np.arange(7), 0.5)
    assert asked
    assert all(map(torch.equal, actual, expected))


def test_counts_of_gradients_stay_where_the_norms_are() -> None:
    factors = CountedFactors()
    for norms in ([0.5, 3.0, float("inf")], [1.0, float("nan")]):
        factors(torch.tensor(norms), 1.0)
    assert isinstance(factors.count, torch.Tensor)
    assert int(factors.count) == 2


# --- Precision --------------------------------------------------------------------------------


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"unknown model\.precision 'float16'"):
        ForwardPass(network(), "float16")


def test_the_default_is_the_networks_own_call() -> None:
    model, x = network(), torch.randn(2, 1, 8, 8)
    kinds: list[torch.dtype] = []
    model[1].register_forward_hook(lambda *parts: kinds.append(parts[2].dtype))
    assert torch.equal(ForwardPass(model)(x), model(x))
    rounded = ForwardPass(model, "bfloat16")
    outputs = rounded(x)
    assert outputs.dtype == torch.float32
    assert torch.equal(outputs, outputs.bfloat16().float())
    with rounded.in_float32():
        assert torch.equal(rounded(x), model(x))
    assert rounded.is_rounded
    f, b = torch.float32, torch.bfloat16
    assert kinds == [f, f, b, f, f]


def test_numbers_are_widened_and_ids_are_not() -> None:
    assert widened(torch.ones(1, dtype=torch.float16)).dtype == torch.float32
    for values in (torch.ones(1), torch.ones(1).double(), torch.ones(1).long()):
        assert widened(values) is values


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_no_chunk_waits_for_the_gpu(name: str, where: str) -> None:
    if name.startswith("head") and where == "cpu":
        pytest.skip("heads gather rows of the host into a buffer that they use again")
    engine = ENGINES[name]("cuda")
    x, y = torch.randn(9, 3, 16, 16).to(where), (torch.arange(9) % 4).to(where)
    records = x.flatten(1) if name.startswith("head") else x
    engine.clipped_gradient_sum(records, y, np.arange(9), 0.5)  # checks itself first
    try:
        with warnings.catch_warnings(action="ignore"):  # it says that it may miss some
            torch.cuda.set_sync_debug_mode("error")
        engine.clipped_gradient_sum(records, y, np.arange(9), 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
