from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import BatchNormAct2d, GroupNormAct, LayerNorm2d, LayerNormAct, LayerNormAct2d
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.gradients.bias_engine import BiasEngine, can_bias_engine
from dpsweep.trainables.gradients.clipping import automatic_factors, clip_factors
from dpsweep.trainables.networks.layers import set_training_mode

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="sum")


def biases_only(model: nn.Module, *weights: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or name in weights)
    return model


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def gradients_one_by_one(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss = cross_entropy
) -> list[torch.Tensor]:
    """The definition: one example at a time, all trainable parameters in one vector."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        flat(torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), parameters))
        for i in range(len(x))
    ]


def clipped_sum(found: list[torch.Tensor], bound: float) -> torch.Tensor:
    return torch.stack([g * min(1.0, bound / max(float(g.norm()), 1e-30)) for g in found]).sum(0)


def middle(found: list[torch.Tensor]) -> float:
    """A bound that clips some examples and not others."""
    norms = sorted(float(g.norm()) for g in found)
    bound = (norms[(len(norms) - 1) // 2] + norms[(len(norms) + 1) // 2]) / 2
    assert norms[0] < bound < norms[-1]
    return bound


def assert_like_the_loop(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    physical: int = 3,
    loss: Loss = cross_entropy,
) -> None:
    engine = BiasEngine(model, physical, loss=loss)
    found = gradients_one_by_one(model, x, y, loss)
    bound = middle(found)
    expected = clipped_sum(found, bound)
    sums = engine.clipped_gradient_sum(x, y, np.arange(len(x)), bound)
    trainable = [p for p in model.parameters() if p.requires_grad]
    assert [s.shape for s in sums] == [p.shape for p in trainable]
    assert float((flat(sums) - expected).norm() / expected.norm()) < 1e-5


def images(count: int, size: int, channels: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.3, 2.0, count)[:, None, None, None]
    return torch.randn(count, channels, size, size, generator=generator) * scale


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "options", "size", "physical"),
    [
        ("resnet18", {"norm_layer": "groupnorm"}, 32, 3),
        ("vit_tiny_patch16_224", {"img_size": 32}, 32, 3),
        ("efficientnet_b0", {}, 64, 3),
        # Rounding in another batch size moves inputs of ReLU6 over its kinks.
        ("efficientnet_lite0", {}, 64, 1),
        ("convnext_atto", {}, 32, 3),
    ],
)
def test_engine_agrees_with_a_loop_over_examples(
    name: str, options: dict[str, Any], size: int, physical: int
) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options)
    head = next(n for n, m in model.named_modules() if m is model.get_classifier())
    biases_only(model, f"{head}.weight")
    set_training_mode(model)
    flags = [p.requires_grad for p in model.parameters()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert can_bias_engine(model)
    assert_like_the_loop(model, images(4, size), torch.tensor([0, 3, 1, 4]), physical=physical)
    assert flags == [p.requires_grad for p in model.parameters()]
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class _Logits(nn.Module):
    """(batch, tokens) int64 -> (batch, classes) logits, with a mask for padding."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids=tokens, attention_mask=(tokens != 0).long()).logits


def test_a_text_encoder_agrees_with_the_loop() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = _Logits(transformers.BertForSequenceClassification(config))
    biases_only(model, "encoder.classifier.weight")
    tokens = torch.randint(1, 40, (5, 9))
    tokens[1, 6:] = 0
    assert can_bias_engine(model)
    assert_like_the_loop(model, tokens, torch.tensor([0, 1, 2, 1, 0]), physical=2)


