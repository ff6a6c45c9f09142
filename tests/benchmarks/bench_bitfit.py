"""One step of bias training: the bias engine against plain autograd and Opacus.

A step is: gather a batch, gradient (clipped and noised, except without privacy), SGD with momentum.
Biases and the classifier train; all layers in the variants that are full. The variants run round-robin in
one process on one thread; a figure is the median process CPU time of a step, which a busy machine
disturbs less than wall time (on CUDA: wall time). Memory is the peak above model and data: on the
CPU that of the resident set, each variant alone in a fresh process (Linux).

Opacus' hooks refuse in-place sums and timm's norm classes cost it time: its models are rebuilt
with torch's norms and sums out of place. The others run on timm's model as it is.

    python tests/benchmarks/bench_bitfit.py [--case resnet18-32] [--rounds 7] [--json]
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from tables import Table, clock, compared, show
from timing import median_ms, resident_bytes
from torch import nn

from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.gradients.per_example import GradientEngine, make_engine

NOISE_MULTIPLIER = 1.0
MAX_GRAD_NORM = 0.1
RECORDS, CLASSES = 128, 10
#: Name -> (timm model, its options, image size, batch).
CASES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "resnet18-32": ("resnet18", {"norm_layer": "groupnorm"}, 32, 32),
    "vit-tiny-96": ("vit_tiny_patch16_224", {"img_size": 96}, 96, 32),
}
PLAIN, ENGINE = "non-private biases", "bias engine"
FULL = "dpsweep full"
OPACUS, OPACUS_FULL = "Opacus biases", "Opacus full"
#: Variant -> its row.
ROWS = {
    ENGINE: "bias engine (`bitfit`)",
    PLAIN: "plain torch, biases and classifier, not private",
    FULL: "whole network (`bitfit.variant: full`, `dp_sgd`)",
    OPACUS: "Opacus hooks, biases and classifier",
    OPACUS_FULL: "Opacus hooks, whole network",
}
VARIANTS = tuple(ROWS)
#: Case -> head of its table.
TITLES = {"resnet18-32": "ResNet-18 with GroupNorm, 32 px", "vit-tiny-96": "ViT-tiny, 96 px"}
#: Case -> variant -> largest ratio of the engine's time to the variant's.
TIME_GOALS = {
    "resnet18-32": {PLAIN: 1.02, FULL: 1 / 2.5, OPACUS: 0.95, OPACUS_FULL: 1 / 25},
    "vit-tiny-96": {PLAIN: 1.02, FULL: 1 / 2.5, OPACUS: 0.95, OPACUS_FULL: 1 / 2.5},
}
#: The same for memory.
MEMORY_GOALS: dict[str, dict[str, float | None]] = {
    "resnet18-32": {PLAIN: 1.05, OPACUS: None, OPACUS_FULL: 0.04},
    "vit-tiny-96": {PLAIN: 1.05, OPACUS: 0.8, OPACUS_FULL: 0.2},
}


def _basic_block(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """timm's BasicBlock, as ResNet-18 uses it, without in-place operations."""
    shortcut = x if self.downsample is None else self.downsample(x)
    x = self.act1(self.bn1(self.conv1(x)))
    return self.act2(self.bn2(self.conv2(x)) + shortcut)


def _suit_opacus(model: nn.Module) -> None:
    for module in list(model.modules()):
        if getattr(module, "inplace", False):
            module.inplace = False
        if isinstance(module, timm.models.resnet.BasicBlock):
            module.forward = types.MethodType(_basic_block, module)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GroupNorm):
                new = nn.GroupNorm(child.num_groups, child.num_channels, eps=child.eps)
            elif isinstance(child, nn.LayerNorm):
                new = nn.LayerNorm(child.normalized_shape, eps=child.eps)
            else:
                continue
            for parameter, old in zip(new.parameters(), child.parameters()):
                parameter.data = old.data
                parameter.requires_grad_(old.requires_grad)
            setattr(module, name, new)


