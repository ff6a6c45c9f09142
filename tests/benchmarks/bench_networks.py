"""One step of private training of whole networks: ours against Opacus' hooks and ghost clipping.

A step is: gather a batch, forward, clipped and noised sum (but without privacy), SGD with momentum.
Networks are built as a study builds them, with random weights: BatchNorm as GroupNorm, no dropout.
For Opacus they are rebuilt with torch's norms, sums out of place and channels first (``suit_opacus``).
Parameters outside of layers, as a class token, are frozen in every variant: Opacus has no rule for
them. ``biases`` trains biases and the classifier, as the method ``bitfit`` does.

The variants run round-robin in one process on one thread; a figure is the median process CPU time
of a step (on CUDA: wall time). Memory is the peak above model and data, each variant alone in a
fresh process. A peer that refuses a network is shown with its own words.

    python tests/benchmarks/bench_networks.py [--device cuda] [--small] [--case bert] [--json]
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from steps import Batches, Step, engine_step, opacus_step, plain_step, suit_opacus
from tables import Table, clock, compared, show
from timing import median_ms, peak_of, peaks_alone
from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.source import TextInfo
from dpsweep.trainables.devices.peaks import freed_afterwards
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.per_example import make_engine
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import on_device

CLASSES = 10
OURS, BIASES, PLAIN = "dpsweep", "dpsweep biases", "not private"
HOOKS, GHOST = "Opacus hooks", "Opacus ghost"
VARIANTS = (OURS, BIASES, PLAIN, HOOKS, GHOST)
PEERS = (HOOKS, GHOST)


@dataclass(frozen=True)
class Case:
    """A network and its batches.

    Attributes:
        size: What it is called in the output, with its sizes.
        shape: Of a record.
        batch: Records of a batch.
        options: Of timm's network; of BertConfig.
    """

    size: str
    shape: tuple[int, ...]
    batch: int
    options: Mapping[str, Any]


#: Network -> model.name.
MODELS = {
    "resnet18": "timm/resnet18",
    "vit-b16": "timm/vit_base_patch16_224",
    "efficientnet-lite0": "timm/tf_efficientnet_lite0",
    "bert": "text/",
    "linear": "linear",
}
FULL = {
    "resnet18": Case("ResNet-18, 224 px", (3, 224, 224), 64, {}),
    "vit-b16": Case("ViT-B/16, 224 px", (3, 224, 224), 32, {}),
    "efficientnet-lite0": Case("EfficientNet-Lite0, 224 px", (3, 224, 224), 64, {}),
    "bert": Case("BERT-base, 128 tokens", (128,), 32, {}),
    "linear": Case("linear head, 3,969 features", (3969,), 4096, {}),
}
_TINY = {"depth": 2, "embed_dim": 192, "num_heads": 3}
_TINY_BERT = {
    "vocab_size": 1000,
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
}
SMALL = {
    "resnet18": Case("ResNet-18, 32 px", (3, 32, 32), 16, {}),
    "vit-b16": Case("ViT/16 of 2 layers, width 192, 64 px", (3, 64, 64), 16, _TINY),
    "efficientnet-lite0": Case("EfficientNet-Lite0, 32 px", (3, 32, 32), 8, {}),
    "bert": Case("BERT of 2 layers, width 128, 1,000 words, 32 tokens", (32,), 16, _TINY_BERT),
    "linear": Case("linear head, 512 features", (512,), 512, {}),
}


class Bench:
    """The data of a case, and one step function per variant."""

    def __init__(self, case: str, *, small: bool, device: str) -> None:
        self.name, self.case = case, (SMALL if small else FULL)[case]
        generator = torch.Generator().manual_seed(0)
        records = 4 * self.case.batch
        if self._is_text:
            vocabulary = self._bert_config().vocab_size
            x = torch.randint(1, vocabulary, (records, *self.case.shape), generator=generator)
            text = TextInfo(vocabulary, pad_id=0)
        else:
            x = torch.randn(records, *self.case.shape, generator=generator)
            text = None
        y = torch.randint(0, CLASSES, (records,), generator=generator)
        names = tuple(map(str, range(CLASSES)))
        self.info = DatasetInfo(
            "random", self.case.shape, CLASSES, records, 0, 0, 0, names, text=text
        )
        self.data = Batches(x.to(device), y.to(device), self.case.batch, device)

    @property
    def _is_text(self) -> bool:
        return self.name == "bert"

    def _bert_config(self) -> Any:
        from transformers import BertConfig

        return BertConfig(**self.case.options, num_labels=CLASSES)

    def model(self) -> nn.Module:
        """Return a network of its own as a study builds it, on the device."""
        return on_device(copy.deepcopy(self._built), self.data.device)

    @functools.cached_property
    def _built(self) -> nn.Module:
        """The network on the CPU: drawing a large one's weights takes seconds."""
        if not self._is_text:
            options = json.dumps(self.case.options) if self.case.options else None
            return build_model(MODELS[self.name], self.info, norm="group", seed=0, options=options)
        from transformers import BertForSequenceClassification
        from transformers.utils import logging

        logging.disable_progress_bar()
        with tempfile.TemporaryDirectory() as directory:
            BertForSequenceClassification(self._bert_config()).save_pretrained(directory)
            return build_model(f"text/{directory}", self.info, seed=0)

    def step_of(self, variant: str) -> Step:
        """Return a step of a variant, with a network of its own."""
        model, data = self.model(), self.data
        own = {id(parameter) for parameter in model.parameters(recurse=False)}
        head = _classifier(model)
        for name, parameter in model.named_parameters():
            is_bias = name.endswith("bias") or parameter is head.weight
            in_layer = id(parameter) not in own or parameter is head.weight or is_bias
            parameter.requires_grad_(is_bias if variant == BIASES else in_layer)
        if variant in PEERS:
            suit_opacus(model)
            model.to(memory_format=torch.contiguous_format)
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trainable, lr=0.001, momentum=0.9)
        if variant == PLAIN:
            return plain_step(model, data, optimizer)
        if variant == OURS:
            return engine_step(
                model, data, optimizer, make_engine(model, data.batch, expected_batch=data.batch)
            )
        if variant == BIASES:
            return engine_step(model, data, optimizer, BiasEngine(model, data.batch))
        return opacus_step(model, data, optimizer, ghost=variant == GHOST)