def test_a_language_model_agrees_with_the_loop() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=16, n_embd=24, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = biases_only(transformers.GPT2LMHeadModel(config))

    def next_token_loss(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    tokens = torch.randint(0, 30, (5, 9))
    assert can_bias_engine(model)
    assert_like_the_loop(model, tokens, tokens, physical=2, loss=next_token_loss)


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    dimensions=st.sampled_from([1, 2]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 3]),
    size=st.integers(5, 8),
)
def test_convolutions_of_any_shape(
    data: st.DataObject,
    dimensions: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    size: int,
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 100)))
    convolution = nn.Conv2d if dimensions == 2 else nn.Conv1d
    pool = nn.AdaptiveAvgPool2d(2) if dimensions == 2 else nn.AdaptiveAvgPool1d(2)
    model = nn.Sequential(
        convolution(groups, 2 * groups, kernel, stride, padding, dilation=dilation, groups=groups),
        nn.Tanh(),
        convolution(2 * groups, 4, 1),
        nn.Tanh(),
        pool,
        nn.Flatten(),
        nn.Linear(4 * 2**dimensions, 3),
    )
    x = torch.randn(4, groups, *[size] * dimensions) * torch.rand(4, 1, *[1] * dimensions) * 3
    biases_only(model, "6.weight")
    assert_like_the_loop(model, x, torch.tensor([0, 1, 2, 0]))


class _Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1, -2).mean(dim=1)


@settings(max_examples=15, deadline=None)
@given(
    positions=st.lists(st.integers(1, 4), min_size=0, max_size=2),
    features=st.integers(1, 6),
    norm=st.booleans(),
)
def test_linear_layers_on_positions(positions: list[int], features: int, norm: bool) -> None:
    torch.manual_seed(features)
    model = nn.Sequential(
        nn.Linear(features, 7), nn.LayerNorm(7) if norm else nn.Tanh(), nn.Linear(7, 5), nn.Tanh()
    )
    if positions:
        model.append(_Mean())
    model.append(nn.Linear(5, 3))
    biases_only(model, "0.weight", "2.weight", f"{len(model) - 1}.weight")
    x = torch.randn(5, *positions, features)
    assert_like_the_loop(model, x, torch.tensor([0, 1, 2, 0, 1]))


@pytest.mark.parametrize(
    "norm",
    [
        BatchNormAct2d(4),
        GroupNormAct(4, group_size=2),
        LayerNorm2d(4),
        LayerNormAct2d(4, inplace=False),
        nn.GroupNorm(2, 4),
        nn.BatchNorm2d(4),
        nn.LayerNorm((4, 4, 4)),
        nn.Sequential(nn.Flatten(2), LayerNormAct(16)),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_norms_with_and_without_activation(norm: nn.Module) -> None:
    """On 4 channels and 4 x 4 positions no shape tells which dimension the channels are."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm, nn.Flatten(), nn.Linear(64, 3))
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    set_training_mode(biases_only(model))
    assert_like_the_loop(model, images(5, 4), torch.tensor([0, 1, 2, 0, 1]))


class _Twice(nn.Module):
    """Uses one layer twice, in a row and with another weight's bias."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.tied, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.tied.bias = self.inner.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.inner(x))
        hidden = torch.tanh(self.inner(hidden))
        return self.head(self.tied(input=hidden))


def test_shared_layers_and_biases_are_summed() -> None:
    torch.manual_seed(0)
    for weights in ((), ("inner.weight", "head.weight")):
        model = biases_only(_Twice(), *weights)
        assert_like_the_loop(model, torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1]))


