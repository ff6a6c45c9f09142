"""One step of sparse finetuning against full finetuning without privacy and masked Opacus.

ResNet-18 with GroupNorm; a fraction of its convolution weights, its norms and its classifier
train. A step is: draw and gather a batch, gradient (clipped and noised, except without privacy),
SGD with momentum. Opacus computes whole per-example gradients, of which the mask is then taken; its
hooks need residual sums that are not in place, so its network gets such. The variants run
round-robin in one process on one thread; a figure is the median process CPU time of a step, which a
busy machine disturbs less than wall time (on CUDA: wall time). Memory is the peak of the resident
set over that of model and data, each variant in a process of its own (Linux; on CUDA: allocated);
the first step, in which the engine also checks itself against autograd, is shown apart.

    python tests/benchmarks/bench_sparse.py [--size 32] [--batch 16] [--density 0.01] [--json]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tables import Table, clock, compared, show
from timing import median_ms, outputs_of
from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.devices.peaks import resident_bytes
from dpsweep.trainables.gradients.clipping import clip_factors
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import SparseValues, magnitude_mask
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import on_device

NOISE_MULTIPLIER = 1.0
MAX_GRAD_NORM = 1.0
RECORDS = 256
CLASSES = 10
SPARSE, OPACUS = "sparse engine", "Opacus, then mask"
FULL, FROZEN = "non-private, all", "non-private, convs frozen"
#: Variant -> its row.
ROWS = {
    SPARSE: "sparse engine (`sparse.train: all`)",
    FULL: "plain torch, whole network, not private",
    FROZEN: "plain torch, convolutions frozen, not private",
    OPACUS: "Opacus hooks on the whole network, then the mask",
}
#: Sparse engine's largest ratio of time to full finetuning without privacy.
FULL_GOAL = 1.2
#: The same to masked Opacus, at up to 32 px and beyond, where Opacus is less slow.
OPACUS_GOALS = (1 / 11, 1 / 4)
#: Sparse engine's largest ratio of extra memory to masked Opacus, at up to 32 px.
MEMORY_GOAL = 1 / 18


class Bench:
    """The data, and one step function per variant."""

    def __init__(self, size: int, batch: int, density: float, scope: str, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(RECORDS, 3, size, size, generator=generator).to(device)
        self.y = torch.randint(0, CLASSES, (RECORDS,), generator=generator).to(device)
        self.size, self.batch, self.density, self.scope = size, batch, density, scope
        self.device = device
        self.rng = np.random.default_rng(0)
        self.variants: dict[str, Callable[[], Callable[[], None]]] = {
            SPARSE: self.sparse,
            FULL: lambda: self.plain_torch(frozen=False),
            FROZEN: lambda: self.plain_torch(frozen=True),
            OPACUS: self.opacus,
        }

    def rows(self) -> np.ndarray:
        """Draw a batch; of fixed size here, as no step may be cheaper than another."""
        return self.rng.choice(RECORDS, self.batch, replace=False)

    def _model(self) -> nn.Module:
        names = tuple(str(label) for label in range(CLASSES))
        info = DatasetInfo("random", (3, self.size, self.size), CLASSES, RECORDS, 0, 0, 0, names)
        model = build_model("timm/resnet18", info, norm="group", seed=0)
        for module in model.modules():
            if isinstance(module, nn.GroupNorm):
                nn.init.ones_(module.weight)  # timm starts some at zero: no gradient behind them
        return on_device(model, self.device)

    def _freeze(self, model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.requires_grad_(False)

    def _update(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        sums: list[torch.Tensor],
        noise: SecretNoise,
    ) -> None:
        for parameter, total in zip(parameters, sums):
            drawn = noise.like(total, NOISE_MULTIPLIER * MAX_GRAD_NORM)
            parameter.grad = total.add_(drawn).div_(self.batch).float()
        optimizer.step()

    def sparse(self) -> Callable[[], None]:
        model = self._model()
        self._freeze(model)
        masks = magnitude_mask(model, self.density, scope=self.scope)  # type: ignore[arg-type]
        values = SparseValues(masks)
        trained = [*values.parameters, *(p for p in model.parameters() if p.requires_grad)]
        optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
        engine = SparseEngine(model, masks, self.batch)
        noise = SecretNoise(self.device)

        def step() -> None:
            sums = engine.clipped_gradient_sum(self.x, self.y, self.rows(), MAX_GRAD_NORM)
            self._update(optimizer, trained, sums, noise)
            values.write()

        return step

    def plain_torch(self, *, frozen: bool) -> Callable[[], None]:
        model = self._model()
        if frozen:
            self._freeze(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)

        def step() -> None:
            rows = torch.from_numpy(self.rows()).to(self.device)
            x, y = self.x[rows].requires_grad_(frozen), self.y[rows]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    def opacus(self) -> Callable[[], None]:
        from opacus import GradSampleModule
        from timm.models.resnet import BasicBlock

        model = self._model()
        for module in model.modules():
            if isinstance(module, BasicBlock):
                module.forward = _residual(module)
        masks = magnitude_mask(model, self.density, scope=self.scope)  # type: ignore[arg-type]
        indices = {id(mask.layer.weight): mask.index.to(self.device) for mask in masks}
        weights = {id(m.weight): m.weight for m in model.modules() if isinstance(m, nn.Conv2d)}
        values = SparseValues(masks)
        for weight in weights.values():
            weight.requires_grad_(True)
        others = [p for p in model.parameters() if id(p) not in weights]
        trained = [*values.parameters, *others]
        optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
        noise = SecretNoise(self.device)
        wrapped = GradSampleModule(model, loss_reduction="sum")

        def step() -> None:
            rows = torch.from_numpy(self.rows()).to(self.device)
            x, y = self.x[rows], self.y[rows]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Full backward hook is firing when")
                nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
            with torch.no_grad():
                samples = [
                    mask.layer.weight.grad_sample.flatten(1)[:, indices[id(mask.layer.weight)]]
                    for mask in masks
                ]
                samples += [p.grad_sample.flatten(1) for p in others]
                norms = torch.stack([s.norm(dim=1) for s in samples], dim=1).norm(dim=1)
                factors = clip_factors(norms, MAX_GRAD_NORM)
                sums = [(factors @ s).view_as(p) for s, p in zip(samples, trained)]
            wrapped.zero_grad()
            self._update(optimizer, trained, sums, noise)
            values.write()

        return step


def _residual(block: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        hidden = block.act1(block.drop_block(block.bn1(block.conv1(x))))
        hidden = block.bn2(block.conv2(block.aa(hidden)))
        shortcut = x if block.downsample is None else block.downsample(x)
        return block.act2(hidden + shortcut)

    return forward


def measure(bench: Bench, rounds: int, steps: int) -> dict[str, float]:
    """Return the median milliseconds of a step for every variant."""
    variants = {name: make() for name, make in bench.variants.items()}
    return median_ms(
        variants,
        rounds=rounds,
        repeats=lambda name: 1 if name == OPACUS else steps,
        device=bench.device,
    )


def extra_memory(bench: Bench, variant: str, steps: int = 3) -> tuple[float, float]:
    """Return the peak memory above model and data of the first step, and of later ones, MiB."""
    import opacus  # noqa: F401  # its own size is no part of a step's

    step = bench.variants[variant]()
    before, peaks = _memory(bench.device), []
    for count in (1, steps):
        _forget_peak(bench.device)
        for _ in range(count):
            step()
        peaks.append((_peak(bench.device) - before) / 2**20)
    return peaks[0], peaks[1]


def _memory(device: str) -> int:
    gc.collect()
    if device == "cuda":
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes("VmRSS")


def _forget_peak(device: str) -> None:
    _memory(device)  # gives back what was freed, which a step would use again unseen
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else resident_bytes("VmHWM")


def _memory_of_all(names: list[str], arguments: list[str], device: str) -> dict[str, list[float]]:
    commands = ([sys.executable, __file__, "--memory-of", name, *arguments] for name in names)
    answers = outputs_of(commands, device)
    return {name: [float(w) for w in answer.split()[-2:]] for name, answer in zip(names, answers)}


def main() -> None:
    """Measure and print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--scope", choices=("global", "layer"), default="global")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = {key: getattr(options, key) for key in ("size", "batch", "density", "scope", "device")}
    bench = Bench(**shape)
    if options.memory_of:
        print(*extra_memory(bench, options.memory_of))
        return
    times = measure(bench, options.rounds, options.steps)
    memory: dict[str, list[float]] = {}
    if options.device == "cuda" or Path("/proc/self/clear_refs").exists():
        arguments = [word for key, value in shape.items() for word in (f"--{key}", str(value))]
        memory = _memory_of_all(list(times), arguments, options.device)
    rounds = {"rounds": options.rounds, "steps": options.steps}
    figures = {"ms": times, "extra_mib": memory, **shape, **rounds}
    show([table(times, memory, {**shape, **rounds})], figures, as_json=options.json)


