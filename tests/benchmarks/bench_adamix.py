"""One full-batch step of AdaMix against plain torch autograd and Opacus hooks.

A step is: gradients of all private and of all public records, clip, noise, projection, update. The
Opacus variant clips per-example gradients of virtual batches of 500. The variants run round-robin
in one process on one thread; a figure is the median process CPU time of a step, which a busy
machine disturbs less than wall time (on CUDA: wall time). The memory is that of the largest tensor
that any operation of a step returns.

    python tests/benchmarks/bench_adamix.py [--private 10000] [--features 2048] [--json]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tables import Cell, Goal, Table, at_most, clock, number, show
from tables import times as ratio_of
from timing import median_ms, steps_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.adamix.adamix import AdaMix

NOISE_MULTIPLIER = 20.0
MAX_GRAD_NORM = 0.5
VIRTUAL_BATCH = 500
STEPS = 10**6
PLAIN, PROJECTED = "non-private torch", "closed form, adaptive clip, projection"
OPACUS = "Opacus hooks"
#: Variant -> its row.
ROWS = {
    PLAIN: "plain torch, not private",
    "closed form": "AdaMix, fixed clip",
    "closed form, adaptive clip": "AdaMix, adaptive clip",
    PROJECTED: "AdaMix, adaptive clip and a fresh projection",
    OPACUS: f"Opacus hooks, virtual batches of {VIRTUAL_BATCH}",
}
#: Variant -> largest ratio to plain torch.
GOALS = {"closed form": 1.15, "closed form, adaptive clip": 1.15, PROJECTED: 1.5}
#: Least number of times that the closed form with its projection is faster than Opacus hooks.
OPACUS_GOAL = 45


def _data(private: int, public: int, features: int, classes: int) -> SweepData:
    """Return random features of norm 1, with equally many public records of each class."""
    rng = np.random.default_rng(0)
    parts = {}
    for part, count in (("private", private), ("public", public), ("validation", 0), ("test", 0)):
        x = np.abs(rng.standard_normal((count, features), dtype=np.float32))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        parts[part] = (x, np.arange(count) % classes)
    names = tuple(str(label) for label in range(classes))
    info = DatasetInfo("random", (features,), classes, private, 0, 0, public, names)
    return SweepData(info, parts, "0" * 64)


class Bench:
    """The data, and one step function per variant."""

    def __init__(
        self, private: int, public: int, features: int, classes: int, device: str = "cpu"
    ) -> None:
        self.data = _data(private, public, features, classes)
        self.shots = public // classes
        self.device = device
        inputs, labels = self.data.parts["private"]
        self.x = torch.from_numpy(inputs).to(device)
        self.y = torch.from_numpy(labels).to(device)

    def closed_form(self, **given: object) -> Callable[[], None]:
        """The method itself, with the switches of ``given``."""
        hparams = resolve(
            AdaMix.hyperparameters,
            {
                "features.name": "none",
                "public.shots": self.shots,
                "public.epochs": 1,
                "clip.max_grad_norm": MAX_GRAD_NORM,
                **given,
            },
        )
        instance = AdaMix()
        plan = Plan((EventRun(Gaussian(NOISE_MULTIPLIER), STEPS),))
        instance.prepare(self.data, hparams, plan, RunContext(0, 0, self.device))
        return steps_of(instance)

    def _head(self) -> nn.Linear:
        torch.manual_seed(0)
        return nn.Linear(self.x.shape[1], self.data.info.num_classes, bias=False).to(self.device)

    def plain_torch(self) -> Callable[[], None]:
        """A non-private step on the private records."""
        model = self._head()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(self.x), self.y).backward()
            optimizer.step()

        return step

    def opacus(self) -> Callable[[], None]:
        """A step with a fixed clip, by Opacus' hooks."""
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        model = GradSampleModule(self._head())
        optimizer = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=MAX_GRAD_NORM,
            expected_batch_size=len(self.y),
        )
        criterion = nn.CrossEntropyLoss(reduction="mean")
        begins = range(0, len(self.y), VIRTUAL_BATCH)

        def step() -> None:
            for begin in begins:
                rows = slice(begin, begin + VIRTUAL_BATCH)
                optimizer.signal_skip_step(do_skip=begin != begins[-1])
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="Full backward hook is firing when")
                    criterion(model(self.x[rows]), self.y[rows]).backward()
                optimizer.step()
                optimizer.zero_grad()

        return step

    def variants(self) -> dict[str, Callable[[], None]]:
        """Return the step of every variant but Opacus, by name."""
        fixed = {"adamix.variant": "ngd", "adamix.public_gradient": False}
        return {
            PLAIN: self.plain_torch(),
            "closed form": self.closed_form(**fixed),
            "closed form, adaptive clip": self.closed_form(**{"adamix.projection": False}),
            PROJECTED: self.closed_form(),
        }