class _InPlace(nn.Module):
    """As residual networks: activations and sums are written over the layers' outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(inplace=True))
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = self.first(x)
        x = self.second(shortcut)
        x += shortcut
        x = nn.functional.relu_(x).mean(dim=(2, 3))
        return self.head(x).mul_(2.0)


def test_in_place_operations_may_stay() -> None:
    torch.manual_seed(0)
    model = biases_only(_InPlace(), "head.weight")
    assert_like_the_loop(model, images(5, 6), torch.tensor([0, 1, 2, 0, 1]))
    assert model.first[2].inplace


def test_in_place_activations_on_positions_and_weights_without_bias() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 7), nn.ReLU(inplace=True), nn.LayerNorm(7), nn.SiLU(inplace=True), _Mean(),
        nn.Linear(7, 3, bias=False),
    )  # fmt: skip
    x, y = torch.randn(5, 4, 6), torch.tensor([0, 1, 2, 0, 1])
    for weights in ((), ("5.weight",)):
        assert_like_the_loop(biases_only(model, *weights), x, y)
    model.requires_grad_(False)[5].weight.requires_grad_(True)
    assert_like_the_loop(model, x, y)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(96, 8), nn.Tanh(), nn.Linear(8, 4),
    )  # fmt: skip
    return biases_only(model, "6.weight")


def test_empty_batch_gives_zeros_and_chunks_do_not_matter() -> None:
    x, y = images(7, 6), torch.arange(7) % 4
    model = small_model()
    trainable = [p for p in model.parameters() if p.requires_grad]
    empty = BiasEngine(model, 2).clipped_gradient_sum(x, y, np.array([], dtype=np.int64), 1.0)
    assert [total.shape for total in empty] == [p.shape for p in trainable]
    assert not flat(empty).any()
    sums = [
        flat(BiasEngine(model, physical).clipped_gradient_sum(x, y, np.arange(7), 0.5))
        for physical in (1, 3, 7, 100)
    ]
    assert all(torch.allclose(total, sums[0], rtol=1e-5, atol=1e-6) for total in sums)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("factors", [clip_factors, automatic_factors])
def test_a_broken_example_adds_zero(value: float, factors: Any) -> None:
    x, y = images(5, 6), torch.arange(5) % 4
    x[2] = value
    model = small_model()
    found = gradients_one_by_one(model, x, y)[2]
    engine = BiasEngine(model, 3, factors=factors)
    with_it = flat(engine.clipped_gradient_sum(x, y, np.arange(5), 0.5))
    without = flat(engine.clipped_gradient_sum(x, y, np.array([0, 1, 3, 4]), 0.5))
    assert with_it.isfinite().all()
    moved = float((with_it - without).norm())
    assert moved <= (0.5 * (1 + 1e-5) if found.isfinite().all() else 1e-5)
    alone = flat(engine.clipped_gradient_sum(x, y, np.array([2]), 0.5))
    assert found.isfinite().all() or not alone.any()


def test_a_head_on_an_infinite_input_adds_zero() -> None:
    """The product of the norms is NaN where the gradient is 0 and the input infinite."""
    model = nn.Sequential(nn.Linear(3, 2))
    x, y = torch.randn(3, 3), torch.tensor([0, 1, 0])
    engine = BiasEngine(model, 3)
    expected = flat(engine.clipped_gradient_sum(x, y, np.array([0, 2]), 0.5))
    x[1] = torch.tensor([float("inf"), 0.0, 1.0])
    assert torch.allclose(flat(engine.clipped_gradient_sum(x, y, np.arange(3), 0.5)), expected)


@pytest.mark.parametrize(
    "factors", [clip_factors, automatic_factors, lambda norms, bound: 100 + 0 * norms]
)
def test_no_example_adds_more_than_the_bound(factors: Any) -> None:
    model, y = small_model(), torch.arange(12) % 4
    x = images(12, 6) * torch.logspace(-6, 6, 12)[:, None, None, None]
    engine = BiasEngine(model, 5, factors=factors)
    for bound in (1e-3, 0.5, 20.0):
        for row in range(12):
            total = flat(engine.clipped_gradient_sum(x, y, np.array([row]), bound))
            assert float(total.norm()) <= bound * (1 + 1e-5)


@given(
    norm=st.floats(0, 2.0**100, width=32),
    bound=st.floats(1e-6, 1e6),
    gamma=st.floats(1e-6, 10.0),
)
def test_automatic_factors_bound_the_norm(norm: float, bound: float, gamma: float) -> None:
    factor = automatic_factors(torch.tensor([norm]), bound, gamma)
    assert float(factor.double() * norm) <= bound * (1 + 1e-6)
    assert float(factor) == pytest.approx(bound / (norm + gamma), rel=1e-5, abs=1e-37)


def test_automatic_factors_of_broken_norms_are_zero() -> None:
    norms = torch.tensor([float("nan"), float("inf"), 1.0])
    assert automatic_factors(norms, 1.0, gamma=1.0).tolist() == [0.0, 0.0, 0.5]
    with pytest.raises(BadInputError, match="gamma"):
        automatic_factors(norms, 1.0, gamma=0.0)


def test_automatic_clipping_agrees_with_the_loop() -> None:
    x, y = images(5, 6), torch.arange(5) % 4
    model = small_model()
    expected = torch.stack(
        [g * 0.7 / (g.norm() + 0.01) for g in gradients_one_by_one(model, x, y)]
    ).sum(0)
    engine = BiasEngine(model, 2, factors=automatic_factors)
    sums = flat(engine.clipped_gradient_sum(x, y, np.arange(5), 0.7))
    assert float((sums - expected).norm() / expected.norm()) < 1e-5


def test_several_labels_per_image() -> None:
    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")

    labels = torch.randint(0, 2, (5, 4)).float()
    assert_like_the_loop(small_model(), images(5, 6), labels, loss=loss)


class _Peak(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while these live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in self._known:
                    size = storage.nbytes()
                    key = id(storage)
                    self._known[key] = weakref.ref(
                        storage, lambda _, k=key, s=size: self._end(k, s)
                    )
                    self.now += size
                    self.most = max(self.most, self.now)
        return out

    def _end(self, key: int, size: int) -> None:
        self.now -= size
        del self._known[key]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet18", {"norm_layer": "groupnorm"}), ("vit_tiny_patch16_224", {"img_size": 32})],
)
def test_nothing_is_stored_beyond_what_plain_bias_training_stores(
    name: str, options: dict[str, Any]
) -> None:
    model = timm.create_model(name, num_classes=5, **options)
    head = "fc.weight" if name == "resnet18" else "head.weight"
    biases_only(model, head).train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    x, y = images(8, 32), torch.arange(8) % 5
    engine = BiasEngine(model, 8)
    engine.clipped_gradient_sum(x, y, np.arange(0), 1.0)  # the check

    def plain() -> None:
        chosen = x.index_select(0, torch.arange(8))
        torch.autograd.grad(cross_entropy(model(chosen), y), trainable)

    def private() -> None:
        engine.clipped_gradient_sum(x, y, np.arange(8), 1.0)

    saved, peaks = [], []
    for step in (plain, private):
        shapes: Counter[tuple[int, ...]] = Counter()

        def pack(tensor: torch.Tensor, shapes: Any = shapes) -> torch.Tensor:
            shapes[tuple(tensor.shape)] += 1
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            step()
        with _Peak() as peak:
            step()
        saved.append(shapes)
        peaks.append(peak.most)
    assert saved[0] == saved[1]
    assert peaks[0] > 2**20
    assert peaks[1] <= 1.05 * peaks[0]


def test_nothing_before_the_first_bias_is_differentiated() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model.requires_grad_(False)[4].bias.requires_grad_(True)
    x, y = torch.randn(5, 6), torch.arange(5) % 3
    assert_like_the_loop(model, x, y)
    saved: list[torch.Size] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        BiasEngine(model, 5).clipped_gradient_sum(x, y, np.arange(5), 1.0)
    assert saved
    assert not [shape for shape in saved if shape[-1:] == (6,)]


def test_nothing_outlives_a_step() -> None:
    model = small_model()
    engine = BiasEngine(model, 5)
    outputs: list[weakref.ref[torch.Tensor]] = []
    x, y = images(5, 6), torch.arange(5) % 4
    engine.clipped_gradient_sum(x, y, np.arange(5), 1.0)
    model[4].register_forward_hook(lambda *rest: outputs.append(weakref.ref(rest[2])))
    engine.clipped_gradient_sum(x, y, np.arange(5), 1.0)
    assert [output() for output in outputs] == [None]


class _RootBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.bias


class _Odd(nn.Module):
    """A bias by name that is no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.bias


