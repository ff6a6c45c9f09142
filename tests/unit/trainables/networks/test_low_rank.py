"""Added parts: where they go, that they change nothing at first, and what they compute then."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from gradients import relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.networks.low_rank import add_adapters, add_biases, add_lora


def vit() -> nn.Module:
    torch.manual_seed(0)
    options = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, **options).eval()


def add(kind: str, model: nn.Module) -> list[str]:
    if kind == "lora":
        return add_lora(model, rank=2, alpha=8.0, seed=0)
    return add_adapters(model, width=4, seed=0)


def filled(model: nn.Module) -> nn.Module:
    """Give parts that start at zero other values, as training does."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["lora", "adapter"])
def test_added_parts_change_nothing_until_they_are_trained(kind: str, images: torch.Tensor) -> None:
    model = vit()
    state = torch.get_rng_state()
    before = model(images)
    added = add(kind, model)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model(images), before)
    assert not torch.allclose(filled(model)(images), before, atol=1e-3)
    layers = ("attn.qkv", "attn.proj") if kind == "lora" else ("attn.proj", "mlp.fc2")
    expected = {f"blocks.{b}.{n}.{p}" for b in (0, 1) for n in layers for p in ("down", "up")}
    assert set(added) == expected
    assert len(added) == len(expected)


@given(st.integers(1, 6), st.floats(0.1, 32), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_lora_is_the_merged_weight(rank: int, alpha: float, seed: int) -> None:
    base = nn.Linear(5, 7)
    block = nn.ModuleDict({"attn": nn.ModuleDict({"qkv": base})})
    add_lora(block, rank, alpha, seed)
    layer = filled(block).get_submodule("attn.qkv")
    down, up = layer.get_parameter("down.weight"), layer.get_parameter("up.weight")
    assert (down.shape, up.shape) == ((rank, 5), (7, rank))
    merged = base.weight + alpha / rank * up @ down
    x = torch.randn(3, 4, 5)
    torch.testing.assert_close(
        layer(x), nn.functional.linear(x, merged, base.bias), rtol=1e-4, atol=1e-4
    )


def test_an_adapter_is_its_formula() -> None:
    base = nn.Linear(5, 7)
    block = nn.ModuleDict({"attn": nn.ModuleDict({"proj": base})})
    add_adapters(block, width=3, seed=0)
    layer = filled(block).get_submodule("attn.proj")
    y = base(torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)))
    expected = y + layer.get_submodule("up")(nn.functional.gelu(layer.get_submodule("down")(y)))
    found = layer(torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(found, expected)


def test_the_seed_alone_says_what_a_part_starts_from() -> None:
    first, second, other = vit(), vit(), vit()
    name = add_lora(first, 2, 8.0, seed=3)[0] + ".weight"
    torch.rand(17)
    add_lora(second, 2, 8.0, seed=3)
    add_lora(other, 2, 8.0, seed=4)
    assert torch.equal(first.get_parameter(name), second.get_parameter(name))
    assert not torch.equal(first.get_parameter(name), other.get_parameter(name))


PARTS = {
    "bert": {
        "lora": ["attention.self.query", "attention.self.key", "attention.self.value",
                 "attention.output.dense"],
        "adapter": ["attention.output.dense", "output.dense"],
    },
    "distilbert": {
        "lora": ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"],
        "adapter": ["attention.out_lin", "ffn.lin2"],
    },
    "gpt2": {"lora": ["attn.c_attn", "attn.c_proj"], "adapter": ["attn.c_proj", "mlp.c_proj"]},
}  # fmt: skip


def text_model(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 40, "num_labels": 3}
    if name == "bert":
        config = transformers.BertConfig(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            **sizes,
        )
        return transformers.BertForSequenceClassification(config).eval()
    if name == "distilbert":
        config = transformers.DistilBertConfig(
            dim=24, n_layers=2, n_heads=2, hidden_dim=32, **sizes
        )
        return transformers.DistilBertForSequenceClassification(config).eval()
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = transformers.GPT2Config(n_embd=24, n_layer=2, n_head=2, **sizes, **ends)
    return transformers.GPT2ForSequenceClassification(config).eval()


class _Logits(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.encoder(input_ids=tokens).logits


@pytest.mark.parametrize("kind", ["lora", "adapter"])
@pytest.mark.parametrize("name", PARTS)
def test_text_encoders(name: str, kind: str) -> None:
    """Where the parts go, and that gradients per example are those of a plain loop."""
    model = _Logits(text_model(name))
    tokens = torch.randint(1, 40, (4, 6), generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 1, 2])
    before = model(tokens)
    added = add(kind, model)
    assert {n for n in PARTS[name][kind] if any(a.endswith(f".{n}.down") for a in added)} == set(
        PARTS[name][kind]
    )
    assert len(added) == 2 * 2 * len(PARTS[name][kind])
    assert torch.equal(model(tokens), before)
    filled(model)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter_name.rpartition(".")[0] in added)
    trained = [p for p in model.parameters() if p.requires_grad]
    expected = [torch.zeros_like(p, dtype=torch.float64) for p in trained]
    for row in range(4):
        loss = nn.functional.cross_entropy(model(tokens[row : row + 1]), labels[row : row + 1])
        found = torch.autograd.grad(loss, trained)
        norm = torch.cat([g.flatten() for g in found]).norm()
        for total, g in zip(expected, found):
            total += g * min(1.0, 0.5 / float(norm))
    for module in model.modules():  # dropout draws for a batch, not for each record
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    engine = BiasEngine(model, 3)
    sums = engine.clipped_gradient_sum(tokens, labels, np.arange(4), 0.5)
    assert relative_error(sums, expected) < 1e-4


