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
from typing import Any

import timm
import torch
from steps import Batches, Step, engine_step, opacus_step, plain_step, suit_opacus
from tables import Table, clock, compared, show
from timing import median_ms, peak_of, peaks_alone

from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.per_example import make_engine
from dpsweep.trainables.networks.layers import on_device

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


class Bench:
    """The data, and one step function per variant."""

    def __init__(self, case: str, device: str) -> None:
        self.name, self.options, size, self.batch = CASES[case]
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(RECORDS, 3, size, size, generator=generator).to(device)
        y = torch.randint(0, CLASSES, (RECORDS,), generator=generator).to(device)
        self.data = Batches(x, y, self.batch, device)

    def step_of(self, variant: str) -> Step:
        torch.manual_seed(0)
        model = timm.create_model(self.name, num_classes=CLASSES, **self.options)
        for name, parameter in model.named_parameters():
            biased = name.endswith("bias") or name == "head.weight" or name == "fc.weight"
            in_layer = "." in name  # Opacus has no rule for parameters of the model itself
            parameter.requires_grad_(in_layer if variant in (FULL, OPACUS_FULL) else biased)
        model = on_device(model, self.data.device).train()
        if variant in (OPACUS, OPACUS_FULL):
            suit_opacus(model)
            model.to(memory_format=torch.contiguous_format)
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trainable, lr=0.001, momentum=0.9)
        if variant == PLAIN:
            return plain_step(model, self.data, optimizer)
        if variant == ENGINE:
            return engine_step(model, self.data, optimizer, BiasEngine(model, self.batch))
        if variant == FULL:
            return engine_step(model, self.data, optimizer, make_engine(model, self.batch))
        return opacus_step(model, self.data, optimizer, ghost=False)


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
    return peak_of(bench.step_of(variant), device)


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
            command = [__file__, "--case", case]
            memory = peaks_alone(command, VARIANTS, options.device, options.memory_repeats)
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
