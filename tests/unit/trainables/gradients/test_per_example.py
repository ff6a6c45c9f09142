from __future__ import annotations

import numpy as np
import pytest
import torch
from gradients import relative_error
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.gradients.per_example import LinearHeadEngine, OpacusEngine, make_engine
from dpsweep.trainables.networks.build import build_model


def info_of(shape: tuple[int, ...], classes: int = 5) -> DatasetInfo:
    return DatasetInfo("x", shape, classes, 100, 0, 0, 0, tuple("abcdefghij"[:classes]))


def slow_clipped_sum(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, rows: np.ndarray, max_grad_norm: float
) -> tuple[list[torch.Tensor], list[float]]:
    """The definition: one example at a time."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    norms = []
    for row in rows:
        loss = nn.functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
        gradients = [g.double() for g in torch.autograd.grad(loss, parameters)]
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        norms.append(norm)
        for total, gradient in zip(sums, gradients):
            total += gradient * min(1.0, max_grad_norm / max(norm, 1e-30))
    return sums, norms


MODELS = [
    ("linear", (7,), "refuse"),
    ("linear", (1, 8, 8), "refuse"),
    ("tanh_cnn", (1, 8, 8), "refuse"),
    ("tanh_cnn", (3, 20, 17), "refuse"),
    ("tanh_cnn_deep", (1, 8, 8), "refuse"),
    ("timm/resnet10t", (3, 16, 16), "group"),
    ("timm/resnet10t", (3, 16, 16), "frozen"),
    ("timm/vit_tiny_patch16_224", (3, 32, 32), "refuse"),
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "shape", "norm"), MODELS)
def test_engine_agrees_with_a_loop_over_examples(
    name: str, shape: tuple[int, ...], norm: str
) -> None:
    model = build_model(name, info_of(shape), norm=norm, seed=3)
    x = torch.randn(30, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 5, (30,), generator=torch.Generator().manual_seed(1))
    rows = np.array([0, 3, 4, 9, 11, 20, 29])
    _, norms = slow_clipped_sum(model, x, y, rows, 1.0)
    bound = float(np.median(norms))  # some examples are clipped, some are not
    assert min(norms) < bound < max(norms)
    expected, _ = slow_clipped_sum(model, x, y, rows, bound)
    actual = make_engine(model, physical_batch=3).clipped_gradient_sum(x, y, rows, bound)
    assert [a.shape for a in actual] == [e.shape for e in expected]
    assert relative_error(actual, expected) < 1e-5


def test_closed_form_works_across_blocks_and_without_bias() -> None:
    head = nn.Linear(9, 4, bias=False)
    x, y = torch.randn(500, 9), torch.randint(0, 4, (500,))
    rows = np.arange(0, 500, 1)
    expected, _ = slow_clipped_sum(head, x, y, rows, 0.7)
    engine = LinearHeadEngine(head)
    assert relative_error(engine.clipped_gradient_sum(x, y, rows, 0.7), expected) < 1e-5
    few = rows[:5]
    expected, _ = slow_clipped_sum(head, x, y, few, 0.7)
    assert relative_error(engine.clipped_gradient_sum(x, y, few, 0.7), expected) < 1e-5


@pytest.mark.parametrize("name", ["linear", "tanh_cnn"])
def test_empty_batch_gives_zeros(name: str) -> None:
    model = build_model(name, info_of((1, 8, 8)), seed=0)
    x, y = torch.randn(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    sums = make_engine(model, 2).clipped_gradient_sum(x, y, np.array([], dtype=np.int64), 1.0)
    assert len(sums) == len(list(model.parameters()))
    assert all(not total.any() for total in sums)


@pytest.mark.parametrize("name", ["linear", "tanh_cnn"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_one_bad_example_adds_at_most_the_bound(name: str, value: float) -> None:
    model = build_model(name, info_of((1, 8, 8)), seed=0)
    x = torch.randn(5, 1, 8, 8)
    y = torch.arange(5)
    x[2] = value
    engine = make_engine(model, 3)
    with_it = engine.clipped_gradient_sum(x, y, np.arange(5), 0.5)
    without = engine.clipped_gradient_sum(x, y, np.array([0, 1, 3, 4]), 0.5)
    moved = torch.cat([(a - b).flatten() for a, b in zip(with_it, without)]).norm()
    assert float(moved) <= 0.5 * (1 + 1e-5)


def test_every_example_is_clipped_alone() -> None:
    model = build_model("tanh_cnn", info_of((1, 8, 8)), seed=0)
    x, y = torch.randn(20, 1, 8, 8) * 5, torch.randint(0, 5, (20,))
    engine = make_engine(model, 8)
    for row in range(20):
        total = engine.clipped_gradient_sum(x, y, np.array([row]), 0.01)
        norm = float(torch.cat([t.flatten() for t in total]).norm())
        assert norm == pytest.approx(0.01, rel=1e-4)


def test_data_and_model_are_left_alone() -> None:
    model = build_model("tanh_cnn", info_of((1, 8, 8)), seed=0)
    x, y = torch.randn(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64)
    before = [p.clone() for p in model.parameters()], x.clone()
    engine = OpacusEngine(model, 4)
    engine.clipped_gradient_sum(x, y, np.arange(6), 1.0)
    assert not x.requires_grad
    assert torch.equal(x, before[1])
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before[0]))
    assert all(p.grad is None for p in model.parameters())


class _Windows(nn.Module):
    """Folds half of each record into the batch dimension, as windowed attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.reshape(-1, 4)).reshape(len(x), 2, 5).sum(dim=1)