def trainable(model: nn.Module, *names: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return model


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (trainable(small_model(), "0.weight", "0.bias"), "0.weight"),
        (trainable(small_model(), "1.weight"), "1.weight"),
        (trainable(_RootBias(), "bias"), "bias"),
        (nn.Sequential(_Odd(), nn.Linear(6, 3)), "0.bias"),
        (nn.MultiheadAttention(6, 2), "in_proj_weight"),
        (nn.Sequential(nn.Embedding(6, 2), nn.Linear(2, 3)), "0.weight"),
        (nn.Sequential(nn.LSTM(6, 3)), "0.weight_ih_l0"),
        (nn.Sequential(nn.Bilinear(6, 6, 3)), "0.weight"),
    ],
)
def test_parameters_without_a_rule_are_refused_by_name(model: nn.Module, name: str) -> None:
    assert not can_bias_engine(model)
    with pytest.raises(ModelError, match=rf"parameter {name}\n") as caught:
        BiasEngine(model, 4)
    assert "freeze it" in str(caught.value)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    model = nn.Linear(3, 2).requires_grad_(False)
    assert not can_bias_engine(model)
    with pytest.raises(ModelError, match="nothing to train"):
        BiasEngine(model, 4)


class _Scaled(nn.Linear):
    """A Linear layer whose bias is not simply added."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(x)


class _Escapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.inner.bias.square()


class _Mixes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


class _Windows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.reshape(-1, 3)).reshape(len(x), 2, 3).sum(dim=1)


class _Overwrites(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x) * 1.0
        out = self.second(hidden)
        hidden.mul_(2.0)
        return out + hidden


class _PerImage(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :3, None, None].expand(-1, -1, 2, 2) * torch.arange(1.0, 5.0).view(2, 2)


class _OnlyInTraining(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (2.0 if self.training else 1.0)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (biases_only(nn.Sequential(_Scaled(6, 3))), "parameter 0.bias disagree"),
        (biases_only(_Escapes()), "parameter inner.bias disagree"),
        (biases_only(nn.Sequential(nn.Linear(6, 3), nn.Tanh(), _Mixes())), "disagree"),
        (biases_only(_Windows()), "layer inner has no gradient per example"),
        (trainable(_Overwrites(), "second.weight"), "layer second is overwritten"),
        (biases_only(nn.Sequential(_OnlyInTraining(6, 3))), "disagree"),
        # timm's norm returns a view, and autograd forgets the view when it is written to.
        (
            biases_only(nn.Sequential(_PerImage(), nn.Conv2d(3, 3, 1), LayerNormAct2d(3), _Mean())),
            "parameter 2.bias disagree",
        ),
        # Behind a head of zeros every gradient would be zero, right or wrong.
        (biases_only(nn.Sequential(_Scaled(6, 3), nn.Linear(3, 3))), "parameter 0.bias disagree"),
    ],
)
def test_wrong_gradients_are_refused(model: nn.Module, word: str) -> None:
    if isinstance(model, nn.Sequential) and len(model) == 2:
        nn.init.zeros_(model[1].weight)
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    x, y = torch.randn(6, 6), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(ModelError, match=word):
        BiasEngine(model, 4).clipped_gradient_sum(x, y, np.arange(6), 1.0)
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())


def test_a_mean_of_losses_and_a_training_batch_norm_are_refused() -> None:
    x, y = images(6, 6), torch.zeros(6, dtype=torch.int64)
    engine = BiasEngine(small_model(), 4, loss=nn.functional.cross_entropy)
    with pytest.raises(ModelError, match="sum of the losses"):
        engine.clipped_gradient_sum(x, y, np.arange(6), 1.0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    engine = BiasEngine(biases_only(model), 4)
    engine.clipped_gradient_sum(x, y, np.arange(6), 1.0)
    model.train()
    with pytest.raises(ModelError, match=r"layer 1 .* training mode"):
        engine.clipped_gradient_sum(x, y, np.arange(6), 1.0)


def test_a_bias_that_is_not_used_gets_zero() -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "unused": nn.Linear(6, 3)})
    model.forward = lambda x: model["used"](x)
    sums = BiasEngine(biases_only(model), 4).clipped_gradient_sum(
        torch.randn(5, 6), torch.zeros(5, dtype=torch.int64), np.arange(5), 1.0
    )
    assert [bool(total.any()) for total in sums] == [True, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_engine_on_the_gpu_agrees_with_the_cpu(where: str) -> None:
    x, y = images(30, 6), torch.arange(30) % 4
    rows = np.arange(0, 30, 2)
    expected = flat(BiasEngine(small_model(), 8).clipped_gradient_sum(x, y, rows, 0.5))
    engine = BiasEngine(small_model().cuda(), 8)
    sums = engine.clipped_gradient_sum(x.to(where), y.to(where), rows, 0.5)
    assert all(total.is_cuda for total in sums)
    error = float((flat(sums).cpu() - expected).norm() / expected.norm())
    assert error < 1e-4  # TensorFloat-32 would be off by 1e-3
