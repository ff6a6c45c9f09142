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
import json

import timm
import torch
from steps import Batches, Step, engine_step, opacus_step, plain_step, suit_opacus
from timing import median_ms, peak_of, peaks_alone

from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.per_example import make_engine

RECORDS, CLASSES = 128, 10
#: Name -> (timm model, its options, image size, batch).
CASES = {
    "resnet18-32": ("resnet18", {"norm_layer": "groupnorm"}, 32, 32),
    "vit-tiny-96": ("vit_tiny_patch16_224", {"img_size": 96}, 96, 32),
}
PLAIN, ENGINE = "non-private biases", "bias engine"
FULL = "dpsweep full"
OPACUS, OPACUS_FULL = "Opacus biases", "Opacus full"
VARIANTS = (PLAIN, ENGINE, FULL, OPACUS, OPACUS_FULL)
#: Case -> variant -> largest ratio of the engine's time to the variant's.
TIME_GOALS = {
    "resnet18-32": {PLAIN: 1.02, FULL: 1 / 2.5, OPACUS: 0.95, OPACUS_FULL: 1 / 25},
    "vit-tiny-96": {PLAIN: 1.02, FULL: 1 / 2.5, OPACUS: 0.95, OPACUS_FULL: 1 / 2.5},
}
#: The same for memory.
MEMORY_GOALS = {
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
        model.to(self.data.device).train()
        if variant in (OPACUS, OPACUS_FULL):
            suit_opacus(model)
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
    """Measure and print a table per case, or JSON."""
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
    results = {}
    for case in [options.case] if options.case else CASES:
        times = measure_times(
            case, rounds=options.rounds, steps=options.steps, device=options.device
        )
        memory = {}
        if options.memory_repeats:
            command = [__file__, "--case", case]
            memory = peaks_alone(command, VARIANTS, options.device, options.memory_repeats)
        results[case] = {"ms": times, "MiB": memory}
        if not options.json:
            _print(case, times, memory)
    if options.json:
        print(json.dumps(results))


def _print(case: str, times: dict[str, float], memory: dict[str, float]) -> None:
    print(f"{case}, batch {CASES[case][3]}, 1 thread")
    print(f"{'variant':<20}{'ms/step':>10}{'engine is':>11}  {'goal':<17}", end="")
    print(f"{'extra MiB':>10}{'engine is':>11}  goal")
    for name in times:
        print(f"{name:<20}", end="")
        print(_cells(times, name, TIME_GOALS[case]), end="")
        print(_cells(memory, name, MEMORY_GOALS[case]) if memory else "")


def _cells(values: dict[str, float], name: str, goals: dict[str, float | None]) -> str:
    ratio, goal = values[ENGINE] / values[name], goals.get(name)
    text = "" if goal is None else f"<= {goal:.2f}" + ("" if ratio <= goal else " MISSED")
    return f"{values[name]:>10.1f}{ratio:>10.3f}x  {text:<17}"


if __name__ == "__main__":
    main()
