"""Costs against what grows: records, features, trials, nodes; tables, and a picture of each.

A step of a linear head is measured beside plain torch and Opacus, whole studies by ``dpsweep run``
of thousand.yaml, and nodes by ``dpsweep simulate`` of simulate_long.yaml. The figures are kept beside
the pictures in costs.json, from which ``--only`` draws again what it does not measure.

    python tests/benchmarks/draw_costs.py --pictures docs/pictures [--only records features] [--json]
    python tests/benchmarks/draw_costs.py --pictures docs/pictures --only   # measure nothing
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from bench_linear_head import Bench
from bench_sweep import OURS, seconds
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from tables import Table, clock, number, show
from timing import median_ms

HERE = Path(__file__).parent
FIGURES = "costs.json"
RECORDS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
FEATURES = (64, 256, 1024, 4096, 16_384)
TRIALS, RUNS = (8, 32, 128), 2
NODES = (1, 2, 4, 8, 16, 32, 64)
BATCH, CLASSES = 1024, 10
SIMULATED, SLOTS = 1024, 8  # trials, and how many of them a node runs at once
OWN, PLAIN = "dpsweep, closed form", "plain torch, not private"
GHOST, HOOKS = "Opacus ghost clipping", "Opacus hooks"
TRACKED, UNTRACKED = "with tracking", "without tracking"
FIFO, HALVING, IDEAL = "fifo", "epsilon_halving", "fifo, in proportion"
#: Colours that are told apart also by people who do not see red and green.
COLOURS = {
    OWN: "#0072B2",
    PLAIN: "#777777",
    GHOST: "#E69F00",
    HOOKS: "#D55E00",
    TRACKED: "#0072B2",
    UNTRACKED: "#009E73",
    FIFO: "#0072B2",
    HALVING: "#009E73",
    IDEAL: "#777777",
}

#: Plot -> labels of its axes.
LABELS = {
    "records": (f"records (expected batch {BATCH:,})", "ms a step, CPU"),
    "features": (f"features (expected batch {BATCH:,})", "ms a step, CPU"),
    "trials": ("trials of a study", "s from key press to prompt"),
    "nodes": (f"nodes of {SLOTS} slots", "minutes, simulated"),
}
#: Plots of which a line's slope says more than its factor.
LINEAR = frozenset({"trials"})


@dataclass(frozen=True)
class Costs:
    """One plot's figures.

    Attributes:
        name: Of its file, behind ``cost_``.
        axis: What grows.
        unit: Of the costs.
        caption: How they were measured.
        sizes: Where.
        lines: Costs at the sizes, by name of the line.
        load: Of the machine before and after.
    """

    name: str
    axis: str
    unit: str
    caption: str
    sizes: list[int]
    lines: dict[str, list[float]]
    load: tuple[float, float] = (0.0, 0.0)

    def table(self) -> Table:
        """Return a row for each size."""
        heads = [f"{name}, {self.unit}" for name in self.lines]
        rows = (
            (f"{size:,}", *(number(values[place]) for values in self.lines.values()))
            for place, size in enumerate(self.sizes)
        )
        caption = f"{self.caption} Load {self.load[0]:.1f} before, {self.load[1]:.1f} after."
        return Table((self.axis, *heads), tuple(rows), caption)


class FixedBatches(Bench):
    """The records of another bench, in batches of one size as training without privacy has them."""

    def __init__(self, other: Bench) -> None:
        self.__dict__.update(other.__dict__)

    def rows(self) -> np.ndarray:
        return self.rng.integers(len(self.y), size=self.batch)


def steps(records: int, features: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of a step of a linear head for every variant."""
    torch.empty(31 << 18)  # freed at once: glibc then keeps blocks below 31 MiB, at all sizes alike
    bench = Bench(records, features, CLASSES, BATCH)
    variants = {
        OWN: bench.closed_form(),
        PLAIN: FixedBatches(bench).plain_torch(),
        GHOST: bench.opacus(ghost=True),
        HOOKS: bench.opacus(ghost=False),
    }
    return median_ms(
        variants, rounds=rounds, repeats=lambda name: 2 if name == HOOKS else 5, device="cpu"
    )


def against_records(rounds: int) -> Costs:
    """Measure steps with ever more records and the same expected batch."""
    features = 256
    return Costs(
        "records",
        "records",
        "ms",
        f"A step of a linear head, {features} features, {CLASSES} classes, expected batch "
        f"{BATCH:,}; {clock('cpu', rounds)}. Plain torch takes batches of one size; the others "
        "draw each record by itself, as a guarantee by sampling asks for.",
        list(RECORDS),
        _lines([steps(count, features, rounds) for count in RECORDS]),
    )


def against_features(rounds: int) -> Costs:
    """Measure steps with ever more features."""
    records = 10_000
    return Costs(
        "features",
        "features",
        "ms",
        f"The same with {records:,} records; {clock('cpu', rounds)}.",
        list(FEATURES),
        _lines([steps(records, count, rounds) for count in FEATURES]),
    )