class _Reads(nn.Module):
    """An attention that reads its layer's weight, as that of BEiT does."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.qkv.weight)


def test_a_weight_that_is_read_is_not_passed_by() -> None:
    """An update that has no effect would be trained on noise alone: better no output at all."""
    model = nn.ModuleDict({"attn": _Reads()})
    add_lora(model, 2, 8.0, seed=0)
    with pytest.raises(AttributeError, match="weight"):
        model["attn"](torch.randn(2, 4))


@pytest.mark.parametrize("name", ["resnet18", "mixer_s32_224", "convnext_atto"])
@pytest.mark.parametrize("kind", ["lora", "adapter"])
def test_networks_without_attention_are_refused(name: str, kind: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(ModelError, match="no linear layer in an attention"):
        add(kind, model)


def test_an_attention_whose_last_layer_has_another_name_is_no_missing_attention() -> None:
    """ALBERT calls it ``attention.dense``: LoRA has a place there."""
    names = ("query", "key", "value", "dense")
    block = nn.ModuleDict({"attention": nn.ModuleDict({n: nn.Linear(4, 4) for n in names})})
    with pytest.raises(ModelError, match="no last layer that adapters know") as error:
        add("adapter", block)
    assert "o_proj" in str(error.value.because)
    assert "lora" in str(error.value.fix)
    assert len(add("lora", block)) == 8


def test_torchs_own_attention_is_left_alone() -> None:
    """It reads the weight of its output layer itself, in a kernel of its own."""
    with pytest.raises(ModelError, match="no linear layer in an attention"):
        add("lora", nn.TransformerEncoderLayer(8, 2, dim_feedforward=8))


def test_the_biases_of_an_attention_are_no_block() -> None:
    with torch.device("meta"):
        model = timm.create_model("vit_relpos_small_patch16_224")
    assert any("attn.rel_pos.mlp.fc2" in name for name, _ in model.named_modules())
    added = add("adapter", model)
    assert not [name for name in added if "rel_pos" in name]
    assert len(added) == 12 * 2 * 2


LAYERS = {
    "0": nn.Conv2d(3, 4, 3, bias=False),
    "1": nn.GroupNorm(2, 4),
    "2": nn.Conv1d(4, 6, 1, bias=False),
    "3": nn.LayerNorm([6, 2], bias=False),
    "4": nn.LayerNorm(5, elementwise_affine=False),
    "5": nn.Linear(5, 2, bias=False),
    "6": nn.Linear(2, 2),
    "7": nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False),
}


def test_biases_are_added_where_there_are_none() -> None:
    model = nn.ModuleDict(LAYERS)
    frozen = nn.Conv2d(1, 3, 1, bias=False).requires_grad_(False)
    model["frozen"] = frozen
    inputs = {
        "0": torch.randn(2, 3, 4, 4), "2": torch.randn(2, 4, 5), "3": torch.randn(2, 6, 2),
        "5": torch.randn(2, 5), "7": torch.randn(2, 4, 3, 3),
    }  # fmt: skip
    before = {name: model[name](x) for name, x in inputs.items()}
    assert set(add_biases(model)) == set(inputs)
    assert add_biases(model) == []
    for name, x in inputs.items():
        assert torch.equal(model[name](x), before[name])
        with torch.no_grad():
            model[name].bias += torch.arange(1.0, model[name].bias.numel() + 1).view_as(
                model[name].bias
            )
        moved = model[name](x) - before[name]
        positions = (0, 2, 3)[: moved.dim() - 1] if name in ("0", "2", "7") else 0
        torch.testing.assert_close(moved.mean(positions), model[name].bias)
    assert frozen.bias is None


def small() -> nn.Module:
    """The names of an attention and nothing else, so that a new process needs torch alone."""
    torch.manual_seed(0)
    attention = nn.Sequential(OrderedDict(qkv=nn.Linear(6, 9), proj=nn.Linear(9, 6)))
    return nn.Sequential(OrderedDict(attn=attention, head=nn.Linear(6, 3))).eval()


@pytest.mark.parametrize("kind", ["lora", "adapter"])
def test_a_network_of_timm_is_pickled_without_this_package(kind: str, images: torch.Tensor) -> None:
    model = vit()
    add(kind, model)
    assert {type(m).__module__.partition(".")[0] for m in model.modules()} <= {"torch", "timm"}
    content = pickle.dumps(filled(model))
    assert b"dpsweep" not in content
    assert torch.equal(pickle.loads(content)(images), model(images))


@pytest.mark.slow
def test_parts_are_loaded_where_this_package_is_not(tmp_path: Path) -> None:
    x = torch.randn(4, 6)
    saved = {"x": x}
    for kind in ("lora", "adapter"):
        model = small()
        add(kind, model)
        saved[kind] = filled(model)(x)
        (tmp_path / kind).write_bytes(pickle.dumps(model))
    torch.save(saved, tmp_path / "tensors.pt")
    code = (
        "import sys; sys.modules['dpsweep'] = None\n"
        "import pickle, torch; from pathlib import Path; root = Path(sys.argv[1])\n"
        "saved = torch.load(root / 'tensors.pt')\n"
        "for kind in ('lora', 'adapter'):\n"
        "    model = pickle.loads((root / kind).read_bytes())\n"
        "    assert torch.allclose(model(saved['x']), saved[kind], atol=1e-6)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_parts_are_a_graph_for_torch() -> None:
    """As which a study stores its best model."""
    model, x = small(), torch.randn(4, 6)
    add("lora", model)
    filled(model)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.testing.assert_close(program.module()(x[:3]), model(x[:3]), rtol=1e-4, atol=1e-5)