def _classifier(model: nn.Module) -> nn.Linear:
    """Return the last linear layer."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]


def variants_of(case: str) -> tuple[str, ...]:
    """Return what is compared: a linear head has no biases but its own."""
    return tuple(name for name in VARIANTS if case != "linear" or name != BIASES)


def steps_of_case(bench: Bench) -> tuple[dict[str, Step], dict[str, str]]:
    """Return a step of each variant that takes one, and the words of each peer that refuses."""
    steps: dict[str, Step] = {}
    refused: dict[str, str] = {}
    for variant in variants_of(bench.name):
        try:
            step = bench.step_of(variant)
            step()
        except Exception as error:
            if variant not in PEERS:
                raise
            refused[variant] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        else:
            steps[variant] = step
    return steps, refused


def measure(
    case: str, *, small: bool, device: str, rounds: int, steps: int, memory_repeats: int
) -> dict[str, Any]:
    """Return milliseconds of a step, extra MiB, and what peers refuse, of one network."""
    torch.set_num_threads(1)
    bench = Bench(case, small=small, device=device)
    variants, refused = steps_of_case(bench)
    times = median_ms(
        variants, rounds=rounds, repeats=lambda name: 1 if name in PEERS else steps, device=device
    )
    memory: dict[str, float] = {}
    if memory_repeats:
        command = [__file__, "--case", case, *(["--small"] if small else [])]
        with freed_afterwards(device):
            del variants  # on a GPU they take the memory of those that are measured alone
        memory = peaks_alone(command, times, device, memory_repeats)
    return {
        "size": bench.case.size,
        "batch": bench.case.batch,
        "ms": times,
        "MiB": memory,
        "refused": refused,
    }


def peak_bytes(case: str, variant: str, *, small: bool, device: str) -> int:
    """Return the peak memory of three steps above what was there before; run in a new process."""
    torch.set_num_threads(1)
    bench = Bench(case, small=small, device=device)
    bench.step_of(PLAIN)()  # what torch loads and keeps at its first step is not the variant's
    return peak_of(bench.step_of(variant), device)


def table_of(result: Mapping[str, Any], caption: str = "") -> Table:
    """Return the table of one network; a peer that refuses it says why."""
    times = compared(result["ms"], OURS, {}, is_time=True)
    memory = compared(result["MiB"], OURS, {}, is_time=False)
    heads = ["ms", "whole network takes"]
    heads += ["extra MiB", "whole network takes"] if memory else []
    rows = [(name, *times[name][:2], *memory.get(name, ())[:2]) for name in times]
    blank = ("",) * (len(heads) - 1)
    for name, reason in result["refused"].items():
        rows.append((name, f"refused: {reason[:160]}", *blank))
    return Table((f"{result['size']}, batch {result['batch']}", *heads), tuple(rows), caption)


def main(words: list[str] | None = None) -> None:
    """Measure and print a table per network, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=tuple(MODELS), help="one network alone")
    parser.add_argument("--small", action="store_true", help="few pixels, layers and records")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--memory-repeats", type=int, default=1, help="0: no memory")
    parser.add_argument("--peak-of", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    shape = {"small": options.small, "device": options.device}
    if options.peak_of:
        print(peak_bytes(options.case, options.peak_of, **shape))
        return
    results, tables = {}, []
    for case in [options.case] if options.case else MODELS:
        results[case] = measure(
            case,
            rounds=options.rounds,
            steps=options.steps,
            memory_repeats=options.memory_repeats,
            **shape,
        )
        caption = f"A step, {clock(options.device, options.rounds)}." if not tables else ""
        tables.append(table_of(results[case], caption))
        if options.json:  # seen also where time does not do for all
            print(tables[-1].markdown(), file=sys.stderr, flush=True)
    show(tables, results, as_json=options.json)


if __name__ == "__main__":
    main()