def table(
    times: dict[str, float], memory: dict[str, list[float]], options: dict[str, Any]
) -> Table:
    """Return times and, where it was measured, memory after the first step, beside their goals."""
    is_small = options["size"] <= 32
    time_goals = {FULL: FULL_GOAL, OPACUS: OPACUS_GOALS[not is_small]}
    memory_goals = {OPACUS: MEMORY_GOAL} if is_small else {}
    of_time = compared(times, SPARSE, time_goals, is_time=True)
    later = {name: peaks[1] for name, peaks in memory.items()}
    of_memory = compared(later, SPARSE, memory_goals, is_time=False)
    heads = ["ms", "the sparse engine takes", "goal"]
    heads += ["extra MiB", "the sparse engine takes", "goal"] if memory else []
    together = " of all layers together" if options["scope"] == "global" else " of each layer"
    return Table(
        ("variant", *heads),
        tuple((ROWS[name], *of_time[name], *of_memory.get(name, ())) for name in times),
        f"ResNet-18 with GroupNorm at {options['size']} px, batch {options['batch']}; the "
        f"{100 * options['density']:g}% largest convolution weights{together}, norms and "
        f"classifier; {clock(options['device'], options['rounds'])}. Memory is the peak of steps "
        "after the first above model and data, each variant alone.",
    )


if __name__ == "__main__":
    main()
