"""Small trainable parts of a network that is trained already: LoRA, adapters, added biases.

Each part is torch's own classes in a ``torch.fx.GraphModule``, so that a network that has them is
saved and loaded without this package. Everything a part starts from is public: zeros and draws of
a seed that may be known. Added parts leave the outputs of the network as they were, until trained.

Guarantees:
    Where parts are put depends on the network alone. Nothing here sees a record.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.networks.layers import head_layers

#: In the name or class of a module: what is in it belongs to an attention, or to an MLP.
_ATTENTION = ("attn", "attention")
_MLP = ("mlp", "ffn", "feedforward", "feed_forward")
#: Own names of the last layers of an attention and of an MLP in timm and transformers.
_ATTENTION_OUTPUTS = ("proj", "out_proj", "o_proj", "out_lin", "c_proj", "to_out")
_MLP_OUTPUTS = ("fc2", "lin2", "c_proj", "down_proj")
#: What BERT and its kin call the last layer of both.
_BERT_OUTPUT = ["output", "dense"]


def add_lora(model: nn.Module, rank: int, alpha: float, seed: int) -> list[str]:
    """Give every linear layer of an attention a low-rank update: y = W x + (alpha / rank) B A x.

    A (rank, in) is random and B (out, rank) zero (Hu et al. 2021, https://arxiv.org/abs/2106.09685,
    section 4.1). A linear layer is an ``nn.Linear`` or the ``Conv1D`` of transformers; it belongs
    to an attention if that is the nearest module around it whose name or class has ``attn`` or
    ``attention`` in it and none with ``mlp`` or ``ffn`` is nearer: ``qkv`` and ``proj`` in timm,
    ``query``, ``key``, ``value`` and ``output.dense`` in BERT, ``q_proj``, ``k_proj``, ``v_proj``
    and ``o_proj`` elsewhere. Layers of the classifier stay as they are.

    >>> block = nn.ModuleDict({"attn": nn.ModuleDict({"qkv": nn.Linear(6, 18)})})
    >>> add_lora(block, rank=2, alpha=8.0, seed=0)
    ['attn.qkv.down', 'attn.qkv.up']
    >>> [tuple(p.shape) for p in block.attn.qkv.down.parameters()]
    [(2, 6)]

    Args:
        model: Network on the CPU, changed in place: layer L becomes ``L.base`` beside ``L.down``
            (A) and ``L.up`` (B).
        rank: Rank of the updates, at least 1.
        alpha: Scale of the updates times the rank; positive.
        seed: Seed of A, public; the global generator is left as it was.
    Returns:
        Names of the added layers.
    Raises:
        ModelError: The network has no such layer.
    """

    def with_update(base: nn.Module) -> fx.GraphModule:
        size_in, size_out = _sizes(base)
        down = nn.Linear(size_in, rank, bias=False)
        up = nn.Linear(rank, size_out, bias=False)
        graph = fx.Graph()
        x = graph.placeholder("x")
        output = graph.call_module("base", (x,))
        update = graph.call_module("up", (graph.call_module("down", (x,)),))
        graph.output(graph.call_function(torch.add, (output, update), {"alpha": alpha / rank}))
        return _module({"base": base, "down": down, "up": up}, graph)

    return _replace(model, _attention_layers(model), with_update, seed)


def add_adapters(model: nn.Module, width: int, seed: int) -> list[str]:
    """Put y + U gelu(D y) behind the last layer of every attention and of every MLP.

    D (width, out) is random and U (out, width) zero, both with a bias of zero at first (Houlsby
    et al. 2019, https://arxiv.org/abs/1902.00751, figure 2). Attentions are those of ``add_lora``;
    of each, the layer named ``proj``, ``out_proj``, ``o_proj``, ``out_lin``, ``c_proj`` or
    ``output.dense``; of an MLP ``fc2``, ``lin2``, ``c_proj``, ``down_proj`` or ``output.dense``.

    >>> block = nn.ModuleDict({"attn": nn.ModuleDict({"proj": nn.Linear(6, 6)})})
    >>> add_adapters(block, width=2, seed=0)
    ['attn.proj.down', 'attn.proj.up']

    Args:
        model: Network on the CPU, changed in place: layer L becomes ``L.base`` before ``L.down``
            (D) and ``L.up`` (U).
        width: Outputs of D, at least 1.
        seed: Seed of D, public; the global generator is left as it was.
    Returns:
        Names of the added layers.
    Raises:
        ModelError: The network has no attention, or none with such a layer.
    """

    def with_adapter(base: nn.Module) -> fx.GraphModule:
        _, size = _sizes(base)
        down, up = nn.Linear(size, width), nn.Linear(width, size)
        for bias in (down.bias, up.bias):
            nn.init.zeros_(bias)
        graph = fx.Graph()
        output = graph.call_module("base", (graph.placeholder("x"),))
        narrow = graph.call_module("act", (graph.call_module("down", (output,)),))
        added = graph.call_module("up", (narrow,))
        graph.output(graph.call_function(torch.add, (output, added)))
        return _module({"base": base, "down": down, "act": nn.GELU(), "up": up}, graph)

    names = [n for n in _attention_layers(model) if _is_output(n, _ATTENTION_OUTPUTS)]
    if not names:
        raise ModelError(
            "the attentions of this network have no last layer that adapters know by its name",
            because=f"it is called {', '.join(_ATTENTION_OUTPUTS)} or {'.'.join(_BERT_OUTPUT)}",
            fix="use bitfit.variant: lora, or another network",
        )
    return _replace(model, names + _mlp_outputs(model), with_adapter, seed)


def add_biases(model: nn.Module) -> list[str]:
    """Give every linear, convolution and normalisation layer that has no bias one of zeros.

    The parameters that DP-BiTFiT-Add trains besides those that are there (Bu et al. 2024,
    https://arxiv.org/abs/2210.00036). A layer whose weights are frozen in the network, such as the
    normalisation of images before it, stays as it is; so does a normalisation without weights.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Linear(4, 2))
    >>> add_biases(model), model[0].bias.tolist()
    (['0'], [0.0, 0.0, 0.0, 0.0])

    Args:
        model: Network on the CPU, changed in place.
    Returns:
        Names of the layers that have got one.
    """
    paths = []
    for path, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(layer, (nn.Linear, _ConvNd, nn.GroupNorm, nn.LayerNorm, _BatchNorm)):
            continue
        if layer.bias is not None or weight is None or not weight.requires_grad:
            continue
        if isinstance(layer, nn.LayerNorm):
            shape = layer.normalized_shape
        elif isinstance(layer, _ConvNd):
            shape = (layer.out_channels,)
        else:
            shape = (len(weight),)
        layer.bias = nn.Parameter(torch.zeros(shape, dtype=weight.dtype, device=weight.device))
        paths.append(path)
    return paths


def _sizes(layer: nn.Module) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a linear layer."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return int(weight.shape[0]), int(weight.shape[1])  # the Conv1D of transformers


def _is_linear(layer: nn.Module) -> bool:
    # By name, so that transformers is not imported for its sake.
    names = {f"{c.__module__}.{c.__name__}" for c in type(layer).__mro__}
    return isinstance(layer, nn.Linear) or "transformers.pytorch_utils.Conv1D" in names


def _surroundings(model: nn.Module, path: str) -> list[tuple[str, str]]:
    """Return (own name, class) of the modules around a layer, the nearest first, in small letters.

    The network itself is left out: the class of a whole network says nothing of a layer.
    """
    parts = path.split(".")[:-1]
    paths = [".".join(parts[: end + 1]) for end in range(len(parts))]
    around = [(p.rpartition(".")[2], type(model.get_submodule(p)).__name__) for p in paths]
    return [(name.lower(), kind.lower()) for name, kind in reversed(around)]


def _has(words: tuple[str, ...], *names: str) -> bool:
    return any(word in name for word in words for name in names)


def _attention_layers(model: nn.Module) -> list[str]:
    head = head_layers(model)
    paths = []
    for path, layer in model.named_modules():
        if not _is_linear(layer) or path in head:
            continue
        if isinstance(model.get_submodule(path.rpartition(".")[0]), nn.MultiheadAttention):
            continue  # it reads the layer's weight itself
        for around in _surroundings(model, path):
            if _has(_MLP, *around):
                break
            if _has(_ATTENTION, *around):
                paths.append(path)
                break
    if not paths:
        raise _no_attention()
    return paths


def _mlp_outputs(model: nn.Module) -> list[str]:
    head, attention = head_layers(model), set(_attention_layers(model))
    paths = []
    for path, layer in model.named_modules():
        if not _is_linear(layer) or path in head or path in attention:
            continue
        around = _surroundings(model, path)
        if any(_has(_ATTENTION, kind) for _, kind in around):
            continue  # an MLP that makes the biases of an attention, not one of a block
        is_in_mlp = bool(around) and _has(_MLP, *around[0])
        if path.split(".")[-2:] == _BERT_OUTPUT or (is_in_mlp and _is_output(path, _MLP_OUTPUTS)):
            paths.append(path)
    return paths


def _is_output(path: str, names: tuple[str, ...]) -> bool:
    parts = path.split(".")
    return parts[-1] in names or parts[-2:] == _BERT_OUTPUT


def _no_attention() -> ModelError:
    return ModelError(
        "this network has no linear layer in an attention, which LoRA and adapters belong to",
        fix="use a transformer, or another bitfit.variant",
    )


def _module(parts: dict[str, nn.Module], graph: fx.Graph) -> fx.GraphModule:
    graph.lint()
    return fx.GraphModule(parts, graph)


def _replace(
    model: nn.Module, paths: list[str], make: Callable[[nn.Module], fx.GraphModule], seed: int
) -> list[str]:
    """Put what ``make`` makes of the layers in their places; return the names of what is new."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for path in paths:
            parent, _, own = path.rpartition(".")
            new = make(model.get_submodule(path))
            nn.init.zeros_(new.get_parameter("up.weight"))
            setattr(model.get_submodule(parent), own, new)
    return [f"{path}.{part}" for path in paths for part in ("down", "up")]