class Bench:
    """The data, and one step function per variant."""

    def __init__(self, case: str, device: str) -> None:
        self.name, self.options, size, self.batch = CASES[case]
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(RECORDS, 3, size, size, generator=generator).to(device)
        self.y = torch.randint(0, CLASSES, (RECORDS,), generator=generator).to(device)
        self.device = device
        self.rng = np.random.default_rng(0)

    def rows(self) -> np.ndarray:
        return self.rng.choice(RECORDS, self.batch, replace=False)

    def step_of(self, variant: str) -> Callable[[], None]:
        torch.manual_seed(0)
        model = timm.create_model(self.name, num_classes=CLASSES, **self.options)
        for name, parameter in model.named_parameters():
            biased = name.endswith("bias") or name == "head.weight" or name == "fc.weight"
            in_layer = "." in name  # Opacus has no rule for parameters of the model itself
            parameter.requires_grad_(in_layer if variant in (FULL, OPACUS_FULL) else biased)
        model.to(self.device).train()
        if variant == PLAIN:
            return self._plain(model)
        if variant == ENGINE:
            return self._engine(model, BiasEngine(model, self.batch))
        if variant == FULL:
            return self._engine(model, make_engine(model, self.batch))
        return self._opacus(model)

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        trainable = [p for p in model.parameters() if p.requires_grad]
        return torch.optim.SGD(trainable, lr=0.001, momentum=0.9)

    def _gather(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.from_numpy(self.rows()).to(self.device)
        return self.x[rows], self.y[rows]

    def _plain(self, model: nn.Module) -> Callable[[], None]:
        optimizer = self._optimizer(model)

        def step() -> None:
            x, y = self._gather()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    def _engine(self, model: nn.Module, engine: GradientEngine) -> Callable[[], None]:
        optimizer = self._optimizer(model)
        # The check against autograd, once before the first batch, is no part of a step.
        engine.clipped_gradient_sum(self.x, self.y, self.rows()[:0], MAX_GRAD_NORM)
        noise = SecretNoise(self.device)
        trainable = [p for p in model.parameters() if p.requires_grad]

        def step() -> None:
            sums = engine.clipped_gradient_sum(self.x, self.y, self.rows(), MAX_GRAD_NORM)
            for parameter, total in zip(trainable, sums):
                drawn = noise.like(total, NOISE_MULTIPLIER * MAX_GRAD_NORM)
                parameter.grad = total.add_(drawn).div_(self.batch).float()
            optimizer.step()

        return step

    def _opacus(self, model: nn.Module) -> Callable[[], None]:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        _suit_opacus(model)
        wrapped = GradSampleModule(model)
        optimizer = DPOptimizer(
            self._optimizer(model),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=MAX_GRAD_NORM,
            expected_batch_size=self.batch,
        )

        def step() -> None:
            x, y = self._gather()
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Full backward hook is firing when")
                nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()

        return step


def measure_times(case: str, *, rounds: int, steps: int, device: str) -> dict[str, float]:
    """Return the median milliseconds of a step for every variant."""
    bench = Bench(case, device)
    variants = {name: bench.step_of(name) for name in VARIANTS}
    return median_ms(
        variants,
        rounds=rounds,
        repeats=lambda name: 1 if name == OPACUS_FULL else steps,
        device=device,
    )


def peak_bytes(case: str, variant: str, device: str) -> int:
    """Return the peak memory of three steps above what was there before; run in a new process."""
    bench = Bench(case, device)
    bench.step_of(PLAIN)()  # what torch loads and keeps at its first step is not the variant's
    step = bench.step_of(variant)
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
        before = resident_bytes("VmRSS")
    for _ in range(3):
        step()
    return (
        torch.cuda.max_memory_allocated() if device == "cuda" else resident_bytes("VmHWM")
    ) - before


def measure_memory(case: str, device: str, repeats: int) -> dict[str, float]:
    """Return the median of the peaks in MiB for every variant; empty where it is not measurable."""
    if device == "cpu" and not Path("/proc/self/clear_refs").exists():
        return {}
    peaks = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, "--case", case, "--device", device]
        # Large tensors in pages of their own, which go back when they are freed.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        run = functools.partial(
            subprocess.run, check=True, capture_output=True, text=True, env=environment
        )
        outputs = [run([*command, "--peak-of", variant]).stdout for _ in range(repeats)]
        peaks[variant] = statistics.median(int(out.split()[-1]) for out in outputs) / 2**20
    return peaks


def main() -> None:
    """Measure and print the table of each case, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=tuple(CASES), help="one case alone")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--memory-repeats", type=int, default=1, help="0: no memory")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peak-of", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak_of:
        print(peak_bytes(options.case, options.peak_of, options.device))
        return
    results: dict[str, dict[str, dict[str, float]]] = {}
    tables: list[Table] = []
    for case in [options.case] if options.case else CASES:
        times = measure_times(
            case, rounds=options.rounds, steps=options.steps, device=options.device
        )
        memory = {}
        if options.memory_repeats:
            memory = measure_memory(case, options.device, options.memory_repeats)
        results[case] = {"ms": times, "MiB": memory}
        caption = ""
        if not tables:
            caption = (
                "A step (gather, clipped and noised gradient, SGD), "
                f"{clock(options.device, options.rounds)}; memory is the peak above model and "
                "data, each variant alone."
            )
        tables.append(table(case, times, memory, caption))
    show(tables, results, as_json=options.json)


def table(case: str, times: dict[str, float], memory: dict[str, float], caption: str) -> Table:
    """Return times and, where it was measured, memory of a case, beside their goals."""
    of_time = compared(times, ENGINE, TIME_GOALS[case], is_time=True)
    of_memory = compared(memory, ENGINE, MEMORY_GOALS[case], is_time=False)
    heads = ["ms", "the bias engine takes", "goal"]
    heads += ["extra MiB", "the bias engine takes", "goal"] if memory else []
    return Table(
        (f"{TITLES[case]}, batch {CASES[case][3]}", *heads),
        tuple((ROWS[name], *of_time[name], *of_memory.get(name, ())) for name in times),
        caption,
    )


if __name__ == "__main__":
    main()