class _Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x) * 1.0
        logits = self.second(hidden)
        hidden.mul_(2.0)
        return logits + hidden[:, :5]


class _Detached(nn.Module):
    """Opacus would see half of what the weight does: its functional use escapes the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + nn.functional.linear(x, self.inner.weight)


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.unused = nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (_Windows(), "no gradient per example"),
        (_Overwritten(), "overwritten"),
        (_Detached(), "disagree with autograd"),
        (_Unused(), "no gradient per example"),
    ],
)
def test_networks_without_gradients_per_example_are_refused(model: nn.Module, word: str) -> None:
    engine = OpacusEngine(model, 4)
    x, y = torch.randn(6, 8), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(ModelError, match=word):
        engine.clipped_gradient_sum(x, y, np.arange(6), 1.0)


class _Scaled(nn.Module):
    """A layer without an Opacus rule, dropping out within it."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.drop = nn.Dropout(rate)

    def forward(self, x: torch.Tensor, mask: None = None) -> torch.Tensor:
        return self.drop(x * self.weight)


def test_dropout_within_a_layer_is_refused() -> None:
    x, y = torch.randn(6, 8), torch.zeros(6, dtype=torch.int64)
    model = nn.Sequential(nn.Linear(8, 8), _Scaled(0.0), nn.Linear(8, 5))
    sums = OpacusEngine(model, 4).clipped_gradient_sum(x, y, np.arange(6), 1.0)
    assert all(total.any() for total in sums)
    model = nn.Sequential(nn.Linear(8, 8), _Scaled(0.5), nn.Linear(8, 5))
    with pytest.raises(ModelError, match="random"):
        OpacusEngine(model, 4).clipped_gradient_sum(x, y, np.arange(6), 1.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["linear", "tanh_cnn"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_engines_on_the_gpu_agree_with_the_cpu(name: str, where: str) -> None:
    x, y = torch.randn(300, 1, 8, 8), torch.randint(0, 5, (300,))
    rows = np.arange(0, 300, 2)
    model = build_model(name, info_of((1, 8, 8)), seed=0)
    expected = make_engine(model, 64).clipped_gradient_sum(x, y, rows, 0.5)
    engine = make_engine(build_model(name, info_of((1, 8, 8)), seed=0).cuda(), 64)
    actual = engine.clipped_gradient_sum(x.to(where), y.to(where), rows, 0.5)
    assert all(total.is_cuda for total in actual)
    error = relative_error([total.cpu() for total in actual], [e.double() for e in expected])
    assert error < 1e-4  # TensorFloat-32 would be off by 1e-3


def exact_and_engine(model, x):
    """Return the summed gradient by autograd and by the engine that is chosen, unclipped."""
    labels = torch.arange(len(x)) % 3
    engine = make_engine(model, 64, expected_batch=len(x))
    sums = engine.clipped_gradient_sum(x, labels, np.arange(len(x)), 1e6)
    loss = nn.functional.cross_entropy(model(x), labels, reduction="sum")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    exact = torch.autograd.grad(loss, trained)
    return [torch.cat([each.flatten().double() for each in many]) for many in (exact, sums)]


@pytest.mark.parametrize("mode", ["circular", "replicate", "reflect"])
@pytest.mark.parametrize("size", [16, 96])
def test_a_convolution_that_pads_with_no_zeros(mode, size):
    """Opacus pads with zeros: on a large image of noise the border is too little to be noticed."""
    torch.manual_seed(0)
    x = torch.zeros(4, 3, size, size)
    for edge in (x[:, :, 0], x[:, :, -1], x[..., 0], x[..., -1]):
        edge.fill_(1.0)
    for conv, pool, records in (
        (nn.Conv2d, nn.AdaptiveAvgPool2d, x),
        (nn.Conv1d, nn.AdaptiveAvgPool1d, x[:, :, 0]),
    ):
        model = nn.Sequential(
            conv(3, 8, 3, padding=1, padding_mode=mode), nn.ReLU(), pool(1), nn.Flatten(),
            nn.Linear(8, 3),
        )  # fmt: skip
        exact, ours = exact_and_engine(model, records)
        assert float((ours - exact).norm()) <= 1e-3 * float(exact.norm())


def test_the_row_of_a_padding_id_has_no_gradient():
    """In a large vocabulary random ids never meet it, so that no check would tell."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(5000, 8, padding_idx=0)
            self.last = nn.Linear(8, 3)

        def forward(self, x):
            return self.last(torch.tanh(self.words(x.long())).mean(1))

    torch.manual_seed(0)
    exact, ours = exact_and_engine(Words(), torch.tensor([[0, 3, 0, 7], [5, 0, 0, 0]]))
    assert torch.allclose(exact, ours, atol=1e-6)
    assert not ours[:8].any()