def against_trials() -> Costs:
    """Measure whole studies of trials that take next to no time themselves."""
    command = [*OURS[:2], str(HERE / "thousand.yaml")]
    variants = {TRACKED: command, UNTRACKED: [*command, "--set", "tracking.uri=null"]}
    measured = [
        {
            name: min(seconds([*words, "--set", f"search.num_trials={count}"]) for _ in range(RUNS))
            for name, words in variants.items()
        }
        for count in TRIALS
    ]
    return Costs(
        "trials",
        "trials",
        "s",
        "`dpsweep run tests/benchmarks/thousand.yaml --set search.num_trials=...`: real trials of "
        "5 steps on the digits, from the key press to the prompt; wall seconds, the fastest of "
        f"{RUNS} runs each.",
        list(TRIALS),
        _lines(measured),
    )


def against_nodes() -> Costs:
    """Simulate a study on ever more nodes; nothing is trained."""
    spec, policies = HERE / "simulate_long.yaml", (FIFO, HALVING)
    simulated = []
    for nodes in NODES:
        command = [OURS[0], "simulate", str(spec), "--set", "data.dataset=fashion_mnist"]
        command += ["--trials", str(SIMULATED), "--slots", str(SLOTS * nodes)]
        command += ["--policies", ",".join(policies), "--format", "json"]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows = {row["policy"]: row["simulated_hours"] * 60 for row in json.loads(answer)}
        simulated.append({name: rows[name] for name in policies})
    lines = _lines(simulated)
    lines[IDEAL] = [lines[FIFO][0] / nodes for nodes in NODES]
    return Costs(
        "nodes",
        "nodes",
        "simulated minutes",
        "`dpsweep simulate tests/benchmarks/simulate_long.yaml --set data.dataset=fashion_mnist "
        f"--trials {SIMULATED} --slots ...`, {SLOTS} slots a node: plans, steps and rungs are real, "
        "the seconds of a step are made up, and the platform's own work is not simulated.",
        list(NODES),
        lines,
    )


def _lines(measured: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [at[name] for at in measured] for name in measured[0]}


def draw(costs: Costs, path: Path) -> None:
    """Write a picture with a name at the end of each line."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name, values in costs.lines.items():
        style = {"ls": ":", "marker": ""} if name == IDEAL else {"marker": "o", "ms": 4}
        width = 2.4 if name == OWN else 1.5
        axes.plot(costs.sizes, values, color=COLOURS[name], lw=width, **style)
    if costs.name in LINEAR:
        axes.set(xlim=(0, None), ylim=(0, None))
    else:
        every = [value for values in costs.lines.values() for value in values]
        is_wide = max(every) > 10 * min(every)
        axes.set(xscale="log", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if is_wide else (1, 2, 3, 4, 5, 7)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_yticks([], minor=True)
    axes.set_xticks(costs.sizes, [f"{size:,}" for size in costs.sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlim(right=costs.sizes[-1] * 1.04)
    x_label, y_label = LABELS[costs.name]
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.draw_without_rendering()  # else no place in points is right
    for name, height in _apart(costs, axes.transData.transform, gap=13 * figure.dpi / 72).items():
        place = (costs.sizes[-1], costs.lines[name][-1])
        shift = (height - axes.transData.transform(place)[1]) * 72 / figure.dpi
        axes.annotate(
            name,
            place,
            xytext=(7, shift),
            textcoords="offset points",
            va="center",
            color=COLOURS[name],
            annotation_clip=False,
        )
    figure.savefig(path, dpi=110)


def _apart(
    costs: Costs, place: Callable[[tuple[float, float]], np.ndarray], *, gap: float
) -> dict[str, float]:
    """Return heights of the lines' names in pixels, so that none covers another."""
    ends = {
        name: float(place((costs.sizes[-1], values[-1]))[1]) for name, values in costs.lines.items()
    }
    heights: dict[str, float] = {}
    for name in sorted(ends, key=ends.__getitem__):
        lowest = max(heights.values(), default=-np.inf) + gap
        heights[name] = max(ends[name], lowest)
    return heights


#: Name -> what measures it, in the order of the page; rounds are of steps.
PLOTS: dict[str, Callable[[int], Costs]] = {
    "records": against_records,
    "features": against_features,
    "trials": lambda rounds: against_trials(),
    "nodes": lambda rounds: against_nodes(),
}


def measure(name: str, rounds: int) -> Costs:
    """Measure one plot's figures, with the load of the machine."""
    before = os.getloadavg()[0]
    return replace(PLOTS[name](rounds), load=(before, os.getloadavg()[0]))


def main() -> None:
    """Measure, draw and print the tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="where to draw")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=tuple(PLOTS),
        help="measure these, or none; the others' figures are read from FOLDER",
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.only is not None and not options.pictures:
        parser.error("--only needs --pictures FOLDER, where costs.json is")
    torch.set_num_threads(1)
    plots = {}
    if options.only is not None:
        kept = json.loads((options.pictures / FIGURES).read_text())
        plots = {fields["name"]: Costs(**fields) for fields in kept}
    for name in PLOTS if options.only is None else options.only:
        plots[name] = measure(name, options.rounds)
    figures = [asdict(plots[name]) for name in PLOTS]
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
        (options.pictures / FIGURES).write_text(json.dumps(figures, indent=1) + "\n")
        for name, costs in plots.items():
            draw(costs, options.pictures / f"cost_{name}.png")
    show([plots[name].table() for name in PLOTS], {"plots": figures}, as_json=options.json)


if __name__ == "__main__":
    main()