def measure(
    *,
    private: int = 10_000,
    public: int = 670,
    features: int = 2048,
    classes: int = 67,
    rounds: int = 5,
    steps: int = 3,
    device: str = "cpu",
) -> dict[str, float]:
    """Return the median milliseconds of a step for every variant."""
    torch.set_num_threads(1)
    bench = Bench(private, public, features, classes, device)
    variants = {**bench.variants(), OPACUS: bench.opacus()}
    return median_ms(
        variants,
        rounds=rounds,
        repeats=lambda name: 1 if name == OPACUS else steps,
        device=device,
        slow=OPACUS,  # seconds each, and far from the goal's border
    )


class _Largest(TorchDispatchMode):
    """Notes the bytes of the largest fresh tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in given:
                    self.bytes = max(self.bytes, storage.nbytes())
        return result


def largest_tensor(bench: Bench) -> dict[str, float]:
    """Return the MiB of the largest tensor that one step of a variant makes."""
    sizes = {}
    for name, step in {**bench.variants(), OPACUS: bench.opacus()}.items():
        with _Largest() as largest:
            step()
        sizes[name] = largest.bytes / 2**20
    return sizes


def table(times: dict[str, float], made: dict[str, float], options: dict[str, Any]) -> Table:
    """Return medians and largest tensors, MiB, measured with these options, beside their goals."""
    rows = []
    for name, value in times.items():
        ratio = value / times[PLAIN]
        text, goal = ratio_of(ratio), _goal(name, times)
        if name == OPACUS:
            text += f" ({value / times[PROJECTED]:.0f} times the projected step)"
        rows.append((ROWS[name], number(value), "1" if name == PLAIN else text, goal))
    largest = max(options["private"], options["public"]) * options["features"] * 4 / 2**20
    memory = Goal(f"<= {largest:.0f}, the features", made[PROJECTED] <= largest)
    return Table(
        ("variant", "ms", "against plain torch", "goal"),
        tuple(rows),
        f"{options['private']:,} private and {options['public']:,} public records, "
        f"{options['features']:,} features, {options['classes']} classes; a full-batch step, "
        f"{clock(options['device'], options['rounds'])}.",
        f"The largest tensor of the projected step has {made[PROJECTED]:.1f} MiB (goal {memory}), "
        f"of Opacus hooks {made[OPACUS]:.0f} MiB.",
    )


def _goal(name: str, times: dict[str, float]) -> Cell:
    if name == OPACUS:
        return Goal(f">= {OPACUS_GOAL} times", times[OPACUS] >= OPACUS_GOAL * times[PROJECTED])
    return at_most(GOALS[name], times[name] / times[PLAIN]) if name in GOALS else ""


def main() -> None:
    """Measure and print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--private", type=int, default=10_000)
    parser.add_argument("--public", type=int, default=670)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=67)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    sizes = {name: options[name] for name in ("private", "public", "features", "classes")}
    times = measure(**options)
    made = largest_tensor(Bench(**sizes, device=options["device"]))
    figures = {"ms": times, "largest_tensor_mib": made, **options}
    show([table(times, made, options)], figures, as_json=as_json)


if __name__ == "__main__":
    main()
